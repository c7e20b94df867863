//! Sandbox of a running capture (`[process]`): allows only its files and the system calls that
//! captures make.
//!
//! A capture starts in this order:
//!
//! 1. Root becomes `process.user`, before anything is opened ([`user`]).
//! 2. The process that runs hooks is started, outside the sandbox ([`hooks`]).
//! 3. The control socket is bound.
//! 4. The process that replaces the summary and removes that socket is started ([`outside`]).
//! 5. Root that stays root drops the capabilities that a capture does not need ([`user`]).
//! 6. File access is restricted ([`files`]). A landlock domain applies to a thread and the threads
//!    that it creates, so this comes before the first of them.
//! 7. All files, devices and sockets are opened.
//! 8. System calls are restricted for all threads at once ([`calls`]).
//!
//! Invariant: a capture that continues without a part of its sandbox has logged that.

mod calls;
pub mod files;
pub mod hooks;
pub mod outside;
pub mod user;

use crate::{
    failure::{Failure, may_pass},
    term::message,
};
use calls::{CaptureParts, KernelSockets};
use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};
use landlock::{PathFdError, RulesetError};
use nix::{errno::Errno, unistd::Uid};
use std::{env, io, os::unix::process::CommandExt, path::Path, process::Command};
use wqcap_engine::{
    config::{Config, Sandbox as Wanted},
    plan::Plan,
};

