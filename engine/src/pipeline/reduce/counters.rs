//! What a stage counts beside the ledger, published once a batch; anyone may read it.

use crate::{
    analysis::limits::CutoffReport,
    frame::{Malformed, MalformedCounts},
};
use derive_more::AddAssign;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

/// Frames whose FCS was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign)]
pub struct FcsReport {
    /// How many.
    pub checked: u64,
    /// Those of them whose FCS belongs to another frame: they were damaged on the way, and are kept all the same.
    pub bad: u64,
}

/// One stage's counters.
#[derive(Debug, Default)]
pub struct StageCounters {
    malformed: [AtomicU64; Malformed::ALL.len()],
    fcs_checked: AtomicU64,
    fcs_bad: AtomicU64,
    cut_flows: AtomicU64,
    cut_bytes: AtomicU64,
    untracked_frames: AtomicU64,
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

    pub(super) fn publish_cutoff(&self, cutoff: CutoffReport) {
        self.cut_flows.store(cutoff.flows, Ordering::Relaxed);
        self.cut_bytes.store(cutoff.bytes, Ordering::Relaxed);
        let untracked = cutoff.untracked_frames;
        self.untracked_frames.store(untracked, Ordering::Relaxed);
    }

    /// Adds the malformed frames that are counted here, by the classes' names.
    pub fn add_malformed_to(&self, sum: &mut BTreeMap<&'static str, u64>) {
        for (class, count) in Malformed::ALL.iter().zip(&self.malformed) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                *sum.entry(class.into()).or_default() += count;
            }
        }
    }

    /// What was cut off.
    #[must_use]
    pub fn cutoff(&self) -> CutoffReport {
        CutoffReport {
            flows: self.cut_flows.load(Ordering::Relaxed),
            bytes: self.cut_bytes.load(Ordering::Relaxed),
            untracked_frames: self.untracked_frames.load(Ordering::Relaxed),
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
