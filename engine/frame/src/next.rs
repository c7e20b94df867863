//! What follows a header.

use crate::numbers::ethertype;

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
