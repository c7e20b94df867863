//! Blocks of a TPACKET_V3 ring: their memory, their owner, and the frames in them
//! (`struct tpacket_block_desc` and `struct tpacket3_hdr` of linux/if_packet.h).
#![allow(unsafe_code)]

use super::gate::OUTGOING;
use std::{
    io,
    mem::offset_of,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

/// Memory of a TPACKET_V3 ring, mapped until it is dropped. The mapping keeps the socket in the
/// kernel open.
#[derive(Debug)]
pub struct BlockMemory {
    start: NonNull<u8>,
    blocks: u32,
    block_bytes: u32,
}

// SAFETY: shared references expose addresses only; the owner of a block's state decides which thread
// accesses which bytes.
unsafe impl Send for BlockMemory {}
// SAFETY: as above.
unsafe impl Sync for BlockMemory {}

impl BlockMemory {
    /// Maps the ring of a packet socket into the process.
    pub(super) fn map(socket: BorrowedFd<'_>, blocks: u32, block_bytes: u32) -> io::Result<Self> {
        let memory = |start| Self {
            start,
            blocks,
            block_bytes,
        };
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                blocks as usize * block_bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = memory(NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?);
        // A child process that inherits the mapping would keep the socket open.
        // SAFETY: our own mapping; the advice changes none of its bytes.
        match unsafe { libc::madvise(start, mapped.len(), libc::MADV_DONTFORK) } {
            0 => Ok(mapped),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the address of the first block of the ring.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the size in bytes of all blocks of the ring.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks as usize * self.block_bytes as usize
    }

    /// Returns `false`: a ring has at least one block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the number of blocks of the ring.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Returns the size in bytes of a block of the ring.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Returns the address of byte `at` of the block `block`.
    ///
    /// # Panics
    /// If the byte is outside of the ring.
    #[inline]
    fn address(&self, block: u32, at: u32) -> *mut u8 {
        assert!(block < self.blocks && at < self.block_bytes);
        // SAFETY: by the assertion, the byte is inside the mapping.
        unsafe {
            self.start
                .as_ptr()
                .add(block as usize * self.block_bytes as usize + at as usize)
        }
    }

    /// Returns the word by which the kernel and the process pass a block to each other.
    #[inline]
    fn status(&self, block: u32) -> &AtomicU32 {
        const STATUS: usize = offset_of!(libc::tpacket_block_desc, hdr)
            + offset_of!(libc::tpacket_hdr_v1, block_status);
        // SAFETY: the word is inside the mapping, which lives as long as `self`. It is aligned,
        // because blocks are aligned to pages, and both sides access it as a whole.
        unsafe { AtomicU32::from_ptr(self.address(block, STATUS as u32).cast()) }
    }

    /// Returns the word in which the kernel counts the frames of a block while it fills the block:
    /// `prb_open_block` of net/packet/af_packet.c sets it to 0, and `prb_fill_curr_block` increments
    /// it for each frame.
    #[inline]
    fn count(&self, block: u32) -> &AtomicU32 {
        const COUNT: usize =
            offset_of!(libc::tpacket_block_desc, hdr) + offset_of!(libc::tpacket_hdr_v1, num_pkts);
        // SAFETY: as for the status.
        unsafe { AtomicU32::from_ptr(self.address(block, COUNT as u32).cast()) }
    }
}

impl Drop for BlockMemory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len()) };
    }
}

/// Frame in a block of a packet socket's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockFrame {
    /// Offset of the frame's first byte in its block.
    pub at: u32,
    /// Number of bytes of the frame that the block holds.
    pub len: u32,
    /// Number of bytes of the frame on the interface; more than `len` if the block was too small.
    pub wire_len: u32,
    /// Time at which the kernel received the frame, in nanoseconds since 1970.
    pub stamp_ns: u64,
    /// `true` for a frame that the host sends.
    pub outgoing: bool,
}

/// Error of a block of a packet socket's ring whose headers point outside of the block; the number
/// is the block's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "block {0} of the kernel's packet ring is damaged: a header in it points outside of the block"
)]
pub struct Damaged(pub u32);

/// Position of a reader in a block that the kernel has passed on.
#[derive(Debug)]
pub struct PacketCursor {
    block: u32,
    /// Offset of the next frame's header in the block.
    at: u32,
    /// Number of frames from `at` to the end of the block.
    left: u32,
}

