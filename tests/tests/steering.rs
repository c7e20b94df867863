//! Modes, rules, WQ flags and the ways to a ring, through the binary: what is taken, what is left, what is refused.

use std::collections::HashMap;
use wqcap_tests::{
    Dir, Finished, Wqcap,
    files::{self, Record},
    frames::{self, Ends, Frame},
};

/// How often each frame is there.
fn multiset<'f>(frames: impl IntoIterator<Item = &'f [u8]>) -> HashMap<&'f [u8], usize> {
    let mut counts = HashMap::new();
    for frame in frames {
        *counts.entry(frame).or_insert(0) += 1;
    }
    counts
}

fn all(records: &[Vec<Record>]) -> impl Iterator<Item = &Record> {
    records.iter().flatten()
}

/// Replays `frames` as `name`, with `settings` on top of buffers that take the longest of them.
fn replay(dir: &Dir, name: &str, frames: &[Vec<u8>], settings: &[&str]) -> Finished {
    let file = dir.join(format!("{name}.pcap"));
    files::write(&file, 0, frames);
    let mut run = Wqcap::run(dir, name)
        .replay(&file)
        .set("capture.buffer=16KiB")
        .set("capture.ring=64");
    for setting in settings {
        run = run.set(setting);
    }
    run.finish(0)
}

#[track_caller]
fn assert_captured(finished: &Finished, wanted: &[Vec<u8>]) {
    finished.summary.ledger.assert_sums();
    let records = finished.records();
    assert_eq!(
        multiset(all(&records).map(|r| &r.bytes[..])),
        multiset(wanted.iter().map(|f| &f[..]))
    );
}

#[test]
fn a_ring_is_the_same_by_direct_verbs_and_by_the_verbs() {
    let dir = Dir::new();
    let frames = frames::assortment();
    for access in ["auto", "verbs"] {
        for idle in ["sleep", "spin"] {
            let name = format!("{access}-{idle}");
            let settings = [
                "capture.queues=3",
                &format!("capture.access={access}"),
                &format!("capture.idle={idle}"),
                // Fewer WRs than frames of a queue, many times round.
                "capture.ring=16",
            ];
            assert_captured(&replay(&dir, &name, &frames, &settings), &frames);
        }
    }
}

/// Frames far apart, each of which finds the loop asleep; and on a device that cannot moderate its CQs' events.
#[test]
fn a_sleeper_is_woken_for_every_frame() {
    const FRAMES: u64 = 400;
    let dir = Dir::new();
    for (name, settings) in [
        (
            "direct",
            ["capture.access=auto", "model.cq_moderation=true"],
        ),
        (
            "verbs",
            ["capture.access=verbs", "model.cq_moderation=true"],
        ),
        (
            "at-once",
            ["capture.access=auto", "model.cq_moderation=false"],
        ),
    ] {
        let mut run = Wqcap::run(&dir, name)
            .model(&format!("synth:count={FRAMES},size=94,pps=1000"))
            .queues(1)
            .set("capture.idle=sleep");
        for setting in settings {
            run = run.set(setting);
        }
        let finished = run.finish(0);
        assert_eq!(
            finished.summary.ledger.total.captured, FRAMES,
            "{}",
            finished.done
        );
    }
}

#[test]
fn a_jumbo_frame_over_several_buffers_is_written_whole() {
    let dir = Dir::new();
    let frames: Vec<_> = [60, 2047, 2048, 2049, 4096, 9000, 10_240, 10_241]
        .map(|size| frames::udp_flows(1, size).remove(0))
        .into();
    for access in ["auto", "verbs"] {
        let settings = [
            "capture.queues=1",
            "capture.buffer=2048",
            "capture.receive=frame",
            "capture.max_sge=5",
            &format!("capture.access={access}"),
        ];
        let finished = replay(&dir, access, &frames, &settings);
        // The last is one byte longer than five buffers.
        assert_captured(&finished, &frames[..frames.len() - 1]);
        assert_eq!(finished.summary.ledger.total.errors, 1);
    }
}

