//! Frame classification for steering and hashing: the types and offsets of a frame's headers, read
//! from borrowed bytes.
//!
//! **May import** `profile`, and `core`/`std`.
//!
//! **Invariant**: [`FrameClass::from_frame`] does not panic on any input and does not allocate, and
//! [`FrameClass::profile`] is the only place that decides which rule takes a frame.
//!
//! The parser models a NIC, not a host's network stack. It does not read an IPv4 total length or
//! IPv6 payload length, a UDP length, a TCP data offset or any checksum. Therefore Ethernet padding
//! behind a short datagram counts as payload, and a header beyond the datagram's stated length
//! counts as present if the frame contains it. Differences between this parser and physical NICs
//! are not known.

use crate::profile::{HashDepth, Profile};

/// Length in bytes of an Ethernet header: destination, source, EtherType.
const ETHERNET_LEN: usize = 14;
/// Length in bytes of a VLAN tag behind its TPID: the TCI and the next EtherType. The TPID takes
/// the place of the previous EtherType.
const VLAN_LEN: usize = 4;
/// Length in bytes of an IPv4 header without options.
const IPV4_LEN: usize = 20;
/// Length in bytes of an IPv6 header without extension headers.
const IPV6_LEN: usize = 40;
/// Length in bytes of a TCP header without options.
const TCP_LEN: usize = 20;
/// Length in bytes of a UDP header.
const UDP_LEN: usize = 8;
/// TPID of an IEEE 802.1Q customer tag.
const TPID_CVLAN: u16 = 0x8100;
/// TPID of an IEEE 802.1ad service tag.
const TPID_SVLAN: u16 = 0x88a8;
/// EtherType of IPv4.
const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// IP protocol number of TCP.
const PROTOCOL_TCP: u8 = 6;
/// IP protocol number of UDP.
const PROTOCOL_UDP: u8 = 17;
/// Next header value of the IPv6 fragment header.
const NEXT_HEADER_FRAGMENT: u8 = 44;
/// Mask of the more-fragments flag and the fragment offset in bytes 6 and 7 of the IPv4 header;
/// excludes don't-fragment.
const IPV4_FRAGMENT_MASK: u16 = 0x3fff;

/// Network layer protocol of a frame, as a NIC classifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum L3 {
    /// Frame without IP, or with an IP header that is damaged or truncated.
    #[default]
    None,
    /// IPv4 frame with a complete header, options included.
    Ipv4,
    /// IPv6 frame with a complete fixed header.
    Ipv6,
}

/// Transport layer protocol of a frame, as a NIC classifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum L4 {
    /// Frame with neither TCP nor UDP directly behind the IP header, a fragment, or a frame with a
    /// truncated TCP or UDP header.
    #[default]
    None,
    /// TCP segment with at least 20 bytes of header.
    Tcp,
    /// UDP datagram with a complete header of 8 bytes.
    Udp,
}

/// Header classification of a frame, parsed as a NIC does. Offsets are in bytes from the frame's
/// start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FrameClass {
    /// EtherType behind the VLAN tags, or the LLC length if the frame has one there. A TPID if a
    /// tag is truncated or a third tag follows. 0 if the frame is shorter than an Ethernet header.
    pub ethertype: u16,
    /// Tag control information of the frame's first VLAN tag.
    pub vlan: Option<u16>,
    /// Number of VLAN tags that the parser skipped, 0 to 2.
    pub vlan_tags: u8,
    /// Network layer protocol of the frame.
    pub l3: L3,
    /// Offset of the first byte behind the Ethernet header and VLAN tags, whatever follows; 0 if
    /// the frame has no Ethernet header.
    pub l3_offset: u16,
    /// IPv4 protocol, or next header of the fixed IPv6 header; 0, and without meaning, if `l3` is
    /// `None`.
    pub ip_protocol: u8,
    /// `true` if the frame is an IP fragment, including the first one: IPv4 with more-fragments or
    /// a fragment offset, IPv6 with a fragment header directly behind the fixed header.
    pub fragment: bool,
    /// Transport layer protocol of the frame.
    pub l4: L4,
    /// Offset in the frame of the first byte behind the IP header (with IPv4 options, without IPv6
    /// extension headers); 0 if `l3` is `None`.
    pub l4_offset: u16,
    /// `true` if an unfragmented IP header specifies TCP or UDP and the frame ends within that
    /// transport header. Only the catch-all rule takes such a frame, and it has no hash.
    pub truncated_l4: bool,
}

