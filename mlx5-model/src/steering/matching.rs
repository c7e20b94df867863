//! Match of a rule: the fields that it compares, and the comparison with a frame.
//!
//! Imports `frame` and `tunnel`. Invariant: a match without compares costs one AND and one
//! comparison.

use wqcap_rss::{L3, L4};

use crate::frame::{ParsedFrame, kind};

use super::tunnel::{GreHeader, InnerFrame, PROTOCOL_GRE, Tunnel};

/// EtherTypes of MPLS unicast and multicast (RFC 5332).
pub const ETHERTYPES_MPLS: [u16; 2] = [0x8847, 0x8848];
/// UDP port of MPLS in UDP (RFC 7510).
const PORT_MPLS: u16 = 6635;
/// IP protocol number of ESP (RFC 4303).
const PROTOCOL_ESP: u8 = 50;

/// Matching capabilities of the device's flow tables.
#[derive(Debug, Clone, Copy)]
pub struct MatchCaps {
    /// Set when the device's flow rules can match tunnel headers and inner headers.
    pub tunnels: bool,
    pub mpls: bool,
    pub esp: bool,
    /// `true` if `ip_protocol` of the match criteria also matches fragments.
    pub fragment_protocol: bool,
}

impl MatchCaps {
    /// Returns the frame field that a flow rule with an IP protocol compares, with or without
    /// fragments.
    pub fn ip_protocol(self) -> Field {
        if self.fragment_protocol {
            Field::IpProtocol
        } else {
            Field::WholeIpProtocol
        }
    }
}

/// Field of a frame that a flow rule compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// Eight bytes at this offset in a frame's Ethernet header.
    L2(u8),
    /// Eight bytes at this offset in a frame's IP header.
    L3(u8),
    /// Eight bytes at this offset in a frame's transport header.
    L4(u8),
    /// EtherType of a frame behind its VLAN tags.
    EtherType,
    /// Control information of a frame's first VLAN tag.
    Vlan,
    /// 1 if a C-VLAN tag follows the frame's MAC addresses.
    CvlanTag,
    /// 1 if an S-VLAN tag follows the frame's MAC addresses.
    SvlanTag,
    /// IP version of a frame: 4, 6, or 0 if the frame is not IP.
    IpVersion,
    /// Protocol field of the IPv4 header or next header field of the IPv6 header.
    IpProtocol,
    /// IP protocol of a whole packet; 0 for a fragment of IPv4. A fragment of IPv6 has the number
    /// of the fragment header.
    WholeIpProtocol,
    /// Type of service field of the IPv4 header or traffic class field of the IPv6 header.
    Tos,
    /// Time to live field of the IPv4 header or hop limit field of the IPv6 header.
    Ttl,
    /// 1 if the frame's IP packet is a fragment.
    Fragment,
    /// Half 0 or 1 of the source IP address; half 1 has an IPv4 address at its end.
    Source(u8),
    /// Half 0 or 1 of the destination IP address; half 1 has an IPv4 address at its end.
    Destination(u8),
    /// First entry of a frame's MPLS label stack; without a stack the flow rule does not match.
    Mpls(MplsOver),
    /// Security parameters index of ESP; without ESP the flow rule does not match.
    Spi,
    /// Network identifier (VNI) of the VXLAN header.
    Vni,
    /// Protocol type field of the GRE header.
    GreProtocol,
    /// Key field of the GRE header.
    GreKey,
}

/// Header in front of an MPLS label stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MplsOver {
    /// Ethernet header with its VLAN tags in front of the MPLS label stack.
    Ethernet,
    /// GRE header in front of the MPLS label stack (RFC 4023).
    Gre,
    /// UDP header in front of the MPLS label stack (RFC 7510).
    Udp,
}

/// Comparison of a field of a frame with a value under a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Compare {
    field: Field,
    value: u64,
    mask: u64,
}

/// Match of a flow rule in one layer of headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerMatch {
    /// Bits of [`crate::frame::kind`] that the frame must have.
    pub kinds: u32,
    compares: Vec<Compare>,
}

impl LayerMatch {
    /// Adds a comparison of a frame's field to the layer's match, unless the mask is zero.
    pub fn push(&mut self, field: Field, (value, mask): (u64, u64)) {
        if mask != 0 {
            let value = value & mask;
            self.compares.push(Compare { field, value, mask });
        }
    }

