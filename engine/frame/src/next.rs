//! Type of the header that follows another header.

use crate::numbers::ethertype;

/// Type of the next header, as announced by the header before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// An Ethernet header.
    Ethernet,
    /// Header that the ethertype names. A value up to 1500 is a length, and LLC follows.
    Ethertype(u16),
    /// An MPLS label stack entry.
    Mpls,
    /// A PPP protocol field.
    Ppp,
    /// Protocol above IPv4, by its number.
    AboveIpv4(u8),
    /// Protocol above IPv6 or extension header, by its number.
    AboveIpv6(u8),
    /// An ERSPAN header; its type (2 or 3) comes from the GRE header.
    Erspan(u8),
    /// A VXLAN header; `true` for VXLAN with the generic protocol extension (VXLAN-GPE).
    Vxlan(bool),
    /// A Geneve header.
    Geneve,
    /// A GTP-U header.
    Gtp,
    /// Payload, which is not parsed.
    Payload,
}

impl Next {
    /// Returns IPv4 or IPv6 by the version in the first four bits, and payload for other versions.
    #[inline]
    pub(crate) fn ip_by_version(bytes: &[u8]) -> Self {
        match bytes.first().map(|b| b >> 4) {
            Some(4) => Self::Ethertype(ethertype::IPV4),
            Some(6) => Self::Ethertype(ethertype::IPV6),
            _ => Self::Payload,
        }
    }
}
