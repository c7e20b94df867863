//! Descriptor table: the process's descriptors that the model handles.
//!
//! Imports `real`. The shims in `preload` call [`lookup`] and otherwise call the C library.
//!
//! Invariants:
//! - A foreign descriptor costs one load from a static table: no lock, no allocation, no system
//!   call. Rust's own library calls these shims too, so anything else could recurse.
//! - An entry is allocated once for a descriptor's number. It is never freed, only emptied and
//!   refilled. A thread that looked an entry up just before another thread closed it reads valid
//!   memory. It finds either the old file, kept alive by its own `Arc`, or nothing.
//! - Only the process that installed a descriptor is served. After `fork` the child's copies fail
//!   with `EIO`, as the kernel does for a device that is gone. They close without calling the file,
//!   because the child does not have the NIC's thread. A `vfork` child shares the table with its
//!   parent. There all descriptors are foreign and the table stays as it is: otherwise the `close`
//!   calls between `vfork` and `execve` would tear down the parent's device.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Once, PoisonError, RwLock};

use super::real::{self, Errno, MapRequest};

/// Handler of the system calls on a descriptor of the model. Calls that are not overridden go to
/// the kernel's own descriptor: `/dev/zero` for a device, an eventfd for an event channel.
pub trait File: Send + Sync {
    fn read(&self, fd: RawFd, buf: &mut [u8]) -> Result<usize, Errno> {
        real::read(fd, buf)
    }

    fn write(&self, fd: RawFd, buf: &[u8]) -> Result<usize, Errno> {
        real::write(fd, buf)
    }

    fn ioctl(&self, fd: RawFd, request: c_ulong, arg: *mut c_void) -> Result<c_int, Errno> {
        real::ioctl(fd, request, arg)
    }

    fn mmap(&self, fd: RawFd, request: MapRequest) -> Result<*mut c_void, Errno> {
        real::mmap(fd, request)
    }

    /// Releases the file's resources before the last descriptor of the file is closed; that
    /// descriptor is still open.
    fn close(&self, fd: RawFd) {
        let _ = fd;
    }
}

/// File that the model handles, with the number of its descriptors (`dup` adds one).
struct OpenFile {
    file: Arc<dyn File>,
    descriptors: AtomicUsize,
}

/// Entry of the descriptor table for one descriptor number. `live` lets a lookup skip an empty
/// entry without its lock.
struct TableEntry {
    live: AtomicBool,
    open: RwLock<Option<Arc<OpenFile>>>,
}

/// Number of descriptors in the descriptor table; [`install`] fails with `EMFILE` for higher ones.
const CAPACITY: usize = 65536;

/// Table of the descriptors that the model handles. It is static, so that no shim has to check
/// whether it exists.
static TABLE: [AtomicPtr<TableEntry>; CAPACITY] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; CAPACITY];

/// Descriptor table entry, in a forked child, of every descriptor that the parent had open.
static INHERITED: TableEntry = TableEntry {
    live: AtomicBool::new(true),
    open: RwLock::new(None),
};

/// Id of the process that owns the descriptor table; 0 before the first install.
static OWNER: AtomicI32 = AtomicI32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Highest descriptor number ever installed plus 1, so that a fork does not walk the whole
/// descriptor table.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Handler in a forked child for a file that the parent had open; all calls except close fail with
/// `EIO`.
struct InheritedFile;

impl File for InheritedFile {
    fn read(&self, _: RawFd, _: &mut [u8]) -> Result<usize, Errno> {
        Err(libc::EIO)
    }
    fn write(&self, _: RawFd, _: &[u8]) -> Result<usize, Errno> {
        Err(libc::EIO)
    }
    fn ioctl(&self, _: RawFd, _: c_ulong, _: *mut c_void) -> Result<c_int, Errno> {
        Err(libc::EIO)
    }
    fn mmap(&self, _: RawFd, _: MapRequest) -> Result<*mut c_void, Errno> {
        Err(libc::EIO)
    }
}

