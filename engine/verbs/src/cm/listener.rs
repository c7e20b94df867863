//! Addresses on which connections are accepted.

use super::channel::CmChannel;
use crate::sys as ffi;
use crate::{
    device::{CmId, Context},
    error::{VerbsError, check_ret},
    message::{MessageMemory, Srq},
    pd::Pd,
};
use std::{net::SocketAddr, sync::Arc};

/// Listening address on which connections of RDMA peers are accepted.
pub struct Listener {
    id: Arc<CmId>,
    context: Context,
}

impl Listener {
    /// Binds a listener to an address of an RDMA device. Peers can connect after
    /// [`Listener::listen`].
    ///
    /// # Errors
    /// EADDRNOTAVAIL or ENODEV if no RDMA device has the address, EADDRINUSE if it is in use.
    pub fn bind(channel: &CmChannel, address: SocketAddr) -> Result<Self, VerbsError> {
        let id = channel.new_id()?;
        id.bind(address)?;
        let context = Context::lent_by(&id).ok_or(VerbsError::NoDeviceAt(address))?;
        Ok(Self { id, context })
    }

    /// Returns the context of the listener's device, lent by the connection manager.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the number of the listener's port on its device.
    #[must_use]
    pub fn port(&self) -> u8 {
        self.id.port()
    }

    /// Creates an SRQ on the listener's connection manager identifier.
    ///
    /// # Errors
    /// As [`Srq::create`]; EBUSY if the listener already has an SRQ.
    pub fn srq(&self, pd: &Pd, messages: &MessageMemory, max_wr: u32) -> Result<Srq, VerbsError> {
        Srq::create_on(&self.id, pd, messages, max_wr)
    }

    /// Starts to accept connection requests of peers, of which `backlog` can wait.
    ///
    /// # Errors
    /// The verb's errno.
    pub fn listen(&self, backlog: i32) -> Result<(), VerbsError> {
        let _locked = self.id.lock();
        // SAFETY: a live identifier that is bound.
        let ret = unsafe { ffi::rdma_listen(self.id.raw, backlog) };
        check_ret(ret, "rdma_listen", "listener")
    }
}
