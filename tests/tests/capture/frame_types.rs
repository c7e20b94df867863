//! All types of frames in all modes: each frame arrives exactly once, and frames of a flow on the
//! same queue.

use std::collections::{BTreeSet, HashMap};
use wqcap_tests::{
    Dir, Finished, Wqcap,
    captures::Captures,
    files,
    frames::{self, Ends, Frame},
    oracles::reference,
};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Other protocol numbers: SCTP, ICMP, ICMPv6, ESP and GRE.
const OTHERS: [u8; 5] = [132, 1, 58, 50, 47];
/// Default number of entries of the indirection table.
const ENTRIES: usize = 128;

/// Modes with the number of queues and a configuration that captures all frames.
const MODES: [(&str, usize, &str); 3] = [
    ("steal", 4, "[capture]\nmode = \"steal\""),
    ("sniffer", 1, "[capture]\nmode = \"sniffer\""),
    (
        "filtered",
        4,
        r#"
        [capture]
        mode = "filtered"
        [[rule]]
        proto = "tcp"
        src_port = 2003
        [[rule]]
        ethertype = 0x0806
        queue = 2
        priority = 1
        [[rule]]
        dst = "10.0.0.0/8"
        priority = 2
        [[rule]]
        priority = 3
        "#,
    ),
];

fn replay(dir: &Dir, name: &str, frames: &[Vec<u8>], queues: usize, config: &str) -> Finished {
    let file = dir.join(format!("{name}.pcap"));
    files::write(&file, 0, frames);
    Wqcap::run(dir, name)
        .config(config)
        .replay(&file)
        .queues(queues)
        .set("capture.buffer=128KiB")
        .set("capture.ring=64")
        .finish(0)
}

/// Returns the queue of each frame, and asserts that every frame of the input was captured exactly
/// once.
fn places(finished: &Finished, input: &[Vec<u8>]) -> HashMap<Vec<u8>, usize> {
    let mut wanted: HashMap<&[u8], usize> = HashMap::new();
    for frame in input {
        *wanted.entry(frame).or_default() += 1;
    }
    let mut places = HashMap::new();
    for (queue, records) in finished.records().into_iter().enumerate() {
        for record in records {
            let left = wanted.get_mut(&record.bytes[..]);
            let left = left.unwrap_or_else(|| panic!("never sent: {record:?}"));
            *left = left
                .checked_sub(1)
                .unwrap_or_else(|| panic!("captured twice: {record:?}"));
            places.insert(record.bytes, queue);
        }
    }
    let mut lost = wanted.iter().filter(|(_, left)| **left > 0).map(|it| it.0);
    if let Some(first) = lost.next() {
        panic!(
            "{} are missing, one of them {:02x?} of {} bytes",
            1 + lost.count(),
            &first[..first.len().min(64)],
            first.len()
        );
    }
    places
}

/// Starts a frame with an Ethernet header and an IP header of `version` 4 or 6.
fn ip(version: u8, ends: Ends, protocol: u8) -> Frame {
    if version == 4 {
        Frame::ethernet(&[], frames::IPV4).ipv4(ends, protocol, 0)
    } else {
        Frame::ethernet(&[], frames::IPV6).ipv6(ends, protocol)
    }
}

fn l4(frame: Frame, protocol: u8, ends: Ends) -> Frame {
    match protocol {
        TCP => frame.tcp(ends),
        UDP => frame.udp(ends),
        // At the place of TCP's ports, SCTP has its ports and ESP its SPI. The hash does not use
        // these bytes.
        _ => frame.payload(24),
    }
}

/// Inserts `words` 32-bit words of options into an IPv4 header.
fn with_options(frame: &[u8], words: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[14] = 0x40 | (5 + words);
    frame.splice(34..34, vec![1; usize::from(words) * 4]);
    frame
}

/// Inserts an extension header of 8 bytes after an IPv6 header.
fn with_extension(frame: &[u8], kind: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let next = std::mem::replace(&mut frame[20], kind);
    frame.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
    frame
}

/// Returns frames of both directions for flows of each kind that is hashed.
fn flows() -> Vec<[Vec<u8>; 2]> {
    let mut flows = Vec::new();
    for i in 0..12 {
        let there = Ends {
            from: 1 + i,
            to: 100 + i % 5,
            sport: 2000 + i,
            dport: 443,
        };
        for version in [4, 6] {
            for protocol in [TCP, UDP].iter().chain(&OTHERS) {
                let one = |ends: Ends| l4(ip(version, ends, *protocol), *protocol, ends).payload(9);
                let pair = [there, there.back()].map(|ends| one(ends).done());
                if *protocol == TCP {
                    if version == 4 {
                        flows.push(pair.clone().map(|it| with_options(&it, 1 + (i as u8) % 10)));
                    } else {
                        let kind = [0, 43, 60][usize::from(i) % 3];
                        flows.push(pair.clone().map(|it| with_extension(&it, kind)));
                    }
                }
                flows.push(pair);
            }
        }
    }
    flows
}

