//! Counters of a reduction stage in addition to the ledger (frames by what became of them). They
//! are published once per batch, and every thread may read them.

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

/// Number of frames whose FCS was checked, and of frames with a bad FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign)]
pub struct FcsReport {
    /// Number of frames whose FCS was checked.
    pub checked: u64,
    /// Number of checked frames whose FCS does not match: frames damaged in transit, which are
    /// kept.
    pub bad: u64,
}

/// Published counters of one reduction stage.
#[derive(Debug, Default)]
pub struct StageCounters {
    /// Number of malformed frames that the stage parsed, by class.
    malformed: [AtomicU64; Malformed::ALL.len()],
    /// Number of frames whose FCS the stage checked.
    fcs_checked: AtomicU64,
    /// Number of frames that the stage found to have a bad FCS.
    fcs_bad: AtomicU64,
    /// Number of flows that lost frames by `[[cutoff]]`, which limits how much of a flow is kept.
    cut_flows: AtomicU64,
    /// Number of bytes on the wire of the frames that `[[cutoff]]` left out.
    cut_bytes: AtomicU64,
    /// Number of frames kept because the cutoff's flow table was full.
    untracked_frames: AtomicU64,
}

impl StageCounters {
    /// Stores the reduction stage's numbers of malformed frames by class, for statistics and
    /// metrics.
    pub(super) fn publish_malformed(&self, counts: &MalformedCounts) {
        for (class, count) in counts.iter() {
            self.malformed[class as usize].store(count, Ordering::Relaxed);
        }
    }

    /// Publishes the stage's counts of FCS checks.
    pub(super) fn publish_fcs(&self, fcs: FcsReport) {
        self.fcs_checked.store(fcs.checked, Ordering::Relaxed);
        self.fcs_bad.store(fcs.bad, Ordering::Relaxed);
    }

    /// Publishes the stage's counts of frames left out by `[[cutoff]]`.
    pub(super) fn publish_cutoff(&self, cutoff: CutoffReport) {
        self.cut_flows.store(cutoff.flows, Ordering::Relaxed);
        self.cut_bytes.store(cutoff.bytes, Ordering::Relaxed);
        let untracked = cutoff.untracked_frames;
        self.untracked_frames.store(untracked, Ordering::Relaxed);
    }

    /// Adds the stage's numbers of malformed frames to `sum`, by the name of the class.
    pub fn add_malformed_to(&self, sum: &mut BTreeMap<&'static str, u64>) {
        for (class, count) in Malformed::ALL.iter().zip(&self.malformed) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                *sum.entry(class.into()).or_default() += count;
            }
        }
    }

    /// Returns the stage's counts of frames left out by `[[cutoff]]`.
    #[must_use]
    pub fn cutoff(&self) -> CutoffReport {
        CutoffReport {
            flows: self.cut_flows.load(Ordering::Relaxed),
            bytes: self.cut_bytes.load(Ordering::Relaxed),
            untracked_frames: self.untracked_frames.load(Ordering::Relaxed),
        }
    }

    /// Returns the stage's counts of FCS checks.
    #[must_use]
    pub fn fcs(&self) -> FcsReport {
        FcsReport {
            checked: self.fcs_checked.load(Ordering::Relaxed),
            bad: self.fcs_bad.load(Ordering::Relaxed),
        }
    }
}
