//! Keeps those who pin files and those who delete them apart: who pins finds all of a folder's files there until the pin is.

use crate::open::open_folder;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    fs::File,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// How long one waits for the other, of those who pin files and those who delete them. Nobody needs as long, and nobody can
/// keep them from their work for longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries.
const TICK: Duration = Duration::from_millis(5);

/// Nobody else makes pins in the folder, or deletes files of it, until it is gone.
#[derive(Debug)]
pub struct FolderLock {
    _folder: File,
}

impl FolderLock {
    /// Waits for it. `None`: somebody does not let go of it, or the file system has no such locks.
    #[must_use]
    pub fn take(dir: &Path) -> Option<Self> {
        let folder = open_folder(dir).ok()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Self { _folder: folder }),
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(TICK),
                Err(_) => return None,
            }
        }
    }
}
