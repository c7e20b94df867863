//! Content of the index of a capture file, and of the items of an index file.

use super::{flow::IndexFlow, packed, terms::FlowTerms};
use crate::{extract::times::is_in, folder::FileStamp, read::FileEnd};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Version of the index layout. Indexes of another version are ignored.
pub(super) const VERSION: u32 = 6;
/// Prefix of the comment of a record that holds an operator's mark.
pub const MARK: &str = "mark ";
/// Maximum number of operator's marks in the index of a capture file.
pub(super) const MOST_MARKS: usize = 1024;
/// Maximum number of parts of a capture file in the summary of its index.
const MOST_PARTS: usize = 64;

/// Mark that an operator set in a running capture, as the index lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IndexMark {
    /// Timestamp of the record whose comment is the mark, in nanoseconds since 1970.
    pub ns: u64,
    /// ID and text of the operator's mark.
    pub text: String,
}

/// Index of a capture file: the times and flows of each part of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaptureIndex {
    /// Version of the layout of the index.
    pub(super) version: u32,
    /// Length and modification time of the capture file that the index was built from.
    pub(super) stamp: FileStamp,
    /// Number of bytes before the capture file's first record; in a compressed file, bytes of its
    /// first compressed frame. They must be read before any other part.
    pub head: u64,
    /// Number of frames in the capture file.
    pub frames: u64,
    /// `true` if parts of the capture file can be read separately: it has one section, and all
    /// interfaces are described at its beginning. In a compressed file no record reaches over two
    /// compressed frames.
    pub apart: bool,
    /// End of the capture file: clean, padded or torn.
    pub end: FileEnd,
    /// Flows of the capture file, in the order of their first frames.
    pub flows: Vec<IndexFlow>,
    /// Blocks of the index: parts of the capture file, in file order.
    pub blocks: Vec<IndexBlock>,
    /// Marks that an operator set in the capture, in the order of the file.
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
    /// Number of records (frames) in the index block.
    pub frames: u64,
    /// Number of frames that the capture lost before frames of this index block, from the option
    /// epb_dropcount of the records. `None`: the format has no such counts.
    pub lost: Option<u64>,
    /// Numbers of the index block's flows, ascending: positions in [`CaptureIndex::flows`].
    #[serde(with = "packed")]
    pub flows: Vec<u32>,
    /// `true` if the index block has flows that are not in the list, because it has its maximum
    /// length.
    pub others: bool,
}

/// Facts of a capture file without its flows: the first item of its index file, so that a store with
/// thousands of files is known without reading whole indexes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IndexSummary {
    /// Version of the layout of the index.
    pub(super) version: u32,
    /// Length and modification time of the capture file that the index was built from.
    pub(super) stamp: FileStamp,
    /// Number of bytes before the capture file's first record, as [`CaptureIndex::head`].
    pub head: u64,
    /// Number of frames in the capture file, as [`CaptureIndex::frames`].
    pub frames: u64,
    /// `true` if parts of the capture file can be read separately, as [`CaptureIndex::apart`].
    pub apart: bool,
    /// End of the capture file (clean, padded or torn), as [`CaptureIndex::end`].
    pub end: FileEnd,
    /// `true` if an index block has flows that are not in the index, because it has its maximum
    /// length.
    pub others: bool,
    /// Times and counts of the parts of the capture file, in file order: at most 64 parts.
    pub parts: Vec<IndexPart>,
    /// Operator's marks in the capture file, in file order: at most 1024.
    pub marks: Vec<IndexMark>,
}

/// Times and counts of a part of a capture file, in the summary of its index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexPart {
    /// Earliest timestamp in the part of the capture file, in nanoseconds since 1970.
    pub first_ns: u64,
    /// Latest timestamp in the part of the capture file, in nanoseconds since 1970.
    pub last_ns: u64,
    /// Number of frames in this part of the capture file.
    pub frames: u64,
    /// Length in bytes of the part of the capture file.
    pub bytes: u64,
    /// Number of frames that the capture lost before frames of the part; 0 if the format has no such
    /// counts.
    pub lost: u64,
}

/// Parts of a capture file that its index selects for a query.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexSelection {
    /// Byte ranges of the capture file to be read, as [`CaptureIndex::select`] returns them.
    pub ranges: Vec<Range<u64>>,
    /// `true` if parts of the capture file can be read separately, as [`CaptureIndex::apart`].
    pub apart: bool,
    /// End of the capture file (clean, padded or torn), as [`CaptureIndex::end`].
    pub end: FileEnd,
}

impl IndexSummary {
    /// Creates the summary of the index of a capture file.
    pub(super) fn of(index: &CaptureIndex) -> Self {
        Self {
            version: index.version,
            stamp: index.stamp,
            head: index.head,
            frames: index.frames,
            apart: index.apart,
            end: index.end,
            others: index.blocks.iter().any(|it| it.others),
            parts: parts(&index.blocks),
            marks: index.marks.clone(),
        }
    }

