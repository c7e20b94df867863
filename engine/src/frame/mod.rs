//! Frames as borrowed bytes: what headers there are, where they lie, and to which flow a frame belongs.
//!
//! Imports nothing of the engine: parsers see `&[u8]`, never a buffer, a ring or a device.
//!
//! There are two ways through a frame. [`Headers`] is the short one, for the hot path: the 5-tuple, tags, fragment
//! flags and offsets in one pass, as a plain value. [`Layers`] is the whole one: every header in turn, tunnels
//! included, as a view with accessors. Both rest on the same views, one file per protocol or family, each in the same
//! order: layout with its source, checks, accessors, tests. What only a reader of single packets wants (ARP operations,
//! ICMP messages, TCP options) is left to crate `etherparse`.
//!
//! Invariants: no input panics and nothing allocates. The work is bounded: a frame is followed through at most
//! [`MOST_LAYERS`] headers. A frame that breaks off or contradicts itself is no error: it is classified as
//! [`Malformed`], and what came before the fault stands.

mod arp;
mod ethernet;
mod flow;
mod geneve;
mod gre;
mod gtp;
mod headers;
mod icmp;
mod ipsec;
mod ipv4;
mod ipv6;
mod layers;
mod malformed;
mod mpls;
mod pppoe;
mod sctp;
mod tcp;
mod udp;
mod vlan;
mod vxlan;

pub use arp::Arp;
pub use ethernet::{Ethernet, Llc, ethertype};
pub use flow::{FiveTuple, FlowKey};
pub use geneve::Geneve;
pub use gre::{Erspan, Gre};
pub use gtp::Gtp;
pub use headers::{Fragment, Headers, Tags};
pub use icmp::{Icmp, Icmpv6};
pub use ipsec::{Ah, Esp};
pub use ipv4::Ipv4;
pub use ipv6::{Extension, Ipv6, Ipv6Fragment};
pub use layers::{Layer, Layers, Located};
pub use malformed::{Malformed, MalformedCounts};
pub use mpls::Mpls;
pub use pppoe::{Ppp, Pppoe};
pub use sctp::Sctp;
pub use tcp::Tcp;
pub use udp::Udp;
pub use vlan::Vlan;
pub use vxlan::Vxlan;

/// Headers of one frame that are looked at: more than any sane stack has, few enough to bound the work.
pub const MOST_LAYERS: u8 = 32;

/// Protocol numbers above IP (IANA "Assigned Internet Protocol Numbers").
pub mod protocol {
    /// IPv6 hop-by-hop options, RFC 8200.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP, RFC 792.
    pub const ICMP: u8 = 1;
    /// IPv4 in IP, RFC 2003.
    pub const IPV4: u8 = 4;
    /// TCP, RFC 9293.
    pub const TCP: u8 = 6;
    /// UDP, RFC 768.
    pub const UDP: u8 = 17;
    /// IPv6 in IP, RFC 2473.
    pub const IPV6: u8 = 41;
    /// IPv6 routing header, RFC 8200.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header, RFC 8200.
    pub const FRAGMENT: u8 = 44;
    /// GRE, RFC 2784.
    pub const GRE: u8 = 47;
    /// ESP, RFC 4303.
    pub const ESP: u8 = 50;
    /// AH, RFC 4302.
    pub const AH: u8 = 51;
    /// ICMPv6, RFC 4443.
    pub const ICMPV6: u8 = 58;
    /// Nothing follows, RFC 8200.
    pub const NO_NEXT: u8 = 59;
    /// IPv6 destination options, RFC 8200.
    pub const DESTINATION: u8 = 60;
    /// SCTP, RFC 9260.
    pub const SCTP: u8 = 132;
    /// IPv6 mobility header, RFC 6275.
    pub const MOBILITY: u8 = 135;
    /// MPLS in IP, RFC 4023.
    pub const MPLS: u8 = 137;
    /// Host identity protocol, RFC 7401.
    pub const HIP: u8 = 139;
    /// Shim6, RFC 5533.
    pub const SHIM6: u8 = 140;
    /// Ethernet in IP, RFC 8986.
    pub const ETHERNET: u8 = 143;
}

/// What a header says comes behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// An Ethernet header.
    Ethernet,
    /// What the ethertype names; up to 1500 it is a length, and LLC follows.
    Ethertype(u16),
    /// An MPLS label.
    Mpls,
    /// A PPP protocol field.
    Ppp,
    /// A protocol above IPv4.
    AboveIpv4(u8),
    /// A protocol above IPv6, or an extension header.
    AboveIpv6(u8),
    /// An ERSPAN header, whose form the GRE header tells.
    Erspan(u8),
    /// VXLAN; with the generic protocol extension, if so.
    Vxlan(bool),
    /// Geneve.
    Geneve,
    /// GTP-U.
    Gtp,
    /// Nothing that is looked into.
    Payload,
}

impl Next {
    /// IP of the version in the first four bits; anything else is not looked into.
    #[inline]
    pub(crate) fn ip_by_version(bytes: &[u8]) -> Self {
        match bytes.first().map(|b| b >> 4) {
            Some(4) => Self::Ethertype(ethertype::IPV4),
            Some(6) => Self::Ethertype(ethertype::IPV6),
            _ => Self::Payload,
        }
    }
}

/// Two bytes in network order.
#[inline]
fn be16(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}