impl FrameClass {
    /// Maximum number of VLAN tags that the frame parser skips.
    pub const MAX_VLAN_TAGS: u8 = 2;

    /// Classifies the headers of `frame`, which starts at the destination MAC. Accepts any bytes.
    #[inline(always)]
    #[must_use]
    pub fn from_frame(frame: &[u8]) -> Self {
        let mut class = Self::default();
        let Some((ethernet, mut rest)) = frame.split_first_chunk::<ETHERNET_LEN>() else {
            return class;
        };
        let mut ethertype = u16::from_be_bytes([ethernet[12], ethernet[13]]);
        let mut offset = ETHERNET_LEN as u16;
        while matches!(ethertype, TPID_CVLAN | TPID_SVLAN) && class.vlan_tags < Self::MAX_VLAN_TAGS
        {
            let Some((tag, behind)) = rest.split_first_chunk::<VLAN_LEN>() else {
                break;
            };
            let tci = u16::from_be_bytes([tag[0], tag[1]]);
            class.vlan = class.vlan.or(Some(tci));
            class.vlan_tags += 1;
            ethertype = u16::from_be_bytes([tag[2], tag[3]]);
            offset += VLAN_LEN as u16;
            rest = behind;
        }
        class.ethertype = ethertype;
        class.l3_offset = offset;
        match ethertype {
            ETHERTYPE_IPV4 => class.read_ipv4(rest),
            ETHERTYPE_IPV6 => class.read_ipv6(rest),
            _ => {}
        }
        class
    }

    /// Reads an IPv4 header (RFC 791) at the start of `packet`; leaves `l3` unchanged if the header
    /// is invalid or incomplete.
    #[inline]
    fn read_ipv4(&mut self, packet: &[u8]) {
        let Some(header) = packet.first_chunk::<IPV4_LEN>() else {
            return;
        };
        let header_len = usize::from(header[0] & 0x0f) * 4;
        if header[0] >> 4 != 4 || header_len < IPV4_LEN || packet.len() < header_len {
            return;
        }
        self.l3 = L3::Ipv4;
        self.ip_protocol = header[9];
        self.fragment = u16::from_be_bytes([header[6], header[7]]) & IPV4_FRAGMENT_MASK != 0;
        self.read_l4(header_len, packet.len());
    }

    /// Reads an IPv6 header (RFC 8200) at the start of `packet`; leaves `l3` unchanged if the
    /// header is invalid or incomplete.
    #[inline]
    fn read_ipv6(&mut self, packet: &[u8]) {
        let Some(header) = packet.first_chunk::<IPV6_LEN>() else {
            return;
        };
        if header[0] >> 4 != 6 {
            return;
        }
        self.l3 = L3::Ipv6;
        self.ip_protocol = header[6];
        self.fragment = header[6] == NEXT_HEADER_FRAGMENT;
        self.read_l4(IPV6_LEN, packet.len());
    }

    /// Sets the transport layer fields of the class from the length of the IP header and the length
    /// of the packet (all bytes from the IP header's start).
    #[inline]
    fn read_l4(&mut self, header_len: usize, packet_len: usize) {
        // An IP header has at most 60 bytes.
        self.l4_offset = self.l3_offset + header_len as u16;
        let (l4, needed) = match self.ip_protocol {
            PROTOCOL_TCP if !self.fragment => (L4::Tcp, TCP_LEN),
            PROTOCOL_UDP if !self.fragment => (L4::Udp, UDP_LEN),
            _ => return,
        };
        self.truncated_l4 = packet_len < header_len + needed;
        if !self.truncated_l4 {
            self.l4 = l4;
        }
    }

