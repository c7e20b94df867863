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
use wqcap_files::index::IndexFolder;

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

/// Handle of the indexing thread.
pub(super) struct Indexer {
    /// Directory of the capture files' indexes.
    folder: PathBuf,
    /// Directory of the indexed capture files.
    dir: PathBuf,
    /// Indexing thread, which returns the files left without an index.
    follower: BoundedThread<Vec<PathBuf>>,
}

impl Indexer {
    /// Starts the indexing thread. `folder` must exist. The finished files of `dir` are sent to the
    /// returned channel; the thread ends when the sender is dropped.
    pub(super) fn start(
        folder: &Path,
        dir: &Path,
    ) -> Result<(Self, Sender<PathBuf>), ResourceError> {
        fs::read_dir(folder).map_err(|source| ResourceError::File {
            what: "output.index_dir",
            path: folder.display().to_string(),
            source,
        })?;
        let (files, waiting) = crossbeam_channel::bounded(WAITING);
        let (folder, dir) = (folder.to_owned(), dir.to_owned());
        let (to, of) = (folder.clone(), dir.clone());
        let follower =
            BoundedThread::start("wqcap-index", move |ended| index(&to, &of, &waiting, ended))?;
        let it = Self {
            folder,
            dir,
            follower,
        };
        Ok((it, files))
    }

    /// Builds the remaining file indexes for at most [`BEHIND`] and [`PATIENCE`]. `missed` is the
    /// number of files that were not sent to the indexing thread. The sender must be dropped
    /// before.
    pub(super) fn finish(self, missed: u64) {
        let mut left = self.follower.finish(BEHIND).unwrap_or_default();
        let until = Instant::now() + PATIENCE;
        let indexes = IndexFolder {
            folder: &self.folder,
            dir: &self.dir,
        };
        left.retain(|file| !build_index(&indexes, file, || Instant::now() < until));
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

/// Builds the index of a capture file. Returns `false` if `may_continue` stopped it; a failure is
/// logged.
fn build_index(indexes: &IndexFolder<'_>, file: &Path, may_continue: impl Fn() -> bool) -> bool {
    match indexes.build(file, may_continue) {
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
fn index(folder: &Path, dir: &Path, files: &Receiver<PathBuf>, ended: &AtomicBool) -> Vec<PathBuf> {
    // On Linux this sets the priority of the calling thread only.
    if let Err(e) = rustix::process::setpriority_process(None, IDLE) {
        tracing::debug!("cannot lower the indexer's priority: {e}");
    }
    let indexes = IndexFolder { folder, dir };
    let sweep = || {
        if let Err(e) = indexes.sweep() {
            tracing::warn!("cannot delete old indexes in {}: {e}", folder.display());
        }
        Instant::now() + SWEEP_EVERY
    };
    let mut left = Vec::new();
    let mut next_sweep = sweep();
    for file in files {
        if !build_index(&indexes, &file, || !ended.load(Ordering::Relaxed)) {
            left.push(file);
        }
        if Instant::now() >= next_sweep {
            next_sweep = sweep();
        }
    }
    sweep();
    left
}
