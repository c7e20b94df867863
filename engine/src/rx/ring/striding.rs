//! Slots of a striding queue: a WR's buffer takes many frames, one behind the other.
//!
//! Each frame is a token that names its buffer, and so is the buffer itself once the device is done with it. A buffer goes
//! back on the ring when all of its tokens are home, at once or after any time.
//!
//! Buffers are used up in the order of their WQEs, each from its first stride on, as DPDK reads them
//! (`mlx5_rx_burst_mprq` of drivers/net/mlx5/mlx5_rx.c). What a completion says is held against that order.

use super::{Account, RingError, direct::Filling};
use crate::{
    rx::pool::Slot,
    verbs::{Cqe, DirectWq, Striding},
};

/// A WQE takes frames until its strides are used up.
#[derive(Debug)]
pub struct ManyFrames {
    shape: Striding,
    /// Tokens of each buffer that are not home; one of them is the device's while it has the buffer.
    tokens: Box<[u32]>,
    /// WQEs used up since the WQ became ready, modulo 2^16.
    head: u16,
    /// Strides used up of the WQE at the head.
    used: u32,
}

impl ManyFrames {
    /// For so many buffers, none of which the device has yet.
    pub(super) fn new(shape: Striding, buffers: u32) -> Self {
        Self {
            shape,
            tokens: vec![1; buffers as usize].into(),
            head: 0,
            used: 0,
        }
    }

    /// The WQE at the head is used up.
    #[inline]
    fn advance(&mut self) {
        self.head = self.head.wrapping_add(1);
        self.used = 0;
    }
}

impl Filling for ManyFrames {
    #[inline]
    fn enter(
        &mut self,
        cqe: &Cqe,
        wq: &DirectWq,
        bound: &[u32],
        account: &mut Account<'_>,
    ) -> Result<bool, RingError> {
        let buffer = bound[wq.index_of(self.head) as usize];
        if cqe.status != 0 {
            // Of the WQE as a whole: what it had received has completed before.
            self.advance();
            account.enter(buffer.into(), cqe.status, 0, 0, None)?;
            return Ok(true);
        }
        let it = cqe.strides();
        let end = it.first + it.count;
        let fits = it.len.is_none_or(|len| len <= it.count * self.shape.stride);
        if it.first < self.used || it.count == 0 || end > self.shape.strides || !fits {
            return Err(RingError::Strides(it.first, it.count));
        }
        if let Some(len) = it.len {
            let at = it.first * self.shape.stride;
            account.enter_part(buffer, at, len, cqe.timestamp, cqe.stripped)?;
            self.tokens[buffer as usize] += 1;
        }
        self.used = end;
        if end == self.shape.strides {
            self.advance();
            account.leave(buffer)?;
        }
        Ok(it.len.is_some())
    }

    #[inline]
    fn is_whole(&mut self, slot: &Slot) -> bool {
        let tokens = &mut self.tokens[slot.index() as usize];
        *tokens -= 1;
        let whole = *tokens == 0;
        // It goes to the device, whose token is the next.
        *tokens += u32::from(whole);
        whole
    }

    fn reset(&mut self) {
        (self.head, self.used) = (0, 0);
    }
}
