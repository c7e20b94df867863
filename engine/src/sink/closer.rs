//! Gives files their end: cut to their whole records, synced, named. Before that, syncs what there is of them now and
//! then. A thread of its own, since a sync may take long and blocks must not wait for it.
//!
//! Invariant: an open file is locked (flock) from its creation until it has its final name, so that [`crate::recover`]
//! can tell it from one that a crash left.

use super::{aftercare::News, block::Ledger, drought::is_want_of_room, writer::Finished};
use crate::name::{FileName, PART};
use crossbeam_channel::Receiver;
use std::{
    ffi::OsString,
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// What the closer is asked for.
pub(super) enum Errand {
    /// To sync a file that stays open.
    Sync(ToSync),
    /// To give a file its end.
    Leave(Leaving),
}

/// The thread: runs until nobody can ask it for anything.
pub(super) fn close(errands: &Receiver<Errand>, failed: &AtomicBool, news: &News) -> Finished {
    let mut finished = Finished::default();
    for errand in errands {
        let done = match errand {
            Errand::Sync(order) => order.sync().map(|()| None),
            Errand::Leave(file) => file.finish(),
        };
        match done {
            Ok(None) => {}
            Ok(Some(path)) => {
                news.tell(&path);
                finished.files.push(path);
            }
            Err(failure) => {
                finished.fail(failure);
                failed.store(true, Ordering::Release);
            }
        }
    }
    finished
}

/// An open file and its two names.
pub(super) struct Named {
    pub(super) file: Arc<File>,
    /// Its name while it is open.
    pub(super) part: PathBuf,
    /// Its name when it is complete.
    pub(super) path: PathBuf,
    /// Writes go past the page cache.
    pub(super) direct: bool,
    syncs: Arc<Syncs>,
}

/// How the syncs of an open file went.
#[derive(Debug, Default)]
struct Syncs {
    /// One is asked for, and not done yet.
    asked: AtomicBool,
    /// One has failed: nobody knows what of the file will be there, and the system tells only once.
    failed: AtomicBool,
}

/// An open file that is to be synced.
pub(super) struct ToSync {
    file: Arc<File>,
    part: PathBuf,
    syncs: Arc<Syncs>,
}

impl ToSync {
    fn sync(self) -> Result<(), String> {
        let synced = self.file.sync_data();
        self.syncs.asked.store(false, Ordering::Release);
        synced.map_err(|e| {
            self.syncs.failed.store(true, Ordering::Release);
            format!("cannot sync {}: {e}", self.part.display())
        })
    }
}

/// Why a file cannot be created.
pub(super) struct Refusal {
    pub(super) text: String,
    /// It may be possible again.
    pub(super) is_want_of_room: bool,
}

/// A file that gets no more blocks.
pub(super) struct Leaving {
    pub(super) named: Named,
    /// Bytes that are whole records.
    pub(super) len: u64,
    /// Frames in them, and their bytes.
    pub(super) frames: u64,
    pub(super) frame_bytes: u64,
    /// The same by queue, in a file of all queues; else empty.
    pub(super) by_queue: Vec<(u64, u64)>,
    /// Where they are counted.
    pub(super) ledger: Ledger,
}

impl Named {
    /// Creates the file of a queue whose first record is stamped `ns`, with direct I/O where the file system has it.
    pub(super) fn create(
        dir: &Path,
        queue: Option<u16>,
        ns: u64,
        extension: &str,
    ) -> Result<Self, Refusal> {
        // Two files of one queue may begin in the same nanosecond: the later one takes the next free name.
        for ns in ns..ns.saturating_add(1000) {
            let name = FileName {
                queue,
                start_ns: ns,
                ending: extension,
            };
            let path = dir.join(name.to_string());
            let mut part = OsString::from(&path);
            part.push(PART);
            let part = PathBuf::from(part);
            let open = |flags| {
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .custom_flags(flags)
                    .open(&part)
            };
            let opened = match open(libc::O_DIRECT) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    // Some kernels create the file before they find that it cannot be direct.
                    let _ = std::fs::remove_file(&part);
                    open(0).map(|file| (file, false))
                }
                other => other.map(|file| (file, true)),
            };
            match opened {
                Ok(_) if path.exists() => drop(std::fs::remove_file(&part)),
                Ok((file, _)) if !claim(&file) => {}
                Ok((file, direct)) => {
                    return Ok(Self {
                        file: Arc::new(file),
                        part,
                        path,
                        direct,
                        syncs: Arc::default(),
                    });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => {
                    return Err(Refusal {
                        text: format!("output.dir: cannot create {}: {e}", part.display()),
                        is_want_of_room: is_want_of_room(&e),
                    });
                }
            }
        }
        Err(Refusal {
            text: format!(
                "output.dir: {} has such files for every nanosecond from {ns} on",
                dir.display()
            ),
            is_want_of_room: false,
        })
    }
}

/// Locks a new file; `false`: a recovery found it before that, empty, and takes it away.
fn claim(file: &File) -> bool {
    match file.try_lock() {
        Ok(()) => file.metadata().is_ok_and(|m| m.nlink() > 0),
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(e)) => {
            tracing::warn!(
                "files cannot be locked here ({e}): do not run `wqcap recover` beside a capture"
            );
            true
        }
    }
}

impl Named {
    /// For the closer to sync it; `None`: it is still about the last time.
    pub(super) fn to_sync(&self) -> Option<ToSync> {
        let asked = self.syncs.asked.swap(true, Ordering::AcqRel);
        (!asked).then(|| ToSync {
            file: Arc::clone(&self.file),
            part: self.part.clone(),
            syncs: Arc::clone(&self.syncs),
        })
    }

    /// Leaves direct I/O, for a file system that opens files so and then refuses to write them.
    pub(super) fn go_through_page_cache(&mut self) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        #[allow(unsafe_code)]
        // SAFETY: fcntl on a descriptor this object owns.
        let flags = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETFL, 0) };
        if flags < 0 {
            return Err(io::Error::last_os_error());
        }
        tracing::info!(
            "{}: no direct I/O here, writing through the page cache",
            self.part.display()
        );
        self.direct = false;
        Ok(())
    }
}

impl Leaving {
    /// Cuts, syncs and names the file; an empty one goes. What is in no finished file counts as lost, though
    /// [`crate::recover`] may find it yet.
    pub(super) fn finish(self) -> Result<Option<PathBuf>, String> {
        let (ledger, frames, bytes) = (self.ledger.clone(), self.frames, self.frame_bytes);
        let by_queue = self.by_queue.clone();
        let finished = self.close();
        if finished.is_err() {
            ledger.lost(frames, bytes, &by_queue);
        }
        finished
    }

    fn close(self) -> Result<Option<PathBuf>, String> {
        let Named {
            file,
            part,
            path,
            syncs,
            ..
        } = self.named;
        if self.len == 0 {
            return std::fs::remove_file(&part)
                .map(|()| None)
                .map_err(|e| format!("cannot remove the empty {}: {e}", part.display()));
        }
        let told = |what: &str, e: io::Error| {
            format!("cannot {what} {}: {e}; it keeps that name", part.display())
        };
        if syncs.failed.load(Ordering::Acquire) {
            return Err(told("trust", io::Error::other("an earlier sync failed")));
        }
        file.set_len(self.len).map_err(|e| told("cut", e))?;
        file.sync_all().map_err(|e| told("sync", e))?;
        std::fs::rename(&part, &path).map_err(|e| told("rename", e))?;
        Ok(Some(path))
    }
}
