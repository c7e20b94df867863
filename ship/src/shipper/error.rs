//! Errors of shipping: of the start, of a pass, of a folder, of one file.

use super::LeaseRefusal;
use crate::{
    journal::JournalError,
    store::{StoreError, StoreOpenError},
};
use parquet::errors::ParquetError;
use std::{
    io,
    path::{Path, PathBuf},
};
use wqcap_files::{merge::MergeError, read::ReadError};

/// Reason why `wqcap ship` ships no files, or not all of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShipError {
    /// The object store to ship to cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreOpenError),
    /// The delivery journal cannot be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A folder of the capture cannot be listed for the dry run of shipping.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The threads that send files to the store cannot be started.
    #[error("cannot start the shipping threads: {0}")]
    Threads(#[source] io::Error),
    /// A pass of shipping failed after shipping had started.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// Another instance ships under the sensor's name, or the store is another directory.
    #[error(transparent)]
    Taken(#[from] LeaseRefusal),
}

impl ShipError {
    /// Returns `true` if a later start with the same configuration may succeed: shipping had started
    /// before it failed, no thread could be started, the journal is in use or its disk fails, or the
    /// directory of the store is not there.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Pass(_) | Self::Taken(_) | Self::Threads(_) => true,
            Self::Journal(e) => matches!(e, JournalError::Io { .. } | JournalError::Busy { .. }),
            Self::Store(e) => e.is_of_folder(),
            Self::Folder(_) => false,
        }
    }
}

/// Reason why a pass of shipping ends, or why a file is deferred.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// A store operation failed in the pass of shipping.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The delivery journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A folder of the capture cannot be used; the pass of shipping ends.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The Parquet table of a file's blocks cannot be encoded; the pass of shipping ends.
    #[error("{}: cannot encode the table of the file's blocks: {source}", .path.display())]
    Blocks {
        /// Path of the capture file whose table of blocks cannot be encoded.
        path: PathBuf,
        /// Error of the Parquet encoder for the table.
        source: ParquetError,
    },
    /// One file cannot be sent to the store; it is deferred, and the other files are sent.
    #[error(transparent)]
    File(#[from] UnshippedFile),
}

/// Folder of the capture that cannot be used for shipping.
#[derive(Debug, thiserror::Error)]
#[error("{key} = {:?}: {problem}", .dir.display())]
pub struct FolderError {
    key: &'static str,
    dir: PathBuf,
    #[source]
    problem: FolderProblem,
}

/// Reason why a folder of the capture cannot be used for shipping.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FolderProblem {
    #[error(transparent)]
    Io(io::Error),
    #[error("cannot read the list of deleted files: {0}")]
    ExpiredList(#[source] io::Error),
    #[error("the directory was replaced by another one while it was listed")]
    Replaced,
    /// The directory is not the one that the journal refers to. The value is the path of the
    /// journal's file `dirs.json`, which identifies directories.
    #[error(
        "the directory is another one than before and has no file that the journal records; is its file system mounted? If \
         those files are deleted for good, remove {}: they then count as expired_unshipped unless they were shipped",
        .0.display()
    )]
    Other(PathBuf),
}

impl FolderProblem {
    /// Adds the folder, and the configuration key that names it, to the reason.
    pub(super) fn of(self, key: &'static str, dir: &Path) -> FolderError {
        FolderError {
            key,
            dir: dir.into(),
            problem: self,
        }
    }
}

/// File that cannot be shipped in this pass, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", .path.display())]
pub struct UnshippedFile {
    path: PathBuf,
    #[source]
    reason: UnshippedReason,
}

/// Reason why a file cannot be shipped in this pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnshippedReason {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the file became shorter while it was sent")]
    Shorter,
    #[error("the file was changed while it was sent")]
    ChangedWhileSent,
    #[error("the file changed while it was read")]
    ChangedWhileRead,
    #[error(
        "the file was deleted before its frames were counted; set output.index_dir to have them counted earlier"
    )]
    DeletedUncounted,
    #[error("cannot make the anonymized copy of the file: {0}")]
    Copy(#[from] CopyError),
}

impl UnshippedReason {
    /// Adds the path of the unshipped file to the reason.
    pub(super) fn of(self, path: &Path) -> UnshippedFile {
        UnshippedFile {
            path: path.into(),
            reason: self,
        }
    }
}

/// Reason why an anonymized copy of a capture file cannot be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Anonymize(#[from] MergeError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Blocks(#[from] ParquetError),
    #[error("the anonymized copy of the file changed while its index was built")]
    Changed,
    #[error("the anonymized copy has {has} frames, but the capture file has {of} frames")]
    Frames { has: u64, of: u64 },
}
