//! Files that retention deletes before `wqcap ship` has shipped them: each is recorded with its
//! number of frames for the delivery ledger of `wqcap ship`.
//!
//! Invariant: retention does not depend on the record. If it cannot be written, the file is deleted
//! nevertheless, and an error is logged.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use wqcap_files::{
    folder::{
        FileStamp,
        delivery::{expired_read, is_shipped},
        expired::{ExpiredFile, ExpiredList},
        held::remove_below,
    },
    index::IndexFolder,
};

/// Number of frames of each capture file that this run finished.
#[derive(Clone, Debug, Default)]
pub(super) struct FrameCounts(Arc<Mutex<HashMap<PathBuf, u64>>>);

impl FrameCounts {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the number of frames of a finished capture file.
    pub(super) fn insert(&self, file: &Path, frames: u64) {
        self.lock().insert(file.to_owned(), frames);
    }

    /// Removes the frame counts of deleted files if there are many more counts than files.
    pub(super) fn forget_gone(&self, files: usize) {
        let mut counts = self.lock();
        if counts.len() > 2 * files + 1024 {
            counts.retain(|file, _| file.exists());
        }
    }
}

/// State of shipping the capture files with `wqcap ship`.
pub(super) struct ShippingState {
    /// Directory of the journal of `wqcap ship`.
    pub(super) journal: PathBuf,
    pub(super) index_dir: Option<PathBuf>,
    pub(super) counts: FrameCounts,
    /// List of capture files deleted unshipped; opened for the first such file.
    pub(super) list: Option<ExpiredList>,
}

impl ShippingState {
    /// Returns `true` if `wqcap ship` has not shipped the capture file yet.
    pub(super) fn is_unshipped(&self, path: &Path) -> bool {
        !is_shipped(&self.journal, path)
    }

    /// Deletes an unshipped capture file of `dir` and records it in the list of such files. Returns
    /// its number of frames if known.
    pub(super) fn remove_unshipped(&mut self, dir: &Path, path: &Path) -> io::Result<Option<u64>> {
        let Some(expired) = self.expired(dir, path) else {
            return remove_below(dir, path).map(|()| None);
        };
        if self.list.is_none() {
            match ExpiredList::open(dir, expired_read(&self.journal)) {
                Ok(list) => self.list = Some(list),
                Err(e) => log_unlisted(path, &e),
            }
        }
        let removed = match &mut self.list {
            Some(list) => list.remove(path, &expired),
            None => remove_below(dir, path),
        };
        match removed {
            // The file is deleted, but its record could not be written.
            Err(e) if e.kind() != io::ErrorKind::NotFound && !path.exists() => {
                log_unlisted(path, &e);
            }
            removed => removed?,
        }
        self.counts.lock().remove(path);
        Ok(expired.frames)
    }

    /// Returns the entry for a deleted unshipped file in the delivery ledger of `wqcap ship`.
    fn expired(&self, dir: &Path, path: &Path) -> Option<ExpiredFile> {
        let counted = self.counts.lock().get(path).copied();
        let indexed = || {
            let folder = self.index_dir.as_deref()?;
            Some(IndexFolder { folder, dir }.load_summary(path)?.frames)
        };
        Some(ExpiredFile {
            file: path.file_name()?.to_str()?.to_owned(),
            stamp: FileStamp::read(path).ok()?,
            frames: counted.or_else(indexed),
        })
    }
}

fn log_unlisted(path: &Path, e: &io::Error) {
    let path = path.display();
    tracing::error!(
        "{path}: cannot record the deletion of the unshipped file: {e}; the delivery ledger of `wqcap ship` lacks its \
         frames"
    );
}
