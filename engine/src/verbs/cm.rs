//! The RDMA connection manager: an event channel, listeners, and reliable connections.
//!
//! An identifier owns its connection's QP and lends its device's context, so it outlives both: what is made on that
//! context holds the identifier.

use super::{
    Context, Messages, Pd, Srq,
    context::ContextInner,
    last_error,
    messages::Slot,
    pd::PdInner,
    srq::SrqInner,
    wc::{MessageCq, MessageCqInner},
};
use crate::Error;
use rdma_sys as ffi;
use std::{
    io, mem,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr,
    sync::Arc,
    time::Duration,
};

/// Where the connection manager's events arrive. Its descriptor does not block.
#[derive(Clone)]
pub struct CmChannel(Arc<ChannelInner>);

struct ChannelInner(*mut ffi::rdma_event_channel);

// SAFETY: librdmacm documents its calls as thread safe; the pointer is valid until the last holder drops.
unsafe impl Send for ChannelInner {}
// SAFETY: as for Send.
unsafe impl Sync for ChannelInner {}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        // SAFETY: created by `create`, destroyed only here; identifiers hold an Arc of self.
        unsafe { ffi::rdma_destroy_event_channel(self.0) };
    }
}

pub(super) struct IdInner {
    pub(super) raw: *mut ffi::rdma_cm_id,
    _channel: Arc<ChannelInner>,
}

// SAFETY: as for the channel.
unsafe impl Send for IdInner {}
// SAFETY: as for the channel.
unsafe impl Sync for IdInner {}

impl Drop for IdInner {
    fn drop(&mut self) {
        // SAFETY: from the library, destroyed only here. Its QP is gone (`Connection`) and every event was
        // acknowledged as it was taken, so this does not wait.
        super::destroyed("rdma_destroy_id", unsafe { ffi::rdma_destroy_id(self.raw) });
    }
}

impl IdInner {
    /// The device's port; 0 before it is bound to one.
    fn port(&self) -> u8 {
        // SAFETY: a live identifier.
        unsafe { (*self.raw).port_num }
    }

    /// The context of the device it is bound to.
    fn context(self: &Arc<Self>) -> Option<Context> {
        // SAFETY: a live identifier; the library sets `verbs` when it is bound to a device, and keeps that open.
        let raw = unsafe { (*self.raw).verbs };
        (!raw.is_null()).then(|| Context::lent(raw, Arc::clone(self)))
    }
}

/// What happened to an identifier.
#[derive(Debug)]
pub enum CmEvent {
    /// Somebody wants to connect.
    Request(Incoming),
    /// The address is resolved.
    AddressResolved(CmKey),
    /// The route is resolved.
    RouteResolved(CmKey),
    /// The connection stands; the number is the other side's QP.
    Established(CmKey, u32),
    /// It was rejected, did not come about, or could not; in the library's words.
    Failed(CmKey, String),
    /// The other side has ended it.
    Disconnected(CmKey),
    /// Nothing to be done.
    Other,
}

/// Names an identifier in events.
pub type CmKey = usize;

/// A connection that somebody asks for. Dropped unanswered it is rejected.
pub struct Incoming {
    id: Option<Arc<IdInner>>,
    peer_qp: u32,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Incoming(QP {})", self.peer_qp)
    }
}

impl AsFd for CmChannel {
    /// Readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, open as long as self.
        unsafe { BorrowedFd::borrow_raw((*self.0.0).fd) }
    }
}

