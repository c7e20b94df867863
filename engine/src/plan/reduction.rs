//! What the stage before the sinks leaves out.

use crate::{
    Error,
    analysis::{flow_table, flows::FlowsPlan},
    config::{Config, CutoffConfig, SampleBy, Slice},
    filter::{self, Filter},
    frame::dedup::{self, DedupWindow, MayDiffer},
};
use serde::Serialize;

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

/// How much of flows is kept.
#[derive(Clone, Debug, Serialize)]
pub struct CutoffPlan {
    /// The first that takes a flow's first frame holds for the flow; without one all of it is kept.
    pub limits: Vec<FlowLimit>,
    /// A flow that was silent for so many nanoseconds begins anew.
    pub idle_ns: u64,
    /// Flows that the table of each queue or parser holds.
    pub capacity: usize,
}

impl CutoffPlan {
    /// Bytes of a flow and its share of the index, when that is as sparse as it gets.
    pub(crate) const FLOW_BYTES: u64 = 128;

    /// Flows that fit so many bytes.
    #[must_use]
    pub fn capacity_of(memory: u64) -> usize {
        flow_table::capacity(memory, Self::FLOW_BYTES)
    }
}

/// How much of some flows is kept.
#[derive(Clone, Debug, Serialize)]
pub struct FlowLimit {
    /// Of which flows, by their first frames.
    pub filter: Filter,
    /// Bytes on the wire, each way; `None`: however many there are.
    pub bytes: Option<u64>,
    /// Packets, each way; `None`: however many there are.
    pub packets: Option<u64>,
}

impl Reduction {
    /// As configured, for one queue.
    ///
    /// # Errors
    /// `capture.filter` or that of a `[[cutoff]]` does not compile.
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

    /// For so many queues or parsers, which share the memory. Where there are flow records, their tables follow the flows.
    pub(super) fn among(mut self, stages: usize, flows: Option<&FlowsPlan>) -> Self {
        if let Some(cutoff) = &mut self.cutoff {
            let own = (cutoff.capacity / stages.max(1)).max(1);
            cutoff.capacity = flows.map_or(own, |it| it.capacity);
        }
        self
    }

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
