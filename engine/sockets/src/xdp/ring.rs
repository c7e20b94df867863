//! Rings of an AF_XDP socket that only receives (linux/if_xdp.h, and
//! Documentation/networking/af_xdp.rst of the kernel): filled chunks from the kernel, and free chunks
//! to it.
//!
//! Invariant: this process moves one end of each ring and the kernel the other. An entry is read or
//! written only between the two ends.
#![allow(unsafe_code)]

use super::{
    ChunkMemory, XdpAttr, clock::ArrivalClock, mapping::KernelMapping, program::STAMP_BYTES,
    watermark::QueueWatermark,
};
use rustix::net::xdp::{
    XDP_PGOFF_RX_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpMmapOffsets, XdpRingFlags,
    XdpRingOffset,
};
use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd, BorrowedFd},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// Mapped ring of an AF_XDP socket with entries `T`, whose number is a power of two.
#[derive(Debug)]
struct EntryRing<T> {
    memory: KernelMapping,
    /// Address of the first entry of the ring.
    entries: NonNull<T>,
    mask: u32,
    at: XdpRingOffset,
    kind: PhantomData<T>,
}

// SAFETY: the ring belongs to its mapping, which may move to another thread; entries are integers.
unsafe impl<T> Send for EntryRing<T> {}

impl<T> EntryRing<T> {
    /// Maps a ring with `entries` entries, a power of two.
    fn map(
        socket: BorrowedFd<'_>,
        place: u64,
        at: XdpRingOffset,
        entries: u32,
    ) -> io::Result<Self> {
        let first = at.desc as usize;
        let len = first + entries as usize * size_of::<T>();
        let memory = KernelMapping::map(socket, place, len)?;
        Ok(Self {
            entries: memory.address(first),
            memory,
            mask: entries - 1,
            at,
            kind: PhantomData,
        })
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.memory.word(self.at.producer as usize)
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.memory.word(self.at.consumer as usize)
    }

    /// Returns the address of a ring entry by its number since the start, modulo 2^32.
    #[inline]
    fn entry(&self, number: u32) -> NonNull<T> {
        // SAFETY: the masked number is below the number of entries, all of which are in the mapping.
        unsafe { self.entries.add((number & self.mask) as usize) }
    }
}

/// Frame that an AF_XDP socket received into a chunk of the receive memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFrame {
    /// Index of the chunk that holds the frame.
    pub chunk: u32,
    /// Offset of the frame's first byte in its chunk.
    pub at: u32,
    /// Number of bytes of the frame in the chunk.
    pub len: u32,
    /// Time at which the XDP program got the frame, in nanoseconds since 1970. If the driver has no
    /// room for the program's stamp, the time at which the process found the frame.
    pub stamp_ns: u64,
}

/// Descriptor of the kernel that names bytes outside of the receive memory, with their address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an AF_XDP descriptor of the kernel names address {0}, which is outside of the receive memory (UMEM)"
)]
pub struct BadDescriptor(pub u64);

/// Receive rings of an AF_XDP socket with the chunks of memory that circulate in them. Their mapping
/// keeps the socket in the kernel open.
#[derive(Debug)]
pub struct ChunkRing {
    filled: EntryRing<XdpDesc>,
    free: EntryRing<u64>,
    memory: Arc<ChunkMemory>,
    chunks: u32,
    /// Binary logarithm of a chunk's size in bytes.
    chunk_shift: u32,
    /// Number of filled chunks that were read, modulo 2^32.
    read: u32,
    /// Number of filled chunks that the kernel has produced, modulo 2^32, as last loaded.
    produced: u32,
    /// Number of free chunks that were given to the kernel, modulo 2^32.
    given: u32,
    clock: ArrivalClock,
    watermark: QueueWatermark,
    /// Number of frames from [`ChunkRing::begin_gathering`] to the watermark.
    gathered: u32,
}