fn slot(fd: RawFd) -> Option<&'static AtomicPtr<TableEntry>> {
    TABLE.get(usize::try_from(fd).ok()?)
}

fn inherited() -> *mut TableEntry {
    (&raw const INHERITED).cast_mut()
}

/// Returns the live table entry of a descriptor, in the process that owns the descriptor table.
#[inline]
fn live(fd: RawFd) -> Option<&'static TableEntry> {
    let entry = slot(fd)?.load(Ordering::Acquire);
    if entry.is_null() {
        return None;
    }
    // SAFETY: a slot holds null, the static INHERITED, or a leaked box. None is ever freed, and
    // writes go only through the entry's own atomics and lock.
    let entry = unsafe { &*entry };
    (entry.live.load(Ordering::Acquire) && is_owner()).then_some(entry)
}

/// Returns `true` if the descriptor table belongs to this process; `false` in a vfork child.
fn is_owner() -> bool {
    // SAFETY: getpid has no preconditions.
    OWNER.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

fn take_ownership() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: getpid has no preconditions.
        OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
        // SAFETY: the handler is a plain function. It lives as long as this library, and a
        // preloaded library lives as long as the process.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
}

/// Runs in the child of a fork and turns the files that the model handled in the parent into
/// inherited ones. It only stores to atomics, so it is safe whatever lock another thread of the
/// parent held. The parent's files stay allocated in the child.
extern "C" fn forked() {
    // SAFETY: getpid has no preconditions.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    FORKS.fetch_add(1, Ordering::Relaxed);
    for slot in &TABLE[..HIGHEST.load(Ordering::Relaxed)] {
        let entry = slot.load(Ordering::Acquire);
        if entry.is_null() {
            continue;
        }
        // SAFETY: as in `live`: never freed.
        let was_live = unsafe { &*entry }.live.load(Ordering::Acquire);
        let now = if was_live {
            inherited()
        } else {
            std::ptr::null_mut()
        };
        slot.store(now, Ordering::Release);
    }
}

/// Returns the number of forks between the process that first installed a file in the descriptor
/// table and this process. State that depends on the NIC's thread is stale when this number has
/// changed.
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

fn store(fd: RawFd, open: Arc<OpenFile>) -> Result<(), Errno> {
    let slot = slot(fd).ok_or(libc::EMFILE)?;
    take_ownership();
    HIGHEST.fetch_max(fd as usize + 1, Ordering::Relaxed);
    let mut entry = slot.load(Ordering::Acquire);
    if entry.is_null() || entry == inherited() {
        entry = Box::into_raw(Box::new(TableEntry {
            live: AtomicBool::new(false),
            open: RwLock::new(None),
        }));
        slot.store(entry, Ordering::Release);
    }
    // SAFETY: as in `live`: never freed.
    let entry = unsafe { &*entry };
    *entry.open.write().unwrap_or_else(PoisonError::into_inner) = Some(open);
    entry.live.store(true, Ordering::Release);
    Ok(())
}

/// Makes `file` handle an open descriptor. Fails with `EMFILE` when the descriptor's number is
/// beyond the descriptor table.
pub fn install(fd: RawFd, file: Arc<dyn File>) -> Result<(), Errno> {
    store(
        fd,
        Arc::new(OpenFile {
            file,
            descriptors: AtomicUsize::new(1),
        }),
    )
}

/// Returns the model's file that handles a descriptor; `None` for a foreign descriptor, which the
/// model does not handle.
#[inline]
pub fn lookup(fd: RawFd) -> Option<Arc<dyn File>> {
    let entry = live(fd)?;
    if std::ptr::eq(entry, &raw const INHERITED) {
        return Some(Arc::new(InheritedFile));
    }
    let open = entry.open.read().unwrap_or_else(PoisonError::into_inner);
    open.as_ref().map(|open| Arc::clone(&open.file))
}

