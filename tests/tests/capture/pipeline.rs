//! Frames that are left out or truncated on purpose: filters, deduplication, sampling and slices,
//! through the binary.
//!
//! The files of each run have exactly the expected frames. The other frames are counted in the
//! ledger's line of their step, and in no other line.

use std::{collections::HashMap, process::Command};
use wqcap_rss::{FrameClass, L3};
use wqcap_tests::{
    Dir, Finished, Wqcap,
    captures::Captures,
    compare::assert_frames,
    files::{self, Record},
    frames::{self, Ends, Frame},
    skip,
    wqcap::wqcap,
};

/// Returns the records of all queues.
fn records(finished: &Finished) -> Vec<Record> {
    finished.records().into_iter().flatten().collect()
}

/// Sorts frames, because frames of different queues have no order.
fn sorted(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut frames: Vec<_> = frames.into_iter().collect();
    frames.sort();
    frames
}

fn run<'d>(dir: &'d Dir, name: &str, file: &std::path::Path) -> Wqcap<'d> {
    Wqcap::run(dir, name)
        .replay(file)
        .queues(3)
        .set("capture.buffer=128KiB")
        .set("capture.ring=32")
}

#[test]
fn a_filter_keeps_what_tcpdump_keeps() {
    let dir = Dir::new();
    let (file, frames) = Captures::find().everything(&dir);
    for (i, expression) in [
        "tcp port 80 or arp",
        "vlan and ip",
        "not (udp or tcp) and greater 100",
        "ip6 and ip6[6] = 58",
    ]
    .iter()
    .enumerate()
    {
        let theirs = dir.join("theirs.pcap");
        let mut tcpdump = Command::new("tcpdump");
        tcpdump
            .arg("-r")
            .arg(&file)
            .arg("-w")
            .arg(&theirs)
            .arg(expression);
        match tcpdump.output() {
            Ok(done) => assert!(done.status.success(), "{done:?}"),
            Err(e) => skip!("tcpdump cannot be run: {e}"),
        }
        let theirs = files::read_as_it_stands(&theirs);
        let finished = run(&dir, &format!("filter-{i}"), &file)
            .set(&format!("capture.filter={expression}"))
            .finish(0);
        let total = finished.summary.ledger.total;
        assert_eq!(total.received, frames.len() as u64, "{expression}");
        assert_eq!(total.captured, theirs.len() as u64, "{expression}");
        assert_eq!(total.filtered, total.received - total.captured);
        assert_frames(
            expression,
            &sorted(records(&finished).into_iter().map(|it| it.bytes)),
            &sorted(theirs.into_iter().map(|it| it.bytes)),
        );
    }
}

/// A frame that the filter keeps and no rule takes is one that no NIC parses. On a NIC whose rules
/// for a protocol do not match fragments, it may also be a fragment.
#[test]
fn rules_with_a_filter_keep_the_same_frames_as_the_filter_alone() {
    let dir = Dir::new();
    let (file, frames) = Captures::find().everything(&dir);
    for (i, (expression, fragments)) in [
        ("tcp port 80 or arp", true),
        ("udp and greater 100", true),
        ("udp and greater 100", false),
        ("ip6 net fe80::/10 and not icmp6", true),
        ("ether[12:2] = 0x8100 and vlan and ip", true),
    ]
    .iter()
    .enumerate()
    {
        let capture = |mode: &str| {
            let finished = run(&dir, &format!("{mode}-{i}"), &file)
                .set(&format!("model.fragment_protocol={fragments}"))
                .set(&format!("capture.mode={mode}"))
                .set(&format!("capture.filter={expression}"))
                .finish(0);
            let received = finished.summary.ledger.total.received;
            let kept = sorted(records(&finished).into_iter().map(|it| it.bytes));
            (received, kept)
        };
        let (all, alone) = capture("steal");
        let (taken, together) = capture("filtered");
        assert_eq!(all, frames.len() as u64);
        assert!(
            taken < all,
            "{expression}: the rules do not take all frames"
        );
        // Both lists are sorted, so a merge finds the frames that are in one list only.
        let mut found = together.iter().peekable();
        let mut missing = Vec::new();
        for frame in &alone {
            if found.next_if_eq(&frame).is_none() {
                missing.push(frame);
            }
        }
        let more = found.next();
        assert!(
            more.is_none(),
            "{expression}: the filter alone leaves out {more:02x?}"
        );
        for frame in &missing {
            let class = FrameClass::from_frame(frame);
            let untaken =
                class.truncated_l4 || class.l3 == L3::None || class.fragment && !fragments;
            assert!(
                untaken,
                "{expression}: a rule takes {frame:02x?}, but the frame is missing"
            );
        }
        let unparsed = missing
            .iter()
            .filter(|it| *fragments || !FrameClass::from_frame(it).fragment);
        assert!(unparsed.count() * 20 <= alone.len(), "{expression}");
    }
}

