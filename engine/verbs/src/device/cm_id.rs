//! Identifiers of the RDMA connection manager, which lend the contexts of their devices.
//!
//! An identifier owns its connection's QP and lends its device's context, so it outlives both:
//! objects created on that context hold the identifier.

use crate::error::{VerbsError, check_created, check_ret, log_destroy_error};
use crate::sys as ffi;
use rustix::net::{
    SocketAddrAny,
    addr::{SocketAddrArg, SocketAddrLen},
};
use std::{
    net::{IpAddr, SocketAddr},
    ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Key of a connection manager identifier in its events.
pub type CmKey = usize;

/// Event channel of connection manager identifiers.
pub(crate) struct CmEventChannel {
    raw: *mut ffi::rdma_event_channel,
    /// Lock that is held while fields of the channel's identifiers are read or changed; taking an
    /// event changes them, too.
    identifiers: Mutex<()>,
}

// SAFETY: librdmacm documents its calls as thread safe; the pointer is valid until the last holder
// drops; fields of identifiers are accessed under the lock.
unsafe impl Send for CmEventChannel {}
// SAFETY: as for Send.
unsafe impl Sync for CmEventChannel {}

impl Drop for CmEventChannel {
    fn drop(&mut self) {
        // SAFETY: created by `create`, destroyed only here; identifiers hold an Arc of self.
        unsafe { ffi::rdma_destroy_event_channel(self.raw) };
    }
}

impl CmEventChannel {
    pub(crate) fn new() -> Result<Self, VerbsError> {
        ffi::ConnectionManager::get()?;
        // SAFETY: no precondition.
        let raw = unsafe { ffi::rdma_create_event_channel() };
        let raw = check_created(raw, "rdma_create_event_channel", "connection manager")?;
        Ok(Self {
            raw,
            identifiers: Mutex::new(()),
        })
    }

    pub(crate) fn raw(&self) -> *mut ffi::rdma_event_channel {
        self.raw
    }

    /// Locks the fields of the connection manager identifiers of the channel.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.identifiers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Identifier of the connection manager (`rdma_cm_id`).
pub(crate) struct CmId {
    pub(crate) raw: *mut ffi::rdma_cm_id,
    channel: Arc<CmEventChannel>,
}

// SAFETY: as for the channel.
unsafe impl Send for CmId {}
// SAFETY: as for the channel.
unsafe impl Sync for CmId {}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: from the library, destroyed only here. Its QP is gone (`Connection`) and every
        // event was acknowledged as it was taken, so this does not wait.
        log_destroy_error("rdma_destroy_id", unsafe { ffi::rdma_destroy_id(self.raw) });
    }
}

impl CmId {
    /// Creates a connection manager identifier for connections.
    pub(crate) fn new(channel: &Arc<CmEventChannel>) -> Result<Self, VerbsError> {
        let mut raw = ptr::null_mut();
        let space = ffi::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: a live channel, held by the new object.
        let ret = unsafe { ffi::rdma_create_id(channel.raw, &raw mut raw, ptr::null_mut(), space) };
        check_ret(ret, "rdma_create_id", "connection manager")?;
        Ok(Self::from_raw(raw, channel))
    }

    /// Wraps a connection manager identifier that an event of the channel delivered.
    pub(crate) fn from_raw(raw: *mut ffi::rdma_cm_id, channel: &Arc<CmEventChannel>) -> Self {
        Self {
            raw,
            channel: Arc::clone(channel),
        }
    }

    /// Locks the fields of the connection manager identifier.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.channel.lock()
    }

    /// Returns the identifier's key in connection manager events.
    pub(crate) fn key(&self) -> CmKey {
        self.raw as CmKey
    }

    /// Binds the connection manager identifier to an address of an RDMA device.
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), VerbsError> {
        let _locked = self.lock();
        // SAFETY: a live identifier; the address has the length of its family.
        let ret = with_sockaddr(address, |it| unsafe { ffi::rdma_bind_addr(self.raw, it) });
        check_ret(ret, "rdma_bind_addr", address.to_string())
    }

    /// Starts to resolve a peer's address, on any RDMA device that leads to it.
    pub(crate) fn resolve(&self, to: SocketAddr, timeout: Duration) -> Result<(), VerbsError> {
        let ms = milliseconds(timeout);
        let _locked = self.lock();
        // SAFETY: a live identifier; the address has the length of its family.
        let ret = with_sockaddr(to, |it| unsafe {
            ffi::rdma_resolve_addr(self.raw, ptr::null_mut(), it, ms)
        });
        check_ret(ret, "rdma_resolve_addr", to.to_string())
    }

    /// Starts to resolve the route to the peer.
    pub(crate) fn resolve_route(&self, timeout: Duration) -> Result<(), VerbsError> {
        let _locked = self.lock();
        // SAFETY: a live identifier.
        let ret = unsafe { ffi::rdma_resolve_route(self.raw, milliseconds(timeout)) };
        check_ret(ret, "rdma_resolve_route", "connection")
    }

    /// Returns the IP addresses of this side of the connection and of the peer; `None` if the
    /// connection manager does not have one yet.
    pub(crate) fn addresses(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        let _locked = self.lock();
        // SAFETY: a live identifier, which the library made zeroed: either address is a union that
        // is wholly initialised.
        unsafe {
            let addresses = &(*self.raw).route.addr;
            (
                ip_of(&addresses.src_addr_union),
                ip_of(&addresses.dst_addr_union),
            )
        }
    }

    /// Returns the port of the identifier's RDMA device; 0 before the identifier is bound.
    pub(crate) fn port(&self) -> u8 {
        let _locked = self.lock();
        // SAFETY: a live identifier.
        unsafe { (*self.raw).port_num }
    }
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

/// Passes a socket address to a call that takes a mutable pointer but does not change the address.
fn with_sockaddr<R>(address: SocketAddr, call: impl FnOnce(*mut libc::sockaddr) -> R) -> R {
    // SAFETY: the pointer is used during the call alone.
    unsafe { address.with_sockaddr(|it, _| call(it.cast_mut().cast())) }
}

/// Returns the IP address in a union of socket addresses.
///
/// # Safety
/// All bytes of `union` are initialised.
unsafe fn ip_of<U>(union: &U) -> Option<IpAddr> {
    let len = SocketAddrLen::try_from(size_of::<U>()).ok()?;
    // SAFETY: the caller guarantees initialised bytes; an unknown family is rejected.
    let it = unsafe { SocketAddrAny::read(ptr::from_ref(union).cast(), len) };
    let address = SocketAddr::try_from(it).ok()?;
    Some(address.ip().to_canonical())
}
