//! Tests that split super-frames built by hand, and check the segments with independent arithmetic.

use proptest::prelude::*;

use super::*;

const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

fn plain_sum(bytes: &[u8]) -> u32 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|it| u32::from(it[0]) << 8 | u32::from(*it.get(1).unwrap_or(&0)))
        .fold(0, |sum, it| (sum + it) % 0xffff);
    if sum == 0 && bytes.iter().any(|it| *it != 0) {
        sum = 0xffff;
    }
    sum
}

fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![
        0x45, 0, 0, 0, 0xff, 0xfe, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    let total = (ip.len() + payload.len()) as u16;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = !(plain_sum(&ip) as u16);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [&ip, payload].concat()
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x60, 0, 0, 0, 0, 0, next, 64];
    ip[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    ip.extend((0..32).map(|it| it as u8 | 0x20));
    [&ip, payload].concat()
}

fn tcp(payload: &[u8]) -> Vec<u8> {
    // Sequence 0xffff_fff0, 12 bytes of options, CWR PSH ACK FIN.
    let mut tcp = vec![
        0,
        80,
        0x13,
        0x88,
        0xff,
        0xff,
        0xff,
        0xf0,
        0,
        0,
        0,
        9,
        8 << 4,
        0x99,
        1,
        0,
        0,
        0,
        0,
        0,
    ];
    tcp.extend([1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]);
    [&tcp, payload].concat()
}

fn udp(port: u16, payload: &[u8], checksum: [u8; 2]) -> Vec<u8> {
    let mut udp = vec![0x30, 0x39];
    udp.extend(port.to_be_bytes());
    udp.extend((payload.len() as u16 + 8).to_be_bytes());
    udp.extend(checksum);
    [&udp, payload].concat()
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|it| (it * 7 + it / 251) as u8).collect()
}

/// Checks all lengths and checksums of a frame, from the EtherType at `at` inwards. Returns the
/// innermost payload and its header.
pub(in super::super) fn verify(frame: &[u8], at: usize) -> (Vec<u8>, Vec<u8>) {
    let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    match half(at) {
        0x8100 | 0x88a8 => verify(frame, at + 4),
        0x8864 => {
            assert_eq!(usize::from(half(at + 6)), frame.len() - at - 8);
            verify_ip(frame, at + 10)
        }
        0x8847 => verify_ip(frame, at + 6),
        0x0800 | 0x86dd => verify_ip(frame, at + 2),
        other => panic!("ethertype {other:x}"),
    }
}

fn verify_ip(frame: &[u8], at: usize) -> (Vec<u8>, Vec<u8>) {
    let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let (mut protocol, mut l4, addresses) = match frame[at] >> 4 {
        4 => {
            assert_eq!(usize::from(half(at + 2)), frame.len() - at, "IPv4 length");
            assert_eq!(plain_sum(&frame[at..at + 20]), 0xffff, "IPv4 checksum");
            (frame[at + 9], at + 20, &frame[at + 12..at + 20])
        }
        _ => {
            assert_eq!(
                usize::from(half(at + 4)),
                frame.len() - at - 40,
                "IPv6 length"
            );
            (frame[at + 6], at + 40, &frame[at + 8..at + 40])
        }
    };
    while protocol == 60 {
        (protocol, l4) = (frame[l4], l4 + 8 + usize::from(frame[l4 + 1]) * 8);
    }
    let checked = |what: &str| {
        let pseudo = [
            addresses,
            &((frame.len() - l4) as u32).to_be_bytes(),
            &[0, 0, 0, protocol],
        ]
        .concat();
        assert_eq!(
            plain_sum(&[&pseudo, &frame[l4..]].concat()),
            0xffff,
            "{what}"
        );
    };
    match protocol {
        6 => {
            checked("TCP checksum");
            let end = l4 + usize::from(frame[l4 + 12] >> 4) * 4;
            (frame[end..].to_vec(), frame[l4..end].to_vec())
        }
        17 => {
            assert_eq!(usize::from(half(l4 + 4)), frame.len() - l4, "UDP length");
            if half(l4 + 6) != 0 {
                checked("UDP checksum");
            }
            match half(l4 + 2) {
                4789 => verify(frame, l4 + 16 + 12),
                _ => (frame[l4 + 8..].to_vec(), frame[l4..l4 + 8].to_vec()),
            }
        }
        4 | 41 => verify_ip(frame, l4),
        47 => {
            assert_eq!(frame[l4] & 0x7f, 0);
            if frame[l4] & 0x80 != 0 {
                assert_eq!(plain_sum(&frame[l4..]), 0xffff, "GRE checksum");
                return verify(frame, l4 + 8 + 12);
            }
            verify_ip(frame, l4 + 4)
        }
        other => panic!("protocol {other}"),
    }
}

