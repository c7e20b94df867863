//! Addresses that connections are accepted on.

use super::channel::CmChannel;
use crate::{
    device::{CmId, Context},
    error::{VerbsError, called},
    message::{Messages, Srq},
    pd::Pd,
};
use rdma_sys as ffi;
use std::{net::SocketAddr, sync::Arc};

/// An address that connections are accepted on.
pub struct Listener {
    id: Arc<CmId>,
    context: Context,
}

impl Listener {
    /// Binds to an address of an RDMA device. Nobody can connect before [`Listener::listen`].
    ///
    /// # Errors
    /// EADDRNOTAVAIL or ENODEV where no RDMA device has the address, EADDRINUSE.
    pub fn bind(channel: &CmChannel, address: SocketAddr) -> Result<Self, VerbsError> {
        let id = channel.new_id()?;
        id.bind(address)?;
        let context = Context::lent_by(&id).ok_or(VerbsError::NoDeviceAt(address))?;
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
    /// As [`Srq::create`]; EBUSY while the listener has one.
    pub fn srq(&self, pd: &Pd, messages: &Messages, max_wr: u32) -> Result<Srq, VerbsError> {
        Srq::create_on(&self.id, pd, messages, max_wr)
    }

    /// Lets others connect; `backlog` of them may wait.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn listen(&self, backlog: i32) -> Result<(), VerbsError> {
        let _locked = self.id.lock();
        // SAFETY: a live identifier that is bound.
        let ret = unsafe { ffi::rdma_listen(self.id.raw, backlog) };
        called(ret, "rdma_listen", "")
    }
}
