//! File systems for fault tests: an ext4 image whose power can be cut, a small tmpfs, and a FUSE
//! file system that stalls and fails on request. All are unmounted on drop.

use crate::{
    Dir, Program,
    process::{self, HANG, TICK},
};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// ext4 file system in an image file, mounted through a loop device.
pub struct Image {
    file: PathBuf,
    mount: PathBuf,
}

/// Python program that calls `EXT4_IOC_SHUTDOWN` (fs/ext4/ext4.h) with
/// `EXT4_GOING_FLAGS_NOLOGFLUSH`: the journal is not flushed, as in a power failure, and every
/// later call fails.
const CUT: &str = "\
import fcntl, os, struct, sys
folder = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(folder, 0x8004587d, struct.pack('I', 2))";

impl Image {
    /// Creates an image of `mib` MiB and mounts it.
    ///
    /// # Errors
    /// Returns a reason to skip if a requirement is missing.
    pub fn new(dir: &Dir, mib: u64) -> Result<Self, String> {
        if !process::is_root() {
            return Err("mounting a file system requires root".into());
        }
        let it = Self {
            file: dir.join("disk.img"),
            mount: dir.folder("disk"),
        };
        File::create(&it.file)
            .and_then(|file| file.set_len(mib << 20))
            .map_err(|e| format!("cannot create a disk image of {mib} MiB: {e}"))?;
        let made = Program::new("mkfs.ext4")
            .args(["-q", "-F"])
            .arg(&it.file)
            .run();
        if made.status.code() != Some(0) {
            return Err(format!("mkfs.ext4 fails: {made}"));
        }
        it.plug()?;
        Ok(it)
    }

    fn plug(&self) -> Result<(), String> {
        // With this commit interval the journal is written only by a sync, not by the timer during
        // a test: only synced data survives a power cut.
        let mounted = Program::new("mount")
            .args(["-o", "loop,commit=300"])
            .arg(&self.file)
            .arg(&self.mount)
            .run();
        match mounted.status.code() {
            Some(0) => Ok(()),
            _ => Err(format!("cannot mount a loop device: {mounted}")),
        }
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Simulates a power failure of the disk.
    pub fn cut(&self) {
        let done = Program::new("python3")
            .args(["-c", CUT])
            .arg(&self.mount)
            .run();
        drop(done.expect(0));
    }

    /// Mounts the image again after [`Image::cut`], as a machine does when it boots.
    ///
    /// # Panics
    /// Panics if the image cannot be mounted.
    pub fn restart(&self) {
        let deadline = Instant::now() + HANG;
        loop {
            let done = Program::new("umount").arg(&self.mount).run();
            if done.status.success() {
                break;
            }
            // The kernel may keep the files of a dead writer open until its last writes have ended.
            assert!(Instant::now() < deadline, "{done}");
            thread::sleep(TICK);
        }
        // A process that created a mount namespace meanwhile has the disk mounted in it, too. Until
        // that process ends, the file system stays shut down, and a new mount would share that
        // state.
        loop {
            let done = Program::new("losetup").arg("-j").arg(&self.file).run();
            if done.stdout.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "{done}");
            thread::sleep(TICK);
        }
        self.plug().expect("the image can be mounted again");
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // Lazy unmount: after a failed test, a process may still have a file open.
        let _ = Program::new("umount").arg("-l").arg(&self.mount).run();
    }
}

/// Small file system in memory (tmpfs).
pub struct Memory {
    mount: PathBuf,
}

impl Memory {
    /// Mounts a tmpfs of `mib` MiB.
    ///
    /// # Errors
    /// Returns a reason to skip if a requirement is missing.
    pub fn new(dir: &Dir, mib: u64) -> Result<Self, String> {
        if !process::is_root() {
            return Err("mounting a file system requires root".into());
        }
        let mount = dir.folder("memory");
        let mounted = Program::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"])
            .arg(&mount)
            .run();
        match mounted.status.code() {
            Some(0) => Ok(Self { mount }),
            _ => Err(format!("cannot mount a tmpfs: {mounted}")),
        }
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Changes the size of the tmpfs to `mib` MiB.
    ///
    /// # Panics
    /// Panics if the remount fails.
    pub fn grow(&self, mib: u64) {
        let options = format!("remount,size={mib}m");
        let done = Program::new("mount")
            .args(["-o", &options])
            .arg(&self.mount)
            .run();
        drop(done.expect(0));
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = Program::new("umount").arg("-l").arg(&self.mount).run();
    }
}

/// FUSE file system in memory that stalls and fails on request.
pub struct Shaky {
    faults: Arc<Faults>,
    mount: PathBuf,
    session: Option<BackgroundSession>,
}

#[derive(Default)]
struct Faults {
    stall_ms: AtomicU64,
    stalls: AtomicU64,
    gone: AtomicBool,
}

impl Shaky {
    /// Mounts the file system.
    ///
    /// # Errors
    /// Returns a reason to skip if a requirement is missing.
    pub fn new(dir: &Dir) -> Result<Self, String> {
        if !process::is_root() {
            return Err("mounting a file system requires root".into());
        }
        if !Path::new("/dev/fuse").exists() {
            return Err("there is no /dev/fuse".into());
        }
        let mount = dir.folder("shaky");
        let faults: Arc<Faults> = Arc::default();
        let folder = Folder {
            faults: Arc::clone(&faults),
            content: Mutex::default(),
        };
        let session = fuser::spawn_mount(folder, &mount, &Config::default())
            .map_err(|e| format!("cannot mount a FUSE file system: {e}"))?;
        Ok(Self {
            faults,
            mount,
            session: Some(session),
        })
    }