#[test]
fn check_shows_the_parts_of_a_filter_in_the_nic_and_in_software() {
    let dir = Dir::new();
    let check = |expression: &str| {
        wqcap([
            "check",
            "--model",
            "synth:count=10",
            "--set",
            "capture.mode=filtered",
        ])
        .args(["--set", &format!("capture.filter={expression}")])
        .arg("--set")
        .arg(format!("output.dir={}", dir.path().display()))
        .run()
    };
    let done = check("udp dst port 53").expect(0);
    let split = "filter   the NIC selects frames by these rules: ipv4 protocol 17; ipv6 udp dst port 53; software \
                 then selects among them by this expression: udp dst port 53";
    let words: Vec<_> = done.stdout.split_whitespace().collect();
    let wanted: Vec<_> = split.split_whitespace().collect();
    assert!(words.join(" ").contains(&wanted.join(" ")), "{done}");
    let done = check("arp or greater 100").expect(2);
    assert!(
        done.stderr.contains("capture.filter") && done.stderr.contains("write [[rule]]s"),
        "{done}"
    );
}

#[test]
fn the_error_for_a_bad_filter_has_libpcaps_message() {
    let dir = Dir::new();
    for command in ["check", "run"] {
        for (expression, message) in [
            ("tcp prot 80", "syntax error"),
            ("inbound", "a frame does not contain"),
        ] {
            let done = wqcap([command, "--model", "synth:count=10"])
                .args(["--set", &format!("capture.filter={expression}")])
                .arg("--set")
                .arg(format!("output.dir={}", dir.path().display()))
                .run()
                .expect(2);
            let value = format!("capture.filter = \"{expression}\"");
            assert!(done.stderr.contains(&value), "{done}");
            assert!(done.stderr.contains(message), "{done}");
        }
    }
}

#[test]
fn a_count_counts_frames_that_are_kept() {
    let dir = Dir::new();
    let file = dir.join("flows.pcap");
    files::write(&file, 1_600_000_000, &frames::udp_flows(400, 100));
    let finished = run(&dir, "count", &file)
        .set("capture.filter=udp src port 1025")
        .args(&["--count", "7"])
        .finish(0);
    assert_eq!(finished.summary.ledger.total.captured, 7);
}

#[test]
fn slices_keep_the_length_on_the_wire() {
    let dir = Dir::new();
    let (file, whole) = Captures::find().everything(&dir);
    for slice in ["l3", "l4", "payload:16"] {
        let finished = run(&dir, &slice.replace(':', "-"), &file)
            .queues(1)
            .set(&format!("capture.slice={slice}"))
            .finish(0);
        let records = records(&finished);
        assert_eq!(records.len(), whole.len());
        assert_eq!(finished.summary.ledger.total.captured, whole.len() as u64);
        // With one queue, frames keep the input's order.
        let mut cut = 0;
        for (record, frame) in records.iter().zip(&whole) {
            assert_eq!(record.len as usize, frame.len());
            assert!(frame.starts_with(&record.bytes));
            cut += usize::from(record.bytes.len() < frame.len());
        }
        assert!(
            cut > whole.len() / 4,
            "{slice}: only {cut} frames are truncated"
        );
        assert!(finished.summary.json["malformed"].is_object());
    }
}

#[test]
fn slices_end_after_their_header() {
    let dir = Dir::new();
    let ends = Ends {
        from: 1,
        to: 2,
        sport: 1000,
        dport: 2000,
    };
    let tagged = Frame::ethernet(&[(0x8100, 5)], frames::IPV4).ipv4(ends, 6, 0);
    let tagged = tagged.tcp(ends).payload(50).done();
    let six = Frame::ethernet(&[], frames::IPV6).ipv6(ends, 17);
    let six = six.udp(ends).payload(50).done();
    let arp = Frame::ethernet(&[], frames::ARP).payload(46).done();
    let later = Frame::ethernet(&[], frames::IPV4).ipv4(ends, 17, 3);
    let later = later.payload(50).done();
    let file = dir.join("four.pcap");
    files::write(&file, 1_600_000_000, &[tagged, six, arp, later]);
    for (slice, lengths) in [
        ("l3", [38, 54, 60, 34]),
        ("l4", [58, 62, 60, 34]),
        ("payload:10", [68, 72, 60, 44]),
    ] {
        let finished = run(&dir, &slice.replace(':', "-"), &file)
            .queues(1)
            .set(&format!("capture.slice={slice}"))
            .finish(0);
        let kept: Vec<_> = records(&finished).iter().map(|it| it.bytes.len()).collect();
        assert_eq!(kept, lengths, "{slice}");
    }
}