impl CmChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// ENODEV where the kernel has no `rdma_ucm`.
    pub fn create() -> Result<Self, Error> {
        // SAFETY: no precondition.
        let raw = unsafe { ffi::rdma_create_event_channel() };
        if raw.is_null() {
            return Err(last_error("rdma_create_event_channel", ""));
        }
        let channel = Self(Arc::new(ChannelInner(raw)));
        // SAFETY: fcntl on a descriptor this object owns.
        if unsafe { libc::fcntl(channel.as_fd().as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0
        {
            return Err(last_error("fcntl", "connection manager channel"));
        }
        Ok(channel)
    }

    fn new_id(&self) -> Result<Arc<IdInner>, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: a live channel, held by the new object.
        let ret = unsafe {
            ffi::rdma_create_id(
                self.0.0,
                &raw mut raw,
                ptr::null_mut(),
                ffi::rdma_port_space::RDMA_PS_TCP,
            )
        };
        if ret != 0 {
            return Err(last_error("rdma_create_id", ""));
        }
        Ok(Arc::new(IdInner {
            raw,
            _channel: Arc::clone(&self.0),
        }))
    }

    /// The next event, acknowledged; `None` when there is none.
    pub fn take(&self) -> Option<CmEvent> {
        use ffi::rdma_cm_event_type as kind;
        let mut event: *mut ffi::rdma_cm_event = ptr::null_mut();
        // SAFETY: a live channel whose descriptor does not block; the event is valid until acknowledged, which is after
        // the last use. `conn` is the member of the union that rdma_get_cm_event(3) gives for connected services.
        unsafe {
            if ffi::rdma_get_cm_event(self.0.0, &raw mut event) != 0 {
                return None;
            }
            let (id, peer_qp) = ((*event).id, (*event).param.conn.qp_num);
            let key = id as CmKey;
            let told = match (*event).event {
                kind::RDMA_CM_EVENT_CONNECT_REQUEST => CmEvent::Request(Incoming {
                    id: Some(Arc::new(IdInner {
                        raw: id,
                        _channel: Arc::clone(&self.0),
                    })),
                    peer_qp,
                }),
                kind::RDMA_CM_EVENT_ADDR_RESOLVED => CmEvent::AddressResolved(key),
                kind::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEvent::RouteResolved(key),
                kind::RDMA_CM_EVENT_ESTABLISHED => CmEvent::Established(key, peer_qp),
                kind::RDMA_CM_EVENT_DISCONNECTED | kind::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                    CmEvent::Disconnected(key)
                }
                kind::RDMA_CM_EVENT_ADDR_ERROR
                | kind::RDMA_CM_EVENT_ROUTE_ERROR
                | kind::RDMA_CM_EVENT_CONNECT_ERROR
                | kind::RDMA_CM_EVENT_UNREACHABLE
                | kind::RDMA_CM_EVENT_REJECTED => CmEvent::Failed(key, failure(&*event)),
                _ => CmEvent::Other,
            };
            ffi::rdma_ack_cm_event(event);
            Some(told)
        }
    }
}

fn failure(event: &ffi::rdma_cm_event) -> String {
    // SAFETY: the library answers any number with a static string.
    let name = unsafe { std::ffi::CStr::from_ptr(ffi::rdma_event_str(event.event)) };
    let name = name.to_string_lossy();
    match event.status {
        // A negative errno, except with a rejection, where it is the peer's reason.
        status if status < 0 => format!("{name}: {}", io::Error::from_raw_os_error(-status)),
        _ => name.into_owned(),
    }
}

/// An address that connections are accepted on.
pub struct Listener {
    id: Arc<IdInner>,
    context: Context,
}

impl Listener {
    /// Binds to an address of an RDMA device. Nobody can connect before [`Listener::listen`].
    ///
    /// # Errors
    /// EADDRNOTAVAIL or ENODEV where no RDMA device has the address, EADDRINUSE.
    pub fn bind(channel: &CmChannel, address: SocketAddr) -> Result<Self, Error> {
        let id = channel.new_id()?;
        let mut storage = sockaddr(address);
        // SAFETY: a live identifier; the address has the length of its family.
        let ret = unsafe { ffi::rdma_bind_addr(id.raw, (&raw mut storage).cast()) };
        if ret != 0 {
            return Err(last_error("rdma_bind_addr", address.to_string()));
        }
        let context = id.context().ok_or_else(|| Error::Config {
            key: "control.rdma".into(),
            value: address.to_string(),
            problem:
                "is no address of one RDMA device; `rdma link` lists devices with their interfaces"
                    .into(),
        })?;
        Ok(Self { id, context })
    }

