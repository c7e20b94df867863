//! The shims that take a path: they lead `/sys/class/infiniband*`, `/dev/infiniband` and the few
//! other places where hardware would show itself into the run directory.
//!
//! Imports `path_resolve` for what a path means, and `sysfs` for values that move. Invariant: a path that
//! is not the model's reaches the C library as the very pointer the program gave.
//!
//! Every SAFETY reason here is at heart the same: the program keeps the C function's contract, and
//! the shim substitutes for its path only a C string of its own that outlives the call.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::AsRawFd;

use libc::{AT_FDCWD, DIR, FILE, mode_t, size_t, ssize_t};

use super::path_resolve::{Meaning, Path, path_of};
use super::{Stage, answer, export, open_device};
use crate::process::real::{self, errno, raw, set_errno};
use crate::process::{Errno, descriptors as fds};
use crate::sysfs;

/// The path that stands for `path`, for calls that look at it and leave no descriptor. A device's
/// node is a link to `/dev/zero` in the tree, for the tree must need no privilege; `/dev/zero`
/// itself is what even a call that does not follow links should find.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn look<T>(dir: c_int, path: *const c_char, call: impl FnOnce(*const c_char) -> T) -> T {
    let Some(stage) = Stage::get().filter(|_| !path.is_null()) else {
        return call(path);
    };
    // SAFETY: not null, so a C string by the caller's contract.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    match stage.meaning(dir, bytes) {
        Meaning::Foreign | Meaning::Tree(Path::Same) => call(path),
        Meaning::Tree(Path::Other(text)) => call(text.as_ptr()),
        Meaning::Device(_) => call(c"/dev/zero".as_ptr()),
    }
}

/// As [`look`], for calls that open.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn opened(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    let Some(stage) = Stage::get().filter(|_| !path.is_null()) else {
        return call(path);
    };
    // SAFETY: not null, so a C string by the caller's contract.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let meaning = stage.meaning(dir, bytes);
    let fd = match &meaning {
        Meaning::Device(device) => return answer(-1, || open_device(*device, flags)),
        Meaning::Foreign | Meaning::Tree(Path::Same) => call(path),
        Meaning::Tree(Path::Other(text)) => call(text.as_ptr()),
    };
    if fd < 0 {
        return fd;
    }
    fds::forget(fd);
    let near = matches!(meaning, Meaning::Tree(_)) || bytes.first() != Some(&b'/');
    if near && flags & (libc::O_PATH | libc::O_DIRECTORY) == 0 {
        let before = errno();
        // A value that cannot be rendered shows what the tree has: never fail a good open for it.
        let _ = moving(stage, fd, bytes, flags);
        set_errno(before);
    }
    fd
}

/// Whether a file of this name may have a value that moves.
fn may_move(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    std::str::from_utf8(name).is_ok_and(sysfs::may_move)
}

/// Puts the present value behind `fd`, if it is a file whose value moves.
fn moving(stage: &Stage, fd: c_int, path: &[u8], flags: c_int) -> Result<(), Errno> {
    if !may_move(path) {
        return Ok(());
    }
    // What was opened tells, not how it was named: it may be a link, or relative.
    let mut link = [0; libc::PATH_MAX as usize];
    let value = path_of(fd, &mut link)
        .and_then(|path| path.strip_prefix(stage.dir.as_slice()))
        .and_then(|path| sysfs::render(std::str::from_utf8(path).ok()?));
    let Some(value) = value else { return Ok(()) };
    let file = real::memfd(c"mlx5-model", 0)?;
    real::write(file.as_raw_fd(), value.as_bytes())?;
    // SAFETY: no pointers; both descriptors are this call's own.
    let done = unsafe {
        libc::lseek(file.as_raw_fd(), 0, libc::SEEK_SET);
        // Onto the same number, which is the lowest that was free, as open promises.
        raw::dup3(file.as_raw_fd(), fd, flags & libc::O_CLOEXEC)
    };
    if done < 0 { Err(errno()) } else { Ok(()) }
}

