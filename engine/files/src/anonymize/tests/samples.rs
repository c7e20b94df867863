//! Generated sample frames with distinctive addresses and correct checksums.

pub(super) static HOST_MAC: [u8; 6] = [0xa2, 0x11, 0x22, 0x33, 0x44, 0x55];
pub(super) static ROUTER_MAC: [u8; 6] = [0xa4, 0x66, 0x77, 0x88, 0x99, 0xaa];
pub(super) static HOST: [u8; 4] = [172, 23, 45, 67];
pub(super) static SERVER: [u8; 4] = [203, 113, 87, 93];
pub(super) static ROUTER: [u8; 4] = [172, 23, 91, 211];
pub(super) static HOST_6: [u8; 16] = [
    0x2a, 0x11, 0x0d, 0xb8, 0x71, 0x72, 0x73, 0x74, 0xa0, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55,
];
pub(super) static SERVER_6: [u8; 16] = [
    0x2a, 0x99, 0x0d, 0xb9, 0x81, 0x82, 0x83, 0x84, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8,
];
pub(super) const SECRET: &[u8] = b"Host: intranet.example";

/// Returns the checksum of RFC 1071 over the concatenated parts.
pub(super) fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |it| u32::from(*it));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

pub(super) fn pseudo(src: &[u8], dst: &[u8], protocol: u8, len: usize) -> Vec<u8> {
    let len = u32::try_from(len).expect("short").to_be_bytes();
    [src, dst, &len, &[0, 0, 0, protocol]].concat()
}

pub(super) fn ethernet(ethertype: u16, packet: &[u8]) -> Vec<u8> {
    let ethertype = ethertype.to_be_bytes();
    [&ROUTER_MAC[..], &HOST_MAC, &ethertype, packet].concat()
}

pub(super) fn ipv4(
    src: [u8; 4],
    dst: [u8; 4],
    protocol: u8,
    options: &[u8],
    above: &[u8],
) -> Vec<u8> {
    let len = 20 + options.len();
    let total = u16::try_from(len + above.len())
        .expect("short")
        .to_be_bytes();
    let mut header = vec![
        0x40 | (len / 4) as u8,
        0,
        total[0],
        total[1],
        0,
        7,
        0x40,
        0,
        63,
        protocol,
        0,
        0,
    ];
    header.extend([&src[..], &dst, options].concat());
    let sum = checksum(&[&header]).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    [&header[..], above].concat()
}

pub(super) fn ipv6(src: [u8; 16], dst: [u8; 16], next: u8, above: &[u8]) -> Vec<u8> {
    let len = u16::try_from(above.len()).expect("short").to_be_bytes();
    [
        &[0x60, 0, 0, 0, len[0], len[1], next, 63][..],
        &src,
        &dst,
        above,
    ]
    .concat()
}

