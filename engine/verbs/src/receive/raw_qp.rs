//! RAW_PACKET QPs with their own receive queue, for devices without WQs.

use super::{
    qp::{QpInner, QpParents},
    wq::WqState,
};
use crate::sys as ffi;
use crate::{
    cq::PlainCq,
    error::{VerbsError, check_created, check_errno},
    mr::Mr,
    pd::Pd,
};
use std::{mem, ptr, sync::Arc};

/// Attributes of a new RAW_PACKET QP.
#[derive(Clone, Copy, Debug)]
pub struct RawQpAttr {
    /// Number of WRs that the QP's receive queue must hold.
    pub max_wr: u32,
    /// Number of scatter entries per WR of the QP.
    pub max_sge: u32,
    /// Number of the port that the QP receives from, from 1.
    pub port: u8,
}

/// RAW_PACKET QP with its own receive queue and one poster: not `Clone`, and posting takes `&mut`.
pub struct RawQp {
    inner: Arc<QpInner>,
    port: u8,
}

/// Handle of a RAW_PACKET QP for use in flow rules, while the QP's owner, possibly another thread,
/// posts to the QP.
#[derive(Clone)]
pub struct RawQpHandle(pub(crate) Arc<QpInner>);

impl RawQpHandle {
    /// Returns the number that identifies the QP in asynchronous events, unique in this process.
    #[must_use]
    pub fn id(&self) -> usize {
        self.0.raw as usize
    }
}

impl RawQp {
    /// Creates a QP, in the reset state, that completes to `cq` and receives into `memory`.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; EINVAL above the device's limits, for a CQ or memory of another
    /// context, and from drivers without RAW_PACKET QPs.
    pub fn create(pd: &Pd, cq: &PlainCq, memory: &Mr, attr: RawQpAttr) -> Result<Self, VerbsError> {
        const VERB: &str = "ibv_create_qp";
        let context = &pd.0.context;
        let object = || {
            format!(
                "a RAW_PACKET QP of device {} with {} WRs of {} scatter entries",
                context.name(),
                attr.max_wr,
                attr.max_sge
            )
        };
        let others = [&cq.inner.context, &memory.0.pd.context];
        context.refuse_others(others, VERB, object)?;
        let cq = &cq.inner;
        // SAFETY: plain old data; all zero is the documented start.
        let mut init: ffi::ibv_qp_init_attr = unsafe { mem::zeroed() };
        init.qp_type = ffi::ibv_qp_type::IBV_QPT_RAW_PACKET;
        init.send_cq = cq.raw.cast();
        init.recv_cq = init.send_cq;
        init.cap.max_recv_wr = attr.max_wr;
        init.cap.max_recv_sge = attr.max_sge;
        // SAFETY: live parents, held by the new object.
        let raw = unsafe { ffi::ibv_create_qp(pd.0.raw, &raw mut init) };
        let raw = check_created(raw, VERB, object())?;
        let made = Self {
            inner: Arc::new(QpInner {
                raw,
                _parents: QpParents::Queue(Arc::clone(cq), Arc::clone(&memory.0)),
                pd: Arc::clone(&pd.0),
            }),
            port: attr.port,
        };
        // Unlike others, libbnxt_re lowers the number to its limit (`bnxt_re_check_qp_limits` of rdma-core,
        // providers/bnxt_re/verbs.c).
        if init.cap.max_recv_wr < attr.max_wr {
            return Err(VerbsError::from_errno(VERB, object(), libc::EINVAL));
        }
        Ok(made)
    }

    /// Returns a handle of the QP that can only be used in flow rules.
    #[must_use]
    pub fn handle(&self) -> RawQpHandle {
        RawQpHandle(Arc::clone(&self.inner))
    }

    /// Changes the state of the QP to the state that corresponds to a WQ's: RESET, RTR or ERR.
    ///
    /// # Errors
    /// EINVAL for an invalid transition.
    pub fn set_state(&mut self, state: WqState) -> Result<(), VerbsError> {
        use ffi::ibv_qp_state as qp;
        match state {
            WqState::Reset => self.modify(qp::IBV_QPS_RESET, None),
            WqState::Error => self.modify(qp::IBV_QPS_ERR, None),
            WqState::Ready => {
                self.modify(qp::IBV_QPS_INIT, Some(self.port))?;
                self.modify(qp::IBV_QPS_RTR, None)
            }
        }
    }

    fn modify(&mut self, state: u32, port: Option<u8>) -> Result<(), VerbsError> {
        // SAFETY: plain old data, of which the mask selects the valid fields.
        let mut attr: ffi::ibv_qp_attr = unsafe { mem::zeroed() };
        let mut mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE.0;
        attr.qp_state = state;
        if let Some(port) = port {
            attr.port_num = port;
            mask |= ffi::ibv_qp_attr_mask::IBV_QP_PORT.0;
        }
        // SAFETY: a live QP; `&mut self` is the only modifier.
        let errno =
            unsafe { ffi::ibv_modify_qp(self.inner.raw, &raw mut attr, mask.cast_signed()) };
        check_errno(errno, "ibv_modify_qp", || format!("state {state}"))
    }

    /// Posts a list of receive WRs, linked by `next`, to the QP with one doorbell.
    ///
    /// # Safety
    /// Every WR of the list and its scatter list are valid for the call. Every scatter entry lies
    /// in the memory that this QP was created with, and no code reads or writes it until its
    /// completion.
    ///
    /// # Errors
    /// The errno, ENOMEM if the queue is full; WRs before the failing one were posted.
    #[inline]
    pub unsafe fn post(&mut self, list: *mut ffi::ibv_recv_wr) -> Result<(), i32> {
        let mut bad = ptr::null_mut();
        // SAFETY: the caller guarantees the list; `&mut self` is the only poster.
        match unsafe { ffi::ibv_post_recv(self.inner.raw, list, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }
}
