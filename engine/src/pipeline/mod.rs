//! What becomes of a frame between ring and file: two shapes behind one seam.
//!
//! ```text
//! inline   loop: poll -> stage -> sink                                         -> repost
//! fanout   loop: poll -> deal out -> channel -> parser: stage -> resequencer -> sink -> channel -> loop: repost
//!                               \-> channel -> parser: stage -/
//! ```
//!
//! The seam is [`Consumer`]: whoever takes frames implements it, and does not see which shape calls it.
//!
//! At most half of a queue's slots are with its parsers, an equal share with each, so that the NIC always has the other half.
//! What is costly about a frame (filter, repetitions, slicing, whatever a consumer does) is done side by side; the copy into
//! the file's block is made at the resequencer, by one parser at a time and in the order of reception. The price: a parser
//! that falls behind holds up the file of its queue, and thereby the slots of the others. Without a file nothing waits.
//!
//! May import: [`crate::rx`], [`crate::filter`], [`crate::stats`]; sinks and stages see only the seam.
//!
//! Invariants: a slot is with the loop, in one work batch, or nowhere; the pool is whole when a loop has ended. A frame
//! is counted before its slot goes home. A filter changes between two batches, for all parsers of a queue at once.

mod fanout;
mod inline;
mod parser;
pub mod reduce;
mod resequencer;
mod source;
mod work_batch;

pub(crate) use fanout::{Fanout, FanoutAttr};
pub(crate) use inline::Inline;
pub use parser::ParserCpu;
pub(crate) use source::{Made, Source, ToSink};
pub use wqcap_core::consumer::{Consumer, ConsumerPlace, Fcs, Frame, Judge, Verdict};
