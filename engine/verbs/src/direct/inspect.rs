//! A receive queue for looking at single completions: slow, and with nothing left out.

use super::{Cqe, DirectCq, DirectWq};
use crate::{
    CompletionStamps, Context, Cq, CqAttr, Mr, Pd, VerbsError, Wq, WqAttr, WqHandle, WqState,
    memory::Region,
};

/// A completion, its entry as the device wrote it, and what it received.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// As it is read.
    pub cqe: Cqe,
    /// The 64 bytes of the entry (`mlx5_cqe64`).
    pub raw: [u8; 64],
    /// The bytes that were received; none with an error.
    pub bytes: Vec<u8>,
}

/// A CQ and a WQ that is ready and full of WQEs. What is received is copied, and its WQE goes back at once.
pub struct InspectedQueue {
    cq: DirectCq,
    wq: DirectWq,
    memory: Mr,
    slot: u32,
}

impl InspectedQueue {
    /// Creates one with at least `wrs` WQEs of `slot` bytes.
    ///
    /// # Errors
    /// A verb's, or the rings are not to be reached.
    pub fn create(
        context: &Context,
        pd: &Pd,
        (wrs, slot): (u32, u32),
        flags: u32,
        stamps: CompletionStamps,
    ) -> Result<Self, VerbsError> {
        let wrs = wrs.max(1).next_power_of_two();
        let attr = CqAttr {
            entries: wrs,
            vector: 0,
            stamps,
            compression: None,
        };
        let cq = Cq::create(context, attr, None)?;
        let memory = Mr::register(pd, Region::allocate(wrs as usize * slot as usize, None)?)?;
        let attr = WqAttr {
            max_wr: wrs,
            max_sge: 1,
            flags,
            striding: None,
        };
        let wq = Wq::create(pd, &cq, &memory, attr)?;
        let (cq, wq) = (DirectCq::of(cq)?, DirectWq::of(wq)?);
        if wq.len() != wrs {
            let object = format!("{wrs} WRs were asked for, {} came", wq.len());
            return Err(VerbsError::from_errno(
                "ibv_create_wq",
                object,
                libc::EPROTO,
            ));
        }
        let mut queue = Self {
            cq,
            wq,
            memory,
            slot,
        };
        queue.make_ready(true)?;
        Ok(queue)
    }

    /// The WQ, for a table.
    #[must_use]
    pub fn handle(&self) -> WqHandle {
        self.wq.wq().handle()
    }

    /// The WQ, as asynchronous events name it.
    #[must_use]
    pub fn id(&self) -> usize {
        self.wq.wq().id()
    }

    /// WQEs of the queue.
    #[must_use]
    pub fn wrs(&self) -> u32 {
        self.wq.len()
    }

    /// The next completion. The WQE of a sound one is handed to the device again.
    pub fn take(&mut self) -> Option<Inspected> {
        let (cqe, raw) = self.cq.cqes().take_raw()?;
        let mut bytes = Vec::new();
        if cqe.status == 0 {
            let len = cqe.byte_len.min(self.slot) as usize;
            let at = self.wq.index_of(cqe.wqe_counter) as usize * self.slot as usize;
            // SAFETY: a slot of the memory; its WQE has completed, so that the device writes there no more.
            let slot = unsafe {
                std::slice::from_raw_parts(self.memory.memory().cast::<u8>().add(at), len)
            };
            bytes.extend_from_slice(slot);
            self.wq.advance();
            // SAFETY: WQEs complete in order, so that this is the WQE that has just completed, as it was written: it
            // points at its slot, of which nobody keeps a reference.
            unsafe { self.wq.hand_over() };
        }
        Some(Inspected { cqe, raw, bytes })
    }

    /// Changes the state, as [`DirectWq::set_state`].
    ///
    /// # Errors
    /// The verb's.
    pub fn set_state(&mut self, from: Option<WqState>, state: WqState) -> Result<(), VerbsError> {
        self.wq.set_state(from, state)
    }

    /// From reset to ready, and hands over all WQEs; without `sound` keys the device cannot write where they point.
    /// Completions from before the reset that were not taken are gone.
    ///
    /// # Errors
    /// EINVAL unless the WQ was put in reset before; the verb's.
    pub fn make_ready(&mut self, sound: bool) -> Result<(), VerbsError> {
        if self.wq.wq().state() != WqState::Reset {
            let object = format!("{:?} to Ready", self.wq.wq().state());
            return Err(VerbsError::from_errno(
                "ibv_modify_wq",
                object,
                libc::EINVAL,
            ));
        }
        while self.cq.cqes().take().is_some() {}
        self.wq.set_state(None, WqState::Ready)?;
        let key = self.memory.lkey();
        // The index of a key is in its upper 24 bits (PRM, "Memory Key"): with others this is nobody's.
        let key = if sound { key } else { key ^ 0x5a5a_5a00 };
        let start = self.memory.memory().addr() as u64;
        for _ in 0..self.wq.len() {
            let at = self.wq.next_index();
            let address = start + u64::from(at) * u64::from(self.slot);
            // SAFETY: the WQ was in reset, in which a device owns no WQE, and none has been handed over since.
            unsafe { self.wq.write(at, address, self.slot, 1, key) };
            self.wq.advance();
        }
        // SAFETY: each WQE points at its slot of the memory that the WQ was created with, and `take` reads slots only
        // after their completion.
        unsafe { self.wq.hand_over() };
        Ok(())
    }
}
