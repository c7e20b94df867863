//! Tests of anonymized frames: generated samples, and random changes of them.

mod samples;

use super::*;
use proptest::prelude::*;
use samples::*;
use wqcap_frame::Headers;

fn anonymizer(slice: Slice) -> Anonymizer {
    let key = SecretKey::new(b"a key of 32 bytes, for the tests");
    Anonymizer::new(&AnonymizeParams { key, slice })
}

/// Returns the anonymized form of a frame.
fn anonymized(frame: &[u8], slice: Slice) -> Vec<u8> {
    let len = u32::try_from(frame.len()).expect("short");
    anonymizer(slice).frame(frame, len).to_vec()
}

/// Returns `true` if the checksums of a packet and of all headers in it are correct.
fn is_sound(packet: &[u8]) -> bool {
    let word = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let (mut src, mut dst, mut protocol, mut at, end, header);
    if packet[0] >> 4 == 4 {
        at = usize::from(packet[0] & 15) * 4;
        (src, dst, protocol) = (&packet[12..16], &packet[16..20], packet[9]);
        // The destination is the last address of a source route.
        if at > 20 && packet[20] == 137 {
            dst = &packet[27..31];
        }
        (header, end) = (checksum(&[&packet[..at]]) == 0, word(2));
    } else {
        (src, dst, protocol) = (&packet[8..24], &packet[24..40], packet[6]);
        (header, at, end) = (true, 40, 40 + word(4));
        while matches!(protocol, 43 | 60) {
            let address = &packet[at + 8..at + 24];
            match (protocol, packet[at + 6]) {
                (43, _) => dst = address,
                (_, 0xc9) => src = address,
                _ => {}
            }
            (protocol, at) = (packet[at], at + 8 + usize::from(packet[at + 1]) * 8);
        }
    }
    let above = &packet[at..end];
    let with_pseudo = || checksum(&[&pseudo(src, dst, protocol, above.len()), above]) == 0;
    header
        && match protocol {
            4 | 41 => is_sound(above),
            1 => checksum(&[above]) == 0,
            47 if above[0] & 0x80 != 0 => checksum(&[above]) == 0 && is_sound(&above[8..]),
            47 => is_sound(&above[13..]),
            17 if above[2..4] == [0x12, 0xb5] => with_pseudo() && is_sound(&above[8 + 8 + 14..]),
            17 if above[2..4] == [0x08, 0x68] => with_pseudo() && is_sound(&above[8 + 8..]),
            _ => with_pseudo(),
        }
}

/// Searches a frame for the original addresses and their identifying parts. Returns the first one
/// found.
fn find_address(frame: &[u8]) -> Option<&'static [u8]> {
    let parts: [&'static [u8]; 10] = [
        &HOST_MAC,
        &HOST_MAC[3..],
        &ROUTER_MAC,
        &HOST,
        &SERVER,
        &ROUTER,
        &HOST_6[..4],
        &HOST_6[8..],
        &SERVER_6[1..5],
        &SERVER_6[10..],
    ];
    let is_in = |part: &&'static [u8]| frame.windows(part.len()).any(|it| it == *part);
    parts.into_iter().find(is_in)
}

/// Returns the bytes of a sample from its first IP header on.
fn packet(frame: &[u8]) -> &[u8] {
    &frame[Headers::parse(frame).l3().expect("IP")..]
}

#[test]
fn recognised_headers_contain_no_original_address() {
    for (name, frame) in samples() {
        assert!(find_address(&frame).is_some(), "{name}");
        let out = anonymized(&frame, Slice::Whole);
        assert_eq!(find_address(&out), None, "{name}: {out:02x?}");
        assert!(!out.windows(8).any(|it| it == &SECRET[..8]), "{name}");
        // Nothing else has changed: all other header fields are equal.
        let (was, is) = (Headers::innermost(&frame), Headers::innermost(&out));
        assert_eq!((was.l3(), was.l4()), (is.l3(), is.l4()), "{name}");
        assert_eq!(was.tuple.dst_port, is.tuple.dst_port, "{name}");
        assert_eq!((was.tags, was.segment), (is.tags, is.segment), "{name}");
        assert_eq!(was.tuple.protocol, is.tuple.protocol, "{name}");
    }
}

