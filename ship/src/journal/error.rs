//! Errors of a journal.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Reason why a delivery journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file of the delivery journal cannot be read or written.
    #[error("ship.journal: {}: {source}", .path.display())]
    Io {
        /// Path of the journal's file or folder.
        path: PathBuf,
        /// Error of the system call on the journal's file.
        source: io::Error,
    },
    /// A file of the delivery journal has invalid content.
    #[error(
        "ship.journal: {}: {problem}; move this journal file away; the files that it records are then sent again",
        .path.display()
    )]
    Unsound {
        /// Path of the invalid journal file.
        path: PathBuf,
        /// Description of what is invalid in the journal file.
        problem: String,
    },
    /// The delivery journal belongs to another sensor or store.
    #[error(
        "ship.journal = {:?}: the journal belongs to {of}; name another directory for {wanted}",
        .dir.display()
    )]
    Foreign {
        /// Folder of the journal that belongs to another sensor or store.
        dir: PathBuf,
        /// Sensor and store that the journal belongs to.
        of: String,
        /// Sensor and store of the process that opens the journal.
        wanted: String,
    },
    /// Another `wqcap ship` process uses the delivery journal.
    #[error(
        "ship.journal = {:?}: the journal is in use by another `wqcap ship`; stop that process, or name another directory",
        .dir.display()
    )]
    Busy {
        /// Folder of the journal in use.
        dir: PathBuf,
    },
}

impl JournalError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.into(),
            source,
        }
    }
}
