//! Busy polling of a socket: a call that finds nothing runs the driver's receive loop itself, and interrupts stay off
//! while that goes on (Linux, Documentation/networking/napi.rst).
//!
//! Imports nothing of the model.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

/// asm-generic/socket.h.
const SO_BUSY_POLL: libc::c_int = 46;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
/// How long such a call looks for frames, in microseconds, and how many it takes at most.
const LOOK_US: libc::c_int = 20;
const BUDGET: libc::c_int = 64;

/// Takes CAP_NET_ADMIN, and Linux 5.11.
pub(super) fn enable(socket: &OwnedFd) -> io::Result<()> {
    for (option, value) in [
        (SO_PREFER_BUSY_POLL, 1),
        (SO_BUSY_POLL, LOOK_US),
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
