//! Receive queue that exposes single completions with their raw entries; slow, for inspection.

use super::{Cqe, DirectCq, DirectWq};
use crate::{
    CompletionStamps, Context, Cq, CqAttr, Mr, Pd, VerbsError, Wq, WqAttr, WqHandle, WqState,
    memory::Region,
};

/// Completion with its raw CQ entry and the received bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspected {
    /// Decoded CQE of the completion.
    pub cqe: Cqe,
    /// Raw CQ entry of 64 bytes (`mlx5_cqe64`).
    pub raw: [u8; 64],
    /// Bytes that were received with the completion; empty on an error.
    pub bytes: Vec<u8>,
}

/// Receive queue for inspection: a CQ, and a WQ that is ready and filled with WQEs. Received bytes
/// are copied, and the WQE is posted again at once.
pub struct InspectedQueue {
    cq: DirectCq,
    wq: DirectWq,
    memory: Mr,
    slot: u32,
}

impl InspectedQueue {
    /// Creates a receive queue for inspection with at least `wrs` WQEs of `slot` bytes.
    ///
    /// # Errors
    /// The error of a verb, EOPNOTSUPP if the rings cannot be accessed directly, or EPROTO if the
    /// ring has another size.
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
        let (cq, wq) = (DirectCq::from_cq(cq)?, DirectWq::from_wq(wq)?);
        if wq.len() != wrs {
            let object = format!("WQ with {wrs} WRs requested, {} created", wq.len());
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

    /// Returns the WQ's handle, for use in an indirection table.
    #[must_use]
    pub fn handle(&self) -> WqHandle {
        self.wq.wq().handle()
    }

    /// Returns the number that identifies the WQ in asynchronous events.
    #[must_use]
    pub fn id(&self) -> usize {
        self.wq.wq().id()
    }

    /// Returns the number of WQEs in the WQ.
    #[must_use]
    pub fn wrs(&self) -> u32 {
        self.wq.len()
    }

    /// Takes the next completion of the inspected queue. The WQE of a successful one is handed to
    /// the device again.
    pub fn take(&mut self) -> Option<Inspected> {
        let (cqe, raw) = self.cq.cqes().take_raw()?;
        let mut bytes = Vec::new();
        if cqe.status == 0 {
            let len = cqe.byte_len.min(self.slot) as usize;
            let at = self.wq.index_of(cqe.wqe_counter) as usize * self.slot as usize;
            // SAFETY: a slot of the memory; its WQE has completed, so the device no longer writes
            // to it.
            let slot = unsafe {
                std::slice::from_raw_parts(self.memory.memory().cast::<u8>().add(at), len)
            };
            bytes.extend_from_slice(slot);
            self.wq.advance();
            // SAFETY: WQEs complete in order, so this is the WQE that has just completed,
            // unchanged: it points to its slot, to which no reference remains.
            unsafe { self.wq.hand_over() };
        }
        Some(Inspected { cqe, raw, bytes })
    }

    /// Changes the state of the WQ, as [`DirectWq::set_state`] does.
    ///
    /// # Errors
    /// The error of the verb.
    pub fn set_state(&mut self, from: Option<WqState>, state: WqState) -> Result<(), VerbsError> {
        self.wq.set_state(from, state)
    }

    /// Changes the WQ from reset to ready and hands over all its WQEs. If `sound` is `false`, the
    /// WQEs have an invalid key (lkey), so that the device cannot write to their buffers.
    /// Completions from before the reset that were not taken are discarded.
    ///
    /// # Errors
    /// EINVAL if the WQ is not in reset, or the error of the verb.
    pub fn make_ready(&mut self, sound: bool) -> Result<(), VerbsError> {
        if self.wq.wq().state() != WqState::Reset {
            let object = format!("WQ, state {:?} to Ready", self.wq.wq().state());
            return Err(VerbsError::from_errno(
                "ibv_modify_wq",
                object,
                libc::EINVAL,
            ));
        }
        while self.cq.cqes().take().is_some() {}
        self.wq.set_state(None, WqState::Ready)?;
        let key = self.memory.lkey();
        // The index of a key is in its upper 24 bits (PRM, "Memory Key"): with other upper bits it
        // is the key of no memory region.
        let key = if sound { key } else { key ^ 0x5a5a_5a00 };
        let start = self.memory.memory().addr() as u64;
        for _ in 0..self.wq.len() {
            let at = self.wq.next_index();
            let address = start + u64::from(at) * u64::from(self.slot);
            // SAFETY: the WQ was in reset, where the device owns no WQE, and no WQE was handed over
            // since.
            unsafe { self.wq.write(at, address, self.slot, 1, key) };
            self.wq.advance();
        }
        // SAFETY: each WQE points at its slot of the memory that the WQ was created with, and
        // `take` reads slots only after their completion.
        unsafe { self.wq.hand_over() };
        Ok(())
    }
}
