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
//! May import: [`crate::frame`]. Invariant: nothing here allocates once a [`Recorder`] is made.

mod mix;
mod recorder;
mod sketch;
mod snapshot;
mod talkers;
#[cfg(test)]
mod tests;

pub use recorder::Recorder;
pub use snapshot::{Bound, Distribution, QueueRate, SizeBin, Snapshot, Talker, TopTalkers, Volume};

use recorder::Slot;
use std::sync::Arc;

/// The statistics of all queues, for readers on any thread.
#[derive(Clone, Debug)]
pub struct Statistics {
    queues: Arc<[Arc<Slot>]>,
}

impl Statistics {
    /// For so many queues.
    #[must_use]
    pub fn new(queues: usize) -> Self {
        Self {
            queues: (0..queues).map(|_| Arc::new(Slot::new())).collect(),
        }
    }

    /// The counting half of a queue; one each. To be made on the loop's own thread, so that its memory is near.
    /// `system_time`: stamps are the system's time, so that hold times can be told.
    ///
    /// # Panics
    /// There is no such queue.
    #[must_use]
    pub fn recorder(&self, queue: usize, system_time: bool) -> Recorder {
        Recorder::new(Arc::clone(&self.queues[queue]), system_time)
    }

    /// All queues together, as they were last published.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut merger = snapshot::Merger::default();
        for queue in &*self.queues {
            queue.look(|published| merger.add(published));
        }
        merger.done()
    }
}
