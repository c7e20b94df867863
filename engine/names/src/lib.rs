//! What the first bytes of a flow say of it: TLS and QUIC name the server that is asked for, HTTP the host, SSH the
//! programs at both ends; DNS messages ask for names, and DHCP messages tell those of clients.
//!
//! ```
//! use wqcap_names::{FlowNames, Kind};
//!
//! let payload = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
//! let Some(Kind::Beginning(protocol)) = Kind::of_tcp(payload, [40_000, 80]) else {
//!     panic!("it is a request")
//! };
//! let mut flow = FlowNames::default();
//! flow.read(protocol, 0, payload).unwrap();
//! assert_eq!(flow.names().http_host.as_deref(), Some("example.org"));
//! ```
//!
//! [`Kind`] is for the hot path: by a payload's first bytes, or its ports, it says whether there is anything to be read. Those
//! few payloads are read elsewhere, and later: [`FlowNames`] by flow, [`DnsMessage`] and [`DhcpMessage`] one by one.
//!
//! # Invariants
//!
//! Bytes come from anybody: none panics, and work and memory are bounded by [`MOST`] bytes of a payload and by what
//! [`FlowNames::bytes`] says of a flow. What cannot be read is [`Unreadable`], and what was learnt before it stands.

mod dhcp;
mod dhcpv6;
mod dns;
mod flow;
mod http;
mod ja4;
mod kind;
mod quic;
mod ssh;
mod text;
mod tls;

pub use dhcp::DhcpMessage;
pub use dns::{DnsMessage, Question};
pub use flow::{FlowNames, Names};
pub use kind::{Kind, MOST, Protocol};

/// A payload is not what its first bytes or its ports promised, or breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;
