//! rte_flow rules, created with testpmd's flow command in isolated mode and checked by the queues
//! of received frames.

use super::testpmd::{self, Packet, Setup, Testpmd};
use super::thash::{Inputs, Thash};
use super::{capture, numbered, source};
use std::collections::BTreeMap;
use std::path::Path;
use wqcap_testkit::compare::assert_same;
use wqcap_testkit::frames::{Ends, Frame, IPV4, IPV6};
use wqcap_testkit::{Dir, Program, need};

/// Rule as a testpmd pattern and as a tshark filter, with a matching frame.
struct Rule {
    pattern: &'static str,
    filter: &'static str,
    frame: Vec<u8>,
}

fn rules() -> Vec<Rule> {
    let ends = Ends {
        from: 21,
        to: 22,
        sport: 2100,
        dport: 2200,
    };
    let to_port = |dport| Ends { dport, ..ends };
    let v4 = |ends, protocol| Frame::ethernet(&[], IPV4).ipv4(ends, protocol, 0);
    let inner = |frame: Frame, head: &[u8]| {
        let inside = v4(ends, 17).udp(ends).payload(20).done();
        frame.bytes(head).bytes(&inside).done()
    };
    vec![
        Rule {
            pattern: "eth type is 0x88cc",
            filter: "eth.type == 0x88cc",
            frame: Frame::ethernet(&[], 0x88cc).payload(46).done(),
        },
        Rule {
            pattern: "eth / vlan vid is 42",
            filter: "vlan.id == 42",
            frame: Frame::ethernet(&[(0x8100, 42)], IPV4)
                .ipv4(ends, 17, 0)
                .udp(ends)
                .payload(20)
                .done(),
        },
        Rule {
            pattern: "eth / ipv4 dst is 10.0.0.77",
            filter: "ip.dst == 10.0.0.77 and not vxlan and not gre",
            frame: v4(Ends { to: 77, ..ends }, 17).udp(ends).payload(20).done(),
        },
        Rule {
            pattern: "eth / ipv6 src is fd00::4e",
            filter: "ipv6.src == fd00::4e",
            frame: Frame::ethernet(&[], IPV6)
                .ipv6(Ends { from: 0x4e, ..ends }, 17)
                .udp(ends)
                .payload(20)
                .done(),
        },
        Rule {
            pattern: "eth / ipv4 / udp dst is 53",
            filter: "ip and udp.dstport == 53",
            frame: v4(to_port(53), 17).udp(to_port(53)).payload(20).done(),
        },
        Rule {
            pattern: "eth / ipv6 / udp src is 5353",
            filter: "ipv6.nxt == 17 and frame[54:2] == 14:e9",
            frame: {
                let ends = Ends {
                    sport: 5353,
                    ..ends
                };
                Frame::ethernet(&[], IPV6)
                    .ipv6(ends, 17)
                    .udp(ends)
                    .payload(20)
                    .done()
            },
        },
        Rule {
            pattern: "eth / ipv4 / tcp dst is 443",
            filter: "ip and tcp.dstport == 443",
            frame: v4(to_port(443), 6).tcp(to_port(443)).payload(20).done(),
        },
        Rule {
            pattern: "eth / ipv4 / udp / vxlan vni is 4660",
            filter: "udp.dstport == 4789 and frame[46:3] == 00:12:34",
            frame: inner(
                v4(to_port(4789), 17).udp(to_port(4789)),
                &[8, 0, 0, 0, 0, 0x12, 0x34, 0],
            ),
        },
        Rule {
            pattern: "eth / ipv4 / gre protocol is 0x6558",
            filter: "ip.proto == 47 and frame[36:2] == 65:58",
            frame: inner(v4(ends, 47), &[0, 0, 0x65, 0x58]),
        },
    ]
}

