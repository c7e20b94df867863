//! Creation of output files, and their two names: the `.part` name while open, then the final name.
//! [`super::naming`] chooses the names.
//!
//! Invariant: an open file is locked (flock) before it has a name and until it has its final name, so
//! that [`crate::recover`] can distinguish it from a file that a crash left.

use crate::write::{
    disk_policy::DiskError,
    naming::{NameCandidates, Naming},
};
use rustix::fs::{AtFlags, CWD, SeekFrom, linkat, seek};
use std::{
    ffi::OsString,
    fs::{File, OpenOptions, TryLockError},
    io, mem,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use wqcap_files::{
    folder::{open::try_lock, sync_folder},
    name::PART,
    sealed::sealed_name,
};

/// Open capture file, with or without a name.
pub(super) struct OutputFile {
    file: File,
    /// `true` for direct I/O: writes of the file bypass the page cache.
    direct: bool,
}

impl OutputFile {
    /// Creates a capture file in `dir` without a name (O_TMPFILE). It disappears when closed,
    /// unless it got a name.
    ///
    /// # Errors
    /// The directory is not writable, or its file system does not support O_TMPFILE.
    #[expect(
        clippy::disallowed_methods,
        reason = "the file is new, so no link can lead elsewhere"
    )]
    pub(super) fn nameless(dir: &Path) -> io::Result<Self> {
        let opened = Self::with(|flags| {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(libc::O_TMPFILE | flags);
            options.open(dir)
        })?;
        lock(&opened.file);
        Ok(opened)
    }

    /// Creates a new capture file with the name `part` and locks it.
    ///
    /// # Errors
    /// The name exists already, or the file cannot be created.
    #[expect(
        clippy::disallowed_methods,
        reason = "the file is new, so no link can lead elsewhere"
    )]
    fn create(part: &Path) -> io::Result<Self> {
        let opened = Self::with(|flags| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).custom_flags(flags);
            let file = options.open(part);
            if file.as_ref().is_err_and(refuses_direct) {
                // Some kernels create the file before they refuse direct I/O.
                let _ = std::fs::remove_file(part);
            }
            file
        })?;
        if lock(&opened.file) && opened.file.metadata().is_ok_and(|m| m.nlink() > 0) {
            return Ok(opened);
        }
        // `wqcap recover` found the empty file before it was locked, and removes it.
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Opens a capture file with O_DIRECT, or without it if the file system does not support direct
    /// I/O.
    fn with(open: impl Fn(i32) -> io::Result<File>) -> io::Result<Self> {
        let opened = |direct| move |file| Self { file, direct };
        match open(libc::O_DIRECT) {
            Err(e) if refuses_direct(&e) => open(0).map(opened(false)),
            other => other.map(opened(true)),
        }
    }

    /// Links a nameless capture file to the name `part`. If that fails, creates a new file of that
    /// name instead.
    fn link(self, part: &Path) -> io::Result<Self> {
        // Through the descriptor's entry in /proc, as in open(2): AT_EMPTY_PATH requires a capability.
        let here = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match linkat(CWD, here, CWD, part, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Ok(self),
            Err(_) => Self::create(part),
        }
    }
}

/// Returns `true` if the file system does not support direct I/O.
fn refuses_direct(e: &io::Error) -> bool {
    DiskError::from(e) == DiskError::NotDirect
}

/// Locks a new capture file. Returns `false` if another process has locked it.
fn lock(file: &File) -> bool {
    match try_lock(file) {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(e)) => {
            tracing::warn!(
                "cannot lock the open capture files: {e}; without these locks `wqcap recover` takes them for files of a crash, so do not run it during a capture"
            );
            true
        }
    }
}

/// Open capture file with its temporary and its final name.
pub(super) struct NamedFile {
    pub(super) file: Arc<File>,
    /// Temporary name of the capture file while it is open.
    pub(super) part: PathBuf,
    /// Intended final name of the capture file.
    pub(super) path: PathBuf,
    /// Alternative final names if `path` is taken by then.
    pub(super) others: NameCandidates,
    /// `true` for direct I/O: writes of the file bypass the page cache.
    pub(super) direct: bool,
    /// Directories to sync so that the capture file's directory entry is durable.
    new_folders: Vec<PathBuf>,
    syncs: Arc<Syncs>,
}

/// State of the syncs of an open capture file.
#[derive(Debug, Default)]
struct Syncs {
    /// Set while a requested sync of the file is not done.
    asked: AtomicBool,
    /// Set after a sync of the file failed or the file was found truncated. The content on disk is
    /// unknown then, and the kernel reports a sync error only once.
    failed: AtomicBool,
}

/// Request to sync an open capture file.
pub(super) struct ToSync {
    file: Arc<File>,
    part: PathBuf,
    /// Number of bytes of whole frame records that were written before the sync was requested.
    written: u64,
    /// Directories to sync together with the capture file.
    folders: Vec<PathBuf>,
    syncs: Arc<Syncs>,
}

