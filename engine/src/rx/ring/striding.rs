//! A striding queue in its own memory: a WR's buffer takes many frames, one behind the other.
//!
//! Each frame is a token that names its buffer, and so is the buffer itself once the device is done with it. A buffer goes
//! back on the ring when all of its tokens are home, at once or after any time.
//!
//! Buffers are used up in the order of their WQEs, each from its first stride on, as DPDK reads them
//! (`mlx5_rx_burst_mprq` of drivers/net/mlx5/mlx5_rx.c). What a completion says is held against that order.
#![allow(unsafe_code)]

use super::{Account, NOTHING, Queue, RingAttr, RingError};
use crate::{
    rx::pool::{Slot, SlotMemory},
    verbs::{self, Cq, DirectCq, DirectWq, Striding, Wq, WqState},
};
use std::os::fd::BorrowedFd;

/// A striding WQ and its CQ in their own memory.
pub struct StridingQueue {
    wq: DirectWq,
    cq: DirectCq,
    shape: Striding,
    /// The buffer that each WQE points at.
    bound: Box<[u32]>,
    /// Tokens of each buffer that are not home; one of them is the device's while it has the buffer.
    tokens: Box<[u32]>,
    /// WQEs used up since the WQ became ready, modulo 2^16.
    head: u16,
    /// Strides used up of the WQE at the head.
    used: u32,
}

impl StridingQueue {
    pub(super) fn new(wq: Wq, cq: Cq, shape: Striding) -> Result<Self, verbs::VerbsError> {
        let (wq, cq) = (DirectWq::of(wq)?, DirectCq::of(cq)?);
        let wqes = wq.len() as usize;
        Ok(Self {
            wq,
            cq,
            shape,
            bound: vec![NOTHING; wqes].into(),
            tokens: vec![1; wqes].into(),
            head: 0,
            used: 0,
        })
    }

    pub(super) fn wq(&self) -> &Wq {
        self.wq.wq()
    }

    /// The WQE at the head is used up.
    #[inline]
    fn advance(&mut self) {
        self.head = self.head.wrapping_add(1);
        self.used = 0;
    }
}

impl Queue for StridingQueue {
    #[inline]
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        let mut result = Ok(());
        let mut taken = 0;
        while taken < limit && result.is_ok() {
            let Some(cqe) = self.cq.take() else { break };
            let buffer = self.bound[self.wq.index_of(self.head) as usize];
            if cqe.status != 0 {
                // Of the WQE as a whole: what it had received has completed before.
                taken += 1;
                self.advance();
                result = account.enter(buffer.into(), cqe.status, 0, 0, None);
                continue;
            }
            let it = cqe.strides();
            let end = it.first + it.count;
            if it.first < self.used || it.count == 0 || end > self.shape.strides {
                result = Err(RingError::Strides(it.first, it.count));
                break;
            }
            if let Some(len) = it.len {
                taken += 1;
                if len > it.count * self.shape.stride {
                    result = Err(RingError::Strides(it.first, it.count));
                    break;
                }
                let at = it.first * self.shape.stride;
                result = account.enter_part(buffer, at, len, cqe.timestamp, cqe.stripped);
                if result.is_err() {
                    break;
                }
                self.tokens[buffer as usize] += 1;
            }
            self.used = end;
            if end == self.shape.strides {
                self.advance();
                result = account.leave(buffer);
            }
        }
        self.cq.release();
        result
    }

    /// Takes tokens home, and hands over the WQEs of buffers that are whole again.
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
            let tokens = &mut self.tokens[slot.index() as usize];
            *tokens -= 1;
            if *tokens > 0 {
                continue;
            }
            *tokens = 1;
            posted[slot.index() as usize] = true;
            let index = self.wq.next_index();
            let bound = &mut self.bound[index as usize];
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
            // SAFETY: each WQE points at a buffer whose last token has just been given up, in the memory the WQ was
            // created with; no more buffers exist than WQEs, so none is overwritten while the device has it.
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
        if state == WqState::Ready {
            self.bound.fill(NOTHING);
            (self.head, self.used) = (0, 0);
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
