//! Frames that the selftest sends: one of each type that a capture distinguishes, between addresses
//! that no host has.

use etherparse::{
    IpFragOffset, IpHeaders, Ipv4Extensions, Ipv4Header, PacketBuilder, VlanId, ip_number,
};

/// Source MAC address of the test frames, locally administered.
pub const FROM: [u8; 6] = *b"\x02wqcas";
/// Destination MAC address, locally administered, of test frames that the receiving interface
/// accepts only in promiscuous mode.
pub const FOREIGN: [u8; 6] = *b"\x02wqcar";
/// UDP destination port of RoCEv2 (IANA "roce").
pub const ROCE: u16 = 4791;
/// Source and destination IPv4 addresses of the test frames, 192.0.2.1 and 192.0.2.2 (RFC 5737).
pub const V4: ([u8; 4], [u8; 4]) = ([192, 0, 2, 1], [192, 0, 2, 2]);
/// Payload of those test frames that have no other one.
const PAYLOAD: [u8; 40] = [0x77; 40];

/// Test frame of the selftest with its name in findings.
#[derive(Clone, Debug)]
pub struct TestFrame {
    /// Name of the test frame in findings.
    pub name: &'static str,
    /// Bytes of the test frame, without FCS.
    pub bytes: Vec<u8>,
}

/// Returns the IPv6 address of the test host `host`, in 2001:db8::/32 (RFC 3849).
fn v6(host: u8) -> [u8; 16] {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    address[15] = host;
    address
}

/// Returns a test frame with a UDP datagram of flow number `flow` with `payload` bytes of payload.
pub fn udp(flow: u16, payload: usize) -> Vec<u8> {
    datagram(MAC, (1024 + flow, 9), &vec![0x77; payload])
}

/// Returns a test frame with a UDP datagram of flow number `flow` with `payload` bytes of payload,
/// at least 4, which begin with `number`.
pub fn numbered(flow: u16, payload: usize, number: u32) -> Vec<u8> {
    let mut bytes = vec![0x77; payload.max(4)];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    datagram(MAC, (1024 + flow, 9), &bytes)
}

/// Returns the number in the payload of a test frame of [`numbered`].
pub fn number_of(frame: &[u8]) -> Option<u32> {
    let bytes = frame.get(42..46)?.try_into().ok()?;
    Some(u32::from_be_bytes(bytes))
}

/// Returns a test frame with a UDP datagram between the UDP ports `ports`, to the MAC address `to`.
pub fn datagram(to: [u8; 6], ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2(FROM, to).ipv4(V4.0, V4.1, 64);
    // Writing to a vector does not fail, and the payload fits a datagram.
    let _ = builder.udp(ports.0, ports.1).write(&mut bytes, payload);
    bytes
}

/// Returns a RoCEv2 packet to the MAC address `to`: a UD SEND to a QP that no host has (InfiniBand
/// specification, annex A17: the base transport header, the datagram header, payload and ICRC).
pub fn roce(to: [u8; 6]) -> Vec<u8> {
    let headers = [
        [0x64, 0, 0xff, 0xff, 0, 0xff, 0xff, 0xfe, 0, 0, 0, 1],
        [0; 12],
    ];
    datagram(
        to,
        (49152, ROCE),
        &[&headers.concat()[..], &PAYLOAD].concat(),
    )
}

/// Returns a test frame of `len` bytes with the VLAN tags `tags`, the outer one first.
pub fn of_len(len: usize, tags: &[u16]) -> Vec<u8> {
    let mut bytes = [MAC, FROM].concat();
    for tpid in tags {
        bytes.extend(tpid.to_be_bytes());
        bytes.extend([0, 100]);
    }
    // Ethertype "Local Experimental Ethertype 1" (IEEE 802).
    bytes.extend(0x88b5_u16.to_be_bytes());
    bytes.resize(len, 0x77);
    bytes
}

/// Returns a test frame with a VXLAN packet of the virtual network [`VNI`] around the frame
/// `inner`.
pub fn vxlan(inner: &[u8]) -> Vec<u8> {
    let vni = VNI.to_be_bytes();
    let header = [8, 0, 0, 0, vni[1], vni[2], vni[3], 0];
    datagram(MAC, (49152, 4789), &[&header[..], inner].concat())
}

/// MAC address to which the selftest sends its frames, locally administered (IEEE 802, 8.4): 02 and
/// "wqcap".
pub const MAC: [u8; 6] = *b"\x02wqcap";
/// Virtual network identifier (VNI) of the VXLAN test frames.
pub const VNI: u32 = 0x77_7163;

/// Returns a test frame with a TCP segment over IPv6 of flow number `flow`, with or without
/// extension headers: hop by hop options, then destination options (RFC 8200, 4.3 and 4.6), of
/// eight bytes each.
pub fn ipv6_tcp(flow: u16, extended: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ethernet2(FROM, MAC).ipv6(v6(1), v6(2), 64);
    let _ = builder
        .tcp(2048 + flow, 443, 1, 4096)
        .write(&mut bytes, &PAYLOAD);
    if extended {
        let options = [[60, 0, 1, 4, 0, 0, 0, 0], [6, 0, 1, 4, 0, 0, 0, 0]].concat();
        bytes.splice(54..54, options);
        bytes[20] = 0;
        let len = u16::from_be_bytes([bytes[18], bytes[19]]) + 16;
        bytes[18..20].copy_from_slice(&len.to_be_bytes());
    }
    bytes
}

