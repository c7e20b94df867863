//! Live statistics: rates, the heaviest senders, protocols, sizes, gaps and hold times, while
//! frames are received.
//!
//! ```text
//! loop -> Recorder: its own counters -> at most ten times a second: copy, swap ->
//! Statistics::snapshot
//! ```
//!
//! Each queue counts in memory that no other thread accesses. At most ten times per second, it
//! copies that memory into a second buffer and swaps the buffer with the published one. If a reader
//! holds the published buffer at that moment, the publication is skipped. Thus reading costs the
//! loops only the swap, however often it is done. The frames' time stamps are the clock.
//!
//! Invariant: no code here allocates once a [`Recorder`] is created.

mod mix;
mod recorder;
mod sketch;
mod snapshot;
mod talkers;
#[cfg(test)]
mod tests;

pub use recorder::Recorder;
pub use wqcap_core::stats::traffic::{
    Bound, Distribution, QueueRate, SizeBin, Talker, TopTalkers, TrafficSnapshot, Volume,
};

use recorder::{PublishedCell, SharedTotals};
use std::sync::{Arc, atomic::AtomicU64};

/// Live statistics of all queues, readable from any thread.
#[derive(Clone, Debug)]
pub struct Statistics {
    shared: Arc<SharedTotals>,
    per_queue: usize,
}

impl Statistics {
    /// Creates live statistics for `queues` queues with `per_queue` recorders each: one for each
    /// thread that processes the queue's frames.
    #[must_use]
    pub fn new(queues: usize, per_queue: usize) -> Self {
        let recorders = 0..queues * per_queue;
        Self {
            shared: Arc::new(SharedTotals {
                slots: recorders.map(|_| PublishedCell::default()).collect(),
                begun_ns: AtomicU64::default(),
            }),
            per_queue: per_queue.max(1),
        }
    }

    /// Creates the live statistics recorder with this number; recorders of a queue have consecutive
    /// numbers. Create each recorder once, on its own thread, so that its memory is on that
    /// thread's NUMA node. `system_time` is `true` if time stamps are system time, so that hold
    /// times can be measured.
    ///
    /// # Panics
    /// `number` is not below the number of recorders.
    #[must_use]
    pub fn recorder(&self, number: usize, system_time: bool) -> Recorder {
        assert!(number < self.shared.slots.len(), "no recorder {number}");
        Recorder::new(Arc::clone(&self.shared), number, system_time)
    }

    /// Returns the last published live statistics of all queues, combined.
    #[must_use]
    pub fn snapshot(&self) -> TrafficSnapshot {
        let mut merger = snapshot::Merger::default();
        for (number, slot) in self.shared.slots.iter().enumerate() {
            slot.read(|published| merger.add(number / self.per_queue, published));
        }
        merger.done()
    }
}
