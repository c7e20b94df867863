//! The Unix sockets of a peer wire, and the lock between its ends: each system call in a safe function.
//!
//! Invariant: no call blocks.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The most frames received by one system call.
pub(super) const BATCH: usize = 32;
/// The most bytes under way, if the machine's limits allow.
const SEND_BUFFER: c_int = 8 << 20;

/// Dropping it ends the connection, for copies of the descriptor in forked children as well: a close alone would
/// leave it open until the last copy is closed, and the other end would go on sending to nobody.
pub(super) struct Seqpacket(OwnedFd);

pub(super) enum Received {
    Frames(usize),
    Nothing,
    /// The other end has closed, and all that it sent was taken.
    Gone,
}

impl Seqpacket {
    pub(super) fn listen(path: &Path) -> io::Result<Seqpacket> {
        let socket = Seqpacket::new()?;
        let (address, length) = address(path)?;
        // SAFETY: the address is `length` bytes long and only read.
        checked(unsafe { libc::bind(socket.fd(), (&raw const address).cast(), length) })?;
        // SAFETY: no pointers.
        checked(unsafe { libc::listen(socket.fd(), 1) })?;
        Ok(socket)
    }

    /// `None`: nobody listens there.
    pub(super) fn connect(path: &Path) -> io::Result<Option<Seqpacket>> {
        let socket = Seqpacket::new()?;
        let (address, length) = address(path)?;
        // SAFETY: the address is `length` bytes long and only read.
        let result = unsafe { libc::connect(socket.fd(), (&raw const address).cast(), length) };
        match checked(result) {
            Ok(_) => {
                socket.enlarge();
                Ok(Some(socket))
            }
            Err(e) => match e.raw_os_error() {
                Some(libc::ENOENT | libc::ECONNREFUSED | libc::EAGAIN) => Ok(None),
                _ => Err(e),
            },
        }
    }

    /// The other end, if it has come.
    pub(super) fn accept(&self) -> Option<Seqpacket> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: with null pointers the kernel does not write the other's address.
        let fd =
            unsafe { libc::accept4(self.fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) };
        // SAFETY: the descriptor is new and has no other owner.
        let socket = (fd >= 0).then(|| Seqpacket(unsafe { OwnedFd::from_raw_fd(fd) }));
        socket.inspect(Seqpacket::enlarge)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// What a forked child has of it.
    #[cfg(test)]
    pub(super) fn copy(&self) -> OwnedFd {
        self.0.try_clone().expect("a descriptor")
    }

    /// Sends a frame; false if it could not be queued.
    pub(super) fn send(&self, frame: &[u8]) -> bool {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the kernel reads `frame.len()` bytes of `frame`.
        let sent = unsafe { libc::send(self.fd(), frame.as_ptr().cast(), frame.len(), flags) };
        sent >= 0
    }

    /// Receives frames into the slots of `size` bytes in `buffer`.
    pub(super) fn receive(
        &self,
        buffer: &mut [u8],
        size: usize,
        lens: &mut [u32; BATCH],
    ) -> Received {
        let mut slots = buffer.chunks_exact_mut(size);
        let mut parts: [libc::iovec; BATCH] = std::array::from_fn(|_| {
            let slot = slots.next().unwrap_or_default();
            libc::iovec {
                iov_base: slot.as_mut_ptr().cast(),
                iov_len: slot.len(),
            }
        });
        // SAFETY: C structs of integers and pointers, for which zeroes are a value.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
        for (message, part) in messages.iter_mut().zip(&mut parts) {
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: every message has one part, a slot of `buffer`; slots, parts and messages outlive the call. No
        // timeout.
        let count = unsafe {
            libc::recvmmsg(
                self.fd(),
                messages.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        // An error is reported before what was sent ahead of it; the end itself is a message without bytes.
        let Ok(count) = usize::try_from(count) else {
            return Received::Nothing;
        };
        for (len, message) in lens.iter_mut().zip(&messages[..count]) {
            *len = message.msg_len;
        }
        match lens[..count].iter().take_while(|it| **it > 0).count() {
            0 if count > 0 => Received::Gone,
            0 => Received::Nothing,
            frames => Received::Frames(frames),
        }
    }

    fn new() -> io::Result<Seqpacket> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = checked(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Seqpacket(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Enlarges the send buffer: beyond the machine's limit with CAP_NET_ADMIN, up to it without.
    fn enlarge(&self) {
        let bytes = SEND_BUFFER;
        for option in [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE] {
            // SAFETY: the kernel reads an int; it may refuse.
            unsafe {
                libc::setsockopt(
                    self.fd(),
                    libc::SOL_SOCKET,
                    option,
                    (&raw const bytes).cast(),
                    size_of::<c_int>() as u32,
                )
            };
        }
    }
}

impl Drop for Seqpacket {
    fn drop(&mut self) {
        // SAFETY: no pointers. Without a connection there is none to end.
        unsafe { libc::shutdown(self.fd(), libc::SHUT_RDWR) };
    }
}

/// Takes the lock; false if another has it. It belongs to the open file: two wires of one process have two.
pub(super) fn lock(file: &File) -> io::Result<bool> {
    // SAFETY: no pointers.
    match checked(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(e) => Err(e),
    }
}

/// Releases the lock. Closing the file would keep it while a forked child has a copy of the descriptor.
pub(super) fn unlock(file: &File) {
    // SAFETY: no pointers.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, u32)> {
    // SAFETY: a C struct of integers, for which zeroes are a value.
    let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sun_family = libc::AF_UNIX as u16;
    let path = path.as_os_str().as_bytes();
    // One byte is for the terminating zero.
    if path.len() >= address.sun_path.len() {
        let what = format!(
            "the path has {} bytes, a Unix socket's at most 107",
            path.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as _;
    }
    Ok((address, size_of::<libc::sockaddr_un>() as u32))
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
