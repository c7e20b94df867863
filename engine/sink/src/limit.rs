//! Write limits of a run: `--bytes` and `--files`.
//!
//! Invariants: sinks never wait for the limit, and lose no frames because of it. The last file takes
//! all further frames until the run has ended.

use std::sync::atomic::{AtomicU64, Ordering};
use wqcap_core::sync::wakeup::{Alarm, Wakeup};

/// Limit on the bytes and files that all sinks of a run write, with their counts.
#[derive(Debug)]
pub struct WriteLimit {
    /// Maximum number of bytes; `u64::MAX`: no limit.
    bytes: u64,
    /// Maximum number of files; `u64::MAX`: no limit.
    files: u64,
    /// Number of bytes written.
    written: AtomicU64,
    /// Number of files begun.
    begun: AtomicU64,
    /// Raised when a file is full and no further file is allowed.
    full: Alarm,
    owner: Wakeup,
}

/// Write limit that a run has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// Limit on the number of bytes.
    Bytes,
    /// Limit on the number of files.
    Files,
}

/// Amount of data that a run has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of bytes before compression.
    pub bytes: u64,
    /// Number of files begun.
    pub files: u64,
}

impl Written {
    /// Returns the sum of two amounts.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self {
            bytes: self.bytes + more.bytes,
            files: self.files + more.files,
        }
    }
}

impl WriteLimit {
    /// Creates a limit of `bytes` bytes and `files` files; `None`: no limit. `owner` is woken when a
    /// limit is reached.
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

    /// Counts another file for a queue whose file is full. Returns `false` if no further file is
    /// allowed: the full file then takes all further frames.
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

    /// Counts a file begun without [`WriteLimit::claim_file`]: a queue's first file, or a file after a
    /// write failure.
    pub(super) fn count_file(&self) {
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    /// Adds `bytes` to the number of bytes written, and wakes the owner when the limit is reached.
    pub(super) fn add_bytes(&self, bytes: u64) {
        let before = self.written.fetch_add(bytes, Ordering::AcqRel);
        if before < self.bytes && before + bytes >= self.bytes {
            self.owner.wake();
        }
    }

    /// Returns the amount of data written so far.
    #[must_use]
    pub fn written(&self) -> Written {
        Written {
            bytes: self.written.load(Ordering::Acquire),
            files: self.begun.load(Ordering::Acquire),
        }
    }

    /// Returns the limit that was reached, if any.
    #[must_use]
    pub fn reached(&self) -> Option<Reached> {
        if self.written().bytes >= self.bytes {
            Some(Reached::Bytes)
        } else {
            self.full.is_raised().then_some(Reached::Files)
        }
    }
}
