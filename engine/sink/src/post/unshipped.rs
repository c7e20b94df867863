//! What retention deletes before `wqcap ship` has shipped it: noted for the delivery ledger, with its frames.
//!
//! Invariant: nobody waits for a note. A file whose note cannot be written goes all the same, and that is told.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use wqcap_files::{
    folder::{
        FileStamp,
        delivery::{expired_read, is_shipped},
        expired::{ExpiredFile, ExpiredList},
    },
    index::IndexFolder,
};

/// Frames of the files that this run has finished.
#[derive(Clone, Debug, Default)]
pub(super) struct FrameCounts(Arc<Mutex<HashMap<PathBuf, u64>>>);

impl FrameCounts {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file has so many.
    pub(super) fn enter(&self, file: &Path, frames: u64) {
        self.lock().insert(file.to_owned(), frames);
    }

    /// Forgets the files that are gone, if there are many more counts than files.
    pub(super) fn forget_gone(&self, files: usize) {
        let mut counts = self.lock();
        if counts.len() > 2 * files + 1024 {
            counts.retain(|file, _| file.exists());
        }
    }
}

/// What is known of files on their way to a store.
pub(super) struct Delivery {
    pub(super) journal: PathBuf,
    pub(super) index_dir: Option<PathBuf>,
    pub(super) counts: FrameCounts,
    /// Opened for the first file that goes unshipped.
    pub(super) list: Option<ExpiredList>,
}

impl Delivery {
    /// Whether a file is still to be shipped.
    pub(super) fn is_unshipped(&self, path: &Path) -> bool {
        !is_shipped(&self.journal, path)
    }

    /// Deletes a file of a folder that was not shipped, and notes it; gives its frames, if anybody has counted them.
    pub(super) fn remove_unshipped(&mut self, dir: &Path, path: &Path) -> io::Result<Option<u64>> {
        let Some(expired) = self.expired(dir, path) else {
            return fs::remove_file(path).map(|()| None);
        };
        if self.list.is_none() {
            match ExpiredList::open(dir, expired_read(&self.journal)) {
                Ok(list) => self.list = Some(list),
                Err(e) => tell_unlisted(path, &e),
            }
        }
        let removed = match &mut self.list {
            Some(list) => list.remove(path, &expired),
            None => fs::remove_file(path),
        };
        match removed {
            // It is gone, but its line could not be written.
            Err(e) if e.kind() != io::ErrorKind::NotFound && !path.exists() => {
                tell_unlisted(path, &e);
            }
            removed => removed?,
        }
        self.counts.lock().remove(path);
        Ok(expired.frames)
    }

    /// A file as the ledger is to know it.
    fn expired(&self, dir: &Path, path: &Path) -> Option<ExpiredFile> {
        let counted = self.counts.lock().get(path).copied();
        let indexed = || {
            let folder = self.index_dir.as_deref()?;
            let (index, _) = IndexFolder { folder, dir }.load(path)?;
            Some(index.frames)
        };
        Some(ExpiredFile {
            file: path.file_name()?.to_str()?.to_owned(),
            stamp: FileStamp::read(path).ok()?,
            frames: counted.or_else(indexed),
        })
    }
}

fn tell_unlisted(path: &Path, e: &io::Error) {
    let path = path.display();
    tracing::error!(
        "{path}: the delivery ledger of `wqcap ship` lacks its frames, since that could not be noted: {e}"
    );
}