/// Removes a descriptor from the descriptor table; the descriptor stays open. Removing the last
/// descriptor of a file closes the file.
pub fn remove(fd: RawFd) {
    let Some(entry) = live(fd) else { return };
    if std::ptr::eq(entry, &raw const INHERITED) {
        if let Some(slot) = slot(fd) {
            slot.store(std::ptr::null_mut(), Ordering::Release);
        }
        return;
    }
    entry.live.store(false, Ordering::Release);
    let open = entry
        .open
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    // The entry's lock is released here: closing a file may take long.
    if let Some(open) = open
        && open.descriptors.fetch_sub(1, Ordering::AcqRel) == 1
    {
        open.file.close(fd);
    }
}

/// Returns `true` if the model handles this descriptor.
#[inline]
pub fn contains(fd: RawFd) -> bool {
    live(fd).is_some()
}

/// Removes a descriptor like [`remove`] and keeps errno. For a descriptor that is about to be
/// closed, or that the kernel has just assigned again because it was closed without the shims.
#[inline]
pub fn release(fd: RawFd) {
    if contains(fd) {
        let errno = real::errno();
        remove(fd);
        real::set_errno(errno);
    }
}

/// Calls [`release`] for every descriptor number from `first` to `last`, both included.
pub fn release_range(first: u32, last: u32) {
    let end = HIGHEST
        .load(Ordering::Relaxed)
        .min((last as usize).saturating_add(1));
    for fd in first as usize..end {
        release(fd as RawFd);
    }
}