    /// The device's context, lent by the connection manager.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The device's port.
    #[must_use]
    pub fn port(&self) -> u8 {
        self.id.port()
    }

    /// Creates the SRQ of this listener.
    ///
    /// # Errors
    /// As [`Srq::create`].
    pub fn srq(&self, pd: &Pd, messages: &Messages, max_wr: u32) -> Result<Srq, Error> {
        Srq::create_on(&self.id, pd, messages, max_wr)
    }

    /// Lets others connect; `backlog` of them may wait.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn listen(&self, backlog: i32) -> Result<(), Error> {
        // SAFETY: a live identifier that is bound.
        match unsafe { ffi::rdma_listen(self.id.raw, backlog) } {
            0 => Ok(()),
            _ => Err(last_error("rdma_listen", "")),
        }
    }
}

/// Where a connection's messages come from and go to.
pub struct Ends<'a> {
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
    id: Arc<IdInner>,
    peer_qp: u32,
    // Held until the QP is destroyed, which is before any field is dropped.
    _srq: Arc<SrqInner>,
    _cq: Arc<MessageCqInner>,
    _pd: Arc<PdInner>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the identifier's own QP, destroyed only here.
        unsafe { ffi::rdma_destroy_qp(self.id.raw) };
    }
}

impl Incoming {
    /// Makes the QP and accepts.
    ///
    /// # Errors
    /// A verb's; the connection is rejected then.
    pub fn accept(mut self, ends: &Ends<'_>) -> Result<Connection, Error> {
        let Some(id) = &self.id else {
            return Err(super::from_errno("rdma_accept", "", libc::EINVAL));
        };
        let connection = Connection::make(Arc::clone(id), self.peer_qp, ends)?;
        let mut param = conn_param();
        // SAFETY: a live identifier whose connection is asked for; `param` outlives the call.
        if unsafe { ffi::rdma_accept(id.raw, &raw mut param) } != 0 {
            return Err(last_error("rdma_accept", ""));
        }
        self.id = None;
        Ok(connection)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            // SAFETY: a live identifier whose connection is asked for and not answered.
            unsafe { ffi::rdma_reject(id.raw, ptr::null(), 0) };
        }
    }
}

impl Connection {
    fn make(id: Arc<IdInner>, peer_qp: u32, ends: &Ends<'_>) -> Result<Self, Error> {
        let mut init = ffi::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: ends.cq.inner.raw,
            recv_cq: ends.cq.inner.raw,
            srq: ends.srq.inner.raw,
            cap: ffi::ibv_qp_cap {
                max_send_wr: ends.sends,
                // With an SRQ the next two are ignored (ibv_create_qp_ex(3)).
                max_recv_wr: 0,
                max_recv_sge: 0,
                max_send_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 1,
        };
        // SAFETY: a live identifier; the PD, CQ and SRQ are held by the new object until its QP is destroyed.
        if unsafe { ffi::rdma_create_qp(id.raw, ends.pd.0.raw, &raw mut init) } != 0 {
            return Err(last_error("rdma_create_qp", "RC"));
        }
        Ok(Self {
            id,
            peer_qp,
            _srq: Arc::clone(&ends.srq.inner),
            _cq: Arc::clone(&ends.cq.inner),
            _pd: Arc::clone(&ends.pd.0),
        })
    }

    /// As events name it.
    #[must_use]
    pub fn key(&self) -> CmKey {
        self.id.raw as CmKey
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

    /// Sends the first `length` bytes of a slot.
    ///
    /// # Errors
    /// The send queue is full (ENOMEM), or the QP is in error: the slot comes back, with the errno.
    pub fn send(
        &mut self,
        messages: &mut Messages,
        slot: Slot,
        length: u32,
    ) -> Result<u64, (Slot, i32)> {
        let (wr_id, mut sge) = messages.lend(slot, length);
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
            errno => Err((messages.returned(wr_id).expect("lent above"), errno)),
        }
    }

    /// Ends the connection: the QP goes into error, and both sides hear of it.
    pub fn disconnect(&mut self) {
        // SAFETY: a live identifier. A connection that has ended already refuses, which is as well.
        unsafe { ffi::rdma_disconnect(self.id.raw) };
    }
}