    /// Adds a comparison of the `len` highest bytes of an eight-byte field of a frame to the
    /// layer's match.
    pub fn compare(&mut self, field: Field, (value, mask): (u64, u64), len: u32) {
        let shift = 64 - 8 * len;
        self.push(field, (value << shift, mask << shift));
    }

    fn normalize(&mut self) {
        self.compares.sort_unstable();
        self.compares.dedup();
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.kinds == 0 && self.compares.is_empty()
    }

    #[inline]
    fn matches(&self, frame: &ParsedFrame<'_>) -> bool {
        frame.kinds & self.kinds == self.kinds
            && (self.compares.is_empty() || self.compares_hold(frame))
    }

    fn compares_hold(&self, frame: &ParsedFrame<'_>) -> bool {
        self.compares.iter().all(|compare| compare.holds(frame))
    }

    fn masks(&self) -> impl Iterator<Item = (Field, u64)> {
        self.compares
            .iter()
            .map(|compare| (compare.field, compare.mask))
    }
}

impl Compare {
    #[inline]
    fn holds(&self, frame: &ParsedFrame<'_>) -> bool {
        let (bytes, class) = (frame.bytes, frame.class);
        let number = match self.field {
            Field::L2(offset) => eight(bytes, usize::from(offset)),
            Field::L3(offset) => eight(bytes, usize::from(class.l3_offset) + usize::from(offset)),
            Field::L4(offset) => eight(bytes, usize::from(class.l4_offset) + usize::from(offset)),
            Field::EtherType => u64::from(class.ethertype),
            Field::Vlan => u64::from(class.vlan.unwrap_or(0)),
            Field::CvlanTag => u64::from(frame.kinds & kind::CVLAN != 0),
            Field::SvlanTag => u64::from(class.vlan_tags > 0 && frame.kinds & kind::CVLAN == 0),
            Field::IpProtocol => u64::from(class.ip_protocol),
            Field::WholeIpProtocol if class.fragment && class.l3 == L3::Ipv4 => 0,
            Field::WholeIpProtocol => u64::from(class.ip_protocol),
            Field::Fragment => u64::from(class.fragment),
            // A rule that compares such a header does not match a frame without it.
            Field::Mpls(_) | Field::Spi => match mpls_or_spi(self.field, frame) {
                Some(word) => u64::from(word),
                None => return false,
            },
            field => {
                let header = bytes.get(usize::from(class.l3_offset)..).unwrap_or(&[]);
                ip_number(field, header, class.l3)
            }
        };
        number & self.mask == self.value
    }
}

/// Returns the first entry of the frame's MPLS label stack or the SPI of its ESP header; `None` if
/// it has none.
#[cold]
fn mpls_or_spi(field: Field, frame: &ParsedFrame<'_>) -> Option<u32> {
    let (bytes, class) = (frame.bytes, frame.class);
    let payload = || {
        let of_ip = class.l3 != L3::None && !class.fragment;
        of_ip.then(|| bytes.get(usize::from(class.l4_offset)..))?
    };
    let behind = match field {
        Field::Mpls(MplsOver::Ethernet) if ETHERTYPES_MPLS.contains(&class.ethertype) => {
            bytes.get(usize::from(class.l3_offset)..)?
        }
        Field::Mpls(MplsOver::Udp) if class.l4 == L4::Udp => {
            let datagram = payload()?;
            let port = u16::from_be_bytes([*datagram.get(2)?, *datagram.get(3)?]);
            (port == PORT_MPLS).then(|| datagram.get(8..))??
        }
        Field::Mpls(MplsOver::Gre) if class.ip_protocol == PROTOCOL_GRE => {
            let gre = GreHeader::parse(payload()?)?;
            ETHERTYPES_MPLS
                .contains(&gre.protocol)
                .then_some(gre.inside)?
        }
        Field::Spi if class.ip_protocol == PROTOCOL_ESP => payload()?,
        _ => return None,
    };
    behind.first_chunk().copied().map(u32::from_be_bytes)
}

