//! What the stage before the sinks leaves out.

use crate::{
    config::{SampleBy, Slice},
    filter::Filter,
    pipeline::reduce::dedup,
};
use serde::Serialize;

/// What a run leaves out.
#[derive(Clone, Debug, Serialize)]
pub struct Reduction {
    /// Which frames are kept at first; it may change while the run lasts.
    pub filter: Filter,
    /// Repetitions within so many nanoseconds are left out; 0: none.
    pub dedup_ns: u64,
    /// Bytes that takes for each queue.
    pub dedup_memory: u64,
    /// One in N is kept.
    pub sample: u32,
    /// Of what.
    pub sample_by: SampleBy,
    /// Where frames are cut.
    pub slice: Slice,
    /// Each frame's FCS is checked; nothing is left out for it.
    pub verify_fcs: bool,
}

impl Reduction {
    /// As configured.
    #[must_use]
    pub fn new(
        filter: Filter,
        dedup_ns: u64,
        sample: u32,
        sample_by: SampleBy,
        slice: Slice,
    ) -> Self {
        Self {
            filter,
            dedup_ns,
            dedup_memory: match dedup_ns {
                0 => 0,
                length => dedup::memory(length),
            },
            sample,
            sample_by,
            slice,
            verify_fcs: false,
        }
    }

    /// The same, with each frame's FCS checked.
    #[must_use]
    pub fn verifying(self, verify_fcs: bool) -> Self {
        Self { verify_fcs, ..self }
    }

    /// Whether frames are parsed, so that malformed ones can be counted.
    #[must_use]
    pub fn parses(&self) -> bool {
        self.slice != Slice::Whole || self.sample > 1 && self.sample_by == SampleBy::Flow
    }
}
