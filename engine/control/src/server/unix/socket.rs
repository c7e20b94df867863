//! File of the Unix socket: its mode and group, and the removal of a file that a crash left behind.

use super::peer::{AccessPolicy, group_id};
use crate::server::{ConfigProblem, ControlConfig};
use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags},
    io::Errno,
    net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use std::{
    fs,
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{FileTypeExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::Path,
};

/// Creates the control service's Unix socket. Its mode and group are in place before any client can
/// connect.
pub fn listen(
    path: &Path,
    config: &ControlConfig,
    policy: &AccessPolicy,
) -> io::Result<UnixListener> {
    let (mode, gid) = mode_and_group(config, policy).map_err(io::Error::other)?;
    remove_stale(path)?;
    let socket = non_blocking()?;
    // The file gets the mode of the socket, without the bits of the umask (`unix_bind_bsd` of
    // net/unix/af_unix.c).
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // A bound socket that is not yet listening refuses every connection.
    grant(path, mode, gid)?;
    net::listen(&socket, 64)?;
    Ok(UnixListener::from(socket))
}

/// Gives the file of a bound socket its mode and its group. Another user who may write to the
/// folder may have replaced the file: only a socket is changed, and no link is followed.
fn grant(path: &Path, mode: u32, gid: Option<u32>) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let has = rustix::fs::fstat(&file)?.st_mode;
    if FileType::from_raw_mode(has) != FileType::Socket {
        return Err(io::Error::other(
            "another process has replaced the socket; set control.unix to a path in a folder that only the service may write to",
        ));
    }
    if let Some(gid) = gid.map(Gid::from_raw) {
        rustix::fs::chownat(&file, "", None, Some(gid), AtFlags::EMPTY_PATH)?;
    }
    if Mode::from_raw_mode(has) != Mode::from_raw_mode(mode) {
        // The descriptor leads to the file that was examined, whatever now has its path (proc(5)).
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Returns the problems of the control socket's path and of the configured groups on this machine.
pub fn check(config: &ControlConfig) -> Vec<ConfigProblem> {
    let path = &config.unix;
    let refused = |problem: String| ConfigProblem {
        key: "control.unix",
        value: format!("\"{}\"", path.display()),
        problem,
    };
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let problem = match fs::metadata(folder) {
        _ if SocketAddrUnix::new(path.as_path()).is_err() => {
            Some("the path is too long: a Unix socket's path has at most 107 bytes".into())
        }
        Ok(it) if it.is_dir() => None,
        Ok(_) => Some(format!(
            "{} is not a directory; name another path",
            folder.display()
        )),
        Err(e) if e.kind() == ErrorKind::NotFound => Some(format!(
            "there is no directory {0}; create it (mkdir -p '{0}') or name another path",
            folder.display()
        )),
        Err(e) => Some(e.to_string()),
    };
    let groups = [
        ("control.group", &config.group),
        ("control.read_group", &config.read_group),
        ("control.write_group", &config.write_group),
    ];
    let groups = groups
        .into_iter()
        .filter_map(|(key, name)| group_id(key, name.as_deref()?).err());
    problem.map(refused).into_iter().chain(groups).collect()
}

/// Returns the mode and the group of the control socket's file. Unless the configuration sets them,
/// every user with a right may connect; the client's credentials determine its access.
fn mode_and_group(
    config: &ControlConfig,
    policy: &AccessPolicy,
) -> Result<(u32, Option<u32>), ConfigProblem> {
    let named = config.group.as_deref();
    let gid = match (named, policy.read, policy.write) {
        (Some(name), ..) => Some(group_id("control.group", name)?),
        (None, Some(one), None) | (None, None, Some(one)) => Some(one),
        _ => None,
    };
    let mode = match (&config.mode, gid, policy.read.and(policy.write)) {
        (Some(mode), ..) => mode.0,
        (None, None, Some(_)) => 0o666,
        (None, Some(_), _) => 0o660,
        (None, None, None) => 0o600,
    };
    Ok((mode, gid))
}

/// Creates a Unix stream socket whose calls do not block.
fn non_blocking() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Removes the file of a Unix socket that no process serves any more. Leaves any other file in
/// place.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
        Ok(it) if !it.file_type().is_socket() => {
            return Err(io::Error::new(
                ErrorKind::AlreadyExists,
                "the file exists and is not a socket; remove it, or set control.unix to another path",
            ));
        }
        Ok(_) => {}
    }
    // A server that accepts no connection may not delay the start (connect(2): EAGAIN).
    let client = non_blocking()?;
    match net::connect(&client, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Ok(()) | Err(Errno::AGAIN) => Err(io::Error::new(
            ErrorKind::AddrInUse,
            "another process serves it; end that process, or set control.unix to another path",
        )),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_in_the_place_of_the_socket_stays_as_it_is() {
        let dir = tempfile::tempdir().expect("dir");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let path = dir.path().join("control.sock");
        let _socket = UnixListener::bind(&path).expect("bound");
        for wanted in [0o600, 0o666] {
            grant(&path, wanted, None).expect("granted");
            assert_eq!(mode(&path), wanted);
        }
        let file = dir.path().join("file");
        fs::write(&file, "").expect("written");
        let before = mode(&file);
        let link = dir.path().join("link");
        symlink(&file, &link).expect("linked");
        for other in [&file, &link] {
            assert!(grant(other, 0o600, None).is_err());
            assert_eq!(mode(&file), before);
        }
    }
}
