//! The memory that an AF_XDP socket receives into, in buffers of one size.
//!
//! Imports `process::cache`. Invariant: a buffer's bytes are reachable only through a borrow that ends before the
//! buffer goes back to the kernel.

#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use crate::process::cache;

/// What the kernel keeps of each buffer in front of the frame (`XDP_PACKET_HEADROOM`, linux/bpf.h).
pub(super) const HEADROOM: usize = 256;
/// The sizes that a buffer can have: from `XDP_UMEM_MIN_CHUNK_SIZE` (net/xdp/xdp_umem.c) to a page.
const SMALL: usize = 2048;
const LARGE: usize = 4096;
const HUGE_PAGE: usize = 2 << 20;

pub(super) struct Umem {
    base: NonNull<u8>,
    len: usize,
    buffer: usize,
}

// SAFETY: only this value reaches the mapping, and nothing in it is bound to a thread.
unsafe impl Send for Umem {}

impl Umem {
    /// The size of buffers, one of which holds a frame of so many bytes if any size does.
    pub(super) fn buffer_for(frame: usize) -> usize {
        if frame + HEADROOM <= SMALL {
            SMALL
        } else {
            LARGE
        }
    }

    /// Memory of `buffers` buffers, in huge pages: those that the system has set aside, else transparent ones. Buffers lie
    /// pages apart, so with small pages each frame would be a walk through the page tables.
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
                // The kernel makes the pages when the memory is registered (`xdp_umem_pin_pages`, net/xdp/xdp_umem.c).
                umem.wish(libc::MADV_HUGEPAGE);
                umem
            }
        };
        // No child receives here, and a fork copies what is pinned at once (`copy_present_ptes`, mm/memory.c).
        umem.wish(libc::MADV_DONTFORK);
        Ok(umem)
    }

    /// Tells the kernel how the memory is used.
    fn wish(&self, advice: libc::c_int) {
        // SAFETY: the mapping is this value's own, and these advices change no byte of it.
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

    /// The buffer that a place lies in.
    #[inline]
    pub(super) fn buffer_of(&self, place: u64) -> u64 {
        place & !(self.buffer as u64 - 1)
    }

    /// Has a cache line of a place fetched.
    #[inline]
    pub(super) fn prefetch(&self, place: u64) {
        cache::prefetch(self.base.as_ptr().wrapping_add(place as usize));
    }

    /// What the kernel has written at a place; `None` if it is none in this memory.
    #[inline]
    pub(super) fn bytes(&self, place: u64, len: u32) -> Option<&[u8]> {
        let place = usize::try_from(place).ok()?;
        let end = place.checked_add(len as usize)?;
        if end > self.len {
            return None;
        }
        // SAFETY: the range lies in the mapping, which lives as long as `self` and was zeroed by the kernel. The place
        // comes from a ring of filled buffers: the kernel has written it and does not touch it before the buffer is on
        // the ring of empty ones, which its owner does after this borrow has ended.
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
