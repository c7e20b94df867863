//! Index of a finished file: times and flows of each part of the file.
//!
//! ```text
//! finished file -> build -> CaptureIndex -> <index_dir>/<path of the file in its folder>.cbor
//! expression -> FlowTerms -> necessary conditions on a flow -> blocks that may match
//! flows, terms -> IndexKey -> the same test on a set of a block's keys, without its flows
//! ```
//!
//! An index is CBOR (RFC 8949), so that other programs can read it. It contains a checksum, and the
//! length and the modification time of its file.
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
mod store;
mod terms;

pub use build::{build, head_len};
pub use flow::IndexFlow;
pub use keys::IndexKey;
pub use layout::{BlockTimes, CaptureIndex, IndexBlock, IndexMark, IndexTimes, MARK};
pub use store::{ENDING, IndexFolder};
pub use terms::FlowTerms;
