//! Datagram QPs (UD): messages of one packet to and from anybody, which may be lost.

use super::{
    Done, Ends, Pd, from_errno, last_error, messages::Messages, messages::Slot, pd::PdInner,
    srq::SrqInner, wc::MessageCqInner,
};
use crate::Error;
use rdma_sys as ffi;
use std::{mem, ptr, sync::Arc};

/// Bytes before a received datagram's own: its global route header (InfiniBand Architecture, 8.3), or room for one.
pub const ROUTE_HEADER: usize = mem::size_of::<ffi::ibv_grh>();

/// The key of datagrams between whoever met through the connection manager (`RDMA_UDP_QKEY`, rdma/rdma_cma.h).
const QKEY: u32 = 0x0123_4567;

/// A UD QP, ready to send, with one poster.
pub struct DatagramQp {
    raw: *mut ffi::ibv_qp,
    port: u8,
    // Held until the QP is destroyed, which is before any field is dropped.
    _srq: Arc<SrqInner>,
    _cq: Arc<MessageCqInner>,
    pd: Arc<PdInner>,
}

// SAFETY: only the owner, by `&mut self`, posts or modifies.
unsafe impl Send for DatagramQp {}

impl Drop for DatagramQp {
    fn drop(&mut self) {
        // SAFETY: created by `create`, destroyed only here.
        super::destroyed("ibv_destroy_qp", unsafe { ffi::ibv_destroy_qp(self.raw) });
    }
}

/// Where somebody is to be reached: what the connection manager tells of it.
#[derive(Clone, Copy)]
pub struct Route {
    attr: ffi::ibv_ah_attr,
    qp_num: u32,
    qkey: u32,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Route(QP {})", self.qp_num)
    }
}

impl Route {
    /// From an event's parameters.
    pub(super) fn of(param: &ffi::rdma_ud_param) -> Self {
        Self {
            attr: param.ah_attr,
            qp_num: param.qp_num,
            qkey: param.qkey,
        }
    }

    /// The QP that is reached; of a group 0xffffff.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }
}

/// An address handle and the QP behind it. Must be kept until what is sent to it has completed.
pub struct Destination {
    raw: *mut ffi::ibv_ah,
    qp_num: u32,
    qkey: u32,
    _pd: Arc<PdInner>,
}

// SAFETY: immutable after creation.
unsafe impl Send for Destination {}
// SAFETY: as for Send.
unsafe impl Sync for Destination {}

impl Drop for Destination {
    fn drop(&mut self) {
        // SAFETY: created by `to` or `back_to`, destroyed only here.
        super::destroyed("ibv_destroy_ah", unsafe { ffi::ibv_destroy_ah(self.raw) });
    }
}

impl Destination {
    /// There.
    ///
    /// # Errors
    /// ETIMEDOUT or EHOSTUNREACH where the address answers no longer.
    pub fn to(pd: &Pd, route: &Route) -> Result<Self, Error> {
        let mut attr = route.attr;
        // SAFETY: a live PD, held by the new object; `attr` outlives the call.
        let raw = unsafe { ffi::ibv_create_ah(pd.0.raw, &raw mut attr) };
        Self::of(raw, pd, route.qp_num, route.qkey)
    }

    /// Back to whoever sent a datagram, whose bytes as received begin with `received`.
    ///
    /// # Errors
    /// There is no route header in it, or no way back.
    pub fn back_to(pd: &Pd, port: u8, done: &Done, received: &[u8]) -> Result<Self, Error> {
        let Some(header) = received.first_chunk::<ROUTE_HEADER>() else {
            return Err(from_errno("ibv_create_ah_from_wc", "", libc::EINVAL));
        };
        // SAFETY: plain integers, for which any bytes are good, at whatever alignment they came.
        let mut grh: ffi::ibv_grh = unsafe { ptr::read_unaligned(header.as_ptr().cast()) };
        let mut wc = done.sender.completion();
        // SAFETY: a live PD, held by the new object; both structures outlive the call.
        let raw = unsafe { ffi::ibv_create_ah_from_wc(pd.0.raw, &raw mut wc, &raw mut grh, port) };
        Self::of(raw, pd, done.sender.qp_num, QKEY)
    }

    fn of(raw: *mut ffi::ibv_ah, pd: &Pd, qp_num: u32, qkey: u32) -> Result<Self, Error> {
        if raw.is_null() {
            return Err(last_error("ibv_create_ah", format!("QP {qp_num}")));
        }
        Ok(Self {
            raw,
            qp_num,
            qkey,
            _pd: Arc::clone(&pd.0),
        })
    }
}

