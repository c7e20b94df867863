//! Index of a finished file: times and flows of each part of the file.
//!
//! ```text
//! finished file -> build -> CaptureIndex -> <index_dir>/<path of the file in its folder>.cbor
//! expression -> FlowTerms -> necessary conditions on a flow -> blocks that may match
//! flows, terms -> IndexKey -> the same test on a set of a block's keys, without its flows
//! ```
//!
//! An index file is a sequence of three CBOR items (RFC 8742), so that other programs can read it: a
//! summary with the length and the modification time of the capture file, the flows, and the blocks.
//! Each has a checksum. A reader stops after the first items where they exclude the file.
//!
//! May import: [`crate::format`], [`crate::read`], [`crate::name`], [`crate::folder`],
//! [`crate::sealed`].
//!
//! Invariants: an index only excludes parts that cannot match. A damaged index, or one older than
//! its file, is ignored.

mod build;
mod flow;
mod keys;
mod layout;
mod packed;
mod store;
mod terms;

pub use build::{build, head_len};
pub use flow::IndexFlow;
pub use keys::IndexKey;
pub use layout::{
    CaptureIndex, IndexBlock, IndexMark, IndexPart, IndexSelection, IndexSummary, MARK,
};
pub use store::{ENDING, IndexFolder};
pub use terms::FlowTerms;