impl ChunkRing {
    /// Maps the rings of a socket. Both have one entry for each chunk at least, so that neither
    /// overflows.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        offsets: &XdpMmapOffsets,
        memory: ChunkMemory,
        watermark: QueueWatermark,
        attr: &XdpAttr,
    ) -> io::Result<Self> {
        let XdpAttr {
            chunks,
            chunk_bytes,
            ..
        } = *attr;
        let entries = entries(chunks);
        Ok(Self {
            filled: EntryRing::map(socket, XDP_PGOFF_RX_RING, offsets.rx, entries)?,
            free: EntryRing::map(socket, XDP_UMEM_PGOFF_FILL_RING, offsets.fr, entries)?,
            memory: Arc::new(memory),
            chunks,
            chunk_shift: chunk_bytes.trailing_zeros(),
            read: 0,
            produced: 0,
            given: 0,
            clock: ArrivalClock::default(),
            watermark,
            gathered: attr.watermark(),
        })
    }

    /// Returns the receive memory whose chunks circulate in the rings.
    #[must_use]
    pub fn memory(&self) -> &Arc<ChunkMemory> {
        &self.memory
    }

    /// Returns the number of chunks of the receive memory.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Returns the size of a chunk in bytes.
    #[must_use]
    pub fn chunk_bytes(&self) -> u32 {
        1 << self.chunk_shift
    }

    /// Loads the number of frames that the kernel has received. Returns `false` if no frame waits.
    #[inline]
    pub fn refresh(&mut self) -> bool {
        self.produced = self.filled.producer().load(Ordering::Acquire);
        if self.produced == self.read {
            return false;
        }
        self.clock.update();
        true
    }

    /// Takes the next frame that waited at the last [`ChunkRing::refresh`]; `None`: there is no
    /// more. The frame's chunk belongs to the process until it is given back.
    ///
    /// # Errors
    /// The kernel's descriptor is damaged.
    #[inline]
    pub fn take_frame(&mut self) -> Result<Option<XdpFrame>, BadDescriptor> {
        /// Number of frames by which the prefetch runs ahead of the frame that is taken. Another
        /// core, or the NIC, has written them.
        const AHEAD: u32 = 8;
        let waiting = self.produced.wrapping_sub(self.read);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > AHEAD {
            let ahead = self.descriptor(self.read.wrapping_add(AHEAD)).addr as usize;
            let start = self.memory.as_ptr().wrapping_add(ahead);
            prefetch(start.wrapping_sub(STAMP_BYTES));
            prefetch(start);
        }
        let XdpDesc { addr, len, .. } = self.descriptor(self.read);
        let at = addr as u32 & (self.chunk_bytes() - 1);
        let chunk = addr >> self.chunk_shift;
        if chunk >= u64::from(self.chunks) || len > self.chunk_bytes() - at {
            return Err(BadDescriptor(addr));
        }
        self.read = self.read.wrapping_add(1);
        let mut stamp = None;
        if at as usize >= STAMP_BYTES {
            let before = self
                .memory
                .as_ptr()
                .wrapping_add(addr as usize - STAMP_BYTES);
            let before = before.cast::<[u8; STAMP_BYTES]>();
            // SAFETY: the bytes in front of the frame are in its chunk. The kernel has written them
            // before it produced the descriptor, and does not access them until the chunk is given
            // back, for which `give` needs the process to have stopped reading.
            stamp = super::program::stamp(&unsafe { before.read() });
            // The chunk's next frame may come without a stamp.
            // SAFETY: as above; the frame begins behind these bytes.
            unsafe { before.write([0; STAMP_BYTES]) };
        }
        Ok(Some(XdpFrame {
            chunk: chunk as u32,
            at,
            len,
            stamp_ns: self.clock.arrival_ns(stamp),
        }))
    }

    /// Returns the ring entries of the frames that were taken to the kernel, which can then fill as
    /// many more.
    #[inline]
    pub fn release(&mut self) {
        self.filled.consumer().store(self.read, Ordering::Release);
    }

    /// Gives a chunk to the kernel. The kernel gets it at the next [`ChunkRing::publish`].
    ///
    /// # Safety
    /// The kernel does not have the chunk, and no byte of it is read any more.
    ///
    /// # Panics
    /// If there is no such chunk.
    #[inline]
    pub unsafe fn give(&mut self, chunk: u32) {
        assert!(chunk < self.chunks);
        let address = u64::from(chunk) << self.chunk_shift;
        // SAFETY: the entry is beyond this process's end of the ring, so the kernel does not read it.
        // The kernel has no unread entry there: there are as many entries as chunks, and this chunk
        // was in none.
        unsafe { self.free.entry(self.given).write(address) };
        self.given = self.given.wrapping_add(1);
    }

    /// Passes the chunks of earlier calls of [`ChunkRing::give`] on to the kernel.
    #[inline]
    pub fn publish(&mut self) {
        self.free.producer().store(self.given, Ordering::Release);
    }

    /// Begins to gather frames: [`ChunkRing::watermark_fd`] becomes readable when many more frames
    /// have arrived, at most half as many as there are chunks. Returns `false` if the kernel has too
    /// few free chunks for that.
    pub fn begin_gathering(&mut self) -> bool {
        let free = self.given.wrapping_sub(self.read);
        if free < self.gathered + self.gathered / 2 {
            return false;
        }
        self.watermark.reset();
        true
    }

    /// Returns the descriptor that becomes readable at the watermark, when many frames have
    /// arrived, until the next [`ChunkRing::begin_gathering`].
    #[must_use]
    pub fn watermark_fd(&self) -> BorrowedFd<'_> {
        self.watermark.as_fd()
    }

    /// Returns `true` if the driver has stopped to take free chunks, and continues after
    /// [`super::XdpSocket::wake`].
    #[inline]
    #[must_use]
    pub fn needs_wakeup(&self) -> bool {
        self.free.at.flags.is_some_and(|at| {
            let flags = self.free.memory.word(at as usize).load(Ordering::Relaxed);
            flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0
        })
    }

    /// Returns the descriptor of a filled chunk by its number since the start, modulo 2^32.
    #[inline]
    fn descriptor(&self, number: u32) -> XdpDesc {
        debug_assert!(number.wrapping_sub(self.read) < self.produced.wrapping_sub(self.read));
        // SAFETY: the callers' numbers are between the two ends. The kernel has written the entry
        // before it moved its end, which was loaded with acquire, and does not access it until
        // `release`. Its fields take any value.
        unsafe { self.filled.entry(number).read() }
    }
}

/// Returns the number of entries of a ring for `chunks` chunks.
pub(super) fn entries(chunks: u32) -> u32 {
    chunks.next_power_of_two()
}

/// Prefetches a cache line for reading.
#[inline(always)]
fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch affects only caches, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
