//! Shims of functions that take a descriptor. They pass calls on the model's descriptors to their
//! files, and update the descriptor table when a descriptor is closed or duplicated.
//!
//! Invariant: for a foreign descriptor each shim calls the C library after one load from the table.
//!
//! The SAFETY reason is the same for all calls: the program keeps the C function's contract, and
//! its arguments are passed on unchanged.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{off_t, size_t, ssize_t};

use crate::process::real::{self, errno, raw, set_errno};
use crate::process::{Errno, MapRequest, descriptors};
use crate::settings;

use super::overlay::Overlay;
use super::shim::{export, next, with_errno};
use super::{netdev, netlink};

/// Maximum number of bytes of one `read` or `write` call: `MAX_RW_COUNT` of the kernel, less than
/// the maximum of a slice.
const MAX_RW_COUNT: usize = 0x7fff_f000;

/// Implements `read(2)` for a descriptor that the model handles.
///
/// # Safety
/// `buf` is null or writable for `len` bytes.
unsafe fn read_own(
    file: &dyn descriptors::File,
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
) -> ssize_t {
    with_errno(-1, || {
        let room: &mut [u8] = match len.min(MAX_RW_COUNT) {
            0 => &mut [],
            _ if buf.is_null() => return Err(libc::EFAULT),
            // SAFETY: not null, and writable for `len` bytes by the caller's contract; plain bytes.
            len => unsafe { std::slice::from_raw_parts_mut(buf.cast(), len) },
        };
        file.read(fd, room).map(usize::cast_signed)
    })
}

/// Opens a socket of RDMA netlink that the model answers. Fails with `EPROTONOSUPPORT`, as a kernel
/// without it, unless a device has no GIDs and RDMA netlink: the netdev of any other device is in
/// sysfs.
fn rdma_netlink() -> Result<c_int, Errno> {
    let devices = &settings::global().devices;
    let answers = |it: &settings::DeviceSettings| it.topology.rdma_netlink && it.gids() == 0;
    let overlay = Overlay::get().filter(|_| devices.iter().any(answers));
    let class = overlay.map(|it| it.path().join("sys/class/infiniband"));
    let fd = netlink::open(devices, &class.ok_or(libc::EPROTONOSUPPORT)?)?;
    descriptors::release(fd);
    Ok(fd)
}

/// Registers a duplicate descriptor that the C library just made, with the file of the original.
fn duplicate(old: c_int, new: c_int) -> c_int {
    if new < 0 || old == new {
        return new;
    }
    descriptors::release(new);
    match descriptors::duplicated(old, new) {
        Ok(()) => new,
        Err(error) => {
            let _ = real::close(new);
            set_errno(error);
            -1
        }
    }
}

/// Removes the target descriptor of `dup2` and `dup3` from the model's table before the call
/// replaces it.
fn release_target(old: c_int, new: c_int) -> Result<(), Errno> {
    if old != new && descriptors::contains(new) {
        // If the source is bad, the target stays open.
        // SAFETY: no pointers.
        if next!(fcntl(old, libc::F_GETFD, std::ptr::null_mut())) < 0 {
            return Err(errno());
        }
        descriptors::remove(new);
    }
    Ok(())
}

/// Implements `fcntl` and `fcntl64`, which differ only in name on 64-bit machines.
///
/// # Safety
/// The contract of `fcntl`.
unsafe fn fcntl_any(
    fd: c_int,
    command: c_int,
    arg: *mut c_void,
    call: unsafe fn(c_int, c_int, *mut c_void) -> c_int,
) -> c_int {
    // SAFETY: as at the top.
    let result = unsafe { call(fd, command, arg) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicate(fd, result),
        _ => result,
    }
}