#[test]
fn a_sniffer_takes_everything_on_its_one_queue() {
    let dir = Dir::new();
    let frames = frames::assortment();
    let settings = ["capture.mode=sniffer", "capture.queues=1"];
    assert_captured(&replay(&dir, "one", &frames, &settings), &frames);

    Wqcap::run(&dir, "two")
        .model("loopback")
        .set("capture.mode=sniffer")
        .queues(2)
        .done()
        .expect(2)
        .says(&["capture.queues", "2", "sniffer", "one queue"]);
    Wqcap::run(&dir, "none")
        .model("loopback")
        .set("capture.mode=sniffer")
        .set("model.sniffer=false")
        .queues(1)
        .done()
        .expect(2)
        .says(&["ibv_create_flow"]);
}

/// UDP and TCP over both IP versions from `hosts`, untagged and in VLAN 7, and an ARP frame.
fn hosts(hosts: std::ops::Range<u16>) -> Vec<Vec<u8>> {
    let mut frames = vec![Frame::ethernet(&[], frames::ARP).payload(46).done()];
    for from in hosts {
        let ends = Ends {
            from,
            to: 200,
            sport: 3000 + from,
            dport: 80,
        };
        for tags in [&[][..], &[(0x8100, 7)]] {
            let (v4, v6) = (
                Frame::ethernet(tags, frames::IPV4),
                Frame::ethernet(tags, frames::IPV6),
            );
            frames.push(v4.clone().ipv4(ends, 6, 0).tcp(ends).payload(9).done());
            frames.push(v4.clone().ipv4(ends, 17, 0).udp(ends).payload(9).done());
            frames.push(v4.ipv4(ends, 1, 0).payload(20).done());
            frames.push(v6.clone().ipv6(ends, 6).tcp(ends).payload(9).done());
            frames.push(v6.ipv6(ends, 17).udp(ends).payload(9).done());
        }
    }
    frames
}

/// Where the IP header is, and which version it has.
fn ip(frame: &[u8]) -> (usize, u8) {
    let tagged = frame[12..14] == [0x81, 0];
    let at = if tagged { 18 } else { 14 };
    let version = match frame[at - 2..at] {
        [0x08, 0x00] => 4,
        [0x86, 0xdd] => 6,
        _ => 0,
    };
    (at, version)
}

#[test]
fn filtered_mode_takes_what_its_rules_name_and_nothing_else() {
    let dir = Dir::new();
    let input = hosts(1..20);
    let file = dir.join("input.pcap");
    files::write(&file, 0, &input);
    let rules = r#"
        [capture]
        mode = "filtered"
        queues = 3
        # Dropped in the NIC, before anything else is looked at.
        [[rule]]
        src = "10.0.0.8/29"
        action = "drop"
        # Of the rest of IPv4, TCP to port 80 is spread.
        [[rule]]
        src = "10.0.0.0/16"
        proto = "tcp"
        dst_port = 80
        priority = 1
        # ICMP goes to one queue.
        [[rule]]
        proto = "icmp"
        queue = 2
        priority = 1
        # And so does what IPv6 there is in VLAN 7.
        [[rule]]
        vlan = 7
        ethertype = 0x86dd
        queue = 1
        priority = 2
    "#;
    let finished = Wqcap::run(&dir, "rules")
        .config(rules)
        .replay(&file)
        .finish(0);
    let wanted: Vec<_> = input
        .iter()
        .filter(|frame| match ip(frame) {
            (at, 4) => {
                let (host, proto) = (frame[at + 15], frame[at + 9]);
                !(8..16).contains(&host) && (proto == 6 || proto == 1)
            }
            (18, 6) => true,
            _ => false,
        })
        .cloned()
        .collect();
    assert!(wanted.len() > 40 && wanted.len() < input.len() / 2);
    assert_captured(&finished, &wanted);
    let records = finished.records();
    for (queue, records) in records.iter().enumerate() {
        for record in records {
            match ip(&record.bytes) {
                (at, 4) if record.bytes[at + 9] == 1 => assert_eq!(queue, 2),
                (_, 6) => assert_eq!(queue, 1),
                _ => {}
            }
        }
    }
    let tcp = |records: &[Record]| {
        records
            .iter()
            .any(|r| r.bytes.len() > 24 && ip(&r.bytes).1 == 4 && r.bytes[ip(&r.bytes).0 + 9] == 6)
    };
    assert!(
        records.iter().filter(|r| tcp(r)).count() > 1,
        "TCP is spread"
    );
}

