//! A queue reached in its own memory by libmlx5's direct verbs, at a third of the cost.
#![allow(unsafe_code)]

use super::{Account, NOTHING, Queue, RingAttr, RingError};
use crate::{
    rx::pool::{Slot, SlotMemory},
    verbs::{self, Cq, DirectCq, DirectWq, Wq, WqState},
};
use std::os::fd::BorrowedFd;

/// A WQ and its CQ in their own memory.
pub struct DirectQueue {
    wq: DirectWq,
    cq: DirectCq,
    /// The slot that each WQE points at. Slots that come back in their order find their WQE already written.
    bound: Box<[u32]>,
}

impl DirectQueue {
    pub(super) fn new(wq: Wq, cq: Cq) -> Result<Self, verbs::VerbsError> {
        let (wq, cq) = (DirectWq::of(wq)?, DirectCq::of(cq)?);
        let bound = (0..wq.len()).map(|_| NOTHING).collect();
        Ok(Self { wq, cq, bound })
    }

    pub(super) fn wq(&self) -> &Wq {
        self.wq.wq()
    }
}

impl Queue for DirectQueue {
    #[inline]
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        let mut result = Ok(());
        for _ in 0..limit {
            let Some(cqe) = self.cq.take() else { break };
            let slot = self.bound[self.wq.index_of(cqe.wqe_counter) as usize];
            result = account.enter(
                slot.into(),
                cqe.status,
                cqe.byte_len,
                cqe.timestamp,
                cqe.stripped,
            );
            if result.is_err() {
                break;
            }
        }
        self.cq.release();
        result
    }

    /// Hands the slots' WQEs over. A slot that comes back to the WQE it was in costs a comparison.
    #[inline]
    fn post(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
        memory: &SlotMemory,
        attr: RingAttr,
    ) -> Result<u32, i32> {
        let mut count = 0;
        for slot in slots {
            let index = self.wq.next_index();
            let bound = &mut self.bound[index as usize];
            posted[slot.index() as usize] = true;
            if *bound != slot.index() {
                *bound = slot.index();
                let address = memory.address(&slot) as u64;
                self.wq
                    .write(index, address, attr.buffer, attr.max_sge, memory.lkey());
            }
            self.wq.advance();
            count += 1;
        }
        // SAFETY: each WQE points into the slot whose token has just been given up, in the memory the WQ was created
        // with; no more slots exist than WQEs, so none is overwritten while the device has it.
        unsafe { self.wq.hand_over() };
        Ok(count)
    }

    fn set_state(
        &mut self,
        from: Option<WqState>,
        state: WqState,
    ) -> Result<(), verbs::VerbsError> {
        self.wq.set_state(from, state)?;
        // libmlx5 zeroes the WQEs at RESET -> RDY. Until then, completions from before a reset still name them.
        if state == WqState::Ready {
            self.bound.fill(NOTHING);
        }
        Ok(())
    }

    fn set_cvlan_stripping(&mut self, on: bool) -> Result<(), verbs::VerbsError> {
        self.wq.wq_mut().set_cvlan_stripping(on)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.cq.event_fd()
    }

    fn arm(&mut self) -> Result<(), verbs::VerbsError> {
        self.cq.arm();
        Ok(())
    }

    fn take_event(&mut self) -> bool {
        self.cq.take_event()
    }
}