/// `fopen` and `fopen64`. A file whose value moves is opened by [`opened`] and then made a stream;
/// any other, and every way of writing, is the C library's own business.
///
/// # Safety
/// `path` and `mode` are null or C strings.
unsafe fn fopened(
    path: *const c_char,
    mode: *const c_char,
    call: unsafe fn(*const c_char, *const c_char) -> *mut FILE,
) -> *mut FILE {
    // SAFETY: the program's own contract.
    let plain = |path| unsafe { call(path, mode) };
    let Some(stage) = Stage::get().filter(|_| !path.is_null() && !mode.is_null()) else {
        return plain(path);
    };
    // SAFETY: neither is null, so C strings by the caller's contract.
    let (bytes, how) = unsafe {
        (
            CStr::from_ptr(path).to_bytes(),
            CStr::from_ptr(mode).to_bytes(),
        )
    };
    let absolute = bytes.first() == Some(&b'/');
    let foreign = absolute && matches!(stage.meaning(AT_FDCWD, bytes), Meaning::Foreign);
    if foreign || how.first() != Some(&b'r') || !may_move(bytes) {
        // SAFETY: `path` is a C string.
        return unsafe { look(AT_FDCWD, path, plain) };
    }
    let access = if how.contains(&b'+') {
        libc::O_RDWR
    } else {
        libc::O_RDONLY
    };
    let flags = access
        | if how.contains(&b'e') {
            libc::O_CLOEXEC
        } else {
            0
        };
    // SAFETY: as this function's own contract; the mode is not used without O_CREAT.
    let fd = unsafe { opened(AT_FDCWD, path, flags, |path| raw::open64(path, flags, 0)) };
    if fd < 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the descriptor is open and this call's own, the mode a C string.
    let file = unsafe { libc::fdopen(fd, mode) };
    if file.is_null() {
        let error = errno();
        fds::remove(fd);
        let _ = real::close(fd);
        set_errno(error);
    }
    file
}

