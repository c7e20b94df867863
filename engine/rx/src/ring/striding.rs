//! Slots of a striding queue: each WR's buffer takes many frames, one behind the other.
//!
//! Each frame has a token that names its buffer. The device has one more token of the buffer, which it
//! returns when the buffer is used up. A buffer is posted again when all of its tokens are returned.
//!
//! Buffers are used up in the order of their WQEs, each from its first stride. DPDK relies on the same
//! order (`mlx5_rx_burst_mprq` of drivers/net/mlx5/mlx5_rx.c). Completions are checked against it.

use super::{
    Account, RingError, TOO_LONG,
    direct::Filling,
    places::SpareCapacity,
    pool::{FrameFacts, Slot},
    stride_check::{CHECKED_BUFFERS, ExpectedStrides},
    tokens::BufferTokens,
};
use crate::error::StrideMismatch;
use wqcap_verbs::{Cqe, Cqes, DirectWq, Striding};

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
    /// Set while completions are checked against the expected layout, one by one.
    is_checked: bool,
}

impl ManyFrames {
    /// Creates the state of `buffers` striding buffers, none of which is posted yet. With
    /// `is_checked`, the first buffers are marked, and their completions are checked.
    pub(super) fn new(shape: Striding, buffers: u32, is_checked: bool) -> Self {
        Self {
            shape,
            tokens: BufferTokens::new(buffers),
            head: 0,
            used: 0,
            is_checked,
        }
    }

    /// Moves the counts of tokens to the queue that continues with the same buffers.
    pub(super) fn take_tokens(&mut self) -> BufferTokens {
        std::mem::take(&mut self.tokens)
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
            let it = cqe.strides();
            let (0, Some(len)) = (cqe.status, it.len) else {
                self.used = used;
                return Ok(BufferPoll::NoFrame(cqe));
            };
            let end = it.first + it.count;
            if it.first < used || it.count == 0 || end > strides || len > it.count << log_stride {
                return Err(RingError::Strides(it.first, it.count));
            }
            let (slot, at) = (memory.slot(buffer), it.first << log_stride);
            let facts = FrameFacts { len, ..cqe.into() };
            memory.fill(slot, at, facts, |filled| places.push(filled));
            used = end;
            if end == strides {
                self.used = used;
                return Ok(BufferPoll::UsedUp);
            }
        }
        self.used = used;
        Ok(BufferPoll::Unfinished)
    }

    /// Enters a completion without a frame: a filler or an error. Both use up as many strides as they
    /// report: Linux and DPDK read nothing else of them (`mlx5e_handle_rx_cqe_mpwrq` of
    /// drivers/net/ethernet/mellanox/mlx5/core/en_rx.c, `mlx5_rx_burst_mprq` of
    /// drivers/net/mlx5/mlx5_rx.c). An error that stops the WQ ends the whole WQE, because the
    /// device does not continue in it. Returns the number of failed frames.
    #[cold]
    fn enter_without_frame(
        &mut self,
        cqe: &Cqe,
        buffer: u32,
        account: &mut Account<'_>,
    ) -> Result<usize, RingError> {
        let (count, left) = (cqe.strides().count, self.shape.strides - self.used);
        if cqe.status == 0 || cqe.status == TOO_LONG {
            if count > left || cqe.status == 0 && count == 0 {
                return Err(RingError::Strides(self.used, count));
            }
            self.used += count;
            if cqe.status == 0 {
                return Ok(0);
            }
            self.tokens.add(buffer, 1);
            account.enter_part(buffer, 0, 0, cqe.status, FrameFacts::default());
            return Ok(1);
        }
        (self.head, self.used) = (self.head.wrapping_add(1), 0);
        account.enter(buffer.into(), cqe.status, FrameFacts::default())?;
        Ok(1)
    }

    /// Takes the device's token of a buffer that is used up.
    #[inline]
    fn end_buffer(&mut self, buffer: u32, account: &mut Account<'_>) -> Result<(), RingError> {
        (self.head, self.used) = (self.head.wrapping_add(1), 0);
        account.release_buffer(buffer)
    }

    /// Enters completions as [`Filling::poll`] does, but checks each of them first. The check ends
    /// after the first buffers.
    #[cold]
    fn poll_checked(
        &mut self,
        cqes: &mut Cqes<'_>,
        wq: &DirectWq,
        bound: &[u32],
        account: &mut Account<'_>,
        limit: usize,
    ) -> Result<(), RingError> {
        let Striding { stride, strides } = self.shape;
        let mut left = limit;
        while left > 0 && self.is_checked {
            let Some((cqe, raw)) = cqes.take_raw() else {
                break;
            };
            let wqe = wq.index_of(self.head);
            let buffer = bound[wqe as usize];
            if !account.is_posted(buffer) {
                return Err(RingError::Unfit(StrideMismatch::Unposted));
            }
            let it = cqe.strides();
            if cqe.status == 0 {
                let expected = ExpectedStrides {
                    shape: self.shape,
                    buffer,
                    used: self.used,
                    wqe,
                };
                // Bytes 2 and 3 of an uncompressed CQE (`wqe_id` of DPDK's `struct mlx5_cqe`).
                let named = wq.index_of(u16::from_be_bytes([raw[2], raw[3]]));
                let named = (!cqes.are_compressible()).then_some(named);
                let checked = expected.check(it, named, account.memory);
                checked.map_err(RingError::Unfit)?;
            }
            let (0, Some(len)) = (cqe.status, it.len) else {
                let head = self.head;
                let found = it.count;
                let unfit = |_| RingError::Unfit(StrideMismatch::NotFree { found });
                let entered = self.enter_without_frame(&cqe, buffer, account);
                left -= entered.map_err(unfit)?;
                if self.head == head && self.used == strides {
                    self.end_buffer(buffer, account)?;
                }
                self.is_checked = self.head < CHECKED_BUFFERS;
                continue;
            };
            self.tokens.add(buffer, 1);
            let facts = FrameFacts { len, ..cqe.into() };
            let (at, room) = (it.first * stride, it.count * stride);
            account.enter_part(buffer, at, room, 0, facts);
            left -= 1;
            self.used += it.count;
            if self.used == strides {
                self.end_buffer(buffer, account)?;
            }
            self.is_checked = self.head < CHECKED_BUFFERS;
        }
        Ok(())
    }
}

/// Result of polling the striding buffer of the WQ's first unfinished WQE.
enum BufferPoll {
    /// The polled buffer has free strides: no more completions are present, or the limit is
    /// reached.
    Unfinished,
    /// All strides of the polled buffer are used up.
    UsedUp,
    /// The completion is not of a received frame: a filler or an error.
    NoFrame(Cqe),
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
        if self.is_checked {
            return self.poll_checked(cqes, wq, bound, account, limit);
        }
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
            let head = self.head;
            match run? {
                BufferPoll::Unfinished => break,
                BufferPoll::UsedUp => {}
                BufferPoll::NoFrame(cqe) => {
                    left -= self.enter_without_frame(&cqe, buffer, account)?;
                    if self.head != head || self.used < self.shape.strides {
                        continue;
                    }
                }
            }
            self.end_buffer(buffer, account)?;
        }
        Ok(())
    }

    fn marked(&self) -> u32 {
        match self.is_checked {
            true => CHECKED_BUFFERS.into(),
            false => 0,
        }
    }

    #[inline]
    fn gather(&mut self, home: impl Iterator<Item = Slot>, whole: impl FnMut(Slot)) {
        self.tokens.gather(home, whole);
    }

    fn reset(&mut self) {
        (self.head, self.used) = (0, 0);
    }
}
