//! Parser of the tunnels whose inner headers a NIC can parse: VXLAN, and GRE with Ethernet or IP
//! inside.
//!
//! Sources: RFC 7348 (VXLAN), RFC 2784 and RFC 2890 (GRE), RFC 7637 (GRE's protocol type for
//! Ethernet).

use super::nic_view::{NicFrame, NicView};
use crate::frame::{Ethernet, Gre, Udp, ethertype, protocol};
use wqcap_rss::{L3, L4};

/// UDP port of VXLAN, in network byte order.
const VXLAN_PORT: [u8; 2] = 4789u16.to_be_bytes();
/// Flag of a VXLAN header that its network identifier is valid.
const VNI_VALID: u8 = 0x08;
/// Maximum bytes of a tunnel's inner packet that are parsed for headers.
const MOST: usize = 256;

/// Kind of tunnel around a packet: VXLAN or GRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelKind {
    /// VXLAN tunnel with its network identifier.
    Vxlan { vni: u32 },
    /// GRE tunnel of version 0.
    Gre,
}

/// Beginning of the packet in a frame's tunnel, with an empty Ethernet header in front if the
/// tunnel carries none.
pub(super) struct TunnelContent {
    /// Kind of the tunnel around the packet: VXLAN or GRE.
    tunnel: TunnelKind,
    /// First bytes of the tunnel's inner packet.
    bytes: [u8; MOST],
    /// Number of valid bytes in the buffer of the inner packet.
    there: usize,
    /// Number of the inner packet's bytes that the file lacks.
    missing: u32,
}

/// Packet in a tunnel as the NIC would see it.
pub(super) struct TunnelledFrame<'a> {
    /// Kind of the tunnel around the packet: VXLAN or GRE.
    pub(super) tunnel: TunnelKind,
    /// NIC's view of the tunnel's inner packet.
    pub(super) seen: NicFrame<'a>,
}

impl TunnelContent {
    /// Returns the packet in a frame's tunnel, or `None` if the frame is not tunnelled.
    pub(super) fn find(seen: &NicFrame<'_>) -> Option<Self> {
        let class = &seen.class;
        let behind = seen.bytes.get(usize::from(class.l4_offset)..)?;
        let (tunnel, ethertype, packet) = if class.l4 == L4::Udp {
            vxlan(behind)?
        } else if class.l3 != L3::None && !class.fragment && class.ip_protocol == protocol::GRE {
            gre(behind)?
        } else {
            return None;
        };
        let mut it = Self {
            tunnel,
            bytes: [0; MOST],
            there: 0,
            missing: seen.missing(),
        };
        if let Some(ethertype) = ethertype {
            it.bytes[12..Ethernet::LEN].copy_from_slice(&ethertype.to_be_bytes());
            it.there = Ethernet::LEN;
        }
        let room = &mut it.bytes[it.there..];
        let len = room.len().min(packet.len());
        room[..len].copy_from_slice(&packet[..len]);
        it.there += len;
        Some(it)
    }

    /// Returns the tunnel's inner packet as the NIC would see it.
    pub(super) fn inner_frame<'a>(&'a self, view: &'a mut NicView) -> TunnelledFrame<'a> {
        let there = &self.bytes[..self.there];
        let len = u32::try_from(there.len()).unwrap_or(u32::MAX);
        TunnelledFrame {
            tunnel: self.tunnel,
            seen: view.frame(there, len.saturating_add(self.missing)),
        }
    }
}

/// Result of the search for a tunnel: its kind, the EtherType of the inner packet if that has no
/// Ethernet header, and the inner packet.
type Found<'a> = Option<(TunnelKind, Option<u16>, &'a [u8])>;

/// Parses `datagram`, which begins with a UDP header, as a VXLAN tunnel; returns `None` if it is
/// none.
fn vxlan(datagram: &[u8]) -> Found<'_> {
    let (header, inner) = datagram.get(Udp::LEN..)?.split_first_chunk::<8>()?;
    let [flags, _, _, _, a, b, c, _] = *header;
    let is_vxlan = datagram.get(2..4) == Some(&VXLAN_PORT) && flags & VNI_VALID != 0;
    let vni = u32::from_be_bytes([0, a, b, c]);
    is_vxlan.then_some((TunnelKind::Vxlan { vni }, None, inner))
}

/// Parses `packet`, which begins with a GRE header, as a GRE tunnel; returns `None` if its content
/// cannot be parsed.
fn gre(packet: &[u8]) -> Found<'_> {
    let gre = Gre::new(packet).ok().filter(|it| it.version() == 0)?;
    let inner = packet.get(gre.header_len()..)?;
    Some(match gre.ethertype() {
        ethertype::ETHERNET => (TunnelKind::Gre, None, inner),
        ip @ (ethertype::IPV4 | ethertype::IPV6) => (TunnelKind::Gre, Some(ip), inner),
        _ => (TunnelKind::Gre, None, &[]),
    })
}
