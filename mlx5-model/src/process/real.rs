//! The C library's own functions, which the model's symbols of the same names hide.
//!
//! Imports nothing. Invariant: a function is looked up once by `dlsym(RTLD_NEXT)` and its address
//! is kept in an atomic. So a call works before any constructor ran, in any thread and in a signal
//! handler.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{OwnedFd, RawFd};

use libc::{mode_t, off_t, size_t, ssize_t};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Error number of the C library, such as `EINVAL`.
pub type Errno = c_int;

/// C library functions with their C signatures; errno stays as the C library set it.
pub mod raw {
    use std::mem::transmute;
    use std::sync::atomic::{AtomicPtr, Ordering};

    use libc::{DIR, FILE, off64_t};

    use super::*;

    fn find(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
        let known = cache.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let mut found = std::ptr::null_mut();
        // Before glibc 2.36, RTLD_NEXT finds the oldest version of a symbol
        // (https://sourceware.org/bugzilla/show_bug.cgi?id=14932). Of these functions only realpath has
        // two, and the older one refuses a null pointer for the result.
        if name == c"realpath" {
            // SAFETY: as below; a version that the C library lacks is not found.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), c"GLIBC_2.3".as_ptr()) };
        }
        if found.is_null() {
            // SAFETY: the name is a C string; the dynamic linker resolves RTLD_NEXT at any time.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        }
        cache.store(found, Ordering::Relaxed);
        found
    }

    macro_rules! functions {
        ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty, or $fail:expr;)*) => {$(
            #[doc = concat!("Calls the C library's `", stringify!($name), "`; fails with `ENOSYS` if the library lacks it.")]
            ///
            /// # Safety
            /// The contract of the C function of that name.
            #[inline]
            pub unsafe fn $name($($arg: $ty),*) -> $ret {
                static AT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => unreachable!(),
                };
                let at = find(&AT, NAME);
                if at.is_null() {
                    super::set_errno(libc::ENOSYS);
                    return $fail;
                }
                // SAFETY: the address is that of the C function of this name, and the signature is
                // the one of its header. Variadic functions get their one optional argument, which
                // the System V conventions of x86-64 and aarch64 pass in the same way.
                let call = unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($ty),*) -> $ret>(at) };
                // SAFETY: the caller keeps the C function's contract.
                unsafe { call($($arg),*) }
            }
        )*};
    }

    functions! {
        open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, or -1;
        open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, or -1;
        openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, or -1;
        openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, or -1;
        __open_2(path: *const c_char, flags: c_int) -> c_int, or -1;
        __open64_2(path: *const c_char, flags: c_int) -> c_int, or -1;
        __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int, or -1;
        __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int, or -1;
        fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, or std::ptr::null_mut();
        fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE, or std::ptr::null_mut();
        opendir(path: *const c_char) -> *mut DIR, or std::ptr::null_mut();
        stat(path: *const c_char, out: *mut libc::stat) -> c_int, or -1;
        lstat(path: *const c_char, out: *mut libc::stat) -> c_int, or -1;
        fstatat(dir: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int, or -1;
        stat64(path: *const c_char, out: *mut libc::stat64) -> c_int, or -1;
        lstat64(path: *const c_char, out: *mut libc::stat64) -> c_int, or -1;
        fstatat64(dir: c_int, path: *const c_char, out: *mut libc::stat64, flags: c_int) -> c_int, or -1;
        __xstat(version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int, or -1;
        __lxstat(version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int, or -1;
        __xstat64(version: c_int, path: *const c_char, out: *mut libc::stat64) -> c_int, or -1;
        __lxstat64(version: c_int, path: *const c_char, out: *mut libc::stat64) -> c_int, or -1;
        statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int, or -1;
        access(path: *const c_char, mode: c_int) -> c_int, or -1;
        faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int, or -1;
        readlink(path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t, or -1;
        readlinkat(dir: c_int, path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t, or -1;
        realpath(path: *const c_char, out: *mut c_char) -> *mut c_char, or std::ptr::null_mut();
        chdir(path: *const c_char) -> c_int, or -1;
        lgetxattr(path: *const c_char, name: *const c_char, out: *mut c_void, len: size_t) -> ssize_t, or -1;
        getxattr(path: *const c_char, name: *const c_char, out: *mut c_void, len: size_t) -> ssize_t, or -1;
        listxattr(path: *const c_char, out: *mut c_char, len: size_t) -> ssize_t, or -1;
        llistxattr(path: *const c_char, out: *mut c_char, len: size_t) -> ssize_t, or -1;
        read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t, or -1;
        write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t, or -1;
        __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t, or -1;
        ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int, or -1;
        fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int, or -1;
        fcntl64(fd: c_int, command: c_int, arg: *mut c_void) -> c_int, or -1;
        mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void, or libc::MAP_FAILED;
        mmap64(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off64_t) -> *mut c_void, or libc::MAP_FAILED;
        close(fd: c_int) -> c_int, or -1;
        close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int, or -1;
        dup(fd: c_int) -> c_int, or -1;
        dup2(old: c_int, new: c_int) -> c_int, or -1;
        dup3(old: c_int, new: c_int, flags: c_int) -> c_int, or -1;
        socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, or -1;
        closefrom(first: c_int) -> (), or Default::default();
        scandir(path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int, or -1;
        scandir64(path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int, or -1;
        eaccess(path: *const c_char, mode: c_int) -> c_int, or -1;
        euidaccess(path: *const c_char, mode: c_int) -> c_int, or -1;
        __realpath_chk(path: *const c_char, out: *mut c_char, room: size_t) -> *mut c_char, or std::ptr::null_mut();
        canonicalize_file_name(path: *const c_char) -> *mut c_char, or std::ptr::null_mut();
        if_nametoindex(name: *const c_char) -> c_uint, or 0;
        if_indextoname(index: c_uint, out: *mut c_char) -> *mut c_char, or std::ptr::null_mut();
        setenv(name: *const c_char, value: *const c_char, overwrite: c_int) -> c_int, or -1;
    }
}

/// Returns the errno of the calling thread.
#[inline]
pub fn errno() -> Errno {
    // SAFETY: the location is this thread's own, for as long as the thread lives.
    unsafe { *libc::__errno_location() }
}

/// Sets the errno of the calling thread.
#[inline]
pub fn set_errno(errno: Errno) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno }
}

/// Converts the result of a `read` or `write` call into the byte count or errno.
fn counted(result: ssize_t) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| errno())
}

fn checked(result: c_int) -> Result<c_int, Errno> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

pub fn read(fd: RawFd, buf: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the slice is writable for its length.
    counted(unsafe { raw::read(fd, buf.as_mut_ptr().cast(), buf.len()) })
}

pub fn write(fd: RawFd, buf: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the slice is readable for its length.
    counted(unsafe { raw::write(fd, buf.as_ptr().cast(), buf.len()) })
}

/// Calls `open(2)` with the given flags and the mode for `O_CREAT`.
pub fn open(path: &CStr, flags: c_int, mode: mode_t) -> Result<RawFd, Errno> {
    // SAFETY: the path is a C string.
    checked(unsafe { raw::open(path.as_ptr(), flags, mode) })
}

pub fn close(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: closing a number is memory-safe; the caller owns the descriptor.
    checked(unsafe { raw::close(fd) }).map(drop)
}

pub fn ioctl(fd: RawFd, request: c_ulong, arg: *mut c_void) -> Result<c_int, Errno> {
    // SAFETY: the model forwards a program's own call unchanged: the program ensures that `arg` is
    // valid.
    checked(unsafe { raw::ioctl(fd, request, arg) })
}

/// Arguments of `mmap(2)` except the descriptor.
#[derive(Clone, Copy)]
pub struct MapRequest {
    pub addr: *mut c_void,
    pub len: usize,
    pub prot: c_int,
    pub flags: c_int,
    pub offset: off_t,
}

/// Maps the first `len` bytes of a file into memory, shared, readable and writable.
pub fn map_shared(fd: RawFd, len: usize) -> Result<*mut c_void, Errno> {
    let request = MapRequest {
        addr: std::ptr::null_mut(),
        len,
        prot: libc::PROT_READ | libc::PROT_WRITE,
        flags: libc::MAP_SHARED,
        offset: 0,
    };
    mmap(fd, request)
}

/// Calls `mmap(2)`. With `MAP_FIXED` in the request it replaces the mapping at the address.
pub fn mmap(fd: RawFd, it: MapRequest) -> Result<*mut c_void, Errno> {
    // SAFETY: without MAP_FIXED the kernel chooses free addresses; with it, the program that asked
    // is responsible for the range.
    let at = unsafe { raw::mmap(it.addr, it.len, it.prot, it.flags, fd, it.offset) };
    if at == libc::MAP_FAILED {
        Err(errno())
    } else {
        Ok(at)
    }
}

/// Calls `eventfd(2)`. It is not interposed; the wrapper keeps unsafe code out of the device model.
pub fn eventfd(initial: c_uint, flags: c_int) -> Result<RawFd, Errno> {
    // SAFETY: no pointers.
    checked(unsafe { libc::eventfd(initial, flags) })
}

/// Creates an anonymous file of `len` bytes, closed on exec.
pub fn memfd(name: &CStr, len: usize) -> Result<OwnedFd, Errno> {
    let made = memfd_create(name, MemfdFlags::CLOEXEC);
    let sized = made.and_then(|file| {
        without_size_signal(|| ftruncate(&file, len as u64))?;
        Ok(file)
    });
    sized.map_err(|e| e.raw_os_error())
}

/// Runs `work` with the signal SIGXFSZ suppressed: writing a file beyond the limit of file sizes
/// (`ulimit -f`, RLIMIT_FSIZE) is then only an error, EFBIG. By default the kernel also kills the
/// process with SIGXFSZ (`inode_newsize_ok` of fs/attr.c, `generic_write_check_limits` of
/// fs/read_write.c), whatever program it is.
pub fn without_size_signal<T>(work: impl FnOnce() -> T) -> T {
    const AT_ONCE: libc::timespec = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut size = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set, and the calls get pointers to sets.
    let was_blocked = unsafe {
        libc::sigemptyset(size.as_mut_ptr());
        libc::sigaddset(size.as_mut_ptr(), libc::SIGXFSZ);
        libc::pthread_sigmask(libc::SIG_BLOCK, size.as_ptr(), before.as_mut_ptr());
        libc::sigismember(before.as_ptr(), libc::SIGXFSZ) == 1
    };
    let result = work();
    if !was_blocked {
        // The signal is for the thread that wrote, so no other thread takes it.
        // SAFETY: both sets are initialised above.
        unsafe {
            while libc::sigtimedwait(size.as_ptr(), std::ptr::null_mut(), &AT_ONCE) > 0 {}
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    result
}
