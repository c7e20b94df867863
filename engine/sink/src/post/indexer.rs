//! Thread that indexes finished files, at the lowest priority.
//!
//! The thread reads each file back: the frames have left the writer's memory by then, and parsing them
//! during capture would slow the capture down. An index that the thread has no time for is built by the
//! first command that needs it.

use crossbeam_channel::{Receiver, Sender};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use wqcap_core::{error::ResourceError, sync::thread::BoundedThread, text::counted};
use wqcap_files::{index::IndexFolder, sealed::SecretKey};

/// Longest wait at the end of a run for the indexing thread, which may get little CPU time.
const BEHIND: Duration = Duration::from_secs(1);
/// Time at the end of a run for building the remaining file indexes at normal priority.
const PATIENCE: Duration = Duration::from_secs(4);
/// Maximum number of finished files that wait for their index. `wqcap extract` builds the indexes of
/// further files.
const WAITING: usize = 4096;
/// Interval between two searches for indexes whose capture files were deleted.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Lowest priority of nice(2), at which the indexing thread runs.
const IDLE: i32 = 19;

/// Directories of the capture files and of their indexes, and the key of encrypted capture files.
#[derive(Clone)]
struct IndexedFiles {
    folder: PathBuf,
    dir: PathBuf,
    key: Option<SecretKey>,
}

/// Handle of the indexing thread.
pub(super) struct Indexer {
    files: IndexedFiles,
    /// Indexing thread, which returns the files left without an index.
    follower: BoundedThread<Vec<PathBuf>>,
}

impl Indexer {
    /// Starts the indexing thread. `folder` must exist; `key` opens encrypted files. The finished
    /// files of `dir` are sent to the returned channel; the thread ends when the sender is dropped.
    pub(super) fn start(
        folder: &Path,
        dir: &Path,
        key: Option<SecretKey>,
    ) -> Result<(Self, Sender<PathBuf>), ResourceError> {
        fs::read_dir(folder).map_err(|source| ResourceError::File {
            what: "output.index_dir",
            path: folder.display().to_string(),
            source,
        })?;
        let (sender, waiting) = crossbeam_channel::bounded(WAITING);
        let files = IndexedFiles {
            folder: folder.to_owned(),
            dir: dir.to_owned(),
            key,
        };
        let indexed = files.clone();
        let follower =
            BoundedThread::start("wqcap-index", move |ended| indexed.follow(&waiting, ended))?;
        Ok((Self { files, follower }, sender))
    }

    /// Builds the remaining file indexes for at most [`BEHIND`] and [`PATIENCE`]. `missed` is the
    /// number of files that were not sent to the indexing thread. The sender must be dropped
    /// before.
    pub(super) fn finish(self, missed: u64) {
        let mut left = self.follower.finish(BEHIND).unwrap_or_default();
        let until = Instant::now() + PATIENCE;
        left.retain(|file| !self.files.build_index(file, || Instant::now() < until));
        let without = missed + left.len() as u64;
        if without > 0 {
            tracing::warn!(
                "{} without an index at the end of the run: indexing did not keep up; `wqcap extract` builds the \
                 indexes that it needs",
                counted(without, "file")
            );
        }
    }
}

impl IndexedFiles {
    fn indexes(&self) -> IndexFolder<'_> {
        IndexFolder {
            folder: &self.folder,
            dir: &self.dir,
        }
    }

    /// Builds the index of a capture file. Returns `false` if `may_continue` stopped it; a failure
    /// is logged.
    fn build_index(&self, file: &Path, may_continue: impl Fn() -> bool) -> bool {
        let indexes = self.indexes();
        match indexes.build(file, self.key.as_ref(), may_continue) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            // The file was deleted by retention meanwhile.
            Err(_) if !file.exists() => drop(fs::remove_file(indexes.path_of(file))),
            Err(e) => tracing::warn!(
                "cannot build the index of {}: {e}; `wqcap extract` tries again",
                file.display()
            ),
        }
        true
    }

    /// Runs the indexing thread. Returns the files left without an index.
    fn follow(&self, files: &Receiver<PathBuf>, ended: &AtomicBool) -> Vec<PathBuf> {
        // On Linux this sets the priority of the calling thread only.
        if let Err(e) = rustix::process::setpriority_process(None, IDLE) {
            tracing::debug!("cannot lower the indexer's priority: {e}");
        }
        let sweep = || {
            if let Err(e) = self.indexes().sweep() {
                let folder = self.folder.display();
                tracing::warn!("cannot delete old indexes in {folder}: {e}");
            }
            Instant::now() + SWEEP_EVERY
        };
        let mut left = Vec::new();
        let mut next_sweep = sweep();
        for file in files {
            if !self.build_index(&file, || !ended.load(Ordering::Relaxed)) {
                left.push(file);
            }
            if Instant::now() >= next_sweep {
                next_sweep = sweep();
            }
        }
        sweep();
        left
    }
}
