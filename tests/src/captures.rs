//! A folder of captures to replay: hundreds of real ones, well formed and malformed, beside the repository, or
//! generated ones where that folder is absent.

use crate::{
    Dir, binaries,
    files::{self, Record},
    frames, skip,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// A wire carries nothing shorter than an Ethernet header.
pub const SHORTEST: usize = 14;

/// Captures to replay.
pub struct Captures {
    /// The files, by name.
    pub files: Vec<PathBuf>,
    /// Whether they are the real ones.
    pub real: bool,
    /// Holds generated files for as long as they are needed.
    _dir: Option<Dir>,
}

impl Captures {
    /// Finds them, or makes some.
    ///
    /// # Panics
    /// When the folder is there and cannot be read.
    #[must_use]
    pub fn find() -> Self {
        let folder = binaries::root().join("../shared/pcaps");
        if folder.is_dir() {
            Self {
                files: listed(&folder),
                real: true,
                _dir: None,
            }
        } else {
            Self::generate()
        }
    }

    /// The records of all of them.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let all = self.files.iter();
        all.flat_map(|it| files::read_as_it_stands(it)).collect()
    }

    /// Hands each to `check`, as many side by side as there are cores, and tells of all that fail, not of the first only.
    ///
    /// # Panics
    /// When `check` panics for one of them.
    #[track_caller]
    pub fn each(&self, check: impl Fn(&Path) + Sync) {
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let workers = thread::available_parallelism().map_or(2, usize::from);
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| {
                    while let Some(file) = self.files.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if catch_unwind(AssertUnwindSafe(|| check(file))).is_err() {
                            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                            failed.push(file);
                        }
                    }
                });
            }
        });
        let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.sort();
        assert!(
            failed.is_empty(),
            "{} captures failed, the panics above say how; the first are {:#?}",
            failed.len(),
            &failed[..failed.len().min(20)]
        );
    }

    /// The frames of all of them that a wire can carry, as one capture in `dir`.
    #[must_use]
    pub fn everything(&self, dir: &Dir) -> (PathBuf, Vec<Vec<u8>>) {
        let frames: Vec<_> = self
            .records()
            .into_iter()
            .map(|it| it.bytes)
            .filter(|it| it.len() >= SHORTEST)
            .collect();
        let file = dir.join("everything.pcap");
        files::write(&file, 1_600_000_000, &frames);
        (file, frames)
    }

    fn generate() -> Self {
        skip::say(
            "NOTE no folder ../shared/pcaps: generated captures are replayed in place of real ones",
        );
        let dir = Dir::new();
        let all = frames::assortment();
        files::write(&dir.join("all.pcap"), 1_600_000_000, &all);
        // Flows of several packets.
        files::write(
            &dir.join("twice.pcap"),
            1_600_000_000,
            &[all.clone(), all.clone()].concat(),
        );
        files::write(&dir.join("none.pcap"), 1_600_000_000, &[]);
        files::write(
            &dir.join("runts.pcap"),
            1_600_000_000,
            &[vec![], vec![1], vec![2; 13], vec![3; 14]],
        );
        for (i, some) in all.chunks(100).enumerate() {
            files::write(&dir.join(format!("some-{i:02}.pcap")), 1_600_000_000, some);
        }
        Self {
            files: listed(dir.path()),
            real: false,
            _dir: Some(dir),
        }
    }
}

fn listed(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("a folder lists").path())
        .collect();
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "pcap")
    });
    files.sort();
    assert!(!files.is_empty(), "{} has no captures", folder.display());
    files
}
