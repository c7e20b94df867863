//! Result of a merge: its summary or its error.

use super::gaps::GapFacts;
use serde::Serialize;

/// Reason why a merge of capture files produced no output.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// The merge was refused before it began.
    #[error("{0}")]
    Refused(String),
    /// The merge failed while it was running.
    #[error("{0}")]
    Failed(String),
    /// The merge was stopped by its caller.
    #[error("the merge or extraction was stopped before its end; no output was left behind")]
    Stopped,
}

/// Summary of a merge, in the layout that `wqcap merge --json` prints.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct MergeSummary {
    /// Path of the merged file; `-` is standard output.
    pub out: String,
    /// Format of the merged file: `pcap` or `pcapng`.
    pub format: &'static str,
    /// Number of records written to the merged file.
    pub frames: u64,
    /// Number of records left out of the merged file as repetitions of others.
    pub deduplicated: u64,
    /// Length of the merged file in bytes.
    pub bytes: u64,
    /// Number of bytes that were read from the inputs of the merge.
    pub bytes_read: u64,
    /// Timestamp of the earliest merged record, in nanoseconds since 1970.
    pub first_ns: Option<u64>,
    /// Timestamp of the latest merged record, in nanoseconds since 1970.
    pub last_ns: Option<u64>,
    /// Duration of the merge in seconds.
    pub seconds: f64,
    /// Number of streams of the merge: sequences of files in time order, one for each queue and for
    /// each other file.
    pub streams: usize,
    /// Capture ports (interfaces) in the merged file, with their counts.
    pub interfaces: Vec<InterfaceFacts>,
    /// Time gaps between adjacent output records of different streams.
    pub gaps: GapFacts,
    /// Number and largest delay of merged records that follow a later one, because their input file
    /// has them in this order.
    pub late: Lateness,
    /// Facts of each input file of the merge.
    pub inputs: Vec<InputFacts>,
    /// Notes for the user on the merged file.
    pub notes: Vec<String>,
    /// Reasons why the merged file lacks frames of the inputs, one line each. In JSON they are the
    /// `loss` of each input.
    #[serde(skip)]
    pub losses: Vec<String>,
    /// `true` if the merged file ends at its limit of frames or bytes.
    #[serde(skip)]
    pub at_limit: bool,
}

/// Capture port (interface) in the merged file, with its counts.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct InterfaceFacts {
    /// Name of the capture port's interface in the merged file.
    pub name: String,
    /// Number of merged records of the capture port.
    pub frames: u64,
    /// Number of frames received, summed over the interface statistics of all files of the capture
    /// port.
    pub received: Option<u64>,
    /// Number of frames lost, summed over the interface statistics of all files of the capture
    /// port.
    pub dropped: Option<u64>,
}

/// Number of records that follow a record with a later timestamp, and the largest delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// Number of records that follow a record with a later timestamp.
    pub frames: u64,
    /// Largest time from a record out of order to an earlier record with a later stamp, in
    /// nanoseconds.
    pub most_ns: u64,
}

impl Lateness {
    pub(super) fn add(&mut self, behind_ns: u64) {
        self.frames += 1;
        self.most_ns = self.most_ns.max(behind_ns);
    }
}

/// Facts of an input file of the merge.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct InputFacts {
    /// Path of the input file.
    pub path: String,
    /// Number of records taken from the input file.
    pub frames: u64,
    /// Number of bytes read from the input file.
    pub bytes: u64,
    /// Timestamp of the input file's first record, in nanoseconds since 1970.
    pub first_ns: Option<u64>,
    /// Number and largest delay of the input file's records that follow a later one of the same
    /// stream.
    pub out_of_order: Lateness,
    /// Notes on contradictions in the input file that did not stop the reader.
    pub notes: Vec<String>,
    /// Reason for lost records of the input file: it is torn, damaged, or cannot be read; `None`:
    /// none are lost.
    pub loss: Option<String>,
}
