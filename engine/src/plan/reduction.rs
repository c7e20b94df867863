//! Plan of the reduction: the frames and bytes that are left out before the sinks.

use crate::{
    Error,
    analysis::{flow_table, flows::FlowsPlan},
    config::{Config, CutoffConfig, SampleBy, Slice},
    filter::{self, Filter},
    frame::dedup::{self, DedupWindow, MayDiffer},
};
use serde::Serialize;

/// Reduction steps of a run: filter, deduplication, sampling, cutoff and slicing.
#[derive(Clone, Debug, Serialize)]
pub struct Reduction {
    /// Filter of kept frames at the start; it may change while the capture runs.
    pub filter: Filter,
    /// Window in nanoseconds within which repetitions of a frame are left out; 0 keeps all.
    pub dedup_ns: u64,
    /// Header fields in which a repetition may differ.
    pub dedup_ignore: Vec<MayDiffer>,
    /// Bytes of a deduplication window: one for each queue, and one more with time order.
    pub dedup_memory: u64,
    /// Sampling rate: one in N is kept.
    pub sample: u32,
    /// Unit of sampling: frames or flows.
    pub sample_by: SampleBy,
    /// Limits on how much of each flow is kept; `None` keeps all.
    pub cutoff: Option<CutoffPlan>,
    /// Position at which frames are cut.
    pub slice: Slice,
    /// `true` if each frame's FCS is checked. The check leaves no frame out.
    pub verify_fcs: bool,
}

/// Limits on how much of each flow is kept.
#[derive(Clone, Debug, Serialize)]
pub struct CutoffPlan {
    /// Limits in order: the first whose filter matches a flow's first frame applies. A flow without
    /// a match is kept whole.
    pub limits: Vec<FlowLimit>,
    /// Nanoseconds of silence after which a flow counts as new.
    pub idle_ns: u64,
    /// Maximum number of flows in the table of each queue or parser.
    pub capacity: usize,
}

impl CutoffPlan {
    /// Bytes of a flow and its share of the index, at the index's lowest load.
    pub(crate) const FLOW_BYTES: u64 = 128;

    /// Returns the number of flows that fit into `memory` bytes.
    #[must_use]
    pub fn capacity_of(memory: u64) -> usize {
        flow_table::capacity(memory, Self::FLOW_BYTES)
    }
}

/// Limit on how much of the flows that match a filter is kept.
#[derive(Clone, Debug, Serialize)]
pub struct FlowLimit {
    /// Filter on a flow's first frame.
    pub filter: Filter,
    /// Maximum bytes on the wire in each direction; `None` means no limit.
    pub bytes: Option<u64>,
    /// Maximum packets in each direction; `None` means no limit.
    pub packets: Option<u64>,
}

impl Reduction {
    /// Returns the configured reduction of a run with one queue.
    ///
    /// # Errors
    /// `capture.filter` or the filter of a `[[cutoff]]` does not compile.
    pub fn of(config: &Config) -> Result<Self, Error> {
        let capture = &config.capture;
        let dedup_ns = capture.dedup.nanos();
        let limits = (1..).zip(&config.cutoff).map(|(n, it)| limit(n, it));
        let limits = limits.collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            filter: compiled("capture.filter", &capture.filter)?,
            dedup_ns,
            dedup_ignore: capture.dedup_ignore.clone(),
            dedup_memory: match dedup_ns {
                0 => 0,
                length => dedup::memory(length),
            },
            sample: capture.sample,
            sample_by: capture.sample_by,
            cutoff: (!limits.is_empty()).then(|| CutoffPlan {
                limits,
                idle_ns: capture.cutoff_idle.nanos(),
                capacity: CutoffPlan::capacity_of(capture.cutoff_memory.0),
            }),
            slice: capture.slice,
            verify_fcs: capture.verify_fcs,
        })
    }

    /// Divides the cutoff's memory among `stages` queues or parsers. With flow records, the
    /// capacity is that of their tables, which follow the flows then.
    pub(super) fn among(mut self, stages: usize, flows: Option<&FlowsPlan>) -> Self {
        if let Some(cutoff) = &mut self.cutoff {
            let own = (cutoff.capacity / stages.max(1)).max(1);
            cutoff.capacity = flows.map_or(own, |it| it.capacity);
        }
        self
    }

    /// Returns the steps of a queue's loop when repetitions are also removed across all queues: the
    /// filter, the FCS check and the deduplication within the queue. The other steps need time
    /// order, see [`Reduction::after_order`].
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

    /// Returns the steps after the merge in time order and the deduplication across queues:
    /// sampling, cutoff and slicing.
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

    /// Returns a new deduplication window, or `None` if repetitions are kept.
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

/// Returns the limit of the `[[cutoff]]` with this number, counted from 1.
fn limit(number: usize, config: &CutoffConfig) -> Result<FlowLimit, Error> {
    Ok(FlowLimit {
        filter: compiled(&format!("cutoff {number}: filter"), &config.filter)?,
        bytes: config.bytes.map(|it| it.0),
        packets: config.packets,
    })
}

/// Compiles the filter of a configuration key.
///
/// # Errors
/// The filter does not compile; the error names the key.
pub(crate) fn compiled(key: &str, expression: &str) -> Result<Filter, Error> {
    Filter::compile(expression).map_err(|e| Error::config(key, filter::shown(expression), e))
}
