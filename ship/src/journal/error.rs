//! Why a journal cannot be used.

use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read, or not be written.
    #[error("ship.journal: {}: {source}", .path.display())]
    Io {
        /// What was read or written.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It holds something else.
    #[error(
        "ship.journal: {}: {problem}; move the file away, and what it is about is sent again",
        .path.display()
    )]
    Unsound {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// It is of another sensor or store.
    #[error(
        "ship.journal = {:?}: is of {of}; name another directory for {wanted}",
        .dir.display()
    )]
    Foreign {
        /// The journal.
        dir: PathBuf,
        /// Whose it is.
        of: String,
        /// Whose it should be.
        wanted: String,
    },
    /// Another process writes it.
    #[error(
        "ship.journal = {:?}: another `wqcap ship` uses it; end that one first, or give each its own",
        .dir.display()
    )]
    Busy {
        /// The journal.
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
