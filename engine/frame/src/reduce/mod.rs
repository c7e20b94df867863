//! Reduction of stored data: detection of duplicate frames, and truncation of frames.

pub mod dedup;
mod slice;

pub use slice::{Slice, SliceError};