    /// Returns `true` if the times and counts of the summary do not contradict each other. Another
    /// summary is of a damaged index.
    pub(super) fn is_sound(&self) -> bool {
        total(self.parts.iter().map(|it| it.frames)) == self.frames
            && self.parts.iter().all(|it| it.first_ns <= it.last_ns)
            && self.head <= self.stamp.len
    }

    /// Returns `true` if `blocks` are in the order of the capture file, within it, and those that
    /// the summary describes. Other blocks are of a damaged index.
    pub(super) fn describes(&self, blocks: &[IndexBlock]) -> bool {
        let len = self.stamp.len;
        let mut at = 0;
        let in_order = blocks.iter().all(|it| {
            let follows = at <= it.start && it.start <= it.end && it.first_ns <= it.last_ns;
            at = it.end;
            follows
        });
        in_order && at <= len && self.parts == parts(blocks)
    }

    /// Creates an index from the three items of its file: this summary, the flows and the blocks.
    pub(super) fn with(self, flows: Vec<IndexFlow>, blocks: Vec<IndexBlock>) -> CaptureIndex {
        CaptureIndex {
            version: self.version,
            stamp: self.stamp,
            head: self.head,
            frames: self.frames,
            apart: self.apart,
            end: self.end,
            flows,
            blocks,
            marks: self.marks,
        }
    }

    /// Returns `true` if the capture file may have frames of `times` (end exclusive).
    pub(super) fn reaches(&self, times: &Range<u64>) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|it| is_in(&(0..times.end), it.first_ns) && it.last_ns >= times.start)
    }
}

/// Returns the times and counts of a capture file's parts for the summary of its index.
fn parts(blocks: &[IndexBlock]) -> Vec<IndexPart> {
    let together = blocks.len().div_ceil(MOST_PARTS).max(1);
    let part = |blocks: &[IndexBlock]| IndexPart {
        first_ns: blocks.iter().map(|it| it.first_ns).min().unwrap_or(0),
        last_ns: blocks.iter().map(|it| it.last_ns).max().unwrap_or(0),
        frames: total(blocks.iter().map(|it| it.frames)),
        bytes: total(blocks.iter().map(|it| it.end.saturating_sub(it.start))),
        lost: total(blocks.iter().filter_map(|it| it.lost)),
    };
    blocks.chunks(together).map(part).collect()
}

/// Returns the sum of counts, at most `u64::MAX`.
fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

impl CaptureIndex {
    /// Decodes an index from the contents of its file's three items in a row, without their
    /// checksums. Returns `None` if the bytes are not an index.
    #[must_use]
    pub fn decode(mut items: &[u8]) -> Option<Self> {
        let summary: IndexSummary = ciborium::from_reader(&mut items).ok()?;
        let flows: ciborium::Value = ciborium::from_reader(&mut items).ok()?;
        let flows = packed::unpack(&flows.into_bytes().ok()?)?;
        Some(summary.with(flows, ciborium::from_reader(&mut items).ok()?))
    }

    /// Returns the parts of the capture file that may hold frames of `times` (end exclusive) and of
    /// flows that `terms` allow: byte ranges in ascending order, with adjacent parts joined. The
    /// first range is the beginning that all parts need ([`CaptureIndex::head`]). If no part
    /// matches, the result is empty.
    #[must_use]
    pub fn select(&self, times: &Range<u64>, terms: &FlowTerms) -> Vec<Range<u64>> {
        let wanted: Vec<bool> = self.flows.iter().map(|flow| terms.allows(flow)).collect();
        select(&self.blocks, self.head, times, &wanted)
    }

    /// Returns the parts of the capture file that [`CaptureIndex::select`] returns, with the facts
    /// that are needed to read them.
    pub(crate) fn selection(&self, times: &Range<u64>, terms: &FlowTerms) -> IndexSelection {
        IndexSelection {
            ranges: self.select(times, terms),
            apart: self.apart,
            end: self.end,
        }
    }
}

/// Returns the parts of a capture file that may hold frames of `times` of the flows whose entries
/// in `wanted` are `true`: see [`CaptureIndex::select`].
pub(super) fn select(
    blocks: &[IndexBlock],
    head: u64,
    times: &Range<u64>,
    wanted: &[bool],
) -> Vec<Range<u64>> {
    let has = |block: &IndexBlock| {
        let of = |n: &u32| wanted.get(*n as usize).copied().unwrap_or(true);
        block.others || block.flows.iter().any(of)
    };
    let mut parts: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        let in_time = is_in(&(0..times.end), block.first_ns) && block.last_ns >= times.start;
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
        parts.insert(0, 0..head);
    }
    parts
}
