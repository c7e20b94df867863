//! Recognition of a capture's own files in a directory when their names are not distinctive: the files
//! that this run finished, and files of earlier runs with a matching name whose header identifies them
//! as a capture.
//!
//! Invariant: a file that this run did not finish and whose header does not identify it as a capture is
//! foreign.

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
    sealed::{Content, SecretKey},
};

/// Identity of a file in the output directory. An inode number may be reused; the time of the last
/// write distinguishes the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileId {
    device: u64,
    inode: u64,
    written_ns: i128,
}

impl FileId {
    fn new(metadata: &fs::Metadata) -> Self {
        let seconds = i128::from(metadata.mtime()) * 1_000_000_000;
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            written_ns: seconds + i128::from(metadata.mtime_nsec()),
        }
    }
}

/// Finished file in the output directory that a capture wrote.
pub(super) struct OwnFile {
    pub(super) path: PathBuf,
    pub(super) len: u64,
    /// Number of the capture file among those that this run finished, from 1; 0: another run wrote the
    /// file.
    pub(super) number: u64,
    /// Time of the capture file's last write.
    pub(super) written: SystemTime,
}

/// Returns the time of a file's last write, or the Unix epoch if it is not known.
pub(super) fn written(metadata: &fs::Metadata) -> SystemTime {
    metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Run that wrote a file in the output directory.
#[derive(Clone, Copy)]
enum FileOwner {
    /// The file is not a capture of wqcap.
    Foreign,
    /// An earlier run of wqcap wrote the file.
    Earlier,
    /// This run wrote the file, with the file's number from 1.
    Ours(u64),
}

/// Cache of which run wrote each file in the output directory.
pub(super) struct OwnFiles {
    template: NameTemplate,
    /// Key that opens encrypted capture files, whose content shows that they are captures.
    key: Option<SecretKey>,
    known: Mutex<HashMap<FileId, FileOwner>>,
    /// Number of capture files that this run finished.
    finished: AtomicU64,
}

impl OwnFiles {
    /// Creates an empty cache of capture files named by `template`. `key` opens encrypted files.
    pub(super) fn new(template: NameTemplate, key: Option<SecretKey>) -> Self {
        Self {
            template,
            key,
            known: Mutex::default(),
            finished: AtomicU64::new(0),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<FileId, FileOwner>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a capture file that this run finished.
    pub(super) fn add(&self, path: &Path) {
        if let Ok(metadata) = fs::symlink_metadata(path) {
            let number = self.finished.fetch_add(1, Ordering::Relaxed) + 1;
            self.known()
                .insert(FileId::new(&metadata), FileOwner::Ours(number));
        }
    }

    /// Returns the capture files in a directory and in the subdirectories of the name template.
    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<OwnFile>> {
        let before: Vec<_> = self.known().keys().copied().collect();
        let (mut own, mut there) = (Vec::new(), HashSet::new());
        for path in FolderTree::list(dir, self.template.folder_depth())?.paths {
            // The file may have been deleted meanwhile, and the target of a link is foreign.
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            if !metadata.is_file()
                || !is_named(&self.template, path.strip_prefix(dir).unwrap_or(&path))
            {
                continue;
            }
            let id = FileId::new(&metadata);
            there.insert(id);
            let known = self.known().get(&id).copied();
            let whose = known.unwrap_or_else(|| {
                let whose = if Content::open(&path, self.key.as_ref()).is_ok_and(is_capture) {
                    FileOwner::Earlier
                } else {
                    FileOwner::Foreign
                };
                // This run may have finished the file meanwhile.
                *self.known().entry(id).or_insert(whose)
            });
            let number = match whose {
                FileOwner::Foreign => continue,
                FileOwner::Earlier => 0,
                FileOwner::Ours(number) => number,
            };
            own.push(OwnFile {
                path,
                len: metadata.len(),
                number,
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

/// Returns `true` if `place`, relative to the output directory, is a possible name of a finished
/// capture file under `template`.
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
