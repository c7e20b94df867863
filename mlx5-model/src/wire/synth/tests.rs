//! Tests that parse every generated frame, with arithmetic independent of the generator's.

use std::collections::{HashMap, HashSet};

use super::super::{Wire, WireSpec};
use super::*;

fn open(text: &str) -> Wire {
    Wire::open(&text.parse::<WireSpec>().unwrap()).unwrap()
}

fn frames(text: &str) -> Vec<Vec<u8>> {
    let mut wire = open(text);
    let mut frames = vec![];
    while wire.state() == WireState::Up {
        wire.each(0, 64, |frame| {
            assert_eq!(frame.direction, WireDirection::Received);
            frames.push(frame.bytes.to_vec());
            Delivery::Taken
        });
    }
    frames
}

#[derive(Debug, PartialEq, Eq, Hash, Clone)]
struct Seen {
    vlan: Option<u16>,
    ipv6: bool,
    tcp: bool,
    ends: [Vec<u8>; 2],
    ports: [u16; 2],
}

/// Parses a generated frame, and checks its lengths and checksums with plain 16-bit sums,
/// independent of the generator.
fn read(frame: &[u8]) -> (Seen, &[u8]) {
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let sum = |bytes: &[u8]| {
        let mut sum: u32 = bytes
            .chunks(2)
            .map(|it| u32::from(it[0]) << 8 | u32::from(*it.get(1).unwrap_or(&0)))
            .sum();
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum
    };
    let (vlan, ip) = match word(12) {
        0x8100 => (Some(word(14)), 18),
        _ => (None, 14),
    };
    let (ipv6, l4, protocol, ends) = match word(ip - 2) {
        0x0800 => {
            assert_eq!(frame[ip], 0x45);
            assert_eq!(word(ip + 2) as usize, frame.len() - ip);
            assert_eq!(sum(&frame[ip..ip + 20]), 0xffff, "IPv4 checksum");
            (false, ip + 20, frame[ip + 9], &frame[ip + 12..ip + 20])
        }
        0x86dd => {
            assert_eq!(word(ip + 4) as usize, frame.len() - ip - 40);
            (true, ip + 40, frame[ip + 6], &frame[ip + 8..ip + 40])
        }
        other => panic!("ethertype {other:#x}"),
    };
    let mut summed = ends.to_vec();
    summed.extend(((frame.len() - l4) as u32).to_be_bytes());
    summed.extend([0, 0, 0, protocol]);
    summed.extend(&frame[l4..]);
    assert_eq!(sum(&summed), 0xffff, "L4 checksum of protocol {protocol}");
    let (tcp, payload) = match protocol {
        6 => (true, l4 + usize::from(frame[l4 + 12] >> 4) * 4),
        17 => {
            assert_eq!(word(l4 + 4) as usize, frame.len() - l4);
            assert_ne!(word(l4 + 6), 0);
            (false, l4 + 8)
        }
        other => panic!("protocol {other}"),
    };
    let (a, b) = ends.split_at(ends.len() / 2);
    let seen = Seen {
        vlan,
        ipv6,
        tcp,
        ends: [a.to_vec(), b.to_vec()],
        ports: [word(l4), word(l4 + 2)],
    };
    (seen, &frame[payload..])
}

fn sequence(payload: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*payload.last_chunk()?))
}

#[test]
fn every_frame_is_valid_and_numbered() {
    for text in [
        "synth:count=5000",
        "synth:count=5000,proto=tcp",
        "synth:count=5000,size=62,ip=6",
        "synth:count=5000,size=71/72/99,ip=6",
        "synth:count=9000,size=80-1500,ip=mix,proto=mix,flows=5,dir=both,vlan=7",
        "synth:count=3000,size=imix,ip=mix,proto=mix,flows=64",
        "synth:count=100,size=65535,flows=3,proto=mix,ip=mix",
    ] {
        for (i, frame) in frames(text).iter().enumerate() {
            let (_, payload) = read(frame);
            match sequence(payload) {
                Some(sequence) => assert_eq!(sequence, i as u64, "{text}"),
                None => assert!(payload.len() < 8),
            }
        }
    }
}

