//! The thread that indexes files as they are finished, behind everything else.
//!
//! It reads each file back: the frames have left the writer's memory by then, and parsing them on their way would cost
//! the capture. Indexes that it has no time for are built by whoever needs them first.

use crossbeam_channel::{Receiver, Sender};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use wqcap_core::{error::ResourceError, sync::thread::Follower, text::counted};
use wqcap_files::index::IndexFolder;

/// How long the end of a run waits for the thread, which others on the same cores may leave no time.
const BEHIND: Duration = Duration::from_secs(1);
/// How long it then makes the indexes that are left itself, with its own priority.
const PATIENCE: Duration = Duration::from_secs(4);
/// Finished files that wait for their index at most; others are left to `wqcap extract`.
const WAITING: usize = 4096;
/// Between two searches for indexes whose files were deleted to make room.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// The least urgent there is: nice(2).
const IDLE: i32 = 19;

/// The running thread.
pub(super) struct Indexer {
    folder: PathBuf,
    dir: PathBuf,
    /// Gives the files that were left without an index.
    follower: Follower<Vec<PathBuf>>,
}

impl Indexer {
    /// Starts the thread, for a folder that is there. The finished files of `dir` are sent to the channel that
    /// comes with it; the thread ends when its sender is gone.
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
            Follower::start("wqcap-index", move |ended| index(&to, &of, &waiting, ended))?;
        let it = Self {
            folder,
            dir,
            follower,
        };
        Ok((it, files))
    }

    /// Takes a little time for what is still to be done; `missed` files never came. The sender must be gone.
    pub(super) fn finish(self, missed: u64) {
        let mut left = self.follower.finish(BEHIND).unwrap_or_default();
        let until = Instant::now() + PATIENCE;
        let indexes = IndexFolder {
            folder: &self.folder,
            dir: &self.dir,
        };
        left.retain(|file| !is_settled(&indexes, file, || Instant::now() < until));
        let without = missed + left.len() as u64;
        if without > 0 {
            tracing::warn!(
                "{} without an index yet: indexing did not keep up; `wqcap extract` builds those it needs",
                counted(without, "file")
            );
        }
    }
}

/// Builds a file's index; false: `go_on` said no.
fn is_settled(indexes: &IndexFolder<'_>, file: &Path, go_on: impl Fn() -> bool) -> bool {
    match indexes.build(file, go_on) {
        Ok(Some(_)) => {}
        Ok(None) => return false,
        // It was deleted to make room, before its turn.
        Err(_) if !file.exists() => drop(fs::remove_file(indexes.path_of(file))),
        Err(e) => tracing::warn!("{}: no index: {e}", file.display()),
    }
    true
}

/// Gives the files that were left without an index.
fn index(folder: &Path, dir: &Path, files: &Receiver<PathBuf>, ended: &AtomicBool) -> Vec<PathBuf> {
    // On Linux this is the thread's own.
    if let Err(e) = rustix::process::setpriority_process(None, IDLE) {
        tracing::debug!("the indexer keeps its priority: {e}");
    }
    let indexes = IndexFolder { folder, dir };
    let sweep = || {
        if let Err(e) = indexes.sweep() {
            tracing::warn!("{}: old indexes stay: {e}", folder.display());
        }
        Instant::now() + SWEEP_EVERY
    };
    let mut left = Vec::new();
    let mut next_sweep = sweep();
    for file in files {
        if !is_settled(&indexes, &file, || !ended.load(Ordering::Relaxed)) {
            left.push(file);
        }
        if Instant::now() >= next_sweep {
            next_sweep = sweep();
        }
    }
    sweep();
    left
}