#[test]
fn rules_steer_frames_to_their_queues() {
    let dir = Dir::new();
    let rules = rules();
    let dropped = rules.len();
    let queues = rules.len() + 1;
    // Three frames of each kind, a frame that only the drop rule matches, and finally a marker for
    // each queue.
    let mut frames: Vec<_> = rules
        .iter()
        .flat_map(|it| vec![it.frame.clone(); 3])
        .collect();
    let ssh = Ends {
        from: 1,
        to: 2,
        sport: 3,
        dport: 22,
    };
    frames.push(
        Frame::ethernet(&[], IPV4)
            .ipv4(ssh, 6, 0)
            .tcp(ssh)
            .payload(20)
            .done(),
    );
    frames.extend((0..queues).map(testpmd::marker));
    let frames: Vec<_> = frames.into_iter().map(numbered).collect();
    let wire = capture(&dir, "rules.pcap", &frames);

    let setup = Setup {
        queues,
        options: &["--flow-isolate-all"],
        ..Setup::default()
    };
    let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
    for (queue, rule) in rules.iter().enumerate() {
        testpmd.rule(&format!(
            "pattern {} / end actions count / mark id {} / queue index {queue} / end",
            rule.pattern,
            queue + 1
        ));
    }
    testpmd.rule("pattern eth / ipv4 / tcp dst is 22 / end actions count / drop / end");
    testpmd.marker_rules(queues);
    testpmd.open_wire();
    let received = testpmd.until_markers(queues);
    let hits: Vec<_> = (0..queues).map(|rule| testpmd.hits(rule)).collect();
    drop(testpmd.quit());
    for (queue, rule) in rules.iter().enumerate() {
        let of_queue: Vec<&Packet> = received.iter().filter(|it| it.queue == queue).collect();
        let matching = matching(&dir.join("rules.pcap"), rule.filter);
        let expected: Vec<_> = matching
            .iter()
            .map(|number| source(&frames[number - 1]))
            .collect();
        assert!(!expected.is_empty(), "{}", rule.filter);
        let seen: Vec<_> = of_queue.iter().map(|it| it.source.clone()).collect();
        assert_same(rule.pattern, &seen, &expected);
        let bytes = matching.iter().map(|number| frames[number - 1].len()).sum();
        assert_eq!(hits[queue], (matching.len(), bytes), "{}", rule.pattern);
        assert!(
            of_queue.iter().all(|it| it.mark == Some(queue as u32 + 1)),
            "{of_queue:?}"
        );
    }
    assert_eq!(hits[dropped].0, 1, "hits of the drop rule");
    assert!(
        received.iter().all(|it| it.queue != dropped),
        "{received:?}"
    );
}

/// Returns the numbers, from 1, of the frames of a capture that tshark's `filter` matches.
fn matching(file: &Path, filter: &str) -> Vec<usize> {
    let done = Program::new("tshark")
        .args([
            "-n",
            "-T",
            "fields",
            "-e",
            "frame.number",
            "-Y",
            filter,
            "-r",
        ])
        .arg(file)
        .run()
        .expect(0);
    done.stdout
        .lines()
        .map(|it| it.parse().expect("a number"))
        .collect()
}

/// Kind of a frame: IP version and protocol, or `None` if it is not IP.
type Kind = Option<(u8, u8)>;

const UDP: u8 = 17;
const TCP: u8 = 6;
/// Experimental protocol number that no parser handles (RFC 3692).
const OTHER: u8 = 253;

const KINDS: [Kind; 7] = [
    Some((4, UDP)),
    Some((4, TCP)),
    Some((4, OTHER)),
    Some((6, UDP)),
    Some((6, TCP)),
    Some((6, OTHER)),
    None,
];

/// Expected delivery of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The rule does not match it.
    Missed,
    /// The frame goes to the first queue without a hash.
    First,
    /// The queue is selected by the hash of these inputs.
    Hashed(Inputs),
}
use Outcome::{First, Hashed, Missed};

/// Encapsulation of the frames of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tunnel {
    Without,
    Vxlan,
    Gre,
}

/// Rule with the RSS action.
struct Spread {
    /// Pattern after the rule's own destination address.
    pattern: &'static str,
    /// Arguments of the RSS action, without key and queues.
    rss: &'static str,
    key: Option<&'static str>,
    queues: &'static [usize],
    tunnel: Tunnel,
    /// Returns the expected delivery for the kind of a frame, or of its inner frame in a tunnel.
    outcome: fn(Kind) -> Outcome,
}

