//! Closer thread: truncates complete files to their whole records, syncs and renames them. It also
//! syncs open files periodically. The thread is separate from the writer because a sync may take long
//! and must not delay blocks.

use crate::{
    block::{FileLedger, FrameTally},
    post::{CloseNotifier, retention::FinishedBy},
    write::{
        finished::WriterReport,
        named::{NamedFile, SyncFailure, ToSync},
        naming::NameCandidates,
    },
};
use crossbeam_channel::Receiver;
use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use wqcap_core::{sync::wakeup::Alarm, time::system_ns};
use wqcap_files::{
    extract::SLACK_NS,
    folder::{file_list::FileList, rename_new},
};

/// Task for the thread that syncs and closes capture files.
pub(super) enum CloserTask {
    /// Task to sync a capture file that stays open.
    Sync(ToSync),
    /// Task to close a complete capture file.
    Close(ClosingFile),
}

/// Runs the thread that syncs and closes capture files until all senders of tasks are dropped.
pub(super) fn close(
    tasks: &Receiver<CloserTask>,
    failed: &Alarm,
    notifier: &CloseNotifier,
    files: FileList,
) -> WriterReport {
    let mut finished = WriterReport {
        files,
        ..WriterReport::default()
    };
    for task in tasks {
        let mut frames = None;
        let done = match task {
            CloserTask::Sync(order) => order.sync().map(|()| None).map_err(CloserFailure::Sync),
            CloserTask::Close(file) => {
                frames = Some(file.tally.frames);
                file.finish().map_err(CloserFailure::Close)
            }
        };
        match done {
            Ok(None) => {}
            Ok(Some(path)) => {
                notifier.publish(&path, FinishedBy::ThisRun { frames });
                // A file that is still to be encrypted is listed under its encrypted name.
                if !notifier.seals() {
                    finished.files.push(&path);
                }
            }
            Err(failure) => {
                finished.fail(failure);
                failed.raise();
            }
        }
    }
    finished
}

/// Renames a complete capture file to its final name, or to the first free name of `others`.
/// Returns the new name.
fn free_name(part: &Path, path: &Path, others: &NameCandidates) -> io::Result<PathBuf> {
    for to in std::iter::once(path.to_owned()).chain(others.clone()) {
        match rename_new(part, &to) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
            Ok(()) if to == path => return Ok(to),
            Ok(()) => {
                let (taken, to_shown) = (path.display(), to.display());
                tracing::warn!(
                    "another program has created {taken}; the capture file is named {to_shown} instead"
                );
                return Ok(to);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Failure of a task of the thread that syncs and closes capture files.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum CloserFailure {
    Sync(SyncFailure),
    Close(CloseFailure),
}

/// Failure to close a complete capture file.
#[derive(Debug, thiserror::Error)]
pub(super) enum CloseFailure {
    /// A capture file without records cannot be removed.
    #[error("cannot remove the empty capture file {}: {source}", part.display())]
    Remove { part: PathBuf, source: io::Error },
    /// A capture file with records cannot be finished.
    #[error(
        "cannot {step} the capture file {}: {source}; the file keeps its .part name",
        part.display()
    )]
    Finish {
        /// Step that failed: `trust`, `truncate`, `sync` or `rename`.
        step: &'static str,
        part: PathBuf,
        source: io::Error,
    },
}

/// Capture file to close, which gets no more write blocks.
pub(super) struct ClosingFile {
    pub(super) named: NamedFile,
    /// Number of bytes of whole frame records in the file.
    pub(super) len: u64,
    /// Number of frames in the file's whole records, and the number of their bytes.
    pub(super) tally: FrameTally,
    /// Time stamp of the file's last frame record in nanoseconds since 1970; 0: unknown.
    pub(super) last_ns: u64,
    /// Counters of the queues whose frames are in the file.
    pub(super) ledger: FileLedger,
}

impl ClosingFile {
    /// Truncates, syncs and renames the capture file, or removes it if it is empty. If that fails,
    /// the file's frames count as lost, although [`crate::recover`] may still find them.
    pub(super) fn finish(self) -> Result<Option<PathBuf>, CloseFailure> {
        let finished = self.close();
        match &finished {
            Ok(_) => self.ledger.count_kept(&self.tally),
            Err(_) => self.ledger.count_lost(&self.tally),
        }
        finished
    }

    fn close(&self) -> Result<Option<PathBuf>, CloseFailure> {
        let NamedFile {
            file,
            part,
            path,
            others,
            ..
        } = &self.named;
        if self.len == 0 {
            let part = part.clone();
            let removed = std::fs::remove_file(&part).map(|()| None);
            return removed.map_err(|source| CloseFailure::Remove { part, source });
        }
        let failure = |step| {
            let part = part.clone();
            move |source| CloseFailure::Finish { step, part, source }
        };
        self.named.check(self.len).map_err(failure("trust"))?;
        file.set_len(self.len).map_err(failure("truncate"))?;
        // Readers select files by the time of the last write, which should not be before a time stamp. A
        // clock that jumped ahead and was set back begins the next file. Not every file system lets its
        // times be set.
        if self.last_ns > system_ns().saturating_add(SLACK_NS) {
            let last = SystemTime::UNIX_EPOCH + Duration::from_nanos(self.last_ns);
            let _ = file.set_modified(last);
        }
        file.sync_all().map_err(failure("sync"))?;
        let path = free_name(part, path, others).map_err(failure("rename"))?;
        self.named.sync_folders();
        Ok(Some(path))
    }
}
