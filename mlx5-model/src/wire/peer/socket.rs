//! Unix sockets of a peer wire.
//!
//! Invariant: no call blocks.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::net::{Shutdown, sockopt};

/// Maximum number of frames that a `peer` wire receives by one system call.
pub(super) const BATCH: usize = 32;
/// Size of the `peer` wire's send buffer in bytes, if the machine's limits allow it.
const SEND_BUFFER: usize = 8 << 20;
/// Longest path of a Unix socket in bytes, without the terminating zero.
const LONGEST_PATH: usize = 107;

/// Unix socket of type SOCK_SEQPACKET, one end of a connection. Dropping it ends the connection,
/// also for copies of the descriptor in forked children. A close alone would leave the connection
/// open until the last copy is closed, and the other end would continue to send.
pub(super) struct Seqpacket(OwnedFd);

/// Result of receiving frames of a `peer` wire.
pub(super) enum Received {
    /// Number of frames received from the other end of the `peer` wire.
    Frames(usize),
    Nothing,
    /// The other end of the `peer` wire has closed, and all its frames were taken.
    Gone,
}

impl Seqpacket {
    /// Opens a Unix socket that listens at `path`.
    pub(super) fn listen(path: &Path) -> io::Result<Seqpacket> {
        let socket = Seqpacket::new()?;
        net::bind(&socket.0, &address(path)?)?;
        net::listen(&socket.0, 1)?;
        Ok(socket)
    }

    /// Connects to the Unix socket at `path`. Returns `None` if no process listens there.
    pub(super) fn connect(path: &Path) -> io::Result<Option<Seqpacket>> {
        let socket = Seqpacket::new()?;
        match net::connect(&socket.0, &address(path)?) {
            Ok(()) => {
                socket.enlarge();
                Ok(Some(socket))
            }
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Accepts the connection of the `peer` wire's other end, if it has connected.
    pub(super) fn accept(&self) -> Option<Seqpacket> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = net::accept_with(&self.0, flags).ok().map(Seqpacket);
        socket.inspect(Seqpacket::enlarge)
    }

    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Duplicates the socket's descriptor, as a fork does for the child.
    #[cfg(test)]
    pub(super) fn copy(&self) -> OwnedFd {
        self.0.try_clone().expect("a copy of the descriptor")
    }

    /// Sends a frame to the other end of the `peer` wire. Returns `false` if the frame could not be
    /// queued and is lost.
    pub(super) fn send(&self, frame: &[u8]) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        net::send(&self.0, frame, flags).is_ok()
    }

    /// Receives frames of a `peer` wire into `buffer`, one per slot of `size` bytes, and their
    /// lengths into `lens`.
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
        // SAFETY: every message has one part, a slot of `buffer`; slots, parts and messages outlive
        // the call. There is no timeout.
        let count = unsafe {
            libc::recvmmsg(
                self.fd(),
                messages.as_mut_ptr(),
                BATCH as u32,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        // The kernel reports an error before the frames that were sent ahead of it, so an error
        // does not mean the end. The end is a message without bytes.
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
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        Ok(Seqpacket(net::socket_with(
            AddressFamily::UNIX,
            kind,
            flags,
            None,
        )?))
    }

    /// Enlarges the `peer` wire's send buffer: beyond the machine's limit with CAP_NET_ADMIN, up to
    /// it without.
    fn enlarge(&self) {
        // The kernel may refuse both calls.
        let _ = sockopt::set_socket_send_buffer_size(&self.0, SEND_BUFFER);
        let _ = sockopt::set_socket_send_buffer_size_force(&self.0, SEND_BUFFER);
    }
}

impl Drop for Seqpacket {
    fn drop(&mut self) {
        // The call fails if the socket has no connection.
        let _ = net::shutdown(&self.0, Shutdown::Both);
    }
}

fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    let len = path.as_os_str().as_bytes().len();
    if len > LONGEST_PATH {
        let what = format!(
            "the path of the peer socket has {len} bytes; use a path of at most {LONGEST_PATH} bytes"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(SocketAddrUnix::new(path)?)
}
