//! Content of an index. Fields are those of the CBOR files.

use super::{flow::IndexFlow, packed, terms::FlowTerms};
use crate::{folder::FileStamp, read::FileEnd};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Version of the index layout. Indexes of another version are ignored.
pub(super) const VERSION: u32 = 6;
/// Prefix of the record comment that holds an operator's mark.
pub const MARK: &str = "mark ";
/// Maximum number of operator's marks in an index.
pub(super) const MOST_MARKS: usize = 1024;
/// Maximum number of parts in the times of an index.
const MOST_PARTS: usize = 64;

/// Mark that an operator set in a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IndexMark {
    /// Timestamp of the record with the mark, in nanoseconds since 1970.
    pub ns: u64,
    /// ID and text of the mark.
    pub text: String,
}

/// Index of a capture file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CaptureIndex {
    /// Version of the index layout.
    pub(super) version: u32,
    /// Length and modification time of the capture file that the index was built from.
    pub(super) stamp: FileStamp,
    /// Number of bytes before the capture file's first record; in a compressed file, bytes of its
    /// first compressed frame. They must be read before any other part.
    pub head: u64,
    /// Number of frames in the capture file.
    pub frames: u64,
    /// Set when parts of the capture file can be read separately: it has one section, and all
    /// interfaces are described at its beginning. In a compressed file no record reaches over two
    /// compressed frames.
    pub apart: bool,
    /// End of the capture file: clean, padded or torn.
    pub end: FileEnd,
    /// Flows of the capture file, in the order of their first frames.
    #[serde(with = "packed")]
    pub flows: Vec<IndexFlow>,
    /// Blocks of the index: parts of the capture file, in file order.
    pub blocks: Vec<IndexBlock>,
    /// Operator's marks in the capture file, in file order.
    pub marks: Vec<IndexMark>,
}

/// Block of an index: part of a capture file, as a run of complete records; in a compressed file,
/// of complete compressed frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IndexBlock {
    /// Byte offset of the index block's start in the capture file.
    pub start: u64,
    /// Byte offset of the index block's end in the capture file.
    pub end: u64,
    /// Earliest timestamp in the index block, in nanoseconds since 1970.
    pub first_ns: u64,
    /// Latest timestamp in the index block, in nanoseconds since 1970.
    pub last_ns: u64,
    /// Number of records in the index block.
    pub frames: u64,
    /// Number of frames that the capture lost before frames of this index block, by the records'
    /// option epb_dropcount. `None`: the format has no such counts.
    pub lost: Option<u64>,
    /// Numbers of the index block's flows, ascending: positions in [`CaptureIndex::flows`].
    #[serde(with = "packed")]
    pub flows: Vec<u32>,
    /// Set when the index block has flows beyond the index's limit.
    pub others: bool,
}

/// Times and counts of a capture file, without its flows. They stand before the index in its file, so
/// that a store with thousands of files is known without reading whole indexes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IndexTimes {
    /// Version of the index layout.
    pub(super) version: u32,
    /// Length and modification time of the capture file that the index was built from.
    pub(super) stamp: FileStamp,
    /// Parts of the capture file, in file order: at most 64.
    pub parts: Vec<IndexPart>,
    /// Operator's marks in the capture file, in file order: at most 1024.
    pub marks: Vec<IndexMark>,
}

/// Times and counts of a part of a capture file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexPart {
    /// Earliest timestamp of the part, in nanoseconds since 1970.
    pub first_ns: u64,
    /// Latest timestamp of the part, in nanoseconds since 1970.
    pub last_ns: u64,
    /// Number of frames.
    pub frames: u64,
    /// Number of bytes in the capture file.
    pub bytes: u64,
    /// Number of frames that the capture lost before frames of the part; 0 if the format has no such
    /// counts.
    pub lost: u64,
}

impl IndexTimes {
    /// Sums up an index.
    pub(super) fn of(index: &CaptureIndex) -> Self {
        let blocks = &index.blocks;
        let together = blocks.len().div_ceil(MOST_PARTS).max(1);
        let parts = blocks.chunks(together).map(|blocks| IndexPart {
            first_ns: blocks.iter().map(|it| it.first_ns).min().unwrap_or(0),
            last_ns: blocks.iter().map(|it| it.last_ns).max().unwrap_or(0),
            frames: blocks.iter().map(|it| it.frames).sum(),
            bytes: blocks.iter().map(|it| it.end - it.start).sum(),
            lost: blocks.iter().filter_map(|it| it.lost).sum(),
        });
        Self {
            version: VERSION,
            stamp: index.stamp,
            parts: parts.collect(),
            marks: index.marks.clone(),
        }
    }
}

impl CaptureIndex {
    /// Decodes an index from CBOR, without its checksum. `None`: the bytes are not an index.
    #[must_use]
    pub fn decode(body: &[u8]) -> Option<Self> {
        ciborium::from_reader(body).ok()
    }

    /// Returns the parts of the capture file that may hold frames of `times` (end exclusive) that
    /// match `terms`: byte ranges in ascending order, with adjacent parts joined. The first range
    /// is the beginning that all parts need ([`CaptureIndex::head`]). If no part matches, the
    /// result is empty.
    #[must_use]
    pub fn select(&self, times: &Range<u64>, terms: &FlowTerms) -> Vec<Range<u64>> {
        let wanted: Vec<bool> = self.flows.iter().map(|flow| terms.allows(flow)).collect();
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
        // In a compressed file the first block includes the head.
        if parts.first().is_some_and(|first| first.start > 0) {
            parts.insert(0, 0..self.head);
        }
        parts
    }
}