/// Implements `mmap` and `mmap64`, which differ only in name on 64-bit machines.
///
/// # Safety
/// The contract of `mmap`.
unsafe fn mmap_any(
    at: (*mut c_void, size_t),
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
    call: unsafe fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void,
) -> *mut c_void {
    let (addr, len) = at;
    if fd >= 0
        && flags & libc::MAP_ANONYMOUS == 0
        && let Some(file) = descriptors::lookup(fd)
    {
        return with_errno(libc::MAP_FAILED, || {
            let request = MapRequest {
                addr,
                len,
                prot,
                flags,
                offset,
            };
            file.mmap(fd, request)
        });
    }
    // SAFETY: as at the top.
    unsafe { call(addr, len, prot, flags, fd, offset) }
}

export! {
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
        match descriptors::lookup(fd) {
            None => next!(read(fd, buf, len)),
            // SAFETY: as at the top.
            Some(file) => unsafe { read_own(&*file, fd, buf, len) },
        }
    }
    /// Implements `read(2)` as fortified programs call it.
    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        match descriptors::lookup(fd) {
            // SAFETY: as at the top.
            Some(file) if len <= room => unsafe { read_own(&*file, fd, buf, len) },
            // Too long for its buffer: the C library ends the program.
            _ => next!(__read_chk(fd, buf, len, room)),
        }
    }
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
        let Some(file) = descriptors::lookup(fd) else {
            return next!(write(fd, buf, len));
        };
        with_errno(-1, || {
            let bytes: &[u8] = match len.min(MAX_RW_COUNT) {
                0 => &[],
                _ if buf.is_null() => return Err(libc::EFAULT),
                // SAFETY: not null, and readable for `len` by the function's contract.
                len => unsafe { std::slice::from_raw_parts(buf.cast(), len) },
            };
            file.write(fd, bytes).map(usize::cast_signed)
        })
    }
    fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
        match descriptors::lookup(fd) {
            // SAFETY: as at the top.
            None => match unsafe { netdev::decode(request, arg) } {
                None => next!(ioctl(fd, request, arg)),
                // SAFETY: as at the top.
                Some(question) => with_errno(-1, || unsafe { question.execute() }),
            },
            Some(file) => with_errno(-1, || file.ioctl(fd, request, arg)),
        }
    }
    fn mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        // SAFETY: as at the top.
        unsafe { mmap_any((addr, len), prot, flags, fd, offset, raw::mmap) }
    }
    /// `mmap(2)` with 64-bit file offsets.
    fn mmap64(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        // SAFETY: as at the top.
        unsafe { mmap_any((addr, len), prot, flags, fd, offset, raw::mmap64) }
    }
    fn close(fd: c_int) -> c_int {
        descriptors::release(fd);
        next!(close(fd))
    }
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 && first <= last {
            descriptors::release_range(first, last);
        }
        next!(close_range(first, last, flags))
    }
    fn closefrom(first: c_int) {
        descriptors::release_range(first.max(0).cast_unsigned(), c_uint::MAX);
        next!(closefrom(first));
    }
    fn dup(fd: c_int) -> c_int {
        duplicate(fd, next!(dup(fd)))
    }
    fn dup2(old: c_int, new: c_int) -> c_int {
        if let Err(error) = release_target(old, new) {
            set_errno(error);
            return -1;
        }
        duplicate(old, next!(dup2(old, new)))
    }
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        if flags & !libc::O_CLOEXEC == 0
            && let Err(error) = release_target(old, new)
        {
            set_errno(error);
            return -1;
        }
        duplicate(old, next!(dup3(old, new, flags)))
    }
    fn fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: as at the top.
        unsafe { fcntl_any(fd, command, arg, raw::fcntl) }
    }
    /// `fcntl(2)` with 64-bit file offsets.
    fn fcntl64(fd: c_int, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: as at the top.
        unsafe { fcntl_any(fd, command, arg, raw::fcntl64) }
    }
    /// `socket(2)`, which fails for RDMA netlink sockets, or returns a socket that the model
    /// answers. libibverbs asks the kernel for its devices over netlink, and reads sysfs only when
    /// that fails. The kernel would report no devices.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        if domain == libc::AF_NETLINK && protocol == libc::NETLINK_RDMA && Overlay::get().is_some() {
            return with_errno(-1, rdma_netlink);
        }
        let fd = next!(socket(domain, kind, protocol));
        descriptors::release(fd);
        fd
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

    #[derive(Default)]
    struct Echo {
        closed: AtomicUsize,
    }

    impl descriptors::File for Echo {
        fn write(&self, _: c_int, buf: &[u8]) -> Result<usize, Errno> {
            match buf {
                [] => Err(libc::EINVAL),
                _ => {
                    // Test that an internal call that fails does not change the program's errno.
                    set_errno(libc::EDOM);
                    Ok(buf.len())
                }
            }
        }
        fn close(&self, _: c_int) {
            set_errno(libc::EDOM);
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Installs a descriptor of the model for a test, with a number far above those of tests that
    /// run at the same time. So a number that a test closes is not assigned to another test at
    /// once.
    fn echo() -> (c_int, Arc<Echo>) {
        static NEXT: AtomicI32 = AtomicI32::new(700);
        let low = real::memfd(c"test", 1).expect("memfd succeeds");
        let least = NEXT.fetch_add(8, Ordering::Relaxed);
        // SAFETY: no pointers; the copy is this test's own.
        let fd = unsafe { libc::fcntl(low.as_raw_fd(), libc::F_DUPFD_CLOEXEC, least) };
        assert!(fd >= least);
        let echo = Arc::new(Echo::default());
        descriptors::install(fd, Arc::clone(&echo) as Arc<dyn descriptors::File>)
            .expect("the descriptor is in the table");
        (fd, echo)
    }

    fn closed(echo: &Echo) -> usize {
        echo.closed.load(Ordering::Relaxed)
    }

    #[test]
    fn errno_is_set_by_failure_alone() {
        let (fd, _) = echo();
        set_errno(libc::ENOANO);
        // SAFETY: a static byte, a descriptor of this test.
        unsafe {
            assert_eq!(write(fd, b"x".as_ptr().cast(), 1), 1);
            assert_eq!(errno(), libc::ENOANO);
            assert_eq!(write(fd, b"x".as_ptr().cast(), 0), -1);
            assert_eq!(errno(), libc::EINVAL);
            assert_eq!(write(fd, std::ptr::null(), 8), -1);
            assert_eq!(errno(), libc::EFAULT);
            set_errno(libc::ENOANO);
            assert_eq!(close(fd), 0);
            assert_eq!(errno(), libc::ENOANO);
            assert_eq!(close(fd), -1);
            assert_eq!(errno(), libc::EBADF);
        }
    }

    #[test]
    fn dup2_closes_its_target() {
        let ((a, first), (b, second)) = (echo(), echo());
        // SAFETY: no pointers.
        unsafe {
            assert_eq!(dup2(-1, b), -1);
            assert_eq!((errno(), closed(&second)), (libc::EBADF, 0));
            assert_eq!(dup2(a, a), a);
            assert_eq!(dup2(a, b), b);
            assert_eq!((closed(&first), closed(&second)), (0, 1));
            let c = fcntl(
                b,
                libc::F_DUPFD_CLOEXEC,
                std::ptr::without_provenance_mut(0),
            );
            assert!(descriptors::contains(c));
            let plain = real::memfd(c"test", 1).expect("memfd succeeds");
            assert_eq!(dup3(plain.as_raw_fd(), c, libc::O_CLOEXEC), c);
            assert!(!descriptors::contains(c));
            assert_eq!((close(a), closed(&first)), (0, 0));
            assert_eq!((close(b), closed(&first)), (0, 1));
            close(c);
        }
    }

    #[test]
    fn close_range_closes_the_models_own() {
        let (fd, echo) = echo();
        let range = fd.cast_unsigned();
        // SAFETY: no pointers; the range is this test's descriptor.
        unsafe {
            assert_eq!(
                close_range(range, range, libc::CLOSE_RANGE_CLOEXEC as c_int),
                0
            );
            assert!(descriptors::contains(fd));
            assert_eq!(close_range(range, range, 0), 0);
        }
        assert_eq!(closed(&echo), 1);
        assert!(!descriptors::contains(fd));
    }
}
