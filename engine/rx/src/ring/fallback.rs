//! Queue with a WQE per frame that replaces a striding queue in the same memory.
//!
//! A buffer of the striding queue is divided into pieces, one for each WQE. Tokens still name the
//! buffer, so frames that the pipeline holds from before the change return as before.
#![allow(unsafe_code)]

use super::pool::{Slot, SlotMemory};
use super::{
    Account, Queue, RingAttr, RingError, Wake, direct::NOTHING, queue_pair, tokens::BufferTokens,
};
use std::os::fd::BorrowedFd;
use wqcap_verbs::{Context, DirectCq, DirectWq, Mr, Pd, VerbsError, Wq, WqState};

/// Limits of the queue with a WQE per frame to which a striding queue falls back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackAttr {
    /// Length in bytes of the longest frame that the queue must receive.
    pub longest: u32,
    /// Maximum number of WRs of the queue's WQ.
    pub most_wrs: u32,
}

/// Verbs objects from which the queue is created that replaces a striding queue.
pub struct FallbackParents {
    pub(super) context: Context,
    pub(super) pd: Pd,
    pub(super) mr: Mr,
    pub(super) attr: RingAttr,
    pub(super) limits: FallbackAttr,
}

/// Queue with one frame per WQE, whose WQEs point to the pieces of larger buffers.
pub struct PieceQueue {
    wq: DirectWq,
    cq: DirectCq,
    /// Index of the piece of a buffer that each WQE points to, counted over all buffers.
    bound: Box<[u32]>,
    /// One flag per WQE, set while the device has the WQE.
    posted: Box<[bool]>,
    tokens: BufferTokens,
    /// Number of each buffer's pieces that the device has.
    with_device: Box<[u32]>,
    /// Number of bytes of a piece of a buffer.
    piece: u32,
    /// Number of pieces of each buffer.
    pieces: u32,
}

impl PieceQueue {
    /// Creates the queue in the ready state, without posted WQEs. `tokens` are those of the
    /// striding queue that it replaces.
    pub(super) fn new(parents: &FallbackParents, tokens: BufferTokens) -> Result<Self, VerbsError> {
        let FallbackParents {
            attr, limits, mr, ..
        } = parents;
        // Frames begin at cache lines.
        let piece = limits.longest.next_multiple_of(64).min(attr.buffer);
        let pieces = (attr.buffer / piece).min(limits.most_wrs / attr.wrs).max(1);
        let wrs = attr.wrs * pieces;
        let attr = RingAttr {
            wrs,
            buffer: piece,
            striding: None,
            // Its mini CQEs have the format of a striding queue.
            compression: None,
            ..*attr
        };
        let (wq, cq) = queue_pair(&parents.context, &parents.pd, mr, attr)?;
        let (wq, cq) = (DirectWq::from_wq(wq)?, DirectCq::from_cq(cq)?);
        let wqes = wq.len() as usize;
        Ok(Self {
            wq,
            cq,
            bound: vec![NOTHING; wqes].into(),
            posted: vec![false; wqes].into(),
            tokens,
            with_device: vec![0; (wrs / pieces) as usize].into(),
            piece,
            pieces,
        })
    }

    pub(super) fn wq(&self) -> &Wq {
        self.wq.wq()
    }
}

// SAFETY: `post` marks the buffers whose tokens it consumes and posts each of their pieces once. `poll`
// creates a token for a piece only if the device has its WQE, and returns the device's token of a
// buffer after its last piece.
unsafe impl Queue for PieceQueue {
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        let mut cqes = self.cq.cqes();
        for _ in 0..limit {
            let Some(cqe) = cqes.take() else { break };
            let index = self.wq.index_of(cqe.wqe_counter) as usize;
            if !std::mem::take(&mut self.posted[index]) {
                return Err(RingError::Unposted(index as u64));
            }
            let (buffer, piece) = (
                self.bound[index] / self.pieces,
                self.bound[index] % self.pieces,
            );
            self.tokens.add(buffer, 1);
            let at = piece * self.piece;
            account.enter_part(buffer, at, self.piece, cqe.status, cqe.into());
            let left = &mut self.with_device[buffer as usize];
            *left -= 1;
            if *left == 0 {
                account.release_buffer(buffer)?;
            }
        }
        Ok(())
    }

    fn post(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
        memory: &SlotMemory,
        _attr: RingAttr,
    ) -> Result<u32, i32> {
        let mut count = 0;
        let (wq, piece) = (&mut self.wq, self.piece);
        self.tokens.gather(slots, |slot| {
            posted[slot.index() as usize] = true;
            self.with_device[slot.index() as usize] = self.pieces;
            let address = memory.address(&slot) as u64;
            for i in 0..self.pieces {
                let index = wq.next_index();
                let bound = &mut self.bound[index as usize];
                self.posted[index as usize] = true;
                let number = slot.index() * self.pieces + i;
                if *bound != number {
                    *bound = number;
                    let address = address + u64::from(i * piece);
                    // SAFETY: there are at most as many pieces as WQEs, and the tokens of this
                    // piece's buffer are all here, so the WQE at the next index has completed, or
                    // was not handed over since the WQ became ready.
                    unsafe { wq.write(index, address, piece, 1, memory.lkey()) };
                }
                wq.advance();
            }
            count += 1;
        });
        if count > 0 {
            // SAFETY: each WQE points into a buffer whose last token has just been dropped, in the
            // memory the WQ was created with.
            unsafe { self.wq.hand_over() };
        }
        Ok(count)
    }

    fn set_state(&mut self, from: Option<WqState>, state: WqState) -> Result<(), VerbsError> {
        self.wq.set_state(from, state)?;
        // libmlx5 zeroes the WQEs at RESET -> RDY.
        if state == WqState::Ready {
            self.bound.fill(NOTHING);
            self.posted.fill(false);
            self.with_device.fill(0);
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
