//! The ledger: every received frame ends in exactly one line of it.

pub mod live;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

/// One queue's lines, in frames. `received` is the sum of all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueLedger {
    /// Queue number.
    pub queue: u16,
    /// Frames the NIC delivered.
    pub received: u64,
    /// Frames in files (or counted, with `output.format = "none"`).
    pub captured: u64,
    /// Refused by the filter.
    pub filtered: u64,
    /// Left out by sampling.
    pub sampled_out: u64,
    /// Left out as a repetition.
    pub deduplicated: u64,
    /// No room in a parser's channel.
    pub dropped_pipeline: u64,
    /// No free block, or the write failed.
    pub dropped_storage: u64,
    /// Came too late for an ordered file.
    pub late: u64,
    /// Completed in error, as a frame longer than its buffers does.
    pub errors: u64,
    /// Bytes of captured frames, as on the wire.
    pub bytes: u64,
}

impl QueueLedger {
    /// The sums, line by line, of two runs of one queue.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            queue: self.queue,
            received: self.received + other.received,
            captured: self.captured + other.captured,
            filtered: self.filtered + other.filtered,
            sampled_out: self.sampled_out + other.sampled_out,
            deduplicated: self.deduplicated + other.deduplicated,
            dropped_pipeline: self.dropped_pipeline + other.dropped_pipeline,
            dropped_storage: self.dropped_storage + other.dropped_storage,
            late: self.late + other.late,
            errors: self.errors + other.errors,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Counters of the NIC by their own names; a value that cannot be read is never a zero.
pub type NicCounters = BTreeMap<String, Counter>;

/// One counter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Counter {
    /// Its growth during the run.
    Value(u64),
    /// It exists, or should, and cannot be read.
    Unreadable(Unreadable),
}

/// Prints as `"unreadable"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Unreadable {
    /// The only value.
    #[serde(rename = "unreadable")]
    Unreadable,
}

/// One queue's published counters. Its loop stores them once a batch; anyone may read them.
///
/// The writer's two stand on a cache line of their own, so that it does not slow the loop.
#[derive(Debug, Default)]
pub struct QueueCounters {
    looped: Aligned<LoopCounters>,
    written: Aligned<WriterCounters>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Aligned<T>(T);

#[derive(Debug, Default)]
struct LoopCounters {
    received: AtomicU64,
    taken: AtomicU64,
    refused: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    filtered: AtomicU64,
    sampled_out: AtomicU64,
    deduplicated: AtomicU64,
    recoveries: AtomicU64,
    beats: AtomicU64,
}

#[derive(Debug, Default)]
struct WriterCounters {
    lost_frames: AtomicU64,
    lost_bytes: AtomicU64,
}

impl QueueCounters {
    /// The loop's round of stores.
    #[inline]
    pub(crate) fn publish(&self, received: u64, taken: u64, refused: u64, errors: u64, bytes: u64) {
        let c = &self.looped.0;
        c.received.store(received, Ordering::Relaxed);
        c.taken.store(taken, Ordering::Relaxed);
        c.refused.store(refused, Ordering::Relaxed);
        c.errors.store(errors, Ordering::Relaxed);
        c.bytes.store(bytes, Ordering::Relaxed);
    }

    /// The same for what a stage before the sink left out on purpose.
    #[inline]
    pub(crate) fn publish_reduced(&self, filtered: u64, sampled_out: u64, deduplicated: u64) {
        let c = &self.looped.0;
        c.filtered.store(filtered, Ordering::Relaxed);
        c.sampled_out.store(sampled_out, Ordering::Relaxed);
        c.deduplicated.store(deduplicated, Ordering::Relaxed);
    }

