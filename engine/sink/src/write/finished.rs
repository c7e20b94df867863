//! Result of a writer: its files, failures and notes.

use crate::{EncryptionReport, PinnedFiles, post::hook::HookReport};
use serde::Serialize;
use std::{fmt::Display, time::Instant};
use wqcap_files::folder::file_list::FileList;

/// Maximum number of write failures in the writer's report; further ones are only in the log.
const MOST_FAILURES: usize = 16;
/// Maximum number of notes in the writer's report; further ones are only in the log.
const MOST_NOTES: usize = 16;

/// Result of a writer: its files, reports, failures and notes.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct WriterReport {
    /// Complete capture files that still exist, in name order.
    pub files: FileList,
    /// Old capture files that were deleted; `None`: files are never deleted.
    pub deleted: Option<Deleted>,
    /// Number and size of the capture files that pins protect; `None`: files are never deleted.
    pub pinned: Option<PinnedFiles>,
    /// Report on the encryption of files; `None`: files are not encrypted.
    pub encryption: Option<EncryptionReport>,
    /// Report on the hooks of finished files; `None`: no hook is configured.
    pub hooks: Option<HookReport>,
    /// Time at which the run's last file was complete. Processing of finished files may take
    /// longer.
    pub synced: Option<Instant>,
    /// Failures to write capture files, one line each.
    pub failures: Vec<String>,
    /// Notes for readers of the capture files: times at which the disk was full.
    pub notes: Vec<String>,
}

/// Number and size of the capture files that retention deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, derive_more::AddAssign)]
pub struct Deleted {
    /// Number of deleted capture files, of this run or earlier ones.
    pub files: u64,
    /// Number of bytes of the deleted capture files.
    pub bytes: u64,
    /// Number of deleted capture files that `wqcap ship` had not shipped; 0 without `[ship]`.
    pub unshipped: u64,
    /// Number of frames in the deleted unshipped files, as far as they were counted.
    pub unshipped_frames: u64,
}

impl WriterReport {
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

    pub(super) fn fail(&mut self, failure: impl Display) {
        let failure = failure.to_string();
        tracing::error!("{failure}");
        if self.failures.len() < MOST_FAILURES {
            self.failures.push(failure);
        } else if self.failures.len() == MOST_FAILURES {
            self.failures
                .push("further failures to write are in the log".into());
        }
    }
}
