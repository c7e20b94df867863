//! The seam between a ring's accounting and the WQ and CQ under it.
#![allow(unsafe_code)]

use super::{
    Account, RingAttr, RingError, direct::DirectQueue, striding::ManyFrames, verbs::VerbsQueue,
};
use crate::pool::{Slot, SlotMemory};
use std::os::fd::BorrowedFd;
use wqcap_verbs::{VerbsError, Wq, WqState};

/// A WQ and its CQ, as a ring uses them.
///
/// # Safety
/// A slot is marked in `posted` only when [`Queue::post`] was given its token, which is then dropped: a completion of that
/// slot makes its next token, and two tokens of one slot would give access to bytes that are being written. The
/// completions entered are those of the device, after which it writes to the slot no more.
///
/// ```compile_fail,E0200
/// struct Careless;
///
/// impl wqcap_engine::rx::Queue for Careless {}
/// ```
pub unsafe trait Queue {
    /// Enters up to `limit` completions into the ring's account.
    ///
    /// # Errors
    /// The queue cannot go on. What was entered by then is sound.
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError>;

    /// Gives slots to the device with one list and one doorbell, and marks them in `posted`; how many.
    ///
    /// # Errors
    /// The WQ takes no WRs (errno).
    fn post(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
        memory: &SlotMemory,
        attr: RingAttr,
    ) -> Result<u32, i32>;

    /// `ibv_modify_wq` with IBV_WQ_ATTR_STATE, and with IBV_WQ_ATTR_CURR_STATE where `from` names a state.
    ///
    /// # Errors
    /// The verb's.
    fn set_state(&mut self, from: Option<WqState>, state: WqState) -> Result<(), VerbsError>;

    /// `ibv_modify_wq` with IBV_WQ_ATTR_FLAGS.
    ///
    /// # Errors
    /// The verb's.
    fn set_cvlan_stripping(&mut self, on: bool) -> Result<(), VerbsError>;

    /// Descriptor of the completion channel, where there is one.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// `ibv_req_notify_cq`.
    ///
    /// # Errors
    /// The verb's.
    fn arm(&mut self) -> Result<(), VerbsError>;

    /// Takes and acknowledges one event; true when there was one.
    fn take_event(&mut self) -> bool;
}

/// The queues of a device, by either way.
pub enum DeviceQueue {
    /// By the verbs.
    Verbs(VerbsQueue),
    /// In their own memory.
    Direct(DirectQueue),
    /// In their own memory, with many frames to a WR.
    Striding(DirectQueue<ManyFrames>),
}

macro_rules! either {
    ($self:ident, $queue:ident => $call:expr) => {
        match $self {
            DeviceQueue::Verbs($queue) => $call,
            DeviceQueue::Direct($queue) => $call,
            DeviceQueue::Striding($queue) => $call,
        }
    };
}

impl DeviceQueue {
    pub(super) fn wq(&self) -> &Wq {
        either!(self, queue => queue.wq())
    }
}

// SAFETY: it passes everything on to one of the queues below it.
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

    fn arm(&mut self) -> Result<(), VerbsError> {
        either!(self, queue => queue.arm())
    }

    fn take_event(&mut self) -> bool {
        either!(self, queue => queue.take_event())
    }
}
