//! Times at which write blocks were sent to the writer or the ordering thread.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// Times at which the blocks of a queue were sent, oldest first: write blocks that are not on the disk
/// yet, or relay blocks that the ordering thread has not returned yet.
#[derive(Debug, Default)]
pub(crate) struct SentBlocks(Mutex<VecDeque<Instant>>);

impl SentBlocks {
    fn times(&self) -> MutexGuard<'_, VecDeque<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the queue's next write block is sent.
    pub(crate) fn add(&self) {
        self.add_at(Instant::now());
    }

    /// Records that the queue's next write block is sent at the time `now`.
    pub(crate) fn add_at(&self, now: Instant) {
        self.times().push_back(now);
    }

    /// Records that the oldest write block is written, given up or returned.
    pub(crate) fn remove_oldest(&self) {
        self.times().pop_front();
    }

    /// Returns the time at which the oldest write block was sent. `None`: none is waiting.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.times().front().copied()
    }
}
