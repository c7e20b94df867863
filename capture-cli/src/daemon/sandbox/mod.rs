//! What a running capture is kept from (`[process]`): other files than its own, and system calls that no capture makes.
//!
//! The order of a start is this. Root becomes `process.user`, before anything is opened ([`user`]). What runs hooks is
//! started, outside the sandbox ([`hooks`]), the control socket is bound, and what replaces the summary and removes that
//! socket is started ([`outside`]). Root that stays root keeps what a capture takes ([`user`]). Then files are closed off
//! ([`files`]): a landlock domain holds for a thread and those it makes, so this comes before the first of them. Then all
//! is opened, and at last calls are closed off for all threads at once ([`calls`]).
//!
//! Invariant: a capture that goes on without a part of its sandbox has said so.

mod calls;
pub mod files;
pub mod hooks;
pub mod outside;
pub mod user;

use crate::failure::Failure;
use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};
use nix::unistd::Uid;
use std::{env, io, os::unix::process::CommandExt, path::Path, process::Command};
use wqcap_engine::{
    config::{Config, Sandbox as Wanted},
    plan::Plan,
};

/// This program, to be started as one of its subcommands that serve a capture from outside its sandbox.
fn own_command(subcommand: &str) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    // ^C at a terminal is for the capture, which then gives its helpers their time.
    command.arg(subcommand).process_group(0);
    Ok(command)
}

/// Capabilities that root keeps in such a process: hooks move, read, give away and delete files, and may continue as
/// another user. Capabilities for raw I/O, modules, mounts, tracing and the network are dropped.
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

/// Drops, in such a process, the rights of a capture and those that files do not need.
///
/// An ordinary user's program that is executed has ambient capabilities alone. Clearing those is an unprivileged call, which a
/// hardened unit may make. A program that root executes has what the bounding set leaves.
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

/// A sandbox with its files closed off, and its calls still open.
pub struct Sandbox {
    wanted: Wanted,
    /// Of the software NIC.
    wire: Option<String>,
}

impl Sandbox {
    /// Closes off all files but those of the configuration, of which `config` is the file, and `pipe`, which
    /// the summary goes to as it is, for this thread and those it makes.
    pub fn enter(
        settings: &Config,
        plan: &Plan,
        config: Option<&Path>,
        pipe: Option<&Path>,
        wire: Option<String>,
    ) -> Result<Self, Failure> {
        let it = Self {
            wanted: settings.process.sandbox,
            wire,
        };
        if it.wanted != Wanted::Off {
            let shed = user::shed(settings, plan, config, it.wire.as_deref());
            let shed = shed.map_err(|e| e.to_string());
            it.judge("root keeps only what a capture takes", shed)?;
            let own = files::Own::of(settings, plan, config, pipe, it.wire.is_some());
            it.judge("landlock keeps it from other files", own.restrict())?;
        }
        Ok(it)
    }

    /// Closes off all files but those that are shipped, for this thread and those it makes. Connections go where they will: a
    /// store's addresses are its own.
    #[cfg(feature = "ship")]
    pub fn enter_to_ship(settings: &Config, plan: &wqcap_ship::ShipPlan) -> Result<(), Failure> {
        let it = Self {
            wanted: settings.process.sandbox,
            wire: None,
        };
        if it.wanted == Wanted::Off {
            return Ok(());
        }
        let metrics = settings.ship.as_ref().and_then(|it| it.metrics.as_ref());
        let own = files::Own::to_ship(plan, metrics.map(|it| it.port));
        it.judge("landlock keeps it from other files", own.restrict())
    }

    /// Closes off all calls but those a capture makes, for all threads.
    pub fn close(&self) -> Result<(), Failure> {
        let beyond = match self.wanted {
            Wanted::Off => return Ok(()),
            Wanted::Log => calls::LOGGED,
            Wanted::On | Wanted::Require => calls::REFUSED,
        };
        let what = "seccomp keeps it from other system calls";
        self.judge(what, calls::restrict_all(beyond, self.wire.as_deref()))
    }

    /// What the kernel could not do is told, or ends the start.
    fn judge(&self, what: &str, outcome: Result<(), String>) -> Result<(), Failure> {
        match outcome {
            Ok(()) => {
                tracing::debug!("{what}");
                Ok(())
            }
            Err(why) if self.wanted == Wanted::Require => Err(Failure::refused(format!(
                "process.sandbox = \"require\": {why}; \"on\" continues without it"
            ))),
            Err(why) => {
                tracing::warn!("a part of the sandbox is missing: {why}");
                Ok(())
            }
        }
    }
}
