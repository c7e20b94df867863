//! What a stage counts beside the ledger, published once a batch; anyone may read it.

use crate::frame::{Malformed, MalformedCounts};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    ops::AddAssign,
    sync::atomic::{AtomicU64, Ordering},
};

/// Frames whose FCS was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FcsReport {
    /// How many.
    pub checked: u64,
    /// Those of them whose FCS belongs to another frame: they were damaged on the way, and are kept all the same.
    pub bad: u64,
}

impl AddAssign for FcsReport {
    fn add_assign(&mut self, other: Self) {
        self.checked += other.checked;
        self.bad += other.bad;
    }
}

/// One stage's counters.
#[derive(Debug)]
pub struct StageCounters {
    malformed: [AtomicU64; Malformed::ALL.len()],
    fcs_checked: AtomicU64,
    fcs_bad: AtomicU64,
}

impl Default for StageCounters {
    fn default() -> Self {
        Self {
            malformed: std::array::from_fn(|_| AtomicU64::new(0)),
            fcs_checked: AtomicU64::new(0),
            fcs_bad: AtomicU64::new(0),
        }
    }
}

impl StageCounters {
    pub(super) fn publish_malformed(&self, counts: &MalformedCounts) {
        for (class, count) in counts.iter() {
            self.malformed[class as usize].store(count, Ordering::Relaxed);
        }
    }

    pub(super) fn publish_fcs(&self, fcs: FcsReport) {
        self.fcs_checked.store(fcs.checked, Ordering::Relaxed);
        self.fcs_bad.store(fcs.bad, Ordering::Relaxed);
    }

    /// Adds the malformed frames that are counted here, by the classes' names.
    pub fn add_malformed_to(&self, sum: &mut BTreeMap<&'static str, u64>) {
        for (class, count) in Malformed::ALL.iter().zip(&self.malformed) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                *sum.entry(class.name()).or_default() += count;
            }
        }
    }

    /// The frames whose FCS was checked.
    #[must_use]
    pub fn fcs(&self) -> FcsReport {
        FcsReport {
            checked: self.fcs_checked.load(Ordering::Relaxed),
            bad: self.fcs_bad.load(Ordering::Relaxed),
        }
    }
}