impl ToSync {
    /// Syncs the file's data and its new directories.
    ///
    /// # Errors
    /// The data could not be synced. The file is not finished then.
    pub(super) fn sync(self) -> Result<(), SyncFailure> {
        let synced = self.file.sync_data();
        self.folders.iter().for_each(|it| sync_folder(it));
        self.syncs.asked.store(false, Ordering::Release);
        match synced {
            Ok(()) => {
                let part = self.part.display();
                tracing::debug!("{part}: the first {} bytes are synced", self.written);
                Ok(())
            }
            Err(source) => {
                self.syncs.failed.store(true, Ordering::Release);
                let part = self.part;
                Err(SyncFailure { part, source })
            }
        }
    }
}

/// Failure to sync an open capture file.
#[derive(Debug, thiserror::Error)]
#[error("cannot sync {}: {source}", part.display())]
pub(super) struct SyncFailure {
    part: PathBuf,
    source: io::Error,
}

/// Failure to create a capture file.
#[derive(Debug, thiserror::Error)]
pub(super) enum CreateFailure {
    /// The capture file cannot be created or linked.
    #[error("output.dir: cannot create {}: {source}", part.display())]
    Create { part: PathBuf, source: io::Error },
    /// Other files have all names that the file may get.
    #[error(
        "output.name: cannot name the file that begins at {ns} ns: {} already has files of all its possible names; \
         use a template with finer time fields",
        dir.display()
    )]
    NoName { ns: u64, dir: PathBuf },
}

impl CreateFailure {
    /// Returns the class of the failure, by which the policy for the disk decides.
    pub(super) fn class(&self) -> DiskError {
        match self {
            Self::Create { source, .. } => source.into(),
            Self::NoName { .. } => DiskError::Lasting,
        }
    }
}

/// Damage to an open capture file: another program has truncated it.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: another program truncated the file to {len} of the {written} bytes that were written",
    part.display()
)]
pub(super) struct Truncated {
    part: PathBuf,
    len: u64,
    written: u64,
}

impl NamedFile {
    /// Creates the capture file of a queue whose first record is stamped `ns`, from the nameless
    /// file opened in advance if there is one.
    pub(super) fn create(
        naming: &Arc<Naming>,
        queue: Option<u16>,
        ns: u64,
        mut nameless: Option<OutputFile>,
    ) -> Result<Self, CreateFailure> {
        let mut names = NameCandidates::new(naming, queue, ns);
        let mut new_folders = Vec::new();
        // Two files may begin at times that give the same name. The later file takes the next free name.
        while let Some(path) = names.next() {
            let mut part = OsString::from(&path);
            part.push(PART);
            let part = PathBuf::from(part);
            let opened = naming.open(&path, &mut new_folders, || match nameless.take() {
                Some(file) => file.link(&part),
                None => OutputFile::create(&part),
            });
            match opened {
                // The encrypted file is created before its plain file is removed, so at least one of the two exists.
                Ok(_) if path.exists() || sealed_name(&path).exists() => {
                    drop(std::fs::remove_file(&part));
                }
                Ok(OutputFile { file, direct }) => {
                    names.record_taken();
                    return Ok(Self {
                        file: Arc::new(file),
                        part,
                        path,
                        others: names,
                        direct,
                        new_folders,
                        syncs: Arc::default(),
                    });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(CreateFailure::Create { part, source }),
            }
        }
        let dir = naming.dir.clone();
        Err(CreateFailure::NoName { ns, dir })
    }

    /// Returns a request for the closer to sync the capture file, with `written` bytes of whole
    /// records in it; `None` if the previous request is not done.
    pub(super) fn order_sync(&mut self, written: u64) -> Option<ToSync> {
        let asked = self.syncs.asked.swap(true, Ordering::AcqRel);
        (!asked).then(|| ToSync {
            file: Arc::clone(&self.file),
            part: self.part.clone(),
            written,
            folders: mem::take(&mut self.new_folders),
            syncs: Arc::clone(&self.syncs),
        })
    }

    /// Syncs the directories of the capture file's name that no earlier sync has included.
    pub(super) fn sync_folders(&self) {
        self.new_folders.iter().for_each(|it| sync_folder(it));
    }

    /// Returns an error if another program has truncated the capture file below the `written` bytes
    /// of whole records. The error is returned once; [`NamedFile::check`] fails
    /// from then on.
    pub(super) fn is_cut(&self, written: u64) -> Option<Truncated> {
        let len = self.file.metadata().map_or(written, |it| it.len());
        self.is_cut_at(len, written)
    }

    fn is_cut_at(&self, len: u64, written: u64) -> Option<Truncated> {
        let is_new = len < written && !self.syncs.failed.swap(true, Ordering::AcqRel);
        is_new.then(|| Truncated {
            part: self.part.clone(),
            len,
            written,
        })
    }

    /// Checks that the `written` bytes are in the capture file and the file has its name.
    ///
    /// # Errors
    /// A sync has failed, or another program has truncated, removed or replaced the file.
    pub(super) fn check(&self, written: u64) -> io::Result<()> {
        // A write after a truncation restores the file's length, with a hole in it. Some file systems report no holes.
        let hole = seek(&*self.file, SeekFrom::Hole(0)).unwrap_or(written);
        if let Some(cut) = self
            .is_cut(written)
            .or_else(|| self.is_cut_at(hole, written))
        {
            return Err(io::Error::other(cut));
        }
        if self.syncs.failed.load(Ordering::Acquire) {
            return Err(io::Error::other(
                "the file was truncated, or a sync of it failed",
            ));
        }
        let (ours, named) = (self.file.metadata()?, self.part.symlink_metadata()?);
        if (ours.dev(), ours.ino()) != (named.dev(), named.ino()) {
            return Err(io::Error::other(
                "another file has the name of the open file now",
            ));
        }
        Ok(())
    }

    /// Turns direct I/O of the file off, for a file system that accepts O_DIRECT but refuses the
    /// writes.
    pub(super) fn go_through_page_cache(&mut self) -> io::Result<()> {
        #[allow(unsafe_code)]
        // SAFETY: fcntl on a descriptor this object owns.
        let flags = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETFL, 0) };
        if flags < 0 {
            return Err(io::Error::last_os_error());
        }
        tracing::info!(
            "{}: the file system does not support direct I/O; writes use the page cache",
            self.part.display()
        );
        self.direct = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_files::name::NameTemplate;

