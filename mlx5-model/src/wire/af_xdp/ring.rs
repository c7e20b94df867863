//! The two rings of an AF_XDP socket that bring frames: filled buffers from the kernel, and empty ones back to it
//! (Linux, Documentation/networking/af_xdp.rst).
//!
//! Imports `mapping`. Invariant: of each ring this process moves one end and the kernel the other; an entry
//! is read or written only between the two ends.

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

/// A ring's memory.
struct RingMapping<T> {
    memory: SharedMapping,
    at: XdpRingOffset,
    mask: u32,
    entries: PhantomData<T>,
}

impl<T: Copy> RingMapping<T> {
    /// Maps a ring of a socket: `entries` of it, a power of two.
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
        // SAFETY: the kernel has told the offset of an aligned word in this mapping, which lives as long as `self`; both
        // sides reach it as a whole.
        unsafe { AtomicU32::from_ptr(self.memory.base().add(offset as usize).as_ptr().cast()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.at.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.at.consumer)
    }

    fn entry(&self, number: u32) -> NonNull<T> {
        // SAFETY: the masked number is less than the number of entries, all of which lie in the mapping.
        unsafe {
            let entries = self.memory.base().add(self.at.desc as usize).cast::<T>();
            entries.add((number & self.mask) as usize)
        }
    }
}

/// Filled buffers, which the kernel produces.
pub(super) struct XdpRxRing {
    shared: RingMapping<XdpDesc>,
    /// This process's end.
    consumed: u32,
    /// The kernel's end, as it was when last looked at.
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

    /// How many buffers are there. Looks at the kernel's end only when none is known of.
    #[inline]
    pub(super) fn available(&mut self) -> u32 {
        if self.produced == self.consumed {
            self.produced = self.shared.producer().load(Ordering::Acquire);
        }
        self.produced.wrapping_sub(self.consumed)
    }

    /// How many buffers are there now.
    pub(super) fn filled(&self) -> u32 {
        let produced = self.shared.producer().load(Ordering::Relaxed);
        produced.wrapping_sub(self.consumed)
    }

    /// The `nth` of them.
    #[inline]
    pub(super) fn get(&self, nth: u32) -> XdpDesc {
        debug_assert!(nth < self.produced.wrapping_sub(self.consumed));
        // SAFETY: the entry lies between the two ends: the kernel has written it before it moved its end, which was
        // read with acquire, and leaves it alone until this end has passed it. Its fields take any value.
        unsafe { self.shared.entry(self.consumed.wrapping_add(nth)).read() }
    }

    /// Gives the entries of the first `count` of them back.
    #[inline]
    pub(super) fn release(&mut self, count: u32) {
        self.consumed = self.consumed.wrapping_add(count);
        self.shared
            .consumer()
            .store(self.consumed, Ordering::Release);
    }
}

/// Empty buffers, by their place in the memory, which the kernel consumes. It has an entry for each buffer there is.
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

    /// Adds a buffer, which the kernel sees after [`FillRing::publish`].
    #[inline]
    pub(super) fn add(&mut self, buffer: u64) {
        // SAFETY: an entry beyond this process's end, which the kernel does not read before the end has passed it. It is
        // not one that the kernel has yet to read: there are as many entries as buffers, and this buffer was in none.
        unsafe { self.shared.entry(self.produced).write(buffer) };
        self.produced = self.produced.wrapping_add(1);
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        self.shared
            .producer()
            .store(self.produced, Ordering::Release);
    }

    /// Whether the driver has stopped looking at the ring, and wants a call.
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