    /// The loop has come round: once a batch, and some times a second while its queue is empty.
    #[inline]
    pub(crate) fn beat(&self) {
        let beats = &self.looped.0.beats;
        // One writer: a load and a store will do.
        beats.store(beats.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// How often the loop has come round. A loop whose count stands still for seconds is stuck.
    #[must_use]
    pub fn beats(&self) -> u64 {
        self.looped.0.beats.load(Ordering::Relaxed)
    }

    /// The WQ was brought back once more.
    pub(crate) fn recovered(&self) {
        self.looped.0.recoveries.fetch_add(1, Ordering::Relaxed);
    }

    /// The writer could not write a block: frames the loop had counted as captured are lost after all.
    pub(crate) fn lost(&self, frames: u64, bytes: u64) {
        self.written
            .0
            .lost_frames
            .fetch_add(frames, Ordering::Relaxed);
        self.written
            .0
            .lost_bytes
            .fetch_add(bytes, Ordering::Relaxed);
    }

    /// The queue's lines as they stand.
    #[must_use]
    pub fn ledger(&self, queue: u16) -> QueueLedger {
        let (c, w) = (&self.looped.0, &self.written.0);
        let lost = w.lost_frames.load(Ordering::Relaxed);
        QueueLedger {
            queue,
            received: c.received.load(Ordering::Relaxed),
            captured: c.taken.load(Ordering::Relaxed).saturating_sub(lost),
            filtered: c.filtered.load(Ordering::Relaxed),
            sampled_out: c.sampled_out.load(Ordering::Relaxed),
            deduplicated: c.deduplicated.load(Ordering::Relaxed),
            dropped_storage: c.refused.load(Ordering::Relaxed) + lost,
            errors: c.errors.load(Ordering::Relaxed),
            bytes: c
                .bytes
                .load(Ordering::Relaxed)
                .saturating_sub(w.lost_bytes.load(Ordering::Relaxed)),
            ..QueueLedger::default()
        }
    }
}

/// How many frames all loops together may still capture.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    left: AtomicU64,
    used: AtomicU64,
}

impl Budget {
    /// For `total` frames.
    #[must_use]
    pub fn new(total: u64) -> Self {
        Self {
            total,
            left: AtomicU64::new(total),
            used: AtomicU64::new(0),
        }
    }

    /// Claims up to `want` frames before a poll, so that no more than the total are ever taken off the rings.
    pub(crate) fn claim(&self, want: usize) -> usize {
        let mut granted = 0;
        let _ = self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                granted = usize::try_from(left).unwrap_or(usize::MAX).min(want);
                (granted > 0).then(|| left - granted as u64)
            });
        granted
    }

    /// Gives back what a poll did not capture of its grant.
    pub(crate) fn settle(&self, granted: usize, captured: u64) {
        if granted as u64 > captured {
            self.left
                .fetch_add(granted as u64 - captured, Ordering::AcqRel);
        }
        self.used.fetch_add(captured, Ordering::AcqRel);
    }

    /// Whether the total is reached.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        self.used.load(Ordering::Acquire) >= self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_block_moves_from_captured_to_dropped() {
        let counters = QueueCounters::default();
        counters.publish(16, 8, 1, 1, 800);
        counters.publish_reduced(1, 2, 3);
        counters.lost(3, 300);
        let ledger = counters.ledger(2);
        assert_eq!((ledger.queue, ledger.received, ledger.captured), (2, 16, 5));
        assert_eq!(
            (ledger.filtered, ledger.sampled_out, ledger.deduplicated),
            (1, 2, 3)
        );
        assert_eq!(
            (ledger.dropped_storage, ledger.errors, ledger.bytes),
            (4, 1, 500)
        );
    }

    #[test]
    fn a_budget_is_never_exceeded_and_always_reached() {
        let budget = Budget::new(1_000);
        let taken: u64 = std::thread::scope(|scope| {
            let loops: Vec<_> = (0..4)
                .map(|i| {
                    let budget = &budget;
                    scope.spawn(move || {
                        let mut taken = 0;
                        while !budget.is_used_up() {
                            let grant = budget.claim(64);
                            // A poll that finds less than was granted.
                            let captured = grant as u64 / (i + 1);
                            let captured = if grant > 0 && captured == 0 {
                                1
                            } else {
                                captured
                            };
                            budget.settle(grant, captured);
                            taken += captured;
                        }
                        taken
                    })
                })
                .collect();
            loops.into_iter().map(|l| l.join().expect("no panic")).sum()
        });
        assert_eq!(taken, 1_000);
    }
}
