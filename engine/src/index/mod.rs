//! A small index beside each finished file: what times and which flows are in which part of it.
//!
//! ```text
//! finished file -> build, in a thread of its own -> Index -> <index_dir>/<name of the file>.cbor
//! expression -> Terms -> what a flow must be for a frame of it to be accepted -> the blocks that can hold one
//! ```
//!
//! An index is CBOR (RFC 8949), so that other programs read it too; a checksum stands around it, and it names the length
//! and the modification time of its file.
//!
//! May import: [`crate::reader`], [`crate::name`].
//!
//! Invariants: an index never costs a frame: it is made beside the capture and only leaves out what cannot be wanted.
//! One that is damaged or older than its file is none.

mod build;
mod flow;
mod indexer;
mod store;
mod terms;

pub use build::{build, head};
pub use flow::Flow;
pub use store::{fresh, made, path_of};
pub use terms::Terms;

pub(crate) use indexer::Indexer;

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The layout's number. An index of another layout is none.
const VERSION: u32 = 2;
/// Bytes of a file that are told apart, about.
const BLOCK: u64 = 1 << 20;
/// Flows told apart in a file. Blocks with others are looked through whatever is sought.
const MOST_FLOWS: usize = 1 << 16;

/// What is in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// The layout's number.
    version: u32,
    /// The file as it was when it was read.
    stamp: Stamp,
    /// Bytes before the first record, in a compressed file those of its first frame: what must be read before any other
    /// part makes sense.
    pub head: u64,
    /// Frames in the file.
    pub frames: u64,
    /// The file's parts can be read apart: it has one section, and all its interfaces stand at its beginning; if it is
    /// compressed, no record reaches over two frames.
    pub apart: bool,
    /// The flows, in the order of their first frames.
    pub flows: Vec<Flow>,
    /// The parts, in the order of the file.
    pub blocks: Vec<Block>,
}

/// By what a file is known again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    len: u64,
    modified_s: i64,
    modified_ns: i64,
}

/// A run of whole records; in a compressed file, of whole frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
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
    /// Numbers of the flows in it, ascending: places in [`Index::flows`].
    pub flows: Vec<u32>,
    /// There are flows in it that the index has no room for.
    pub others: bool,
}

impl Index {
    /// The parts of the file that can hold frames of `times` (from, up to and without) that fulfil `terms`: byte
    /// ranges, ascending, neighbours joined. What they need to make sense comes with them ([`Index::head`]), if there are
    /// any.
    #[must_use]
    pub fn select(&self, times: &Range<u64>, terms: &Terms) -> Vec<Range<u64>> {
        let wanted: Vec<bool> = self.flows.iter().map(|flow| terms.allow(flow)).collect();
        let has = |block: &Block| {
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
