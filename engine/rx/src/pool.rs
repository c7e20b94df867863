//! Slots: equal pieces of registered memory, each taking one frame.
#![allow(unsafe_code)]

use super::RingAttr;
use std::sync::atomic::{AtomicU32, Ordering};
use wqcap_core::consumer::{FCS_LEN, Fcs, Frame};
use wqcap_memory::Region;
use wqcap_verbs::{Mr, SCATTER_FCS};

/// The right to one slot's bytes. Neither `Copy` nor `Clone`: who holds it knows that the device does not write
/// there.
///
/// ```compile_fail
/// fn twice(slot: wqcap_engine::rx::Slot) -> (wqcap_engine::rx::Slot, wqcap_engine::rx::Slot) {
///     (slot, slot)
/// }
/// ```
#[derive(Debug)]
pub struct Slot {
    index: u32,
    ring: RingId,
}

impl Slot {
    /// The slot's number, its WR's `wr_id`.
    #[inline]
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// Tells the rings of a process apart, so that no token opens another ring's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingId(u32);

impl RingId {
    fn next() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A slot with a frame in it.
#[derive(Debug)]
pub struct Filled {
    slot: Slot,
    /// Where in the slot the frame begins.
    at: u32,
    len: u32,
    stamp: u64,
    /// Bytes in front of where the device began to write that belong to the frame.
    ahead: u8,
    /// The device took a VLAN tag off, and it was not put back.
    tag_lost: bool,
}

impl Filled {
    /// The device's stamp of the reception ([`crate::clock::Form`]).
    #[must_use]
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Whether the device took a VLAN tag off that was not put back. Never true where the ring is reached by the
    /// verbs, which do not tell.
    #[must_use]
    pub fn tag_lost(&self) -> bool {
        self.tag_lost
    }

    /// The frame's bytes, without its FCS.
    ///
    /// # Panics
    /// The memory is another ring's.
    #[inline]
    #[must_use]
    pub fn bytes<'a>(&'a self, memory: &'a SlotMemory) -> &'a [u8] {
        let all = self.delivered(memory);
        &all[..all.len().saturating_sub(memory.layout.fcs)]
    }

    /// The frame's FCS, where the queue scatters it behind the frame.
    ///
    /// # Panics
    /// The memory is another ring's.
    #[inline]
    #[must_use]
    pub fn fcs(&self, memory: &SlotMemory) -> Option<[u8; FCS_LEN]> {
        if !memory.has_fcs() {
            return None;
        }
        self.delivered(memory).last_chunk().copied()
    }

    /// Returns the frame in this slot with its FCS, if the queue delivers one; `ns` is its time of reception in nanoseconds
    /// since 1970.
    #[inline]
    pub fn frame<'a>(&'a self, memory: &'a SlotMemory, ns: u64) -> Frame<'a> {
        let fcs = self.fcs(memory);
        Frame {
            fcs: fcs.map(|bytes| Fcs { bytes, bad: false }),
            ..self.frame_without_fcs(memory, ns)
        }
    }

    /// Returns the frame in this slot of a queue that delivers no FCS; `ns` is its time of reception in nanoseconds since
    /// 1970.
    #[inline]
    pub fn frame_without_fcs<'a>(&'a self, memory: &'a SlotMemory, ns: u64) -> Frame<'a> {
        let bytes = self.bytes(memory);
        Frame {
            bytes,
            // A slot is far below 4 GiB.
            len: bytes.len() as u32,
            fcs: None,
            ns,
        }
    }

    /// What the device has written, and what was put back in front of it.
    #[inline]
    fn delivered<'a>(&'a self, memory: &'a SlotMemory) -> &'a [u8] {
        let ahead = usize::from(self.ahead);
        // SAFETY: `slot` is a token of this memory's ring, which `address` has checked, so the device does not write
        // to these bytes of it and nobody writes at all; the ring made sure that they are inside the slot and the index
        // one of the pool's, and `ahead` is at most the slot's headroom.
        unsafe {
            std::slice::from_raw_parts(
                memory.address(&self.slot).add(self.at as usize).sub(ahead),
                self.len as usize + ahead,
            )
        }
    }