/// Sets the checksum at `field`; `ends` are the addresses of the pseudo-header.
pub(super) fn summed(
    mut bytes: Vec<u8>,
    field: usize,
    protocol: u8,
    ends: Option<(&[u8], &[u8])>,
) -> Vec<u8> {
    let pseudo = ends.map(|(src, dst)| pseudo(src, dst, protocol, bytes.len()));
    let sum = checksum(&[&pseudo.unwrap_or_default(), &bytes]);
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

pub(super) fn udp(ends: (&[u8], &[u8]), port: u16, above: &[u8]) -> Vec<u8> {
    let (port, len) = (port.to_be_bytes(), (8 + above.len()) as u16);
    let header = [&[0xc0, 0x11][..], &port, &len.to_be_bytes(), &[0, 0]].concat();
    summed([&header[..], above].concat(), 6, 17, Some(ends))
}

pub(super) fn tcp(ends: (&[u8], &[u8]), options: &[u8], above: &[u8]) -> Vec<u8> {
    let words = 5 + (options.len() / 4) as u8;
    let mut header = vec![0xc0, 0x11, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, words << 4];
    header.extend([0x18, 1, 0, 0, 0, 0, 0]);
    summed([&header[..], options, above].concat(), 16, 6, Some(ends))
}

pub(super) fn icmp(kind: u8, rest: [u8; 4], body: &[u8]) -> Vec<u8> {
    summed([&[kind, 0, 0, 0][..], &rest, body].concat(), 2, 1, None)
}

pub(super) fn icmpv6(kind: u8, body: &[u8]) -> Vec<u8> {
    let message = [&[kind, 0, 0, 0][..], body].concat();
    summed(message, 2, 58, Some((&HOST_6, &SERVER_6)))
}

/// Builds an IPv4 UDP packet with the secret payload.
pub(super) fn talk() -> Vec<u8> {
    ipv4(HOST, SERVER, 17, &[], &udp((&HOST, &SERVER), 53, SECRET))
}

/// Builds an IPv6 UDP packet with the secret payload.
pub(super) fn talk_6() -> Vec<u8> {
    ipv6(HOST_6, SERVER_6, 17, &udp((&HOST_6, &SERVER_6), 53, SECRET))
}

/// Builds a frame with a UDP datagram to `port` that contains `header` and a packet.
pub(super) fn tunnel(port: u16, header: &[u8], packet: &[u8]) -> Vec<u8> {
    let above = udp((&ROUTER, &SERVER), port, &[header, packet].concat());
    ethernet(0x0800, &ipv4(ROUTER, SERVER, 17, &[], &above))
}

pub(super) fn gre(header: &[u8], packet: &[u8]) -> Vec<u8> {
    ethernet(
        0x0800,
        &ipv4(ROUTER, SERVER, 47, &[], &[header, packet].concat()),
    )
}

pub(super) fn neighbours(kind: u8, body: &[&[u8]]) -> Vec<u8> {
    ethernet(
        0x86dd,
        &ipv6(HOST_6, SERVER_6, 58, &icmpv6(kind, &body.concat())),
    )
}

/// Returns named sample frames with all recognised headers.
pub(super) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let link_6 = [&[1, 1][..], &HOST_MAC].concat();
    let ndp_prefix = [&[3, 4, 64, 0xc0][..], &[0; 12], &HOST_6[..8], &[0; 8]].concat();
    let resolvers = [&[25, 3, 0, 0, 0, 0, 0, 9][..], &SERVER_6].concat();
    let route = [&[24, 2, 48, 0, 0, 0, 0, 9][..], &SERVER_6[..6], &[0; 2]].concat();
    let names = [&[31, 4, 0, 0, 0, 0, 0, 9][..], SECRET, &[0; 2]].concat();
    let arp = [
        &[0, 1, 8, 0, 6, 4, 0, 1][..],
        &HOST_MAC,
        &HOST,
        &[0; 6],
        &SERVER,
        &[0; 18],
    ];
    let multipath = [
        &[30, 8, 0x30, 1][..],
        &ROUTER,
        &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
    ]
    .concat();
    let strict_route = [&[137, 11, 4][..], &ROUTER, &SERVER, &[0]].concat();
    let recorded = [&[7, 7, 8][..], &ROUTER, &[1]].concat();
    let segments = [&[17, 4, 4, 1, 1, 0, 0, 0][..], &SERVER_6, &HOST_6].concat();
    let home = [&[17, 2, 1, 2, 0, 0, 0xc9, 16][..], &HOST_6].concat();
    let record = [&[4, 0, 0, 1][..], &[0xff, 0x3e], &SERVER_6[..14], &HOST_6].concat();
    let mut geneve_options = vec![0x03, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 1, 0x80, 2];
    geneve_options.extend([&HOST[..], &SERVER].concat());
    let gre_packet = talk();
    let gre_header = summed(
        [&[0x80, 0, 8, 0, 0, 0, 0, 0][..], &gre_packet].concat(),
        4,
        0,
        None,
    );
    let tagged = [&[0x40, 7, 0x08, 0][..], &talk()].concat();
    vec![
        ("udp", ethernet(0x0800, &talk())),
        ("udp6", ethernet(0x86dd, &talk_6())),
        ("vlan", ethernet(0x8100, &tagged)),
        (
            "tcp",
            ethernet(
                0x0800,
                &ipv4(
                    HOST,
                    SERVER,
                    6,
                    &[],
                    &tcp((&HOST, &SERVER), &multipath, SECRET),
                ),
            ),
        ),
        (
            "tcp6",
            ethernet(
                0x86dd,
                &ipv6(HOST_6, SERVER_6, 6, &tcp((&HOST_6, &SERVER_6), &[], SECRET)),
            ),
        ),
        (
            "source route",
            ethernet(
                0x0800,
                &ipv4(
                    HOST,
                    ROUTER,
                    17,
                    &strict_route,
                    &udp((&HOST, &SERVER), 53, SECRET),
                ),
            ),
        ),
        (
            "record route",
            ethernet(
                0x0800,
                &ipv4(
                    HOST,
                    SERVER,
                    17,
                    &recorded,
                    &udp((&HOST, &SERVER), 53, SECRET),
                ),
            ),
        ),
        (
            "segments",
            ethernet(
                0x86dd,
                &ipv6(
                    HOST_6,
                    HOST_6,
                    43,
                    &[&segments[..], &udp((&HOST_6, &SERVER_6), 53, SECRET)].concat(),
                ),
            ),
        ),
        (
            "home address",
            ethernet(
                0x86dd,
                &ipv6(
                    SERVER_6,
                    SERVER_6,
                    60,
                    &[&home[..], &udp((&HOST_6, &SERVER_6), 53, SECRET)].concat(),
                ),
            ),
        ),
        ("arp", ethernet(0x0806, &arp.concat())),
        (
            "unreachable",
            ethernet(
                0x0800,
                &ipv4(ROUTER, HOST, 1, &[], &icmp(3, [0; 4], &talk())),
            ),
        ),
        (
            "unreachable, cut",
            ethernet(
                0x0800,
                &ipv4(ROUTER, HOST, 1, &[], &icmp(11, [0; 4], &talk()[..28])),
            ),
        ),
        (
            "redirect",
            ethernet(
                0x0800,
                &ipv4(SERVER, HOST, 1, &[], &icmp(5, ROUTER, &talk())),
            ),
        ),
        (
            "routers",
            ethernet(
                0x0800,
                &ipv4(
                    ROUTER,
                    HOST,
                    1,
                    &[],
                    &icmp(9, [1, 2, 0, 9], &[&ROUTER[..], &[0, 0, 0, 1]].concat()),
                ),
            ),
        ),
        (
            "echo",
            ethernet(
                0x0800,
                &ipv4(HOST, SERVER, 1, &[], &icmp(8, [0, 1, 0, 2], SECRET)),
            ),
        ),
        ("unreachable6", neighbours(1, &[&[0; 4], &talk_6()])),
        (
            "solicitation",
            neighbours(135, &[&[0; 4], &HOST_6, &link_6]),
        ),
        (
            "advertisement",
            neighbours(
                134,
                &[
                    &[64, 0, 0, 9],
                    &[0; 8],
                    &link_6,
                    &ndp_prefix,
                    &resolvers,
                    &route,
                    &names,
                ],
            ),
        ),
        (
            "redirect6",
            neighbours(
                137,
                &[
                    &[0; 4],
                    &HOST_6,
                    &SERVER_6,
                    &link_6,
                    &[4, 10, 0, 0, 0, 0, 0, 0],
                    &talk_6(),
                    &[0; 2],
                ],
            ),
        ),
        ("listeners", neighbours(143, &[&[0, 0, 0, 1], &record])),
        (
            "vxlan",
            tunnel(4789, &[8, 0, 0, 0, 0, 0, 7, 0], &ethernet(0x0800, &talk())),
        ),
        (
            "geneve",
            tunnel(6081, &geneve_options, &ethernet(0x86dd, &talk_6())),
        ),
        (
            "gtp",
            tunnel(2152, &[0x30, 255, 0, 50, 0, 0, 0, 9], &talk()),
        ),
        ("gre", gre(&gre_header[..8], &gre_packet)),
        (
            "gre, odd",
            gre(
                &[0x30, 1, 0x88, 0x0b, 0, 0, 0, 0, 0, 0, 0, 0, 0x21],
                &talk(),
            ),
        ),
        (
            "ip in ip",
            ethernet(0x0800, &ipv4(ROUTER, SERVER, 4, &[], &talk())),
        ),
        (
            "6 in 4",
            ethernet(0x0800, &ipv4(ROUTER, SERVER, 41, &[], &talk_6())),
        ),
        (
            "4 in 6",
            ethernet(0x86dd, &ipv6(SERVER_6, HOST_6, 4, &talk())),
        ),
        (
            "mpls",
            ethernet(0x8847, &[&[0, 1, 1, 64][..], &talk()].concat()),
        ),
        (
            "mpls in udp",
            tunnel(6635, &[0, 1, 0, 64, 0, 1, 1, 64], &talk()),
        ),
        (
            "pppoe",
            ethernet(
                0x8864,
                &[&[0x11, 0, 0, 7, 0, 52, 0, 0x21][..], &talk()].concat(),
            ),
        ),
        (
            "snap",
            ethernet(58, &[&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &talk()].concat()),
        ),
    ]
}

