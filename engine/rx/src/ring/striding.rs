//! Slots of a striding queue: a WR's buffer takes many frames, one behind the other.
//!
//! Each frame is a token that names its buffer, and so is the buffer itself once the device is done with it. A buffer goes
//! back on the ring when all of its tokens are home, at once or after any time.
//!
//! Buffers are used up in the order of their WQEs, each from its first stride on, as DPDK reads them
//! (`mlx5_rx_burst_mprq` of drivers/net/mlx5/mlx5_rx.c). What a completion says is held against that order.

use super::{Account, RingError, direct::Filling, places::Places};
use crate::pool::Slot;
use wqcap_verbs::{Cqes, DirectWq, Striding};

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

    /// Enters completions of the buffer at the head, `most` frames of it at most. What is the same for all of them is looked
    /// up once.
    #[inline(always)]
    fn run(
        &mut self,
        cqes: &mut Cqes<'_>,
        buffer: u32,
        account: &mut Account<'_>,
        most: usize,
    ) -> Result<Run, RingError> {
        let Striding { stride, strides } = self.shape;
        let log_stride = stride.trailing_zeros();
        if !account.is_posted(buffer) {
            return match cqes.take() {
                Some(_) => Err(RingError::Unposted(buffer.into())),
                None => Ok(Run::Goes),
            };
        }
        let mut used = self.used;
        let memory = account.memory;
        let mut places = Places::of(&mut account.batch.frames, most);
        while !places.is_full() {
            let Some(cqe) = cqes.take() else { break };
            if cqe.status != 0 {
                return Ok(Run::Failed(cqe.status));
            }
            let it = cqe.strides();
            let end = it.first + it.count;
            let fits = it.len.is_none_or(|len| len <= it.count << log_stride);
            if it.first < used || it.count == 0 || end > strides || !fits {
                return Err(RingError::Strides(it.first, it.count));
            }
            if let Some(len) = it.len {
                let (slot, at) = (memory.slot(buffer), it.first << log_stride);
                memory.fill(slot, at, len, cqe.timestamp, cqe.stripped, |filled| {
                    places.push(filled)
                });
            }
            used = end;
            if end == strides {
                return Ok(Run::Over);
            }
        }
        self.used = used;
        Ok(Run::Goes)
    }
}

/// How a look at the buffer at the head ended.
enum Run {
    /// There was no other completion, or enough of them.
    Goes,
    /// Its strides are used up.
    Over,
    /// Its WQE completed with this status as a whole: what it had received has completed before.
    Failed(u32),
}

impl Filling for ManyFrames {
    #[inline(always)]
    fn poll(
        &mut self,
        cqes: &mut Cqes<'_>,
        wq: &DirectWq,
        bound: &[u32],
        account: &mut Account<'_>,
        limit: usize,
    ) -> Result<(), RingError> {
        let mut left = limit;
        while left > 0 {
            let buffer = bound[wq.index_of(self.head) as usize];
            let before = account.frames();
            let run = self.run(cqes, buffer, account, left);
            let frames = account.frames() - before;
            if frames > 0 {
                self.tokens[buffer as usize] += frames as u32;
                left -= frames;
            }
            let run = run?;
            if let Run::Goes = run {
                break;
            }
            (self.head, self.used) = (self.head.wrapping_add(1), 0);
            if let Run::Failed(status) = run {
                account.enter(buffer.into(), status, 0, 0, None)?;
                left -= 1;
            } else {
                account.leave(buffer)?;
            }
        }
        Ok(())
    }

    /// Frames of one buffer mostly come home one after the other.
    #[inline]
    fn gather(&mut self, mut home: impl Iterator<Item = Slot>, mut whole: impl FnMut(Slot)) {
        let mut next = home.next();
        while let Some(slot) = next {
            let mut count = 1;
            next = loop {
                match home.next() {
                    Some(other) if other.index() == slot.index() => count += 1,
                    other => break other,
                }
            };
            let tokens = &mut self.tokens[slot.index() as usize];
            *tokens -= count;
            if *tokens == 0 {
                // The device's token is the next.
                *tokens = 1;
                whole(slot);
            }
        }
    }

    fn reset(&mut self) {
        (self.head, self.used) = (0, 0);
    }
}
