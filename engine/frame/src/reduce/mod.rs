//! What is told of frames to keep less of them: whether one repeats another, and where it is cut.

pub mod dedup;
mod slice;

pub use slice::Slice;
