//! Captures to replay: hundreds of real files, well formed and malformed, from the folder
//! `../shared/pcaps` next to the repository, or generated files if that folder is absent.

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

/// Minimum length in bytes of a frame on a wire: an Ethernet header.
pub const SHORTEST: usize = 14;

/// Set of capture files to replay.
pub struct Captures {
    /// Capture files, sorted by name.
    pub files: Vec<PathBuf>,
    /// `true` if the files are real captures, `false` if they are generated.
    pub real: bool,
    /// Folder of the generated files; dropped with this value.
    _dir: Option<Dir>,
}

impl Captures {
    /// Lists the real captures, or generates files if the folder is absent.
    ///
    /// # Panics
    /// Panics if the folder exists and cannot be read.
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

    /// Returns the records of all files.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let all = self.files.iter();
        all.flat_map(|it| files::read_as_it_stands(it)).collect()
    }

    /// Calls `check` for each file, in two threads per core, and reports all files that fail. A
    /// capture waits most of its time, for the disk and for the ends of processes and threads.
    ///
    /// # Panics
    /// Panics if `check` panics for any file.
    #[track_caller]
    pub fn each(&self, check: impl Fn(&Path) + Sync) {
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let workers = 2 * thread::available_parallelism().map_or(1, usize::from);
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
            "{} captures failed, see the panics above; the first are {:#?}",
            failed.len(),
            &failed[..failed.len().min(20)]
        );
    }

    /// Writes the frames of all files that a wire can carry to one capture in `dir`. Returns its
    /// path and the frames.
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
            "NOTE no folder ../shared/pcaps: generated captures are replayed instead of real ones",
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

/// Fuzzed capture that is damaged after its first record: tcpdump and tshark read the zeros that
/// follow as 38 frames of 1970 and of 2106, and wqcap reports a hole. A test of its own reads it.
pub const DAMAGED: &str = "bgp_vpn_rt-oobr.pcap";

/// Returns the captures of a folder except [`DAMAGED`], sorted by name.
fn listed(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("a folder lists").path())
        .collect();
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "pcap")
            && !path.ends_with(DAMAGED)
    });
    files.sort();
    assert!(!files.is_empty(), "{} has no captures", folder.display());
    files
}
