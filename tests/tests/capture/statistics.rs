//! Tests of live statistics through the binary: the statistics in a run's summary match the frames
//! of its wire.

use serde_json::Value;
use std::{collections::HashMap, path::Path};
use wqcap_tests::{
    Dir, Wqcap,
    captures::Captures,
    files,
    frames::{self, Ends, Frame},
    ledger::number,
};

/// Returns a run that replays `file` on three queues with statistics and without output files.
fn run<'d>(dir: &'d Dir, name: &str, file: &Path) -> Wqcap<'d> {
    Wqcap::run(dir, name)
        .replay(file)
        .queues(3)
        .set("capture.buffer=128KiB")
        .set("capture.ring=32")
        .set("output.format=none")
        .set("capture.statistics=true")
}

/// Returns the sum of the member `what` over the entries of an object or an array.
fn sum(of: &Value, what: &str) -> u64 {
    match of {
        Value::Object(entries) => entries.values().map(|it| number(&it[what])).sum(),
        Value::Array(entries) => entries.iter().map(|it| number(&it[what])).sum(),
        other => panic!("{other} has no entries"),
    }
}

#[test]
fn all_real_frames_are_counted_once() {
    let dir = Dir::new();
    let (file, frames) = Captures::find().everything(&dir);
    let finished = run(&dir, "all", &file).finish(0);
    let statistics = &finished.summary.json["statistics"];
    let bytes: usize = frames.iter().map(Vec::len).sum();
    assert_eq!(number(&statistics["frames"]), frames.len() as u64);
    assert_eq!(number(&statistics["bytes"]), bytes as u64);
    for parts in ["protocols", "queues", "sizes"] {
        assert_eq!(
            sum(&statistics[parts], "frames"),
            frames.len() as u64,
            "{parts}"
        );
    }
    for parts in ["protocols", "queues"] {
        assert_eq!(sum(&statistics[parts], "bytes"), bytes as u64, "{parts}");
    }
    let arps = frames
        .iter()
        .filter(|it| it[12..14] == [0x08, 0x06])
        .count();
    let arp = number(&statistics["protocols"]["arp"]["frames"]);
    assert!(
        arp >= arps as u64,
        "{arp} ARP frames are counted, of {arps} untagged ones at least"
    );
    let gaps = number(&statistics["inter_arrival"]["count"]);
    let queues = statistics["queues"].as_array().expect("queues");
    let with_frames = queues.iter().filter(|it| number(&it["frames"]) > 0).count();
    assert_eq!(gaps, frames.len() as u64 - with_frames as u64);
    let hold = &statistics["hold"];
    assert!(number(&hold["count"]) > 0, "{hold}");
    assert!(number(&hold["p50_ns"]) <= number(&hold["max_ns"]), "{hold}");
}

#[test]
fn talkers_are_ranked_by_bytes_and_by_frames() {
    let dir = Dir::new();
    let file = dir.join("talkers.pcap");
    let mut sent = Vec::new();
    let mut exact: HashMap<String, (u64, u64)> = HashMap::new();
    for i in 0..2000_u16 {
        // Host n sends in n of 40 rounds. Hosts with lower numbers send longer frames.
        let from = 1 + (i * 7) % 40;
        if i / 40 < from {
            let ends = Ends {
                from,
                to: 100,
                sport: 1000,
                dport: 80,
            };
            let size = 1400 / usize::from(from);
            let frame = Frame::ethernet(&[], frames::IPV4).ipv4(ends, 17, 0);
            let frame = frame.udp(ends).payload(size).done();
            let talker = exact.entry(format!("10.0.0.{from}")).or_default();
            *talker = (talker.0 + frame.len() as u64, talker.1 + 1);
            sent.push(frame);
        }
    }
    files::write(&file, 1_600_000_000, &sent);
    let finished = run(&dir, "talkers", &file).finish(0);
    let talkers = &finished.summary.json["statistics"]["talkers"];
    for (list, weight) in [
        ("by_bytes", (|it| it.0) as fn((u64, u64)) -> u64),
        ("by_frames", |it| it.1),
    ] {
        let listed = talkers[list].as_array().expect("a list");
        assert_eq!(listed.len(), 20, "{talkers}");
        let mut ranks: Vec<_> = exact.values().map(|it| weight(*it)).collect();
        ranks.sort_unstable_by(|a, b| b.cmp(a));
        for (talker, rank) in listed.iter().zip(ranks) {
            let address = talker["address"].as_str().expect("an address");
            assert_eq!(number(&talker["count"]), weight(exact[address]), "{talker}");
            assert_eq!(number(&talker["count"]), rank, "{}", finished.done);
            assert_eq!(number(&talker["error"]), 0);
        }
    }
}

#[test]
fn statistics_count_whole_frames_and_exclude_filtered_ones() {
    let dir = Dir::new();
    let file = dir.join("flows.pcap");
    files::write(&file, 1_600_000_000, &frames::udp_flows(400, 100));
    let finished = run(&dir, "cut", &file)
        .set("capture.slice=l3")
        .set("capture.filter=udp src port 1025")
        .finish(0);
    let statistics = &finished.summary.json["statistics"];
    assert_eq!(
        statistics["protocols"]["udp"],
        serde_json::json!({"frames": 25, "bytes": 2500})
    );
    assert_eq!(finished.summary.ledger.total.captured, 25);
}

#[test]
fn statistics_are_off_by_default() {
    let dir = Dir::new();
    let file = dir.join("flows.pcap");
    files::write(&file, 1_600_000_000, &frames::udp_flows(40, 100));
    let finished = Wqcap::run(&dir, "off").replay(&file).finish(0);
    assert!(finished.summary.json["statistics"].is_null());
    assert!(finished.summary.json["malformed"].is_null());
}
