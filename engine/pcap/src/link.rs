//! Link types other than Ethernet: Ethernet headers for their packets, so that parsers of Ethernet
//! frames can read them.
//!
//! Sources: the list of link types at tcpdump.org, and libpcap's `gencode.c` for the address
//! families of BSD. Only headers in front of packets are replaced. Link types with other contents,
//! such as 802.11 or USB, have no Ethernet frame.
//!
//! Invariant: a frame has the bytes of the packet, and its length on the wire counts the Ethernet
//! header instead of the header that the capture has.

use crate::format::{
    ByteOrder::{Big, Little},
    ETHERNET,
};

/// Link type of BSD loopback: an address family in the byte order of the captured machine.
const NULL: u32 = 0;
/// Link type of PPP packets, with or without address and control bytes.
const PPP: u32 = 9;
/// Link types of IP packets without a header in front. Old files have the number of their platform.
const RAW: [u32; 3] = [12, 14, 101];
/// Link type of packets of PPP or Cisco HDLC, which the first byte distinguishes.
const PPP_HDLC: u32 = 50;
/// Link type of PPPoE session packets.
const PPP_ETHER: u32 = 51;
/// Link type of Cisco HDLC packets.
const CISCO_HDLC: u32 = 104;
/// Link type of OpenBSD loopback: an address family in network byte order.
const LOOP: u32 = 108;
/// Link type of OpenBSD's encapsulated packets: an address family, two numbers of 32 bits, and the
/// packet.
const ENC: u32 = 109;
/// Link type of Linux cooked captures, version 1.
const COOKED: u32 = 113;
/// Link type of PPP packets as pppd captures them: the first byte is the direction.
const PPP_PPPD: u32 = 166;
/// Link type of PPP packets after a byte with the direction.
const PPP_WITH_DIRECTION: u32 = 204;
/// Link type of IPv4 packets without a header in front.
const RAW_IPV4: u32 = 228;
/// Link type of IPv6 packets without a header in front.
const RAW_IPV6: u32 = 229;
/// Link type of Linux cooked captures, version 2.
const COOKED_2: u32 = 276;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const PPPOE_SESSION: u16 = 0x8864;
/// Lowest ethertype in an Ethernet header; lower values are lengths of 802.3 frames.
const LEAST_ETHERTYPE: u16 = 0x0600;
/// Protocol of a Linux cooked packet with an 802.2 header: ETH_P_802_2.
const WITH_LLC: u16 = 4;
/// Device types of Linux cooked packets without an ethertype: netlink, and 802.11 with radiotap.
const WITHOUT_ETHERTYPE: [u16; 2] = [824, 803];
/// Length in bytes of an Ethernet header.
const HEADER: usize = 14;

/// Returns the name of a link type that captures without Ethernet headers commonly have, or its
/// number.
#[must_use]
pub fn link_type_name(link_type: u32) -> String {
    let name = match link_type {
        NULL => "BSD loopback",
        ETHERNET => "Ethernet",
        PPP | PPP_HDLC | PPP_PPPD | PPP_WITH_DIRECTION => "PPP",
        PPP_ETHER => "PPPoE",
        CISCO_HDLC => "Cisco HDLC",
        LOOP => "OpenBSD loopback",
        COOKED => "Linux cooked",
        COOKED_2 => "Linux cooked v2",
        105 | 119 | 127 | 163 => "802.11",
        it if RAW.contains(&it) || [RAW_IPV4, RAW_IPV6].contains(&it) => "raw IP",
        _ => return format!("link type {link_type}"),
    };
    format!("link type {link_type} ({name})")
}

/// Ethernet header that replaces the header of a packet of another link type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeaderReplacement {
    /// Length in bytes of the packet's original header, which is replaced.
    own: usize,
    /// Ethertype of the packet; `None` for an 802.2 header, before which Ethernet has the length.
    ethertype: Option<u16>,
    /// MAC address of the packet's sender; zeros if the capture has none.
    source: [u8; 6],
}

impl HeaderReplacement {
    fn new(own: usize, ethertype: u16) -> Option<Self> {
        (ethertype >= LEAST_ETHERTYPE).then_some(Self {
            own,
            ethertype: Some(ethertype),
            source: [0; 6],
        })
    }

