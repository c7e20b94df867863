//! Receive memory of an AF_XDP socket, in buffers of one size.
//!
//! Imports `process::cache`. Invariant: a buffer's bytes are accessible only through a borrow that
//! ends before the buffer returns to the kernel.

#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use crate::process::cache;

/// Bytes that the kernel reserves in each receive buffer in front of the frame
/// (`XDP_PACKET_HEADROOM`, linux/bpf.h).
pub(super) const HEADROOM: usize = 256;
/// Small receive buffer size in bytes, `XDP_UMEM_MIN_CHUNK_SIZE` (net/xdp/xdp_umem.c).
const SMALL: usize = 2048;
/// Large receive buffer size in bytes, a page, which is the maximum.
const LARGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

/// Receive memory of one AF_XDP socket.
pub(super) struct Umem {
    base: NonNull<u8>,
    len: usize,
    /// Size of a receive buffer in bytes.
    buffer: usize,
}

// SAFETY: only this value accesses the mapping, and nothing in it is bound to a thread.
unsafe impl Send for Umem {}

impl Umem {
    /// Returns the size of receive buffers for frames of `frame` bytes: the smallest one that holds
    /// such a frame, or the largest.
    pub(super) fn buffer_for(frame: usize) -> usize {
        if frame + HEADROOM <= SMALL {
            SMALL
        } else {
            LARGE
        }
    }

    /// Allocates `buffers` receive buffers in huge pages: reserved ones if the system has them,
    /// otherwise transparent ones. Buffers are pages apart, so with small pages each frame would
    /// cost a page table walk.
    pub(super) fn new(buffers: u32, buffer: usize) -> io::Result<Umem> {
        let len = buffers as usize * buffer;
        let huge = len
            .is_multiple_of(HUGE_PAGE)
            .then(|| map(len, libc::MAP_HUGETLB));
        let umem = match huge {
            Some(Ok(base)) => Umem { base, len, buffer },
            _ => {
                let base = map(len, 0)?;
                let umem = Umem { base, len, buffer };
                // The kernel allocates the pages when the memory is registered
                // (`xdp_umem_pin_pages`, net/xdp/xdp_umem.c).
                umem.advise(libc::MADV_HUGEPAGE);
                umem
            }
        };
        // No child receives here, and a fork copies pinned pages at once (`copy_present_ptes`,
        // mm/memory.c).
        umem.advise(libc::MADV_DONTFORK);
        Ok(umem)
    }

    /// Gives the kernel an advice on the use of the socket's receive memory (madvise(2)).
    fn advise(&self, advice: libc::c_int) {
        // SAFETY: the mapping belongs to this value, and these advices change no byte of it.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, advice) };
    }

    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn buffer(&self) -> usize {
        self.buffer
    }

    /// Returns the start of the receive buffer that contains the offset `place`.
    #[inline]
    pub(super) fn buffer_of(&self, place: u64) -> u64 {
        place & !(self.buffer as u64 - 1)
    }

    /// Prefetches the cache line at the offset `place` of the receive memory.
    #[inline]
    pub(super) fn prefetch(&self, place: u64) {
        cache::prefetch(self.base.as_ptr().wrapping_add(place as usize));
    }

    /// Returns the bytes that the kernel has written at the offset `place` of the receive memory.
    /// `None` if they are not all in this memory.
    #[inline]
    pub(super) fn bytes(&self, place: u64, len: u32) -> Option<&[u8]> {
        let place = usize::try_from(place).ok()?;
        let end = place.checked_add(len as usize)?;
        if end > self.len {
            return None;
        }
        // SAFETY: the range lies in the mapping, which lives as long as `self` and was zeroed by
        // the kernel. The offset is from a ring of filled buffers: the kernel has written the bytes
        // and does not access them before the buffer is on the ring of empty buffers. The owner
        // puts it there after this borrow has ended.
        Some(unsafe { std::slice::from_raw_parts(self.base.add(place).as_ptr(), len as usize) })
    }
}

fn map(len: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?)
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, and no borrow outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
