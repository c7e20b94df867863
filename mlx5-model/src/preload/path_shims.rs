//! Shims of functions that take a path. They redirect `/sys/class/infiniband*`, `/dev/infiniband`
//! and the other places of hardware into the run directory.
//!
//! Imports `path_resolve`, and `sysfs::live` for values that change. Invariant: a foreign path
//! reaches the C library as the same pointer that the program passed.
//!
//! The SAFETY reason is the same for all calls: the program keeps the C function's contract. A shim
//! replaces the path only by its own C string, which outlives the call.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, RawFd};

use libc::{AT_FDCWD, DIR, FILE, mode_t, size_t, ssize_t};

use crate::process::real::{self, errno, raw, set_errno};
use crate::process::{Errno, descriptors};
use crate::sysfs::{live, presence};
use crate::uapi;

use super::overlay::Overlay;
use super::path_resolve::{PATH_MAX, Resolved, path_of};
use super::shim::{export, with_errno};

/// Opens `/dev/infiniband/uverbs<device>` as `/dev/zero` with the modelled NIC behind it. Its
/// fstat, device number and private mappings are then those of a character device.
fn open_device(device: usize, flags: c_int) -> Result<RawFd, Errno> {
    let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC);
    let fd = real::open(c"/dev/zero", flags, 0)?;
    if flags & libc::O_PATH != 0 {
        return Ok(fd);
    }
    descriptors::release(fd);
    uapi::open(device, presence::set)
        .and_then(|file| descriptors::install(fd, file))
        .map(|()| fd)
        .inspect_err(|_| {
            let _ = real::close(fd);
        })
}

/// Calls the C library's function `call` with the path that replaces `path`, for functions that
/// open no descriptor. A device node is a link to `/dev/zero` in the run directory, because a node
/// would require privilege. The call gets `/dev/zero` itself, so that functions that do not follow
/// links find it too.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn call_with_path<T>(
    dir: c_int,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> T,
) -> T {
    let Some(overlay) = Overlay::get().filter(|_| !path.is_null()) else {
        return call(path);
    };
    // SAFETY: not null, so a C string by the caller's contract.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    match overlay.resolve(dir, bytes) {
        Resolved::Foreign | Resolved::InPlace => call(path),
        Resolved::Redirected(other) => call(other.as_ptr()),
        Resolved::Device(_) => call(c"/dev/zero".as_ptr()),
    }
}

/// Calls the C library's function `call` with the path that replaces `path`, for functions that
/// open a descriptor.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn open_path(
    dir: c_int,
    flags: c_int,
    path: *const c_char,
    call: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    let Some(overlay) = Overlay::get().filter(|_| !path.is_null()) else {
        return call(path);
    };
    // SAFETY: not null, so a C string by the caller's contract.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let resolved = overlay.resolve(dir, bytes);
    let fd = match &resolved {
        Resolved::Device(device) => return with_errno(-1, || open_device(*device, flags)),
        Resolved::Foreign | Resolved::InPlace => call(path),
        Resolved::Redirected(other) => call(other.as_ptr()),
    };
    if fd < 0 {
        return fd;
    }
    descriptors::release(fd);
    let maybe_ours = !matches!(resolved, Resolved::Foreign) || bytes.first() != Some(&b'/');
    if maybe_ours && flags & (libc::O_PATH | libc::O_DIRECTORY) == 0 {
        let before = errno();
        // If the value cannot be rendered, the file of the run directory is used: the open must not
        // fail.
        let _ = show_live_value(overlay, fd, bytes, flags);
        set_errno(before);
    }
    fd
}

/// Returns `true` if the run directory's file of this name may have a value that changes.
fn may_be_live(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    std::str::from_utf8(name).is_ok_and(live::may_be_live)
}

