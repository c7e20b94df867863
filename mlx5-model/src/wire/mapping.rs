//! Memory that a live wire's socket shares with the kernel, kept out of the processes that the
//! model forks.
//!
//! A mapping holds its socket: a process with a copy would keep the queue occupied, or the
//! interface promiscuous, after the wire is closed. `MADV_DONTFORK` leaves the mapping out of a
//! fork, but Linux has no such flag for mmap(2), so a fork between the two calls would copy the
//! mapping. Invariant: the model forks only under [`between_mappings`].

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lock held from mmap(2) to madvise(2) of a memory mapping, and during a fork.
static MAPPING: Mutex<()> = Mutex::new(());

/// Locks out new memory mappings. While the guard is held, no mapping exists that a fork would
/// copy.
pub(super) fn between_mappings() -> MutexGuard<'static, ()> {
    MAPPING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Access that this process has to a memory mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MappingAccess {
    Read,
    ReadWrite,
}

/// Shared memory mapping, unmapped when it is dropped.
pub(super) struct SharedMapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: only this value accesses the mapping, and nothing in it is bound to a thread.
unsafe impl Send for SharedMapping {}

impl SharedMapping {
    /// Maps `len` bytes of a socket, or of another descriptor with kernel memory such as a BPF map,
    /// from `offset` on.
    pub(super) fn new(
        socket: RawFd,
        len: usize,
        offset: u64,
        access: MappingAccess,
    ) -> io::Result<SharedMapping> {
        let protection = match access {
            MappingAccess::Read => libc::PROT_READ,
            MappingAccess::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let _no_fork = between_mappings();
        // SAFETY: a new shared mapping at an address of the kernel's choice touches no other
        // memory.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket,
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping was made above, with this length.
        unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedMapping { base, len })
    }

    /// Returns the start of the memory mapping, which lives as long as `self`.
    #[inline]
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, and no reference to it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
