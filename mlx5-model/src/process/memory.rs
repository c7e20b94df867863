//! Access to the program's memory by the addresses in commands: copies through the kernel, and
//! pinning.
//!
//! Imports `real`. Invariant: a bad address results in an errno, never in a fault.
//!
//! Limitation: a program may unmap a ring or a region that is still registered. Real pinning
//! survives that. In the model the device's access faults, as the program's own access would.

#![allow(unsafe_code)]

use std::ffi::c_ulong;
use std::sync::atomic::AtomicU32;

use libc::{c_void, iovec, pid_t, ssize_t};

use super::real::{self, Errno};

type VmCopy =
    unsafe extern "C" fn(pid_t, *const iovec, c_ulong, *const iovec, c_ulong, c_ulong) -> ssize_t;

/// Copies `bytes` to the program's memory at `addr`. Fails with `EFAULT` if `addr` is not writable.
pub fn copy_to_user(addr: u64, bytes: &[u8]) -> Result<(), Errno> {
    let local = bytes.as_ptr().cast_mut().cast();
    if !copy_by_kernel(libc::process_vm_writev, local, addr, bytes.len(), true)? {
        // SAFETY: the range has just been found mapped and writable, and the program lends it to
        // this command until the command returns.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
    }
    Ok(())
}

/// Fills `bytes` from the program's memory at `addr`. Fails with `EFAULT` if `addr` is not
/// readable.
pub fn copy_from_user(addr: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    let (local, len) = (bytes.as_mut_ptr(), bytes.len());
    if !copy_by_kernel(libc::process_vm_readv, local.cast(), addr, len, false)? {
        // SAFETY: the range has just been found mapped and readable, and the program lends it to
        // this command until the command returns.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, local, len) };
    }
    Ok(())
}

/// Copies between `local` and the program's memory at `addr` by a system call, which checks `addr`.
/// Returns `false` if a sandbox forbids the call and the range is mapped; the caller then has to
/// copy.
fn copy_by_kernel(
    copy: VmCopy,
    local: *mut c_void,
    addr: u64,
    len: usize,
    write: bool,
) -> Result<bool, Errno> {
    if len == 0 {
        return Ok(true);
    }
    let [local, remote] = [local, addr as *mut c_void].map(|iov_base| iovec {
        iov_base,
        iov_len: len,
    });
    // SAFETY: both callers pass a live slice for the local side, writable for readv; the kernel
    // checks the remote side.
    let done = unsafe { copy(libc::getpid(), &local, 1, &remote, 1, 0) };
    if usize::try_from(done) == Ok(len) {
        return Ok(true);
    }
    if done < 0 && matches!(real::errno(), libc::ENOSYS | libc::EPERM) {
        return fault_in(addr, len as u64, write).map(|()| false);
    }
    Err(libc::EFAULT)
}

const PAGE: u64 = 4096;

/// Makes every page of a memory range present, as pinning does; with `write` also its private
/// copies. Fails with `EFAULT`, as pinning does, if a page is not mapped or lacks the permission.
pub fn fault_in(addr: u64, len: u64, write: bool) -> Result<(), Errno> {
    let end = addr.checked_add(len).ok_or(libc::EINVAL)?;
    let start = addr & !(PAGE - 1);
    let len = end.checked_next_multiple_of(PAGE).ok_or(libc::EINVAL)? - start;
    if len == 0 {
        return Ok(());
    }
    let advice = if write {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    loop {
        // SAFETY: populating changes no contents; the kernel checks the range.
        if unsafe { libc::madvise(start as *mut _, len as usize, advice) } == 0 {
            return Ok(());
        }
        match real::errno() {
            libc::EINTR | libc::EAGAIN => {}
            // Kernels before 5.14, and mappings of device memory: only check that the range is
            // mapped.
            libc::EINVAL if !populate_works() => return is_mapped(start, len),
            _ => return Err(libc::EFAULT),
        }
    }
}

/// Returns `true` if the kernel supports `MADV_POPULATE_WRITE`.
fn populate_works() -> bool {
    static PROBE: AtomicU32 = AtomicU32::new(0);
    let page = (&raw const PROBE) as u64 & !(PAGE - 1);
    // SAFETY: populating this library's own data page changes no contents.
    unsafe { libc::madvise(page as *mut _, PAGE as usize, libc::MADV_POPULATE_WRITE) == 0 }
}

fn is_mapped(start: u64, len: u64) -> Result<(), Errno> {
    let mut residency = vec![0u8; (len / PAGE) as usize];
    // SAFETY: the vector has a byte for each page of the range.
    let result =
        unsafe { libc::mincore(start as *mut _, len as usize, residency.as_mut_ptr().cast()) };
    if result == 0 {
        Ok(())
    } else {
        Err(libc::EFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_addresses_are_errors() {
        assert_eq!(fault_in(8 << 40, 4096, true), Err(libc::EFAULT));
        assert_eq!(fault_in(u64::MAX - 10, 4096, true), Err(libc::EINVAL));
        assert_eq!(copy_to_user(16, &[1, 2]), Err(libc::EFAULT));
        let mut here = [0u8; 2];
        assert_eq!(copy_to_user(here.as_mut_ptr() as u64, &[1, 2]), Ok(()));
        assert_eq!(here, [1, 2]);
        let mut read = [0u8; 2];
        assert_eq!(copy_from_user(here.as_ptr() as u64, &mut read), Ok(()));
        assert_eq!(read, here);
        assert_eq!(copy_from_user(16, &mut read), Err(libc::EFAULT));
    }
}