fn virtio(kind: u8, gso_size: u16, csum_start: usize) -> VirtioHeader {
    VirtioHeader {
        flags: if csum_start == 0 { 0 } else { NEEDS_CSUM },
        gso_type: kind,
        gso_size,
        csum_start: csum_start as u16,
        csum_offset: if kind == GSO_UDP_L4 { 6 } else { 16 },
    }
}

fn segments(frame: &[u8], virtio: &VirtioHeader) -> Vec<Vec<u8>> {
    let mut frame = frame.to_vec();
    let mut split = SegmentSplit::default();
    assert_eq!(split.start(&mut frame, virtio), GsoOutcome::Split);
    let mut segments = vec![];
    while let Some(range) = split.next(&mut frame) {
        segments.push(frame[range].to_vec());
    }
    segments
}

fn ethernet(kinds: &[u16], inner: &[u8]) -> Vec<u8> {
    let mut frame = MACS.to_vec();
    for (i, kind) in kinds.iter().enumerate() {
        frame.extend(kind.to_be_bytes());
        if i + 1 < kinds.len() {
            frame.extend([0, i as u8 + 5]);
        }
    }
    [&frame, inner].concat()
}

/// Returns TCP super-frames with the payload `data` in all encapsulations, each with its name and
/// GSO type.
fn wrappings(data: &[u8]) -> Vec<(&'static str, u8, Vec<u8>)> {
    let inner4 = ethernet(&[0x0800], &ipv4(6, &tcp(data)));
    let inner6 = ethernet(&[0x86dd], &ipv6(6, &tcp(data)));
    let vxlan = |inner: &[u8], sum| {
        let mut vxlan = vec![8, 0, 0, 0, 0, 0, 7, 0];
        vxlan.extend(inner);
        udp(4789, &vxlan, sum)
    };
    let extension = [&[6, 0, 1, 4, 0, 0, 0, 0][..], &tcp(data)].concat();
    let mut pppoe = vec![0x11, 0, 0, 9];
    let ip = ipv4(6, &tcp(data));
    pppoe.extend((ip.len() as u16 + 2).to_be_bytes());
    pppoe.extend([0, 0x21]);
    pppoe.extend(&ip);
    vec![
        ("IPv4", 1, inner4.clone()),
        ("IPv6", 4, inner6.clone()),
        ("VLAN", 1, ethernet(&[0x8100, 0x0800], &ipv4(6, &tcp(data)))),
        (
            "QinQ",
            4,
            ethernet(&[0x88a8, 0x8100, 0x86dd], &ipv6(6, &tcp(data))),
        ),
        (
            "destination options",
            4,
            ethernet(&[0x86dd], &ipv6(60, &extension)),
        ),
        ("PPPoE", 1, ethernet(&[0x8864], &pppoe)),
        (
            "MPLS",
            1,
            ethernet(&[0x8847], &[&[0, 1, 1, 64][..], &ip].concat()),
        ),
        (
            "IPIP",
            1,
            ethernet(&[0x0800], &ipv4(4, &ipv4(6, &tcp(data)))),
        ),
        (
            "SIT",
            4,
            ethernet(&[0x0800], &ipv4(41, &ipv6(6, &tcp(data)))),
        ),
        (
            "GRE",
            1,
            ethernet(&[0x0800], &ipv4(47, &[&[0, 0, 8, 0][..], &ip].concat())),
        ),
        (
            "GRE with checksum and Ethernet",
            4,
            ethernet(
                &[0x0800],
                &ipv4(
                    47,
                    &[&[0x80, 0, 0x65, 0x58, 9, 9, 0, 0][..], &inner6].concat(),
                ),
            ),
        ),
        (
            "VXLAN",
            1,
            ethernet(&[0x0800], &ipv4(17, &vxlan(&inner4, [0, 0]))),
        ),
        (
            "VXLAN with checksum",
            4,
            ethernet(&[0x86dd], &ipv6(17, &vxlan(&inner6, [1, 1]))),
        ),
        (
            "VXLAN behind VLAN",
            4,
            ethernet(&[0x8100, 0x0800], &ipv4(17, &vxlan(&inner6, [0, 0]))),
        ),
    ]
}

