//! Parser of tunnelled frames: VXLAN, GRE with Ethernet or IP inside, and IP in IP.
//!
//! Imports `frame`. Invariant: only rules and QPs for inner headers run this parser.

use wqcap_rss::{FrameClass, L3, L4};

use crate::frame::ParsedFrame;

/// UDP port of VXLAN (RFC 7348).
const VXLAN_PORT: u16 = 4789;
pub const PROTOCOL_GRE: u8 = 47;
/// IP protocol numbers of IPv4 (RFC 2003) and IPv6 (RFC 2473, RFC 4213) packets directly inside IP.
const PROTOCOL_IPV4: u8 = 4;
const PROTOCOL_IPV6: u8 = 41;
/// Protocol types of the GRE header (RFC 2784, RFC 7637).
const ETHERTYPE_BRIDGING: u16 = 0x6558;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Number of bytes inside a tunnel that are copied: more than Ethernet with two tags, the longest
/// IP header and a TCP header together.
const HEADERS: usize = 160;

/// Kind of a tunnel (VXLAN, GRE or IP), with the fields of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tunnel {
    Vxlan { vni: u32 },
    Gre { protocol: u16, key: Option<u32> },
    Ip,
}

/// Parsed GRE header (RFC 2784, RFC 2890) and the bytes behind it.
pub struct GreHeader<'f> {
    /// EtherType of the GRE payload.
    pub protocol: u16,
    pub key: Option<u32>,
    /// Bytes behind the GRE header.
    pub inside: &'f [u8],
}

impl<'f> GreHeader<'f> {
    /// Parses the GRE header at the start of `packet`; `None` if it is not valid.
    pub fn parse(packet: &'f [u8]) -> Option<Self> {
        let flags = u16::from_be_bytes([*packet.first()?, *packet.get(1)?]);
        let protocol = u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]);
        if flags & 0x7 != 0 {
            return None;
        }
        let mut at = 4;
        let mut word = |present: bool| {
            let bytes = present.then(|| packet.get(at..at + 4));
            at += 4 * usize::from(present);
            bytes
                .flatten()
                .and_then(|bytes| bytes.first_chunk::<4>())
                .copied()
        };
        let _checksum = word(flags & 0x8000 != 0);
        let key = word(flags & 0x2000 != 0).map(u32::from_be_bytes);
        let _sequence = word(flags & 0x1000 != 0);
        Some(Self {
            protocol,
            key,
            inside: packet.get(at..)?,
        })
    }
}

/// Inner headers of a tunnelled frame; a packet without an Ethernet header gets one.
pub struct InnerFrame {
    pub tunnel: Tunnel,
    bytes: [u8; HEADERS],
    len: usize,
    class: FrameClass,
}

impl InnerFrame {
    /// Parses the inner headers of a tunnelled frame; `None` if the frame is not VXLAN, GRE or IP
    /// in IP.
    pub fn parse(frame: &ParsedFrame<'_>) -> Option<Self> {
        let behind = frame.bytes.get(usize::from(frame.class.l4_offset)..)?;
        if frame.class.l4 == L4::Udp {
            return Self::parse_vxlan(behind);
        }
        if frame.class.l3 == L3::None || frame.class.fragment {
            return None;
        }
        match frame.class.ip_protocol {
            PROTOCOL_GRE => Self::parse_gre(behind),
            PROTOCOL_IPV4 => Some(Self::from_ip(Tunnel::Ip, ETHERTYPE_IPV4, behind)),
            PROTOCOL_IPV6 => Some(Self::from_ip(Tunnel::Ip, ETHERTYPE_IPV6, behind)),
            _ => None,
        }
    }

    /// Parses the inner headers of a VXLAN frame; `datagram` begins with the UDP header.
    fn parse_vxlan(datagram: &[u8]) -> Option<Self> {
        let port = u16::from_be_bytes([*datagram.get(2)?, *datagram.get(3)?]);
        let (header, inside) = datagram.get(8..)?.split_first_chunk::<8>()?;
        if port != VXLAN_PORT || header[0] & 0x08 == 0 {
            return None;
        }
        let vni = u32::from_be_bytes([0, header[4], header[5], header[6]]);
        Some(Self::copy(Tunnel::Vxlan { vni }, &[], inside))
    }

