//! Receive ring of a packet socket, which the kernel fills with blocks of frames (TPACKET_V3, Linux
//! packet_mmap documentation).
//!
//! Imports `packet_socket`. Invariant: block `current` is the oldest block that is not released; a
//! block's bytes are accessible only through the borrow that [`PacketRxRing::block`] returns, and
//! only while the kernel does not use the block.

#![allow(unsafe_code)]

use std::io;
use std::mem::offset_of;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::packet_socket::Socket;

/// Size of a TPACKET block in bytes. Super-frames have up to 64 KiB, "BIG TCP" ones usually less
/// than 192 KiB. A frame longer than a block would be cut, and is counted as lost. Blocks are not
/// larger because the kernel hands over a block when its time is up, however few bytes are in it:
/// at a low rate the number of blocks limits the time that a ring holds. 128 MiB are 512 blocks,
/// one second.
const BLOCK: usize = 256 << 10;
/// Time in milliseconds after which the kernel hands over an unfinished TPACKET block: the longest
/// wait of a single frame, plus or minus a tick.
const RETIRE_MS: u32 = 2;
/// Frame size in the request for a packet socket's ring, in bytes. With TPACKET_V3 the kernel only
/// checks its plausibility.
const FRAME: usize = 2048;

const STATUS: usize =
    offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, block_status);

/// Receive ring of a packet socket, mapped into this process.
pub(super) struct PacketRxRing {
    /// Start of the receive ring's mapping, which is unmapped when the value is dropped.
    memory: NonNull<u8>,
    /// Number of TPACKET blocks in the receive ring.
    blocks: usize,
    /// Index of the oldest TPACKET block that is not released.
    current: usize,
}

// SAFETY: only this value accesses the mapping, and nothing in it is bound to a thread.
unsafe impl Send for PacketRxRing {}

impl PacketRxRing {
    /// Creates a packet socket's receive ring of `bytes` bytes in the kernel and maps it.
    pub(super) fn map(socket: &Socket, bytes: usize) -> io::Result<PacketRxRing> {
        let blocks = bytes / BLOCK;
        socket.set_ring(&libc::tpacket_req3 {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: (blocks * (BLOCK / FRAME)) as u32,
            tp_retire_blk_tov: RETIRE_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        })?;
        let len = blocks * BLOCK;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new shared mapping at an address of the kernel's choice touches no other
        // memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, socket.fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A mapping holds its socket: a forked child with a copy would keep the interface
        // promiscuous after the wire is closed.
        // SAFETY: the mapping was made above, with this length.
        unsafe { libc::madvise(base, len, libc::MADV_DONTFORK) };
        Ok(PacketRxRing {
            memory: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?,
            blocks,
            current: 0,
        })
    }

    /// Returns `true` if the kernel has filled three quarters of the packet socket's receive ring.
    pub(super) fn is_near_end(&self) -> bool {
        let ahead = (self.current + self.blocks / 4 * 3) % self.blocks;
        self.status_of(ahead).load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0
    }

    /// Returns the receive ring's oldest TPACKET block if the kernel has handed it over. The block
    /// stays the same until [`PacketRxRing::release`].
    #[inline]
    pub(super) fn block(&mut self) -> Option<&mut [u8]> {
        let status = self.status_of(self.current).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the block lies within the mapping, which lives as long as `self`. TP_STATUS_USER,
        // read with acquire, means that the kernel has finished writing and does not access the
        // block before its release, which takes `&mut self` and so ends this borrow.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start(self.current).as_ptr(), BLOCK) })
    }

    /// Returns the receive ring's oldest TPACKET block to the kernel.
    pub(super) fn release(&mut self) {
        self.status_of(self.current)
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.current = (self.current + 1) % self.blocks;
    }

    fn start(&self, block: usize) -> NonNull<u8> {
        assert!(block < self.blocks);
        // SAFETY: by the assertion, the block lies within the mapping.
        unsafe { self.memory.add(block * BLOCK) }
    }

    fn status_of(&self, block: usize) -> &AtomicU32 {
        // SAFETY: the word lies within the mapping, is aligned (blocks are aligned to pages) and
        // the kernel changes it as a whole; the borrow of `self` excludes the slice that `block`
        // lends.
        unsafe { AtomicU32::from_ptr(self.start(block).add(STATUS).as_ptr().cast()) }
    }
}

impl Drop for PacketRxRing {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and no reference to it is left.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.blocks * BLOCK) };
    }
}
