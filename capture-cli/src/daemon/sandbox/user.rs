//! Change of user (`process.user`): root becomes another user and keeps the capabilities that the
//! configuration needs.
//!
//! These capabilities become ambient, so that they survive when the process re-executes itself on
//! the software NIC.

use super::SandboxError;
use caps::{CapSet, Capability, CapsHashSet, errors::CapsError, securebits};
use nix::unistd::{Gid, Uid, User, initgroups, setgroups, setresgid, setresuid};
use rustix::{
    fs::{Access, AtFlags, CWD, accessat},
    io::Errno,
};
use std::{ffi::CString, path::Path};
use wqcap_engine::{
    config::{Backend, Config, Problem},
    plan::Plan,
};

/// Switches the process to the user of `process.user`. Does nothing if the key is empty or the
/// process already runs as that user.
pub fn switch_user(config: &Config) -> Result<(), Problem> {
    let name = &config.process.user;
    if name.is_empty() {
        return Ok(());
    }
    let refused = |problem: String| Problem::new("process.user", format!("{name:?}"), problem);
    let user = Identity::lookup(name).map_err(|e| refused(e.to_string()))?;
    let now = Uid::effective();
    if now == user.uid {
        return Ok(());
    }
    if !now.is_root() {
        return Err(refused(format!(
            "wqcap runs as user {now}, and only root can become another user; start wqcap as root or as the user of process.user, or leave process.user out"
        )));
    }
    user.enter(&needs(config))
        .map_err(|e| refused(format!("wqcap cannot become the user of process.user: {e}")))
}

/// Reduces the capabilities of a process that stays root to those that [`switch_user`] keeps. Adds
/// CAP_DAC_OVERRIDE if root cannot use a folder or file of the configuration without it.
pub fn drop_root_capabilities(
    config: &Config,
    plan: &Plan,
    file: Option<&Path>,
) -> Result<(), CapsError> {
    if !Uid::effective().is_root() || !config.process.user.is_empty() {
        return Ok(());
    }
    let mut kept = needs(config);
    let held = caps::read(None, CapSet::Permitted)?;
    caps::set(None, CapSet::Effective, &(&held & &kept))?;
    let key = config
        .control
        .as_ref()
        .and_then(|it| it.key_file.as_deref());
    let read = [file, key].map(|it| (it, Access::READ_OK));
    let folders = [
        plan.output.dir.as_deref(),
        plan.output.index_dir.as_deref(),
        plan.flows.as_ref().map(|it| it.dir.as_path()),
    ];
    let written = folders.map(|it| (it, Access::WRITE_OK | Access::EXEC_OK));
    let used = read.into_iter().chain(written);
    let barred = used
        .filter_map(|(path, how)| Some((path?, how)))
        .find(|(path, how)| accessat(CWD, *path, *how, AtFlags::EACCESS) == Err(Errno::ACCESS));
    let listen = config.metrics.iter().map(|it| it.listen.port);
    if listen.into_iter().any(|port| (1..1024).contains(&port)) {
        kept.insert(Capability::CAP_NET_BIND_SERVICE);
    }
    // Dropping capabilities requires CAP_SETPCAP.
    caps::set(None, CapSet::Effective, &held)?;
    if let Some((path, _)) = barred {
        kept.insert(Capability::CAP_DAC_OVERRIDE);
        tracing::warn!(
            "root keeps CAP_DAC_OVERRIDE, because root has no access to {} without it; set process.user to a user with access",
            path.display()
        );
    }
    if held.contains(&Capability::CAP_SETPCAP) {
        limit(&kept)?;
    }
    keep(&kept)?;
    let mut names: Vec<_> = (&held & &kept).iter().map(ToString::to_string).collect();
    names.sort();
    tracing::info!(
        "the root process keeps the capabilities {} and drops all others",
        names.join(", ")
    );
    Ok(())
}

