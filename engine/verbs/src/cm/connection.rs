//! Reliable connections, and connection requests of peers.

use crate::sys as ffi;
use crate::{
    device::{CmId, CmKey},
    error::{VerbsError, check_ret},
    message::{BorrowerId, MessageCq, MessageCqInner, MessageMemory, MessageSlot, Srq, SrqInner},
    pd::{Pd, PdInner},
};
use std::{io, mem, net::IpAddr, ptr, sync::Arc};

/// Connection request of a peer. Dropping it without an answer rejects the request.
pub struct Incoming {
    id: Option<Arc<CmId>>,
    peer_qp: u32,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Incoming(QP {})", self.peer_qp)
    }
}

impl Incoming {
    /// Creates the connection request that arrived on connection manager identifier `id`.
    pub(super) fn new(id: CmId, peer_qp: u32) -> Self {
        Self {
            id: Some(Arc::new(id)),
            peer_qp,
        }
    }

    /// Returns the key of the connection request in connection manager events.
    #[must_use]
    pub fn key(&self) -> Option<CmKey> {
        self.id.as_ref().map(|it| it.key())
    }

    /// Returns the IP address of the peer that requests the connection.
    #[must_use]
    pub fn peer_address(&self) -> Option<IpAddr> {
        self.id.as_ref().and_then(|it| it.addresses().1)
    }

    /// Creates the QP and accepts the peer's connection request.
    ///
    /// # Errors
    /// The error of a verb; the request is then rejected.
    pub fn accept(mut self, ends: &QpResources<'_>) -> Result<Connection, VerbsError> {
        let Some(id) = &self.id else {
            return Err(VerbsError::from_errno(
                "rdma_accept",
                "connection request",
                libc::EINVAL,
            ));
        };
        let connection = Connection::create(Arc::clone(id), self.peer_qp, ends)?;
        let mut param = conn_param();
        let locked = id.lock();
        // SAFETY: a live identifier with a pending request; `param` outlives the call.
        let ret = unsafe { ffi::rdma_accept(id.raw, &raw mut param) };
        drop(locked);
        check_ret(ret, "rdma_accept", "connection request")?;
        self.id = None;
        Ok(connection)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            let _locked = id.lock();
            // SAFETY: a live identifier with a pending request.
            unsafe { ffi::rdma_reject(id.raw, ptr::null(), 0) };
        }
    }
}

/// Verbs objects that a connection's QP uses.
pub struct QpResources<'a> {
    /// Protection domain of the connection's QP.
    pub pd: &'a Pd,
    /// CQ on which sends and receives of the connection complete.
    pub cq: &'a MessageCq,
    /// SRQ from which the connection's QP takes receive WRs.
    pub srq: &'a Srq,
    /// Maximum number of outstanding sends of the connection.
    pub sends: u32,
}

/// Reliable connection to a peer, and its QP.
pub struct Connection {
    pub(super) id: Arc<CmId>,
    peer_qp: u32,
    lender: BorrowerId,
    // Held until the QP is destroyed, which is before any field is dropped.
    srq: Arc<SrqInner>,
    _cq: Arc<MessageCqInner>,
    _pd: Arc<PdInner>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _locked = self.id.lock();
        // SAFETY: the identifier's own QP, destroyed only here.
        unsafe { ffi::rdma_destroy_qp(self.id.raw) };
    }
}

impl Connection {
    pub(super) fn create(
        id: Arc<CmId>,
        peer_qp: u32,
        ends: &QpResources<'_>,
    ) -> Result<Self, VerbsError> {
        let others = [
            &ends.pd.0.context,
            &ends.cq.inner.context,
            &ends.srq.inner.context,
        ];
        let context = &ends.pd.0.context;
        context.refuse_others(others, "rdma_create_qp", || {
            format!("{}, RC", context.name())
        })?;
        // This structure extends `ibv_qp_init_attr`, which ends in padding where this one has
        // `comp_mask`. A provider that reads `comp_mask` in either structure finds zero.
        // SAFETY: plain old data; all zero is the documented start.
        let mut init: ffi::ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
        init.send_cq = ends.cq.inner.raw;
        init.recv_cq = ends.cq.inner.raw;
        init.srq = ends.srq.inner.raw;
        // With an SRQ the limits of receives are ignored (ibv_create_qp_ex(3)).
        init.cap.max_send_wr = ends.sends;
        init.cap.max_send_sge = 1;
        init.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
        init.sq_sig_all = 1;
        let locked = id.lock();
        // SAFETY: a live identifier; the PD, CQ and SRQ are held by the new object until its QP is
        // destroyed; `init` begins with what the call reads.
        let ret = unsafe { ffi::rdma_create_qp(id.raw, ends.pd.0.raw, (&raw mut init).cast()) };
        check_ret(ret, "rdma_create_qp", "RC")?;
        drop(locked);
        Ok(Self {
            id,
            peer_qp,
            lender: BorrowerId::next(),
            srq: Arc::clone(&ends.srq.inner),
            _cq: Arc::clone(&ends.cq.inner),
            _pd: Arc::clone(&ends.pd.0),
        })
    }