/// Returns named frames with unrecognised parts, and the number of bytes that are kept.
pub(super) fn foreign() -> Vec<(&'static str, Vec<u8>, usize)> {
    let everything = [&HOST_MAC[..], &HOST, &SERVER, &HOST_6, SECRET].concat();
    // An Ethernet frame in a pseudowire, to a MAC address that begins like an IPv4 header.
    let wire = [
        &[0x45, 0x11, 0x22, 0x33, 0x44, 0x55][..],
        &HOST_MAC,
        &[8, 0],
        &talk(),
    ]
    .concat();
    let other_wire = [
        &[0x60, 0x11, 0x22, 0x33, 0x44, 0x55][..],
        &HOST_MAC,
        &[8, 0],
        &talk(),
    ]
    .concat();
    let above = |protocol| ethernet(0x0800, &ipv4(HOST, SERVER, protocol, &[], &everything));
    let esp = [&[0, 0, 1, 0, 0, 0, 0, 1][..], &everything].concat();
    let mut sctp = vec![0, 80, 0, 81, 0, 0, 0, 1, 1, 2, 3, 4];
    sctp.extend(&everything);
    let mut later = talk();
    later[6..8].copy_from_slice(&[0, 9]);
    let mut trailer = ethernet(0x0800, &talk());
    trailer.extend(&everything);
    vec![
        ("lldp", ethernet(0x88cc, &everything), 14),
        (
            "spanning tree",
            ethernet(38, &[&[0x42, 0x42, 3][..], &everything].concat()),
            17,
        ),
        (
            "arp of others",
            ethernet(
                0x0806,
                &[&[0, 6, 8, 0, 8, 4, 0, 1][..], &everything].concat(),
            ),
            22,
        ),
        (
            "pseudowire",
            ethernet(0x8847, &[&[0, 1, 1, 64][..], &wire].concat()),
            18,
        ),
        (
            "another",
            ethernet(0x8847, &[&[0, 1, 1, 64][..], &other_wire].concat()),
            18,
        ),
        (
            "text to the port of mpls",
            tunnel(6635, b"Thd parsword of adlin `t ", &everything),
            42,
        ),
        ("ospf", above(89), 34),
        ("igmp", above(2), 34),
        (
            "listener without records",
            neighbours(143, &[&[0; 4], &everything]),
            62,
        ),
        (
            "esp",
            ethernet(0x0800, &ipv4(HOST, SERVER, 50, &[], &esp)),
            42,
        ),
        (
            "sctp",
            ethernet(0x0800, &ipv4(HOST, SERVER, 132, &[], &sctp)),
            46,
        ),
        ("later fragment", ethernet(0x0800, &later), 34),
        (
            "icmp of another kind",
            ethernet(
                0x0800,
                &ipv4(HOST, SERVER, 1, &[], &icmp(40, HOST, &everything)),
            ),
            38,
        ),
        (
            "icmpv6 of another kind",
            neighbours(155, &[&everything]),
            58,
        ),
        (
            "mobility",
            ethernet(
                0x86dd,
                &ipv6(
                    HOST_6,
                    SERVER_6,
                    135,
                    &[&[59, 4, 5, 0][..], &everything].concat(),
                ),
            ),
            54,
        ),
        (
            "gtp error",
            tunnel(2152, &[0x30, 26, 0, 50, 0, 0, 0, 9], &everything),
            42,
        ),
        ("no vxlan", tunnel(4789, &[8, 0, 7, 0], &everything), 42),
        ("no geneve", tunnel(6081, &[2, 7, 8, 0], &everything), 42),
        (
            "gtp of another version",
            tunnel(2152, &[0x50, 255, 0, 50, 0, 0, 0, 9], &talk()),
            42,
        ),
        (
            "ppp control",
            ethernet(
                0x8864,
                &[&[0x11, 0, 0, 7, 0, 70, 0x80, 0x21][..], &everything].concat(),
            ),
            22,
        ),
        ("trailer", trailer, 42),
        ("runt", HOST_MAC.to_vec(), 0),
    ]
}
