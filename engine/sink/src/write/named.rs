//! Open files: how they are created, and their two names, of those that [`super::naming`] gives.
//!
//! Invariant: an open file is locked (flock) from before anybody can find it until it has its final name, so that
//! [`crate::recover`] can tell it from one that a crash left.

use crate::write::{
    disk_full::is_no_space,
    naming::{NAMES, Names, Naming},
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
use wqcap_files::{folder::sync_folder, name::PART, sealed::sealed_name};

/// An open file, with a name or without.
pub(super) struct Opened {
    file: File,
    /// Writes go past the page cache.
    direct: bool,
}

impl Opened {
    /// A file in `dir` without a name, of which nothing is left unless it gets one.
    ///
    /// # Errors
    /// The folder cannot be written to, or its file system has no such files.
    #[expect(
        clippy::disallowed_methods,
        reason = "a new file, which no other name leads to"
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

    /// A new file of this name.
    ///
    /// # Errors
    /// It is there already, or cannot be created.
    #[expect(
        clippy::disallowed_methods,
        reason = "a new file, which no other name leads to"
    )]
    fn create(part: &Path) -> io::Result<Self> {
        let opened = Self::with(|flags| {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).custom_flags(flags);
            let file = options.open(part);
            if file.as_ref().is_err_and(is_invalid) {
                // Some kernels create the file before they find that it cannot be direct.
                let _ = std::fs::remove_file(part);
            }
            file
        })?;
        if lock(&opened.file) && opened.file.metadata().is_ok_and(|m| m.nlink() > 0) {
            return Ok(opened);
        }
        // A recovery found it before it was locked, empty, and takes it away.
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// With direct I/O where the file system has it.
    fn with(open: impl Fn(i32) -> io::Result<File>) -> io::Result<Self> {
        let opened = |direct| move |file| Self { file, direct };
        match open(libc::O_DIRECT) {
            Err(e) if is_invalid(&e) => open(0).map(opened(false)),
            other => other.map(opened(true)),
        }
    }

    /// Gives a nameless file its first name; where that cannot be, another file gets it.
    fn enter(self, part: &Path) -> io::Result<Self> {
        // By its descriptor's own entry, as open(2) shows it: the other way takes a capability.
        let here = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match linkat(CWD, here, CWD, part, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Ok(self),
            Err(_) => Self::create(part),
        }
    }
}

/// Direct I/O is refused like that.
fn is_invalid(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EINVAL)
}

/// Locks a new file; `false`: somebody else has it.
fn lock(file: &File) -> bool {
    match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(e)) => {
            tracing::warn!(
                "files cannot be locked here ({e}): do not run `wqcap recover` beside a capture"
            );
            true
        }
    }
}

/// An open file and its two names.
pub(super) struct Named {
    pub(super) file: Arc<File>,
    /// Its name while it is open.
    pub(super) part: PathBuf,
    /// Its name when it is complete.
    pub(super) path: PathBuf,
    /// Names for it if that one is taken by then.
    pub(super) others: Names,
    /// Writes go past the page cache.
    pub(super) direct: bool,
    /// Folders that are to be synced for its place to last.
    new_folders: Vec<PathBuf>,
    syncs: Arc<Syncs>,
}

/// How the syncs of an open file went.
#[derive(Debug, Default)]
struct Syncs {
    /// One is asked for, and not done yet.
    asked: AtomicBool,
    /// One has failed, or the file was found shorter than it was written: nobody knows what of it will be there, and the
    /// system tells only once.
    failed: AtomicBool,
}

/// An open file that is to be synced.
pub(super) struct ToSync {
    file: Arc<File>,
    part: PathBuf,
    /// Bytes of whole records that were written before it was asked for.
    written: u64,
    /// Folders that its name needs.
    folders: Vec<PathBuf>,
    syncs: Arc<Syncs>,
}

impl ToSync {
    pub(super) fn sync(self) -> Result<(), String> {
        let synced = self.file.sync_data();
        self.folders.iter().for_each(|it| sync_folder(it));
        self.syncs.asked.store(false, Ordering::Release);
        let part = self.part.display();
        match synced {
            Ok(()) => {
                tracing::debug!("{part}: its first {} bytes are synced", self.written);
                Ok(())
            }
            Err(e) => {
                self.syncs.failed.store(true, Ordering::Release);
                Err(format!("cannot sync {part}: {e}"))
            }
        }
    }
}

/// Why a file cannot be created.
pub(super) struct NameRefusal {
    pub(super) text: String,
    /// It may be possible again.
    pub(super) is_no_space: bool,
}