    /// Returns the RSS profile whose flow rule takes the frame if the profiles of
    /// [`Profile::to_install`] for `depth` are installed.
    #[inline]
    #[must_use]
    pub const fn profile(&self, depth: HashDepth) -> Profile {
        if self.truncated_l4 {
            return Profile::CatchAll;
        }
        match (self.l3, depth, self.l4) {
            (L3::None, _, _) => Profile::CatchAll,
            (L3::Ipv4, HashDepth::L4, L4::Tcp) => Profile::Ipv4Tcp,
            (L3::Ipv4, HashDepth::L4, L4::Udp) => Profile::Ipv4Udp,
            (L3::Ipv6, HashDepth::L4, L4::Tcp) => Profile::Ipv6Tcp,
            (L3::Ipv6, HashDepth::L4, L4::Udp) => Profile::Ipv6Udp,
            (L3::Ipv4, _, _) => Profile::Ipv4,
            (L3::Ipv6, _, _) => Profile::Ipv6,
        }
    }

    /// Returns the source and destination IP addresses of `frame` as 8 or 32 contiguous bytes.
    /// `frame` must be the frame that this class was made from.
    #[inline]
    #[must_use]
    pub fn addresses<'f>(&self, frame: &'f [u8]) -> Option<&'f [u8]> {
        let packet = frame.get(usize::from(self.l3_offset)..)?;
        match self.l3 {
            L3::None => None,
            L3::Ipv4 => packet.get(12..20),
            L3::Ipv6 => packet.get(8..40),
        }
    }

    /// Returns the source and destination ports of `frame` in network byte order, if it has ports.
    /// `frame` must be the frame that this class was made from.
    #[inline]
    #[must_use]
    pub fn ports<'f>(&self, frame: &'f [u8]) -> Option<&'f [u8; 4]> {
        match self.l4 {
            L4::None => None,
            L4::Tcp | L4::Udp => frame.get(usize::from(self.l4_offset)..)?.first_chunk(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::key::RssKey;
    use crate::profile::HashFields;
    use crate::toeplitz::Toeplitz;
    use crate::toeplitz::tests::{bitwise, ipv4_vectors, ipv6_vectors};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    const DEPTHS: [HashDepth; 2] = [HashDepth::L3, HashDepth::L4];

    /// Builds an Ethernet frame with these VLAN tags (TPID, TCI).
    pub(crate) fn ethernet(tags: &[(u16, u16)], ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        for (tpid, tci) in tags {
            frame.extend(tpid.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// Builds an IPv4 packet; `flags` are the two bytes of flags and fragment offset, `options`
    /// counts 4-byte words.
    pub(crate) fn ipv4(
        src: [u8; 4],
        dst: [u8; 4],
        protocol: u8,
        flags: u16,
        options: u8,
        payload: &[u8],
    ) -> Vec<u8> {
        let total = 20 + u16::from(options) * 4 + payload.len() as u16;
        let mut packet = vec![0x45 + options, 0];
        packet.extend(total.to_be_bytes());
        packet.extend([0, 1]);
        packet.extend(flags.to_be_bytes());
        packet.extend([64, protocol, 0, 0]);
        packet.extend(src);
        packet.extend(dst);
        packet.extend(vec![1; usize::from(options) * 4]);
        packet.extend(payload);
        packet
    }

    /// Builds an IPv6 packet.
    pub(crate) fn ipv6(src: [u8; 16], dst: [u8; 16], next_header: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend((payload.len() as u16).to_be_bytes());
        packet.extend([next_header, 64]);
        packet.extend(src);
        packet.extend(dst);
        packet.extend(payload);
        packet
    }

    /// Builds a TCP or UDP segment: the two ports and `more` bytes behind them.
    pub(crate) fn ports_and(source: u16, destination: u16, more: usize) -> Vec<u8> {
        let mut segment = source.to_be_bytes().to_vec();
        segment.extend(destination.to_be_bytes());
        segment.extend(vec![0x50; more]);
        segment
    }

    fn ipv4_frame(protocol: u8, flags: u16, payload: &[u8]) -> Vec<u8> {
        let packet = ipv4([10, 0, 0, 1], [10, 0, 0, 2], protocol, flags, 0, payload);
        ethernet(&[], 0x0800, &packet)
    }

    fn ipv6_frame(next_header: u8, payload: &[u8]) -> Vec<u8> {
        ethernet(&[], 0x86dd, &ipv6([1; 16], [2; 16], next_header, payload))
    }

    fn profiles(frame: &[u8]) -> [Profile; 2] {
        DEPTHS.map(|depth| FrameClass::from_frame(frame).profile(depth))
    }

    /// Generates packets that may be truncated or have one byte changed, and frames of random
    /// bytes.
    pub(crate) fn any_frame() -> impl Strategy<Value = Vec<u8>> {
        let tags = vec((select(vec![0x8100, 0x88a8, 0x9100]), any::<u16>()), 0..=3);
        let protocol = prop_oneof![select(vec![6, 17, 44, 0, 43, 60, 1]), any::<u8>()];
        let flags = prop_oneof![Just(0), Just(0x4000), any::<u16>()];
        let packet = (
            any::<bool>(),
            any::<[u8; 32]>(),
            protocol,
            flags,
            0..=10u8,
            vec(any::<u8>(), 0..40),
        )
            .prop_map(|(v4, address, protocol, flags, options, payload)| {
                let (src, dst) = address.split_first_chunk().unwrap();
                if v4 {
                    let (src, dst) = (*src.first_chunk().unwrap(), *dst.first_chunk().unwrap());
                    (0x0800, ipv4(src, dst, protocol, flags, options, &payload))
                } else {
                    (
                        0x86dd,
                        ipv6(*src, *dst.first_chunk().unwrap(), protocol, &payload),
                    )
                }
            });
        let frame = (tags, packet, any::<Index>(), any::<Option<(Index, u8)>>()).prop_map(
            |(tags, (ethertype, packet), cut, change)| {
                let mut frame = ethernet(&tags, ethertype, &packet);
                if let Some((place, value)) = change {
                    let place = place.index(frame.len());
                    frame[place] = value;
                }
                // About half of the frames stay complete.
                let len = frame.len();
                frame.truncate(cut.index(len * 2));
                frame
            },
        );
        prop_oneof![4 => frame, 1 => vec(any::<u8>(), 0..120)]
    }

    #[test]
    fn frames_without_an_ethernet_header_get_the_default_class() {
        for len in 0..14 {
            assert_eq!(FrameClass::from_frame(&vec![8; len]), FrameClass::default());
        }
        let class = FrameClass::from_frame(&ethernet(&[], 0x0806, &[]));
        assert_eq!((class.ethertype, class.l3_offset), (0x0806, 14));
        assert_eq!((class.l3, class.vlan, class.vlan_tags), (L3::None, None, 0));
    }

    #[test]
    fn two_tags_of_either_kind_are_skipped() {
        let packet = ipv4([10, 0, 0, 1], [10, 0, 0, 2], 17, 0, 0, &ports_and(1, 2, 4));
        let kinds: [&[(u16, u16)]; 6] = [
            &[(0x8100, 0xa00a)],
            &[(0x88a8, 0xa00a)],
            &[(0x88a8, 0xa00a), (0x8100, 7)],
            &[(0x8100, 0xa00a), (0x8100, 7)],
            &[(0x88a8, 0xa00a), (0x88a8, 7)],
            &[(0x8100, 0xa00a), (0x88a8, 7)],
        ];
        for tags in kinds {
            let frame = ethernet(tags, 0x0800, &packet);
            let class = FrameClass::from_frame(&frame);
            assert_eq!(class.vlan, Some(0xa00a));
            assert_eq!(usize::from(class.vlan_tags), tags.len());
            assert_eq!(class.ethertype, 0x0800);
            assert_eq!(usize::from(class.l3_offset), 14 + 4 * tags.len());
            assert_eq!(class.profile(HashDepth::L4), Profile::Ipv4Udp);
            assert_eq!(class.ports(&frame), Some(&[0, 1, 0, 2]));
        }
    }

    #[test]
    fn a_third_or_truncated_tag_is_not_skipped() {
        let packet = ipv4([10, 0, 0, 1], [10, 0, 0, 2], 17, 0, 0, &ports_and(1, 2, 4));
        let class = FrameClass::from_frame(&ethernet(&[(0x8100, 1); 3], 0x0800, &packet));
        assert_eq!(
            (class.vlan_tags, class.ethertype, class.l3),
            (2, 0x8100, L3::None)
        );
        let class = FrameClass::from_frame(&ethernet(&[(0x9100, 1)], 0x0800, &packet));
        assert_eq!(
            (class.vlan_tags, class.ethertype, class.l3),
            (0, 0x9100, L3::None)
        );
        for len in 14..18 {
            let class = FrameClass::from_frame(&ethernet(&[(0x8100, 9)], 0x0800, &packet)[..len]);
            assert_eq!(
                (class.vlan, class.vlan_tags, class.ethertype),
                (None, 0, 0x8100)
            );
            assert_eq!(class.l3_offset, 14);
        }
    }

    #[test]
    fn ipv4_options_move_the_ports() {
        for options in 0..=10 {
            let packet = ipv4(
                [1, 2, 3, 4],
                [5, 6, 7, 8],
                6,
                0,
                options,
                &ports_and(80, 81, 16),
            );
            let frame = ethernet(&[], 0x0800, &packet);
            let class = FrameClass::from_frame(&frame);
            assert_eq!(
                (class.l3, class.l4, class.ip_protocol),
                (L3::Ipv4, L4::Tcp, 6)
            );
            assert_eq!(class.l4_offset, 34 + 4 * u16::from(options));
            assert_eq!(class.addresses(&frame), Some(&[1, 2, 3, 4, 5, 6, 7, 8][..]));
            assert_eq!(class.ports(&frame), Some(&[0, 80, 0, 81]));
        }
    }

    #[test]
    fn damaged_ip_headers_go_to_the_catch_all() {
        let whole = ipv4_frame(6, 0, &ports_and(1, 2, 60));
        for first in [0x00, 0x35, 0x65, 0x44, 0x40] {
            let mut frame = whole.clone();
            frame[14] = first;
            let class = FrameClass::from_frame(&frame);
            assert_eq!(
                (class.l3, class.ip_protocol, class.l4_offset),
                (L3::None, 0, 0)
            );
            assert_eq!(profiles(&frame), [Profile::CatchAll; 2], "{first:#x}");
        }
        let options = ipv4([1; 4], [2; 4], 1, 0, 10, &[]);
        let options = ethernet(&[], 0x0800, &options);
        assert_eq!(profiles(&options), [Profile::Ipv4; 2]);
        assert_eq!(profiles(&options[..73]), [Profile::CatchAll; 2]);

        let mut frame = ipv6_frame(59, &[]);
        assert_eq!(profiles(&frame), [Profile::Ipv6; 2]);
        assert_eq!(profiles(&frame[..53]), [Profile::CatchAll; 2]);
        frame[14] = 0x45;
        assert_eq!(profiles(&frame), [Profile::CatchAll; 2]);
    }

    #[test]
    fn fragments_have_no_ports() {
        // First fragment; last fragments; middle fragment; first fragment with the reserved flag.
        for flags in [0x2000, 0x0001, 0x1fff, 0x2001, 0xa000] {
            for protocol in [6, 17] {
                let frame = ipv4_frame(protocol, flags, &ports_and(1, 2, 40));
                let class = FrameClass::from_frame(&frame);
                assert!(class.fragment && class.l4 == L4::None && class.ip_protocol == protocol);
                assert_eq!(profiles(&frame), [Profile::Ipv4; 2]);
            }
        }
        for flags in [0x0000, 0x4000, 0x8000, 0xc000] {
            let frame = ipv4_frame(6, flags, &ports_and(1, 2, 40));
            assert!(!FrameClass::from_frame(&frame).fragment);
            assert_eq!(profiles(&frame), [Profile::Ipv4, Profile::Ipv4Tcp]);
        }
        let frame = ipv6_frame(44, &[17, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 2, 0, 8, 0, 0]);
        assert!(FrameClass::from_frame(&frame).fragment);
        assert_eq!(profiles(&frame), [Profile::Ipv6; 2]);
    }

    #[test]
    fn ports_behind_extension_headers_are_not_read() {
        for extension in [0, 43, 60, 51, 135] {
            let mut payload = vec![6, 0, 1, 4, 0, 0, 0, 0];
            payload.extend(ports_and(1, 2, 16));
            let frame = ipv6_frame(extension, &payload);
            let class = FrameClass::from_frame(&frame);
            assert_eq!(
                (class.l4, class.l4_offset, class.fragment),
                (L4::None, 54, false)
            );
            assert_eq!(profiles(&frame), [Profile::Ipv6; 2]);
        }
    }

    #[test]
    fn a_truncated_transport_header_goes_to_the_catch_all() {
        let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
        for (protocol, needed) in [(6, 20), (17, 8)] {
            for len in 0..needed {
                let payload = vec![9; len];
                for frame in [
                    ipv4_frame(protocol, 0, &payload),
                    ipv6_frame(protocol, &payload),
                ] {
                    let class = FrameClass::from_frame(&frame);
                    assert!(class.truncated_l4 && class.l4 == L4::None && class.l3 != L3::None);
                    assert_eq!(profiles(&frame), [Profile::CatchAll; 2]);
                    for fields in [HashFields::IPV4, HashFields::IPV6] {
                        assert_eq!(class.hash(&frame, fields, &toeplitz), None);
                    }
                }
                // A fragment does not have to contain a transport header.
                let frame = ipv4_frame(protocol, 0x2000, &payload);
                assert!(!FrameClass::from_frame(&frame).truncated_l4);
                assert_eq!(profiles(&frame), [Profile::Ipv4; 2]);
            }
            let payload = vec![9; needed];
            assert!(!FrameClass::from_frame(&ipv4_frame(protocol, 0, &payload)).truncated_l4);
            assert!(!FrameClass::from_frame(&ipv6_frame(protocol, &payload)).truncated_l4);
        }
    }

    #[test]
    fn length_fields_are_ignored() {
        for total in [0u16, 19, 20, 27, 28, 1500, 0xffff] {
            let mut frame = ipv4_frame(17, 0, &ports_and(1, 2, 22));
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            assert_eq!(
                profiles(&frame),
                [Profile::Ipv4, Profile::Ipv4Udp],
                "{total}"
            );
        }
        for payload_len in [0u16, 7, 0xffff] {
            let mut frame = ipv6_frame(17, &ports_and(1, 2, 4));
            frame[18..20].copy_from_slice(&payload_len.to_be_bytes());
            assert_eq!(
                profiles(&frame),
                [Profile::Ipv6, Profile::Ipv6Udp],
                "{payload_len}"
            );
        }
    }

    #[test]
    fn published_vectors_hold_for_whole_frames() {
        let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
        let check = |ethertype, packet: &[u8], expected: [(Profile, u32); 2]| {
            for tags in [&[][..], &[(0x8100, 5)], &[(0x88a8, 1), (0x8100, 5)]] {
                let frame = ethernet(tags, ethertype, packet);
                let class = FrameClass::from_frame(&frame);
                let got = DEPTHS.map(|depth| {
                    let profile = class.profile(depth);
                    let hash = class.hash(&frame, profile.hash_fields(), &toeplitz);
                    (profile, hash.unwrap())
                });
                assert_eq!(got, expected);
            }
        };
        for (protocol, v4, v6) in [
            (6, Profile::Ipv4Tcp, Profile::Ipv6Tcp),
            (17, Profile::Ipv4Udp, Profile::Ipv6Udp),
        ] {
            for (src, sport, dst, dport, l3, l4) in ipv4_vectors() {
                let payload = ports_and(sport, dport, 16);
                let packet = ipv4(src.octets(), dst.octets(), protocol, 0, 2, &payload);
                check(0x0800, &packet, [(Profile::Ipv4, l3), (v4, l4)]);
            }
            for (src, sport, dst, dport, l3, l4) in ipv6_vectors() {
                let payload = ports_and(sport, dport, 16);
                let packet = ipv6(src.octets(), dst.octets(), protocol, &payload);
                check(0x86dd, &packet, [(Profile::Ipv6, l3), (v6, l4)]);
            }
        }
    }

    #[test]
    fn fields_that_do_not_fit_leave_the_hash_unspecified() {
        let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
        let frame = ipv4_frame(6, 0, &ports_and(1, 2, 16));
        let class = FrameClass::from_frame(&frame);
        for fields in [
            HashFields::NONE,
            HashFields::IPV6,
            HashFields::IPV4 | HashFields::IPV6,
            HashFields::IPV4 | HashFields::UDP_PORTS,
            HashFields::IPV4 | HashFields::TCP_PORTS | HashFields::UDP_PORTS,
            HashFields::IPV4 | HashFields::IPSEC_SPI,
            HashFields::IPV4 | HashFields::INNER,
            HashFields::from_bits_retain(u64::MAX),
        ] {
            assert_eq!(class.hash(&frame, fields, &toeplitz), None, "{fields:?}");
        }
        let frame = ipv4_frame(1, 0, &[0; 30]);
        let class = FrameClass::from_frame(&frame);
        assert!(class.hash(&frame, HashFields::IPV4, &toeplitz).is_some());
        let fields = Profile::Ipv4Tcp.hash_fields();
        assert_eq!(class.hash(&frame, fields, &toeplitz), None);
    }

    #[test]
    fn unselected_fields_leave_no_gap() {
        let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
        let pieces: [(u64, &[u8]); 4] = [
            (1 << 2, &[1; 16]),
            (1 << 3, &[2; 16]),
            (1 << 6, &[0x12, 0x34]),
            (1 << 7, &[0x56, 0x78]),
        ];
        let frame = ipv6_frame(17, &ports_and(0x1234, 0x5678, 4));
        let class = FrameClass::from_frame(&frame);
        for chosen in 1..16usize {
            let mut bits = 0;
            let mut input = Vec::new();
            for (place, (bit, bytes)) in pieces.iter().enumerate() {
                if chosen >> place & 1 == 1 {
                    bits |= bit;
                    input.extend(*bytes);
                }
            }
            assert_eq!(
                class.hash(&frame, HashFields::from_bits_retain(bits), &toeplitz),
                Some(bitwise(RssKey::MICROSOFT.as_bytes(), &input)),
                "{bits:#x}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_frame_panics(frame in any_frame(), fields in any::<u16>(), other in any_frame()) {
            let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
            let class = FrameClass::from_frame(&frame);
            let fields = HashFields::from_bits_retain(fields.into());
            let _ = class.hash(&frame, fields, &toeplitz);
            // Passing another frame than the classified one is an error of the caller, but must not
            // panic.
            let _ = class.hash(&other, fields, &toeplitz);
            let _ = (class.addresses(&other), class.ports(&other));
        }

        #[test]
        fn offsets_and_fields_are_within_the_frame(frame in any_frame()) {
            let class = FrameClass::from_frame(&frame);
            prop_assert!(usize::from(class.l3_offset) <= frame.len());
            prop_assert!(usize::from(class.l4_offset) <= frame.len());
            prop_assert_eq!(class.addresses(&frame).is_some(), class.l3 != L3::None);
            prop_assert_eq!(class.ports(&frame).is_some(), class.l4 != L4::None);
            prop_assert!(!(class.truncated_l4 && (class.fragment || class.l4 != L4::None)));
            prop_assert_eq!(class.vlan.is_some(), class.vlan_tags > 0);
        }

        #[test]
        fn a_profile_can_hash_the_frames_it_takes(frame in any_frame()) {
            let toeplitz = Toeplitz::new(&RssKey::MICROSOFT);
            let class = FrameClass::from_frame(&frame);
            for depth in DEPTHS {
                let profile = class.profile(depth);
                let hash = class.hash(&frame, profile.hash_fields(), &toeplitz);
                prop_assert_eq!(hash.is_some(), profile != Profile::CatchAll);
            }
        }

        #[test]
        fn truncation_removes_one_layer_after_the_other(
            tags in vec((select(vec![0x8100, 0x88a8]), any::<u16>()), 0..=2),
            options in 0..=10u8,
            tcp in any::<bool>(),
            v4 in any::<bool>(),
        ) {
            let payload = ports_and(1, 2, 20);
            let protocol = if tcp { 6 } else { 17 };
            let l3_at = 14 + 4 * tags.len();
            let (frame, l4_at) = if v4 {
                let packet = ipv4([1; 4], [2; 4], protocol, 0, options, &payload);
                (ethernet(&tags, 0x0800, &packet), l3_at + 20 + 4 * usize::from(options))
            } else {
                (ethernet(&tags, 0x86dd, &ipv6([1; 16], [2; 16], protocol, &payload)), l3_at + 40)
            };
            let needed = l4_at + if tcp { 20 } else { 8 };
            for len in 0..=frame.len() {
                let class = FrameClass::from_frame(&frame[..len]);
                prop_assert_eq!(class.l3 != L3::None, len >= l4_at);
                prop_assert_eq!(class.truncated_l4, (l4_at..needed).contains(&len));
                prop_assert_eq!(class.l4 != L4::None, len >= needed);
                let hashed = class.profile(HashDepth::L3) != Profile::CatchAll;
                prop_assert_eq!(hashed, len >= needed);
            }
        }

        #[test]
        fn both_directions_have_the_same_hash(
            a in any::<([u8; 16], u16)>(),
            b in any::<([u8; 16], u16)>(),
            protocol in select(vec![6u8, 17, 1, 58, 44]),
            v4 in any::<bool>(),
        ) {
            let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
            let frame = |src: ([u8; 16], u16), dst: ([u8; 16], u16)| {
                let payload = ports_and(src.1, dst.1, 16);
                if v4 {
                    let (src, dst) = (*src.0.first_chunk().unwrap(), *dst.0.first_chunk().unwrap());
                    ethernet(&[], 0x0800, &ipv4(src, dst, protocol, 0, 0, &payload))
                } else {
                    ethernet(&[], 0x86dd, &ipv6(src.0, dst.0, protocol, &payload))
                }
            };
            let (there, back) = (frame(a, b), frame(b, a));
            for depth in DEPTHS {
                let [there, back] = [&there, &back].map(|frame| {
                    let class = FrameClass::from_frame(frame);
                    let profile = class.profile(depth);
                    (profile, class.hash(frame, profile.hash_fields(), &toeplitz))
                });
                prop_assert_eq!(there, back);
                prop_assert!(there.1.is_some());
            }
        }
    }
}
