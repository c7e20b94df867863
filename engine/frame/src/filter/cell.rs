//! Changing the filter while frames flow.
//!
//! A loop looks at one number per batch. Only when that has changed does it take the lock and the new filter, so that
//! a filter holds for whole batches and the hot path never waits.

use super::{
    Filter,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// The filter that holds, shared by all loops and whoever changes it.
#[derive(Debug, Default)]
pub struct FilterCell {
    /// How often it was changed.
    generation: AtomicU64,
    current: Mutex<Arc<Filter>>,
}

impl FilterCell {
    /// Begins with this filter.
    #[must_use]
    pub fn new(filter: Filter) -> Self {
        Self {
            generation: AtomicU64::new(0),
            current: Mutex::new(Arc::new(filter)),
        }
    }

    /// Puts another filter in place and returns the one before.
    pub fn set(&self, filter: Filter) -> Arc<Filter> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, Arc::new(filter));
        // Within the lock, so that whoever sees the number finds the filter.
        self.generation.fetch_add(1, Ordering::Release);
        before
    }

    /// The filter that holds.
    #[must_use]
    pub fn get(&self) -> Arc<Filter> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// How often it was changed.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

/// One loop's view of a [`FilterCell`].
#[derive(Clone, Debug)]
pub struct FilterReader {
    cell: Arc<FilterCell>,
    seen: u64,
    filter: Arc<Filter>,
}

impl FilterReader {
    /// Of this cell.
    #[must_use]
    pub fn new(cell: Arc<FilterCell>) -> Self {
        let (seen, filter) = (cell.generation(), cell.get());
        Self { cell, seen, filter }
    }

    /// The filter that holds for this batch.
    #[inline]
    #[must_use]
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Takes another filter if there is one, between two batches; true if there was.
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
