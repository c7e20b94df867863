//! Registered memory for messages, in slots of one size. A slot is a token: its holder may read and
//! write the slot's bytes. While a slot is lent to the device, its token does not exist; the
//! completion returns it.
//!
//! Invariant: a slot is returned only by a completion that
//! [`MessageCq::poll`](super::MessageCq::poll) took, or by the end of the QP that had a send. A
//! program can forge neither.

use super::MessageCompletion;
use crate::sys as ffi;
use crate::{
    error::VerbsError,
    memory::Region,
    mr::{Mr, MrInner},
    pd::Pd,
};
use std::{
    collections::HashMap,
    io, slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Lowest `wr_id` of message WRs that this crate posts. The process counts up from here, so that no
/// two WRs share a `wr_id`; WRs that a program posts itself have lower ones.
pub const OWN_WR_IDS: u64 = 1 << 63;

/// Message slot that the device does not hold. It is neither `Clone` nor `Copy`, and belongs to one
/// [`MessageMemory`].
///
/// ```compile_fail
/// fn twice(slot: wqcap_verbs::MessageSlot) -> (wqcap_verbs::MessageSlot, wqcap_verbs::MessageSlot) {
///     (slot.clone(), slot)
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct MessageSlot {
    index: u32,
    set: SetId,
}

/// Identifier of a [`MessageMemory`] in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SetId(u64);

/// Identifier of the QP or SRQ of this process to which message slots are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BorrowerId(u64);

impl BorrowerId {
    pub(crate) fn next() -> Self {
        Self(unique())
    }
}

/// Returns a number, for a `wr_id` or another identifier, that is unique in this process.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(OWN_WR_IDS);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Message slot that the device holds, and the QP or SRQ to which it is lent.
struct Lent {
    index: u32,
    to: BorrowerId,
}

/// Registered memory of message slots, and a record of the slots that the device holds.
pub struct MessageMemory {
    mr: Mr,
    slot_len: u32,
    set: SetId,
    /// Message slots that the device holds, by the `wr_id` of their WR.
    lent: HashMap<u64, Lent>,
}

impl MessageMemory {
    /// Registers memory for `count` message slots of `slot_len` bytes each and returns their
    /// tokens.
    ///
    /// # Errors
    /// There is not enough memory, or it cannot be registered.
    pub fn register(
        pd: &Pd,
        count: u32,
        slot_len: u32,
    ) -> Result<(Self, Vec<MessageSlot>), VerbsError> {
        let memory = Region::allocate(count as usize * slot_len as usize, None)?;
        let messages = Self {
            mr: Mr::register(pd, memory)?,
            slot_len,
            set: SetId(unique()),
            lent: HashMap::new(),
        };
        let slots = (0..count).map(|index| messages.slot(index)).collect();
        Ok((messages, slots))
    }

    /// Returns the length of a message slot in bytes.
    #[must_use]
    pub fn slot_len(&self) -> u32 {
        self.slot_len
    }

    /// Returns the bytes of a message slot.
    ///
    /// # Panics
    /// Panics if the slot belongs to another [`MessageMemory`].
    #[must_use]
    pub fn bytes(&self, slot: &MessageSlot) -> &[u8] {
        // SAFETY: the slot lies in the region, and the device does not write to it while its token
        // exists. A mutable slice of it cannot exist while `self` is borrowed.
        unsafe { slice::from_raw_parts(self.start(slot), self.slot_len as usize) }
    }

    /// Returns the bytes of a message slot for writing.
    ///
    /// # Panics
    /// Panics if the slot belongs to another [`MessageMemory`].
    pub fn bytes_mut(&mut self, slot: &mut MessageSlot) -> &mut [u8] {
        // SAFETY: as for `bytes`; `&mut self` and the token make it the only slice.
        unsafe { slice::from_raw_parts_mut(self.start(slot), self.slot_len as usize) }
    }

    /// Returns the message slot of a completed WR; `None` if the WR does not belong to this memory,
    /// or its slot was already returned.
    pub fn take_returned(&mut self, completion: &MessageCompletion) -> Option<MessageSlot> {
        let lent = self.lent.remove(&completion.wr_id)?;
        Some(self.slot(lent.index))
    }

    /// Lends the first `length` bytes of a message slot to the device; returns the WR's `wr_id` and
    /// its scatter entry.
    ///
    /// # Panics
    /// Panics if the slot belongs to another [`MessageMemory`].
    pub(crate) fn lend(
        &mut self,
        slot: MessageSlot,
        length: u32,
        to: BorrowerId,
    ) -> (u64, ffi::ibv_sge) {
        let sge = ffi::ibv_sge {
            addr: self.start(&slot) as u64,
            length: length.min(self.slot_len),
            lkey: self.mr.lkey(),
        };
        let (wr_id, index) = (unique(), slot.index);
        self.lent.insert(wr_id, Lent { index, to });
        (wr_id, sge)
    }

    /// Returns the message slot of a WR that its QP or SRQ no longer holds: the WR was rejected, or
    /// the QP was destroyed.
    pub(crate) fn take_back(&mut self, wr_id: u64, from: BorrowerId) -> Option<MessageSlot> {
        if self.lent.get(&wr_id)?.to != from {
            return None;
        }
        let lent = self.lent.remove(&wr_id)?;
        Some(self.slot(lent.index))
    }

    /// Returns the message slot of a WR that the device rejected, and the error.
    pub(crate) fn refused(
        &mut self,
        wr_id: u64,
        from: BorrowerId,
        errno: i32,
    ) -> (MessageSlot, io::Error) {
        let slot = self.take_back(wr_id, from).expect("the slot was just lent");
        (slot, io::Error::from_raw_os_error(errno))
    }

    pub(crate) fn memory(&self) -> Arc<MrInner> {
        Arc::clone(&self.mr.0)
    }

    /// Returns `true` if `held` is the registered memory of these message slots.
    pub(crate) fn is_over(&self, held: &Arc<MrInner>) -> bool {
        Arc::ptr_eq(&self.mr.0, held)
    }

    fn slot(&self, index: u32) -> MessageSlot {
        MessageSlot {
            index,
            set: self.set,
        }
    }

    fn start(&self, slot: &MessageSlot) -> *mut u8 {
        assert!(
            slot.set == self.set,
            "the message slot belongs to another memory"
        );
        let at = slot.index as usize * self.slot_len as usize;
        // SAFETY: a slot of this set, and `register` made the region as long as all of its slots
        // together.
        unsafe { self.mr.memory().cast::<u8>().add(at) }
    }
}
