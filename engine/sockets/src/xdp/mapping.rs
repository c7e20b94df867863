//! Memory that this process shares with the kernel: rings of AF_XDP sockets and values of BPF maps.
#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, AtomicU64},
};

/// Mapping of a descriptor's memory, unmapped when it is dropped.
#[derive(Debug)]
pub(super) struct KernelMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: shared references expose addresses and atomic words only.
unsafe impl Send for KernelMapping {}
// SAFETY: as above.
unsafe impl Sync for KernelMapping {}

impl KernelMapping {
    /// Maps `len` bytes from the offset `at` of a descriptor, for reading and writing.
    pub(super) fn map(fd: BorrowedFd<'_>, at: u64, len: usize) -> io::Result<Self> {
        Self::map_with(fd, at, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps `len` bytes from the offset `at` of a descriptor. Words of the mapping can be loaded only.
    pub(super) fn map_read_only(fd: BorrowedFd<'_>, at: u64, len: usize) -> io::Result<Self> {
        Self::map_with(fd, at, len, libc::PROT_READ)
    }

    fn map_with(fd: BorrowedFd<'_>, at: u64, len: usize, access: c_int) -> io::Result<Self> {
        let offset = at.try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                access,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Self {
            start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            len,
        };
        // A child process that inherits the mapping would keep the descriptor open.
        // SAFETY: our own mapping; the advice changes none of its bytes.
        match unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) } {
            0 => Ok(mapping),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the address of a `T` at the offset `at` of the mapping.
    ///
    /// # Panics
    /// If it is outside of the mapping, or not aligned.
    #[inline]
    pub(super) fn address<T>(&self, at: usize) -> NonNull<T> {
        assert!(at.is_multiple_of(align_of::<T>()));
        assert!(at <= self.len && size_of::<T>() <= self.len - at);
        // SAFETY: by the assertion, inside the mapping.
        unsafe { self.start.add(at).cast() }
    }

    /// Returns the word of 32 bits at the offset `at` of the mapping.
    ///
    /// # Panics
    /// If it is outside of the mapping, or not aligned.
    #[inline]
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned. Both sides access
        // the word as a whole; this process does so only through this function.
        unsafe { AtomicU32::from_ptr(self.address(at).as_ptr()) }
    }

    /// Returns the word of 64 bits at the offset `at` of the mapping.
    ///
    /// # Panics
    /// If it is outside of the mapping, or not aligned.
    #[inline]
    pub(super) fn long(&self, at: usize) -> &AtomicU64 {
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.address(at).as_ptr()) }
    }
}

impl Drop for KernelMapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Returns the size of a page of memory in bytes.
pub(super) fn page_bytes() -> usize {
    // SAFETY: the call has no conditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}