    /// Returns the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Delays every write from now on by `time`; other calls wait until the delayed write has
    /// ended.
    pub fn stall(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).expect("short");
        self.faults.stall_ms.store(ms, Ordering::Relaxed);
    }

    /// Returns the number of writes delayed so far.
    #[must_use]
    pub fn stalls(&self) -> u64 {
        self.faults.stalls.load(Ordering::Relaxed)
    }

    /// Sets whether every call fails with EIO from now on.
    pub fn gone(&self, gone: bool) {
        self.faults.gone.store(gone, Ordering::Relaxed);
    }
}

impl Drop for Shaky {
    fn drop(&mut self) {
        self.stall(Duration::ZERO);
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}

/// File system with a single folder of files.
struct Folder {
    faults: Arc<Faults>,
    content: Mutex<Content>,
}

#[derive(Default)]
struct Content {
    names: BTreeMap<OsString, u64>,
    /// Content by inode number. Files that were unlinked are kept until the file system is
    /// unmounted.
    files: BTreeMap<u64, Vec<u8>>,
}

const TTL: Duration = Duration::ZERO;
const FIRST_FILE: u64 = 2;

fn attributes(ino: u64, kind: FileType, size: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: size.div_ceil(512),
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}

impl Content {
    fn attributes(&self, ino: u64) -> Result<FileAttr, Errno> {
        if ino == INodeNo::ROOT.0 {
            return Ok(attributes(ino, FileType::Directory, 0));
        }
        let file = self.files.get(&ino).ok_or(Errno::ENOENT)?;
        Ok(attributes(ino, FileType::RegularFile, file.len() as u64))
    }
}

impl Folder {
    fn lock(&self) -> Result<MutexGuard<'_, Content>, Errno> {
        if self.faults.gone.load(Ordering::Relaxed) {
            return Err(Errno::EIO);
        }
        Ok(self.content.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn stall_if_set(&self) {
        let ms = self.faults.stall_ms.load(Ordering::Relaxed);
        if ms > 0 {
            self.faults.stalls.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(ms));
        }
    }
}

impl Filesystem for Folder {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.lock().and_then(|it| {
            let ino = *it.names.get(name).ok_or(Errno::ENOENT)?;
            it.attributes(ino)
        });
        match found {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(e) => reply.error(e),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.lock().and_then(|it| it.attributes(ino.0)) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(e) => reply.error(e),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = self.lock().and_then(|mut it| {
            if let (Some(size), Some(file)) = (size, it.files.get_mut(&ino.0)) {
                file.resize(usize::try_from(size).unwrap_or(0), 0);
            }
            it.attributes(ino.0)
        });
        match set {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(e) => reply.error(e),
        }
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let made = self.lock().and_then(|mut it| {
            let ino = it.files.last_key_value().map_or(FIRST_FILE, |(n, _)| n + 1);
            it.files.insert(ino, Vec::new());
            it.names.insert(name.to_owned(), ino);
            it.attributes(ino)
        });
        match made {
            Ok(attr) => {
                reply.created(
                    &TTL,
                    &attr,
                    Generation(0),
                    FileHandle(0),
                    FopenFlags::empty(),
                );
            }
            Err(e) => reply.error(e),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.lock() {
            Ok(_) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(e) => reply.error(e),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.lock().and_then(|it| {
            let file = it.files.get(&ino.0).ok_or(Errno::ENOENT)?;
            let start = usize::try_from(offset)
                .unwrap_or(usize::MAX)
                .min(file.len());
            let end = start.saturating_add(size as usize).min(file.len());
            Ok(file[start..end].to_vec())
        });
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(e) => reply.error(e),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.stall_if_set();
        let written = self.lock().and_then(|mut it| {
            let file = it.files.get_mut(&ino.0).ok_or(Errno::ENOENT)?;
            let start = usize::try_from(offset).unwrap_or(0);
            let end = start + data.len();
            file.resize(file.len().max(end), 0);
            file[start..end].copy_from_slice(data);
            Ok(data.len())
        });
        match written {
            Ok(n) => reply.written(u32::try_from(n).unwrap_or(0)),
            Err(e) => reply.error(e),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.lock() {
            Ok(_) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let gone = self
            .lock()
            .and_then(|mut it| it.names.remove(name).ok_or(Errno::ENOENT));
        match gone {
            Ok(_) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let renamed = self.lock().and_then(|mut it| {
            if flags.contains(RenameFlags::RENAME_NOREPLACE) && it.names.contains_key(new) {
                return Err(Errno::EEXIST);
            }
            let ino = it.names.remove(name).ok_or(Errno::ENOENT)?;
            it.names.insert(new.to_owned(), ino);
            Ok(())
        });
        match renamed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(e),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let it = match self.lock() {
            Ok(it) => it,
            Err(e) => return reply.error(e),
        };
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (i, (name, ino)) in it.names.iter().enumerate().skip(skipped) {
            if reply.add(INodeNo(*ino), i as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }
}
