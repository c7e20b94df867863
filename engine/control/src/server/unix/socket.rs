//! The socket's file: its mode and group, and the one that a crash left behind.

use super::peer::{AccessPolicy, group_id};
use crate::server::{ControlConfig, StartError};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::{
    fs,
    io::{self, ErrorKind},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt, chown},
        net::{UnixListener, UnixStream},
    },
    path::Path,
};

/// Creates the socket with its mode and group in place before anyone can connect.
pub fn listen(
    path: &Path,
    config: &ControlConfig,
    policy: &AccessPolicy,
) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|it| !it.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    remove_stale(path)?;
    let socket = net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // A socket that is bound and not yet listening refuses every connection.
    let (mode, gid) = mode_and_group(config, policy).map_err(io::Error::other)?;
    if let Some(gid) = gid {
        chown(path, None, Some(gid))?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    net::listen(&socket, 64)?;
    Ok(UnixListener::from(socket))
}

/// Mode and group of the socket's file. Unless the configuration sets them, everyone with a right may connect;
/// credentials decide the rest.
fn mode_and_group(
    config: &ControlConfig,
    policy: &AccessPolicy,
) -> Result<(u32, Option<u32>), StartError> {
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

/// Removes a socket that no process serves any more. Any other file stays.
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
    match UnixStream::connect(path) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            ErrorKind::AddrInUse,
            "another process serves it; end that process, or set control.unix to another path",
        )),
        Err(e) => Err(e),
    }
}