impl Named {
    /// The file of a queue whose first record is stamped `ns`: a nameless one that was opened before, or a new one.
    pub(super) fn create(
        naming: &Arc<Naming>,
        queue: Option<u16>,
        ns: u64,
        mut nameless: Option<Opened>,
    ) -> Result<Self, NameRefusal> {
        let mut names = Names::new(naming, queue, ns);
        let mut new_folders = Vec::new();
        // Two files may begin in what is the same moment to their names: the later one takes the next free name.
        while let Some(path) = names.next() {
            let mut part = OsString::from(&path);
            part.push(PART);
            let part = PathBuf::from(part);
            let opened = naming.open(&path, &mut new_folders, || match nameless.take() {
                Some(file) => file.enter(&part),
                None => Opened::create(&part),
            });
            match opened {
                // A sealed file is there before its plain one goes, so that one of the two is seen.
                Ok(_) if path.exists() || sealed_name(&path).exists() => {
                    drop(std::fs::remove_file(&part));
                }
                Ok(Opened { file, direct }) => {
                    names.taken();
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
                Err(e) => {
                    return Err(NameRefusal {
                        text: format!("output.dir: cannot create {}: {e}", part.display()),
                        is_no_space: is_no_space(&e),
                    });
                }
            }
        }
        Err(NameRefusal {
            text: format!(
                "output.name: {} has {NAMES} files of the name that one from {ns} ns on is to have",
                naming.dir.display()
            ),
            is_no_space: false,
        })
    }

    /// For the closer to sync it, with so many bytes of whole records in it; `None`: it is still about the last time.
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

    /// Has its place last, if no sync has done that.
    pub(super) fn sync_folders(&self) {
        self.new_folders.iter().for_each(|it| sync_folder(it));
    }

    /// Why what was written of it, so many bytes of whole records, is not there: another program has cut it. Told once;
    /// the file is not to be trusted from then on.
    pub(super) fn is_cut(&self, written: u64) -> Option<String> {
        let len = self.file.metadata().map_or(written, |it| it.len());
        self.is_cut_at(len, written)
    }

    fn is_cut_at(&self, there: u64, written: u64) -> Option<String> {
        let tells = there < written && !self.syncs.failed.swap(true, Ordering::AcqRel);
        tells.then(|| {
            format!(
                "{}: another program has cut it after {there} of the {written} bytes that were written",
                self.part.display()
            )
        })
    }

    /// Whether what was written of it, so many bytes, is there, under its name.
    ///
    /// # Errors
    /// A sync has failed, or another program has cut, removed or replaced the file.
    pub(super) fn check(&self, written: u64) -> io::Result<()> {
        // After a cut, a later write makes the file as long as it was, with a hole in it. Not every file system tells.
        let hole = seek(&*self.file, SeekFrom::Hole(0)).unwrap_or(written);
        if let Some(cut) = self
            .is_cut(written)
            .or_else(|| self.is_cut_at(hole, written))
        {
            return Err(io::Error::other(cut));
        }
        if self.syncs.failed.load(Ordering::Acquire) {
            return Err(io::Error::other("it was cut, or a sync failed"));
        }
        let (ours, named) = (self.file.metadata()?, self.part.symlink_metadata()?);
        if (ours.dev(), ours.ino()) != (named.dev(), named.ino()) {
            return Err(io::Error::other("another file has that name now"));
        }
        Ok(())
    }

    /// Leaves direct I/O, for a file system that opens files so and then refuses to write them.
    pub(super) fn go_through_page_cache(&mut self) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_files::name::NameTemplate;

    fn begin(dir: &Path, nameless: Option<Opened>) -> Named {
        let template = NameTemplate::default();
        let naming = Arc::new(Naming::new(dir.to_owned(), template, "pcap".into()));
        let made = Named::create(&naming, Some(3), 17, nameless);
        made.map_err(|it| it.text).expect("created")
    }

    #[test]
    fn a_file_opened_ahead_gets_the_name_of_its_first_record() {
        let dir = tempfile::tempdir().expect("dir");
        let ahead = Opened::nameless(dir.path()).expect("opened");
        let file = begin(dir.path(), Some(ahead));
        assert_eq!(file.part, dir.path().join("wqcap-q03-17.pcap.part"));
        let inode = |m: io::Result<std::fs::Metadata>| m.expect("there").ino();
        assert_eq!(inode(file.part.metadata()), inode(file.file.metadata()));
        let other = File::open(&file.part).expect("opens");
        assert!(other.try_lock().is_err(), "recovery leaves it alone");
    }

    #[test]
    fn sub_folders_are_made_and_synced_once() {
        let dir = tempfile::tempdir().expect("dir");
        let template = "%Y/%j/q{queue}".parse().expect("reads");
        let naming = Arc::new(Naming::new(dir.path().to_owned(), template, "pcap".into()));
        for (ahead, name) in [(true, "q03"), (false, "q03_001"), (true, "q03_002")] {
            let ahead = ahead.then(|| Opened::nameless(dir.path()).expect("opened"));
            let made = Named::create(&naming, Some(3), 17, ahead);
            let mut file = made.map_err(|it| it.text).expect("created");
            let folder = dir.path().join("1970/001");
            assert_eq!(file.part, folder.join(format!("{name}.pcap.part")));
            // Each new folder, and that which it is in.
            let order = file.order_sync(0).expect("is asked for");
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
            assert_eq!(file.order_sync(0).expect("is asked for").folders.len(), 0);
        }
    }

    #[test]
    fn a_taken_name_is_nobody_elses() {
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
            let ahead = ahead.then(|| Opened::nameless(dir.path()).expect("opened"));
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
