//! Flow records: who talked with whom, when, and how much, as Parquet files.
//!
//! ```text
//! loop -> Meter: a table of its own -> batches of finished records -> FlowWriter -> file of the interval
//!                                   <-      empty batches         <-
//! ```
//!
//! With `flows.names` another thread stands between them: it reads the few payloads that the meters copy, and gives the
//! records the names of their flows on their way to the writer. DNS and DHCP have tables of their own.
//!
//! Each queue has a table of flows, keyed by the innermost packet's 5-tuple without direction, the outermost VLANs and
//! the tunnel's network. Frames without IP make flows by their MAC addresses, so that each frame that is seen is in
//! exactly one record, or counted as missed.
//!
//! May import: [`wqcap_frame`], `wqcap_names`, the table and the limits of [`crate`], the frame of
//! [`wqcap_core::consumer`], [`crate::plan`]; the writer, the clock of [`crate::rx`] and [`wqcap_files::name`].
//!
//! Invariants: frames of all records + missed frames = frames that were seen, and bytes alike. A name costs neither a frame
//! nor a record. A frame costs no allocation and no look at a clock: its stamp is the time. Memory is bounded by
//! [`FlowsPlan::capacity`].

// Without the writer nothing would take the records, so the feature is for both.
#[cfg(feature = "records")]
mod columns;
#[cfg(feature = "records")]
mod cutoff;
#[cfg(feature = "records")]
mod dhcp;
#[cfg(feature = "records")]
mod dns;
#[cfg(feature = "records")]
mod entry;
#[cfg(feature = "records")]
mod file;
#[cfg(feature = "records")]
mod following;
#[cfg(feature = "records")]
mod meter;
#[cfg(feature = "records")]
mod names;
#[cfg(feature = "records")]
mod record;
#[cfg(feature = "records")]
mod row;
#[cfg(feature = "records")]
mod sample;
#[cfg(feature = "records")]
mod seen;
#[cfg(feature = "records")]
mod table_writer;
#[cfg(all(test, feature = "records"))]
mod tests;
#[cfg(feature = "records")]
mod writer;

#[cfg(feature = "records")]
pub use self::{
    meter::Meter,
    record::{Direction, FlowEndReason, FlowRecord},
    writer::FlowWriter,
};

use super::flow_table;
use serde::Serialize;
use std::path::PathBuf;
use wqcap_files::file_list::FileList;

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
    /// Whether names are read from the payloads.
    pub names: bool,
}

impl FlowsPlan {
    /// Bytes of a flow, of what is kept apart from it and of its share of the index, when that is as sparse as it gets.
    pub(crate) const FLOW_BYTES: u64 = 224;
    /// Bytes more of a flow whose limit is followed.
    pub(crate) const FOLLOWED_BYTES: u64 = 32;

    /// Bytes of payloads that each table may have on their way.
    pub const COPIES_BYTES: u64 = 8 << 20;

    /// Of the bytes of all tables, those that may be names of flows which last, besides.
    pub fn names_of(memory: u64) -> u64 {
        memory / 4
    }

    /// Bytes of names of flows that last, at most, with so many tables.
    #[cfg(feature = "records")]
    fn names_memory(&self, tables: usize) -> usize {
        let memory = (self.capacity * tables) as u64 * Self::FLOW_BYTES;
        usize::try_from(Self::names_of(memory)).unwrap_or(usize::MAX)
    }

    /// Flows that fit so many bytes, and as many more as a cutoff that is followed has for its flows.
    #[must_use]
    pub fn capacity_of(memory: u64, of_cutoff: Option<u64>) -> usize {
        match of_cutoff {
            Some(more) => {
                flow_table::capacity(memory + more, Self::FLOW_BYTES + Self::FOLLOWED_BYTES)
            }
            None => flow_table::capacity(memory, Self::FLOW_BYTES),
        }
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
    /// Payloads that may tell a name and were not read: there was no memory, or their rest did not come.
    #[serde(skip)]
    pub missed_payloads: u64,
}

/// What a finished run tells of the names.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NamesReport {
    /// Records with a name.
    pub flows: u64,
    /// Rows of DNS.
    pub dns: u64,
    /// Rows of DHCP.
    pub dhcp: u64,
    /// Payloads that were not what they seemed to be.
    pub unreadable: u64,
    /// Payloads that were not read, and rows of DNS and DHCP that were not kept: there was no memory, or the rest did not come.
    pub missed: u64,
    /// Rows of both that could not be written.
    pub unwritten: u64,
    /// Complete files of DNS, the oldest first.
    pub dns_files: FileList,
    /// Complete files of DHCP, the oldest first.
    pub dhcp_files: FileList,
}

impl NamesReport {
    fn absorb(&mut self, later: Self) {
        self.flows += later.flows;
        self.dns += later.dns;
        self.dhcp += later.dhcp;
        self.unreadable += later.unreadable;
        self.missed += later.missed;
        self.unwritten += later.unwritten;
        self.dns_files.absorb(later.dns_files);
        self.dhcp_files.absorb(later.dhcp_files);
    }
}

#[cfg(feature = "records")]
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
    pub files: FileList,
    /// Names; `None`: nobody asked for them.
    pub names: Option<NamesReport>,
    /// Why records could not be written; the first time.
    #[serde(skip)]
    pub failures: Vec<String>,
}

impl FlowsReport {
    /// Adds what a later run tells.
    pub fn absorb(&mut self, later: Self) {
        self.totals += later.totals;
        self.unwritten += later.unwritten;
        self.files.absorb(later.files);
        if let Some(names) = later.names {
            self.names.get_or_insert_default().absorb(names);
        }
        self.failures.extend(later.failures);
    }
}
