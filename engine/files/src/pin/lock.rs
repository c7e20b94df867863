//! Lock of a capture folder, taken to create pins (which protect capture files from deletion) and
//! to delete files. While a pin is created, no file of the folder is deleted.

use crate::folder::open::{open_folder, try_lock};
use std::{
    fs::{File, TryLockError},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Maximum time to wait for the lock of a capture folder. Processes hold the lock for less time,
/// and none can block pins or retention for longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between attempts to take the lock of a capture folder.
const TICK: Duration = Duration::from_millis(5);

/// Exclusive lock of a capture folder: while it exists, no other process pins or deletes files.
#[derive(Debug)]
pub struct FolderLock {
    _folder: File,
}

impl FolderLock {
    /// Waits up to 5 s for the lock of a capture folder. Returns `None` if another process keeps
    /// it, or the file system does not support such locks.
    #[must_use]
    pub fn take(dir: &Path) -> Option<Self> {
        let folder = open_folder(dir).ok()?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match try_lock(&folder) {
                Ok(()) => return Some(Self { _folder: folder }),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(TICK),
                Err(_) => return None,
            }
        }
    }
}
