//! Interface between a ring's accounting and its WQ and CQ: trait [`Queue`].
#![allow(unsafe_code)]

use super::pool::{Slot, SlotMemory};
use super::{
    Account, RingAttr, RingError,
    direct::DirectQueue,
    fallback::{FallbackParents, PieceQueue},
    raw_qp::RawQpQueue,
    striding::ManyFrames,
    verbs::VerbsQueue,
};
use std::os::fd::BorrowedFd;
use wqcap_verbs::{RawQpHandle, VerbsError, WqHandle, WqState};

/// Arrival that ends the sleep of a receive loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Arrival of the next frame.
    AtFirst,
    /// Arrival of many frames, if the queue can gather them; otherwise of the next frame.
    AtMany,
}

/// Receive queue as a ring uses it: a WQ and its CQ.
///
/// # Safety
/// An implementation marks a slot in `posted` only when [`Queue::post`] received the slot's token, and
/// it then drops the token. The next completion of the slot creates its next token; two tokens of one
/// slot would give access to bytes that are being written. The completions entered are the device's,
/// and the device does not write to a slot after its completion.
///
/// ```compile_fail,E0200
/// struct Careless;
///
/// impl wqcap_rx::Queue for Careless {}
/// ```
pub unsafe trait Queue {
    /// Enters at most `limit` completions of the queue into the ring's account.
    ///
    /// # Errors
    /// The queue failed. The completions entered before the error are valid.
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError>;

    /// Posts slots to the device with one list and one doorbell, and marks the slots in `posted`.
    /// Returns the number of WRs posted.
    ///
    /// # Errors
    /// The WQ refuses WRs (errno).
    fn post(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
        memory: &SlotMemory,
        attr: RingAttr,
    ) -> Result<u32, i32>;

    /// Sets the WQ's state with `ibv_modify_wq` (IBV_WQ_ATTR_STATE). If `from` names the present state,
    /// the request includes it (IBV_WQ_ATTR_CURR_STATE).
    ///
    /// # Errors
    /// The verb failed, or the queue is a socket, which has no states (EOPNOTSUPP).
    fn set_state(&mut self, _from: Option<WqState>, _state: WqState) -> Result<(), VerbsError> {
        Err(unsupported("the state of a socket"))
    }

    /// Turns CVLAN stripping of the WQ on or off with `ibv_modify_wq` (IBV_WQ_ATTR_FLAGS).
    ///
    /// # Errors
    /// The verb failed, or the queue is a socket: the interface's settings decide there (EOPNOTSUPP).
    fn set_cvlan_stripping(&mut self, _on: bool) -> Result<(), VerbsError> {
        Err(unsupported("CVLAN stripping of a socket"))
    }

    /// Returns the descriptor of the queue's completion channel, if the queue has one.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Requests a completion channel event at the next completion (`ibv_req_notify_cq`). A queue that
    /// can gather frames raises it as `wake` says.
    ///
    /// # Errors
    /// The verb failed.
    fn arm(&mut self, wake: Wake) -> Result<(), VerbsError>;

    /// Takes and acknowledges one event of the completion channel. Returns `false` if there was
    /// none.
    fn take_event(&mut self) -> bool;

    /// Returns `true` if frames may have arrived that [`Queue::poll`] does not enter yet, because the
    /// device passes frames on in blocks.
    #[inline]
    fn has_partial_block(&self) -> bool {
        false
    }

    /// Returns `true` if most of the queue's memory has frames that no poll has entered.
    fn is_short_of_memory(&self) -> bool {
        false
    }

    /// Continues a striding queue whose WQ is reset with a new WQ, which has a WQE per frame, and
    /// returns its handle. No slot is posted then.
    ///
    /// # Errors
    /// The queue has no striding WQ, or a verb failed.
    fn fall_back(&mut self, _parents: &FallbackParents) -> Result<WqHandle, VerbsError> {
        let object = "a queue without a striding WQ";
        Err(VerbsError::from_errno(
            "ibv_create_wq",
            object,
            libc::EOPNOTSUPP,
        ))
    }
}

