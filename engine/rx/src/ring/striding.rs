//! Slots of a striding queue: each WR's buffer takes many frames, one behind the other.
//!
//! Each frame has a token that names its buffer. The device has one more token of the buffer, which it
//! returns when the buffer is used up. A buffer is posted again when all of its tokens are returned.
//!
//! Buffers are used up in the order of their WQEs, each from its first stride. DPDK relies on the same
//! order (`mlx5_rx_burst_mprq` of drivers/net/mlx5/mlx5_rx.c). Completions are checked against it.

use super::{Account, RingError, direct::Filling, places::SpareCapacity, tokens::BufferTokens};
use crate::pool::{FrameFacts, Slot};
use wqcap_verbs::{Cqes, DirectWq, Striding};

/// Buffer mode of a receive queue with many frames per WQE, until the strides of the WQE's buffer
/// are used up.
#[derive(Debug)]
pub struct ManyFrames {
    shape: Striding,
    tokens: BufferTokens,
    /// Number of WQEs whose buffer was used up since the WQ became ready, modulo 2^16.
    head: u16,
    /// Number of strides used up in the buffer of the WQ's first unfinished WQE.
    used: u32,
}

impl ManyFrames {
    /// Creates the state of `buffers` striding buffers, none of which is posted yet.
    pub(super) fn new(shape: Striding, buffers: u32) -> Self {
        Self {
            shape,
            tokens: BufferTokens::new(buffers),
            head: 0,
            used: 0,
        }
    }

    /// Enters completions of the buffer of the WQ's first unfinished WQE, for at most `most`
    /// frames. Values common to all of the buffer's frames are loaded once.
    #[inline(always)]
    fn poll_buffer(
        &mut self,
        cqes: &mut Cqes<'_>,
        buffer: u32,
        account: &mut Account<'_>,
        most: usize,
    ) -> Result<BufferPoll, RingError> {
        let Striding { stride, strides } = self.shape;
        let log_stride = stride.trailing_zeros();
        if !account.is_posted(buffer) {
            return match cqes.take() {
                Some(_) => Err(RingError::Unposted(buffer.into())),
                None => Ok(BufferPoll::Unfinished),
            };
        }
        let mut used = self.used;
        let memory = account.memory;
        let mut places = SpareCapacity::new(&mut account.batch.frames, most);
        while !places.is_full() {
            let Some(cqe) = cqes.take() else { break };
            if cqe.status != 0 {
                return Ok(BufferPoll::Failed(cqe.status));
            }
            let it = cqe.strides();
            let end = it.first + it.count;
            let fits = it.len.is_none_or(|len| len <= it.count << log_stride);
            if it.first < used || it.count == 0 || end > strides || !fits {
                return Err(RingError::Strides(it.first, it.count));
            }
            if let Some(len) = it.len {
                let (slot, at) = (memory.slot(buffer), it.first << log_stride);
                let facts = FrameFacts { len, ..cqe.into() };
                memory.fill(slot, at, facts, |filled| places.push(filled));
            }
            used = end;
            if end == strides {
                return Ok(BufferPoll::UsedUp);
            }
        }
        self.used = used;
        Ok(BufferPoll::Unfinished)
    }
}

/// Result of polling the striding buffer of the WQ's first unfinished WQE.
enum BufferPoll {
    /// The polled buffer has free strides: no more completions are present, or the limit is
    /// reached.
    Unfinished,
    /// All strides of the polled buffer are used up.
    UsedUp,
    /// The WQE of the polled buffer completed as a whole with this error status. The frames that
    /// its buffer had received completed before.
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
            let run = self.poll_buffer(cqes, buffer, account, left);
            let frames = account.frames() - before;
            if frames > 0 {
                self.tokens.add(buffer, frames);
                left -= frames;
            }
            let run = run?;
            if let BufferPoll::Unfinished = run {
                break;
            }
            (self.head, self.used) = (self.head.wrapping_add(1), 0);
            if let BufferPoll::Failed(status) = run {
                account.enter(buffer.into(), status, FrameFacts::default())?;
                left -= 1;
            } else {
                account.release_buffer(buffer)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn gather(&mut self, home: impl Iterator<Item = Slot>, whole: impl FnMut(Slot)) {
        self.tokens.gather(home, whole);
    }

    fn reset(&mut self) {
        (self.head, self.used) = (0, 0);
    }
}