/// Whether a rule that names a protocol and no port matches fragments, no source tells: either way a port that is taken
/// whole loses none and has none twice, and a filter's rules take them or leave them to the kernel.
#[test]
fn fragments_come_once_whatever_the_nic_knows_of_their_protocol() {
    let dir = Dir::new();
    let ends = |i: u16| Ends {
        from: 1 + i,
        to: 500 + 11 * i,
        sport: 3000 + i,
        dport: 4000 + 7 * i,
    };
    let udp = |i, fragment| {
        let frame = Frame::ethernet(&[], frames::IPV4).ipv4(ends(i), 17, fragment);
        frame.udp(ends(i)).payload(100).done()
    };
    let whole: Vec<_> = (0..20).map(|i| udp(i, 0)).collect();
    // The first, one in the middle, the last.
    let fragments = (0..20).flat_map(|i| [0x2000, 0x2010, 0x0020].map(|it| udp(i, it)));
    let all: Vec<_> = whole.iter().cloned().chain(fragments).collect();
    for known in [true, false] {
        let known_of = format!("model.fragment_protocol={known}");
        for hash in ["l4", "l3"] {
            let settings = [&known_of, "capture.queues=3", &format!("rss.hash={hash}")];
            let finished = replay(&dir, &format!("{known}-{hash}"), &all, &settings);
            assert_captured(&finished, &all);
        }
        let settings = [
            &known_of,
            "capture.mode=filtered",
            "capture.filter=ip and udp",
        ];
        let finished = replay(&dir, &format!("{known}-filtered"), &all, &settings);
        assert_captured(&finished, if known { &all } else { &whole });
    }
}

#[test]
fn rules_that_cannot_be_are_refused_before_anything_is_made() {
    let dir = Dir::new();
    for (name, rules, says) in [
        ("none", "", &["capture.mode", "no [[rule]]"][..]),
        (
            "twice",
            "[[rule]]\nvlan = 5\nqueue = 0\n[[rule]]\nproto = \"icmp\"\nqueue = 1\n[[rule]]\nproto = \"gre\"\naction = \"drop\"",
            // ICMP and GRE exclude each other; the VLAN's rule has another hardware priority than both.
            &[][..],
        ),
        (
            "overlap",
            "[[rule]]\nsrc = \"10.0.0.0/8\"\nqueue = 0\n[[rule]]\ndst = \"10.0.0.0/8\"\nqueue = 1",
            &["rule 2", "rule 1", "priority"][..],
        ),
        (
            "queue",
            "[[rule]]\nqueue = 9",
            &["rule 1", "queue", "9", "0 to 1"][..],
        ),
        ("ports", "[[rule]]\ndst_port = 80", &["rule 1", "proto"][..]),
    ] {
        let config = format!("[capture]\nmode = \"filtered\"\nqueues = 2\n{rules}");
        let run = Wqcap::run(&dir, name)
            .config(&config)
            .model("synth:count=10");
        if says.is_empty() {
            let finished = run.finish(0);
            assert_eq!(finished.summary.ledger.total.received, 0, "{name}");
        } else {
            run.done().expect(2).says(says);
        }
    }
}

/// The kernel gives rules whose first spec asks for a group MAC address a priority of their own, on which two rules of the
/// same match both take each frame.
#[test]
fn priorities_hold_for_rules_with_a_group_mac_address() {
    let dir = Dir::new();
    let group = [0x01, 0x00, 0x5e, 0x00, 0x00, 0x05];
    let mut input = frames::udp_flows(60, 100);
    for frame in &mut input {
        frame[..6].copy_from_slice(&group);
    }
    let file = dir.join("group.pcap");
    files::write(&file, 0, &input);
    let finished = Wqcap::run(&dir, "group")
        .config(
            r#"
            [capture]
            mode = "filtered"
            queues = 2
            [[rule]]
            dst_mac = "01:00:5e:00:00:05"
            queue = 1
            [[rule]]
            dst_mac = "01:00:5e:00:00:05"
            queue = 0
            priority = 1
            "#,
        )
        .replay(&file)
        .finish(0);
    assert_captured(&finished, &input);
    let queues = &finished.summary.ledger.queues;
    assert_eq!((queues[0].received, queues[1].received), (0, 60));
}

