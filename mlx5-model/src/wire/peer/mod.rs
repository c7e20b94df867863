//! A cable between two models in two processes: a Unix socket that keeps frames apart (SOCK_SEQPACKET).
//!
//! Either end may come first, go, and come back: whoever holds the lock on `PATH.lock` listens at `PATH`,
//! the other connects. An end that goes gives up lock and connection at once, even where a forked child still
//! has copies of their descriptors; of one that is killed the kernel gives them up, so a socket file that was
//! left behind stops nobody. The lock file stays; removing it could split the two.
//!
//! As on a cable, a frame sent while nobody is there, or faster than the other end takes them, is lost. It
//! is counted where it was sent.
//!
//! May import: `socket`. Invariants: frames arrive in order and whole, up to 64 KiB; a burst makes at most
//! one system call for every [`BATCH`] frames.

mod socket;

use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use super::{Direction, Take, Taker, WireError, WireSpec};
use socket::{Received, Seqpacket};

/// The most frames received by one system call.
const BATCH: usize = 32;
/// The largest frame.
const FRAME: usize = 64 << 10;
/// How often an end that has nobody looks for the other.
const LOOK_NS: u64 = 5_000_000;

/// One end of the cable.
pub(super) struct PeerWire {
    path: PathBuf,
    lock: File,
    link: Link,
    look_ns: u64,
    buffer: Vec<u8>,
    /// Lengths of the frames in `buffer`, of which those before `next` are taken.
    lens: [u32; BATCH],
    filled: usize,
    next: usize,
    dropped: u64,
}

enum Link {
    /// Neither holds the lock nor reached who does.
    Seeking,
    /// Holds the lock; the other end, once it has come.
    First {
        listener: Seqpacket,
        other: Option<Seqpacket>,
    },
    Second {
        other: Seqpacket,
    },
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
                WireError::new(
                    wire,
                    format!("open {lock_path}"),
                    e,
                    "both ends must be able to write it",
                )
            })?;
        let mut peer = PeerWire {
            path: PathBuf::from(path),
            lock,
            link: Link::Seeking,
            look_ns: 0,
            buffer: vec![0; BATCH * FRAME],
            lens: [0; BATCH],
            filled: 0,
            next: 0,
            dropped: 0,
        };
        peer.join().map_err(|e| {
            WireError::new(
                wire,
                format!("join at {path}"),
                e,
                "the path must be free, or the other end's socket",
            )
        })?;
        Ok(peer)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn wait_fd(&self) -> Option<RawFd> {
        match &self.link {
            Link::Seeking => None,
            Link::First {
                other: Some(other), ..
            }
            | Link::Second { other } => Some(other.fd()),
            Link::First { listener, .. } => Some(listener.fd()),
        }
    }

    pub(super) fn next_due_ns(&self) -> Option<u64> {
        matches!(self.link, Link::Seeking).then_some(self.look_ns)
    }

    pub(super) fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        if frame.len() > FRAME {
            let what = format!(
                "a peer wire carries frames up to {FRAME} bytes, not {}",
                frame.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        if let Link::First {
            listener,
            other: other @ None,
        } = &mut self.link
        {
            *other = listener.accept();
        }
        let sent = match &self.link {
            Link::First {
                other: Some(other), ..
            }
            | Link::Second { other } => other.send(frame),
            _ => false,
        };
        self.dropped += u64::from(!sent);
        Ok(())
    }

    #[inline]
    pub(super) fn burst(&mut self, now_ns: u64, budget: usize, taker: &mut impl Taker) -> usize {
        let mut taken = 0;
        while taken < budget {
            if self.next == self.filled && !self.receive(now_ns) {
                break;
            }
            let len = self.lens[self.next] as usize;
            let bytes = &self.buffer[self.next * FRAME..][..len];
            if taker.hand(bytes, Direction::Received) == Take::Wait {
                break;
            }
            self.next += 1;
            taken += 1;
        }
        taken
    }

    /// Fills the buffer, or sees to the link if there is nobody at its other end.
    fn receive(&mut self, now_ns: u64) -> bool {
        let other = match &self.link {
            Link::First {
                other: Some(other), ..
            }
            | Link::Second { other } => other,
            _ => return self.look(now_ns),
        };
        (self.next, self.filled) = (0, 0);
        match other.receive(&mut self.buffer, FRAME, &mut self.lens) {
            Received::Frames(count) => self.filled = count,
            Received::Nothing => {}
            Received::Gone => {
                self.link = match std::mem::replace(&mut self.link, Link::Seeking) {
                    Link::First { listener, .. } => Link::First {
                        listener,
                        other: None,
                    },
                    _ => Link::Seeking,
                };
                self.look_ns = now_ns;
            }
        }
        self.filled > 0
    }

    /// Always false: frames come with the next burst.
    fn look(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.look_ns {
            self.look_ns = now_ns.saturating_add(LOOK_NS);
            match &mut self.link {
                Link::First { listener, other } => *other = listener.accept(),
                // Whatever it is that is in the way now may not be, the next time.
                _ => drop(self.join()),
            }
        }
        false
    }

    /// Becomes the first end, or connects to it. Finding neither is no error.
    fn join(&mut self) -> io::Result<()> {
        if socket::lock(&self.lock)? {
            remove_socket(&self.path)?;
            let listener = Seqpacket::listen(&self.path)?;
            self.link = Link::First {
                listener,
                other: None,
            };
        } else if let Some(other) = Seqpacket::connect(&self.path)? {
            self.link = Link::Second { other };
        }
        Ok(())
    }
}

/// A socket that an earlier first end left behind; nothing else is ever removed.
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
        if let Link::First { listener, .. } = &self.link {
            // Before the lock goes, or it could be the next first end's.
            let _ = remove_socket(&self.path);
            // An end that has connected and was not accepted yet must see that nobody is here.
            while listener.accept().is_some() {}
            socket::unlock(&self.lock);
        }
    }
}

#[cfg(test)]
mod tests;
