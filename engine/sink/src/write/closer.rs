//! Gives files their end: cut to their whole records, synced, named. Before that, syncs what there is of them now and
//! then. A thread of its own, since a sync may take long and blocks must not wait for it.

use crate::{
    block::{Ledger, Tally},
    post::{CloseNotifier, retention::FinishedBy},
    write::{
        finished::Finished,
        named::{Named, ToSync},
        naming::Names,
    },
};
use crossbeam_channel::Receiver;
use std::{
    io,
    path::{Path, PathBuf},
};
use wqcap_core::sync::wakeup::Alarm;
use wqcap_files::{file_list::FileList, folder::rename_new};

/// What the closer is asked for.
pub(super) enum CloserTask {
    /// To sync a file that stays open.
    Sync(ToSync),
    /// To give a file its end.
    Leave(ClosingFile),
}

/// The thread: runs until nobody can ask it for anything.
pub(super) fn close(
    tasks: &Receiver<CloserTask>,
    failed: &Alarm,
    notifier: &CloseNotifier,
    files: FileList,
) -> Finished {
    let mut finished = Finished {
        files,
        ..Finished::default()
    };
    for task in tasks {
        let mut frames = None;
        let done = match task {
            CloserTask::Sync(order) => order.sync().map(|()| None),
            CloserTask::Leave(file) => {
                frames = Some(file.tally.frames);
                file.finish()
            }
        };
        match done {
            Ok(None) => {}
            Ok(Some(path)) => {
                notifier.publish(&path, FinishedBy::ThisRun { frames });
                // A file that is still to be encrypted is listed by its next name.
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

/// Gives a file its final name, or the next free one of the others.
fn free_name(part: &Path, path: &Path, others: &Names) -> io::Result<PathBuf> {
    for to in std::iter::once(path.to_owned()).chain(others.clone()) {
        match rename_new(part, &to) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
            Ok(()) if to == path => return Ok(to),
            Ok(()) => {
                let (taken, to_shown) = (path.display(), to.display());
                tracing::warn!("another program has made {taken}: the file is {to_shown}");
                return Ok(to);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// A file that gets no more blocks.
pub(super) struct ClosingFile {
    pub(super) named: Named,
    /// Bytes that are whole records.
    pub(super) len: u64,
    /// What is in them, and where that is counted.
    pub(super) tally: Tally,
    pub(super) ledger: Ledger,
}

impl ClosingFile {
    /// Cuts, syncs and names the file; an empty one goes. What is in no finished file counts as lost, though
    /// [`crate::recover`] may find it yet.
    pub(super) fn finish(self) -> Result<Option<PathBuf>, String> {
        let finished = self.close();
        match &finished {
            Ok(_) => self.ledger.kept(&self.tally),
            Err(_) => self.ledger.lost(&self.tally),
        }
        finished
    }

    fn close(&self) -> Result<Option<PathBuf>, String> {
        let Named {
            file,
            part,
            path,
            others,
            ..
        } = &self.named;
        if self.len == 0 {
            return std::fs::remove_file(part)
                .map(|()| None)
                .map_err(|e| format!("cannot remove the empty {}: {e}", part.display()));
        }
        let told = |what: &str, e: io::Error| {
            format!("cannot {what} {}: {e}; it keeps that name", part.display())
        };
        let trusted = self.named.check(self.len);
        trusted.map_err(|e| told("trust", e))?;
        file.set_len(self.len).map_err(|e| told("cut", e))?;
        file.sync_all().map_err(|e| told("sync", e))?;
        let path = free_name(part, path, others).map_err(|e| told("rename", e))?;
        self.named.sync_folders();
        Ok(Some(path))
    }
}