    /// Gives the slot back, for reposting.
    #[inline]
    #[must_use]
    pub fn into_slot(self) -> Slot {
        self.slot
    }
}

/// How slots lie in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Bytes the device may write.
    slot_bytes: usize,
    /// Bytes in front of them, where a VLAN tag is put back.
    headroom: usize,
    /// Bytes behind each frame that are its FCS.
    fcs: usize,
}

impl Layout {
    pub(super) fn of(attr: RingAttr) -> Self {
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

    /// From one slot to the next.
    #[inline]
    pub(super) fn stride(self) -> usize {
        self.slot_bytes + self.headroom
    }
}

/// The memory behind one ring's slots.
pub struct SlotMemory {
    /// The first slot, as the backing has it.
    first: *mut u8,
    slots: usize,
    /// The registration's key; 0 of memory that is not registered.
    lkey: u32,
    layout: Layout,
    ring: RingId,
    _backing: Backing,
}

/// What slots are made of; mapped as long as it lives.
enum Backing {
    Registered(#[allow(dead_code)] Mr),
    Unregistered(#[allow(dead_code)] Region),
}

// SAFETY: the memory belongs to the backing, which may go to another thread; who may read and write which of its bytes
// when is what tokens tell.
unsafe impl Send for SlotMemory {}
// SAFETY: as above.
unsafe impl Sync for SlotMemory {}

/// Length of two MAC addresses, behind which a VLAN tag stands (IEEE 802.3).
const MACS: usize = 12;
/// TPID of a customer tag (IEEE 802.1Q): the only one that CVLAN stripping takes off.
const CVLAN: [u8; 2] = [0x81, 0x00];

impl SlotMemory {
    /// Slots over registered memory.
    pub(super) fn new(mr: Mr, layout: Layout) -> Self {
        let (memory, lkey) = (mr.memory(), mr.lkey());
        let (start, len) = (memory.cast(), memory.len());
        Self::over(start, len, lkey, layout, Backing::Registered(mr))
    }

    /// Slots over memory that no device knows.
    pub(super) fn unregistered(memory: Region, layout: Layout) -> Self {
        let (start, len) = (memory.as_ptr(), memory.len());
        Self::over(start, len, 0, layout, Backing::Unregistered(memory))
    }

    fn over(start: *mut u8, len: usize, lkey: u32, layout: Layout, backing: Backing) -> Self {
        Self {
            // Within the memory, if it has a slot.
            first: start.wrapping_add(layout.headroom),
            slots: len / layout.stride(),
            lkey,
            layout,
            ring: RingId::next(),
            _backing: backing,
        }
    }

    /// The token of a slot. Only the ring makes them: each number once at the start, and again when its completion
    /// comes.
    #[inline]
    pub(super) fn slot(&self, index: u32) -> Slot {
        Slot {
            index,
            ring: self.ring,
        }
    }

    /// Holds a token to this memory: a comparison of two numbers that are at hand.
    ///
    /// # Panics
    /// It is another ring's.
    #[inline]
    pub(super) fn own(&self, slot: &Slot) {
        assert!(slot.ring == self.ring, "a slot of another ring");
    }

    /// The longest frame a slot takes, in bytes.
    #[inline]
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.layout.slot_bytes
    }

    /// Whether the queue scatters each frame's FCS behind it.
    #[inline]
    pub fn has_fcs(&self) -> bool {
        self.layout.fcs > 0
    }

    /// Writes into a slot as a device does.
    #[cfg(test)]
    pub(super) fn write(&self, index: u32, bytes: &[u8]) {
        assert!(bytes.len() <= self.layout.slot_bytes);
        let start = self.address(&self.slot(index));
        // SAFETY: the slot has as many bytes, and whoever calls plays the device, which has the slot.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    }

    /// The registration's key.
    #[inline]
    pub(super) fn lkey(&self) -> u32 {
        self.lkey
    }

    #[inline]
    pub(super) fn address(&self, slot: &Slot) -> *mut u8 {
        self.own(slot);
        debug_assert!((slot.index as usize) < self.slots);
        // SAFETY: the ring hands out numbers below the number of its slots, so this stays inside the memory.
        unsafe { self.first.add(slot.index as usize * self.layout.stride()) }
    }

    /// Hands a slot that the device has filled with `len` bytes from `at` on, together at most a slot's, to `push`, which tells
    /// where the frame is then. There the tag that the device took off is put back: parts of a frame that are written one by
    /// one, and then moved as a whole, wait for each other in the CPU's store buffer.
    #[inline(always)]
    pub(super) fn fill<'f>(
        &self,
        slot: Slot,
        at: u32,
        len: u32,
        stamp: u64,
        stripped: Option<u16>,
        push: impl FnOnce(Filled) -> Option<&'f mut Filled>,
    ) {
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

    /// Puts a tag that the device took off back into a frame that has just been received, if the slots have headroom for
    /// it: the addresses move four bytes forward. Else the tag is lost.
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
