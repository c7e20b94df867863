//! Slots: equal pieces of registered memory, each for one WR's buffer.
#![allow(unsafe_code)]

use super::RingAttr;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use wqcap_core::consumer::{FCS_LEN, Fcs, Frame};
use wqcap_memory::Region;
use wqcap_sockets::{packet::BlockMemory, xdp::ChunkMemory};
use wqcap_verbs::{Completion, Cqe, Mr, SCATTER_FCS};

/// Token that grants access to the bytes of one receive slot. It is neither `Copy` nor `Clone`:
/// while the token is held, the device does not write to the slot.
///
/// ```compile_fail
/// fn twice(slot: wqcap_rx::Slot) -> (wqcap_rx::Slot, wqcap_rx::Slot) {
///     (slot, slot)
/// }
/// ```
#[derive(Debug)]
pub struct Slot {
    index: u32,
    ring: RingId,
}

impl Slot {
    /// Returns the slot's index in its receive ring, which is its WR's `wr_id`.
    #[inline]
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// Identifier of a receive ring, unique in the process. A slot token is valid only for the memory
/// of its own ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingId(u32);

impl RingId {
    fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Facts that a successful completion reports of its frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameFacts {
    /// Number of bytes of the frame that the device wrote.
    pub len: u32,
    /// Device time stamp of the frame's reception.
    pub stamp: u64,
    /// Tag control information of the VLAN tag that the device stripped from the frame.
    pub stripped: Option<u16>,
}

impl From<Cqe> for FrameFacts {
    #[inline(always)]
    fn from(cqe: Cqe) -> Self {
        Self {
            len: cqe.byte_len,
            stamp: cqe.timestamp,
            stripped: cqe.stripped,
        }
    }
}

impl From<Completion> for FrameFacts {
    #[inline(always)]
    fn from(wc: Completion) -> Self {
        Self {
            len: wc.byte_len,
            stamp: wc.timestamp,
            stripped: None,
        }
    }
}

/// Received frame in a slot of the receive ring.
#[derive(Debug)]
pub struct Filled {
    slot: Slot,
    /// Offset in the slot at which the device began to write the received frame.
    at: u32,
    /// Number of bytes of the received frame that the device wrote.
    len: u32,
    /// Device time stamp of the frame's reception.
    stamp: u64,
    /// Number of bytes of the frame in front of offset `at`: 4 when a stripped VLAN tag was put
    /// back, else 0.
    ahead: u8,
    /// Set when the device stripped a VLAN tag from the frame that was not put back.
    tag_lost: bool,
}

impl Filled {
    /// Returns the device time stamp of the frame's reception ([`crate::clock::StampForm`]).
    #[must_use]
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Returns `true` if the device stripped a VLAN tag from the frame that was not put back.
    /// Always `false` on a ring accessed through the verbs, which do not report stripped tags.
    #[must_use]
    pub fn tag_lost(&self) -> bool {
        self.tag_lost
    }

    /// Returns the bytes of the received frame without its FCS.
    ///
    /// # Panics
    /// If `memory` belongs to another ring.
    #[inline]
    #[must_use]
    pub fn bytes<'a>(&'a self, memory: &'a SlotMemory) -> &'a [u8] {
        let all = self.delivered(memory);
        &all[..all.len().saturating_sub(memory.layout.fcs)]
    }

    /// Returns the received frame's FCS if the queue scatters it behind the frame.
    ///
    /// # Panics
    /// If `memory` belongs to another ring.
    #[inline]
    #[must_use]
    pub fn fcs(&self, memory: &SlotMemory) -> Option<[u8; FCS_LEN]> {
        if !memory.has_fcs() {
            return None;
        }
        self.delivered(memory).last_chunk().copied()
    }

    /// Returns the frame in this slot with its FCS, if the queue delivers one; `ns` is the frame's
    /// time of reception in nanoseconds since 1970.
    #[inline]
    pub fn frame<'a>(&'a self, memory: &'a SlotMemory, ns: u64) -> Frame<'a> {
        let fcs = self.fcs(memory);
        let mut frame = self.frame_without_fcs(memory, ns);
        frame.fcs = fcs.map(|bytes| Fcs { bytes, bad: false });
        frame
    }

    /// Returns the frame in this slot of a queue that delivers no FCS; `ns` is the frame's time of
    /// reception in nanoseconds since 1970.
    #[inline]
    pub fn frame_without_fcs<'a>(&'a self, memory: &'a SlotMemory, ns: u64) -> Frame<'a> {
        let bytes = self.bytes(memory);
        // A slot is far below 4 GiB.
        Frame::new(bytes, bytes.len() as u32, ns)
    }