impl DatagramQp {
    /// Makes a UD QP on `port` that receives from the SRQ of `ends`, and brings it to RTS.
    ///
    /// # Errors
    /// A verb's; EOPNOTSUPP or EINVAL where the device has no such QPs.
    pub fn create(ends: &Ends<'_>, port: u8) -> Result<Self, Error> {
        let mut init = ends.init(ffi::ibv_qp_type::IBV_QPT_UD);
        // SAFETY: a live PD, CQ and SRQ, held by the new object; `init` outlives the call.
        let raw = unsafe { ffi::ibv_create_qp(ends.pd.0.raw, &raw mut init) };
        if raw.is_null() {
            return Err(last_error("ibv_create_qp", "UD"));
        }
        let mut qp = Self {
            raw,
            port,
            _srq: Arc::clone(&ends.srq.inner),
            _cq: Arc::clone(&ends.cq.inner),
            pd: Arc::clone(&ends.pd.0),
        };
        qp.make_ready()?;
        Ok(qp)
    }

    fn make_ready(&mut self) -> Result<(), Error> {
        use ffi::{ibv_qp_attr_mask as mask, ibv_qp_state as state};
        // SAFETY: plain old data; all zero is valid, P_Key index and PSN 0 among it.
        let mut attr: ffi::ibv_qp_attr = unsafe { mem::zeroed() };
        attr.port_num = self.port;
        attr.qkey = QKEY;
        let initial = mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_QKEY;
        for (to, with) in [
            (state::IBV_QPS_INIT, initial | mask::IBV_QP_STATE),
            (state::IBV_QPS_RTR, mask::IBV_QP_STATE),
            (state::IBV_QPS_RTS, mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN),
        ] {
            attr.qp_state = to;
            let with = i32::try_from(with.0).unwrap_or(0);
            // SAFETY: a live QP; `attr` outlives the call.
            match unsafe { ffi::ibv_modify_qp(self.raw, &raw mut attr, with) } {
                0 => {}
                errno => {
                    return Err(from_errno(
                        "ibv_modify_qp",
                        format!("UD, to state {to}"),
                        errno,
                    ));
                }
            }
        }
        Ok(())
    }

    /// Its number.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        // SAFETY: a live QP.
        unsafe { (*self.raw).qp_num }
    }

    /// Receives too what is sent to a group, which its route names. It leaves with the QP.
    ///
    /// # Errors
    /// The verb's errno: EINVAL where the device has no multicast, ENOMEM for too many groups.
    pub fn attach(&mut self, group: &Route) -> Result<(), Error> {
        let gid = group.attr.grh.dgid;
        // SAFETY: a live QP; the GID outlives the call.
        match unsafe { ffi::ibv_attach_mcast(self.raw, &raw const gid, group.attr.dlid) } {
            0 => Ok(()),
            errno => Err(from_errno("ibv_attach_mcast", "UD", errno)),
        }
    }

    /// Sends the first `length` bytes of a slot to `to`, which is kept until the completion.
    ///
    /// # Errors
    /// The send queue is full (ENOMEM), or the QP is in error: the slot comes back, with the errno.
    pub fn send(
        &mut self,
        messages: &mut Messages,
        slot: Slot,
        length: u32,
        to: &Destination,
    ) -> Result<u64, (Slot, i32)> {
        debug_assert!(Arc::ptr_eq(&self.pd, &to._pd), "of one protection domain");
        let (wr_id, mut sge) = messages.lend(slot, length);
        // SAFETY: plain old data; all zero is the documented start.
        let mut wr: ffi::ibv_send_wr = unsafe { mem::zeroed() };
        wr.wr_id = wr_id;
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        wr.opcode = ffi::ibv_wr_opcode::IBV_WR_SEND;
        wr.wr.ud = ffi::ud_t {
            ah: to.raw,
            remote_qpn: to.qp_num,
            remote_qkey: to.qkey,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: a live QP with one poster; the WR and its entry outlive the call; the entry lies in memory that the
        // SRQ of this QP holds, in a slot that is lent to the device until its completion; the caller keeps `to`.
        match unsafe { ffi::ibv_post_send(self.raw, &raw mut wr, &raw mut bad) } {
            0 => Ok(wr_id),
            errno => Err((messages.returned(wr_id).expect("lent above"), errno)),
        }
    }
}
