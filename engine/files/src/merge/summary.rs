//! What a merge did, and why there is no merged file.

use super::gaps::GapFacts;
use serde::Serialize;

/// Why there is no merged file.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// It cannot be done as asked; nothing was begun.
    #[error("{0}")]
    Refused(String),
    /// It was running, and failed.
    #[error("{0}")]
    Failed(String),
    /// It was told to stop.
    #[error("stopped before the end; no output was left behind")]
    Stopped,
}

/// What a merge did: the shape that `wqcap merge --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct MergeSummary {
    /// The file; `-` is standard output.
    pub out: String,
    /// `pcap` or `pcapng`.
    pub format: &'static str,
    /// Records written.
    pub frames: u64,
    /// Records left out as repetitions of others.
    pub deduplicated: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Stamp of the earliest record, in nanoseconds since 1970.
    pub first_ns: Option<u64>,
    /// Stamp of the latest.
    pub last_ns: Option<u64>,
    /// How long it took.
    pub seconds: f64,
    /// Runs of files that are in order by themselves: one for each queue, and for each other file.
    pub streams: usize,
    /// One for each capture port.
    pub interfaces: Vec<InterfaceFacts>,
    /// Between neighbours in the output that come from different streams.
    pub gaps: GapFacts,
    /// Records behind a later one in the output, since their own file has them so.
    pub late: Lateness,
    /// Each input.
    pub inputs: Vec<InputFacts>,
    /// Notes on the output.
    pub notes: Vec<String>,
}

/// A capture port in the output.
#[derive(Clone, Debug, Default, Serialize)]
pub struct InterfaceFacts {
    /// Its name.
    pub name: String,
    /// Records of it.
    pub frames: u64,
    /// Frames received by the inputs' statistics, those of all its files together.
    pub received: Option<u64>,
    /// Frames lost, in the same way.
    pub dropped: Option<u64>,
}

/// How many records came too late, and by how much at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lateness {
    /// How many.
    pub frames: u64,
    /// The farthest behind, in nanoseconds.
    pub most_ns: u64,
}

impl Lateness {
    pub(super) fn add(&mut self, behind_ns: u64) {
        self.frames += 1;
        self.most_ns = self.most_ns.max(behind_ns);
    }
}

/// One input file.
#[derive(Clone, Debug, Default, Serialize)]
pub struct InputFacts {
    /// Where it is.
    pub path: String,
    /// Records taken from it.
    pub frames: u64,
    /// Bytes read of it.
    pub bytes: u64,
    /// Stamp of its first record.
    pub first_ns: Option<u64>,
    /// Records behind a later one of the same stream.
    pub out_of_order: Lateness,
    /// Contradictions in it that did not stop the reader.
    pub notes: Vec<String>,
    /// Why records were lost: the file is torn, damaged, or could not be read.
    pub loss: Option<String>,
}
