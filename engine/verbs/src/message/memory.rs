//! Registered memory for messages, in slots of one size. A slot is a token: whoever has it may read and write its
//! bytes; a slot that is lent to the device is with nobody until its completion gives it back.
//!
//! Invariant: only a completion that [`MessageCq::poll`](super::MessageCq::poll) took, or the end of the QP that had a
//! send, gives a slot back. A program cannot make up either.

use super::MessageCompletion;
use crate::{
    error::VerbsError,
    memory::Region,
    mr::{Mr, MrInner},
    pd::Pd,
};
use rdma_sys as ffi;
use std::{
    collections::HashMap,
    io, slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// The lowest `wr_id` of this crate's WRs. The process counts them up from here, so that no two WRs share one; WRs that a
/// program posts by itself have lower ones.
pub const OWN_WR_IDS: u64 = 1 << 63;

/// A slot that is not with the device. Neither `Clone` nor `Copy`, and of one set of [`Messages`] alone.
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

/// Identifies a set of [`Messages`] in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SetId(u64);

/// Identifies what a slot is lent to: a QP or an SRQ of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LenderId(u64);

impl LenderId {
    pub(crate) fn next() -> Self {
        Self(unique())
    }
}

/// A number that nothing else in this process has.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(OWN_WR_IDS);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A slot that the device has.
struct Lent {
    index: u32,
    to: LenderId,
}

/// The memory and who has which slot.
pub struct Messages {
    mr: Mr,
    slot_len: u32,
    set: SetId,
    /// Slots that the device has, by the `wr_id` of their WR.
    lent: HashMap<u64, Lent>,
}

impl Messages {
    /// Registers `count` slots of `slot_len` bytes, and gives them out.
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

    /// Bytes of a slot.
    #[must_use]
    pub fn slot_len(&self) -> u32 {
        self.slot_len
    }

    /// A slot's bytes.
    ///
    /// # Panics
    /// The slot is of another set.
    #[must_use]
    pub fn bytes(&self, slot: &MessageSlot) -> &[u8] {
        // SAFETY: the slot lies in the region, and as its token is here the device does not write to it. Another
        // slice of it exists only while this is borrowed.
        unsafe { slice::from_raw_parts(self.start(slot), self.slot_len as usize) }
    }

    /// A slot's bytes, to write.
    ///
    /// # Panics
    /// The slot is of another set.
    pub fn bytes_mut(&mut self, slot: &mut MessageSlot) -> &mut [u8] {
        // SAFETY: as for `bytes`; `&mut self` and the token make it the only slice.
        unsafe { slice::from_raw_parts_mut(self.start(slot), self.slot_len as usize) }
    }

    /// Gives a slot back whose WR has completed: `None` when the WR is not of this set, or its slot is back already.
    pub fn returned(&mut self, completion: &MessageCompletion) -> Option<MessageSlot> {
        let lent = self.lent.remove(&completion.wr_id)?;
        Some(self.slot(lent.index))
    }

    /// Lends a slot's first `length` bytes to the device: the WR's number and its scatter entry.
    ///
    /// # Panics
    /// The slot is of another set.
    pub(crate) fn lend(
        &mut self,
        slot: MessageSlot,
        length: u32,
        to: LenderId,
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

    /// Gives back the slot of a WR that its QP or SRQ does not have: it was refused, or the QP is destroyed.
    pub(crate) fn take_back(&mut self, wr_id: u64, from: LenderId) -> Option<MessageSlot> {
        if self.lent.get(&wr_id)?.to != from {
            return None;
        }
        let lent = self.lent.remove(&wr_id)?;
        Some(self.slot(lent.index))
    }

    /// Gives back the slot of a WR that the device refused.
    pub(crate) fn refused(
        &mut self,
        wr_id: u64,
        from: LenderId,
        errno: i32,
    ) -> (MessageSlot, io::Error) {
        let slot = self.take_back(wr_id, from).expect("it was just lent");
        (slot, io::Error::from_raw_os_error(errno))
    }

    pub(crate) fn memory(&self) -> Arc<MrInner> {
        Arc::clone(&self.mr.0)
    }

    /// Whether `held` is the memory of this set.
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
        assert!(slot.set == self.set, "a slot of another set of messages");
        let at = slot.index as usize * self.slot_len as usize;
        // SAFETY: a slot of this set, and `register` made the region as long as all of its slots together.
        unsafe { self.mr.memory().cast::<u8>().add(at) }
    }
}