/// Makes the model's file of descriptor `old` also handle its fresh duplicate `new`. Fails with
/// `EMFILE` when `new` is beyond the descriptor table.
pub fn duplicated(old: RawFd, new: RawFd) -> Result<(), Errno> {
    let Some(entry) = live(old) else {
        return Ok(());
    };
    if std::ptr::eq(entry, &raw const INHERITED) {
        slot(new)
            .ok_or(libc::EMFILE)?
            .store(inherited(), Ordering::Release);
        HIGHEST.fetch_max(new as usize + 1, Ordering::Relaxed);
        return Ok(());
    }
    let open = entry
        .open
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let Some(open) = open else { return Ok(()) };
    open.descriptors.fetch_add(1, Ordering::AcqRel);
    store(new, Arc::clone(&open)).inspect_err(|_| {
        open.descriptors.fetch_sub(1, Ordering::AcqRel);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, OwnedFd};

    #[derive(Default)]
    struct CountingFile {
        closed: AtomicUsize,
    }

    impl File for CountingFile {
        fn read(&self, _: RawFd, buf: &mut [u8]) -> Result<usize, Errno> {
            buf.fill(7);
            Ok(buf.len())
        }
        fn close(&self, _: RawFd) {
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn file() -> (OwnedFd, Arc<CountingFile>) {
        let fd = real::memfd(c"test", 1).expect("memfd succeeds");
        let counting = Arc::new(CountingFile::default());
        install(fd.as_raw_fd(), Arc::clone(&counting) as Arc<dyn File>)
            .expect("the descriptor is in the table");
        (fd, counting)
    }

    /// Runs `child` in a process that shares this process's memory or has a copy of it. Returns its
    /// exit status. The child skips exit handlers, which belong to the parent.
    fn in_child(flags: c_int, child: fn(RawFd) -> c_int, fd: RawFd) -> c_int {
        extern "C" fn run(arg: *mut c_void) -> c_int {
            // SAFETY: the tuple lives in the parent's frame until the child has ended.
            let (child, fd) = unsafe { *arg.cast::<(fn(RawFd) -> c_int, RawFd)>() };
            child(fd)
        }
        let mut arg = (child, fd);
        let mut stack = vec![0u128; 16384];
        let mut status = 0;
        // SAFETY: only the child uses the stack, which outlives it because the parent waits.
        unsafe {
            let pid = match flags {
                0 => match libc::fork() {
                    0 => libc::_exit(child(fd)),
                    pid => pid,
                },
                _ => libc::clone(
                    run,
                    stack.as_mut_ptr().add(stack.len()).cast(),
                    flags | libc::SIGCHLD,
                    (&raw mut arg).cast(),
                ),
            };
            assert!(pid > 0);
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        }
        assert!(libc::WIFEXITED(status), "{status:x}");
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn foreign_numbers_are_not_found() {
        for fd in [-1, RawFd::MIN, RawFd::MAX, CAPACITY as RawFd, 60000] {
            assert!(lookup(fd).is_none());
            remove(fd);
        }
        let counting: Arc<dyn File> = Arc::new(CountingFile::default());
        assert_eq!(install(CAPACITY as RawFd, counting), Err(libc::EMFILE));
    }

    #[test]
    fn last_duplicate_closes() {
        let (fd, counting) = file();
        let copy = fd.try_clone().expect("dup succeeds");
        duplicated(fd.as_raw_fd(), copy.as_raw_fd()).expect("the table has room");
        remove(fd.as_raw_fd());
        remove(fd.as_raw_fd());
        assert_eq!(counting.closed.load(Ordering::Relaxed), 0);
        assert!(lookup(copy.as_raw_fd()).is_some());
        remove(copy.as_raw_fd());
        assert_eq!(counting.closed.load(Ordering::Relaxed), 1);
        assert!(lookup(copy.as_raw_fd()).is_none());
        assert_eq!(
            Arc::strong_count(&counting),
            1,
            "the table keeps no reference"
        );
    }

    #[test]
    fn lookups_that_race_a_close_find_the_file_or_nothing() {
        let fd = real::memfd(c"test", 1).expect("memfd succeeds");
        let number = fd.as_raw_fd();
        let stop = AtomicBool::new(false);
        /// Guard of a test that sets the flag even if an assertion fails, because the scope waits
        /// for its threads.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut byte = [0];
                    while !stop.load(Ordering::Relaxed) {
                        if let Some(file) = lookup(number) {
                            assert_eq!(file.read(number, &mut byte), Ok(1));
                            assert_eq!(byte, [7]);
                        }
                    }
                });
            }
            for _ in 0..20_000 {
                let counting = Arc::new(CountingFile::default());
                install(number, Arc::clone(&counting) as Arc<dyn File>)
                    .expect("the descriptor is in the table");
                remove(number);
                assert_eq!(counting.closed.load(Ordering::Relaxed), 1);
            }
        });
    }

    #[test]
    fn forked_child_gets_eio() {
        let (fd, counting) = file();
        let status = in_child(
            0,
            |fd| {
                let Some(inherited) = lookup(fd) else {
                    return 1;
                };
                if inherited.read(fd, &mut [0]) != Err(libc::EIO) || forks() == 0 {
                    return 2;
                }
                if duplicated(fd, 60001).is_err() || lookup(60001).is_none() {
                    return 3;
                }
                remove(fd);
                // After the close the number is free for any file.
                if lookup(fd).is_some() {
                    return 4;
                }
                let fresh: Arc<dyn File> = Arc::new(CountingFile::default());
                match install(fd, fresh).map(|()| lookup(fd).map(|file| file.read(fd, &mut [0]))) {
                    Ok(Some(Ok(1))) => 42,
                    _ => 5,
                }
            },
            fd.as_raw_fd(),
        );
        assert_eq!(status, 42);
        assert!(lookup(fd.as_raw_fd()).is_some());
        remove(fd.as_raw_fd());
        assert_eq!(counting.closed.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn vforked_child_leaves_its_parents_table_alone() {
        let (fd, counting) = file();
        let status = in_child(
            libc::CLONE_VM | libc::CLONE_VFORK,
            |fd| {
                let foreign = lookup(fd).is_none();
                remove(fd);
                release_range(0, u32::MAX);
                if foreign { 42 } else { 1 }
            },
            fd.as_raw_fd(),
        );
        assert_eq!(status, 42);
        assert_eq!(counting.closed.load(Ordering::Relaxed), 0);
        assert!(lookup(fd.as_raw_fd()).is_some());
        remove(fd.as_raw_fd());
    }
}
