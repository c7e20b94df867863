//! Errors of a journal.

use crate::limits::JOURNAL_FILE;
use std::{
    io,
    path::{Path, PathBuf},
};
use wqcap_files::folder::delivery::{DecodeError, VERSION};

/// Reason why a delivery journal cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A file or folder of the delivery journal cannot be read or written.
    #[error("ship.journal: {}: {source}", .path.display())]
    Io {
        /// Path of the journal's file or folder.
        path: PathBuf,
        /// Error of the system call on the journal's file.
        source: io::Error,
    },
    /// A file of the delivery journal has invalid content.
    #[error(
        "ship.journal: {}: {problem}; move this journal file away; the file of a record is then sent again, and docs/fleet.md says what is lost with ledger.json and dirs.json",
        .path.display()
    )]
    Unsound {
        /// Path of the invalid journal file.
        path: PathBuf,
        /// Reason why the journal file is invalid.
        #[source]
        problem: JournalFileError,
    },
    /// The delivery journal belongs to another sensor or store.
    #[error(
        "ship.journal = {:?}: the journal belongs to the sensor {:?} and the store {:?}; name another directory for the \
         sensor {:?} and the store {:?}",
        .dir.display(), .of.0, .of.1, .wanted.0, .wanted.1
    )]
    Foreign {
        /// Folder of the journal that belongs to another sensor or store.
        dir: PathBuf,
        /// Sensor and store that the journal belongs to.
        of: (String, String),
        /// Sensor and store of the process that opens the journal.
        wanted: (String, String),
    },
    /// Another `wqcap ship` process uses the folder of the delivery journal.
    #[error(
        "ship.journal = {:?}: the journal is in use by another `wqcap ship`; stop that process, or name another directory",
        .dir.display()
    )]
    Busy {
        /// Folder of the delivery journal that another process uses.
        dir: PathBuf,
    },
}

/// Reason why a file of a journal has invalid content.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalFileError {
    /// The journal file has the layout of another version of wqcap.
    #[error("the journal file has version {0}; this wqcap reads version {VERSION}")]
    Version(u32),
    /// The checksum of the journal file is wrong, or the file is not JSON, or lacks values of a
    /// record.
    #[error(transparent)]
    Content(#[from] DecodeError),
    /// The delivery record describes another file than the name of its journal file.
    #[error("the record is that of another file than its name says")]
    OtherFile,
    /// The journal file is a link or a pipe, or longer than the limit.
    #[error(transparent)]
    Unreadable(io::Error),
    /// A delivery record is longer than the limit for a journal file, and is not written.
    #[error("the record has {0} bytes; the limit is {JOURNAL_FILE} bytes")]
    TooLong(usize),
}

impl JournalError {
    /// Returns `true` if the disk of the delivery journal is full; it may have space again later.
    pub(crate) fn is_full(&self) -> bool {
        let Self::Io { source, .. } = self else {
            return false;
        };
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        full.contains(&source.kind())
    }

    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io {
            path: path.into(),
            source,
        }
    }
}
