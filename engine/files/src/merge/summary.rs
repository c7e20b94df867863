//! Result of a merge: its summary or its error.

use super::gaps::GapFacts;
use serde::Serialize;

/// Reason why a merge produced no file.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The merge was refused before it began.
    #[error("{0}")]
    Refused(String),
    /// The merge failed while it was running.
    #[error("{0}")]
    Failed(String),
    /// The merge was stopped by its caller.
    #[error("stopped before the end; no output was left behind")]
    Stopped,
}

/// Summary of a merge, in the layout that `wqcap merge --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct MergeSummary {
    /// Path of the output; `-` is standard output.
    pub out: String,
    /// File format: `pcap` or `pcapng`.
    pub format: &'static str,
    /// Number of records written.
    pub frames: u64,
    /// Number of records left out as repetitions of others.
    pub deduplicated: u64,
    /// Length of the output in bytes.
    pub bytes: u64,
    /// Number of bytes read.
    pub bytes_read: u64,
    /// Stamp of the earliest record, in nanoseconds since 1970.
    pub first_ns: Option<u64>,
    /// Stamp of the latest record, in nanoseconds since 1970.
    pub last_ns: Option<u64>,
    /// Duration of the merge in seconds.
    pub seconds: f64,
    /// Number of streams: sequences of files in time order, one for each queue and for each other
    /// file.
    pub streams: usize,
    /// Capture ports of the output.
    pub interfaces: Vec<InterfaceFacts>,
    /// Time gaps between adjacent output records of different streams.
    pub gaps: GapFacts,
    /// Output records after a later one, because their input file has them in this order.
    pub late: Lateness,
    /// Input files.
    pub inputs: Vec<InputFacts>,
    /// Notes for the user on the output.
    pub notes: Vec<String>,
}

/// Capture port in the output.
#[derive(Clone, Debug, Default, Serialize)]
pub struct InterfaceFacts {
    /// Name of the interface.
    pub name: String,
    /// Number of records of the port.
    pub frames: u64,
    /// Number of frames received, summed over the statistics of all files of the port.
    pub received: Option<u64>,
    /// Number of frames lost, summed over the statistics of all files of the port.
    pub dropped: Option<u64>,
}

/// Number of records out of time order, and the largest delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Number of records out of order.
    pub frames: u64,
    /// Largest distance from an earlier record with a later stamp, in nanoseconds.
    pub most_ns: u64,
}

impl Lateness {
    pub(super) fn add(&mut self, behind_ns: u64) {
        self.frames += 1;
        self.most_ns = self.most_ns.max(behind_ns);
    }
}

/// Facts of an input file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct InputFacts {
    /// Path of the file.
    pub path: String,
    /// Number of records taken from the file.
    pub frames: u64,
    /// Number of bytes read from the file.
    pub bytes: u64,
    /// Stamp of the first record, in nanoseconds since 1970.
    pub first_ns: Option<u64>,
    /// Records after a later one of the same stream.
    pub out_of_order: Lateness,
    /// Notes on contradictions in the file that did not stop the reader.
    pub notes: Vec<String>,
    /// Reason for lost records: the file is torn, damaged, or cannot be read.
    pub loss: Option<String>,
}
