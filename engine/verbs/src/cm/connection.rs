//! Reliable connections, and those that somebody asks for.

use crate::{
    device::{CmId, CmKey},
    error::{VerbsError, called},
    message::{LenderId, MessageCq, MessageCqInner, MessageSlot, Messages, Srq, SrqInner},
    pd::{Pd, PdInner},
};
use rdma_sys as ffi;
use std::{io, mem, net::IpAddr, ptr, sync::Arc};

/// A connection that somebody asks for. Dropped unanswered it is rejected.
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
    /// Somebody who asks by `id`.
    pub(super) fn new(id: CmId, peer_qp: u32) -> Self {
        Self {
            id: Some(Arc::new(id)),
            peer_qp,
        }
    }

    /// As events name it.
    #[must_use]
    pub fn key(&self) -> Option<CmKey> {
        self.id.as_ref().map(|it| it.key())
    }

    /// The IP address of whoever asks.
    #[must_use]
    pub fn peer_address(&self) -> Option<IpAddr> {
        self.id.as_ref().and_then(|it| it.addresses().1)
    }

    /// Makes the QP and accepts.
    ///
    /// # Errors
    /// A verb's; the connection is rejected then.
    pub fn accept(mut self, ends: &QpResources<'_>) -> Result<Connection, VerbsError> {
        let Some(id) = &self.id else {
            return Err(VerbsError::from_errno("rdma_accept", "", libc::EINVAL));
        };
        let connection = Connection::make(Arc::clone(id), self.peer_qp, ends)?;
        let mut param = conn_param();
        let locked = id.lock();
        // SAFETY: a live identifier whose connection is asked for; `param` outlives the call.
        let ret = unsafe { ffi::rdma_accept(id.raw, &raw mut param) };
        drop(locked);
        called(ret, "rdma_accept", "")?;
        self.id = None;
        Ok(connection)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            let _locked = id.lock();
            // SAFETY: a live identifier whose connection is asked for and not answered.
            unsafe { ffi::rdma_reject(id.raw, ptr::null(), 0) };
        }
    }
}

/// Where a connection's messages come from and go to.
pub struct QpResources<'a> {
    /// The protection domain.
    pub pd: &'a Pd,
    /// For sends and receives.
    pub cq: &'a MessageCq,
    /// Receives.
    pub srq: &'a Srq,
    /// Sends that can be outstanding.
    pub sends: u32,
}

/// A reliable connection and its QP.
pub struct Connection {
    pub(super) id: Arc<CmId>,
    peer_qp: u32,
    lender: LenderId,
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
    pub(super) fn make(
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
        // The longer structure: where `ibv_qp_init_attr` ends in padding, this one has its `comp_mask`, and a provider that
        // reads it there in either finds zero.
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
        // SAFETY: a live identifier; the PD, CQ and SRQ are held by the new object until its QP is destroyed; `init` begins
        // with what the call reads.
        let ret = unsafe { ffi::rdma_create_qp(id.raw, ends.pd.0.raw, (&raw mut init).cast()) };
        called(ret, "rdma_create_qp", "RC")?;
        drop(locked);
        Ok(Self {
            id,
            peer_qp,
            lender: LenderId::next(),
            srq: Arc::clone(&ends.srq.inner),
            _cq: Arc::clone(&ends.cq.inner),
            _pd: Arc::clone(&ends.pd.0),
        })
    }

    /// As events name it.
    #[must_use]
    pub fn key(&self) -> CmKey {
        self.id.key()
    }

    /// This side's QP number.
    #[must_use]
    pub fn qp_num(&self) -> u32 {
        // SAFETY: a live identifier with a QP.
        unsafe { (*(*self.id.raw).qp).qp_num }
    }

    /// The other side's.
    #[must_use]
    pub fn peer_qp(&self) -> u32 {
        self.peer_qp
    }

    /// This side's IP address and the other side's.
    #[must_use]
    pub fn addresses(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        self.id.addresses()
    }

    /// Sends bytes by a slot, as many as it holds.
    ///
    /// # Errors
    /// The send queue is full (ENOMEM), the QP is in error, or `messages` are others than the SRQ's (EINVAL): the slot comes
    /// back.
    ///
    /// # Panics
    /// The slot is of another set than `messages`.
    pub fn send(
        &mut self,
        messages: &mut Messages,
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
        // SAFETY: a live QP with one poster; the WR and its entry outlive the call; the entry lies in memory that the
        // SRQ of this connection holds, in a slot that is lent to the device until its completion.
        match unsafe { ffi::ibv_post_send((*self.id.raw).qp, &raw mut wr, &raw mut bad) } {
            0 => Ok(wr_id),
            errno => Err(messages.refused(wr_id, self.lender, errno)),
        }
    }

    /// Destroys the QP, and gives back the slots of those of the sends `wr_ids` that have not completed.
    pub fn close(
        self,
        messages: &mut Messages,
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

    /// Ends the connection: the QP goes into error, and both sides hear of it.
    pub fn disconnect(&mut self) {
        let _locked = self.id.lock();
        // SAFETY: a live identifier. A connection that has ended already refuses, which is as well.
        unsafe { ffi::rdma_disconnect(self.id.raw) };
    }

    /// Tells the number of the other side's QP, which the asking side learns with
    /// [`CmEvent::Established`](super::CmEvent::Established).
    pub fn set_peer_qp(&mut self, peer_qp: u32) {
        self.peer_qp = peer_qp;
    }
}

/// No RDMA reads or atomics; a receiver that is not ready is retried without end (7): whoever waits for it has a
/// time-out of its own.
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
