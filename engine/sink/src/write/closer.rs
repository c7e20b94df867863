//! Closer thread: truncates complete files to their whole records, syncs and renames them. It also
//! syncs open files periodically. The thread is separate from the writer because a sync may take long
//! and must not delay blocks.

use crate::{
    block::{FileLedger, FrameTally},
    post::{CloseNotifier, retention::FinishedBy},
    write::{
        disk_policy::{DiskError, ShutdownDeadline},
        finished::WriterReport,
        named::{NamedFile, SyncFailure, ToSync},
        naming::NameCandidates,
    },
};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::{
    io, mem,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
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

/// Pause between two attempts to give complete files their names on a full disk.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum number of complete files without names. Above it no further task is begun, so that the
/// descriptors of such files are bounded.
const MOST_UNNAMED: usize = 64;

/// Runs the thread that syncs and closes capture files until all senders of tasks are dropped. After
/// `deadline` it no longer waits for a full disk.
pub(super) fn close(
    tasks: &Receiver<CloserTask>,
    failed: &Alarm,
    notifier: &CloseNotifier,
    files: FileList,
    deadline: &ShutdownDeadline,
) -> WriterReport {
    let mut closer = Closer {
        failed,
        notifier,
        deadline,
        finished: WriterReport {
            files,
            ..WriterReport::default()
        },
        unnamed: Vec::new(),
        tried: Instant::now(),
    };
    loop {
        let task = match closer.unnamed.len() {
            0 => tasks.recv().map_err(RecvTimeoutError::from),
            1..MOST_UNNAMED => tasks.recv_timeout(PAUSE),
            _ => {
                thread::sleep(PAUSE);
                Err(RecvTimeoutError::Timeout)
            }
        };
        match task {
            Ok(CloserTask::Sync(order)) => {
                let done = order.sync().map(|()| None).map_err(CloserFailure::Sync);
                closer.report(None, done);
            }
            Ok(CloserTask::Close(file)) => closer.close(file, true),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if closer.tried.elapsed() >= PAUSE {
            closer.close_unnamed();
        }
    }
    // The writer has ended, and with it the run.
    deadline.begin(Instant::now());
    while !closer.unnamed.is_empty() {
        thread::sleep(PAUSE);
        closer.close_unnamed();
    }
    closer.finished
}

/// State of the thread that syncs and closes capture files.
struct Closer<'t> {
    failed: &'t Alarm,
    notifier: &'t CloseNotifier,
    deadline: &'t ShutdownDeadline,
    finished: WriterReport,
    /// Complete files whose folder has no room for their names, because the disk is full.
    unnamed: Vec<ClosingFile>,
    /// Time of the last attempt to name these files.
    tried: Instant,
}

impl Closer<'_> {
    /// Closes a complete file. If the disk has no room for its name, it is kept for a later attempt;
    /// the log has the first of such files, of those that are `new`.
    fn close(&mut self, file: ClosingFile, new: bool) {
        let done = file.close();
        match &done {
            Err(e) if e.waits_for_room() && !self.deadline.has_passed(Instant::now()) => {
                if new && self.unnamed.is_empty() {
                    tracing::warn!("{e} until the disk has room");
                }
                self.unnamed.push(file);
            }
            _ => {
                file.count(done.is_ok());
                let frames = Some(file.tally.frames);
                self.report(frames, done.map_err(CloserFailure::Close));
            }
        }
    }

    /// Closes again the files that have no names yet.
    fn close_unnamed(&mut self) {
        for file in mem::take(&mut self.unnamed) {
            self.close(file, false);
        }
        self.tried = Instant::now();
    }

    /// Reports the outcome of a task: a file with its number of frames, or a failure.
    fn report(&mut self, frames: Option<u64>, done: Result<Option<PathBuf>, CloserFailure>) {
        match done {
            Ok(None) => {}
            Ok(Some(path)) => {
                let by = FinishedBy::ThisRun { frames };
                self.notifier.publish(&path, by);
                // A file that is still to be encrypted is listed under its encrypted name.
                if !self.notifier.seals() {
                    self.finished.files.push(&path);
                }
            }
            Err(failure) => {
                self.finished.fail(failure);
                self.failed.raise();
            }
        }
    }
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

impl CloseFailure {
    /// Returns `true` if only the file's new name failed, because the disk has no room for it.
    fn waits_for_room(&self) -> bool {
        match self {
            Self::Finish { step, source, .. } => {
                *step == "rename" && DiskError::from(source) == DiskError::NoSpace
            }
            Self::Remove { .. } => false,
        }
    }
}

/// Capture file to close, which gets no more write blocks.
pub(super) struct ClosingFile {
    pub(super) named: NamedFile,
    /// Number of bytes of whole frame records in the file.
    pub(super) len: u64,
    /// Number of frames in the file's whole records, and the number of their bytes.
    pub(super) tally: FrameTally,
    /// Latest time stamp of the file's frame records in nanoseconds since 1970; 0: unknown.
    pub(super) last_ns: u64,
    /// Counters of the queues whose frames are in the file.
    pub(super) ledger: FileLedger,
}

impl ClosingFile {
    /// Counts the file's frames as kept or as lost, although [`crate::recover`] may still find lost
    /// ones.
    pub(super) fn count(&self, is_kept: bool) {
        match is_kept {
            true => self.ledger.count_kept(&self.tally),
            false => self.ledger.count_lost(&self.tally),
        }
    }

    /// Truncates, syncs and renames the capture file, or removes it if it is empty. After a failure
    /// this can be repeated.
    pub(super) fn close(&self) -> Result<Option<PathBuf>, CloseFailure> {
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
        // clock that was ahead may have been set back. Not every file system lets its times be set.
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