#[test]
fn tcp_is_split_in_every_encapsulation() {
    for (size, len) in [
        (1448, 50_000),
        (1000, 1000),
        (1000, 1001),
        (536, 537),
        (7, 100),
        (65_000, 3),
    ] {
        let data = payload(len);
        for (name, kind, frame) in wrappings(&data) {
            let tcp_at = frame.len() - len - 32;
            let segments = segments(&frame, &virtio(kind | GSO_ECN, size, tcp_at));
            let count = len.div_ceil(usize::from(size));
            assert_eq!(segments.len(), count, "{name}");
            let mut all = vec![];
            for (i, segment) in segments.iter().enumerate() {
                let (data, header) = verify(segment, 12);
                let sequence = u32::from_be_bytes(*header[4..].first_chunk().unwrap());
                assert_eq!(
                    sequence,
                    0xffff_fff0_u32.wrapping_add(all.len() as u32),
                    "{name}"
                );
                let last = if i + 1 == count { 0x09 } else { 0 };
                let first = if i == 0 { 0x80 } else { 0 };
                assert_eq!(header[13], 0x10 | first | last, "{name} {i}");
                all.extend(data);
            }
            assert_eq!(all, data, "{name}");
        }
    }
}

#[test]
fn identifications_count_up() {
    let frame = ethernet(&[0x0800], &ipv4(6, &tcp(&payload(300))));
    let ids: Vec<_> = segments(&frame, &virtio(GSO_TCPV4, 100, 34))
        .iter()
        .map(|it| [it[18], it[19]])
        .collect();
    assert_eq!(ids, [[0xff, 0xfe], [0xff, 0xff], [0, 0]]);
}

#[test]
fn plain_tcp_is_split_without_a_checksum_start() {
    let frame = ethernet(&[0x8100, 0x0800], &ipv4(6, &tcp(&payload(300))));
    assert_eq!(segments(&frame, &virtio(GSO_TCPV4, 100, 0)).len(), 3);
}

#[test]
fn udp_super_frames_are_split() {
    let data = payload(5000);
    for (checksum, hint, summed) in [([0, 0], 34, true), ([0, 0], 0, false), ([1, 2], 0, true)] {
        let frame = ethernet(&[0x0800], &ipv4(17, &udp(443, &data, checksum)));
        let mut all = vec![];
        for segment in segments(&frame, &virtio(GSO_UDP_L4, 1200, hint)) {
            let (data, header) = verify(&segment, 12);
            assert_eq!(header[6..8] != [0, 0], summed);
            all.extend(data);
        }
        assert_eq!(all, data);
    }
}

#[test]
fn the_jumbo_header_of_big_tcp_is_removed() {
    let data = payload(180_000);
    let l4 = tcp(&data);
    let mut hop = vec![6, 0, 0xc2, 4];
    hop.extend((l4.len() as u32 + 8).to_be_bytes());
    let mut ip = ipv6(0, &[&hop[..], &l4].concat());
    ip[4..6].fill(0);
    let frame = ethernet(&[0x8100, 0x86dd], &ip);
    let segments = segments(&frame, &virtio(GSO_TCPV6, 1428, 18 + 48));
    assert_eq!(segments[0].len(), 18 + 40 + 32 + 1428);
    let all: Vec<u8> = segments.iter().flat_map(|it| verify(it, 12).0).collect();
    assert_eq!(all, data);
}