/// Tested rules. DPDK's driver creates one RSS QP for each kind of frame that a rule hashes
/// separately (`mlx5_flow_expand_rss`), and the verbs path interprets `types` as in
/// `mlx5_flow_hashfields_adjust`.
const SPREADS: [Spread; 9] = [
    Spread {
        pattern: "/ ipv4 / udp",
        rss: "types ipv4-udp end",
        key: None,
        queues: &[1, 4],
        tunnel: Tunnel::Without,
        outcome: |kind| match kind {
            Some((4, UDP)) => Hashed(Inputs::Ports),
            _ => Missed,
        },
    },
    Spread {
        pattern: "/ ipv4 / tcp",
        rss: "types ipv4 end",
        key: None,
        // Not a power of two: DPDK repeats the queues in its largest table.
        queues: &[2, 3, 5],
        tunnel: Tunnel::Without,
        outcome: |kind| match kind {
            Some((4, TCP)) => Hashed(Inputs::Addresses),
            _ => Missed,
        },
    },
    Spread {
        pattern: "/ ipv6 / udp",
        rss: "types ipv6-udp end",
        key: Some(
            "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa",
        ),
        queues: &[7, 0, 6, 1],
        tunnel: Tunnel::Without,
        outcome: |kind| match kind {
            Some((6, UDP)) => Hashed(Inputs::Ports),
            _ => Missed,
        },
    },
    Spread {
        pattern: "/ ipv6",
        rss: "types ipv6 ipv6-tcp end",
        key: None,
        queues: &[7, 6, 5, 4, 3, 2, 1, 0],
        tunnel: Tunnel::Without,
        outcome: |kind| match kind {
            Some((6, TCP)) => Hashed(Inputs::Ports),
            Some((6, _)) => Hashed(Inputs::Addresses),
            _ => Missed,
        },
    },
    Spread {
        pattern: "",
        rss: "types ip udp tcp end",
        key: None,
        queues: &[3, 6],
        tunnel: Tunnel::Without,
        outcome: every_transport,
    },
    Spread {
        pattern: "",
        rss: "types ipv4-udp end",
        key: None,
        queues: &[5, 2],
        tunnel: Tunnel::Without,
        outcome: |kind| match kind {
            Some((4, UDP)) => Hashed(Inputs::Ports),
            _ => First,
        },
    },
    Spread {
        pattern: "/ ipv4 / udp / vxlan vni is 6",
        rss: "level 2 types ip udp tcp end",
        key: None,
        queues: &[4, 7],
        tunnel: Tunnel::Vxlan,
        outcome: every_transport,
    },
    Spread {
        pattern: "/ ipv4 / udp / vxlan vni is 6",
        rss: "level 1 types ip udp end",
        key: None,
        queues: &[0, 2, 1],
        tunnel: Tunnel::Vxlan,
        // Hashed by the outer headers.
        outcome: |_| Hashed(Inputs::Ports),
    },
    Spread {
        pattern: "/ ipv4 / gre",
        rss: "level 2 types ip tcp end",
        key: None,
        queues: &[6, 1, 3, 0],
        tunnel: Tunnel::Gre,
        outcome: |kind| match kind {
            Some((_, TCP)) => Hashed(Inputs::Ports),
            Some(_) => Hashed(Inputs::Addresses),
            None => First,
        },
    },
];

fn every_transport(kind: Kind) -> Outcome {
    match kind {
        Some((_, UDP | TCP)) => Hashed(Inputs::Ports),
        Some(_) => Hashed(Inputs::Addresses),
        None => First,
    }
}

impl Spread {
    /// Returns `true` if the inner headers are hashed.
    fn is_inner(&self) -> bool {
        self.rss.starts_with("level 2")
    }

    /// Returns frames of a kind, each with the frame whose headers are hashed.
    fn frames(&self, address: [u8; 6], kind: Kind) -> Vec<(Vec<u8>, Vec<u8>)> {
        (0..16)
            .map(|i| {
                let ends = Ends {
                    from: 1 + i * 7,
                    to: 9 + i % 5,
                    sport: 1024 + i * 13,
                    dport: 443 + i % 3,
                };
                let frame = match kind {
                    Some((4, protocol)) => Frame::ethernet(&[], IPV4).ipv4(ends, protocol, 0),
                    Some((_, protocol)) => Frame::ethernet(&[], IPV6).ipv6(ends, protocol),
                    None => Frame::ethernet(&[], 0x88b5),
                };
                let frame = match kind {
                    Some((_, UDP)) => frame.udp(ends),
                    Some((_, TCP)) => frame.tcp(ends),
                    _ => frame,
                };
                let inner = frame.payload(46).done();
                let outer = Ends {
                    from: 200 + i * 3,
                    to: 300,
                    sport: 5000 + i * 11,
                    dport: 4789,
                };
                let around = Frame::ethernet(&[], IPV4);
                let mut whole = match self.tunnel {
                    Tunnel::Without => inner.clone(),
                    Tunnel::Vxlan => {
                        let around = around.ipv4(outer, UDP, 0).udp(outer);
                        around.bytes(&[8, 0, 0, 0, 0, 0, 6, 0]).bytes(&inner).done()
                    }
                    Tunnel::Gre => {
                        let around = around.ipv4(outer, 47, 0);
                        around.bytes(&[0, 0, 0x65, 0x58]).bytes(&inner).done()
                    }
                };
                whole[..6].copy_from_slice(&address);
                let whole = numbered(whole);
                let hashed = if self.is_inner() {
                    inner
                } else {
                    whole.clone()
                };
                (whole, hashed)
            })
            .collect()
    }
}

/// Default key of DPDK's driver for rules without a key (`mlx5_rss_hash_default_key`). testpmd
/// cannot query it from an isolated port.
const DEFAULT_KEY: &str =
    "2cc681d15bdbf4f7fca28319db1a3e946b9e38d92c9c03d1ad9944a7d9563d59063c25f3fc1fdc2a";

/// Returns the size of the table that DPDK's driver creates for `queues` queues
/// (`mlx5_ind_table_obj_new`): `queues` if that is a power of two, otherwise 512.
fn table_size(queues: usize) -> usize {
    if queues.is_power_of_two() {
        queues
    } else {
        512
    }
}