    /// Returns the key of the connection in connection manager events.
    #[must_use]
    pub fn key(&self) -> CmKey {
        self.id.key()
    }

    /// Returns the QP number of this side of the connection.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        // SAFETY: a live identifier with a QP.
        unsafe { (*(*self.id.raw).qp).qp_num }
    }

    /// Returns the QP number of the connection's peer.
    #[must_use]
    pub fn peer_qp(&self) -> u32 {
        self.peer_qp
    }

    /// Returns the IP addresses of this side of the connection and of the peer.
    #[must_use]
    pub fn addresses(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        self.id.addresses()
    }

    /// Sends `bytes` from a message slot, at most as many as the slot holds. Returns the `wr_id` of
    /// the WR.
    ///
    /// # Errors
    /// The slot, with ENOMEM if the send queue is full, EINVAL if `messages` is not the memory of
    /// the SRQ, or another errno if the QP is in error.
    ///
    /// # Panics
    /// Panics if the slot belongs to another [`MessageMemory`] than `messages`.
    pub fn send(
        &mut self,
        messages: &mut MessageMemory,
        mut slot: MessageSlot,
        bytes: &[u8],
    ) -> Result<u64, (MessageSlot, io::Error)> {
        if !messages.is_over(&self.srq.memory) {
            return Err((slot, io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let room = messages.bytes_mut(&mut slot);
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
        // A slot is far below 4 GiB.
        let (wr_id, mut sge) = messages.lend(slot, len as u32, self.lender);
        // SAFETY: plain old data; all zero is the documented start.
        let mut wr: ffi::ibv_send_wr = unsafe { mem::zeroed() };
        wr.wr_id = wr_id;
        wr.sg_list = &raw mut sge;
        wr.num_sge = 1;
        wr.opcode = ffi::ibv_wr_opcode::IBV_WR_SEND;
        let mut bad = ptr::null_mut();
        // SAFETY: a live QP with one poster; the WR and its entry outlive the call; the entry lies
        // in memory that the SRQ of this connection holds, in a slot that is lent to the device
        // until its completion.
        match unsafe { ffi::ibv_post_send((*self.id.raw).qp, &raw mut wr, &raw mut bad) } {
            0 => Ok(wr_id),
            errno => Err(messages.refused(wr_id, self.lender, errno)),
        }
    }

    /// Destroys the connection's QP. Returns the message slots of the sends `wr_ids` that have not
    /// completed.
    pub fn close(
        self,
        messages: &mut MessageMemory,
        wr_ids: impl IntoIterator<Item = u64>,
    ) -> Vec<MessageSlot> {
        let lender = self.lender;
        drop(self);
        // Without its QP, the device is done with the sends.
        let wr_ids = wr_ids.into_iter();
        wr_ids
            .filter_map(|id| messages.take_back(id, lender))
            .collect()
    }

    /// Ends the connection: the QP enters the error state, and both sides receive an event.
    pub fn disconnect(&mut self) {
        let _locked = self.id.lock();
        // SAFETY: a live identifier. If the connection has already ended, the call fails
        // harmlessly.
        unsafe { ffi::rdma_disconnect(self.id.raw) };
    }

    /// Sets the number of the peer's QP, which the active side receives with
    /// [`CmEvent::Established`](super::CmEvent::Established).
    pub fn set_peer_qp(&mut self, peer_qp: u32) {
        self.peer_qp = peer_qp;
    }
}

/// Returns connection parameters without RDMA reads and atomics. Sends to a receiver that is not
/// ready are retried without limit (7): the sender has its own time-out.
pub(super) fn conn_param() -> ffi::rdma_conn_param {
    ffi::rdma_conn_param {
        private_data: ptr::null(),
        private_data_len: 0,
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 1,
        qp_num: 0,
    }
}