    /// Returns the bytes of a frame that the device wrote, with the VLAN tag that was put back, if
    /// any.
    #[inline]
    fn delivered<'a>(&'a self, memory: &'a SlotMemory) -> &'a [u8] {
        let ahead = usize::from(self.ahead);
        // SAFETY: `slot` is a token of this memory's ring, which `address` has checked, so neither the device nor any
        // thread writes to these bytes. The ring has checked that they are inside the slot and that the index is in the
        // pool, and `ahead` is at most the slot's headroom.
        unsafe {
            std::slice::from_raw_parts(
                memory.address(&self.slot).add(self.at as usize).sub(ahead),
                self.len as usize + ahead,
            )
        }
    }

    /// Returns the token of the frame's slot, for reposting the slot.
    #[inline]
    #[must_use]
    pub fn into_slot(self) -> Slot {
        self.slot
    }
}

/// Layout of a receive ring's slots in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotLayout {
    /// Number of bytes of a receive slot that the device may write.
    slot_bytes: usize,
    /// Number of bytes in front of a receive slot, where a stripped VLAN tag is put back.
    headroom: usize,
    /// Number of FCS bytes behind each frame in its slot: 4, or 0 if the queue does not scatter the
    /// FCS.
    fcs: usize,
}

impl SlotLayout {
    pub(super) fn new(attr: RingAttr) -> Self {
        Self {
            slot_bytes: attr.buffer as usize * attr.max_sge as usize,
            headroom: attr.headroom,
            fcs: if attr.flags & SCATTER_FCS != 0 {
                FCS_LEN
            } else {
                0
            },
        }
    }