    /// Returns the Ethernet header that replaces the header of a packet of another link type;
    /// `None` if the packet has no Ethernet frame.
    fn find(link_type: u32, packet: &[u8]) -> Option<Self> {
        match link_type {
            NULL => family(Little.u32(packet, 0))
                .or_else(|| family(Big.u32(packet, 0)))
                .and_then(|it| Self::new(4, it)),
            LOOP => Self::new(4, family(Big.u32(packet, 0))?),
            RAW_IPV4 => Self::new(0, IPV4),
            RAW_IPV6 => Self::new(0, IPV6),
            it if RAW.contains(&it) => match packet.first()? >> 4 {
                4 => Self::new(0, IPV4),
                6 => Self::new(0, IPV6),
                _ => None,
            },
            PPP => ppp(packet, 0),
            PPP_HDLC if matches!(packet, [0x0f | 0x8f, ..]) => Self::new(4, Big.u16(packet, 2)),
            PPP_HDLC => ppp(packet, 0),
            PPP_WITH_DIRECTION => ppp(packet, 1),
            PPP_PPPD => ppp(packet, 2),
            PPP_ETHER => Self::new(0, PPPOE_SESSION),
            CISCO_HDLC => Self::new(4, Big.u16(packet, 2)),
            COOKED => cooked(packet, 16, Big.u16(packet, 14), Big.u16(packet, 2), 6),
            COOKED_2 => cooked(packet, 20, Big.u16(packet, 0), Big.u16(packet, 8), 12),
            _ => None,
        }
        .filter(|it| packet.len() >= it.own)
    }
}

/// Returns the ethertype of an address family of BSD, Darwin, Linux or Solaris.
fn family(family: u32) -> Option<u16> {
    match family {
        2 => Some(IPV4),
        10 | 24 | 26 | 28 | 30 => Some(IPV6),
        _ => None,
    }
}

/// Returns the Ethernet header that replaces the header of a PPP packet that begins at byte
/// `start`. The address and control bytes may be missing, and the protocol may be compressed to one
/// byte (RFC 1661, RFC 1662).
fn ppp(packet: &[u8], start: usize) -> Option<HeaderReplacement> {
    let with_control = packet.get(start..)?.starts_with(&[0xff, 3]);
    let at = start + if with_control { 2 } else { 0 };
    let first = *packet.get(at)?;
    let (protocol, own) = match first & 1 {
        0 => (Big.u16(packet, at), at + 2),
        _ => (first.into(), at + 1),
    };
    let ethertype = match protocol {
        0x0021 => IPV4,
        0x0057 => IPV6,
        0x0281 => 0x8847,
        0x0283 => 0x8848,
        _ => return None,
    };
    HeaderReplacement::new(own, ethertype)
}

/// Returns the Ethernet header that replaces the header of a Linux cooked packet, given its length,
/// its protocol, the type of its device, and the offset of the sender's address, two bytes after
/// that of its length.
fn cooked(
    packet: &[u8],
    own: usize,
    protocol: u16,
    device: u16,
    address: usize,
) -> Option<HeaderReplacement> {
    let len = match own {
        16 => Big.u16(packet, 4),
        _ => packet.get(11).copied()?.into(),
    };
    let source = packet.get(address..)?.first_chunk().filter(|_| len == 6);
    let ethertype = match protocol {
        _ if WITHOUT_ETHERTYPE.contains(&device) => return None,
        WITH_LLC => None,
        LEAST_ETHERTYPE.. => Some(protocol),
        _ => return None,
    };
    Some(HeaderReplacement {
        own,
        ethertype,
        source: source.copied().unwrap_or_default(),
    })
}

/// Returns `true` if packets of a link type can be converted to Ethernet frames.
#[must_use]
pub fn has_ethernet_frames(link_type: u32) -> bool {
    RAW.contains(&link_type)
        || matches!(
            link_type,
            NULL | ETHERNET
                | PPP
                | PPP_HDLC
                | PPP_ETHER
                | CISCO_HDLC
                | LOOP
                | COOKED
                | PPP_PPPD
                | PPP_WITH_DIRECTION
                | RAW_IPV4
                | RAW_IPV6
                | COOKED_2
        )
}