/// Reduces the rights of `wqcap serve`: root becomes `process.user` without any capability, or
/// keeps only the capabilities to read the capture's files and to add pins.
#[cfg(feature = "serve")]
pub fn become_reader(config: &Config, port: u16) -> Result<(), SandboxError> {
    if !Uid::effective().is_root() {
        return Ok(());
    }
    let mut kept = CapsHashSet::new();
    if (1..1024).contains(&port) {
        kept.insert(Capability::CAP_NET_BIND_SERVICE);
    }
    let name = &config.process.user;
    if !name.is_empty() {
        return Identity::lookup(name)?.enter(&kept);
    }
    kept.extend([
        Capability::CAP_CHOWN,
        Capability::CAP_DAC_OVERRIDE,
        Capability::CAP_DAC_READ_SEARCH,
    ]);
    limit(&kept)?;
    Ok(keep(&kept)?)
}

/// User and group to which the process switches for `process.user`.
struct Identity {
    uid: Uid,
    gid: Gid,
    /// Name of the user, for the supplementary groups; `None`: the number has no user.
    name: Option<CString>,
}

impl Identity {
    /// Looks up a user of this system by the name or number in `process.user`.
    fn lookup(name: &str) -> Result<Self, SandboxError> {
        let number = name.parse().ok().map(Uid::from_raw);
        let found = match number {
            Some(uid) => User::from_uid(uid)?,
            None => User::from_name(name)?,
        };
        match (found, number) {
            (Some(user), _) => Ok(Self {
                uid: user.uid,
                gid: user.gid,
                name: CString::new(user.name).ok(),
            }),
            (None, Some(uid)) => Ok(Self {
                uid,
                gid: Gid::from_raw(uid.as_raw()),
                name: None,
            }),
            (None, None) => Err(SandboxError::NoUser),
        }
    }

    /// Switches the process to this user and group, and keeps the capabilities in `kept`.
    fn enter(&self, kept: &CapsHashSet) -> Result<(), SandboxError> {
        match &self.name {
            Some(name) => initgroups(name, self.gid)?,
            None => setgroups(&[self.gid])?,
        }
        limit(kept)?;
        securebits::set_keepcaps(true)?;
        setresgid(self.gid, self.gid, self.gid)?;
        setresuid(self.uid, self.uid, self.uid)?;
        Ok(keep(kept)?)
    }
}

/// Drops all capabilities except `kept` from the process's bounding set, so that executed programs
/// cannot gain them.
pub fn limit(kept: &CapsHashSet) -> Result<(), CapsError> {
    for it in caps::read(None, CapSet::Bounding)? {
        if !kept.contains(&it) {
            caps::drop(None, CapSet::Bounding, it)?;
        }
    }
    Ok(())
}

/// Keeps only the capabilities in `kept` in this process, and makes them ambient.
fn keep(kept: &CapsHashSet) -> Result<(), CapsError> {
    // Root cannot keep a capability that it does not have. The operation that needs it reports the
    // error.
    let held = caps::read(None, CapSet::Permitted)?;
    let kept = &held & kept;
    for set in [
        CapSet::Effective,
        CapSet::Permitted,
        CapSet::Inheritable,
        CapSet::Ambient,
    ] {
        caps::set(None, set, &kept)?;
    }
    Ok(())
}

/// Returns the capabilities that a capture with this configuration needs.
fn needs(config: &Config) -> CapsHashSet {
    let mut needs = CapsHashSet::from([Capability::CAP_NET_RAW, Capability::CAP_IPC_LOCK]);
    if config.wq.delay_drop {
        needs.insert(Capability::CAP_SYS_RAWIO);
    }
    // To attach an XDP program, and to load it.
    if config
        .of_ports()
        .iter()
        .any(|it| it.device.backend == Backend::AfXdp)
    {
        needs.extend([Capability::CAP_NET_ADMIN, Capability::CAP_BPF]);
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_names_and_numbers() {
        let root = Identity::lookup("root").unwrap();
        assert_eq!((root.uid.as_raw(), root.gid.as_raw()), (0, 0));
        assert!(Identity::lookup("0").unwrap().name.is_some());
        let unnamed = Identity::lookup("4000000").unwrap();
        assert_eq!(unnamed.gid.as_raw(), 4_000_000);
        assert!(unnamed.name.is_none());
        assert!(Identity::lookup("no-such-user").is_err());
    }

    #[test]
    fn only_delay_drop_takes_raw_io() {
        let mut config = Config::default();
        assert!(!needs(&config).contains(&Capability::CAP_SYS_RAWIO));
        config.wq.delay_drop = true;
        assert!(needs(&config).contains(&Capability::CAP_SYS_RAWIO));
    }
}
