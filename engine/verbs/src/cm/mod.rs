//! RDMA connection manager: an event channel, listeners, and reliable connections.

mod channel;
mod connecting;
mod connection;
mod listener;

pub use channel::{CmChannel, CmEvent};
pub use connecting::Connecting;
pub use connection::{Connection, Incoming, QpResources};
pub use listener::Listener;
