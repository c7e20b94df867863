//! Queue accessed in its own memory through libmlx5's direct verbs, at a third of the cost of the
//! verbs.
#![allow(unsafe_code)]

use super::pool::{Slot, SlotMemory};
use super::{Account, Queue, RingAttr, RingError, Wake, places::SpareCapacity};
use std::os::fd::BorrowedFd;
use wqcap_verbs::{Cq, Cqes, DirectCq, DirectWq, VerbsError, Wq, WqState};

/// Slot index of a WQE that does not point to a slot yet.
pub(super) const NOTHING: u32 = u32::MAX;

/// Buffer mode of a receive queue: one frame per WQE, or many frames per WQE.
pub trait Filling {
    /// Enters at most `limit` completions of the queue into the receive ring's account. `bound` is
    /// the index of the slot that each WQE points to.
    ///
    /// # Errors
    /// The queue failed.
    fn poll(
        &mut self,
        cqes: &mut Cqes<'_>,
        wq: &DirectWq,
        bound: &[u32],
        account: &mut Account<'_>,
        limit: usize,
    ) -> Result<(), RingError>;

    /// Takes returned slot tokens and passes each slot that has no other token to `whole`, for
    /// posting.
    fn gather(&mut self, home: impl Iterator<Item = Slot>, whole: impl FnMut(Slot));

    /// Returns the number of the ring's first WQEs whose slots are marked before they are posted.
    #[inline]
    fn marked(&self) -> u32 {
        0
    }

    /// Restarts the buffer mode at the WQ's first WQE.
    fn reset(&mut self);
}

/// Buffer mode of a receive queue with one frame per WQE.
#[derive(Debug)]
pub struct OneFrame;

impl Filling for OneFrame {
    #[inline(always)]
    fn poll(
        &mut self,
        cqes: &mut Cqes<'_>,
        wq: &DirectWq,
        bound: &[u32],
        account: &mut Account<'_>,
        limit: usize,
    ) -> Result<(), RingError> {
        let (frames, mut slots) = account.parts();
        let mut places = SpareCapacity::new(frames, limit);
        for _ in 0..limit {
            let Some(cqe) = cqes.take() else { break };
            let slot = bound[wq.index_of(cqe.wqe_counter) as usize];
            slots.enter(slot.into(), cqe.status, cqe.into(), |filled| {
                places.push(filled)
            })?;
        }
        Ok(())
    }

    #[inline]
    fn gather(&mut self, home: impl Iterator<Item = Slot>, whole: impl FnMut(Slot)) {
        home.for_each(whole);
    }

    fn reset(&mut self) {}
}

/// WQ and its CQ, accessed directly in their own memory instead of through the verbs.
pub struct DirectQueue<F = OneFrame> {
    wq: DirectWq,
    cq: DirectCq,
    /// Slot index that each WQE points to. For slots returned in order the WQE is already written.
    bound: Box<[u32]>,
    filling: F,
}

impl<F> DirectQueue<F> {
    pub(super) fn new(wq: Wq, cq: Cq, filling: impl FnOnce(u32) -> F) -> Result<Self, VerbsError> {
        let (wq, cq) = (DirectWq::from_wq(wq)?, DirectCq::from_cq(cq)?);
        Ok(Self {
            bound: vec![NOTHING; wq.len() as usize].into(),
            filling: filling(wq.len()),
            wq,
            cq,
        })
    }

    /// Returns the queue's buffer mode.
    pub(super) fn filling_mut(&mut self) -> &mut F {
        &mut self.filling
    }

    pub(super) fn wq(&self) -> &Wq {
        self.wq.wq()
    }
}

// SAFETY: `post` marks the slots whose tokens it consumes, and `poll` enters what the CQ delivers.
unsafe impl<F: Filling> Queue for DirectQueue<F> {
    #[inline(always)]
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        let mut cqes = self.cq.cqes();
        let (filling, wq) = (&mut self.filling, &self.wq);
        filling.poll(&mut cqes, wq, &self.bound, account, limit)
    }

    /// Posts the WQEs of slots that have no other token. A slot that is returned to the same WQE as
    /// before costs a comparison.
    #[inline]
    fn post(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
        memory: &SlotMemory,
        attr: RingAttr,
    ) -> Result<u32, i32> {
        let mut count = 0;
        let (wq, bound) = (&mut self.wq, &mut self.bound);
        let marked = self.filling.marked();
        self.filling.gather(slots, |slot| {
            let index = wq.next_index();
            let bound = &mut bound[index as usize];
            posted[slot.index() as usize] = true;
            if *bound != slot.index() {
                *bound = slot.index();
                if index < marked {
                    memory.mark(&slot);
                }
                let address = memory.address(&slot) as u64;
                // SAFETY: there are at most as many slots as WQEs, and this slot's token is here, so the WQE at the
                // next index has completed, or was not handed over since the WQ became ready.
                unsafe { wq.write(index, address, attr.buffer, attr.max_sge, memory.lkey()) };
            }
            wq.advance();
            count += 1;
        });
        if count > 0 {
            // SAFETY: each WQE points into the slot whose last token has just been dropped, in the memory the WQ was
            // created with. There are at most as many slots as WQEs, so no WQE is overwritten while the device has it.
            unsafe { self.wq.hand_over() };
        }
        Ok(count)
    }

    fn set_state(&mut self, from: Option<WqState>, state: WqState) -> Result<(), VerbsError> {
        self.wq.set_state(from, state)?;
        // libmlx5 zeroes the WQEs at RESET -> RDY. Until then, completions from before a reset refer to them.
        if state == WqState::Ready {
            self.bound.fill(NOTHING);
            self.filling.reset();
        }
        Ok(())
    }

    fn set_cvlan_stripping(&mut self, on: bool) -> Result<(), VerbsError> {
        self.wq.set_cvlan_stripping(on)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.cq.event_fd()
    }

    fn arm(&mut self, _wake: Wake) -> Result<(), VerbsError> {
        self.cq.arm();
        Ok(())
    }

    fn take_event(&mut self) -> bool {
        self.cq.take_event()
    }
}
