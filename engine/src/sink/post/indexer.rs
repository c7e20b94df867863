//! The thread that indexes files as they are finished, behind everything else.
//!
//! It reads each file back: the frames have left the writer's memory by then, and parsing them on their way would cost
//! the capture. Indexes that it has no time for are built by whoever needs them first.

use crate::{Error, sync::thread::Follower, text::counted};
use crossbeam_channel::{Receiver, Sender};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use wqcap_files::index::IndexFolder;

/// How long the end of a run waits for indexes.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two searches for indexes whose files were deleted to make room.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// The least urgent there is: nice(2).
const IDLE: i32 = 19;

/// The running thread.
pub(super) struct Indexer(Follower<u64>);

impl Indexer {
    /// Starts the thread, for a folder that is there. The finished files of `dir` are sent to the channel that
    /// comes with it; the thread ends when its sender is gone.
    pub(super) fn start(folder: &Path, dir: &Path) -> Result<(Self, Sender<PathBuf>), Error> {
        fs::read_dir(folder).map_err(|source| Error::File {
            what: "output.index_dir",
            path: folder.display().to_string(),
            source,
        })?;
        let (files, waiting) = crossbeam_channel::unbounded();
        let (folder, dir) = (folder.to_owned(), dir.to_owned());
        let follower = Follower::start("wqcap-index", move |ended| {
            index(&folder, &dir, &waiting, ended)
        })?;
        Ok((Self(follower), files))
    }

    /// Waits a little for what is still to be done. The sender must be gone.
    pub(super) fn finish(self) {
        let left = self.0.finish(PATIENCE).unwrap_or(0);
        if left > 0 {
            tracing::warn!(
                "{} without an index yet: indexing did not keep up; `wqcap extract` builds those it needs",
                counted(left, "file")
            );
        }
    }
}

/// Gives how many files were left without an index.
fn index(folder: &Path, dir: &Path, files: &Receiver<PathBuf>, ended: &AtomicBool) -> u64 {
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
    let mut left = 0;
    let mut next_sweep = sweep();
    for file in files {
        match indexes.build(&file, || !ended.load(Ordering::Relaxed)) {
            Ok(Some(_)) => {}
            Ok(None) => left += 1,
            // It was deleted to make room, before its turn.
            Err(_) if !file.exists() => drop(fs::remove_file(indexes.path_of(&file))),
            Err(e) => tracing::warn!("{}: no index: {e}", file.display()),
        }
        if Instant::now() >= next_sweep {
            next_sweep = sweep();
        }
    }
    sweep();
    left
}