export! {
    /// `open(2)`.
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: as the module says.
        unsafe { opened(AT_FDCWD, path, flags, |path| raw::open(path, flags, mode)) }
    }
    /// `open(2)` with large files.
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: as the module says.
        unsafe { opened(AT_FDCWD, path, flags, |path| raw::open64(path, flags, mode)) }
    }
    /// `openat(2)`.
    fn openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: as the module says.
        unsafe { opened(dir, path, flags, |path| raw::openat(dir, path, flags, mode)) }
    }
    /// `openat(2)` with large files.
    fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: as the module says.
        unsafe { opened(dir, path, flags, |path| raw::openat64(dir, path, flags, mode)) }
    }
    /// `open` as fortified programs call it without a mode.
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as the module says.
        unsafe { opened(AT_FDCWD, path, flags, |path| raw::__open_2(path, flags)) }
    }
    /// `open64` as fortified programs call it without a mode.
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as the module says.
        unsafe { opened(AT_FDCWD, path, flags, |path| raw::__open64_2(path, flags)) }
    }
    /// `openat` as fortified programs call it without a mode.
    fn __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as the module says.
        unsafe { opened(dir, path, flags, |path| raw::__openat_2(dir, path, flags)) }
    }
    /// `openat64` as fortified programs call it without a mode.
    fn __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: as the module says.
        unsafe { opened(dir, path, flags, |path| raw::__openat64_2(dir, path, flags)) }
    }
    /// `fopen(3)`.
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: as the module says.
        unsafe { fopened(path, mode, raw::fopen) }
    }
    /// `fopen(3)` with large files.
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: as the module says.
        unsafe { fopened(path, mode, raw::fopen64) }
    }
    /// `opendir(3)`.
    fn opendir(path: *const c_char) -> *mut DIR {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::opendir(path)) }
    }
    /// `scandir(3)`, whose inner `opendir` is out of reach.
    fn scandir(path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::scandir(path, list, filter, order)) }
    }
    /// `scandir(3)` with large files.
    fn scandir64(path: *const c_char, list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::scandir64(path, list, filter, order)) }
    }
    /// `stat(2)`.
    fn stat(path: *const c_char, out: *mut libc::stat) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::stat(path, out)) }
    }
    /// `stat(2)` with large files.
    fn stat64(path: *const c_char, out: *mut libc::stat64) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::stat64(path, out)) }
    }
    /// `lstat(2)`.
    fn lstat(path: *const c_char, out: *mut libc::stat) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::lstat(path, out)) }
    }
    /// `lstat(2)` with large files.
    fn lstat64(path: *const c_char, out: *mut libc::stat64) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::lstat64(path, out)) }
    }
    /// `fstatat(2)`.
    fn fstatat(dir: c_int, path: *const c_char, out: *mut libc::stat, flags: c_int) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(dir, path, |path| raw::fstatat(dir, path, out, flags)) }
    }
    /// `fstatat(2)` with large files.
    fn fstatat64(dir: c_int, path: *const c_char, out: *mut libc::stat64, flags: c_int) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(dir, path, |path| raw::fstatat64(dir, path, out, flags)) }
    }
    /// `stat` as programs built before glibc 2.33 call it.
    fn __xstat(version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::__xstat(version, path, out)) }
    }
    /// `stat64` as programs built before glibc 2.33 call it.
    fn __xstat64(version: c_int, path: *const c_char, out: *mut libc::stat64) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::__xstat64(version, path, out)) }
    }
    /// `lstat` as programs built before glibc 2.33 call it.
    fn __lxstat(version: c_int, path: *const c_char, out: *mut libc::stat) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::__lxstat(version, path, out)) }
    }
    /// `lstat64` as programs built before glibc 2.33 call it.
    fn __lxstat64(version: c_int, path: *const c_char, out: *mut libc::stat64) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::__lxstat64(version, path, out)) }
    }
    /// `statx(2)`.
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(dir, path, |path| raw::statx(dir, path, flags, mask, out)) }
    }
    /// `access(2)`.
    fn access(path: *const c_char, mode: c_int) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::access(path, mode)) }
    }
    /// `eaccess(3)`.
    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::eaccess(path, mode)) }
    }
    /// `euidaccess(3)`.
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::euidaccess(path, mode)) }
    }
    /// `faccessat(2)`.
    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(dir, path, |path| raw::faccessat(dir, path, mode, flags)) }
    }
    /// `readlink(2)`.
    fn readlink(path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::readlink(path, buf, len)) }
    }
    /// `readlinkat(2)`.
    fn readlinkat(dir: c_int, path: *const c_char, buf: *mut c_char, len: size_t) -> ssize_t {
        // SAFETY: as the module says.
        unsafe { look(dir, path, |path| raw::readlinkat(dir, path, buf, len)) }
    }
    /// `realpath(3)`. The answer lies in the run directory.
    fn realpath(path: *const c_char, out: *mut c_char) -> *mut c_char {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::realpath(path, out)) }
    }
    /// `realpath` as fortified programs call it.
    fn __realpath_chk(path: *const c_char, out: *mut c_char, room: size_t) -> *mut c_char {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::__realpath_chk(path, out, room)) }
    }
    /// `canonicalize_file_name(3)`.
    fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::canonicalize_file_name(path)) }
    }
    /// `chdir(2)`.
    fn chdir(path: *const c_char) -> c_int {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::chdir(path)) }
    }
    /// `getxattr(2)`: `ls -l` asks it of all it lists.
    fn getxattr(path: *const c_char, name: *const c_char, out: *mut c_void, len: size_t) -> ssize_t {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::getxattr(path, name, out, len)) }
    }
    /// `lgetxattr(2)`.
    fn lgetxattr(path: *const c_char, name: *const c_char, out: *mut c_void, len: size_t) -> ssize_t {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::lgetxattr(path, name, out, len)) }
    }
    /// `listxattr(2)`.
    fn listxattr(path: *const c_char, out: *mut c_char, len: size_t) -> ssize_t {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::listxattr(path, out, len)) }
    }
    /// `llistxattr(2)`.
    fn llistxattr(path: *const c_char, out: *mut c_char, len: size_t) -> ssize_t {
        // SAFETY: as the module says.
        unsafe { look(AT_FDCWD, path, |path| raw::llistxattr(path, out, len)) }
    }
    /// `if_nametoindex(3)`: a GID's interface has to have an index, made up or not.
    fn if_nametoindex(name: *const c_char) -> c_uint {
        if let Some(stage) = Stage::get().filter(|_| !name.is_null()) {
            // SAFETY: not null, so a C string by the function's contract.
            let wanted = unsafe { CStr::from_ptr(name) };
            if let Some((_, index)) = stage.made_up.iter().find(|(name, _)| name.as_c_str() == wanted) {
                return *index;
            }
        }
        // SAFETY: as the module says.
        unsafe { raw::if_nametoindex(name) }
    }
    /// `if_indextoname(3)`.
    fn if_indextoname(index: c_uint, out: *mut c_char) -> *mut c_char {
        if let Some(stage) = Stage::get().filter(|_| !out.is_null())
            && let Some((name, _)) = stage.made_up.iter().find(|(_, known)| *known == index)
        {
            // SAFETY: `out` has IF_NAMESIZE bytes, and a name has at most that many with its zero.
            unsafe { out.copy_from_nonoverlapping(name.as_ptr(), name.as_bytes_with_nul().len()) };
            return out;
        }
        // SAFETY: as the module says.
        unsafe { raw::if_indextoname(index, out) }
    }
}