/// Returns frames for the catch-all rule, frames without hashed ports, and unusual or truncated
/// frames.
fn odd_ones() -> Vec<Vec<u8>> {
    let ends = Ends {
        from: 9,
        to: 8,
        sport: 7,
        dport: 6,
    };
    let ether = |tags: &[(u16, u16)], kind: u16| Frame::ethernet(tags, kind);
    let mut all = vec![
        ether(&[], frames::ARP).payload(46).done(),
        // LLDP, MPLS, PPPoE discovery, PPPoE session.
        ether(&[], 0x88cc).payload(60).done(),
        ether(&[], 0x8847).payload(60).done(),
        ether(&[], 0x8863).payload(30).done(),
        ether(&[], 0x8864).payload(70).done(),
        // 802.3 with a length, and Ethernet without a payload.
        ether(&[], 38).payload(38).done(),
        ether(&[], 1500).payload(1500).done(),
        ether(&[], 0x1234).done(),
    ];
    for tags in [
        &[(0x88a8, 7), (0x8100, 100)][..],
        &[(0x8100, 7), (0x8100, 100)],
        &[(0x9100, 7), (0x8100, 100)],
        &[(0x8100, 0)],
    ] {
        let v4 = ether(tags, frames::IPV4).ipv4(ends, TCP, 0);
        all.push(v4.tcp(ends).payload(5).done());
        let v6 = ether(tags, frames::IPV6).ipv6(ends, UDP);
        all.push(v6.udp(ends).payload(5).done());
    }
    for version in [4, 6] {
        for protocol in [TCP, UDP] {
            let whole = l4(ip(version, ends, protocol), protocol, ends).done();
            // Truncated at every byte of the L3 and L4 headers.
            all.extend((15..whole.len()).map(|len| whole[..len].to_vec()));
            let jumbo = l4(ip(version, ends, protocol), protocol, ends);
            all.push(jumbo.payload(8900).done());
        }
        all.push(ip(version, ends, 59).done());
    }
    all
}

#[test]
fn every_type_arrives_once_in_every_mode() {
    let dir = Dir::new();
    let flows = flows();
    let mut input: Vec<_> = flows.iter().flatten().cloned().collect();
    input.extend(odd_ones());
    for (mode, queues, config) in MODES {
        let finished = replay(&dir, mode, &input, queues, config);
        let places = places(&finished, &input);
        for [there, back] in &flows {
            let queues = (places[there], places[back]);
            assert_eq!(queues.0, queues.1, "{mode}: {there:02x?}");
        }
        let used: BTreeSet<_> = flows.iter().map(|pair| places[&pair[0]]).collect();
        assert_eq!(used.len(), queues, "{mode}");
        assert_eq!(finished.summary.nic("out_of_buffer"), 0);
    }
}

#[test]
fn every_capture_arrives_once_in_every_mode() {
    let dir = Dir::new();
    let captures = Captures::find();
    let input: Vec<_> = captures
        .files
        .iter()
        .flat_map(|file| files::read_as_it_stands(file))
        .map(|record| record.bytes)
        .filter(|bytes| (14..=128 << 10).contains(&bytes.len()))
        .collect();
    assert!(input.len() > 1000, "{}", input.len());
    for (mode, queues, config) in MODES {
        let finished = replay(&dir, mode, &input, queues, config);
        places(&finished, &input);
        wqcap_tests::skip::say(&format!(
            "{mode}: {} frames of {} captures, each once",
            input.len(),
            captures.files.len()
        ));
    }
}

#[test]
fn fragments_are_spread_by_their_addresses() {
    let dir = Dir::new();
    let mut input = Vec::new();
    let mut groups = Vec::new();
    for i in 0..40 {
        let ends = Ends {
            from: 1 + i,
            to: 500 + 11 * i * i,
            sport: 3000 + i,
            dport: 4000 + 7 * i,
        };
        let v4 = |fragment| Frame::ethernet(&[], frames::IPV4).ipv4(ends, UDP, fragment);
        // The first fragment, which has the ports, a middle one, the last one, and a packet without
        // ports.
        let of_v4 = [
            v4(0x2000).udp(ends).payload(100).done(),
            v4(0x2010).payload(100).done(),
            v4(0x0020).payload(40).done(),
            ip(4, ends, 1).payload(40).done(),
        ];
        let whole = ip(6, ends, UDP).udp(ends).payload(64).done();
        let v6 = |offset: u16| {
            let mut frame = with_extension(&whole, 44);
            frame[56..58].copy_from_slice(&offset.to_be_bytes());
            frame
        };
        let of_v6 = [
            v6(1),
            v6(0x81),
            v6(0x100),
            ip(6, ends, 58).payload(40).done(),
        ];
        for group in [of_v4, of_v6] {
            input.extend(group.iter().cloned());
            groups.push(group);
        }
    }
    for hash in ["l4", "l3"] {
        let config = format!("[rss]\nhash = \"{hash}\"");
        let finished = replay(&dir, hash, &input, 5, &config);
        let places = places(&finished, &input);
        let mut used = BTreeSet::new();
        for group in &groups {
            let queues: BTreeSet<_> = group.iter().map(|frame| places[frame]).collect();
            assert_eq!(queues.len(), 1, "{hash}: {group:02x?}");
            used.extend(queues);
        }
        assert_eq!(used.len(), 5, "{hash}");
    }
}

