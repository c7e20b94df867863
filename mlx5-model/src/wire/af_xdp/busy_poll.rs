//! Busy polling of a socket: a receive call that finds no frame runs the driver's receive loop
//! itself, and interrupts stay off meanwhile (Linux, Documentation/networking/napi.rst).
//!
//! Imports nothing of the model.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

// Socket options of asm-generic/socket.h.
const SO_BUSY_POLL: libc::c_int = 46;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
/// Time in microseconds for which one busy polling call polls the driver.
const POLL_US: libc::c_int = 20;
/// Maximum number of frames that the driver receives in one busy polling call.
const BUDGET: libc::c_int = 64;

/// Enables busy polling of the AF_XDP socket `socket`. Needs CAP_NET_ADMIN and Linux 5.11.
pub(super) fn enable(socket: &OwnedFd) -> io::Result<()> {
    for (option, value) in [
        (SO_PREFER_BUSY_POLL, 1),
        (SO_BUSY_POLL, POLL_US),
        (SO_BUSY_POLL_BUDGET, BUDGET),
    ] {
        // SAFETY: the kernel reads an int.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as u32,
            )
        };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
