//! Pins on the capture files of a folder: retention does not delete a file that a pin protects
//! ("holds").
//!
//! ```text
//! <folder of capture files>/.wqcap-pins/<ID>.json: times, filter, reason
//! pins, finished files -> first records, indexes -> the files that may hold matching frames
//! ```
//!
//! Pins are stored in the folder whose files they hold. Every user with access to the files can
//! read them, and so can a capture in its sandbox. A pin holds the files that `extract` would read
//! for the same times and filter.
//!
//! May import: [`crate::extract`], [`crate::index`], [`crate::folder`], [`crate::read`].
//!
//! Invariants: uncertain cases are held. A pin that is torn, unreadable or above the limit holds
//! every file. A file with an unknown end time is held. A pin is written completely, or not at all.

mod held;
mod lock;
mod problem;
mod store;

pub use held::{HeldFile, PinEvaluator};
pub use lock::FolderLock;
pub use problem::{MOST_PINS, PinProblem};
pub use store::{PinError, PinFolder, Pins, UnsoundPin};

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Pin, which protects the capture files with frames of a time range and a filter from deletion,
/// and its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// Start of the pinned time range (inclusive), in nanoseconds since 1970.
    pub from_ns: u64,
    /// End of the pinned time range (exclusive), in nanoseconds since 1970.
    pub to_ns: u64,
    /// Filter expression of the frames whose capture files the pin protects; empty: every frame.
    pub filter: String,
    /// Reason for the pin that the user gave, in one line.
    pub reason: String,
    /// Time at which the pin was created, in nanoseconds since 1970.
    pub made_ns: u64,
}

impl Pin {
    /// Maximum length of a pin's reason and of its filter, in bytes.
    pub const LONGEST: usize = 4096;

    /// Returns the time range whose capture files the pin protects, in nanoseconds since 1970.
    #[must_use]
    pub fn times(&self) -> Range<u64> {
        self.from_ns..self.to_ns
    }

    /// Returns the reason why the pin is invalid; `None`: it is valid.
    fn problem(&self) -> Option<PinProblem> {
        if self.from_ns >= self.to_ns {
            return Some(PinProblem::Times);
        }
        if self.reason.trim().is_empty() {
            return Some(PinProblem::NoReason);
        }
        let texts = [("reason", &self.reason), ("filter", &self.filter)];
        texts.into_iter().find_map(|(field, text)| {
            if text.len() > Self::LONGEST {
                let len = text.len();
                return Some(PinProblem::LongText { field, len });
            }
            // Control characters are refused, because texts of pins are printed on terminals, one
            // per line.
            let odd = text.chars().any(char::is_control);
            odd.then_some(PinProblem::Lines { field })
        })
    }
}
