//! Queue of a device without WQs: a RAW_PACKET QP with its own receive queue, polled with
//! `ibv_poll_cq`.
#![allow(unsafe_code)]

use super::pool::{Slot, SlotMemory};
use super::{Account, Queue, RingAttr, RingError, Wake, verbs::SlotWrs};
use std::os::fd::BorrowedFd;
use wqcap_verbs::{Channel, Context, Mr, Pd, PlainCq, RawQp, RawQpAttr, VerbsError, WqState};

/// RAW_PACKET QP and its CQ, with one WR per slot.
pub struct RawQpQueue {
    qp: RawQp,
    cq: PlainCq,
    wrs: SlotWrs,
}

impl RawQpQueue {
    /// Creates the queue on port `port`, in the ready state and without WRs, for slots in `mr`.
    pub(super) fn create(
        context: &Context,
        pd: &Pd,
        mr: &Mr,
        attr: RingAttr,
        port: u8,
    ) -> Result<(RawQp, PlainCq), VerbsError> {
        let channel = attr.channel.then(|| Channel::create(context)).transpose()?;
        let cq = PlainCq::create(context, attr.wrs, attr.vector, channel)?;
        let qp_attr = RawQpAttr {
            max_wr: attr.wrs,
            max_sge: attr.max_sge,
            port,
        };
        let mut qp = RawQp::create(pd, &cq, mr, qp_attr)?;
        qp.set_state(WqState::Ready)?;
        Ok((qp, cq))
    }

    pub(super) fn new(qp: RawQp, cq: PlainCq, memory: &SlotMemory, attr: RingAttr) -> Self {
        let wrs = SlotWrs::new(memory, attr);
        Self { qp, cq, wrs }
    }

    pub(super) fn qp(&self) -> &RawQp {
        &self.qp
    }
}

// SAFETY: `post` marks the slots whose tokens it consumes, and `poll` enters what the CQ delivers.
unsafe impl Queue for RawQpQueue {
    #[inline]
    fn poll(&mut self, account: &mut Account<'_>, limit: usize) -> Result<(), RingError> {
        let mut left = limit;
        while left > 0 {
            let wanted = left.min(PlainCq::MOST);
            let completions = self.cq.poll(wanted).map_err(|e| RingError::Poll(e.0))?;
            let taken = completions.len();
            for wc in completions {
                account.enter(wc.wr_id, wc.status, wc.into())?;
            }
            if taken < wanted {
                break;
            }
            left -= taken;
        }
        Ok(())
    }

    #[inline]
    fn post(
        &mut self,
        posted: &mut [bool],
        slots: impl Iterator<Item = Slot>,
        _memory: &SlotMemory,
        _attr: RingAttr,
    ) -> Result<u32, i32> {
        let (list, count) = self.wrs.link(posted, slots);
        if count > 0 {
            // SAFETY: `link` has just linked the list, whose slots belong to the device now.
            unsafe { self.qp.post(list)? };
        }
        Ok(count)
    }

    fn set_state(&mut self, _from: Option<WqState>, state: WqState) -> Result<(), VerbsError> {
        self.qp.set_state(state)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.cq.event_fd()
    }

    fn arm(&mut self, _wake: Wake) -> Result<(), VerbsError> {
        self.cq.arm()
    }

    fn take_event(&mut self) -> bool {
        self.cq.take_event()
    }
}
