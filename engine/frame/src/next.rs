//! Type of the header that follows another header.

use crate::numbers::ethertype;

/// Type of the next header in a frame, as announced by the header before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next header is an Ethernet header.
    Ethernet,
    /// The next header is the one that this ethertype names. A value up to 1500 is a length, and
    /// LLC follows.
    Ethertype(u16),
    /// The next header is an MPLS label stack entry.
    Mpls,
    /// The next header is a PPP protocol field.
    Ppp,
    /// The next header is that of the protocol above IPv4 with this number.
    AboveIpv4(u8),
    /// The next header is that of the protocol above IPv6 or an extension header with this number.
    AboveIpv6(u8),
    /// The next header is an ERSPAN header; its type (2 or 3) comes from the GRE header.
    Erspan(u8),
    /// The next header is a VXLAN header; `true` for VXLAN with the generic protocol extension
    /// (VXLAN-GPE).
    Vxlan(bool),
    /// The next header is a Geneve header.
    Geneve,
    /// The next header is a GTP-U header.
    Gtp,
    /// The next header is the control word of an Ethernet pseudowire.
    ControlWord,
    /// The next header is an 802.11 header.
    Wlan,
    /// The next header is a GRE header in UDP.
    Gre,
    /// The next header is an EtherIP header.
    EtherIp,
    /// The next header is a CAPWAP header of the data channel.
    Capwap,
    /// The next header is an L2TP header; `true` for L2TP directly over IP.
    L2tp(bool),
    /// The next header is a TZSP header.
    Tzsp,
    /// The next headers are those of Teredo, before IPv6.
    Teredo,
    /// No header follows: the rest is payload, which is not parsed.
    Payload,
}

impl Next {
    /// Returns IPv4 or IPv6 as the next header by the version in the first four bits, and payload
    /// for other versions.
    #[inline]
    pub(crate) fn ip_by_version(bytes: &[u8]) -> Self {
        match bytes.first().map(|b| b >> 4) {
            Some(4) => Self::Ethertype(ethertype::IPV4),
            Some(6) => Self::Ethertype(ethertype::IPV6),
            _ => Self::Payload,
        }
    }
}