#[test]
fn unrecognised_bytes_are_removed() {
    for (name, frame, kept) in foreign() {
        for slice in [Slice::Whole, Slice::Payload(1000)] {
            let with_payload = slice != Slice::Whole && name == "trailer";
            let kept = kept + if with_payload { SECRET.len() } else { 0 };
            let out = anonymized(&frame, slice);
            assert_eq!(out.len(), kept, "{name}: {out:02x?}");
            assert_eq!(find_address(&out), None, "{name}: {out:02x?}");
        }
    }
}

#[test]
fn correct_checksums_stay_correct_and_wrong_ones_stay_wrong() {
    let mut seen = 0;
    for (name, frame) in samples() {
        if name.starts_with("arp") {
            continue;
        }
        assert!(is_sound(packet(&frame)), "{name}");
        let out = anonymized(&frame, Slice::Payload(1000));
        // Packets that are shortened here have options or message bodies that are removed, so their
        // checksum cannot be verified.
        if packet(&out).len() == packet(&frame).len() {
            seen += 1;
            assert!(is_sound(packet(&out)), "{name}: {out:02x?}");
            let mut wrong = frame.clone();
            let last = wrong.len() - 1;
            wrong[last] ^= 1;
            assert!(!is_sound(packet(&wrong)), "{name}");
            let out = anonymized(&wrong, Slice::Payload(1000));
            assert!(!is_sound(packet(&out)), "{name}: {out:02x?}");
        }
        // The shortened frame has the same bytes as the start of the whole one.
        let mut cut = anonymized(&frame, Slice::Whole);
        cut.extend(&out[cut.len()..]);
        assert_eq!(cut, out, "{name}");
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn an_address_has_one_replacement_in_all_headers() {
    let ends = |frame: &[u8]| {
        let tuple = Headers::innermost(frame).tuple;
        (tuple.src_bytes(), tuple.dst_bytes())
    };
    let plain = ends(&anonymized(&ethernet(0x0800, &talk()), Slice::Whole));
    for name in [
        "vlan",
        "vxlan",
        "gtp",
        "gre",
        "ip in ip",
        "4 in 6",
        "mpls",
        "mpls in udp",
        "pppoe",
        "snap",
    ] {
        let (_, frame) = samples()
            .into_iter()
            .find(|it| it.0 == name)
            .expect("the sample exists");
        assert_eq!(ends(&anonymized(&frame, Slice::Whole)), plain, "{name}");
    }
    let find = |name| {
        samples()
            .into_iter()
            .find(|it| it.0 == name)
            .expect("the sample exists")
            .1
    };
    let out = anonymized(&find("unreachable"), Slice::Whole);
    assert_eq!(
        &out[42 + 12..42 + 16],
        &plain.0[..4],
        "source of the quoted packet"
    );
    let arp = anonymized(&find("arp"), Slice::Whole);
    assert_eq!(&arp[14 + 14..14 + 18], &plain.0[..4]);
    assert_eq!(
        arp[14 + 8..14 + 14],
        arp[6..12],
        "hardware address of the sender"
    );
    assert_eq!(arp[14 + 18..14 + 24], [0; 6]);
    let plain = ends(&anonymized(&ethernet(0x86dd, &talk_6()), Slice::Whole));
    let solicitation = anonymized(&find("solicitation"), Slice::Whole);
    assert_eq!(solicitation[54 + 8..54 + 24], plain.0);
    assert_eq!(solicitation[54 + 26..], solicitation[6..12]);
    let advertisement = anonymized(&find("advertisement"), Slice::Whole);
    let prefix = &advertisement[54 + 16 + 8 + 16..][..16];
    assert_eq!((&prefix[..8], &prefix[8..]), (&plain.0[..8], &[0; 8][..]));

    let other = SecretKey::new(b"A key of 32 bytes, for the tests");
    let slice = Slice::Whole;
    let mut other = Anonymizer::new(&AnonymizeParams { key: other, slice });
    let frame = ethernet(0x0800, &talk());
    let out = other.frame(&frame, 64);
    assert_ne!(out, anonymized(&frame, slice));
}

#[test]
fn a_slice_removes_headers_or_keeps_payload() {
    let kept = |name: &str, slice| {
        let (_, frame) = samples()
            .into_iter()
            .find(|it| it.0 == name)
            .expect("the sample exists");
        anonymized(&frame, slice).len()
    };
    let slices = [
        Slice::L3,
        Slice::L4,
        Slice::Payload(0),
        Slice::Payload(4),
        Slice::Payload(u32::MAX),
        Slice::Whole,
    ];
    for (name, lens) in [
        ("udp", [34, 42, 42, 46, 64, 42]),
        ("tcp", [34, 74, 74, 78, 96, 74]),
        ("echo", [34, 42, 42, 46, 64, 42]),
        ("arp", [42; 6]),
        // The quoted packet follows the ICMP header, and its payload follows its UDP header.
        ("unreachable", [34, 42, 42, 46, 92, 70]),
        ("solicitation", [54, 62, 62, 66, 86, 86]),
        // The slice applies to the inner packet.
        ("vxlan", [84, 92, 92, 96, 114, 92]),
        ("gre", [62, 70, 70, 74, 92, 70]),
    ] {
        assert_eq!(slices.map(|it| kept(name, it)), lens, "{name}");
    }
}

#[test]
fn changes_are_counted() {
    let mut anonymizer = anonymizer(Slice::Payload(4));
    for (name, frame) in samples() {
        if ["udp", "tcp", "arp"].contains(&name) {
            anonymizer.frame(&frame, 0);
        }
    }
    let want = AnonymizeCounts {
        frames_cut: 3,
        bytes_cut: 18 + 18 + 18,
        options_overwritten: 1,
        frames_with_payload: 2,
    };
    assert_eq!(anonymizer.done(), want);
}

#[test]
fn the_mac_address_of_an_ip_group_follows_the_replaced_group() {
    let group = [239, 7, 8, 9];
    let mut frame = ethernet(
        0x0800,
        &ipv4(HOST, group, 17, &[], &udp((&HOST, &group), 53, SECRET)),
    );
    frame[..6].copy_from_slice(&[1, 0, 0x5e, 7, 8, 9]);
    let out = anonymized(&frame, Slice::Whole);
    let is = &out[30..34];
    assert!(is != group && is[0] >> 4 == 0xe);
    assert_eq!(out[..6], [1, 0, 0x5e, is[1] & 0x7f, is[2], is[3]]);
}

#[test]
fn truncated_frames_contain_no_original_address() {
    for (name, frame) in samples() {
        let whole = anonymized(&frame, Slice::Whole);
        let mut anonymizer = anonymizer(Slice::Whole);
        for len in 0..frame.len() {
            let out = anonymizer.frame(&frame[..len], frame.len() as u32);
            assert!(out.len() <= len.min(whole.len()), "{name} {len}");
            assert_eq!(find_address(out), None, "{name} {len}: {out:02x?}");
        }
    }
}

#[test]
fn changed_frames_cause_no_panic() {
    let frames: Vec<_> = samples().into_iter().map(|it| it.1).collect();
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let changes = prop::collection::vec(change, 0..6);
    let slice = prop::sample::select(vec![Slice::Whole, Slice::L3, Slice::L4, Slice::Payload(9)]);
    let frame = prop::sample::select(frames);
    let config = ProptestConfig::with_cases(20_000);
    proptest!(config, |(mut frame in frame, changes in changes, slice in slice, more in 0..3u32)| {
        for (at, to) in changes {
            let at = at.index(frame.len());
            frame[at] = to;
        }
        let len = frame.len() as u32 + more;
        let mut anonymizer = anonymizer(slice);
        let out = anonymizer.frame(&frame, len).to_vec();
        prop_assert!(out.len() <= frame.len());
        prop_assert_eq!(anonymizer.frame(&frame, len), &out[..]);
        // The walk keeps the offsets that the parser finds for IP.
        let (was, is) = (Headers::parse(&frame), Headers::parse(&out));
        if let (Some(l4), Some(_)) = (was.l4(), is.l4()) {
            prop_assert_eq!((was.l3(), is.l4()), (is.l3(), Some(l4)));
            prop_assert_eq!(was.fragment, is.fragment);
        }
    });
}
