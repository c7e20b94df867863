//! Which descriptors the model answers for, and the C library's own calls beneath it.
//!
//! Imports nothing of the model. The shims in `preload` ask [`lookup`] and fall through to [`real`].
//!
//! Invariants:
//! - A foreign descriptor costs one load from a static table: no lock, no allocation, no system
//!   call. Rust's own library comes through here too, so anything else could recurse.
//! - An entry, once allocated for a descriptor's number, is never freed, only emptied and refilled.
//!   A thread that looked one up just before another thread closed it reads valid memory, and finds
//!   either the old file, kept alive by its own `Arc`, or nothing.
//! - Only the process that installed a descriptor is served. After `fork` the child's copies are
//!   husks: they answer `EIO`, as the kernel does for a device that is gone, and close without
//!   telling the file, whose NIC thread the child does not have. A `vfork` child shares the table
//!   with its parent, so there everything is foreign and the table is left as it is: otherwise the
//!   `close` calls between `vfork` and `execve` would tear down the parent's device.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Once, PoisonError, RwLock};

use libc::off_t;

use super::real::{self, Errno};

/// A descriptor that the model answers for. Whatever is not overridden reaches the kernel's own
/// descriptor behind it (`/dev/zero` for a device, an eventfd for a channel).
pub trait File: Send + Sync {
    /// `read(2)`.
    fn read(&self, fd: RawFd, buf: &mut [u8]) -> Result<usize, Errno> {
        real::read(fd, buf)
    }

    /// `write(2)`.
    fn write(&self, fd: RawFd, buf: &[u8]) -> Result<usize, Errno> {
        real::write(fd, buf)
    }

    /// `ioctl(2)`.
    fn ioctl(&self, fd: RawFd, request: c_ulong, arg: *mut c_void) -> Result<c_int, Errno> {
        real::ioctl(fd, request, arg)
    }

    /// `mmap(2)`.
    fn mmap(
        &self,
        fd: RawFd,
        addr: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: off_t,
    ) -> Result<*mut c_void, Errno> {
        real::mmap(addr, len, prot, flags, fd, offset)
    }

    /// The last descriptor that stands for this file is about to be closed. The descriptor is
    /// still open here, and the caller closes it afterwards.
    fn close(&self, fd: RawFd) {
        let _ = fd;
    }
}

/// One file, and how many descriptors stand for it (`dup`).
struct Open {
    file: Arc<dyn File>,
    descriptors: AtomicUsize,
}

/// What stands at a descriptor's number. `live` lets a dead entry be passed over without its lock.
struct Entry {
    live: AtomicBool,
    open: RwLock<Option<Arc<Open>>>,
}

/// As many descriptors as the table has room for; above it [`install`] fails with `EMFILE`. It is
/// static so that no shim ever has to find out whether it exists.
pub const TABLE: usize = 65536;

static SLOTS: [AtomicPtr<Entry>; TABLE] = [const { AtomicPtr::new(std::ptr::null_mut()) }; TABLE];

/// Stands in a forked child's table for whatever its parent had open.
static INHERITED: Entry = Entry {
    live: AtomicBool::new(true),
    open: RwLock::new(None),
};

/// The process the table belongs to; 0 before the first install.
static OWNER: AtomicI32 = AtomicI32::new(0);
static FORKS: AtomicU32 = AtomicU32::new(0);
/// One above the highest number ever installed, so that a fork need not walk the whole table.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// A parent's file in a forked child.
struct Husk;

impl File for Husk {
    fn read(&self, _: RawFd, _: &mut [u8]) -> Result<usize, Errno> {
        Err(libc::EIO)
    }
    fn write(&self, _: RawFd, _: &[u8]) -> Result<usize, Errno> {
        Err(libc::EIO)
    }
    fn ioctl(&self, _: RawFd, _: c_ulong, _: *mut c_void) -> Result<c_int, Errno> {
        Err(libc::EIO)
    }
    fn mmap(
        &self,
        _: RawFd,
        _: *mut c_void,
        _: usize,
        _: c_int,
        _: c_int,
        _: off_t,
    ) -> Result<*mut c_void, Errno> {
        Err(libc::EIO)
    }
}

fn slot(fd: RawFd) -> Option<&'static AtomicPtr<Entry>> {
    SLOTS.get(usize::try_from(fd).ok()?)
}

