//! What the writer leaves behind: its files, and what went wrong.

use crate::{EncryptionReport, PinnedFiles, post::hook::HookReport};
use serde::Serialize;
use std::time::Instant;
use wqcap_files::file_list::FileList;

/// Failures reported in full; more are counted.
const MOST_FAILURES: usize = 16;
/// Notes reported; more are in the log.
const MOST_NOTES: usize = 16;

/// What the writer leaves behind.
#[derive(Debug, Default)]
pub struct Finished {
    /// Complete files that are still there, in name order.
    pub files: FileList,
    /// Old files deleted, and their bytes; `None`: nothing is ever deleted.
    pub deleted: Option<Deleted>,
    /// What pins hold of the files; `None`: nothing is ever deleted.
    pub pinned: Option<PinnedFiles>,
    /// What was encrypted; `None`: nothing was to be.
    pub encryption: Option<EncryptionReport>,
    /// How the hooks went; `None`: there are none.
    pub hooks: Option<HookReport>,
    /// When the last of its files was complete; what follows finished files may go on for longer.
    pub synced: Option<Instant>,
    /// What could not be written, a line each.
    pub failures: Vec<String>,
    /// What a reader of the files should know: when there was no room.
    pub notes: Vec<String>,
}

/// How much was deleted to keep within limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, derive_more::AddAssign)]
pub struct Deleted {
    /// Files, of this run or earlier ones.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of the files that `wqcap ship` had not shipped; without `[ship]` none.
    pub unshipped: u64,
    /// Frames of those, as far as they had been counted.
    pub unshipped_frames: u64,
}

impl Finished {
    pub(super) fn absorb(&mut self, other: Self) {
        self.files.absorb(other.files);
        self.failures.extend(other.failures);
        self.notes.extend(other.notes);
    }

    pub(super) fn note(&mut self, note: String) {
        if self.notes.len() < MOST_NOTES {
            self.notes.push(note);
        }
    }

    pub(super) fn fail(&mut self, failure: String) {
        tracing::error!("{failure}");
        if self.failures.len() < MOST_FAILURES {
            self.failures.push(failure);
        } else if self.failures.len() == MOST_FAILURES {
            self.failures
                .push("further failures to write are in the log".into());
        }
    }
}
