//! Active side of a connection: the side that requests it.

use super::{
    channel::CmChannel,
    connection::{Connection, QpResources, conn_param},
};
use crate::sys as ffi;
use crate::{
    device::{CmId, Context},
    error::{VerbsError, check_ret},
};
use std::{net::SocketAddr, sync::Arc, time::Duration};

/// Connection to a peer that this side is establishing.
pub struct Connecting {
    id: Arc<CmId>,
}

impl Connecting {
    /// Starts to resolve the peer's address;
    /// [`CmEvent::AddressResolved`](super::CmEvent::AddressResolved) follows.
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

    /// Starts to resolve the route to the peer;
    /// [`CmEvent::RouteResolved`](super::CmEvent::RouteResolved) follows.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn resolve_route(&self, timeout: Duration) -> Result<(), VerbsError> {
        self.id.resolve_route(timeout)
    }

    /// Returns the RDMA device that leads to the peer; `None` before the peer's address is
    /// resolved.
    #[must_use]
    pub fn context(&self) -> Option<Context> {
        Context::lent_by(&self.id)
    }

    /// Returns the RDMA device's port that leads to the peer.
    #[must_use]
    pub fn port(&self) -> u8 {
        self.id.port()
    }

    /// Creates the QP and requests the connection to the peer;
    /// [`CmEvent::Established`](super::CmEvent::Established) follows.
    ///
    /// # Errors
    /// The error of a verb.
    pub fn connect(self, ends: &QpResources<'_>) -> Result<Connection, VerbsError> {
        let connection = Connection::create(self.id, 0, ends)?;
        let mut param = conn_param();
        let locked = connection.id.lock();
        // SAFETY: a live identifier with its route; `param` outlives the call.
        let ret = unsafe { ffi::rdma_connect(connection.id.raw, &raw mut param) };
        drop(locked);
        check_ret(ret, "rdma_connect", "connection")?;
        Ok(connection)
    }
}