fn unsupported(what: &str) -> VerbsError {
    VerbsError::from_errno("setsockopt", what.to_owned(), libc::EOPNOTSUPP)
}

/// Receive queue of a device, by method of access.
#[non_exhaustive]
pub enum DeviceQueue {
    /// Receive queue accessed through the verbs.
    Verbs(VerbsQueue),
    /// Queue accessed directly in the memory of its WQ and CQ.
    Direct(DirectQueue),
    /// Queue accessed directly in the memory of its WQ and CQ, with many frames per WR.
    Striding(DirectQueue<ManyFrames>),
    /// Queue with one frame per WR that replaced a striding queue.
    Pieces(PieceQueue),
    /// Receive queue of a RAW_PACKET QP, for a device without WQs.
    RawQp(RawQpQueue),
}

/// Handle of the WQ or QP that a ring's frames are steered to.
#[derive(Clone)]
pub enum QueueHandle {
    /// Handle of a WQ, which is an entry for an indirection table.
    Wq(WqHandle),
    /// Handle of a RAW_PACKET QP with its own receive queue, to which flow rules lead.
    RawQp(RawQpHandle),
}

impl QueueHandle {
    /// Returns the number that identifies the WQ or QP in asynchronous events, unique in this
    /// process.
    #[must_use]
    pub fn id(&self) -> usize {
        match self {
            Self::Wq(it) => it.id(),
            Self::RawQp(it) => it.id(),
        }
    }
}

macro_rules! either {
    ($self:ident, $queue:ident => $call:expr) => {
        match $self {
            DeviceQueue::Verbs($queue) => $call,
            DeviceQueue::Direct($queue) => $call,
            DeviceQueue::Striding($queue) => $call,
            DeviceQueue::Pieces($queue) => $call,
            DeviceQueue::RawQp($queue) => $call,
        }
    };
}

impl DeviceQueue {
    pub(super) fn handle(&self) -> QueueHandle {
        let wq = match self {
            Self::Verbs(queue) => queue.wq(),
            Self::Direct(queue) => queue.wq(),
            Self::Striding(queue) => queue.wq(),
            Self::Pieces(queue) => queue.wq(),
            Self::RawQp(queue) => return QueueHandle::RawQp(queue.qp().handle()),
        };
        QueueHandle::Wq(wq.handle())
    }
}

// SAFETY: every call is passed on to one of the queues inside, which keep the trait's contract.
unsafe impl Queue for DeviceQueue {
    #[inline(always)]
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        either!(self, queue => queue.poll(account, limit))
    }

    #[inline]
    fn post(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
        memory: &SlotMemory,
        attr: RingAttr,
    ) -> Result<u32, i32> {
        either!(self, queue => queue.post(posted, slots, memory, attr))
    }

    fn set_state(&mut self, from: Option<WqState>, state: WqState) -> Result<(), VerbsError> {
        either!(self, queue => queue.set_state(from, state))
    }

    fn set_cvlan_stripping(&mut self, on: bool) -> Result<(), VerbsError> {
        either!(self, queue => queue.set_cvlan_stripping(on))
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        either!(self, queue => queue.event_fd())
    }

    fn arm(&mut self, wake: Wake) -> Result<(), VerbsError> {
        either!(self, queue => queue.arm(wake))
    }

    fn take_event(&mut self) -> bool {
        either!(self, queue => queue.take_event())
    }

    #[cold]
    fn fall_back(&mut self, parents: &FallbackParents) -> Result<WqHandle, VerbsError> {
        let Self::Striding(queue) = self else {
            let object = "a queue without a striding WQ";
            let errno = libc::EOPNOTSUPP;
            return Err(VerbsError::from_errno("ibv_create_wq", object, errno));
        };
        let next = PieceQueue::new(parents, queue.filling_mut().take_tokens())?;
        let handle = next.wq().handle();
        *self = Self::Pieces(next);
        Ok(handle)
    }
}
