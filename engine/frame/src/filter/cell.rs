//! Replacement of the filter while a capture runs.
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

/// Current filter, shared by all loops and the threads that replace it.
#[derive(Debug, Default)]
pub struct FilterCell {
    /// Number of replacements.
    generation: AtomicU64,
    /// Filter of the current generation.
    current: Mutex<Arc<Filter>>,
}

impl FilterCell {
    /// Creates a cell with an initial filter.
    #[must_use]
    pub fn new(filter: Filter) -> Self {
        Self {
            generation: AtomicU64::new(0),
            current: Mutex::new(Arc::new(filter)),
        }
    }

    /// Replaces the filter and returns the previous one.
    pub fn set(&self, filter: Filter) -> Arc<Filter> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, Arc::new(filter));
        // Incremented under the lock, so that a reader of the new number finds the new filter.
        self.generation.fetch_add(1, Ordering::Release);
        before
    }

    /// Returns the current filter.
    #[must_use]
    pub fn get(&self) -> Arc<Filter> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Returns how often the filter was replaced.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

/// Reader of a [`FilterCell`], one per loop.
#[derive(Clone, Debug)]
pub struct FilterReader {
    cell: Arc<FilterCell>,
    /// Generation of `filter`.
    seen: u64,
    /// Filter of the current batch.
    filter: Arc<Filter>,
}

impl FilterReader {
    /// Creates a reader that starts with the cell's current filter.
    #[must_use]
    pub fn new(cell: Arc<FilterCell>) -> Self {
        let (seen, filter) = (cell.generation(), cell.get());
        Self { cell, seen, filter }
    }

    /// Returns the filter of the current batch.
    #[inline]
    #[must_use]
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Takes over a new filter if the cell has one; called between two batches. Returns `true` if
    /// the filter has changed.
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
