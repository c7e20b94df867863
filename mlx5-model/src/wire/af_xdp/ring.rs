//! Receive rings of an AF_XDP socket: filled buffers from the kernel, and empty buffers to the
//! kernel (Linux, Documentation/networking/af_xdp.rst).
//!
//! Imports `mapping`. Invariant: this process moves one end of each ring and the kernel the other;
//! an entry is read or written only between the two ends.

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpRingFlags, XdpRingOffset,
};

use super::super::mapping::{MappingAccess, SharedMapping};

/// Mapped memory of an AF_XDP ring that this process shares with the kernel.
struct RingMapping<T> {
    memory: SharedMapping,
    at: XdpRingOffset,
    mask: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> RingMapping<T> {
    /// Maps a ring of an AF_XDP socket with `entries` entries, a power of two.
    fn map(
        fd: &OwnedFd,
        place: u64,
        at: XdpRingOffset,
        entries: u32,
    ) -> io::Result<RingMapping<T>> {
        let len = at.desc as usize + entries as usize * size_of::<T>();
        Ok(RingMapping {
            memory: SharedMapping::new(fd.as_raw_fd(), len, place, MappingAccess::ReadWrite)?,
            at,
            mask: entries - 1,
            entries: PhantomData,
        })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel has given the offset of an aligned word in this mapping, which lives
        // as long as `self`; both sides access it as a whole.
        unsafe { AtomicU32::from_ptr(self.memory.base().add(offset as usize).as_ptr().cast()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.at.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.at.consumer)
    }

    fn entry(&self, number: u32) -> NonNull<T> {
        // SAFETY: the masked number is less than the number of entries, all of which lie in the
        // mapping.
        unsafe {
            let entries = self.memory.base().add(self.at.desc as usize).cast::<T>();
            entries.add((number & self.mask) as usize)
        }
    }
}

/// AF_XDP ring of filled buffers, which the kernel produces.
pub(super) struct XdpRxRing {
    shared: RingMapping<XdpDesc>,
    /// Number of filled buffers that this process has consumed, modulo 2³².
    consumed: u32,
    /// Number of filled buffers that the kernel has produced, modulo 2³², as last read.
    produced: u32,
}

impl XdpRxRing {
    pub(super) fn map(fd: &OwnedFd, at: XdpRingOffset, entries: u32) -> io::Result<XdpRxRing> {
        Ok(XdpRxRing {
            shared: RingMapping::map(fd, XDP_PGOFF_RX_RING, at, entries)?,
            consumed: 0,
            produced: 0,
        })
    }

    /// Returns the number of filled buffers in the AF_XDP ring. Reads the kernel's end of the ring
    /// only if all known buffers are consumed.
    #[inline]
    pub(super) fn available(&mut self) -> u32 {
        if self.produced == self.consumed {
            self.produced = self.shared.producer().load(Ordering::Acquire);
        }
        self.produced.wrapping_sub(self.consumed)
    }

    /// Returns the current number of filled buffers in the AF_XDP ring. Always reads the kernel's
    /// end of the ring.
    pub(super) fn filled(&self) -> u32 {
        let produced = self.shared.producer().load(Ordering::Relaxed);
        produced.wrapping_sub(self.consumed)
    }

    /// Returns the `nth` filled buffer of the AF_XDP ring, from 0.
    #[inline]
    pub(super) fn get(&self, nth: u32) -> XdpDesc {
        debug_assert!(nth < self.produced.wrapping_sub(self.consumed));
        // SAFETY: the entry lies between the two ends. The kernel has written it before it moved
        // its end, which was read with acquire, and does not access it until this end has passed
        // it. Its fields take any value.
        unsafe { self.shared.entry(self.consumed.wrapping_add(nth)).read() }
    }

    /// Returns the ring entries of the first `count` filled buffers to the kernel.
    #[inline]
    pub(super) fn release(&mut self, count: u32) {
        self.consumed = self.consumed.wrapping_add(count);
        self.shared
            .consumer()
            .store(self.consumed, Ordering::Release);
    }
}

/// AF_XDP ring of empty buffers, which the kernel consumes. An entry is the offset of a buffer in
/// the socket's memory; the ring has one entry per buffer.
pub(super) struct FillRing {
    shared: RingMapping<u64>,
    produced: u32,
}

impl FillRing {
    pub(super) fn map(fd: &OwnedFd, at: XdpRingOffset, entries: u32) -> io::Result<FillRing> {
        Ok(FillRing {
            shared: RingMapping::map(fd, XDP_UMEM_PGOFF_FILL_RING, at, entries)?,
            produced: 0,
        })
    }

    /// Adds an empty buffer to the ring, which the kernel sees after [`FillRing::publish`].
    #[inline]
    pub(super) fn add(&mut self, buffer: u64) {
        // SAFETY: the entry is beyond this process's end of the ring, and the kernel does not read
        // it before the end has passed it. The kernel has no unread entry there: there are as many
        // entries as buffers, and this buffer was in none.
        unsafe { self.shared.entry(self.produced).write(buffer) };
        self.produced = self.produced.wrapping_add(1);
    }

    /// Makes the empty buffers that were added to the ring visible to the kernel.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.shared
            .producer()
            .store(self.produced, Ordering::Release);
    }

    /// Returns `true` if the driver has stopped polling the ring of empty buffers and needs a
    /// system call to continue.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        let flags = self
            .shared
            .at
            .flags
            .map_or(0, |at| self.shared.word(at).load(Ordering::Relaxed));
        flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
    }
}