#[test]
fn rules_with_rss_spread_as_dpdks_software_hash() {
    let dir = Dir::new();
    let thash = need!(Thash::find(&dir));
    let address = |rule: usize| [2, 0xcc, 0, 0, 0, rule as u8];
    let queues = 8;
    // Rule, kind, frame, and hashed frame.
    let mut sent = Vec::new();
    for (number, spread) in SPREADS.iter().enumerate() {
        for kind in KINDS {
            for (frame, hashed) in spread.frames(address(number), kind) {
                sent.push((number, kind, frame, hashed));
            }
        }
    }
    let frames: Vec<_> = sent
        .iter()
        .map(|it| it.2.clone())
        .chain((0..queues).map(testpmd::marker))
        .collect();
    let wire = capture(&dir, "spread.pcap", &frames);
    let setup = Setup {
        queues,
        options: &["--flow-isolate-all"],
        ..Setup::default()
    };
    let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
    for (number, spread) in SPREADS.iter().enumerate() {
        let key = spread.key.map(|it| format!("key {it} key_len 40"));
        let listed: Vec<_> = spread.queues.iter().map(ToString::to_string).collect();
        testpmd.rule(&format!(
            "pattern eth dst is 02:CC:00:00:00:{number:02X} {} / end \
             actions mark id {} / rss {} {} queues {} end / end",
            spread.pattern,
            number + 1,
            spread.rss,
            key.unwrap_or_default(),
            listed.join(" "),
        ));
    }
    testpmd.marker_rules(queues);
    testpmd.open_wire();
    let received = testpmd.until_markers(queues);
    drop(testpmd.quit());

    let by_source: BTreeMap<_, _> = received.iter().map(|it| (it.source.clone(), it)).collect();
    assert_eq!(by_source.len(), received.len(), "a frame arrived twice");
    for (number, spread) in SPREADS.iter().enumerate() {
        let key = spread.key.unwrap_or(DEFAULT_KEY);
        let mut used = std::collections::BTreeSet::new();
        for kind in KINDS {
            let of_kind: Vec<_> = sent
                .iter()
                .filter(|it| (it.0, it.1) == (number, kind))
                .collect();
            let outcome = (spread.outcome)(kind);
            let computed = match outcome {
                Hashed(inputs) => {
                    let hashed: Vec<_> = of_kind.iter().map(|it| &it.3).collect();
                    thash.hashes(key, inputs, table_size(spread.queues.len()), &hashed)
                }
                First | Missed => vec![(0, 0); of_kind.len()],
            };
            for ((_, _, frame, _), (hash, entry)) in of_kind.into_iter().zip(computed) {
                let packet = by_source.get(&source(frame));
                let what = format!("rule {number}, {kind:?}: {packet:?}");
                let expected = (outcome != Missed).then(|| {
                    let queue = spread.queues[entry % spread.queues.len()];
                    (queue, hash, Some(number as u32 + 1))
                });
                let seen = packet.map(|it| (it.queue, it.hash, it.mark));
                assert_eq!(seen, expected, "{what}");
                used.extend(expected.map(|it| it.0));
            }
        }
        assert_eq!(
            used.len(),
            spread.queues.len(),
            "rule {number} uses {used:?}"
        );
    }
}

#[test]
fn rules_that_the_device_cannot_match_are_refused() {
    let dir = Dir::new();
    let wire = capture(&dir, "none.pcap", &[testpmd::marker(0)]);
    // The driver supports MPLS after UDP and GRE only, and only on a device that parses the bytes
    // after the label.
    const NO_MPLS: &str =
        "MPLS not supported or disabled in firmware configuration.: Operation not supported";
    const NO_RULE: &str = "cannot get hash queue: Invalid argument";
    for (setting, refused) in [
        (
            "mpls=true",
            &[
                ("eth / mpls label is 77", NO_MPLS),
                ("eth / ipv4 / udp / mpls label is 77", NO_MPLS),
                ("eth / ipv4 / gre / mpls label is 77", NO_MPLS),
            ][..],
        ),
        (
            "tunnel_offloads=false",
            &[
                ("eth / ipv4 / udp / vxlan vni is 6", NO_RULE),
                ("eth / ipv4 / gre", NO_RULE),
            ],
        ),
    ] {
        let setup = Setup {
            options: &["--flow-isolate-all"],
            settings: &[setting],
            ..Setup::default()
        };
        let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
        for (pattern, reason) in refused {
            let rule = format!("pattern {pattern} / end actions queue index 0 / end");
            let message = testpmd.refused(&rule);
            assert!(message.ends_with(reason), "{setting}, {pattern}: {message}");
        }
        drop(testpmd.quit());
    }
}