#[test]
fn sampling_by_frame_keeps_every_nth_frame() {
    let dir = Dir::new();
    let file = dir.join("flows.pcap");
    let frames = frames::udp_flows(1000, 100);
    files::write(&file, 1_600_000_000, &frames);
    let finished = run(&dir, "frames", &file)
        .queues(1)
        .set("capture.sample=10")
        .finish(0);
    let total = finished.summary.ledger.total;
    assert_eq!((total.captured, total.sampled_out), (100, 900));
    let expected: Vec<_> = frames.iter().step_by(10).collect();
    let found = records(&finished).into_iter().map(|it| it.bytes);
    assert_frames("one in ten", &found.collect::<Vec<_>>(), &expected);
}

#[test]
fn sampling_by_flow_keeps_whole_flows_in_both_directions() {
    let dir = Dir::new();
    let file = dir.join("flows.pcap");
    let mut sent = Vec::new();
    for round in 0..5 {
        for flow in 0..200 {
            let there = Ends {
                from: 1 + flow % 7,
                to: 50,
                sport: 3000 + flow,
                dport: 443,
            };
            for ends in [there, there.back()] {
                let frame = Frame::ethernet(&[], frames::IPV4).ipv4(ends, 6, 0);
                sent.push(frame.tcp(ends).payload(10 + round).done());
            }
        }
    }
    files::write(&file, 1_600_000_000, &sent);
    let kept = |name: &str, queues: usize| {
        let finished = run(&dir, name, &file)
            .queues(queues)
            .set("capture.sample=5")
            .set("capture.sample_by=flow")
            .finish(0);
        let total = finished.summary.ledger.total;
        assert_eq!(total.captured + total.sampled_out, sent.len() as u64);
        sorted(records(&finished).into_iter().map(|it| it.bytes))
    };
    let frames = kept("flows-3", 3);
    let mut by_flow: HashMap<u16, usize> = HashMap::new();
    for frame in &frames {
        let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        *by_flow.entry(port(34).max(port(36))).or_default() += 1;
    }
    assert!((20..60).contains(&by_flow.len()), "{} flows", by_flow.len());
    assert!(by_flow.values().all(|count| *count == 10), "{by_flow:?}");
    // The choice depends only on the flow: a run with one queue keeps the same flows.
    assert_frames("one queue", &kept("flows-1", 1), &frames);
}

#[test]
fn repeated_frames_are_left_out() {
    let dir = Dir::new();
    let file = dir.join("twice.pcap");
    let once = frames::udp_flows(500, 120);
    let twice: Vec<_> = once
        .iter()
        .flat_map(|it| [it.clone(), it.clone()])
        .collect();
    files::write(&file, 1_600_000_000, &twice);
    let finished = run(&dir, "dedup", &file).set("capture.dedup=60s").finish(0);
    let total = finished.summary.ledger.total;
    assert_eq!((total.captured, total.deduplicated), (500, 500));
    assert_frames(
        "each frame once",
        &sorted(records(&finished).into_iter().map(|it| it.bytes)),
        &sorted(once),
    );
    let finished = run(&dir, "all", &file).finish(0);
    assert_eq!(finished.summary.ledger.total.captured, 1000);
    assert!(finished.summary.json["malformed"].is_null());
}

#[test]
fn a_frame_seen_on_both_sides_of_a_router_is_kept_once() {
    let dir = Dir::new();
    let file = dir.join("routed.pcap");
    let near = frames::udp_flows(500, 120);
    let far = near.iter().map(|it| {
        let mut routed = it.clone();
        routed[..12].fill(6);
        // The TTL is decremented, so the header checksum grows by one in its high byte.
        routed[22] -= 1;
        let sum = u16::from_be_bytes([routed[24], routed[25]]);
        let (sum, carry) = sum.overflowing_add(0x100);
        routed[24..26].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
        routed
    });
    let both: Vec<_> = near.iter().cloned().zip(far).collect();
    let both: Vec<_> = both.into_iter().flat_map(|(a, b)| [a, b]).collect();
    files::write(&file, 1_600_000_000, &both);
    for (ignored, captured) in [
        ("[]", 1000),
        ("['mac']", 1000),
        ("['ttl']", 1000),
        ("['mac', 'ttl']", 500),
    ] {
        let finished = run(&dir, &format!("routed-{ignored}"), &file)
            .set("capture.dedup=60s")
            .set(&format!("capture.dedup_ignore={ignored}"))
            .finish(0);
        let total = finished.summary.ledger.total;
        assert_eq!(total.captured, captured, "{ignored}");
        assert_eq!(total.deduplicated, 1000 - captured, "{ignored}");
    }
}