/// Makes the descriptor `fd` a file with the current value if it was opened on a run directory file
/// whose value changes.
fn show_live_value(overlay: &Overlay, fd: c_int, path: &[u8], flags: c_int) -> Result<(), Errno> {
    if !may_be_live(path) {
        return Ok(());
    }
    // The opened file decides, not its name, which may be a link or relative.
    let mut link = [0; PATH_MAX];
    let value = path_of(fd, &mut link)
        .and_then(|path| path.strip_prefix(overlay.dir.as_slice()))
        .and_then(|path| live::render(std::str::from_utf8(path).ok()?));
    let Some(value) = value else { return Ok(()) };
    let file = real::memfd(c"mlx5-model", 0)?;
    real::write(file.as_raw_fd(), value.as_bytes())?;
    // SAFETY: no pointers; both descriptors belong to this call.
    let done = unsafe {
        libc::lseek(file.as_raw_fd(), 0, libc::SEEK_SET);
        // Keeps the number, which is the lowest that was free, as open promises.
        raw::dup3(file.as_raw_fd(), fd, flags & libc::O_CLOEXEC)
    };
    if done < 0 { Err(errno()) } else { Ok(()) }
}

/// Implements `fopen` and `fopen64`. A file whose value changes is opened by [`opened`] and then
/// made a stream. All other files, and all modes for writing, are left to the C library.
///
/// # Safety
/// `path` and `mode` are null or C strings.
unsafe fn fopen_path(
    path: *const c_char,
    mode: *const c_char,
    call: unsafe fn(*const c_char, *const c_char) -> *mut FILE,
) -> *mut FILE {
    // SAFETY: the program keeps the contract of the C function.
    let plain = |path| unsafe { call(path, mode) };
    let Some(overlay) = Overlay::get().filter(|_| !path.is_null() && !mode.is_null()) else {
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
    let foreign = absolute && matches!(overlay.resolve(AT_FDCWD, bytes), Resolved::Foreign);
    if foreign || how.first() != Some(&b'r') || !may_be_live(bytes) {
        // SAFETY: `path` is a C string.
        return unsafe { call_with_path(AT_FDCWD, path, plain) };
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
    // SAFETY: by this function's own contract; the mode is not used without O_CREAT.
    let fd = unsafe { open_path(AT_FDCWD, flags, path, |path| raw::open64(path, flags, 0)) };
    if fd < 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: the descriptor is open and belongs to this call; the mode is a C string.
    let file = unsafe { libc::fdopen(fd, mode) };
    if file.is_null() {
        let error = errno();
        descriptors::remove(fd);
        let _ = real::close(fd);
        set_errno(error);
    }
    file
}

/// Exports shims of C functions that call [`redirected`] or [`opened`]; the semicolon marks the
/// position of the path.
macro_rules! path_shims {
    ($($name:ident($($before:ident: $before_ty:ty)?; $($arg:ident: $ty:ty),*) -> $ret:ty = $via:ident($($with:expr),*);)*) => {
        export! {$(
            #[doc = concat!("`", stringify!($name), "` with its path redirected into the run directory.")]
            fn $name($($before: $before_ty,)? path: *const c_char, $($arg: $ty),*) -> $ret {
                // SAFETY: as at the top.
                unsafe { $via($($with,)* path, |path| raw::$name($($before,)? path, $($arg),*)) }
            }
        )*}
    };
}

path_shims! {
    open(; flags: c_int, mode: mode_t) -> c_int = open_path(AT_FDCWD, flags);
    open64(; flags: c_int, mode: mode_t) -> c_int = open_path(AT_FDCWD, flags);
    openat(dir: c_int; flags: c_int, mode: mode_t) -> c_int = open_path(dir, flags);
    openat64(dir: c_int; flags: c_int, mode: mode_t) -> c_int = open_path(dir, flags);
    // Variants without a mode, as fortified programs call them.
    __open_2(; flags: c_int) -> c_int = open_path(AT_FDCWD, flags);
    __open64_2(; flags: c_int) -> c_int = open_path(AT_FDCWD, flags);
    __openat_2(dir: c_int; flags: c_int) -> c_int = open_path(dir, flags);
    __openat64_2(dir: c_int; flags: c_int) -> c_int = open_path(dir, flags);
    opendir(;) -> *mut DIR = call_with_path(AT_FDCWD);
    scandir(; list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int = call_with_path(AT_FDCWD);
    scandir64(; list: *mut c_void, filter: *mut c_void, order: *mut c_void) -> c_int = call_with_path(AT_FDCWD);
    stat(; out: *mut libc::stat) -> c_int = call_with_path(AT_FDCWD);
    stat64(; out: *mut libc::stat64) -> c_int = call_with_path(AT_FDCWD);
    lstat(; out: *mut libc::stat) -> c_int = call_with_path(AT_FDCWD);
    lstat64(; out: *mut libc::stat64) -> c_int = call_with_path(AT_FDCWD);
    fstatat(dir: c_int; out: *mut libc::stat, flags: c_int) -> c_int = call_with_path(dir);
    fstatat64(dir: c_int; out: *mut libc::stat64, flags: c_int) -> c_int = call_with_path(dir);
    // Variants of stat and lstat for programs that were built before glibc 2.33.
    __xstat(version: c_int; out: *mut libc::stat) -> c_int = call_with_path(AT_FDCWD);
    __xstat64(version: c_int; out: *mut libc::stat64) -> c_int = call_with_path(AT_FDCWD);
    __lxstat(version: c_int; out: *mut libc::stat) -> c_int = call_with_path(AT_FDCWD);
    __lxstat64(version: c_int; out: *mut libc::stat64) -> c_int = call_with_path(AT_FDCWD);
    statx(dir: c_int; flags: c_int, mask: c_uint, out: *mut libc::statx) -> c_int = call_with_path(dir);
    access(; mode: c_int) -> c_int = call_with_path(AT_FDCWD);
    eaccess(; mode: c_int) -> c_int = call_with_path(AT_FDCWD);
    euidaccess(; mode: c_int) -> c_int = call_with_path(AT_FDCWD);
    faccessat(dir: c_int; mode: c_int, flags: c_int) -> c_int = call_with_path(dir);
    readlink(; buf: *mut c_char, len: size_t) -> ssize_t = call_with_path(AT_FDCWD);
    readlinkat(dir: c_int; buf: *mut c_char, len: size_t) -> ssize_t = call_with_path(dir);
    // The result is a path in the run directory.
    realpath(; out: *mut c_char) -> *mut c_char = call_with_path(AT_FDCWD);
    __realpath_chk(; out: *mut c_char, room: size_t) -> *mut c_char = call_with_path(AT_FDCWD);
    canonicalize_file_name(;) -> *mut c_char = call_with_path(AT_FDCWD);
    chdir(;) -> c_int = call_with_path(AT_FDCWD);
    // `ls -l` reads the attributes of all files that it lists.
    getxattr(; name: *const c_char, out: *mut c_void, len: size_t) -> ssize_t = call_with_path(AT_FDCWD);
    lgetxattr(; name: *const c_char, out: *mut c_void, len: size_t) -> ssize_t = call_with_path(AT_FDCWD);
    listxattr(; out: *mut c_char, len: size_t) -> ssize_t = call_with_path(AT_FDCWD);
    llistxattr(; out: *mut c_char, len: size_t) -> ssize_t = call_with_path(AT_FDCWD);
}

export! {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: as at the top.
        unsafe { fopen_path(path, mode, raw::fopen) }
    }
    /// `fopen(3)` with 64-bit file offsets.
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        // SAFETY: as at the top.
        unsafe { fopen_path(path, mode, raw::fopen64) }
    }
    /// `if_nametoindex(3)`, with the virtual interfaces of the model: the network interface of a
    /// GID must have an index.
    fn if_nametoindex(name: *const c_char) -> c_uint {
        if let Some(overlay) = Overlay::get().filter(|_| !name.is_null()) {
            // SAFETY: not null, so a C string by the function's contract.
            let wanted = unsafe { CStr::from_ptr(name) };
            if let Some((_, index)) = overlay.virtual_netdevs.iter().find(|(name, _)| name.as_c_str() == wanted) {
                return *index;
            }
        }
        // SAFETY: as at the top.
        unsafe { raw::if_nametoindex(name) }
    }
    fn if_indextoname(index: c_uint, out: *mut c_char) -> *mut c_char {
        if let Some(overlay) = Overlay::get().filter(|_| !out.is_null())
            && let Some((name, _)) = overlay.virtual_netdevs.iter().find(|(_, known)| *known == index)
        {
            // SAFETY: `out` has IF_NAMESIZE bytes, and a name has at most that many with its zero.
            unsafe { out.copy_from_nonoverlapping(name.as_ptr(), name.as_bytes_with_nul().len()) };
            return out;
        }
        // SAFETY: as at the top.
        unsafe { raw::if_indextoname(index, out) }
    }
}
