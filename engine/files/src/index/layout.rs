//! What an index holds. Its fields are those of the CBOR files.

use super::{flow::IndexFlow, terms::FlowTerms};
use crate::{folder::FileStamp, read::FileEnd};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The layout's number. An index of another layout does not count.
pub(super) const VERSION: u32 = 4;
/// How the comment of a record begins at which a mark was set.
pub const MARK: &str = "mark ";
/// Marks of a file that are in its index, at most.
pub(super) const MOST_MARKS: usize = 1024;

/// A mark in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexMark {
    /// The stamp of the record that tells of it.
    pub ns: u64,
    /// Its ID and its text.
    pub text: String,
}

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureIndex {
    /// The layout's number.
    pub(super) version: u32,
    /// The file as it was when it was read.
    pub(super) stamp: FileStamp,
    /// Bytes before the first record, in a compressed file those of its first frame: it must be read before any other
    /// part can be understood.
    pub head: u64,
    /// Frames in the file.
    pub frames: u64,
    /// The file's parts can be read apart: it has one section, and all its interfaces stand at its beginning; if it is
    /// compressed, no record reaches over two frames.
    pub apart: bool,
    /// How the file ends: what is behind the last part.
    pub end: FileEnd,
    /// The flows, in the order of their first frames.
    pub flows: Vec<IndexFlow>,
    /// The parts, in the order of the file.
    pub blocks: Vec<IndexBlock>,
    /// The marks, in the order of the file; indexes of earlier versions have none.
    #[serde(default)]
    pub marks: Vec<IndexMark>,
}

/// A run of whole records; in a compressed file, of whole frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexBlock {
    /// Where in the file its first record begins, or its first frame.
    pub start: u64,
    /// Where its last record ends, or its last frame.
    pub end: u64,
    /// The earliest stamp in it, in nanoseconds since 1970.
    pub first_ns: u64,
    /// The latest.
    pub last_ns: u64,
    /// Its records.
    pub frames: u64,
    /// Frames that the capture lost in front of these, as the records tell (pcapng's epb_dropcount). `None`: records of this
    /// format do not.
    pub lost: Option<u64>,
    /// Numbers of the flows in it, ascending: places in [`CaptureIndex::flows`].
    pub flows: Vec<u32>,
    /// There are flows in it that the index has no room for.
    pub others: bool,
}

impl CaptureIndex {
    /// Reads an index out of its seal; `None`: it is none.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        ciborium::from_reader(body).ok()
    }

    /// The parts of the file that can hold frames of `times` (from, up to and without) that fulfil `terms`: byte
    /// ranges, ascending, neighbours joined. If there are any, the beginning that they need ([`CaptureIndex::head`]) comes
    /// first.
    #[must_use]
    pub fn select(&self, times: &Range<u64>, terms: &FlowTerms) -> Vec<Range<u64>> {
        let wanted: Vec<bool> = self.flows.iter().map(|flow| terms.allow(flow)).collect();
        let has = |block: &IndexBlock| {
            let of = |n: &u32| wanted.get(*n as usize).copied().unwrap_or(true);
            block.others || block.flows.iter().any(of)
        };
        let mut parts: Vec<Range<u64>> = Vec::new();
        for block in &self.blocks {
            let in_time = block.first_ns < times.end && block.last_ns >= times.start;
            if !in_time || !has(block) {
                continue;
            }
            match parts.last_mut() {
                Some(last) if last.end == block.start => last.end = block.end,
                _ => parts.push(block.start..block.end),
            }
        }
        // A compressed file's first block is its head, too.
        if parts.first().is_some_and(|first| first.start > 0) {
            parts.insert(0, 0..self.head);
        }
        parts
    }
}
