//! A queue reached in its own memory by libmlx5's direct verbs, at a third of the cost.
#![allow(unsafe_code)]

use super::{Account, Queue, RingAttr, RingError};
use crate::{
    rx::pool::{Slot, SlotMemory},
    verbs::{self, Cq, Cqe, DirectCq, DirectWq, Wq, WqState},
};
use std::os::fd::BorrowedFd;

/// A WQE that points nowhere yet.
const NOTHING: u32 = u32::MAX;

/// What a WQE's slot takes: one frame, or many.
pub trait Filling {
    /// Enters a completion, whose slot is among those that the WQEs are `bound` to; whether it counts towards a poll's
    /// limit.
    ///
    /// # Errors
    /// The queue cannot go on.
    fn enter(
        &mut self,
        cqe: &Cqe,
        wq: &DirectWq,
        bound: &[u32],
        account: &mut Account<'_>,
    ) -> Result<bool, RingError>;

    /// A token of a slot is home; whether the slot is whole, to be handed over again.
    fn is_whole(&mut self, slot: &Slot) -> bool;

    /// The WQ begins with its first WQE again.
    fn reset(&mut self);
}

/// A WQE takes one frame.
#[derive(Debug)]
pub struct OneFrame;

impl Filling for OneFrame {
    #[inline]
    fn enter(
        &mut self,
        cqe: &Cqe,
        wq: &DirectWq,
        bound: &[u32],
        account: &mut Account<'_>,
    ) -> Result<bool, RingError> {
        let slot = bound[wq.index_of(cqe.wqe_counter) as usize];
        account.enter(
            slot.into(),
            cqe.status,
            cqe.byte_len,
            cqe.timestamp,
            cqe.stripped,
        )?;
        Ok(true)
    }

    #[inline]
    fn is_whole(&mut self, _slot: &Slot) -> bool {
        true
    }

    fn reset(&mut self) {}
}

/// A WQ and its CQ in their own memory.
pub struct DirectQueue<F = OneFrame> {
    wq: DirectWq,
    cq: DirectCq,
    /// The slot that each WQE points at. Slots that come back in their order find their WQE already written.
    bound: Box<[u32]>,
    filling: F,
}

impl<F> DirectQueue<F> {
    pub(super) fn new(
        wq: Wq,
        cq: Cq,
        filling: impl FnOnce(u32) -> F,
    ) -> Result<Self, verbs::VerbsError> {
        let (wq, cq) = (DirectWq::of(wq)?, DirectCq::of(cq)?);
        Ok(Self {
            bound: vec![NOTHING; wq.len() as usize].into(),
            filling: filling(wq.len()),
            wq,
            cq,
        })
    }

    pub(super) fn wq(&self) -> &Wq {
        self.wq.wq()
    }
}

impl<F: Filling> Queue for DirectQueue<F> {
    #[inline]
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        let mut result = Ok(());
        let mut taken = 0;
        while taken < limit {
            let Some(cqe) = self.cq.take() else { break };
            match self.filling.enter(&cqe, &self.wq, &self.bound, account) {
                Ok(counts) => taken += usize::from(counts),
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        self.cq.release();
        result
    }

    /// Hands the WQEs of whole slots over. A slot that comes back to the WQE it was in costs a comparison.
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
            if !self.filling.is_whole(&slot) {
                continue;
            }
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
        if count > 0 {
            // SAFETY: each WQE points into the slot whose last token has just been given up, in the memory the WQ was
            // created with; no more slots exist than WQEs, so none is overwritten while the device has it.
            unsafe { self.wq.hand_over() };
        }
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
            self.filling.reset();
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