impl PacketCursor {
    /// Returns `true` after the last frame of the block.
    #[inline]
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.left == 0
    }
}

/// Reader's side of a packet socket's ring of blocks.
#[derive(Debug)]
pub struct BlockRing {
    memory: Arc<BlockMemory>,
    odd_frames: Arc<OddFrames>,
}

/// Counts of the frames of a packet socket's ring that need an explanation. The ring's reader is the
/// only writer.
#[derive(Debug, Default)]
pub struct OddFrames {
    super_frames: AtomicU64,
    too_long: AtomicU64,
}

impl OddFrames {
    /// Returns the number of super-frames (of GRO, TSO and GSO) that were read from the ring. Kernels
    /// before Linux 6.3 mark none.
    #[must_use]
    pub fn super_frames(&self) -> u64 {
        self.super_frames.load(Ordering::Relaxed)
    }

    /// Returns the number of frames that the kernel has cut, because they are longer than a block.
    #[must_use]
    pub fn too_long(&self) -> u64 {
        self.too_long.load(Ordering::Relaxed)
    }

    /// Adds 1 to a count. There is one writer, so a load and a store suffice.
    fn add_to(count: &AtomicU64) {
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Length in bytes of the two MAC addresses in front of a VLAN tag (IEEE 802.3).
const MACS: usize = 12;
/// Length in bytes of a VLAN tag (IEEE 802.1Q).
const TAG: u32 = 4;
/// TPID of a VLAN tag whose TPID the kernel does not report (IEEE 802.1Q).
const CVLAN: u16 = 0x8100;
/// Status of a super-frame: TCP segments that GRO has merged, or that a sender leaves to be cut by
/// hardware (`TP_STATUS_GSO_TCP` of linux/if_packet.h, since Linux 6.3).
const GSO_TCP: u32 = 1 << 8;
/// Status bits of frames for which the reader does more than read their header: one test for each
/// frame.
const SPECIAL: u32 = libc::TP_STATUS_VLAN_VALID | GSO_TCP;
/// Offset of the `struct sockaddr_ll` behind a frame's header: the header's size, aligned as by
/// TPACKET_ALIGN.
const ADDRESS: u32 = (size_of::<libc::tpacket3_hdr>() as u32).next_multiple_of(16);
/// Number of bytes from the start of a frame's header to the earliest place of the frame's first
/// byte.
const BEFORE_FRAME: u32 = ADDRESS + size_of::<libc::sockaddr_ll>() as u32;

impl BlockRing {
    pub(super) fn new(memory: BlockMemory) -> Self {
        Self {
            memory: Arc::new(memory),
            odd_frames: Arc::default(),
        }
    }

    /// Returns the counts of the ring's frames that need an explanation.
    #[must_use]
    pub fn odd_frames(&self) -> &Arc<OddFrames> {
        &self.odd_frames
    }

    /// Counts a frame that the kernel has cut, because it is longer than a block.
    #[cold]
    pub fn count_too_long(&self) {
        OddFrames::add_to(&self.odd_frames.too_long);
    }

    /// Returns the memory of the ring's blocks.
    #[must_use]
    pub fn memory(&self) -> &Arc<BlockMemory> {
        &self.memory
    }

    /// Begins to read a block; `None`: the kernel has not passed it on.
    ///
    /// # Panics
    /// If the ring has no such block.
    #[inline]
    #[must_use]
    pub fn read(&mut self, block: u32) -> Option<PacketCursor> {
        const HEADER: u32 = offset_of!(libc::tpacket_block_desc, hdr) as u32;
        let status = self.memory.status(block).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the block is the process's, and the kernel has written its header before the
        // status. The header is aligned as the block is.
        let header: libc::tpacket_hdr_v1 = unsafe {
            self.memory
                .address(block, HEADER)
                .cast::<libc::tpacket_hdr_v1>()
                .read()
        };
        Some(PacketCursor {
            block,
            at: header.offset_to_first_pkt,
            left: header.num_pkts,
        })
    }

    /// Returns `true` if the kernel has passed a block on.
    ///
    /// # Panics
    /// If the ring has no such block.
    #[must_use]
    pub fn is_passed_on(&self, block: u32) -> bool {
        self.memory.status(block).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Returns `true` if a block has frames, which the kernel may still add to. It may also return
    /// `true` for a block that the kernel has not begun to fill since it was returned.
    ///
    /// # Panics
    /// If the ring has no such block.
    #[inline]
    #[must_use]
    pub fn has_frames(&self, block: u32) -> bool {
        self.memory.count(block).load(Ordering::Acquire) > 0
    }

    /// Returns the next frame of a block; `None` at the block's end. A VLAN tag that the kernel or
    /// the NIC has moved aside is put back into the frame.
    ///
    /// # Errors
    /// A header points outside of the block. No further frame of the block can be found.
    #[inline]
    pub fn next(&mut self, cursor: &mut PacketCursor) -> Result<Option<BlockFrame>, Damaged> {
        if cursor.left == 0 {
            return Ok(None);
        }
        let (block, at) = (cursor.block, cursor.at);
        let memory = &*self.memory;
        let damaged = Damaged(block);
        let bytes = memory.block_bytes;
        if at % 8 != 0 || at > bytes - BEFORE_FRAME {
            return Err(damaged);
        }
        // SAFETY: the cursor exists only for a block that is the process's; header and address are
        // inside the block by the check above, and aligned to 8 bytes.
        let header: libc::tpacket3_hdr = unsafe {
            memory
                .address(block, at)
                .cast::<libc::tpacket3_hdr>()
                .read()
        };
        let kind = ADDRESS + offset_of!(libc::sockaddr_ll, sll_pkttype) as u32;
        // SAFETY: as above.
        let kind = unsafe { memory.address(block, at + kind).read() };
        let first = at + u32::from(header.tp_mac);
        let is_inside = u32::from(header.tp_mac) >= BEFORE_FRAME
            && header.tp_snaplen <= bytes
            && first <= bytes - header.tp_snaplen;
        if !is_inside {
            return Err(damaged);
        }
        cursor.left -= 1;
        cursor.at = at.saturating_add(header.tp_next_offset);
        let mut frame = BlockFrame {
            at: first,
            len: header.tp_snaplen,
            wire_len: header.tp_len,
            stamp_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
            outgoing: u32::from(kind) == OUTGOING,
        };
        if header.tp_status & SPECIAL != 0 {
            self.finish_special(block, &mut frame, &header);
        }
        Ok(Some(frame))
    }

    /// Counts a super-frame, and puts back the VLAN tag of a frame that has one.
    #[inline(never)]
    fn finish_special(&mut self, block: u32, frame: &mut BlockFrame, header: &libc::tpacket3_hdr) {
        if header.tp_status & GSO_TCP != 0 {
            OddFrames::add_to(&self.odd_frames.super_frames);
        }
        if header.tp_status & libc::TP_STATUS_VLAN_VALID != 0 && frame.len as usize >= MACS {
            // The kernel has stored the tag in `hv1`, as the status says.
            self.put_tag_back(block, frame, header);
        }
    }

    /// Puts a VLAN tag back into a frame by moving the MAC addresses four bytes towards the front,
    /// over the address that the kernel stored there and that has been read.
    fn put_tag_back(&mut self, block: u32, frame: &mut BlockFrame, header: &libc::tpacket3_hdr) {
        let tag = header.hv1;
        let tpid = match header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID {
            0 => CVLAN,
            _ => tag.tp_vlan_tpid,
        };
        let mut bytes = [0; TAG as usize];
        bytes[..2].copy_from_slice(&tpid.to_be_bytes());
        bytes[2..].copy_from_slice(&(tag.tp_vlan_tci as u16).to_be_bytes());
        frame.at -= TAG;
        frame.len += TAG;
        frame.wire_len += TAG;
        let start = self.memory.address(block, frame.at);
        // SAFETY: the frame has at least the two addresses, and `tp_mac` leaves more than four bytes
        // in front of it, all inside the block. The frame has not been returned yet, so no other
        // thread reads it. The ranges overlap, which `copy` allows.
        unsafe {
            ptr::copy(start.add(TAG as usize), start, MACS);
            start.add(MACS).cast::<[u8; 4]>().write(bytes);
        }
    }

    /// Returns a block to the kernel.
    ///
    /// # Safety
    /// No frame of the block is read any more, and no cursor of the block is used any more.
    ///
    /// # Panics
    /// If the ring has no such block.
    #[inline]
    pub unsafe fn give_back(&mut self, block: u32) {
        self.memory
            .status(block)
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}
