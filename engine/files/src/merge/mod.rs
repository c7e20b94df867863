//! Merges capture files into one, by time: the files of queues, of ports, of rotations, or anybody's.
//!
//! ```text
//! files -> MergePlan: streams (the files of one queue, in the order of their first records), ports
//! streams -> the earliest record of all -> output: a file under a temporary name -> its own name
//! ```
//!
//! May import: [`crate::format`], [`crate::read`], [`crate::name`], [`crate::folder`].
//!
//! Invariants: one pass, memory bounded by the streams that overlap in time, not by the files; a file is open only from
//! its first record's turn to its last. Every record that can be read is written, also one that comes too late; what is
//! odd is counted and never corrected in silence. The output appears whole, under its name, or not at all.

mod gaps;
mod inputs;
mod output;
mod plan;
mod ports;
mod run;
mod stream;
mod summary;
mod target;

pub use gaps::GapFacts;
pub use inputs::in_folder;
pub use plan::MergePlan;
pub use run::run;
pub use summary::{InputFacts, InterfaceFacts, Lateness, MergeError, MergeSummary};
pub use target::MergeTarget;

pub(crate) use run::{RecordSelection, run_selected};

#[cfg(test)]
mod tests;