/// Returns a field of the IP header that IPv4 and IPv6 have at different offsets; 0 if the version
/// has no such field.
fn ip_number(field: Field, header: &[u8], version: L3) -> u64 {
    let byte = |at: usize| u64::from(header.get(at).copied().unwrap_or(0));
    match (field, version) {
        (Field::IpVersion, L3::Ipv4) => 4,
        (Field::IpVersion, L3::Ipv6) => 6,
        (Field::Tos, L3::Ipv4) => byte(1),
        (Field::Tos, L3::Ipv6) => eight(header, 0) >> 52 & 0xff,
        (Field::Ttl, L3::Ipv4) => byte(8),
        (Field::Ttl, L3::Ipv6) => byte(7),
        (Field::Source(1), L3::Ipv4) => eight(header, 12) >> 32,
        (Field::Destination(1), L3::Ipv4) => eight(header, 16) >> 32,
        (Field::Source(half), L3::Ipv6) => eight(header, 8 + 8 * usize::from(half)),
        (Field::Destination(half), L3::Ipv6) => eight(header, 24 + 8 * usize::from(half)),
        _ => 0,
    }
}

/// Returns the value of `field` in a VXLAN or GRE header (VNI, or protocol and key of GRE); `None` if
/// a header of this kind has no such field.
fn tunnel_number(field: Field, tunnel: Tunnel) -> Option<u64> {
    match (field, tunnel) {
        (Field::Vni, Tunnel::Vxlan { vni }) => Some(u64::from(vni)),
        (Field::GreProtocol, Tunnel::Gre { protocol, .. }) => Some(u64::from(protocol)),
        (Field::GreKey, Tunnel::Gre { key, .. }) => key.map(u64::from),
        _ => None,
    }
}

/// Reads the eight bytes of a frame at offset `at` as a number; bytes beyond the end of the frame
/// are zero.
#[inline]
fn eight(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or(&[]);
    match rest.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut chunk = [0; 8];
            chunk[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(chunk)
        }
    }
}

/// Match of a flow rule (PRM "Flow table entry", match value and criteria).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    /// Part of a flow rule's match in the outer headers.
    pub outer: LayerMatch,
    /// Part of a flow rule's match in the tunnel header.
    pub tunnel: LayerMatch,
    /// Part of a flow rule's match in the headers inside the tunnel.
    pub inner: LayerMatch,
}

impl Match {
    /// Returns a flow rule's match of all frames that have these kinds.
    pub fn kinds(kinds: u32) -> Self {
        Self {
            outer: LayerMatch {
                kinds,
                ..LayerMatch::default()
            },
            ..Self::default()
        }
    }

    /// Sorts the comparisons of the flow rule's match, so that equal rules compare as equal.
    pub fn normalize(&mut self) {
        self.outer.normalize();
        self.inner.normalize();
        self.tunnel.normalize();
    }

    /// Returns the frame kinds that the flow rule matches; `None` if it also compares fields.
    pub fn only_kinds(&self) -> Option<u32> {
        let only = self.outer.compares.is_empty() && !self.has_tunnel_match();
        only.then_some(self.outer.kinds)
    }

    /// Returns `true` if the flow rule matches a tunnel header or inner headers.
    pub fn has_tunnel_match(&self) -> bool {
        !self.tunnel.is_empty() || !self.inner.is_empty()
    }

    /// Returns `true` if the matches of two flow rules compare the same bits, as in one flow group.
    pub fn same_criteria(&self, other: &Self) -> bool {
        self.outer.kinds == other.outer.kinds
            && self.inner.kinds == other.inner.kinds
            && self.outer.masks().eq(other.outer.masks())
            && self.inner.masks().eq(other.inner.masks())
            && self.tunnel.masks().eq(other.tunnel.masks())
    }

    /// Returns `true` if the frame matches the flow rule.
    #[inline]
    pub fn matches(&self, frame: &ParsedFrame<'_>) -> bool {
        self.outer.matches(frame) && (!self.has_tunnel_match() || self.matches_inside(frame))
    }

    #[cold]
    fn matches_inside(&self, frame: &ParsedFrame<'_>) -> bool {
        let Some(inner) = InnerFrame::parse(frame) else {
            return false;
        };
        let tunnel = self.tunnel.compares.iter().all(|compare| {
            tunnel_number(compare.field, inner.tunnel)
                .is_some_and(|number| number & compare.mask == compare.value)
        });
        tunnel && (self.inner.is_empty() || self.inner.matches(&inner.parsed()))
    }
}
