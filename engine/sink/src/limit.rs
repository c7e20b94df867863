//! `--bytes` and `--files`: what the files of a run may come to.
//!
//! Invariants: sinks never wait here, and lose nothing for it. The last file takes what comes until the run has ended.

use std::sync::atomic::{AtomicU64, Ordering};
use wqcap_core::sync::wakeup::{Alarm, Wakeup};

/// What all sinks of a run may write together, and what they have written.
#[derive(Debug)]
pub struct WriteLimit {
    /// In bytes; `u64::MAX`: any number.
    bytes: u64,
    /// In files; `u64::MAX`: any number.
    files: u64,
    written: AtomicU64,
    begun: AtomicU64,
    /// A file was full, and there may be no other.
    full: Alarm,
    owner: Wakeup,
}

/// Which of the two was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// Bytes.
    Bytes,
    /// Files.
    Files,
}

/// What went into files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes, compression aside.
    pub bytes: u64,
    /// Files that were begun.
    pub files: u64,
}

impl Written {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self {
            bytes: self.bytes + more.bytes,
            files: self.files + more.files,
        }
    }
}

impl WriteLimit {
    /// For so many bytes and files at most; then `owner` is woken.
    #[must_use]
    pub fn new(bytes: Option<u64>, files: Option<u64>, owner: &Wakeup) -> Self {
        Self {
            bytes: bytes.unwrap_or(u64::MAX),
            files: files.unwrap_or(u64::MAX),
            written: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            full: Alarm::of(owner),
            owner: owner.clone(),
        }
    }

    /// Claims another file, for a queue whose file is full; `false`: it is the last one, and takes the rest.
    pub(super) fn claim_next(&self) -> bool {
        let more = |begun| (begun < self.files).then(|| begun + 1);
        let claimed = self
            .begun
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        if claimed.is_err() {
            self.full.raise();
        }
        claimed.is_ok()
    }

    /// A queue begins a file that nobody has claimed: its first one, or one after a fault.
    pub(super) fn begins(&self) {
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    /// There are so many more bytes for the files.
    pub(super) fn wrote(&self, bytes: u64) {
        let before = self.written.fetch_add(bytes, Ordering::AcqRel);
        if before < self.bytes && before + bytes >= self.bytes {
            self.owner.wake();
        }
    }

    /// What went into files so far.
    #[must_use]
    pub fn written(&self) -> Written {
        Written {
            bytes: self.written.load(Ordering::Acquire),
            files: self.begun.load(Ordering::Acquire),
        }
    }

    /// The limit that was reached, if one was.
    #[must_use]
    pub fn reached(&self) -> Option<Reached> {
        if self.written().bytes >= self.bytes {
            Some(Reached::Bytes)
        } else {
            self.full.is_raised().then_some(Reached::Files)
        }
    }
}
