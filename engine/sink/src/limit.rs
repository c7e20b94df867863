//! Write limits of a run: `--bytes` and `--files`.
//!
//! Invariants: sinks never wait for the limit, and lose no frames because of it. The last file takes
//! all further frames until the run has ended.

use std::sync::atomic::{AtomicU64, Ordering};
use wqcap_core::sync::wakeup::{Alarm, Wakeup};

/// Write limit: the maximum bytes and files that all sinks of a run write, with their counts.
#[derive(Debug)]
pub struct WriteLimit {
    /// Maximum number of bytes that the run writes; `u64::MAX`: no limit.
    bytes: u64,
    /// Maximum number of files that the run begins; `u64::MAX`: no limit.
    files: u64,
    /// Number of bytes that the run has written.
    written: AtomicU64,
    /// Number of capture files that the run has begun.
    begun: AtomicU64,
    /// Raised when a capture file is full and the write limit allows no further file.
    full: Alarm,
    owner: Wakeup,
}

/// Write limit that a run has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// The limit on the number of written bytes was reached.
    Bytes,
    /// The limit on the number of capture files was reached.
    Files,
}

/// Amount of data that a run has written: bytes and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Number of written bytes before compression.
    pub bytes: u64,
    /// Number of capture files that were begun.
    pub files: u64,
}

impl Written {
    /// Returns the sum of two amounts of written data.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self {
            bytes: self.bytes + more.bytes,
            files: self.files + more.files,
        }
    }
}

impl WriteLimit {
    /// Creates a write limit of `bytes` bytes and `files` files; `None`: no limit. The capture's
    /// owner `owner` is woken when the limit is reached.
    #[must_use]
    pub fn new(bytes: Option<u64>, files: Option<u64>, owner: &Wakeup) -> Self {
        Self {
            bytes: bytes.unwrap_or(u64::MAX),
            files: files.unwrap_or(u64::MAX),
            written: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            full: Alarm::new(owner),
            owner: owner.clone(),
        }
    }

    /// Counts another file for a queue whose capture file is full. Returns `false` if the write
    /// limit allows no further file: the full file then takes all further frames.
    pub(super) fn claim_file(&self) -> bool {
        let more = |begun| (begun < self.files).then(|| begun + 1);
        let claimed = self
            .begun
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        if claimed.is_err() {
            self.full.raise();
        }
        claimed.is_ok()
    }

    /// Returns `true` if the write limit allows a further file.
    pub(super) fn allows_file(&self) -> bool {
        self.begun.load(Ordering::Acquire) < self.files
    }

    /// Counts a capture file begun without [`WriteLimit::claim_file`]: a queue's first file, or a
    /// file after a write failure.
    pub(super) fn count_file(&self) {
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds `bytes` to the number of bytes that the run has written, and wakes the capture's owner
    /// when the write limit is reached.
    pub(super) fn add_bytes(&self, bytes: u64) {
        let before = self.written.fetch_add(bytes, Ordering::AcqRel);
        if before < self.bytes && before + bytes >= self.bytes {
            self.owner.wake();
        }
    }

    /// Returns the amount of data that the run has written so far.
    #[must_use]
    pub fn written(&self) -> Written {
        Written {
            bytes: self.written.load(Ordering::Acquire),
            files: self.begun.load(Ordering::Acquire),
        }
    }

    /// Returns the write limit that the run has reached, if any.
    #[must_use]
    pub fn reached(&self) -> Option<Reached> {
        if self.written().bytes >= self.bytes {
            Some(Reached::Bytes)
        } else {
            self.full.is_raised().then_some(Reached::Files)
        }
    }
}
