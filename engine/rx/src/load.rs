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

/// How closely a queue's load is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The table changes by it.
    Closely,
    /// Somebody may ask for it.
    Loosely,
    /// There is one queue, whatever its load.
    Never,
}

impl Watch {
    /// One frame in so many is sampled, on average: each costs as much as a dozen others take to be received.
    fn every(self) -> usize {
        match self {
            Self::Closely => 128,
            Self::Loosely => 512,
            Self::Never => 0,
        }
    }
}

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

/// Which frames are sampled. The gaps between them vary: with equal ones, traffic that repeats itself would show the
/// same few of its frames again and again.
struct Picks {
    every: usize,
    left: usize,
    dice: u64,
}

impl Picks {
    fn new(watch: Watch) -> Self {
        let every = watch.every();
        Self {
            every,
            // So many frames never come.
            left: if every > 0 { every } else { usize::MAX },
            dice: 1,
        }
    }

    /// The frame of a batch of so many that is sampled: at most one. Batches are no longer than half of the mean gap, which is
    /// the shortest, so that each of their places has its turn.
    #[inline]
    fn of(&mut self, frames: usize) -> Option<usize> {
        if let Some(left) = self.left.checked_sub(frames) {
            self.left = left;
            return None;
        }
        // Knuth's generator (MMIX), of which the high bits are good.
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let gap = self.every / 2 + (self.dice >> 32) as usize % self.every.max(1);
        Some(std::mem::replace(&mut self.left, gap))
    }
}

/// One loop's sampler.
pub struct Sampler {
    hashing: Arc<Hashing>,
    load: Arc<QueueLoad>,
    picks: Picks,
}

impl Sampler {
    /// Samples into `load`.
    #[must_use]
    pub fn new(hashing: Arc<Hashing>, load: Arc<QueueLoad>, watch: Watch) -> Self {
        Self {
            hashing,
            load,
            picks: Picks::new(watch),
        }
    }

    /// Counts at most one of a batch's frames.
    #[inline]
    pub(super) fn sample(&mut self, batch: &Batch, memory: &SlotMemory) {
        let pick = self.picks.of(batch.frames.len());
        if let Some(filled) = pick.and_then(|at| batch.frames.get(at)) {
            self.count(filled.bytes(memory));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_queue_is_not_watched_and_an_unwatched_load_is_sampled_less() {
        let picked = |watch| {
            let mut picks = Picks::new(watch);
            (0..80_000).filter(|_| picks.of(64).is_some()).count()
        };
        let (closely, loosely) = (picked(Watch::Closely), picked(Watch::Loosely));
        assert!((28_000..42_000).contains(&closely), "{closely}");
        assert!((9_000..10_500).contains(&loosely), "{loosely}");
        assert_eq!(picked(Watch::Never), 0);
    }

    #[test]
    fn every_frame_of_traffic_that_repeats_itself_is_sampled() {
        for (batch, period) in [(1, 100), (7, 100), (64, 100), (64, 64), (64, 192)] {
            let mut picks = Picks::new(Watch::Closely);
            let mut seen = vec![0_u32; period];
            let batches = 4_000 * period / batch;
            for first in (0..batches).map(|it| it * batch) {
                if let Some(at) = picks.of(batch) {
                    assert!(at < batch);
                    seen[(first + at) % period] += 1;
                }
            }
            let mean = seen.iter().sum::<u32>() / seen.len() as u32;
            let (least, most) = (seen.iter().min(), seen.iter().max());
            assert!(
                least > Some(&(mean / 4)) && most < Some(&(mean * 4)),
                "{batch} at once, {period} flows: {least:?} to {most:?} samples"
            );
        }
    }
}