/// A connection being made.
pub struct Connecting {
    id: Arc<IdInner>,
}

impl Connecting {
    /// Begins to resolve an address; [`CmEvent::AddressResolved`] follows.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn resolve(channel: &CmChannel, to: SocketAddr, timeout: Duration) -> Result<Self, Error> {
        let id = channel.new_id()?;
        let mut storage = sockaddr(to);
        // SAFETY: a live identifier; the address has the length of its family.
        let ret = unsafe {
            ffi::rdma_resolve_addr(
                id.raw,
                ptr::null_mut(),
                (&raw mut storage).cast(),
                milliseconds(timeout),
            )
        };
        match ret {
            0 => Ok(Self { id }),
            _ => Err(last_error("rdma_resolve_addr", to.to_string())),
        }
    }

    /// Begins to resolve the route; [`CmEvent::RouteResolved`] follows.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), Error> {
        // SAFETY: a live identifier.
        match unsafe { ffi::rdma_resolve_route(self.id.raw, milliseconds(timeout)) } {
            0 => Ok(()),
            _ => Err(last_error("rdma_resolve_route", "")),
        }
    }

    /// The device that leads there; `None` before the address is resolved.
    #[must_use]
    pub fn context(&self) -> Option<Context> {
        self.id.context()
    }

    /// The device's port that leads there.
    #[must_use]
    pub fn port(&self) -> u8 {
        self.id.port()
    }

    /// Makes the QP and asks to be connected; [`CmEvent::Established`] follows.
    ///
    /// # Errors
    /// A verb's.
    pub fn connect(self, ends: &Ends<'_>) -> Result<Connection, Error> {
        let connection = Connection::make(self.id, 0, ends)?;
        let mut param = conn_param();
        // SAFETY: a live identifier with its route; `param` outlives the call.
        match unsafe { ffi::rdma_connect(connection.id.raw, &raw mut param) } {
            0 => Ok(connection),
            _ => Err(last_error("rdma_connect", "")),
        }
    }
}

impl Connection {
    /// Tells the number of the other side's QP, which the asking side learns with [`CmEvent::Established`].
    pub fn set_peer_qp(&mut self, peer_qp: u32) {
        self.peer_qp = peer_qp;
    }
}

/// No RDMA reads or atomics; a receiver that is not ready is retried without end (7): whoever waits for it has a
/// time-out of its own.
fn conn_param() -> ffi::rdma_conn_param {
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

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

fn sockaddr(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: plain old data; all zero is valid.
    let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
    match address {
        SocketAddr::V4(it) => {
            let place = (&raw mut storage).cast::<libc::sockaddr_in>();
            // SAFETY: a sockaddr_storage is large enough and aligned for either family.
            unsafe {
                (*place).sin_family = libc::sa_family_t::try_from(libc::AF_INET).unwrap_or(0);
                (*place).sin_port = it.port().to_be();
                (*place).sin_addr.s_addr = u32::from_ne_bytes(it.ip().octets());
            }
        }
        SocketAddr::V6(it) => {
            let place = (&raw mut storage).cast::<libc::sockaddr_in6>();
            // SAFETY: as above.
            unsafe {
                (*place).sin6_family = libc::sa_family_t::try_from(libc::AF_INET6).unwrap_or(0);
                (*place).sin6_port = it.port().to_be();
                (*place).sin6_addr.s6_addr = it.ip().octets();
                (*place).sin6_scope_id = it.scope_id();
            }
        }
    }
    storage
}

/// A context that a CM identifier lends; see [`Context`].
impl Context {
    fn lent(raw: *mut ffi::ibv_context, lender: Arc<IdInner>) -> Self {
        // SAFETY: a live context, whose device has a NUL-terminated name.
        let name = unsafe { std::ffi::CStr::from_ptr((*(*raw).device).name.as_ptr()) };
        Self(Arc::new(ContextInner::lent(
            raw,
            name.to_string_lossy().into_owned(),
            lender,
        )))
    }
}
