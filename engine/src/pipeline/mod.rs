//! Path of frames from ring to file, in one of three modes behind a common trait.
//!
//! ```text
//! inline   loop: poll -> stage -> sink                                         -> repost
//! paired   loop: poll all ports -> merge by time stamp -> stage -> sink        -> repost
//! fanout   loop: poll -> distribute -> channel -> parser: stage -> resequencer -> sink -> channel -> loop: repost
//!                                 \-> channel -> parser: stage -/
//! ```
//!
//! The trait is [`Consumer`]: stages and sinks implement it, and do not depend on the mode that
//! calls them.
//!
//! Parsers hold at most half of a queue's slots, an equal share each, so that the NIC always has
//! the other half. The costly work on a frame (filter, deduplication, slicing, consumers) runs in
//! parallel. The copy into the file's block is made at the resequencer, by one parser at a time and
//! in the order of reception. The price is that a slow parser delays the file of its queue, and
//! with it the slots of the other parsers. Without a file, parsers do not wait for each other.
//!
//! May import: [`crate::rx`], [`crate::filter`], [`crate::stats`]; sinks and stages depend only on
//! [`Consumer`].
//!
//! Invariants:
//!
//! - A slot is with the loop or in one work batch. The pool is complete when a loop has ended.
//! - A frame is counted before its slot returns to the loop.
//! - A filter changes between two batches, for all parsers of a queue at the same batch.

mod fanout;
mod inline;
mod paired;
mod parser;
pub mod reduce;
mod resequencer;
mod source;
mod work_batch;

pub(crate) use fanout::{Fanout, FanoutAttr};
pub(crate) use inline::Inline;
pub(crate) use paired::Paired;
pub use parser::ParserCpu;
pub(crate) use source::{ConsumerSource, PerThread, ToSink};
pub use wqcap_core::consumer::{Consumer, ConsumerPlace, Fcs, Frame, Judge, Verdict};
