//! The budget, and a stand-in for what a queue publishes.

#[path = "../../engine/src/stats/budget.rs"]
mod budget;

use crate::sync::atomic::{AtomicU64, Ordering};

pub(crate) use budget::Budget;

/// As in the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) captured: u64,
    pub(crate) filtered: u64,
    pub(crate) sampled_out: u64,
    pub(crate) deduplicated: u64,
    pub(crate) dropped_storage: u64,
    pub(crate) bytes: u64,
}

/// The sum of all ends.
#[derive(Debug)]
pub(crate) struct QueueCounters(AtomicU64);

impl QueueCounters {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn publish_ends(&self, ends: &Ends) {
        let refused = ends.filtered + ends.sampled_out + ends.deduplicated + ends.dropped_storage;
        self.0.store(ends.captured + refused, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
