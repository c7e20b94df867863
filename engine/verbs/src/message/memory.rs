//! Registered memory for messages, in slots of one size. A slot is a token: whoever has it may read and write its
//! bytes; a slot that is lent to the device is with nobody until its completion gives it back.

use crate::{
    error::VerbsError,
    memory::Region,
    mr::{Mr, MrInner},
    pd::Pd,
};
use rdma_sys as ffi;
use std::{io, slice, sync::Arc};

/// A slot that is not with the device. Neither `Clone` nor `Copy`.
#[derive(Debug, PartialEq, Eq)]
pub struct MessageSlot(u32);

/// The memory and who has which slot.
pub struct Messages {
    mr: Mr,
    slot_len: u32,
    /// By slot: how often it was lent, odd while it is. A completion that is not of the last lending gives nothing back.
    lent: Vec<u32>,
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
            lent: vec![0; count as usize],
        };
        Ok((messages, (0..count).map(MessageSlot).collect()))
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn slot_len(&self) -> u32 {
        self.slot_len
    }

    /// A slot's bytes.
    #[must_use]
    pub fn bytes(&self, slot: &MessageSlot) -> &[u8] {
        // SAFETY: the slot lies in the region, and as its token is here the device does not write to it. Another
        // slice of it exists only while this is borrowed.
        unsafe { slice::from_raw_parts(self.start(slot), self.slot_len as usize) }
    }

    /// The same, to write.
    pub fn bytes_mut(&mut self, slot: &mut MessageSlot) -> &mut [u8] {
        // SAFETY: as for `bytes`; `&mut self` and the token make it the only slice.
        unsafe { slice::from_raw_parts_mut(self.start(slot), self.slot_len as usize) }
    }

    /// Gives a slot back that was lent: `None` when `wr_id` is of no slot lent now.
    pub fn returned(&mut self, wr_id: u64) -> Option<MessageSlot> {
        let (slot, turn) = ((wr_id & 0xffff_ffff) as u32, (wr_id >> 32) as u32);
        let lent = self.lent.get_mut(slot as usize)?;
        if *lent != turn || turn % 2 == 0 {
            return None;
        }
        *lent = lent.wrapping_add(1);
        Some(MessageSlot(slot))
    }

    /// Lends a slot's first `length` bytes to the device: the WR's number and its scatter entry.
    pub(crate) fn lend(&mut self, slot: MessageSlot, length: u32) -> (u64, ffi::ibv_sge) {
        let sge = ffi::ibv_sge {
            addr: self.start(&slot) as u64,
            length: length.min(self.slot_len),
            lkey: self.mr.lkey(),
        };
        let lent = &mut self.lent[slot.0 as usize];
        *lent = lent.wrapping_add(1);
        (u64::from(*lent) << 32 | u64::from(slot.0), sge)
    }

    /// Gives back the slot of a WR that the device refused.
    pub(crate) fn refused(&mut self, wr_id: u64, errno: i32) -> (MessageSlot, io::Error) {
        let slot = self.returned(wr_id).expect("it was just lent");
        (slot, io::Error::from_raw_os_error(errno))
    }

    pub(crate) fn memory(&self) -> Arc<MrInner> {
        Arc::clone(&self.mr.0)
    }

    fn start(&self, slot: &MessageSlot) -> *mut u8 {
        let at = slot.0 as usize * self.slot_len as usize;
        debug_assert!(at + self.slot_len as usize <= self.mr.memory().len());
        // SAFETY: `register` made the region as long as all slots together.
        unsafe { self.mr.memory().as_ptr().add(at) }
    }
}