/// Reason why a part of the sandbox is missing, or why `process.user` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// The kernel refuses the seccomp filters of system calls.
    #[error("seccomp: the kernel refuses the filters of system calls: {0}")]
    Seccomp(#[from] seccompiler::Error),
    /// The kernel refuses the landlock domain, which restricts file access.
    #[error("landlock: the kernel refuses the rules for files: {0}")]
    Landlock(#[from] RulesetError),
    /// The process has no file descriptors for the rules of landlock.
    #[error("landlock: cannot open the files of its rules: {0}")]
    NoDescriptor(#[from] PathFdError),
    /// The kernel does not support landlock, which restricts file access.
    #[error("this kernel has no landlock, or its boot parameter lsm= leaves landlock out")]
    NoLandlock,
    /// The capabilities of the process cannot be changed.
    #[error(transparent)]
    Capabilities(#[from] CapsError),
    /// The user of `process.user` cannot be looked up, or the process cannot become that user.
    #[error(transparent)]
    User(#[from] Errno),
    /// The system has no user with the name of `process.user`.
    #[error("there is no such user")]
    NoUser,
}

/// Returns a command that starts this program as a helper process of the capture, outside the
/// capture's sandbox.
fn own_command(subcommand: &str) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    // ^C at a terminal is for the capture, which then gives its helpers time to end.
    command
        .args(message::arguments())
        .arg(subcommand)
        .process_group(0);
    Ok(command)
}

/// Capabilities that root keeps in a helper process: hooks move, read and delete files, change
/// their owners, and may continue as another user. Capabilities for raw I/O, modules, mounts,
/// tracing and the network are dropped.
const OF_FILES: [Capability; 8] = [
    Capability::CAP_CHOWN,
    Capability::CAP_DAC_OVERRIDE,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_FOWNER,
    Capability::CAP_FSETID,
    Capability::CAP_KILL,
    Capability::CAP_SETGID,
    Capability::CAP_SETUID,
];

/// Drops the rights of a capture in a helper process, keeping the capabilities of [`OF_FILES`].
///
/// An executed program of an ordinary user has only ambient capabilities. Clearing those is an
/// unprivileged call, which a hardened unit may make. A program that root executes has the
/// capabilities of the bounding set.
fn drop_capture_rights() -> Result<(), CapsError> {
    caps::clear(None, CapSet::Ambient)?;
    if !Uid::effective().is_root() {
        return Ok(());
    }
    let kept = CapsHashSet::from(OF_FILES);
    let held = caps::read(None, CapSet::Permitted)?;
    if held.contains(&Capability::CAP_SETPCAP) {
        user::limit(&kept)?;
    }
    let kept = &held & &kept;
    for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
        caps::set(None, set, &kept)?;
    }
    Ok(())
}

/// Sandbox of a running capture. It restricts files already, and system calls after
/// [`Sandbox::close`].
pub struct Sandbox {
    /// Value of the configuration key `process.sandbox`.
    wanted: Wanted,
    /// Parts of the sandboxed capture that need additional system calls.
    parts: CaptureParts,
}

impl Sandbox {
    /// Restricts this thread, and the threads that it creates, to the files that the configuration
    /// names. `config` is the config file; `pipe` is the path of a `--summary` that is not a
    /// regular file.
    pub fn enter(
        settings: &Config,
        plan: &Plan,
        config: Option<&Path>,
        pipe: Option<&Path>,
        wire: Option<String>,
    ) -> Result<Self, Failure> {
        let it = Self {
            wanted: settings.process.sandbox,
            parts: CaptureParts {
                wire,
                kernel: KernelSockets::of(plan.ports().map(|it| it.backend)),
            },
        };
        if it.wanted != Wanted::Off {
            let shed = user::drop_root_capabilities(settings, plan, config);
            let shed = shed.map_err(SandboxError::from);
            it.check("root keeps only the capabilities of a capture", shed)?;
            let wire = it.parts.wire.as_deref();
            let own = files::AllowedPaths::from_config(settings, plan, config, pipe, wire);
            it.check("landlock denies other files", own.restrict())?;
        }
        Ok(it)
    }

    /// Restricts this thread, and the threads that it creates, to the files that `wqcap ship`
    /// needs. Connections to any address are allowed, because the object store's client resolves
    /// addresses itself.
    #[cfg(feature = "ship")]
    pub fn enter_to_ship(
        settings: &Config,
        plan: &wqcap_ship::ShipPlan,
        config: Option<&Path>,
    ) -> Result<(), Failure> {
        let it = Self {
            wanted: settings.process.sandbox,
            parts: CaptureParts::default(),
        };
        if it.wanted == Wanted::Off {
            return Ok(());
        }
        let metrics = settings.ship.as_ref().and_then(|it| it.metrics.as_ref());
        let own = files::AllowedPaths::to_ship(plan, config, metrics.map(|it| it.port));
        it.check("landlock denies other files", own.restrict())
    }

    /// Restricts this process to the rights that `wqcap serve` needs: switches its user, and
    /// restricts this thread and the threads that it creates to the needed files and the port.
    /// Connections to other machines are refused.
    #[cfg(feature = "serve")]
    pub fn enter_to_serve(
        settings: &Config,
        plan: &wqcap_serve::ServePlan,
        config: Option<&Path>,
        port: u16,
    ) -> Result<(), Failure> {
        let it = Self {
            wanted: settings.process.sandbox,
            parts: CaptureParts::default(),
        };
        // The folder of pins gets the owner of the capture's folder.
        let pins = plan.tokens.as_ref().and_then(|_| {
            let folder = wqcap_engine::files::pin::PinFolder { dir: &plan.dir };
            folder.prepare().ok()
        });
        user::become_reader(settings, port).map_err(|e| {
            Failure::refused(format!("process.user = {:?}: {e}", settings.process.user))
        })?;
        if it.wanted == Wanted::Off {
            return Ok(());
        }
        let own = files::AllowedPaths::to_serve(plan, config, pins, port);
        it.check("landlock denies other files", own.restrict())
    }

    /// Restricts all threads of the process to the system calls that a capture needs.
    pub fn close(&self) -> Result<(), Failure> {
        let beyond = match self.wanted {
            Wanted::Off => return Ok(()),
            Wanted::Log => calls::LOGGED,
            Wanted::On | Wanted::Require => calls::REFUSED,
        };
        let what = "seccomp denies other system calls";
        let restricted = calls::restrict_all(beyond, &self.parts);
        self.check(what, restricted.map_err(SandboxError::from))
    }

    /// Logs a missing part of the sandbox. Returns a failure if `process.sandbox` requires the part,
    /// or if only memory or file descriptors are short.
    fn check(&self, what: &str, outcome: Result<(), SandboxError>) -> Result<(), Failure> {
        match outcome {
            Ok(()) => {
                tracing::debug!("{what}");
                Ok(())
            }
            Err(reason) if may_pass(&reason) => {
                Err(Failure::failed(format!("process.sandbox: {reason}")))
            }
            Err(reason) if self.wanted == Wanted::Require => Err(Failure::refused(format!(
                "process.sandbox = \"require\": {reason}; with \"on\" the run continues without this part of the sandbox"
            ))),
            Err(reason) => {
                tracing::warn!("a part of the sandbox is missing: {reason}");
                Ok(())
            }
        }
    }
}
