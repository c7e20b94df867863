//! Holds on the files of a folder: what a pin holds is not deleted by retention.
//!
//! ```text
//! <folder of capture files>/.wqcap-pins/<ID>.json: times, filter, reason
//! pins, finished files -> first records, indexes -> the files that can hold such frames
//! ```
//!
//! Pins stand in the folder whose files they hold: whoever may look at the files reads them there, a capture in its sandbox
//! as well. What is held is what `extract` would read for the same times and filter.
//!
//! May import: [`crate::extract`], [`crate::index`], [`crate::folder`], [`crate::read`].
//!
//! Invariants: what cannot be told is held. A pin that is torn, unreadable or too much holds every file, and so does a file
//! of which nobody knows how far it reaches. A pin is written whole, or not at all.

mod held;
mod lock;
mod store;

pub use held::{HeldFile, Holder};
pub use lock::FolderLock;
pub use store::{MOST_PINS, PinError, PinFolder, Pins, UnsoundPin};

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What is held, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// From this time on, in nanoseconds since 1970.
    pub from_ns: u64,
    /// Up to and without this one.
    pub to_ns: u64,
    /// Frames of this expression; empty: every frame.
    pub filter: String,
    /// What for, in one line.
    pub reason: String,
    /// When it was made, in nanoseconds since 1970.
    pub made_ns: u64,
}

impl Pin {
    /// The longest reason and the longest filter, in bytes.
    pub const LONGEST: usize = 4096;

    /// The times it holds.
    #[must_use]
    pub fn times(&self) -> Range<u64> {
        self.from_ns..self.to_ns
    }

    /// What is wrong with it, if anything is.
    fn problem(&self) -> Option<String> {
        if self.from_ns >= self.to_ns {
            return Some("its beginning must be before its end".into());
        }
        if self.reason.trim().is_empty() {
            return Some("it must have a reason".into());
        }
        let texts = [("reason", &self.reason), ("filter", &self.filter)];
        texts.into_iter().find_map(|(what, text)| {
            if text.len() > Self::LONGEST {
                let (len, most) = (text.len(), Self::LONGEST);
                return Some(format!(
                    "its {what} has {len} bytes, and {most} at most are allowed"
                ));
            }
            // It is shown on terminals, and a line is a line.
            let odd = text.chars().any(char::is_control);
            odd.then(|| format!("its {what} must be one line of text"))
        })
    }
}
