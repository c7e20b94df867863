//! Tests of capture modes, flow rules, WQ flags and ring access through the binary: which frames
//! are captured, which are left to the kernel, and which settings are refused.

use std::collections::HashMap;
use wqcap_tests::{
    Dir, Finished, Wqcap,
    files::{self, Record},
    frames::{self, Ends, Frame},
};

/// Returns the number of copies of each frame.
fn multiset<'f>(frames: impl IntoIterator<Item = &'f [u8]>) -> HashMap<&'f [u8], usize> {
    let mut counts = HashMap::new();
    for frame in frames {
        *counts.entry(frame).or_insert(0) += 1;
    }
    counts
}

/// Returns the records of all queues.
fn all(records: &[Vec<Record>]) -> impl Iterator<Item = &Record> {
    records.iter().flatten()
}

/// Replays `frames` in a run called `name`, with `settings` and with buffers of 16 KiB, which hold
/// the longest frame.
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

/// Asserts that the run captured exactly the frames `expected`, in any order.
#[track_caller]
fn assert_captured(finished: &Finished, expected: &[Vec<u8>]) {
    finished.summary.ledger.assert_sums();
    let records = finished.records();
    assert_eq!(
        multiset(all(&records).map(|r| &r.bytes[..])),
        multiset(expected.iter().map(|f| &f[..]))
    );
}

#[test]
fn a_ring_delivers_the_same_frames_by_direct_access_and_by_libibverbs() {
    let dir = Dir::new();
    let frames = frames::assortment();
    for access in ["auto", "verbs"] {
        for idle in ["sleep", "spin"] {
            let name = format!("{access}-{idle}");
            let settings = [
                "capture.queues=3",
                &format!("capture.access={access}"),
                &format!("capture.idle={idle}"),
                // The ring has fewer WRs than a queue has frames, so it wraps around many times.
                "capture.ring=16",
            ];
            assert_captured(&replay(&dir, &name, &frames, &settings), &frames);
        }
    }
}

/// The loop sleeps before each frame, because the frames are a millisecond apart. One case is a
/// device that cannot moderate the events of its CQs.
#[test]
fn a_sleeping_loop_wakes_up_for_every_frame() {
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
        // The last frame is one byte longer than five buffers.
        assert_captured(&finished, &frames[..frames.len() - 1]);
        assert_eq!(finished.summary.ledger.total.errors, 1);
    }
}

#[test]
fn a_sniffer_captures_all_frames_on_its_only_queue() {
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

/// Returns an ARP frame, and from each of `hosts` TCP and UDP over both IP versions and ICMP over
/// IPv4, untagged and in VLAN 7.
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

/// Returns the offset of the IP header and the IP version, 0 for other protocols.
fn ip_header(frame: &[u8]) -> (usize, u8) {
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
fn filtered_mode_captures_exactly_the_frames_that_its_rules_match() {
    let dir = Dir::new();
    let input = hosts(1..20);
    let file = dir.join("input.pcap");
    files::write(&file, 0, &input);
    let rules = r#"
        [capture]
        mode = "filtered"
        queues = 3
        # The NIC drops these frames before it checks other rules.
        [[rule]]
        src = "10.0.0.8/29"
        action = "drop"
        # TCP over IPv4 to port 80 from the other hosts is spread over the queues.
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
        # IPv6 in VLAN 7 goes to another queue.
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
    let expected: Vec<_> = input
        .iter()
        .filter(|frame| match ip_header(frame) {
            (at, 4) => {
                let (host, proto) = (frame[at + 15], frame[at + 9]);
                !(8..16).contains(&host) && (proto == 6 || proto == 1)
            }
            (18, 6) => true,
            _ => false,
        })
        .cloned()
        .collect();
    assert!(expected.len() > 40 && expected.len() < input.len() / 2);
    assert_captured(&finished, &expected);
    let records = finished.records();
    for (queue, records) in records.iter().enumerate() {
        for record in records {
            match ip_header(&record.bytes) {
                (at, 4) if record.bytes[at + 9] == 1 => assert_eq!(queue, 2),
                (_, 6) => assert_eq!(queue, 1),
                _ => {}
            }
        }
    }
    let tcp = |records: &[Record]| {
        records.iter().any(|r| {
            r.bytes.len() > 24
                && ip_header(&r.bytes).1 == 4
                && r.bytes[ip_header(&r.bytes).0 + 9] == 6
        })
    };
    assert!(
        records.iter().filter(|r| tcp(r)).count() > 1,
        "TCP is spread over several queues"
    );
}

/// No source documents whether a rule with a protocol and without a port matches fragments. In both
/// cases a capture of the whole port gets each fragment exactly once. The rules of a filter match
/// the fragments or leave them to the kernel.
#[test]
fn each_fragment_is_captured_once_whether_or_not_rules_match_fragments() {
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
    // Three fragments per datagram: the first, one in the middle, the last.
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
fn impossible_rules_are_refused_before_any_object_is_created() {
    let dir = Dir::new();
    for (name, rules, says) in [
        ("none", "", &["capture.mode", "no [[rule]]"][..]),
        (
            "twice",
            "[[rule]]\nvlan = 5\nqueue = 0\n[[rule]]\nproto = \"icmp\"\nqueue = 1\n[[rule]]\nproto = \"gre\"\naction = \"drop\"",
            // No frame matches both ICMP and GRE. The VLAN rule has a different hardware priority.
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

/// The kernel assigns a separate priority to rules whose first spec matches a group MAC address. At
/// that priority, two rules with the same match both receive each frame.
#[test]
fn priorities_apply_to_rules_with_a_group_mac_address() {
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
fn stripped_tags_are_restored_or_declared_as_lost() {
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
