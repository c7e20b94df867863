//! Load sampling: counts the indirection table entries through which a queue's frames arrive.
//! Only a sample of the frames is counted, to keep the cost low.
//!
//! The entry is computed as the NIC computes it, from the Toeplitz hash over the fields of the
//! frame's hash profile. This works for every kind of queue; the verbs do not expose the NIC's hash.

use super::{Batch, SlotMemory};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use wqcap_rss::{FrameClass, HashDepth, Toeplitz};

/// Sampling rate for the load of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingRate {
    /// High rate of load samples: they decide how the indirection table is rebalanced.
    Closely,
    /// Low rate of load samples: they are only reported on request.
    Loosely,
    /// No load samples: the port has one queue, so its load cannot be redistributed.
    Never,
}

impl SamplingRate {
    /// Mean number of received frames per load sample; 0: no frame is sampled. One sample costs as
    /// much as the reception of a dozen frames.
    fn every(self) -> usize {
        match self {
            Self::Closely => 128,
            Self::Loosely => 512,
            Self::Never => 0,
        }
    }
}

/// Load samples of one receive queue, counted by indirection table entry. Written by the queue's
/// loop, read by any thread.
#[derive(Debug)]
pub struct QueueLoad {
    entries: Box<[AtomicU64]>,
    /// Number of load samples of frames that the NIC does not hash.
    others: AtomicU64,
}

impl QueueLoad {
    /// Creates zero sample counts for an indirection table of `entries` entries, a power of two.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self {
            entries: (0..entries).map(|_| AtomicU64::new(0)).collect(),
            others: AtomicU64::new(0),
        }
    }

    /// Returns the number of load samples of each indirection table entry since the start.
    pub fn entries(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().map(|it| it.load(Ordering::Relaxed))
    }

    /// Returns the number of load samples of unhashed frames since the start.
    #[must_use]
    pub fn others(&self) -> u64 {
        self.others.load(Ordering::Relaxed)
    }
}

/// RSS hash settings shared by the load samplers of all queues.
#[derive(Debug)]
pub struct Hashing {
    /// RSS key, expanded for computing Toeplitz hashes.
    pub toeplitz: Toeplitz,
    /// Header fields over which the NIC computes the RSS hash.
    pub depth: HashDepth,
}

/// Selection of the frames that a load sampler samples. The gaps between them are random: with
/// equal gaps, periodic traffic would have only a few of its frames sampled.
struct SamplePicker {
    /// Mean number of frames between two load samples; 0: no frame is sampled.
    every: usize,
    /// Number of frames to skip before the next load sample.
    left: usize,
    /// State of the pseudorandom generator that chooses the gaps between load samples.
    dice: u64,
}

impl SamplePicker {
    fn new(watch: SamplingRate) -> Self {
        let every = watch.every();
        Self {
            every,
            // No run receives this many frames.
            left: if every > 0 { every } else { usize::MAX },
            dice: 1,
        }
    }

    /// Returns the index of the frame to sample in a batch of `frames` frames, at most one. A batch
    /// is at most half as long as the mean gap between samples. That is the shortest gap, so each
    /// index in a batch can be selected.
    #[inline]
    fn pick(&mut self, frames: usize) -> Option<usize> {
        if let Some(left) = self.left.checked_sub(frames) {
            self.left = left;
            return None;
        }
        // Knuth's linear congruential generator (MMIX); only its high bits are random enough.
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let gap = self.every / 2 + (self.dice >> 32) as usize % self.every.max(1);
        Some(std::mem::replace(&mut self.left, gap))
    }
}

/// Sampler of one receive queue's load, called by its receive loop.
pub struct LoadSampler {
    hashing: Arc<Hashing>,
    load: Arc<QueueLoad>,
    picks: SamplePicker,
}

impl LoadSampler {
    /// Creates a load sampler that counts into `load` at the sampling rate `watch`.
    #[must_use]
    pub fn new(hashing: Arc<Hashing>, load: Arc<QueueLoad>, watch: SamplingRate) -> Self {
        Self {
            hashing,
            load,
            picks: SamplePicker::new(watch),
        }
    }

    /// Counts at most one frame of a batch as a load sample.
    #[inline]
    pub(super) fn sample(&mut self, batch: &Batch, memory: &SlotMemory) {
        let pick = self.picks.pick(batch.frames.len());
        if let Some(filled) = pick.and_then(|at| batch.frames.get(at)) {
            self.count(filled.bytes(memory));
        }
    }

    fn count(&self, frame: &[u8]) {
        let class = FrameClass::from_frame(frame);
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
    fn a_loose_watch_samples_less_and_a_single_queue_is_not_sampled() {
        let picked = |watch| {
            let mut picks = SamplePicker::new(watch);
            (0..80_000).filter(|_| picks.pick(64).is_some()).count()
        };
        let (closely, loosely) = (picked(SamplingRate::Closely), picked(SamplingRate::Loosely));
        assert!((28_000..42_000).contains(&closely), "{closely}");
        assert!((9_000..10_500).contains(&loosely), "{loosely}");
        assert_eq!(picked(SamplingRate::Never), 0);
    }

    #[test]
    fn every_frame_of_periodic_traffic_is_sampled() {
        for (batch, period) in [(1, 100), (7, 100), (64, 100), (64, 64), (64, 192)] {
            let mut picks = SamplePicker::new(SamplingRate::Closely);
            let mut seen = vec![0_u32; period];
            let batches = 4_000 * period / batch;
            for first in (0..batches).map(|it| it * batch) {
                if let Some(at) = picks.pick(batch) {
                    assert!(at < batch);
                    seen[(first + at) % period] += 1;
                }
            }
            let mean = seen.iter().sum::<u32>() / seen.len() as u32;
            let (least, most) = (seen.iter().min(), seen.iter().max());
            assert!(
                least > Some(&(mean / 4)) && most < Some(&(mean * 4)),
                "batches of {batch}, {period} flows: {least:?} to {most:?} samples"
            );
        }
    }
}
