//! Live statistics: rates, the heaviest senders, protocols, sizes, gaps and hold times, while frames flow.
//!
//! ```text
//! loop -> Recorder: counters of its own -> at most ten times a second: copy, swap -> Statistics::snapshot
//! ```
//!
//! Each queue counts in memory that nobody else touches. Ten times a second at most it copies that memory into a second
//! buffer and swaps it with the one that readers see; a reader who is looking just then is not waited for. So reading
//! costs the loops nothing but that swap, however often it is done. The stamps of the frames are the clock.
//!
//! May import: [`wqcap_frame`]. Invariant: nothing here allocates once a [`Recorder`] is made.

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

use recorder::{PublishedCell, Shared};
use std::sync::{Arc, atomic::AtomicU64};

/// The statistics of all queues, for readers on any thread.
#[derive(Clone, Debug)]
pub struct Statistics {
    shared: Arc<Shared>,
    per_queue: usize,
}

impl Statistics {
    /// For so many queues, each with so many recorders: one for each thread that works on its frames.
    #[must_use]
    pub fn new(queues: usize, per_queue: usize) -> Self {
        let recorders = 0..queues * per_queue;
        Self {
            shared: Arc::new(Shared {
                slots: recorders.map(|_| PublishedCell::default()).collect(),
                begun_ns: AtomicU64::default(),
            }),
            per_queue: per_queue.max(1),
        }
    }

    /// The counting half; one for each number, which counts the recorders of the first queue before those of the next. To be made on the loop's own thread, so that its memory is near.
    /// `system_time`: stamps are the system's time, so that hold times can be told.
    ///
    /// # Panics
    /// There is no such recorder.
    #[must_use]
    pub fn recorder(&self, number: usize, system_time: bool) -> Recorder {
        assert!(number < self.shared.slots.len(), "no recorder {number}");
        Recorder::new(Arc::clone(&self.shared), number, system_time)
    }

    /// All queues together, as they were last published.
    #[must_use]
    pub fn snapshot(&self) -> TrafficSnapshot {
        let mut merger = snapshot::Merger::default();
        for (number, slot) in self.shared.slots.iter().enumerate() {
            slot.read(|published| merger.add(number / self.per_queue, published));
        }
        merger.done()
    }
}
