//! Replacement of the capture's packet filter while the capture runs.
//!
//! A loop reads one generation number per batch. Only if the number has changed does the loop take
//! the lock and the new filter. A filter therefore applies to whole batches, and the hot path never
//! waits.

use super::{
    Filter,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Current packet filter of a capture, shared by all capture loops and the threads that replace it.
#[derive(Debug, Default)]
pub struct FilterCell {
    /// Number of times that the packet filter was replaced.
    generation: AtomicU64,
    /// Packet filter that is in effect for the next batches of frames.
    current: Mutex<Arc<Filter>>,
}

impl FilterCell {
    /// Creates a filter cell with an initial packet filter.
    #[must_use]
    pub fn new(filter: Filter) -> Self {
        Self {
            generation: AtomicU64::new(0),
            current: Mutex::new(Arc::new(filter)),
        }
    }

    /// Replaces the packet filter and returns the previous one.
    pub fn set(&self, filter: Filter) -> Arc<Filter> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, Arc::new(filter));
        // Incremented under the lock, so that a reader of the new number finds the new filter.
        self.generation.fetch_add(1, Ordering::Release);
        before
    }

    /// Returns the packet filter that is in effect.
    #[must_use]
    pub fn get(&self) -> Arc<Filter> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Returns the number of times that the packet filter was replaced.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

/// Reader of a [`FilterCell`], one per capture loop.
#[derive(Clone, Debug)]
pub struct FilterReader {
    cell: Arc<FilterCell>,
    /// Replacement count of the [`FilterCell`] when `filter` was read from it.
    seen: u64,
    /// Packet filter for the current batch of frames.
    filter: Arc<Filter>,
}

impl FilterReader {
    /// Creates a filter reader that starts with the cell's current packet filter.
    #[must_use]
    pub fn new(cell: Arc<FilterCell>) -> Self {
        let (seen, filter) = (cell.generation(), cell.get());
        Self { cell, seen, filter }
    }

    /// Returns the packet filter for the current batch of frames.
    #[inline]
    #[must_use]
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Loads the cell's packet filter if it was replaced; called between two batches of frames.
    /// Returns `true` if the filter has changed.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        let generation = self.cell.generation();
        if generation == self.seen {
            return false;
        }
        self.take(generation);
        true
    }

    #[cold]
    fn take(&mut self, generation: u64) {
        self.seen = generation;
        self.filter = self.cell.get();
    }
}
