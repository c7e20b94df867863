//! Identifiers of the RDMA connection manager, which lend the contexts of the devices that they are bound to.
//!
//! An identifier owns its connection's QP and lends its device's context, so it outlives both: what is made on that
//! context holds the identifier.

use crate::error::{VerbsError, called, destroyed, made};
use rdma_sys as ffi;
use std::{
    mem,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ptr,
    sync::Arc,
    time::Duration,
};

/// Names an identifier in events.
pub type CmKey = usize;

/// Where the events of identifiers arrive.
pub(crate) struct EventChannel(*mut ffi::rdma_event_channel);

// SAFETY: librdmacm documents its calls as thread safe; the pointer is valid until the last holder drops.
unsafe impl Send for EventChannel {}
// SAFETY: as for Send.
unsafe impl Sync for EventChannel {}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: created by `create`, destroyed only here; identifiers hold an Arc of self.
        unsafe { ffi::rdma_destroy_event_channel(self.0) };
    }
}

impl EventChannel {
    pub(crate) fn new() -> Result<Self, VerbsError> {
        // SAFETY: no precondition.
        let raw = unsafe { ffi::rdma_create_event_channel() };
        made(raw, "rdma_create_event_channel", "").map(Self)
    }

    pub(crate) fn raw(&self) -> *mut ffi::rdma_event_channel {
        self.0
    }
}

/// An identifier (`rdma_cm_id`).
pub(crate) struct CmId {
    pub(crate) raw: *mut ffi::rdma_cm_id,
    _channel: Arc<EventChannel>,
}

// SAFETY: as for the channel.
unsafe impl Send for CmId {}
// SAFETY: as for the channel.
unsafe impl Sync for CmId {}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: from the library, destroyed only here. Its QP is gone (`Connection`) and every event was
        // acknowledged as it was taken, so this does not wait.
        destroyed("rdma_destroy_id", unsafe { ffi::rdma_destroy_id(self.raw) });
    }
}

impl CmId {
    /// A new one, for connections.
    pub(crate) fn new(channel: &Arc<EventChannel>) -> Result<Self, VerbsError> {
        let mut raw = ptr::null_mut();
        let space = ffi::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: a live channel, held by the new object.
        let ret = unsafe { ffi::rdma_create_id(channel.0, &raw mut raw, ptr::null_mut(), space) };
        called(ret, "rdma_create_id", "")?;
        Ok(Self::of(raw, channel))
    }

    /// One that an event of the channel hands over.
    pub(crate) fn of(raw: *mut ffi::rdma_cm_id, channel: &Arc<EventChannel>) -> Self {
        Self {
            raw,
            _channel: Arc::clone(channel),
        }
    }

    /// As events name it.
    pub(crate) fn key(&self) -> CmKey {
        self.raw as CmKey
    }

    /// Binds to an address of an RDMA device.
    pub(crate) fn bind(&self, address: SocketAddr) -> Result<(), VerbsError> {
        let mut storage = sockaddr(address);
        // SAFETY: a live identifier; the address has the length of its family.
        let ret = unsafe { ffi::rdma_bind_addr(self.raw, (&raw mut storage).cast()) };
        called(ret, "rdma_bind_addr", address.to_string())
    }

    /// Begins to resolve an address, from whichever device leads there.
    pub(crate) fn resolve(&self, to: SocketAddr, timeout: Duration) -> Result<(), VerbsError> {
        let mut storage = sockaddr(to);
        // SAFETY: a live identifier; the address has the length of its family.
        let ret = unsafe {
            ffi::rdma_resolve_addr(
                self.raw,
                ptr::null_mut(),
                (&raw mut storage).cast(),
                milliseconds(timeout),
            )
        };
        called(ret, "rdma_resolve_addr", to.to_string())
    }

    /// Begins to resolve the route.
    pub(crate) fn resolve_route(&self, timeout: Duration) -> Result<(), VerbsError> {
        // SAFETY: a live identifier.
        let ret = unsafe { ffi::rdma_resolve_route(self.raw, milliseconds(timeout)) };
        called(ret, "rdma_resolve_route", "")
    }

    /// This side's IP address and the other side's, as the connection manager knows them; `None` where it has none yet.
    pub(crate) fn addresses(&self) -> (Option<IpAddr>, Option<IpAddr>) {
        // SAFETY: a live identifier; both addresses are members of unions with a sockaddr_storage, as large as any.
        unsafe {
            (
                ip_of(ffi::rdma_get_local_addr(&*self.raw)),
                ip_of(ffi::rdma_get_peer_addr(&*self.raw)),
            )
        }
    }

    /// The device's port; 0 before it is bound to one.
    pub(crate) fn port(&self) -> u8 {
        // SAFETY: a live identifier.
        unsafe { (*self.raw).port_num }
    }
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

/// # Safety
/// The address lies in memory as large as its family's structure.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller vouches for the size; the family says which structure it is.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let it = (*address.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                Some(Ipv4Addr::from(it.to_ne_bytes()).into())
            }
            libc::AF_INET6 => {
                let it = (*address.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr;
                Some(IpAddr::from(it).to_canonical())
            }
            _ => None,
        }
    }
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