    /// Returns the distance between the starts of two consecutive receive slots in bytes.
    #[inline]
    pub(super) fn stride(self) -> usize {
        self.slot_bytes + self.headroom
    }
}

/// Memory that holds the slots of one receive ring.
pub struct SlotMemory {
    /// Address of the first receive slot, behind its headroom.
    first: *mut u8,
    slots: usize,
    /// Local key of the slot memory's registration; 0 if the memory is not registered.
    lkey: u32,
    layout: SlotLayout,
    ring: RingId,
    _backing: Backing,
}

/// Memory mapping that holds the receive slots, kept until the slots are dropped.
enum Backing {
    Registered(#[allow(dead_code)] Mr),
    Unregistered(#[allow(dead_code)] Region),
    Socket(#[allow(dead_code)] Arc<BlockMemory>),
    Chunks(#[allow(dead_code)] Arc<ChunkMemory>),
}

// SAFETY: the memory belongs to the backing, which may move to another thread; tokens decide which thread may read or
// write which bytes.
unsafe impl Send for SlotMemory {}
// SAFETY: as above.
unsafe impl Sync for SlotMemory {}

/// Length in bytes of the two MAC addresses in front of a VLAN tag (IEEE 802.3).
const MACS: usize = 12;
/// TPID of a customer VLAN tag (IEEE 802.1Q), the only tag that CVLAN stripping removes.
const CVLAN: [u8; 2] = [0x81, 0x00];

/// Returns the byte at offset `at` of a marked slot: a sequence that frames do not contain.
fn mark(at: u32) -> u8 {
    let word = u64::from(at / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ word >> 29).to_le_bytes()[at as usize % 8]
}

impl SlotMemory {
    /// Creates the receive slots in registered memory.
    pub(super) fn new(mr: Mr, layout: SlotLayout) -> Self {
        let (memory, lkey) = (mr.memory(), mr.lkey());
        let (start, len) = (memory.cast(), memory.len());
        Self::with_backing(start, len, lkey, layout, Backing::Registered(mr))
    }

    /// Creates the receive slots in memory that is not registered with any device.
    pub(super) fn unregistered(memory: Region, layout: SlotLayout) -> Self {
        let (start, len) = (memory.as_ptr(), memory.len());
        Self::with_backing(start, len, 0, layout, Backing::Unregistered(memory))
    }

    /// Creates the receive slots over the blocks of a packet socket's ring.
    pub(super) fn from_blocks(memory: Arc<BlockMemory>, layout: SlotLayout) -> Self {
        let (start, len) = (memory.as_ptr(), memory.len());
        Self::with_backing(start, len, 0, layout, Backing::Socket(memory))
    }

    /// Creates the receive slots over the chunks of an AF_XDP socket's memory.
    pub(super) fn from_chunks(memory: Arc<ChunkMemory>, layout: SlotLayout) -> Self {
        let (start, len) = (memory.as_ptr(), memory.len());
        Self::with_backing(start, len, 0, layout, Backing::Chunks(memory))
    }

    fn with_backing(
        start: *mut u8,
        len: usize,
        lkey: u32,
        layout: SlotLayout,
        backing: Backing,
    ) -> Self {
        Self {
            // Inside the memory if the memory holds at least one slot.
            first: start.wrapping_add(layout.headroom),
            slots: len / layout.stride(),
            lkey,
            layout,
            ring: RingId::next(),
            _backing: backing,
        }
    }

    /// Creates the token of slot `index`. Only the receive ring calls this: once per index at the
    /// start, and again for each completion of the slot.
    #[inline]
    pub(super) fn slot(&self, index: u32) -> Slot {
        Slot {
            index,
            ring: self.ring,
        }
    }

    /// Checks that a slot token belongs to this slot memory. The check compares two integers.
    ///
    /// # Panics
    /// If the token belongs to another ring.
    #[inline]
    pub(super) fn assert_owns(&self, slot: &Slot) {
        assert!(slot.ring == self.ring, "a slot of another ring");
    }

    /// Returns the length of the longest frame that fits in a receive slot, in bytes.
    #[inline]
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.layout.slot_bytes
    }

    /// Returns `true` if the queue scatters each frame's FCS behind the frame.
    #[inline]
    pub fn has_fcs(&self) -> bool {
        self.layout.fcs > 0
    }

    /// Writes `bytes` into the receive slot `index`, as a device does.
    #[cfg(test)]
    pub(super) fn write(&self, index: u32, bytes: &[u8]) {
        assert!(bytes.len() <= self.layout.slot_bytes);
        let start = self.address(&self.slot(index));
        // SAFETY: the slot has as many bytes, and the caller acts as the device, which has the slot.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    }

    /// Writes the mark that [`SlotMemory::is_marked`] finds into a slot that is not posted yet.
    pub(super) fn mark(&self, slot: &Slot) {
        let (start, len) = (self.address(slot), self.layout.slot_bytes);
        for at in 0..len as u32 {
            // SAFETY: inside the slot, whose token is borrowed and which the device does not have.
            unsafe { start.add(at as usize).write(mark(at)) };
        }
    }

    /// Returns `true` if `len` bytes at offset `at` of slot `index` are as [`SlotMemory::mark`] wrote
    /// them. The device has completed these bytes.
    pub(super) fn is_marked(&self, index: u32, at: u32, len: u32) -> bool {
        let start = self.address(&self.slot(index));
        assert!((at + len) as usize <= self.layout.slot_bytes);
        (at..at + len).all(|at| {
            // SAFETY: inside the slot, as checked; the device does not write completed bytes.
            unsafe { start.add(at as usize).read() == mark(at) }
        })
    }

    /// Returns the local key of the slot memory's registration; 0 if the memory is not registered.
    #[inline]
    pub(super) fn lkey(&self) -> u32 {
        self.lkey
    }

    #[inline]
    pub(super) fn address(&self, slot: &Slot) -> *mut u8 {
        self.assert_owns(slot);
        debug_assert!((slot.index as usize) < self.slots);
        // SAFETY: the ring creates tokens only for indexes below its number of slots, so the address is inside the
        // memory.
        unsafe { self.first.add(slot.index as usize * self.layout.stride()) }
    }

    /// Passes a slot that the device filled with a frame at offset `at` to `push`, which returns the
    /// frame's final location. `at + facts.len` is at most the slot's size. The stripped VLAN tag
    /// is put back at that final location: fields that are written one by one and then moved as a whole
    /// stall in the CPU's store buffer.
    #[inline(always)]
    pub(super) fn fill<'f>(
        &self,
        slot: Slot,
        at: u32,
        facts: FrameFacts,
        push: impl FnOnce(Filled) -> Option<&'f mut Filled>,
    ) {
        let FrameFacts {
            len,
            stamp,
            stripped,
        } = facts;
        debug_assert!(at as usize + len as usize <= self.layout.slot_bytes);
        let filled = push(Filled {
            slot,
            at,
            len,
            stamp,
            ahead: 0,
            tag_lost: false,
        });
        if let (Some(tci), Some(filled)) = (stripped, filled) {
            self.put_tag_back(filled, tci);
        }
    }

    /// Puts a stripped VLAN tag back into a received frame by moving the MAC addresses four bytes
    /// towards the front. Without headroom in the slots the tag is lost.
    #[inline(never)]
    fn put_tag_back(&self, filled: &mut Filled, tci: u16) {
        filled.tag_lost = true;
        if self.layout.headroom < 4 || filled.ahead > 0 || (filled.len as usize) < MACS {
            return;
        }
        // SAFETY: the start of the frame, inside the slot.
        let start = unsafe { self.address(&filled.slot).add(filled.at as usize) };
        let [high, low] = tci.to_be_bytes();
        // SAFETY: the token is borrowed exclusively; the slot has four bytes of headroom and at least the two addresses.
        // The ranges overlap, which `copy` allows.
        unsafe {
            std::ptr::copy(start, start.sub(4), MACS);
            start
                .add(MACS - 4)
                .cast::<[u8; 4]>()
                .write([CVLAN[0], CVLAN[1], high, low]);
        }
        (filled.ahead, filled.tag_lost) = (4, false);
    }
}
