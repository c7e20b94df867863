//! Merges capture files into one by time: files of queues, of ports, of rotations, or of any other
//! origin.
//!
//! ```text
//! files -> MergePlan: streams (the files of one queue, in the order of their first records), ports
//! streams -> the earliest record of all -> output: a file under a temporary name -> its final name
//! ```
//!
//! May import: [`crate::format`], [`crate::read`], [`crate::name`], [`crate::folder`].
//!
//! Invariants: a merge is one pass. Memory is bounded by the number of streams that overlap in
//! time, not by the files. A file is open only while its records are merged. Every readable record
//! is written, also one that is out of order. Irregularities are counted and never corrected
//! silently. The output appears complete under its name, or not at all. A file of a folder that
//! cannot be read does not prevent the merge of the others.

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
pub use inputs::{
    FolderRemarks, files_and_folders, in_folder_or_file, kind_in_folder, linked_twice,
};
pub use plan::{MergePlan, OutputLimits};
pub use run::{VisitedRecord, run, visit};
pub use summary::{InputFacts, InterfaceFacts, Lateness, MergeError, MergeSummary};
pub use target::MergeTarget;

pub(crate) use ports::PortLink;
pub(crate) use run::{RecordSelection, run_selected};

#[cfg(test)]
mod tests;
