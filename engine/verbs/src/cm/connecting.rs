//! The asking side of a connection.

use super::{
    channel::CmChannel,
    connection::{Connection, QpResources, conn_param},
};
use crate::{
    device::{CmId, Context},
    error::{VerbsError, called},
};
use rdma_sys as ffi;
use std::{net::SocketAddr, sync::Arc, time::Duration};

/// A connection being made.
pub struct Connecting {
    id: Arc<CmId>,
}

impl Connecting {
    /// Begins to resolve an address; [`CmEvent::AddressResolved`](super::CmEvent::AddressResolved) follows.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn resolve(
        channel: &CmChannel,
        to: SocketAddr,
        timeout: Duration,
    ) -> Result<Self, VerbsError> {
        let id = channel.new_id()?;
        id.resolve(to, timeout)?;
        Ok(Self { id })
    }

    /// Begins to resolve the route; [`CmEvent::RouteResolved`](super::CmEvent::RouteResolved) follows.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), VerbsError> {
        self.id.resolve_route(timeout)
    }

    /// The device that leads there; `None` before the address is resolved.
    #[must_use]
    pub fn context(&self) -> Option<Context> {
        Context::lent_by(&self.id)
    }

    /// The device's port that leads there.
    #[must_use]
    pub fn port(&self) -> u8 {
        self.id.port()
    }

    /// Makes the QP and asks to be connected; [`CmEvent::Established`](super::CmEvent::Established) follows.
    ///
    /// # Errors
    /// A verb's.
    pub fn connect(self, ends: &QpResources<'_>) -> Result<Connection, VerbsError> {
        let connection = Connection::make(self.id, 0, ends)?;
        let mut param = conn_param();
        let locked = connection.id.lock();
        // SAFETY: a live identifier with its route; `param` outlives the call.
        let ret = unsafe { ffi::rdma_connect(connection.id.raw, &raw mut param) };
        drop(locked);
        called(ret, "rdma_connect", "")?;
        Ok(connection)
    }
}
