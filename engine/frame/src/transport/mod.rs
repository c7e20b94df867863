//! Views of transport headers: TCP, UDP and SCTP.

mod sctp;
mod tcp;
mod udp;

pub use sctp::Sctp;
pub use tcp::Tcp;
pub use udp::Udp;
