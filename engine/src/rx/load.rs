//! Which entries of the indirection table a queue's frames come by: a sample, so that it costs next to nothing.
//!
//! The entry is found as the NIC finds it, by the hash over what the frame's profile hashes. That works for every way
//! to a ring; the verbs do not show the NIC's own hash.

use super::{Batch, SlotMemory};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use wqcap_rss::{FrameClass, HashDepth, Toeplitz};

/// One frame in so many is looked at.
const EVERY: usize = 128;

/// What one queue's samples came by; written by its loop, read by anyone.
#[derive(Debug)]
pub struct QueueLoad {
    entries: Box<[AtomicU64]>,
    /// Frames that are not hashed.
    others: AtomicU64,
}

impl QueueLoad {
    /// For a table of so many entries.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self {
            entries: (0..entries).map(|_| AtomicU64::new(0)).collect(),
            others: AtomicU64::new(0),
        }
    }

    /// Samples by entry since the start.
    pub fn entries(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().map(|it| it.load(Ordering::Relaxed))
    }

    /// Samples of frames that are not hashed, since the start.
    #[must_use]
    pub fn others(&self) -> u64 {
        self.others.load(Ordering::Relaxed)
    }
}

/// How frames are hashed: what all samplers share.
#[derive(Debug)]
pub struct Hashing {
    /// The key, prepared.
    pub toeplitz: Toeplitz,
    /// What is hashed.
    pub depth: HashDepth,
}

/// One loop's sampler.
pub struct Sampler {
    hashing: Arc<Hashing>,
    load: Arc<QueueLoad>,
    left: usize,
}

impl Sampler {
    /// Samples into `load`.
    #[must_use]
    pub fn new(hashing: Arc<Hashing>, load: Arc<QueueLoad>) -> Self {
        Self {
            hashing,
            load,
            left: EVERY,
        }
    }

    /// Takes a batch into account: at most one of its frames is looked at.
    #[inline]
    pub(super) fn look(&mut self, batch: &Batch, memory: &SlotMemory) {
        if let Some(left) = self.left.checked_sub(batch.frames.len()) {
            self.left = left;
            return;
        }
        // Any frame of the batch: which one, the frames before it have decided.
        if let Some(filled) = batch.frames.get(self.left) {
            self.count(filled.bytes(memory));
        }
        self.left = EVERY;
    }

    fn count(&self, frame: &[u8]) {
        let class = FrameClass::of(frame);
        let fields = class.profile(self.hashing.depth).hash_fields();
        let entry = class
            .hash(frame, fields, &self.hashing.toeplitz)
            .filter(|_| fields != wqcap_rss::HashFields::NONE)
            .and_then(|hash| {
                // A table's size is a power of two.
                let entry = hash as usize & (self.load.entries.len() - 1);
                self.load.entries.get(entry)
            });
        entry
            .unwrap_or(&self.load.others)
            .fetch_add(1, Ordering::Relaxed);
    }
}
