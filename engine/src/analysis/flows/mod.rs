//! Flow records: who talked with whom, when, and how much, as Parquet files.
//!
//! ```text
//! loop -> Meter: a table of its own -> batches of finished records -> FlowWriter -> file of the interval
//!                                   <-      empty batches         <-
//! ```
//!
//! Each queue has a table of flows, keyed by the innermost packet's 5-tuple without direction, the outermost VLANs and
//! the tunnel's network. Frames without IP make flows by their MAC addresses, so that each frame that is seen is in
//! exactly one record, or counted as missed.
//!
//! May import: [`crate::frame`], the table of [`crate::analysis`]; the writer, the clock of [`crate::rx`] and
//! [`crate::name`].
//!
//! Invariants: frames of all records + missed frames = frames that were seen, and bytes alike. A frame costs no
//! allocation and no look at a clock: its stamp is the time. Memory is bounded by [`FlowsPlan::capacity`].

// Without the writer nothing would take the records, so the feature is for both.
#[cfg(feature = "flows")]
mod columns;
#[cfg(feature = "flows")]
mod file;
#[cfg(feature = "flows")]
mod flow;
#[cfg(feature = "flows")]
mod meter;
#[cfg(feature = "flows")]
mod seen;
#[cfg(all(test, feature = "flows"))]
mod tests;
#[cfg(feature = "flows")]
mod writer;

#[cfg(feature = "flows")]
pub use self::{
    flow::{Direction, FlowEndReason, FlowRecord},
    meter::Meter,
    writer::FlowWriter,
};

use super::flow_table;
use serde::Serialize;
use std::path::PathBuf;

/// What flow records a run writes.
#[derive(Clone, Debug, Serialize)]
pub struct FlowsPlan {
    /// Where to.
    pub dir: PathBuf,
    /// How often, in nanoseconds.
    pub interval_ns: u64,
    /// A flow's record ends when it has lasted this long, in nanoseconds.
    pub active_ns: u64,
    /// A flow's record ends when nothing came for this long, in nanoseconds.
    pub idle_ns: u64,
    /// Flows that each table holds.
    pub capacity: usize,
}

impl FlowsPlan {
    /// Bytes of a flow, its outermost packet and its share of the index, when that is as sparse as it gets.
    pub(crate) const FLOW_BYTES: u64 = 198;

    /// Flows that fit so many bytes.
    #[must_use]
    pub fn capacity_of(memory: u64) -> usize {
        flow_table::capacity(memory, Self::FLOW_BYTES)
    }
}

/// Sums of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, derive_more::AddAssign)]
pub struct FlowTotals {
    /// Records that ended.
    pub records: u64,
    /// Their frames.
    pub frames: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Records that ended before their time, since the table was full.
    pub evicted: u64,
    /// Frames in no record: the table was full, and the writer too far behind to make place.
    pub missed_frames: u64,
    /// Their bytes.
    pub missed_bytes: u64,
    /// Flows in the tables at the last look.
    pub flows: u64,
}

#[cfg(feature = "flows")]
impl FlowTotals {
    fn add(&mut self, record: &FlowRecord) {
        self.records += 1;
        self.frames += record.frames();
        self.bytes += record.bytes();
    }
}

/// What a finished run tells of its flow records.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FlowsReport {
    /// Sums over all queues.
    #[serde(flatten)]
    pub totals: FlowTotals,
    /// Records that could not be written.
    pub unwritten: u64,
    /// Complete files, the oldest first.
    pub files: Vec<PathBuf>,
    /// Why records could not be written; the first time.
    #[serde(skip)]
    pub failures: Vec<String>,
}

impl FlowsReport {
    /// Adds what a later run tells.
    pub(crate) fn absorb(&mut self, later: Self) {
        self.totals += later.totals;
        self.unwritten += later.unwritten;
        self.files.extend(later.files);
        self.failures.extend(later.failures);
    }
}
