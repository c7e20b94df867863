//! A cable between two models in two processes: a Unix socket that keeps frames apart (SOCK_SEQPACKET).
//!
//! Either end may come first, go, and come back: the end that holds the lock on `PATH.lock` listens at `PATH`, the
//! other connects. An end that goes releases lock and connection at once, even if a forked child still has copies of
//! their descriptors; those of a killed one the kernel releases, so a socket file that was left behind does no harm.
//! The lock file stays; removing it could give each end a lock.
//!
//! As on a cable, a frame is lost if it is sent while nobody is there, or faster than the other end takes it. It is
//! counted where it was sent.
//!
//! Invariants: frames arrive in order and whole, up to 64 KiB; a burst makes at most one system call for every
//! [`BATCH`] frames.

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
/// How often an end without a connection retries.
const RETRY_NS: u64 = 5_000_000;

/// One end of the cable.
pub(super) struct PeerWire {
    path: PathBuf,
    lock: File,
    link: Link,
    retry_ns: u64,
    buffer: Vec<u8>,
    /// Lengths of the frames in `buffer`, of which those before `next` are taken.
    lens: [u32; BATCH],
    filled: usize,
    next: usize,
    dropped: u64,
}

enum Link {
    /// Neither holds the lock nor has reached its holder.
    Disconnected,
    /// Holds the lock; `other` is the other end, once it has connected.
    Listening {
        listener: Seqpacket,
        other: Option<Seqpacket>,
    },
    Connected {
        other: Seqpacket,
    },
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
                let advice = "make it writable for both ends";
                WireError::new(wire, format!("open {lock_path}"), e, advice)
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
            WireError::new(wire, format!("connect at {path}"), e, advice)
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
                "the frame has {} bytes, a peer wire carries at most {FRAME_SIZE}",
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

    /// Fills the buffer, or retries the connection. Returns whether there are frames.
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

    /// Retries the connection. Always false: frames come with the next burst.
    fn retry(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.retry_ns {
            self.retry_ns = now_ns.saturating_add(RETRY_NS);
            match &mut self.link {
                Link::Listening { listener, other } => *other = listener.accept(),
                // A failure may be over the next time.
                _ => drop(self.connect()),
            }
        }
        false
    }

    /// Becomes the listening end, or connects to it. Neither is not an error.
    fn connect(&mut self) -> io::Result<()> {
        // It belongs to the open file: two wires of one process have two.
        if is_locked(&self.lock)? {
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

/// Takes the lock; false if another has it.
fn is_locked(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Removes a socket that an earlier listening end left; nothing else is ever removed.
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
            // Before the lock is released, or it could be the next listening end's.
            let _ = remove_socket(&self.path);
            // An end that has connected and was not accepted yet must see that nobody is here.
            while listener.accept().is_some() {}
            // Closing the file would keep it while a forked child has a copy of the descriptor.
            let _ = self.lock.unlock();
        }
    }
}

#[cfg(test)]
mod tests;