#[test]
fn stripped_tags_are_put_back_or_said_to_be_lost() {
    let dir = Dir::new();
    let ends = Ends {
        from: 1,
        to: 2,
        sport: 3,
        dport: 4,
    };
    let mut input = Vec::new();
    for tags in [
        &[][..],
        &[(0x8100, 0)],
        &[(0x8100, 5)],
        &[(0x8100, 0xffff)],
        &[(0x88a8, 9), (0x8100, 5)],
        &[(0x8100, 9), (0x8100, 0)],
    ] {
        let v4 = Frame::ethernet(tags, frames::IPV4);
        input.push(v4.clone().ipv4(ends, 17, 0).udp(ends).payload(30).done());
        input.push(v4.ipv4(ends, 6, 0).tcp(ends).payload(1400).done());
        input.push(Frame::ethernet(tags, 0x88cc).payload(50).done());
    }
    let flag = "wq.cvlan_stripping=true";
    assert_captured(
        &replay(&dir, "restore", &input, &["capture.queues=2", flag]),
        &input,
    );

    let bare: Vec<_> = input
        .iter()
        .map(|frame| match frame[12..14] {
            [0x81, 0x00] => [&frame[..12], &frame[16..]].concat(),
            _ => frame.clone(),
        })
        .collect();
    assert_ne!(bare, input);
    for access in ["auto", "verbs"] {
        let settings = [
            "capture.queues=2",
            flag,
            "output.vlan=lost",
            &format!("capture.access={access}"),
        ];
        assert_captured(
            &replay(&dir, &format!("lost-{access}"), &input, &settings),
            &bare,
        );
    }
    Wqcap::run(&dir, "refused")
        .model("loopback")
        .set(flag)
        .set("capture.access=verbs")
        .done()
        .expect(2)
        .says(&["wq.cvlan_stripping", "output.vlan"]);
}

#[test]
fn a_flag_needs_its_capability() {
    let dir = Dir::new();
    for (flag, capability, says) in [
        ("cvlan_stripping", "cvlan_stripping", "CVLAN_STRIPPING"),
        ("scatter_fcs", "scatter_fcs", "SCATTER_FCS"),
        ("delay_drop", "delay_drop", "DELAY_DROP"),
        (
            "pci_write_end_padding",
            "end_padding",
            "PCI_WRITE_END_PADDING",
        ),
    ] {
        let run = |name: &str, has: bool| {
            Wqcap::run(&dir, &format!("{flag}-{name}"))
                .model("synth:size=60,count=100")
                .set(&format!("wq.{flag}=true"))
                .set(&format!("model.{capability}={has}"))
                .queues(1)
        };
        run("without", false)
            .done()
            .expect(2)
            .says(&[&format!("wq.{flag}"), "mlx5_0", says]);
        let finished = run("with", true).finish(0);
        assert_eq!(finished.summary.ledger.total.captured, 100, "{flag}");
    }
}

#[test]
fn rotation_cuts_between_frames() {
    let dir = Dir::new();
    let frames = frames::udp_flows(20_000, 200);
    for format in ["pcap", "pcapng"] {
        let format = format!("output.format={format}");
        let settings = ["capture.queues=2", &format, "output.rotate_size=100KiB"];
        let finished = replay(&dir, &format.replace('=', "-"), &frames, &settings);
        assert_captured(&finished, &frames);
        let files = finished.files();
        assert!(files.len() > 30, "{}", files.len());
        for (_, path) in &files {
            assert!(path.metadata().unwrap().len() <= 100 << 10);
        }
    }
}
