//! Parser of names in the first bytes of flows: the server name of TLS and QUIC, the host of HTTP,
//! the software of both SSH ends, the names in DNS questions, and the client names in DHCP
//! messages.
//!
//! ```
//! use wqcap_names::{FlowNames, PayloadKind};
//!
//! let payload = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
//! let kind = PayloadKind::classify_tcp(payload, [40_000, 80]);
//! let Some(PayloadKind::Beginning(protocol)) = kind else {
//!     panic!("the payload is a request")
//! };
//! let mut flow = FlowNames::default();
//! flow.read(protocol, 0, payload).unwrap();
//! assert_eq!(flow.names().http_host.as_deref(), Some("example.org"));
//! ```
//!
//! [`PayloadKind`] is for the hot path. It classifies a payload by its first bytes or its ports.
//! The few payloads that may contain a name are parsed later in another thread: [`FlowNames`]
//! parses the payloads of one flow, [`DnsMessage`] and [`DhcpMessage`] parse single messages.
//!
//! # Invariants
//!
//! - The input is untrusted: no input causes a panic.
//! - Work is bounded by [`MAX_PAYLOAD`] bytes of a payload. Memory per flow is bounded, and
//!   [`FlowNames::bytes`] returns it.
//! - A payload that cannot be parsed returns [`PayloadError`]. Names parsed before it remain valid.

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
pub use kind::{PayloadKind, Protocol};

/// Maximum number of payload bytes that are parsed for names. A TLS hello with post-quantum keys
/// has about 2000 bytes.
pub const MAX_PAYLOAD: usize = 4096;

/// Error of a payload that is not of the kind that its first bytes or ports indicate, or that is
/// truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadError;
