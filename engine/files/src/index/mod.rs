//! A small index beside each finished file: which times and flows are in which part of it.
//!
//! ```text
//! finished file -> build -> CaptureIndex -> <index_dir>/<place of the file in its folder>.cbor
//! expression -> FlowTerms -> what a flow must be for a frame of it to be accepted -> the blocks that can hold one
//! flows, terms -> IndexKey -> the same for whoever has a set of a block's keys in place of its flows
//! ```
//!
//! An index is CBOR (RFC 8949), so that other programs can read it too; it has a checksum, and names the length and the
//! modification time of its file.
//!
//! May import: [`crate::format`], [`crate::read`], [`crate::name`], [`crate::folder`].
//!
//! Invariants: an index only leaves out what cannot be wanted. One that is damaged or older than its file does not count.

mod build;
mod flow;
mod keys;
mod layout;
mod store;
mod terms;

pub use build::{build, head_len};
pub use flow::IndexFlow;
pub use keys::IndexKey;
pub use layout::{CaptureIndex, IndexBlock, IndexMark, MARK};
pub use store::IndexFolder;
pub use terms::FlowTerms;
