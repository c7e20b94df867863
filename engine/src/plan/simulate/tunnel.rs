//! What is in the tunnels whose inner headers a NIC can parse: VXLAN, and GRE over Ethernet or IP.
//!
//! Sources: RFC 7348 (VXLAN), RFC 2784 and RFC 2890 (GRE), RFC 7637 (its protocol type for Ethernet).

use super::nic_view::{NicView, SeenFrame};
use crate::frame::{Ethernet, Gre, Udp, ethertype, protocol};
use wqcap_rss::{L3, L4};

const VXLAN_PORT: [u8; 2] = 4789u16.to_be_bytes();
/// VXLAN's flag that the network identifier is valid.
const VNI_VALID: u8 = 0x08;
/// Inner headers are parsed up to here.
const MOST: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tunnel {
    Vxlan { vni: u32 },
    Gre,
}

/// What there is of the packet in a tunnel, behind an Ethernet header that is made up where the tunnel has none.
pub(super) struct TunnelContent {
    tunnel: Tunnel,
    bytes: [u8; MOST],
    there: usize,
    /// Bytes that the file has cut off.
    missing: u32,
}

/// The packet in a tunnel as the NIC would see it.
pub(super) struct InnerFrame<'a> {
    pub(super) tunnel: Tunnel,
    pub(super) seen: SeenFrame<'a>,
}

impl TunnelContent {
    /// Of a frame; `None`: it is not tunnelled.
    pub(super) fn find(seen: &SeenFrame<'_>) -> Option<Self> {
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

    /// The packet as the NIC would see it.
    pub(super) fn inner_frame<'a>(&'a self, view: &'a mut NicView) -> InnerFrame<'a> {
        let there = &self.bytes[..self.there];
        let len = u32::try_from(there.len()).unwrap_or(u32::MAX);
        InnerFrame {
            tunnel: self.tunnel,
            seen: view.frame(there, len.saturating_add(self.missing)),
        }
    }
}

/// A tunnel, the ethertype of what is in it if that has no Ethernet header, and what is in it.
type Found<'a> = Option<(Tunnel, Option<u16>, &'a [u8])>;

/// `datagram` begins with a UDP header.
fn vxlan(datagram: &[u8]) -> Found<'_> {
    let (header, inner) = datagram.get(Udp::LEN..)?.split_first_chunk::<8>()?;
    let [flags, _, _, _, a, b, c, _] = *header;
    let is_vxlan = datagram.get(2..4) == Some(&VXLAN_PORT) && flags & VNI_VALID != 0;
    let vni = u32::from_be_bytes([0, a, b, c]);
    is_vxlan.then_some((Tunnel::Vxlan { vni }, None, inner))
}

/// `packet` begins with a GRE header.
fn gre(packet: &[u8]) -> Found<'_> {
    let gre = Gre::new(packet).ok().filter(|it| it.version() == 0)?;
    let inner = packet.get(gre.header_len()..)?;
    Some(match gre.ethertype() {
        ethertype::ETHERNET => (Tunnel::Gre, None, inner),
        ip @ (ethertype::IPV4 | ethertype::IPV6) => (Tunnel::Gre, Some(ip), inner),
        _ => (Tunnel::Gre, None, &[]),
    })
}
