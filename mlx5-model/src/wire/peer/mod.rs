//! Cable between two models in two processes: a Unix socket that keeps frames apart
//! (SOCK_SEQPACKET).
//!
//! Either end may start first, leave and return: the end that holds the lock on `PATH.lock` listens
//! at `PATH`, and the other end connects. An end that leaves releases its lock and connection at
//! once, even if a forked child still has copies of their descriptors. The kernel releases those of
//! a killed end, so a leftover socket file does no harm. The lock file stays, because after a
//! removal each end could get a lock.
//!
//! As on a cable, a frame is lost if it is sent while there is no other end, or faster than the
//! other end takes frames. It is counted at the end that sent it.
//!
//! Invariants: frames arrive in order and whole, up to 64 KiB; a burst makes at most one system
//! call for every [`BATCH`] frames.

mod socket;

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use super::delivery::{Delivery, Receiver, WireDirection};
use super::error::WireError;
use super::spec::WireSpec;
use socket::{BATCH, Received, Seqpacket};

const FRAME_SIZE: usize = 64 << 10;
/// Interval in nanoseconds at which an end of a `peer` wire without a connection retries.
const RETRY_NS: u64 = 5_000_000;

/// One end of the cable of a `peer` wire.
pub(super) struct PeerWire {
    path: PathBuf,
    lock: File,
    link: Link,
    /// Time by the NIC's clock of the next attempt to connect to the other end of the `peer` wire.
    retry_ns: u64,
    buffer: Vec<u8>,
    /// Lengths in bytes of the received frames in `buffer`. The frames before index `next` are
    /// taken.
    lens: [u32; BATCH],
    filled: usize,
    next: usize,
    dropped: u64,
}

/// Connection state of one end of a `peer` wire.
enum Link {
    /// This end of the `peer` wire neither holds the lock nor has reached its holder.
    Disconnected,
    /// This end of the `peer` wire holds the lock; `other` is the other end, once it has connected.
    Listening {
        listener: Seqpacket,
        other: Option<Seqpacket>,
    },
    /// This end of the `peer` wire is connected to the holder of the lock.
    Connected { other: Seqpacket },
}

impl Link {
    fn other(&self) -> Option<&Seqpacket> {
        match self {
            Link::Disconnected => None,
            Link::Listening { other, .. } => other.as_ref(),
            Link::Connected { other } => Some(other),
        }
    }
}

impl PeerWire {
    pub(super) fn open(wire: &WireSpec, path: &str) -> Result<PeerWire, WireError> {
        let lock_path = format!("{path}.lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|e| {
                let advice = "make the lock file writable for both ends of the wire";
                WireError::new(wire, format!("cannot open {lock_path}"), e, advice)
            })?;
        let mut peer = PeerWire {
            path: PathBuf::from(path),
            lock,
            link: Link::Disconnected,
            retry_ns: 0,
            buffer: vec![0; BATCH * FRAME_SIZE],
            lens: [0; BATCH],
            filled: 0,
            next: 0,
            dropped: 0,
        };
        peer.connect().map_err(|e| {
            let advice = "use a path that is free, or the other end's socket";
            WireError::new(wire, format!("cannot connect at {path}"), e, advice)
        })?;
        Ok(peer)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn wait_fd(&self) -> Option<RawFd> {
        match &self.link {
            Link::Listening {
                listener,
                other: None,
            } => Some(listener.fd()),
            link => link.other().map(Seqpacket::fd),
        }
    }

    pub(super) fn next_due_ns(&self) -> Option<u64> {
        matches!(self.link, Link::Disconnected).then_some(self.retry_ns)
    }

    pub(super) fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        if frame.len() > FRAME_SIZE {
            let what = format!(
                "the frame has {} bytes, but a peer wire carries at most {FRAME_SIZE} bytes",
                frame.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if let Link::Listening {
            listener,
            other: other @ None,
        } = &mut self.link
        {
            *other = listener.accept();
        }
        let sent = self.link.other().is_some_and(|other| other.send(frame));
        self.dropped += u64::from(!sent);
        Ok(())
    }

    #[inline]
    pub(super) fn burst(
        &mut self,
        now_ns: u64,
        budget: usize,
        receiver: &mut impl Receiver,
    ) -> usize {
        let mut taken = 0;
        while taken < budget {
            if self.next == self.filled && !self.receive(now_ns) {
                break;
            }
            let len = self.lens[self.next] as usize;
            let bytes = &self.buffer[self.next * FRAME_SIZE..][..len];
            if receiver.deliver(bytes, WireDirection::Received) == Delivery::Wait {
                break;
            }
            self.next += 1;
            taken += 1;
        }
        taken
    }

    /// Receives frames that the other end of the `peer` wire (a second software NIC) has sent into
    /// this end's buffer, or tries to connect to it again. Returns `true` if the buffer has frames.
    fn receive(&mut self, now_ns: u64) -> bool {
        let Some(other) = self.link.other() else {
            return self.retry(now_ns);
        };
        (self.next, self.filled) = (0, 0);
        match other.receive(&mut self.buffer, FRAME_SIZE, &mut self.lens) {
            Received::Frames(count) => self.filled = count,
            Received::Nothing => {}
            Received::Gone => {
                self.link = match std::mem::replace(&mut self.link, Link::Disconnected) {
                    Link::Listening { listener, .. } => Link::Listening {
                        listener,
                        other: None,
                    },
                    _ => Link::Disconnected,
                };
                self.retry_ns = now_ns;
            }
        }
        self.filled > 0
    }

    /// Retries the `peer` wire's connection if its time has come. Always returns `false`: frames
    /// arrive with the next burst.
    fn retry(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.retry_ns {
            self.retry_ns = now_ns.saturating_add(RETRY_NS);
            match &mut self.link {
                Link::Listening { listener, other } => *other = listener.accept(),
                // After a failure, the next attempt may succeed.
                _ => drop(self.connect()),
            }
        }
        false
    }

    /// Makes this end of the `peer` wire the listening one, or connects it to the listening one.
    /// Succeeds also if neither is possible now.
    fn connect(&mut self) -> io::Result<()> {
        // A lock belongs to an open file, so two wires of one process have separate locks.
        if take_lock(&self.lock)? {
            remove_socket(&self.path)?;
            let listener = Seqpacket::listen(&self.path)?;
            self.link = Link::Listening {
                listener,
                other: None,
            };
        } else if let Some(other) = Seqpacket::connect(&self.path)? {
            self.link = Link::Connected { other };
        }
        Ok(())
    }
}

/// Takes the lock of the `peer` wire's listening end. Returns `false` if the other end holds the
/// lock.
fn take_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Removes a socket that an earlier listening end of the `peer` wire has left. Other kinds of file
/// are never removed.
fn remove_socket(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match fs::symlink_metadata(path) {
        Ok(it) if it.file_type().is_socket() => fs::remove_file(path),
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e),
    }
}

impl Drop for PeerWire {
    fn drop(&mut self) {
        if let Link::Listening { listener, .. } = &self.link {
            // The lock is still held here. Later the socket could be that of the next listening
            // end.
            let _ = remove_socket(&self.path);
            // An end that has connected but was not accepted yet must see that this end is gone.
            while listener.accept().is_some() {}
            // Closing the file would not release the lock while a forked child has a copy of the
            // descriptor.
            let _ = self.lock.unlock();
        }
    }
}

#[cfg(test)]
mod tests;
