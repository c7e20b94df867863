//! Identity of a Unix socket's peer, as the kernel guarantees it, and the peer's access.
#![allow(unsafe_code)]

use crate::{
    protocol::AccessLevel,
    server::{ConfigProblem, ControlConfig},
};
use nix::unistd::Group;
use std::{
    io, mem,
    os::{fd::AsRawFd, unix::net::UnixStream},
};

/// Maximum number of supplementary groups of a process that connects: the limit of Linux
/// (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65_536;

/// Credentials of a process that connected to the control socket: its user and groups at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// User ID of the process that connected.
    pub uid: u32,
    /// Process ID of the process that connected; 0 if it is in another PID namespace, such as that of
    /// another container.
    pub pid: i32,
    /// Group IDs of the process that connected, the primary one first.
    pub gids: Vec<u32>,
}

/// Access rights of users and groups to the control service over the Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessPolicy {
    /// User ID of the control service's owner. Root has the same rights.
    pub owner: u32,
    /// ID of the group that has read-only access to the control service; `None`: no group has.
    pub read: Option<u32>,
    /// ID of the group that has read-write access to the control service; `None`: no group has.
    pub write: Option<u32>,
}

impl AccessPolicy {
    /// Creates the access policy from the groups of the `[control]` configuration; the owner is the
    /// user of this process.
    ///
    /// # Errors
    /// A configured group does not exist on this machine.
    pub fn new(config: &ControlConfig) -> Result<Self, ConfigProblem> {
        let read = config.read_group.as_deref();
        let write = config.write_group.as_deref();
        Ok(Self {
            owner: rustix::process::geteuid().as_raw(),
            read: read
                .map(|it| group_id("control.read_group", it))
                .transpose()?,
            write: write
                .map(|it| group_id("control.write_group", it))
                .transpose()?,
        })
    }

    /// Returns the access level of the connected process `peer`; `None`: it has no access.
    #[must_use]
    pub fn access(&self, peer: &PeerCredentials) -> Option<AccessLevel> {
        let is_in = |group: Option<u32>| group.is_some_and(|gid| peer.gids.contains(&gid));
        if self.is_owner(peer) || is_in(self.write) {
            Some(AccessLevel::ReadWrite)
        } else {
            is_in(self.read).then_some(AccessLevel::ReadOnly)
        }
    }

    /// Returns `true` if the connected process `peer` runs as the owner of the control service or
    /// as root.
    #[must_use]
    pub fn is_owner(&self, peer: &PeerCredentials) -> bool {
        peer.uid == 0 || peer.uid == self.owner
    }
}

impl PeerCredentials {
    /// Reads the credentials of the process that connected over `stream` (`SO_PEERCRED` and
    /// `SO_PEERGROUPS`, unix(7)).
    ///
    /// # Errors
    /// The kernel does not provide the credentials of the process.
    pub fn read(stream: &UnixStream) -> io::Result<Self> {
        let credentials = user_and_process(stream)?;
        let mut gids = vec![credentials.gid];
        gids.extend(supplementary(stream)?);
        Ok(Self {
            uid: credentials.uid,
            pid: credentials.pid,
            gids,
        })
    }
}

/// Returns the user, group and process that connected over `stream`. The function of rustix for
/// this cannot represent the process ID 0 of a process in another PID namespace.
fn user_and_process(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = socklen(size_of::<libc::ucred>());
    // SAFETY: a live socket; `credentials` has the length given, and every value of its fields, which
    // are integers, is valid.
    let ret = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if ret == 0 {
        Ok(credentials)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn supplementary(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut length = socklen(mem::size_of_val(groups.as_slice()));
        // SAFETY: a live socket; `groups` has the length given, and the kernel writes whole gid_t,
        // which are u32.
        let ret = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if ret == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // ERANGE: the buffer is too small; `length` is the required size.
        if error.raw_os_error() != Some(libc::ERANGE) || count > MAX_GROUPS {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

fn socklen(bytes: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(bytes).unwrap_or(libc::socklen_t::MAX)
}

/// Returns the ID of the user group `name`, which is a name or an ID.
///
/// # Errors
/// The group does not exist; the error names the configuration key `key`.
pub fn group_id(key: &'static str, name: &str) -> Result<u32, ConfigProblem> {
    if let Ok(gid) = name.parse() {
        return Ok(gid);
    }
    let refused = |problem: String| ConfigProblem {
        key,
        value: format!("{name:?}"),
        problem,
    };
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(refused(
            "there is no such group; `groupadd` creates one".into(),
        )),
        Err(errno) => Err(refused(errno.desc().into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_those_of_the_connecting_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = PeerCredentials::read(&one).unwrap();
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.pid.cast_unsigned(), std::process::id());
        assert_eq!(peer.gids[0], rustix::process::getegid().as_raw());
    }

    #[test]
    fn access_follows_owner_and_groups() {
        let policy = AccessPolicy {
            owner: 100,
            read: Some(5),
            write: Some(6),
        };
        let peer = |uid, gids: &[u32]| PeerCredentials {
            uid,
            pid: 1,
            gids: gids.to_vec(),
        };
        for (who, may) in [
            (peer(0, &[0]), Some(AccessLevel::ReadWrite)),
            (peer(100, &[1]), Some(AccessLevel::ReadWrite)),
            (peer(200, &[1]), None),
            (peer(200, &[1, 5]), Some(AccessLevel::ReadOnly)),
            (peer(200, &[1, 5, 6]), Some(AccessLevel::ReadWrite)),
        ] {
            assert_eq!(policy.access(&who), may, "{who:?}");
        }
        let alone = AccessPolicy {
            owner: 100,
            ..AccessPolicy::default()
        };
        assert_eq!(
            alone.access(&peer(200, &[0])),
            None,
            "group 0 gives no access"
        );
    }

    #[test]
    fn groups_are_given_by_name_or_id() {
        assert_eq!(group_id("control.group", "root").unwrap(), 0);
        assert_eq!(group_id("control.group", "1234").unwrap(), 1234);
        let message = group_id("control.group", "no-such-group")
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("control.group = \"no-such-group\""),
            "{message}"
        );
    }
}