#[test]
fn large_sequence_numbers_keep_checksums_right() {
    for text in [
        "synth:size=91/92,flows=8,proto=mix,ip=mix",
        // Room for the number, but not for its complement.
        "synth:size=55/56,flows=8",
        "synth:size=67/68,flows=8,proto=tcp",
        "synth:size=75/76,flows=8,ip=6",
        "synth:size=87/88,flows=8,ip=6,proto=tcp",
    ] {
        let mut wire = match open(text).0 {
            super::super::WireBackend::Synth(wire) => *wire,
            _ => unreachable!(),
        };
        for i in 0..50_000u64 {
            let number = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let template = wire.templates[wire.next_numbered];
            wire.numbered = number;
            wire.number();
            let frame = &wire.bytes[template.at..][..template.len as usize];
            assert_eq!(sequence(read(frame).1), Some(number), "{text}");
        }
    }
}

#[test]
fn flows_are_distinct_and_equally_frequent() {
    for (text, flows, each) in [
        ("synth:flows=1000,count=5000", 1000, 5),
        ("synth:flows=1000,count=6000,dir=both", 2000, 3),
        (
            "synth:flows=10,count=120,size=imix,proto=mix,ip=mix",
            10,
            12,
        ),
        ("synth:flows=65536,count=65536", 65_536, 1),
    ] {
        let mut seen: HashMap<Seen, u32> = HashMap::new();
        for frame in frames(text) {
            *seen.entry(read(&frame).0).or_default() += 1;
        }
        assert_eq!(seen.len(), flows, "{text}");
        assert!(seen.values().all(|it| *it == each), "{text}");
    }
}

#[test]
fn both_directions_mirror_each_other() {
    let all: HashSet<Seen> = frames("synth:flows=16,count=32,dir=both,proto=mix,ip=mix,size=80")
        .iter()
        .map(|it| read(it).0)
        .collect();
    for seen in &all {
        let mut back = seen.clone();
        back.ends.reverse();
        back.ports.reverse();
        assert!(all.contains(&back));
    }
    let kinds: HashSet<_> = all.iter().map(|it| (it.ipv6, it.tcp)).collect();
    assert_eq!(kinds.len(), 4);
}

#[test]
fn sizes_are_as_requested() {
    let sizes = |text: &str| -> Vec<usize> { frames(text).iter().map(Vec::len).collect() };
    assert_eq!(sizes("synth:count=3,flows=1"), [64; 3]);
    assert_eq!(
        sizes("synth:count=4,flows=1,size=60/100/42"),
        [60, 100, 42, 60]
    );
    assert_eq!(sizes("synth:count=4,flows=1,size=60-62"), [60, 61, 62, 60]);
    let all: HashSet<_> = sizes("synth:count=4096,size=64-1500").into_iter().collect();
    assert_eq!(all.len(), 1437);
    let imix = sizes("synth:count=1200,size=imix,flows=3");
    let count = |size| imix.iter().filter(|it| **it == size).count();
    assert_eq!((count(60), count(590), count(1514)), (700, 400, 100));
}

#[test]
fn a_frame_that_must_wait_stays_at_the_head() {
    let mut wire = open("synth:count=10,flows=3");
    let mut seen = vec![];
    let mut calls = 0;
    while wire.state() == WireState::Up {
        wire.each(0, 4, |frame| {
            calls += 1;
            if calls % 3 == 0 {
                return Delivery::Wait;
            }
            seen.push(sequence(frame.bytes).unwrap());
            Delivery::Taken
        });
    }
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
    assert_eq!(wire.each(0, 4, |_| panic!("after the end")), 0);
    assert_eq!(wire.next_due_ns(), None);
}

#[test]
fn pacing_follows_the_clock() {
    let mut wire = open("synth:pps=1000");
    let mut burst = |now| wire.each(now, 100, |_| Delivery::Taken);
    assert_eq!(burst(5_000_000), 1);
    assert_eq!(burst(5_999_999), 0);
    assert_eq!(burst(6_000_000), 1);
    assert_eq!(burst(16_000_000), 10);
    assert_eq!(wire.next_due_ns(), Some(17_000_000));
    // While a frame waits at the head, due frames do not accumulate.
    assert_eq!(wire.each(1_000_000_000, 100, |_| Delivery::Wait), 0);
    assert_eq!(wire.each(1_000_000_000, 100, |_| Delivery::Taken), 1);
}