/// Returns an Ethernet frame with the ethertype `ethertype` and the bytes `rest` behind it, padded
/// to 60 bytes.
fn other(ethertype: u16, rest: &[u8]) -> Vec<u8> {
    let mut bytes = [MAC, FROM].concat();
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(rest);
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

/// Returns an Ethernet frame with an IPv4 packet; the arguments are the flag of more fragments, the
/// fragment offset, the options, the protocol and the payload.
fn ipv4(more: bool, offset: u16, options: &[u8], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let mut header = Ipv4Header::new(len, 64, protocol.into(), V4.0, V4.1).unwrap_or_default();
    header.more_fragments = more;
    header.fragment_offset = IpFragOffset::try_new(offset).unwrap_or_default();
    header.dont_fragment = false;
    header.options = options.try_into().unwrap_or_default();
    // The payload length depends on the options.
    let _ = header.set_payload_len(payload.len());
    header.header_checksum = header.calc_header_checksum();
    let mut bytes = Vec::new();
    let _ = IpHeaders::Ipv4(header, Ipv4Extensions::default()).write(&mut bytes);
    bytes.extend(payload);
    other(0x0800, &bytes)
}

/// Returns one test frame of each type. The longest is as long as `mtu` allows.
pub fn frames(mtu: usize) -> Vec<TestFrame> {
    let eth = || PacketBuilder::ethernet2(FROM, MAC);
    let id = |n| VlanId::try_new(n).unwrap_or_default();
    let mut all = Vec::new();
    let mut add = |name, bytes| all.push(TestFrame { name, bytes });
    macro_rules! built {
        ($($name:literal: $builder:expr),* $(,)?) => {
            $({
                let mut bytes = Vec::new();
                let _ = $builder.write(&mut bytes, &PAYLOAD);
                add($name, bytes);
            })*
        };
    }
    built! {
        "ipv4 tcp": eth().ipv4(V4.0, V4.1, 64).tcp(1024, 443, 1, 4096),
        "ipv4 udp": eth().ipv4(V4.0, V4.1, 64).udp(1025, 53),
        "ipv6 tcp": eth().ipv6(v6(1), v6(2), 64).tcp(1026, 443, 1, 4096),
        "ipv6 udp": eth().ipv6(v6(1), v6(3), 64).udp(1027, 53),
        "ipv4 icmp": eth().ipv4(V4.0, V4.1, 64).icmpv4_echo_request(1, 1),
        "ipv6 icmp": eth().ipv6(v6(1), v6(2), 64).icmpv6_echo_request(1, 1),
        "vlan, ipv4 tcp": eth().single_vlan(id(100)).ipv4(V4.0, V4.1, 64).tcp(1028, 443, 1, 4096),
        "vlan, ipv6 udp": eth().single_vlan(id(4094)).ipv6(v6(1), v6(2), 64).udp(1029, 53),
        "two vlans, ipv4 udp": eth().double_vlan(id(5), id(6)).ipv4(V4.0, V4.1, 64).udp(1030, 53),
    }
    let datagram = &udp(7, 40)[34..];
    add(
        "ipv4 first fragment",
        ipv4(true, 0, &[], ip_number::UDP.0, datagram),
    );
    add(
        "ipv4 later fragment",
        ipv4(false, 6, &[], ip_number::UDP.0, &PAYLOAD),
    );
    // The option "no operation", four times.
    add(
        "ipv4 options, udp",
        ipv4(false, 0, &[1; 4], ip_number::UDP.0, datagram),
    );
    let mut v6_fragment = vec![0x60, 0, 0, 0, 0, 56, 44, 64];
    v6_fragment.extend(v6(1).iter().chain(&v6(2)));
    v6_fragment.extend([17, 0, 0, 1, 0, 0, 0, 1]);
    v6_fragment.extend(datagram);
    add("ipv6 fragment", other(0x86dd, &v6_fragment));
    let inner = udp(8, 40);
    add("vxlan", vxlan(&inner));
    let gre = [&[0, 0, 8, 0][..], &inner[14..]].concat();
    add("gre", ipv4(false, 0, &[], ip_number::GRE.0, &gre));
    let label = [0, 0x10, 0x01, 64];
    add(
        "mpls, ipv4",
        other(0x8847, &[&label[..], &inner[14..]].concat()),
    );
    // Ethertype reserved by IEEE 802 as "Local Experimental Ethertype 1".
    add("ethertype 88b5", other(0x88b5, &PAYLOAD));
    let mut bad = udp(9, 40);
    bad[24] ^= 0xff;
    add("ipv4 udp, wrong header checksum", bad);
    let mut bad = udp(9, 40);
    bad[40] ^= 0xff;
    add("ipv4 udp, wrong checksum", bad);
    add("shortest", other(0x0800, &udp(10, 18)[14..]));
    add("longest", udp(11, mtu.clamp(68, 9000) - 28));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_engine::frame::Headers;

    #[test]
    fn frames_have_the_test_address_and_match_their_names() {
        let all = frames(1500);
        for it in &all {
            assert_eq!(it.bytes[..6], MAC, "{}", it.name);
            assert!((60..=1514).contains(&it.bytes.len()), "{}", it.name);
            assert_eq!(Headers::parse(&it.bytes).malformed, None, "{}", it.name);
        }
        let len = |name: &str| {
            all.iter()
                .find(|it| it.name == name)
                .map(|it| it.bytes.len())
        };
        assert_eq!((len("shortest"), len("longest")), (Some(60), Some(1514)));
        assert_eq!(number_of(&numbered(3, 60, 77)), Some(77));
        assert_eq!(of_len(1522, &[0x88a8, 0x8100]).len(), 1522);
        for it in [
            roce(FOREIGN),
            vxlan(&udp(1, 40)),
            ipv6_tcp(1, true),
            numbered(1, 4, 1),
        ] {
            assert_eq!(Headers::parse(&it).malformed, None);
        }
        let names: std::collections::BTreeSet<_> = all.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), all.len());
    }
}
