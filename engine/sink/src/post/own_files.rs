//! Which files of a folder are a capture's, where their names do not tell: those that this run has finished, and those of
//! earlier runs that have such a name and say of themselves that they are.
//!
//! Invariant: what this run has not finished, and what does not say so, is somebody else's.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};
use wqcap_files::{
    folder::FolderTree,
    name::{FileName, NameTemplate, unsealed},
    read::origin::is_capture,
    sealed::Content,
};

/// Which file that is. An inode may be used again: the time of the last write tells the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileId {
    device: u64,
    inode: u64,
    written_ns: i128,
}

impl FileId {
    fn of(metadata: &fs::Metadata) -> Self {
        let seconds = i128::from(metadata.mtime()) * 1_000_000_000;
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            written_ns: seconds + i128::from(metadata.mtime_nsec()),
        }
    }
}

/// A capture's file.
pub(super) struct OwnFile {
    pub(super) path: PathBuf,
    pub(super) len: u64,
    /// Its number among those of this run, after those of earlier runs by when they were written last: the lowest is the
    /// oldest.
    pub(super) age: (u64, u64),
    /// When it was written last.
    pub(super) written: SystemTime,
}

/// When a file was written last; the beginning of time where that is not known.
pub(super) fn written(metadata: &fs::Metadata) -> SystemTime {
    metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Whose a file is.
#[derive(Clone, Copy)]
enum Whose {
    Somebodys,
    /// An earlier run's.
    Earlier,
    /// This run's, so many-th from 1.
    Ours(u64),
}

/// What is known of the files of a folder.
pub(super) struct OwnFiles {
    template: NameTemplate,
    known: Mutex<HashMap<FileId, Whose>>,
    finished: AtomicU64,
}

impl OwnFiles {
    /// Of files that are named so.
    pub(super) fn new(template: NameTemplate) -> Self {
        Self {
            template,
            known: Mutex::default(),
            finished: AtomicU64::new(0),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<FileId, Whose>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This run has finished it.
    pub(super) fn add(&self, path: &Path) {
        if let Ok(metadata) = fs::symlink_metadata(path) {
            let number = self.finished.fetch_add(1, Ordering::Relaxed) + 1;
            self.known()
                .insert(FileId::of(&metadata), Whose::Ours(number));
        }
    }

    /// Those in a folder, and as far below it as the template has folders.
    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<OwnFile>> {
        let before: Vec<_> = self.known().keys().copied().collect();
        let (mut own, mut there) = (Vec::new(), HashSet::new());
        for path in FolderTree::list(dir, self.template.folders())?.paths {
            // It may be gone by now, and a link's target is somebody else's.
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            if !metadata.is_file()
                || !is_named(&self.template, path.strip_prefix(dir).unwrap_or(&path))
            {
                continue;
            }
            let id = FileId::of(&metadata);
            there.insert(id);
            let known = self.known().get(&id).copied();
            let whose = known.unwrap_or_else(|| {
                let whose = if Content::open(&path).is_ok_and(is_capture) {
                    Whose::Earlier
                } else {
                    Whose::Somebodys
                };
                // It may have been finished meanwhile.
                *self.known().entry(id).or_insert(whose)
            });
            let number = match whose {
                Whose::Somebodys => continue,
                Whose::Earlier => 0,
                Whose::Ours(number) => number,
            };
            own.push(OwnFile {
                path,
                len: metadata.len(),
                age: (number, u64::try_from(id.written_ns).unwrap_or(0)),
                written: written(&metadata),
            });
        }
        let mut known = self.known();
        for gone in before.iter().filter(|it| !there.contains(it)) {
            known.remove(gone);
        }
        Ok(own)
    }
}

/// Whether a finished file of this template may be at this place in its folder.
pub(super) fn is_named(template: &NameTemplate, place: &Path) -> bool {
    place.to_str().is_some_and(|name| {
        let name = unsealed(name);
        FileName::ENDINGS.iter().any(|ending| {
            let stem = name
                .strip_suffix(ending)
                .and_then(|it| it.strip_suffix('.'));
            stem.is_some_and(|stem| template.matches(stem))
        })
    })
}
