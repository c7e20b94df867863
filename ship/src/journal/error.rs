//! Errors of a journal.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Reason why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file of the journal cannot be read or written.
    #[error("ship.journal: {}: {source}", .path.display())]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// A file of the journal has invalid content.
    #[error(
        "ship.journal: {}: {problem}; move the file away; its content is then sent again",
        .path.display()
    )]
    Unsound {
        /// Path of the invalid file.
        path: PathBuf,
        /// Description of the invalid content.
        problem: String,
    },
    /// The journal belongs to another sensor or store.
    #[error(
        "ship.journal = {:?}: belongs to {of}; name another directory for {wanted}",
        .dir.display()
    )]
    Foreign {
        /// Folder of the journal.
        dir: PathBuf,
        /// Sensor and store that the journal belongs to.
        of: String,
        /// Sensor and store of this process.
        wanted: String,
    },
    /// Another process uses the journal.
    #[error(
        "ship.journal = {:?}: in use by another `wqcap ship`; stop that process, or name another directory",
        .dir.display()
    )]
    Busy {
        /// Folder of the journal.
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
