//! What the stage before the sinks leaves out.

use crate::{
    Error,
    config::{CaptureConfig, SampleBy, Slice},
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
    ///
    /// # Errors
    /// `capture.filter` does not compile.
    pub fn of(capture: &CaptureConfig) -> Result<Self, Error> {
        let filter = Filter::compile(&capture.filter)
            .map_err(|e| Error::config("capture.filter", format!("{:?}", capture.filter), e))?;
        let dedup_ns = capture.dedup.nanos();
        Ok(Self {
            filter,
            dedup_ns,
            dedup_memory: match dedup_ns {
                0 => 0,
                length => dedup::memory(length),
            },
            sample: capture.sample,
            sample_by: capture.sample_by,
            slice: capture.slice,
            verify_fcs: capture.verify_fcs,
        })
    }

    /// Whether frames are parsed, so that malformed ones can be counted.
    #[must_use]
    pub fn parses(&self) -> bool {
        self.slice != Slice::Whole || self.sample > 1 && self.sample_by == SampleBy::Flow
    }
}
