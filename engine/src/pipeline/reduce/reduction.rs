//! What the stage before the sinks leaves out.

use crate::{
    analysis::limits::CutoffPlan,
    filter::Filter,
    frame::dedup::{DedupWindow, MayDiffer},
};
use serde::Serialize;
use wqcap_core::settings::SampleBy;
use wqcap_frame::Slice;

/// What a run leaves out.
#[derive(Clone, Debug, Serialize)]
pub struct Reduction {
    /// Which frames are kept at first; it may change while the run lasts.
    pub filter: Filter,
    /// Repetitions within so many nanoseconds are left out; 0: none.
    pub dedup_ns: u64,
    /// What a repetition may differ in.
    pub dedup_ignore: Vec<MayDiffer>,
    /// Bytes that takes for each queue, and once more for the order of time.
    pub dedup_memory: u64,
    /// One in N is kept.
    pub sample: u32,
    /// Of what.
    pub sample_by: SampleBy,
    /// How much of each flow is kept; `None`: all.
    pub cutoff: Option<CutoffPlan>,
    /// Where frames are cut.
    pub slice: Slice,
    /// Each frame's FCS is checked; nothing is left out for it.
    pub verify_fcs: bool,
}

impl Reduction {
    /// Steps for a queue's loop where repetitions are also sought among all queues: the filter, the FCS check and the search
    /// for repetitions within the queue. The other steps need the order of time, see [`Reduction::after_order`].
    #[must_use]
    pub fn before_order(&self) -> Self {
        Self {
            filter: self.filter.clone(),
            dedup_ignore: self.dedup_ignore.clone(),
            sample: 1,
            cutoff: None,
            slice: Slice::Whole,
            ..*self
        }
    }

    /// Steps that follow once frames are in the order of time and the repetitions among queues are left out: sampling, cutoff
    /// and slicing.
    #[must_use]
    pub fn after_order(&self) -> Self {
        Self {
            filter: Filter::default(),
            dedup_ns: 0,
            dedup_ignore: Vec::new(),
            cutoff: self.cutoff.clone(),
            verify_fcs: false,
            ..*self
        }
    }

    /// A new window for repetitions, if they are left out.
    #[must_use]
    pub fn dedup_window(&self) -> Option<DedupWindow> {
        let ignored = self.dedup_ignore.iter().copied().collect();
        (self.dedup_ns > 0).then(|| DedupWindow::new(self.dedup_ns, ignored))
    }

    /// Whether frames are parsed, so that malformed ones can be counted.
    #[must_use]
    pub fn parses(&self) -> bool {
        self.slice != Slice::Whole
            || self.sample > 1 && self.sample_by == SampleBy::Flow
            || self.cutoff.is_some()
    }
}