    /// Parses the inner headers of a GRE frame; `packet` begins with the GRE header.
    fn parse_gre(packet: &[u8]) -> Option<Self> {
        let gre = GreHeader::parse(packet)?;
        let (protocol, key) = (gre.protocol, gre.key);
        let tunnel = Tunnel::Gre { protocol, key };
        match protocol {
            ETHERTYPE_BRIDGING => Some(Self::copy(tunnel, &[], gre.inside)),
            ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Some(Self::from_ip(tunnel, protocol, gre.inside)),
            _ => Some(Self::copy(tunnel, &[], &[])),
        }
    }

    fn from_ip(tunnel: Tunnel, ethertype: u16, packet: &[u8]) -> Self {
        let mut ethernet = [0; 14];
        ethernet[12..].copy_from_slice(&ethertype.to_be_bytes());
        Self::copy(tunnel, &ethernet, packet)
    }

    fn copy(tunnel: Tunnel, before: &[u8], inside: &[u8]) -> Self {
        let mut bytes = [0; HEADERS];
        let mut len = 0;
        for (to, from) in bytes.iter_mut().zip(before.iter().chain(inside)) {
            *to = *from;
            len += 1;
        }
        let class = FrameClass::from_frame(&bytes[..len]);
        Self {
            tunnel,
            bytes,
            len,
            class,
        }
    }

    /// Returns the inner headers of a tunnelled frame as a parsed frame.
    pub fn parsed(&self) -> ParsedFrame<'_> {
        ParsedFrame::new(&self.bytes[..self.len], &self.class, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::kind;

    fn inner_of(frame: &[u8]) -> Option<InnerFrame> {
        InnerFrame::parse(&ParsedFrame::new(frame, &FrameClass::from_frame(frame), 0))
    }

    fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([
            0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        frame.extend([0x30, 0]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 0, 0, 0]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn vxlan_and_gre_are_parsed() {
        let inner = udp(53, b"query");
        let vxlan = udp(
            VXLAN_PORT,
            &[&[8, 0, 0, 0, 0, 0, 42, 0][..], &inner].concat(),
        );
        let found = inner_of(&vxlan).unwrap();
        assert_eq!(found.tunnel, Tunnel::Vxlan { vni: 42 });
        assert_eq!(found.parsed().kinds, kind::IPV4 | kind::UDP | kind::UNICAST);

        let mut gre = udp(0, &[]);
        gre.truncate(34);
        gre[23] = PROTOCOL_GRE;
        gre.extend([0x20, 0, 0x08, 0x00, 0, 0, 0, 7]);
        gre.extend(&inner[14..]);
        let found = inner_of(&gre).unwrap();
        let (protocol, key) = (0x0800, Some(7));
        assert_eq!(found.tunnel, Tunnel::Gre { protocol, key });
        assert_eq!(found.parsed().kinds, kind::IPV4 | kind::UDP | kind::UNICAST);
    }

    #[test]
    fn ip_in_ip_is_parsed() {
        let inner = udp(53, b"query");
        let mut outer = udp(0, &[]);
        outer.truncate(34);
        outer[23] = PROTOCOL_IPV4;
        outer.extend(&inner[14..]);
        let found = inner_of(&outer).unwrap();
        let parsed = found.parsed();
        assert_eq!(parsed.kinds, kind::IPV4 | kind::UDP | kind::UNICAST);
        assert_eq!(parsed.bytes[14..], inner[14..]);
        assert_eq!(found.tunnel, Tunnel::Ip);
        // Fragments are not parsed further.
        outer[20] = 0x20;
        assert!(inner_of(&outer).is_none());
    }

    #[test]
    fn other_frames_have_no_inner_headers_and_nothing_panics() {
        assert!(inner_of(&udp(53, b"x")).is_none());
        let vxlan = udp(VXLAN_PORT, &[8; 200]);
        for len in 0..vxlan.len() {
            let _ = inner_of(&vxlan[..len]).map(|inner| inner.parsed().kinds);
        }
        let mut gre = udp(0, &[0xff; 40]);
        gre[23] = PROTOCOL_GRE;
        for len in 0..gre.len() {
            let _ = inner_of(&gre[..len]).map(|inner| inner.parsed().kinds);
        }
    }
}
