//! Flow records as Parquet files: the ends of each flow, its times, frames and bytes.
//!
//! ```text
//! loop -> Meter: a private table -> batches of finished records -> FlowWriter -> file of the
//! interval
//!                                   <-      empty batches         <-
//! ```
//!
//! With `flows.names`, the names thread is between them: it reads the few payloads that the meters
//! copy, and adds the names of the flows to their records on the way to the writer. DNS and DHCP
//! have separate tables.
//!
//! Each queue has a table of flows, or all queues share one after their frames are merged. A table
//! is keyed by the innermost packet's 5-tuple without direction, the outermost VLANs and the
//! tunnel's network. Frames without IP form flows by their MAC addresses. Each observed frame is
//! therefore in exactly one record, or counted as missed.
//!
//! Imports `wqcap_frame`, `wqcap_names`, and the table and the limits of this crate.
//!
//! Invariants: frames of all records + missed frames = observed frames, and the same for bytes.
//! Reading names loses neither frames nor records. A frame costs no allocation and no clock
//! reading: its time stamp is the time. Memory is bounded by [`FlowsPlan::capacity`].

// The feature includes the writer: without it, no code would receive the records.
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
use std::{path::PathBuf, sync::Arc};
use wqcap_files::folder::file_list::FileList;

/// Labels of the ports that a flow meter's frames come from, by
/// [`Frame::port`](wqcap_core::consumer::Frame::port).
pub type PortLabels = Arc<[Arc<str>]>;

/// Settings for the flow records of a run.
#[derive(Clone, Debug, Serialize)]
pub struct FlowsPlan {
    /// Directory for the files of flow records.
    pub dir: PathBuf,
    /// Interval that one flow record file covers, in nanoseconds.
    pub interval_ns: u64,
    /// Maximum duration of a flow record in nanoseconds, after which it ends.
    pub active_ns: u64,
    /// Time without a frame of a flow, in nanoseconds, after which its record ends.
    pub idle_ns: u64,
    /// Number of flows that the flow table of each queue or parser holds.
    pub capacity: usize,
    /// `true` if names (TLS, HTTP, SSH, DNS, DHCP) are read from payloads.
    pub names: bool,
}

impl FlowsPlan {
    /// Bytes of a flow in a flow table: its entry, its cold part, and its share of the hash index
    /// at the index's sparsest.
    pub(crate) const FLOW_BYTES: u64 = 224;
    /// Additional bytes of a flow in a flow table that applies cutoff limits.
    pub(crate) const FOLLOWED_BYTES: u64 = 32;

    /// Bytes of the payload copies on their way to the names thread, for each flow table.
    pub const COPIES_BYTES: u64 = 8 << 20;

    /// Returns the additional bytes of memory for names of open flows, if all flow tables have
    /// `memory` bytes.
    pub fn names_of(memory: u64) -> u64 {
        memory / 4
    }

    /// Returns the maximum bytes of the names of open flows, with this number of flow tables.
    #[cfg(feature = "records")]
    fn names_memory(&self, tables: usize) -> usize {
        let memory = (self.capacity * tables) as u64 * Self::FLOW_BYTES;
        usize::try_from(Self::names_of(memory)).unwrap_or(usize::MAX)
    }

    /// Returns the number of flows that fit into a flow table of `memory` bytes, plus the bytes
    /// `of_cutoff` of a cutoff whose limits the table applies.
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

/// Totals of the flow records of a run: records, frames and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, derive_more::AddAssign)]
#[non_exhaustive]
pub struct FlowTotals {
    /// Number of flow records that ended.
    pub records: u64,
    /// Number of frames that all flow records together count.
    pub frames: u64,
    /// Number of bytes on the wire that all flow records together count.
    pub bytes: u64,
    /// Number of flow records that ended early because the flow table was full.
    pub evicted: u64,
    /// Number of frames in no flow record: the flow table was full, and the writer too far behind
    /// to free a place.
    pub missed_frames: u64,
    /// Number of bytes on the wire of the frames that are in no flow record.
    pub missed_bytes: u64,
    /// Number of flows in the flow tables at the last publication of the totals.
    pub flows: u64,
    /// Number of payloads with a possible name that were not read: no memory was free, or the next
    /// segment did not arrive.
    #[serde(skip)]
    pub missed_payloads: u64,
}

/// Report on the names that a finished run read from payloads.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct NamesReport {
    /// Number of flow records that got a name.
    pub flows: u64,
    /// Number of rows added to the DNS table.
    pub dns: u64,
    /// Number of rows added to the DHCP table.
    pub dhcp: u64,
    /// Number of payloads that could not be parsed as the protocol that they resembled.
    pub unreadable: u64,
    /// Number of payloads not read for names, and of DNS and DHCP rows not kept: no memory was
    /// free, or the next segment did not arrive.
    pub missed: u64,
    /// Number of rows of the DNS and DHCP tables that could not be written.
    pub unwritten: u64,
    /// Complete DNS table files, the oldest first.
    pub dns_files: FileList,
    /// Complete DHCP table files, the oldest first.
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

/// Report on the flow records of a finished run.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct FlowsReport {
    /// Sum of the flow record totals of all queues.
    #[serde(flatten)]
    pub totals: FlowTotals,
    /// Number of flow records that could not be written.
    pub unwritten: u64,
    /// Complete flow record files, the oldest first.
    pub files: FileList,
    /// Report on the names read from payloads; `None`: `flows.names` is off.
    pub names: Option<NamesReport>,
    /// First error that prevented flow records from being written.
    #[serde(skip)]
    pub failures: Vec<String>,
}

impl FlowsReport {
    /// Adds the counts and files of the flow report of a later run with the same settings.
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