#[test]
fn with_output_in_order_of_time_repetitions_in_other_queues_are_left_out() {
    let dir = Dir::new();
    let file = dir.join("tagged.pcap");
    let plain = frames::udp_flows(500, 120);
    let tagged = plain
        .iter()
        .map(|it| [&it[..12], &[0x81, 0, 0, 9], &it[12..]].concat());
    let both: Vec<_> = plain.iter().cloned().zip(tagged).collect();
    let both: Vec<_> = both.into_iter().flat_map(|(a, b)| [a, b]).collect();
    files::write(&file, 1_600_000_000, &both);
    // The tagged copies go to a separate queue.
    let rules =
        "[capture]\nmode = \"filtered\"\n[[rule]]\nvlan = 9\nqueue = 0\n[[rule]]\npriority = 1\n";
    let run_with = |name: &str, tables: &str, more: &[&str]| {
        let config = format!("{rules}{tables}");
        let run = run(&dir, name, &file).queues(4).config(&config);
        let run = run
            .set("capture.dedup=60s")
            .set("capture.dedup_ignore=['vlan']");
        let run = run.sets(more);
        run.done().expect(0);
        let summary =
            std::fs::read_to_string(run.summary_path()).expect("the run writes a summary");
        serde_json::from_str::<serde_json::Value>(&summary).expect("the summary is JSON")
    };
    let run = |name: &str, more: &[&str]| run_with(name, "", more);
    let total = |summary: &serde_json::Value, line: &str| {
        summary["ledger"]["total"][line].as_u64().expect("a count")
    };
    let by_queue = run("by-queue", &[]);
    assert!(total(&by_queue, "captured") > 500, "{by_queue}");
    let order = "output.order=time";
    let flows = dir.join("flows");
    std::fs::create_dir(&flows).expect("a folder");
    let flows = format!("flows.dir={}", flows.display());
    let observed = [&*flows, "capture.statistics=true"];
    for (name, more) in [
        ("whole", &[][..]),
        ("snaplen", &["capture.snaplen=60"]),
        ("slice", &["capture.slice=l4"]),
        (
            "fanout",
            &["pipeline.mode=fanout", "pipeline.parsers_per_queue=2"],
        ),
    ] {
        let summary = run(name, &[&[order], &observed[..], more].concat());
        let of = |line| total(&summary, line);
        assert_eq!((of("captured"), of("deduplicated")), (500, 500), "{name}");
        assert_eq!(summary["flows"]["frames"], 500, "{name}");
        assert_eq!(summary["statistics"]["frames"], 500, "{name}");
    }
    // Later steps do not process repeated frames either.
    let sampled = run("sampled", &[order, &flows, "capture.sample=2"]);
    let of = |line| total(&sampled, line);
    assert_eq!(of("deduplicated"), 500);
    assert_eq!(of("captured") + of("sampled_out"), 500);
    assert_eq!(sampled["flows"]["frames"], of("captured"));
    for flow_records in [&[&*flows][..], &[]] {
        let more = [&[order], flow_records].concat();
        let cut = run_with("cut-off", "[[cutoff]]\npackets = 0\n", &more);
        let of = |line| total(&cut, line);
        assert_eq!(
            (of("deduplicated"), of("cut_off"), of("captured")),
            (500, 500, 0)
        );
        if !flow_records.is_empty() {
            assert_eq!(cut["flows"]["frames"], 500);
        }
    }
}

#[test]
fn all_steps_work_together() {
    let dir = Dir::new();
    let file = dir.join("steps.pcap");
    let once = frames::udp_flows(800, 120);
    let twice: Vec<_> = once
        .iter()
        .flat_map(|it| [it.clone(), it.clone()])
        .collect();
    files::write(&file, 1_600_000_000, &twice);
    let finished = run(&dir, "steps", &file)
        .queues(1)
        .set("capture.filter=udp src portrange 1024-1031")
        .set("capture.dedup=60s")
        .set("capture.sample=4")
        .set("capture.slice=l4")
        .finish(0);
    let total = finished.summary.ledger.total;
    assert_eq!(total.received, 1600);
    assert_eq!(total.filtered, 800);
    assert_eq!(total.deduplicated, 400);
    assert_eq!(total.sampled_out, 300);
    assert_eq!(total.captured, 100);
    for record in records(&finished) {
        assert_eq!((record.bytes.len(), record.len), (42, 120));
    }
}
