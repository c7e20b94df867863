//! Event channel of the connection manager, and its events.

use super::connection::Incoming;
use crate::sys as ffi;
use crate::{
    device::{CmEventChannel, CmId, CmKey},
    error::{VerbsError, set_nonblocking},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    ptr,
    sync::Arc,
};

/// Channel on which events of the connection manager arrive. Its descriptor does not block.
#[derive(Clone)]
pub struct CmChannel(Arc<CmEventChannel>);

/// Event of a connection manager identifier, such as a connection request.
#[derive(Debug)]
pub enum CmEvent {
    /// A peer requests a connection.
    Request(Incoming),
    /// The peer's address is resolved.
    AddressResolved(CmKey),
    /// The route to the peer is resolved.
    RouteResolved(CmKey),
    /// The connection is established; the number is the peer's QP number.
    Established(CmKey, u32),
    /// Address resolution or connection failed, or the peer rejected the connection; the text is
    /// the library's description of the failure.
    Failed(CmKey, String),
    /// The peer has disconnected, or the RDMA device was removed.
    Disconnected(CmKey),
    /// Connection manager event that needs no action.
    Other,
}

impl AsFd for CmChannel {
    /// Returns the channel's file descriptor, which is readable when a connection manager event is
    /// pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's own descriptor, open as long as self.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw()).fd) }
    }
}

impl CmChannel {
    /// Creates a connection manager channel with a non-blocking file descriptor.
    ///
    /// # Errors
    /// ENODEV if the kernel has no `rdma_ucm`.
    pub fn create() -> Result<Self, VerbsError> {
        let channel = Self(Arc::new(CmEventChannel::new()?));
        set_nonblocking(&channel, "connection manager channel")?;
        Ok(channel)
    }

    /// Creates a connection manager identifier whose events arrive on this channel.
    pub(super) fn new_id(&self) -> Result<Arc<CmId>, VerbsError> {
        CmId::new(&self.0).map(Arc::new)
    }

    /// Takes and acknowledges the channel's next connection manager event; `None` if there is none.
    pub fn take(&self) -> Option<CmEvent> {
        use ffi::rdma_cm_event_type as kind;
        let mut event: *mut ffi::rdma_cm_event = ptr::null_mut();
        let _locked = self.0.lock();
        // SAFETY: a live channel whose descriptor does not block; the event is valid until
        // acknowledged, which is after the last use. `conn` is the member of the union that
        // rdma_get_cm_event(3) gives for connected services.
        unsafe {
            if ffi::rdma_get_cm_event(self.0.raw(), &raw mut event) != 0 {
                return None;
            }
            let (id, peer_qp) = ((*event).id, (*event).param.conn.qp_num);
            let key = id as CmKey;
            let read = match (*event).event {
                kind::RDMA_CM_EVENT_CONNECT_REQUEST => {
                    CmEvent::Request(Incoming::new(CmId::from_raw(id, &self.0), peer_qp))
                }
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
            Some(read)
        }
    }
}

fn failure(event: &ffi::rdma_cm_event) -> String {
    // SAFETY: the library returns a static string for any number.
    let name = unsafe { std::ffi::CStr::from_ptr(ffi::rdma_event_str(event.event)) };
    let name = name.to_string_lossy();
    match event.status {
        // A negative errno, except with a rejection, where it is the peer's reason.
        status if status < 0 => format!("{name}: {}", io::Error::from_raw_os_error(-status)),
        _ => name.into_owned(),
    }
}
