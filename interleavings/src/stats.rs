//! Budget and ends of the engine's ledger, and a stand-in for the published counters of a queue.

#[path = "../../engine/core/src/stats/budget.rs"]
mod budget;
#[path = "../../engine/core/src/stats/ends.rs"]
mod ends;

use crate::sync::atomic::{AtomicU64, Ordering};

pub(crate) use budget::Budget;
pub(crate) use ends::VerdictCounts;

/// Stand-in for the counters of a queue: the sum of all ends.
#[derive(Debug)]
pub(crate) struct QueueCounters(AtomicU64);

impl QueueCounters {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn publish_ends(&self, ends: &VerdictCounts) {
        let reduced = ends.filtered + ends.sampled_out + ends.deduplicated + ends.cut_off;
        let all = ends.captured + reduced + ends.dropped_storage;
        self.0.store(all, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