/// Returns `true` if the header of a packet is exactly where libpcap's filters expect it, so that a
/// filter for the packet's link type and one for its Ethernet frame find the same headers.
#[must_use]
pub fn is_regular(link_type: u32, packet: &[u8]) -> bool {
    match link_type {
        PPP | PPP_HDLC => packet.starts_with(&[0xff, 3, 0]),
        PPP_PPPD | PPP_WITH_DIRECTION | PPP_ETHER => false,
        _ => true,
    }
}

/// Converter of the address families of loopback packets to those that filters expect.
///
/// libpcap compiles a filter without a file (`pcap_open_dead`) for the address families and the byte
/// order of this host: `gen_linktype` and `gen_loopback_linktype` of its `gencode.c`. Other systems
/// have other numbers for IPv6, and other machines another byte order.
#[derive(Debug, Default)]
pub struct LoopbackFamilies {
    packet: Vec<u8>,
}

impl LoopbackFamilies {
    /// Returns the packet with the address family of this host, if the packet's link type has one.
    pub fn convert<'a>(&'a mut self, link_type: u32, packet: &'a [u8]) -> &'a [u8] {
        /// Address families of Linux: `AF_INET`, `AF_INET6` (bits/socket.h).
        const FAMILIES: [(u16, u32); 2] = [(IPV4, 2), (IPV6, 10)];
        let expected = |number: u32| match link_type {
            NULL => Some(number.to_ne_bytes()),
            LOOP | ENC => Some(number.to_be_bytes()),
            _ => None,
        };
        let Some((head, rest)) = packet.split_first_chunk::<4>() else {
            return packet;
        };
        let found = || {
            expected(0)?;
            let it = family(Little.u32(head, 0)).or_else(|| family(Big.u32(head, 0)))?;
            let (_, number) = FAMILIES.iter().find(|(ethertype, _)| *ethertype == it)?;
            expected(*number)
        };
        match found() {
            Some(wanted) if wanted != *head => {
                self.packet.clear();
                self.packet.extend(wanted);
                self.packet.extend_from_slice(rest);
                &self.packet
            }
            _ => packet,
        }
    }
}

/// Converter of packets of any link type to Ethernet frames.
#[derive(Debug, Default)]
pub struct EthernetFrames {
    frame: Vec<u8>,
}

