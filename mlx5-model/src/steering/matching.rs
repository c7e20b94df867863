//! What a rule matches.
//!
//! Imports `frame` and `tunnel`. Invariant: a match without compares costs one AND and one comparison.

use wqcap_rss::{L3, L4};

use crate::frame::{ParsedFrame, kind};

use super::tunnel::{GreHeader, InnerFrame, PROTOCOL_GRE, Tunnel};

/// Unicast and multicast (RFC 5332).
pub const ETHERTYPES_MPLS: [u16; 2] = [0x8847, 0x8848];
/// MPLS in UDP (RFC 7510).
const PORT_MPLS: u16 = 6635;
/// RFC 4303.
const PROTOCOL_ESP: u8 = 50;

/// What the device's flow tables can match.
#[derive(Debug, Clone, Copy)]
pub struct MatchCaps {
    /// Tunnel headers, and those inside.
    pub tunnels: bool,
    pub mpls: bool,
    pub esp: bool,
    /// Whether `ip_protocol` of the match criteria is known of fragments.
    pub fragment_protocol: bool,
}

impl MatchCaps {
    /// What a rule compares that names an IP protocol.
    pub fn ip_protocol(self) -> Field {
        if self.fragment_protocol {
            Field::IpProtocol
        } else {
            Field::WholeIpProtocol
        }
    }
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// Eight bytes at an offset in the Ethernet header.
    L2(u8),
    /// The same in the IP header.
    L3(u8),
    /// The same in the transport header.
    L4(u8),
    /// The EtherType behind the tags.
    EtherType,
    /// The first tag's control information.
    Vlan,
    /// Whether a C-VLAN tag follows the addresses.
    CvlanTag,
    /// Whether an S-VLAN tag does.
    SvlanTag,
    /// 4, 6, or 0 if it is not IP.
    IpVersion,
    /// IPv4's protocol, IPv6's next header.
    IpProtocol,
    /// The same, unless the packet is a fragment of IPv4: one of IPv6 has the fragment header's number.
    WholeIpProtocol,
    /// IPv4's type of service, IPv6's traffic class.
    Tos,
    /// IPv4's time to live, IPv6's hop limit.
    Ttl,
    /// Whether the packet is a fragment.
    Fragment,
    /// Source address: its first half, or its second, which has an IPv4 address at its end.
    Source(u8),
    /// Destination address, likewise.
    Destination(u8),
    /// The first MPLS label stack entry, if there is one.
    Mpls(MplsOver),
    /// The security parameters index of ESP, if there is one.
    Spi,
    /// VXLAN's network identifier.
    Vni,
    /// GRE's protocol type.
    GreProtocol,
    /// GRE's key.
    GreKey,
}

/// The header that carries a label stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MplsOver {
    /// Ethernet and its tags.
    Ethernet,
    /// GRE (RFC 4023).
    Gre,
    /// UDP (RFC 7510).
    Udp,
}

/// A number in a frame that must equal a value under a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Compare {
    field: Field,
    value: u64,
    mask: u64,
}

/// What a rule matches in one layer of headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LayerMatch {
    /// Bits of [`crate::frame::kind`] that the frame must have.
    pub kinds: u32,
    compares: Vec<Compare>,
}

impl LayerMatch {
    /// Adds a comparison, unless its mask is zero.
    pub fn push(&mut self, field: Field, (value, mask): (u64, u64)) {
        if mask != 0 {
            let value = value & mask;
            self.compares.push(Compare { field, value, mask });
        }
    }

    /// Adds a comparison of `len` bytes, which are the highest of eight.
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
            // A rule for such a header matches no frame without one.
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

/// A label stack entry or an SPI.
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
            let gre = GreHeader::of(payload()?)?;
            ETHERTYPES_MPLS
                .contains(&gre.protocol)
                .then_some(gre.inside)?
        }
        Field::Spi if class.ip_protocol == PROTOCOL_ESP => payload()?,
        _ => return None,
    };
    behind.first_chunk().copied().map(u32::from_be_bytes)
}

/// A number that the IP versions have in different places; 0 if there is none.
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

/// A number of a tunnel's header; `None` if the tunnel has none.
fn tunnel_number(field: Field, tunnel: Tunnel) -> Option<u64> {
    match (field, tunnel) {
        (Field::Vni, Tunnel::Vxlan { vni }) => Some(u64::from(vni)),
        (Field::GreProtocol, Tunnel::Gre { protocol, .. }) => Some(u64::from(protocol)),
        (Field::GreKey, Tunnel::Gre { key, .. }) => key.map(u64::from),
        _ => None,
    }
}

/// Eight bytes as a number, zero beyond the end of the frame.
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

/// What a rule matches (PRM "Flow table entry", match value and criteria).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    /// In the outer headers.
    pub outer: LayerMatch,
    /// In the tunnel header.
    pub tunnel: LayerMatch,
    /// In the headers inside the tunnel.
    pub inner: LayerMatch,
}

impl Match {
    /// Frames of these kinds.
    pub fn kinds(kinds: u32) -> Self {
        Self {
            outer: LayerMatch {
                kinds,
                ..LayerMatch::default()
            },
            ..Self::default()
        }
    }

    /// Sorts the comparisons, so that equal rules are equal.
    pub fn normalize(&mut self) {
        self.outer.normalize();
        self.inner.normalize();
        self.tunnel.normalize();
    }

    /// The kinds, if nothing else is matched.
    pub fn only_kinds(&self) -> Option<u32> {
        let only = self.outer.compares.is_empty() && !self.looks_inside();
        only.then_some(self.outer.kinds)
    }

    /// Whether anything inside a tunnel is matched.
    pub fn looks_inside(&self) -> bool {
        !self.tunnel.is_empty() || !self.inner.is_empty()
    }

    /// Whether the two compare the same bits, as in one flow group.
    pub fn same_criteria(&self, other: &Self) -> bool {
        self.outer.kinds == other.outer.kinds
            && self.inner.kinds == other.inner.kinds
            && self.outer.masks().eq(other.outer.masks())
            && self.inner.masks().eq(other.inner.masks())
            && self.tunnel.masks().eq(other.tunnel.masks())
    }

    /// Whether a frame matches.
    #[inline]
    pub fn matches(&self, frame: &ParsedFrame<'_>) -> bool {
        self.outer.matches(frame) && (!self.looks_inside() || self.matches_inside(frame))
    }

    #[cold]
    fn matches_inside(&self, frame: &ParsedFrame<'_>) -> bool {
        let Some(inner) = InnerFrame::of(frame) else {
            return false;
        };
        let tunnel = self.tunnel.compares.iter().all(|compare| {
            tunnel_number(compare.field, inner.tunnel)
                .is_some_and(|number| number & compare.mask == compare.value)
        });
        tunnel && (self.inner.is_empty() || self.inner.matches(&inner.parsed()))
    }
}