#[test]
fn frames_that_cannot_be_split_stay_whole() {
    let data = payload(3000);
    let odd = ethernet(&[0x1234], &data);
    let v4 = ethernet(&[0x0800], &ipv4(6, &tcp(&data)));
    for (frame, virtio) in [
        (&odd, virtio(GSO_TCPV4, 1000, 0)),
        (&v4, virtio(GSO_TCPV4, 0, 34)),
        (&v4, virtio(3, 1000, 34)),
        (&v4, virtio(GSO_TCPV4, 1000, 35)),
        (&v4, virtio(GSO_UDP_L4, 1000, 34)),
    ] {
        let mut copy = frame.clone();
        let mut split = SegmentSplit::default();
        assert_eq!(split.start(&mut copy, &virtio), GsoOutcome::Unsplit);
        assert_eq!(split.next(&mut copy), None);
    }
}

#[test]
fn a_missing_checksum_is_completed() {
    for (inner, addresses, l4) in [
        (ethernet(&[0x0800], &ipv4(6, &tcp(b"odd"))), 26..34, 34),
        (ethernet(&[0x86dd], &ipv6(6, &tcp(b"even"))), 22..54, 54),
    ] {
        let mut frame = inner;
        // The sum of the pseudo header, as the kernel leaves it.
        let length = (frame.len() - l4) as u16;
        let pseudo = [&frame[addresses], &length.to_be_bytes(), &[0, 6]].concat();
        let sum = (plain_sum(&pseudo) as u16).to_be_bytes();
        frame[l4 + 16..l4 + 18].copy_from_slice(&sum);
        let header = virtio(GSO_NONE, 0, l4);
        assert!(!header.is_plain());
        assert_eq!(
            SegmentSplit::default().start(&mut frame, &header),
            GsoOutcome::Whole
        );
        verify(&frame, 12);
    }
    // SCTP: a CRC over the chunk with the field at zero.
    let mut frame = ethernet(
        &[0x0800],
        &ipv4(132, &[0, 1, 0, 2, 0, 0, 0, 3, 9, 9, 9, 9, 1, 2, 3, 4]),
    );
    let header = VirtioHeader {
        csum_offset: 8,
        ..virtio(GSO_NONE, 0, 34)
    };
    SegmentSplit::default().start(&mut frame, &header);
    assert_eq!(
        frame[42..46],
        crc::crc32c(&[0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 1, 2, 3, 4])
    );
}

#[test]
fn the_header_is_read_in_the_machines_order() {
    let mut bytes = [0; 10];
    (bytes[0], bytes[1]) = (1, 4);
    bytes[4..6].copy_from_slice(&1448_u16.to_ne_bytes());
    bytes[6..8].copy_from_slice(&54_u16.to_ne_bytes());
    bytes[8..10].copy_from_slice(&16_u16.to_ne_bytes());
    let mut header = VirtioHeader::read(&bytes);
    assert_eq!(header, virtio(GSO_TCPV6, 1448, 54));
    header.shift(4);
    assert_eq!(header.csum_start(), Some(58));
    assert!(VirtioHeader::default().is_plain());
}

proptest! {
    /// Checks that splitting never panics or grows a frame, for any virtio header and any frame.
    #[test]
    fn nothing_panics(
        which in 0usize..14, len in 0usize..400, kind in prop::sample::select(vec![0u8, 1, 3, 4, 5, 0x81]),
        gso_size in 0u16..300, start in 0u16..500, offset in 0u16..400, flags in 0u8..4,
        spoil in prop::collection::vec((0usize..600, any::<u8>()), 0..4), cut in 0usize..200,
    ) {
        let mut frame = wrappings(&payload(len)).swap_remove(which).2;
        for (at, byte) in spoil {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame.truncate((frame.len() - cut.min(frame.len())).max(14));
        let right = frame.len().saturating_sub(len + 32) as u16;
        let csum_start = if start < 250 { right } else { start };
        let header = VirtioHeader { flags, gso_type: kind, gso_size, csum_start, csum_offset: offset };
        let mut split = SegmentSplit::default();
        split.start(&mut frame, &header);
        let mut count = 0;
        while let Some(range) = split.next(&mut frame) {
            prop_assert!(range.len() >= 14);
            count += 1;
        }
        prop_assert!(count <= 400);
    }
}