impl EthernetFrames {
    /// Returns the Ethernet frame of a packet with `len` bytes on the wire, and the frame's length
    /// on the wire. The packet has no frame check sequence. Returns `None` if packets of this link
    /// type, or of this protocol, cannot be converted.
    #[inline]
    pub fn convert<'a>(
        &'a mut self,
        link_type: u32,
        packet: &'a [u8],
        len: u32,
    ) -> Option<(&'a [u8], u32)> {
        match link_type {
            ETHERNET => Some((packet, len)),
            _ => self.replace(link_type, packet, len),
        }
    }

    fn replace(&mut self, link_type: u32, packet: &[u8], len: u32) -> Option<(&[u8], u32)> {
        let it = HeaderReplacement::find(link_type, packet)?;
        let rest = len.saturating_sub(u32::try_from(it.own).ok()?);
        let length = u16::try_from(rest).unwrap_or(u16::MAX);
        let ethertype = it.ethertype.unwrap_or(length.min(LEAST_ETHERTYPE - 1));
        self.frame.clear();
        self.frame.extend([0; 6]);
        self.frame.extend(it.source);
        self.frame.extend(ethertype.to_be_bytes());
        self.frame.extend_from_slice(&packet[it.own..]);
        Some((&self.frame, rest.saturating_add(HEADER as u32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_other_link_types_are_replaced() {
        let packet = [0x45, 1, 2, 3, 4];
        let six = [0x60, 1, 2];
        let cooked = |protocol: u16, device: u16, len: u8| {
            let mut header = vec![0, 4];
            header.extend(device.to_be_bytes());
            header.extend([0, len, 1, 2, 3, 4, 5, 6, 0, 0]);
            header.extend(protocol.to_be_bytes());
            header
        };
        let cooked_2 = |protocol: u16| {
            let mut header = protocol.to_be_bytes().to_vec();
            header.extend([0, 0, 0, 0, 0, 3, 0, 1, 4, 6, 1, 2, 3, 4, 5, 6, 0, 0]);
            header
        };
        let mac = [1, 2, 3, 4, 5, 6];
        let none = [0; 6];
        for (link_type, header, ethertype, source) in [
            (0, vec![2, 0, 0, 0], IPV4, none),
            (0, vec![0, 0, 0, 2], IPV4, none),
            (0, vec![30, 0, 0, 0], IPV6, none),
            (0, vec![0, 0, 0, 24], IPV6, none),
            (108, vec![0, 0, 0, 28], IPV6, none),
            (101, vec![], IPV4, none),
            (12, vec![], IPV4, none),
            (228, vec![], IPV4, none),
            (229, vec![], IPV6, none),
            (9, vec![0xff, 3, 0, 0x21], IPV4, none),
            (9, vec![0, 0x57], IPV6, none),
            (9, vec![0x21], IPV4, none),
            (9, vec![0xff, 3, 2, 0x81], 0x8847, none),
            (50, vec![0xff, 3, 0, 0x21], IPV4, none),
            (50, vec![0x0f, 0, 8, 6], 0x0806, none),
            (104, vec![0x8f, 0, 0x86, 0xdd], IPV6, none),
            (204, vec![1, 0xff, 3, 0, 0x21], IPV4, none),
            (166, vec![1, 3, 0, 0x21], IPV4, none),
            (51, vec![], PPPOE_SESSION, none),
            (113, cooked(IPV4, 1, 6), IPV4, mac),
            (113, cooked(0x8100, 772, 0), 0x8100, none),
            (113, cooked(WITH_LLC, 1, 6), 55, mac),
            (276, cooked_2(IPV6), IPV6, mac),
        ] {
            let whole = [&header[..], &packet].concat();
            let len = u32::try_from(header.len()).expect("short") + 55;
            assert!(has_ethernet_frames(link_type));
            let mut frames = EthernetFrames::default();
            let (frame, frame_len) = frames.convert(link_type, &whole, len).expect("a frame");
            let want = [&none[..], &source, &ethertype.to_be_bytes(), &packet].concat();
            assert_eq!(
                (frame, frame_len),
                (&want[..], 69),
                "{link_type} {header:?}"
            );
        }
        let mut frames = EthernetFrames::default();
        assert!(frames.convert(101, &six, 3).expect("a frame").0[12..].starts_with(&[0x86, 0xdd]));
        assert_eq!(frames.convert(ETHERNET, &six, 3), Some((&six[..], 3)));
        for (link_type, packet) in [
            (105, &packet[..]),
            (101, &[0x15]),
            (101, &[]),
            (0, &[7, 0, 0, 0]),
            (9, &[0xff, 3, 0xc0, 0x21]),
            (113, &cooked(IPV4, 1, 6)[..15]),
            (113, &cooked(IPV4, 824, 0)),
            (113, &cooked(1, 1, 6)),
            (276, &[8, 0]),
        ] {
            assert_eq!(frames.convert(link_type, packet, 100), None, "{link_type}");
        }
    }

    #[test]
    fn address_families_of_other_systems_become_those_of_this_host() {
        let mut families = LoopbackFamilies::default();
        let ours = |number: u32| [&number.to_ne_bytes()[..], &[0x60]].concat();
        for (link_type, head, want) in [
            (0, [0, 0, 0, 2], ours(2)),
            (0, [24, 0, 0, 0], ours(10)),
            (0, [0, 0, 0, 30], ours(10)),
            (108, [0, 0, 0, 28], vec![0, 0, 0, 10, 0x60]),
            (109, [2, 0, 0, 0], vec![0, 0, 0, 2, 0x60]),
            (0, [7, 0, 0, 0], vec![7, 0, 0, 0, 0x60]),
            (101, [0, 0, 0, 2], vec![0, 0, 0, 2, 0x60]),
        ] {
            let packet = [&head[..], &[0x60]].concat();
            assert_eq!(families.convert(link_type, &packet), want, "{link_type}");
        }
        assert_eq!(families.convert(0, &[24, 0]), [24, 0]);
    }

    #[test]
    fn no_packet_causes_a_panic() {
        let mut frames = EthernetFrames::default();
        for link_type in 0..300 {
            for len in 0..40 {
                for byte in [0, 2, 4, 0x0f, 0xff] {
                    let _ = frames.convert(link_type, &vec![byte; len], 0);
                }
            }
        }
    }
}
