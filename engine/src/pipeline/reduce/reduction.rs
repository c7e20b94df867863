//! Reduction steps between the receive loop and the sink.

use crate::{
    analysis::limits::CutoffPlan,
    filter::Filter,
    frame::dedup::{DedupWindow, MayDiffer},
};
use serde::Serialize;
use wqcap_core::settings::SampleBy;
use wqcap_frame::Slice;

/// Reduction steps of a run: filter, deduplication, sampling, cutoff and slicing.
#[derive(Clone, Debug, Serialize)]
pub struct Reduction {
    /// Capture filter at the start; it may change while the capture runs.
    pub filter: Filter,
    /// Time in nanoseconds within which repetitions of a frame are left out; 0 keeps all.
    pub dedup_ns: u64,
    /// Header fields in which a frame and its repetition may differ.
    pub dedup_ignore: Vec<MayDiffer>,
    /// Bytes of memory of a deduplication window: there is one for each queue, and one more with
    /// time order.
    pub dedup_memory: u64,
    /// Sampling rate N: one in N frames or flows is kept.
    pub sample: u32,
    /// Unit of the sampling rate: one in N frames or one in N flows is kept.
    pub sample_by: SampleBy,
    /// Limits on how much of each flow is kept; `None` keeps whole flows.
    pub cutoff: Option<CutoffPlan>,
    /// Protocol layer of a frame after which the frame is cut.
    pub slice: Slice,
    /// `true` if the run checks each frame's FCS. The check leaves no frame out.
    pub verify_fcs: bool,
}

impl Reduction {
    /// Returns the reduction steps of a queue's loop when repetitions are also removed across all
    /// queues: the filter, the FCS check and the deduplication within the queue. The other steps
    /// need time order, see [`Reduction::after_order`].
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

    /// Returns the reduction steps after the merge in time order and the deduplication across
    /// queues: sampling, cutoff and slicing.
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

    /// Returns a new deduplication window, or `None` if repetitions of frames are kept.
    #[must_use]
    pub fn dedup_window(&self) -> Option<DedupWindow> {
        let ignored = self.dedup_ignore.iter().copied().collect();
        (self.dedup_ns > 0).then(|| DedupWindow::new(self.dedup_ns, ignored))
    }

    /// Returns `true` if a reduction step parses frames, so that malformed ones can be counted.
    #[must_use]
    pub fn parses(&self) -> bool {
        self.slice != Slice::Whole
            || self.sample > 1 && self.sample_by == SampleBy::Flow
            || self.cutoff.is_some()
    }
}