fn inherited() -> *mut Entry {
    (&raw const INHERITED).cast_mut()
}

/// The live entry of a descriptor, in the process that owns the table.
#[inline]
fn live(fd: RawFd) -> Option<&'static Entry> {
    let entry = slot(fd)?.load(Ordering::Acquire);
    if entry.is_null() {
        return None;
    }
    // SAFETY: a slot holds null, the static INHERITED, or a leaked box; none is ever freed, and
    // none is written but through its own atomics and lock.
    let entry = unsafe { &*entry };
    (entry.live.load(Ordering::Acquire) && owned()).then_some(entry)
}

/// Whether this process is the one whose table it is (a vfork child is not).
fn owned() -> bool {
    // SAFETY: getpid has no preconditions.
    OWNER.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

fn take_ownership() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: getpid has no preconditions.
        OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
        // SAFETY: the handler is a plain function that lives as long as this library, which a
        // preloaded library does as long as the process.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
}

/// In the child of a fork: the parent's files become husks. Stores only, so it is safe whatever
/// lock another thread of the parent held; the parent's files stay allocated in the child.
extern "C" fn forked() {
    // SAFETY: getpid has no preconditions.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
    FORKS.fetch_add(1, Ordering::Relaxed);
    for slot in &SLOTS[..HIGHEST.load(Ordering::Relaxed)] {
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

/// How many forks lie between the process that first installed a file and this one. State that
/// leans on a thread (the NIC's) is stale when this number has changed.
pub fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

fn put(fd: RawFd, open: Arc<Open>) -> Result<(), Errno> {
    let slot = slot(fd).ok_or(libc::EMFILE)?;
    take_ownership();
    HIGHEST.fetch_max(fd as usize + 1, Ordering::Relaxed);
    let mut entry = slot.load(Ordering::Acquire);
    if entry.is_null() || entry == inherited() {
        entry = Box::into_raw(Box::new(Entry {
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

/// Makes the model answer for an open descriptor.
///
/// # Errors
/// `EMFILE` when the number is above what the table holds.
pub fn install(fd: RawFd, file: Arc<dyn File>) -> Result<(), Errno> {
    put(
        fd,
        Arc::new(Open {
            file,
            descriptors: AtomicUsize::new(1),
        }),
    )
}

/// The file that answers for a descriptor, or nothing when it is foreign.
#[inline]
pub fn lookup(fd: RawFd) -> Option<Arc<dyn File>> {
    let entry = live(fd)?;
    if std::ptr::eq(entry, &raw const INHERITED) {
        return Some(Arc::new(Husk));
    }
    let open = entry.open.read().unwrap_or_else(PoisonError::into_inner);
    open.as_ref().map(|open| Arc::clone(&open.file))
}

/// The model no longer answers for the descriptor; the file is told when this was its last one.
/// The descriptor itself stays open.
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
    // The entry's lock is released: a file may take its time over closing.
    if let Some(open) = open
        && open.descriptors.fetch_sub(1, Ordering::AcqRel) == 1
    {
        open.file.close(fd);
    }
}

/// Whether the model answers for a descriptor.
#[inline]
pub fn ours(fd: RawFd) -> bool {
    live(fd).is_some()
}

/// [`remove`], errno untouched: for a number that is about to be closed, or that the kernel has
/// just given out anew although the table still holds it, for it was closed out of sight.
#[inline]
pub fn forget(fd: RawFd) {
    if ours(fd) {
        let errno = real::errno();
        remove(fd);
        real::set_errno(errno);
    }
}

/// [`forget`] for every descriptor from `first` to `last`, both included.
pub fn forget_range(first: u32, last: u32) {
    let end = HIGHEST
        .load(Ordering::Relaxed)
        .min((last as usize).saturating_add(1));
    for fd in first as usize..end {
        forget(fd as RawFd);
    }
}

/// `new` was just duplicated from `old`: both stand for the same file.
///
/// # Errors
/// `EMFILE` when `new` is above what the table holds.
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
    put(new, Arc::clone(&open)).inspect_err(|_| {
        open.descriptors.fetch_sub(1, Ordering::AcqRel);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, OwnedFd};

    #[derive(Default)]
    struct Told {
        closed: AtomicUsize,
    }

    impl File for Told {
        fn read(&self, _: RawFd, buf: &mut [u8]) -> Result<usize, Errno> {
            buf.fill(7);
            Ok(buf.len())
        }
        fn close(&self, _: RawFd) {
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn file() -> (OwnedFd, Arc<Told>) {
        let fd = real::memfd(c"test", 1).expect("memfd");
        let told = Arc::new(Told::default());
        install(fd.as_raw_fd(), Arc::clone(&told) as Arc<dyn File>).expect("installed");
        (fd, told)
    }

    /// Runs `child` in a process that shares this one's memory, or has its copy, and says how it
    /// ended. Exit handlers belong to the parent.
    fn in_child(flags: c_int, child: fn(RawFd) -> c_int, fd: RawFd) -> c_int {
        extern "C" fn run(arg: *mut c_void) -> c_int {
            // SAFETY: the tuple lives in the parent's frame until the child has ended.
            let (child, fd) = unsafe { *arg.cast::<(fn(RawFd) -> c_int, RawFd)>() };
            child(fd)
        }
        let mut arg = (child, fd);
        let mut stack = vec![0u128; 16384];
        let mut status = 0;
        // SAFETY: the stack is the child's alone and outlives it, for the parent waits.
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
    fn foreign_numbers_are_nobodys() {
        for fd in [-1, RawFd::MIN, RawFd::MAX, TABLE as RawFd, 60000] {
            assert!(lookup(fd).is_none());
            remove(fd);
        }
        let told: Arc<dyn File> = Arc::new(Told::default());
        assert_eq!(install(TABLE as RawFd, told), Err(libc::EMFILE));
    }

    #[test]
    fn last_duplicate_closes() {
        let (fd, told) = file();
        let copy = fd.try_clone().expect("dup");
        duplicated(fd.as_raw_fd(), copy.as_raw_fd()).expect("room");
        remove(fd.as_raw_fd());
        remove(fd.as_raw_fd());
        assert_eq!(told.closed.load(Ordering::Relaxed), 0);
        assert!(lookup(copy.as_raw_fd()).is_some());
        remove(copy.as_raw_fd());
        assert_eq!(told.closed.load(Ordering::Relaxed), 1);
        assert!(lookup(copy.as_raw_fd()).is_none());
        assert_eq!(Arc::strong_count(&told), 1, "nothing of it stays");
    }

    #[test]
    fn lookups_that_race_a_close_find_the_file_or_nothing() {
        let fd = real::memfd(c"test", 1).expect("memfd");
        let number = fd.as_raw_fd();
        let stop = AtomicBool::new(false);
        /// Set even if an assertion fails: the scope waits for its threads.
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
                let told = Arc::new(Told::default());
                install(number, Arc::clone(&told) as Arc<dyn File>).expect("installed");
                remove(number);
                assert_eq!(told.closed.load(Ordering::Relaxed), 1);
            }
        });
    }

    #[test]
    fn forked_child_holds_a_husk() {
        let (fd, told) = file();
        let status = in_child(
            0,
            |fd| {
                let Some(husk) = lookup(fd) else { return 1 };
                if husk.read(fd, &mut [0]) != Err(libc::EIO) || forks() == 0 {
                    return 2;
                }
                if duplicated(fd, 60001).is_err() || lookup(60001).is_none() {
                    return 3;
                }
                remove(fd);
                // Closed, the number is free for anything.
                if lookup(fd).is_some() {
                    return 4;
                }
                let anew: Arc<dyn File> = Arc::new(Told::default());
                match install(fd, anew).map(|()| lookup(fd).map(|file| file.read(fd, &mut [0]))) {
                    Ok(Some(Ok(1))) => 42,
                    _ => 5,
                }
            },
            fd.as_raw_fd(),
        );
        assert_eq!(status, 42);
        assert!(lookup(fd.as_raw_fd()).is_some());
        remove(fd.as_raw_fd());
        assert_eq!(told.closed.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn vforked_child_leaves_its_parents_table_alone() {
        let (fd, told) = file();
        let status = in_child(
            libc::CLONE_VM | libc::CLONE_VFORK,
            |fd| {
                let foreign = lookup(fd).is_none();
                remove(fd);
                forget_range(0, u32::MAX);
                if foreign { 42 } else { 1 }
            },
            fd.as_raw_fd(),
        );
        assert_eq!(status, 42);
        assert_eq!(told.closed.load(Ordering::Relaxed), 0);
        assert!(lookup(fd.as_raw_fd()).is_some());
        remove(fd.as_raw_fd());
    }
}