/// Wraps an Ethernet frame in VXLAN between two hosts. The source port depends on the inner frame
/// (RFC 7348).
fn vxlan(version: u8, inside: &[u8]) -> Vec<u8> {
    let ends = Ends {
        from: 240,
        to: 241,
        sport: 50_000 + u16::from(inside[inside.len() - 1]),
        dport: 4789,
    };
    let outer = ip(version, ends, UDP).udp(ends);
    outer
        .bytes(&[0x08, 0, 0, 0, 0, 0, 99, 0])
        .bytes(inside)
        .done()
}

/// Wraps the IP packet of an Ethernet frame in GRE between two hosts.
fn gre(version: u8, inside: &[u8]) -> Vec<u8> {
    let ends = Ends {
        from: 240,
        to: 241,
        sport: 0,
        dport: 0,
    };
    let gre = ip(version, ends, 47).bytes(&[0, 0, inside[12], inside[13]]);
    gre.bytes(&inside[14..]).done()
}

#[test]
fn tunnels_are_spread_by_their_inner_headers() {
    let dir = Dir::new();
    let inside = flows();
    let arp = Frame::ethernet(&[], frames::ARP).payload(46).done();
    let mut input: Vec<_> = inside.iter().flatten().cloned().collect();
    input.extend(odd_ones());
    for wrap in [vxlan, gre] {
        for version in [4, 6] {
            let wrapped = inside.iter().flatten().map(|it| wrap(version, it));
            input.extend(wrapped.chain([wrap(version, &arp)]));
        }
    }
    for hash in ["l4", "l3"] {
        let config = format!("[rss]\nhash = \"{hash}\"\ninner = true");
        let finished = replay(&dir, hash, &input, 4, &config);
        let places = places(&finished, &input);
        for [there, back] in &inside {
            for wrap in [vxlan, gre] {
                for version in [4, 6] {
                    let queue = places[&wrap(version, there)];
                    assert_eq!(queue, places[&wrap(version, back)], "{hash}: {there:02x?}");
                    // The same queue as without a tunnel.
                    assert_eq!(queue, places[there], "{hash}: {there:02x?}");
                    if hash == "l4" {
                        assert_eq!(queue, reference::queue(there, 4, ENTRIES));
                    }
                }
            }
        }
    }
    Wqcap::run(&dir, "without")
        .model("synth:count=1")
        .set("rss.inner=true")
        .set("model.tunnel_offloads=false")
        .done()
        .expect(2)
        .says(&["rss.inner", "mlx5_0", "TUNNELED_OFFLOAD_VXLAN"]);
}

/// Returns the 99.9 % quantile of the chi-squared distribution for `degrees` of freedom.
fn limit(degrees: usize) -> f64 {
    use statrs::distribution::{ChiSquared, ContinuousCDF};
    let chi_squared = ChiSquared::new(degrees as f64).expect("at least one");
    chi_squared.inverse_cdf(0.999)
}

#[test]
fn ten_thousand_flows_spread_as_a_random_hash_would() {
    let dir = Dir::new();
    // Local generator with a fixed seed, so that every run has the same flows.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as u16
    };
    let input: Vec<_> = (0..10_000u16)
        .map(|i| {
            let ends = Ends {
                from: random(),
                to: random(),
                sport: random(),
                dport: random(),
            };
            let protocol = if i % 2 == 0 { TCP } else { UDP };
            let version = if i / 2 % 2 == 0 { 4 } else { 6 };
            l4(ip(version, ends, protocol), protocol, ends).done()
        })
        .collect();
    let file = dir.join("flows.pcap");
    files::write(&file, 0, &input);
    for queues in 2..=16 {
        // The ledger counts the frames of each queue, so no files are written.
        let finished = Wqcap::run(&dir, &format!("{queues}"))
            .replay(&file)
            .queues(queues)
            .set("output.format=none")
            .finish(0);
        let ledger = &finished.summary.ledger;
        assert_eq!(ledger.total.captured, 10_000);
        // The queues are assigned to table entries in turn: some have one entry more than others.
        let statistic: f64 = (0..queues)
            .map(|queue| {
                let entries = (queue..ENTRIES).step_by(queues).count();
                let expected = 10_000.0 * entries as f64 / ENTRIES as f64;
                let seen = ledger.queues[queue].captured as f64;
                (seen - expected).powi(2) / expected
            })
            .sum();
        let limit = limit(queues - 1);
        wqcap_tests::skip::say(&format!(
            "{queues} queues: chi-squared {statistic:.1}, 99.9 % are below {limit:.1}"
        ));
        assert!(
            statistic < limit,
            "{queues} queues: {statistic:.1} of {limit:.1}"
        );
    }
}