    fn begin(dir: &Path, nameless: Option<OutputFile>) -> NamedFile {
        let template = NameTemplate::default();
        let naming = Arc::new(Naming::new(dir.to_owned(), template, "pcap".into()));
        let made = NamedFile::create(&naming, Some(3), 17, nameless);
        made.expect("created")
    }

    #[test]
    fn a_file_opened_ahead_gets_the_name_of_its_first_record() {
        let dir = tempfile::tempdir().expect("dir");
        let ahead = OutputFile::nameless(dir.path()).expect("opened");
        let file = begin(dir.path(), Some(ahead));
        assert_eq!(file.part, dir.path().join("wqcap-q03-17.pcap.part"));
        let inode = |m: io::Result<std::fs::Metadata>| m.expect("there").ino();
        assert_eq!(inode(file.part.metadata()), inode(file.file.metadata()));
        let other = File::open(&file.part).expect("opens");
        assert!(other.try_lock().is_err(), "the file is not locked");
    }

    #[test]
    fn subdirectories_are_created_and_synced_once() {
        let dir = tempfile::tempdir().expect("dir");
        let template = "%Y/%j/q{queue}".parse().expect("reads");
        let naming = Arc::new(Naming::new(dir.path().to_owned(), template, "pcap".into()));
        for (ahead, name) in [(true, "q03"), (false, "q03_001"), (true, "q03_002")] {
            let ahead = ahead.then(|| OutputFile::nameless(dir.path()).expect("opened"));
            let made = NamedFile::create(&naming, Some(3), 17, ahead);
            let mut file = made.expect("created");
            let folder = dir.path().join("1970/001");
            assert_eq!(file.part, folder.join(format!("{name}.pcap.part")));
            // Each new directory and its parent.
            let order = file.order_sync(0).expect("a sync is requested");
            let new = [("1970", ""), ("1970/001", "1970")];
            let new = new.map(|(a, b)| [dir.path().join(a), dir.path().join(b)]);
            let want: &[PathBuf] = if name == "q03" {
                new.as_flattened()
            } else {
                &[]
            };
            assert_eq!(order.folders.len(), want.len());
            assert!(
                order
                    .folders
                    .iter()
                    .zip(want)
                    .all(|(a, b)| a.components().eq(b.components()))
            );
            order.sync().expect("syncs");
            let order = file.order_sync(0).expect("a sync is requested");
            assert_eq!(order.folders.len(), 0);
        }
    }

    #[test]
    fn a_taken_name_is_not_used_for_another_file() {
        let dir = tempfile::tempdir().expect("dir");
        let all_taken = [
            "wqcap-q03-17.pcap.part",
            "wqcap-q03-18.pcap",
            "wqcap-q03-19.pcap.enc",
        ];
        for taken in all_taken {
            std::fs::write(dir.path().join(taken), taken).expect("written");
        }
        for (ahead, start) in [(true, 20), (false, 21), (true, 22)] {
            let ahead = ahead.then(|| OutputFile::nameless(dir.path()).expect("opened"));
            let file = begin(dir.path(), ahead);
            let name = format!("wqcap-q03-{start}.pcap.part");
            assert_eq!(file.part, dir.path().join(name));
        }
        for taken in all_taken {
            let left = std::fs::read(dir.path().join(taken)).expect("there");
            assert_eq!(left, taken.as_bytes());
        }
        assert_eq!(std::fs::read_dir(dir.path()).expect("lists").count(), 6);
    }
}
