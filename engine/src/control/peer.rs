//! Who is at the other end of a Unix socket, as the kernel vouches for it, and what they may do.
#![allow(unsafe_code)]

use super::message::Access;
use crate::Error;
use std::{
    ffi::CString,
    io, mem,
    os::{fd::AsRawFd, unix::net::UnixStream},
    ptr,
};

/// Most supplementary groups looked at: Linux' own limit (`NGROUPS_MAX`).
const MOST_GROUPS: usize = 65_536;

/// A peer's identity when it connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its groups, the primary one first.
    pub gids: Vec<u32>,
}

/// Who may do what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// The user whose service it is; root may whatever this one may.
    pub owner: u32,
    /// Members may look.
    pub read: Option<u32>,
    /// Members may change.
    pub write: Option<u32>,
}

impl Rights {
    /// What this peer may do; `None`: nothing.
    #[must_use]
    pub fn of(&self, peer: &Peer) -> Option<Access> {
        let is_in = |group: Option<u32>| group.is_some_and(|gid| peer.gids.contains(&gid));
        if self.owns(peer) || is_in(self.write) {
            Some(Access::ReadWrite)
        } else {
            is_in(self.read).then_some(Access::ReadOnly)
        }
    }

    /// Whether this peer owns the service.
    #[must_use]
    pub fn owns(&self, peer: &Peer) -> bool {
        peer.uid == 0 || peer.uid == self.owner
    }
}

impl Peer {
    /// Who connected (`SO_PEERCRED` and `SO_PEERGROUPS`, unix(7)).
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn of(stream: &UnixStream) -> io::Result<Self> {
        let mut credentials = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut length = socklen(size_of::<libc::ucred>());
        // SAFETY: a live socket; `credentials` has the length told and is plain old data.
        let told = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        if told != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut gids = vec![credentials.gid];
        gids.extend(supplementary(stream)?);
        Ok(Self {
            uid: credentials.uid,
            gids,
        })
    }
}

fn supplementary(stream: &UnixStream) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let mut length = socklen(mem::size_of_val(groups.as_slice()));
        // SAFETY: a live socket; `groups` has the length told, and the kernel writes whole gid_t, which are u32.
        let told = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let count = length as usize / size_of::<u32>();
        if told == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // ERANGE: too small, and `length` says how large it must be.
        if error.raw_os_error() != Some(libc::ERANGE) || count > MOST_GROUPS {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

fn socklen(bytes: usize) -> libc::socklen_t {
    libc::socklen_t::try_from(bytes).unwrap_or(libc::socklen_t::MAX)
}

/// The number of a group by its name, or as a number.
///
/// # Errors
/// There is no such group; `key` names the configuration key.
pub fn group(key: &'static str, name: &str) -> Result<u32, Error> {
    if let Ok(gid) = name.parse() {
        return Ok(gid);
    }
    let refused = |problem: String| Error::Config {
        key: key.into(),
        value: format!("{name:?}"),
        problem,
    };
    let Ok(c_name) = CString::new(name) else {
        return Err(refused("a group's name has no NUL".into()));
    };
    let mut buffer = vec![0u8; 1 << 16];
    let mut found = ptr::null_mut();
    // SAFETY: a zeroed group is valid; every pointer outlives the call and the buffer has the length told.
    let (errno, gid) = unsafe {
        let mut entry: libc::group = mem::zeroed();
        let errno = libc::getgrnam_r(
            c_name.as_ptr(),
            &raw mut entry,
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            &raw mut found,
        );
        (errno, entry.gr_gid)
    };
    match (errno, found.is_null()) {
        (0, false) => Ok(gid),
        (0, true) => Err(refused(
            "there is no such group; `groupadd` makes one".into(),
        )),
        (errno, _) => Err(refused(io::Error::from_raw_os_error(errno).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_who_connected() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gids[0], rustix::process::getegid().as_raw());
    }

    #[test]
    fn rights_follow_owner_and_groups() {
        let rights = Rights {
            owner: 100,
            read: Some(5),
            write: Some(6),
        };
        let peer = |uid, gids: &[u32]| Peer {
            uid,
            gids: gids.to_vec(),
        };
        for (who, may) in [
            (peer(0, &[0]), Some(Access::ReadWrite)),
            (peer(100, &[1]), Some(Access::ReadWrite)),
            (peer(200, &[1]), None),
            (peer(200, &[1, 5]), Some(Access::ReadOnly)),
            (peer(200, &[1, 5, 6]), Some(Access::ReadWrite)),
        ] {
            assert_eq!(rights.of(&who), may, "{who:?}");
        }
        let alone = Rights {
            owner: 100,
            ..Rights::default()
        };
        assert_eq!(
            alone.of(&peer(200, &[0])),
            None,
            "group 0 is nobody's right"
        );
    }

    #[test]
    fn groups_have_names_and_numbers() {
        assert_eq!(group("control.group", "root").unwrap(), 0);
        assert_eq!(group("control.group", "1234").unwrap(), 1234);
        let message = group("control.group", "no-such-group")
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("control.group = \"no-such-group\""),
            "{message}"
        );
    }
}
