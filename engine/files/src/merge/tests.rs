//! Tests of merges, with capture files built by hand.

use super::*;
use crate::{
    fixtures::{Blocks, pcap_file},
    format::{
        ByteOrder,
        pcapng::{MOST_TEXTS, Options, enhanced_packet, interface_description, section_header},
        secrets::Secrets,
    },
    read::{self, MOST_INTERFACES},
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use wqcap_frame::dedup::{IgnoredFields, MayDiffer};

const NS: u32 = 0xa1b2_3c4d;

/// Builds a pcap file with records at these times (nanoseconds); each record holds its timestamp.
fn stamps(order: ByteOrder, at: &[u32]) -> Vec<u8> {
    let bytes: Vec<_> = at.iter().map(|ns| ns.to_le_bytes()).collect();
    let records: Vec<_> = at
        .iter()
        .zip(&bytes)
        .map(|(ns, bytes)| (1, *ns, &bytes[..], 60))
        .collect();
    pcap_file(order, NS, &records)
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::create_dir_all(path.parent().expect("inside")).expect("folder");
    fs::write(&path, bytes).expect("written");
    path
}

fn merge(inputs: &[PathBuf], out: &Path) -> MergeSummary {
    let plan = MergePlan::new(inputs, None, out).expect("plan");
    let target = MergeTarget::new(out, &plan).expect("target");
    run(plan, target, |_| true).expect("merge")
}

fn refused(inputs: &[PathBuf], out: &Path) -> String {
    let plan = match MergePlan::new(inputs, None, out) {
        Ok(plan) => plan,
        Err(e) => return e.to_string(),
    };
    MergeTarget::new(out, &plan)
        .err()
        .expect("refused")
        .to_string()
}

/// Merged record as (interface, ns, bytes, options).
type Row = (usize, u64, Vec<u8>, Vec<(u16, Vec<u8>)>);

fn records(path: &Path) -> Vec<Row> {
    let mut reader = read::open(path).expect("opens");
    let mut all = Vec::new();
    while let Some(p) = reader.next().expect("reads") {
        let options = Options::new(p.options, p.order)
            .map(|(code, value)| (code, value.to_vec()))
            .collect();
        all.push((p.interface, p.ns, p.bytes.to_vec(), options));
    }
    all
}

fn ns_of(path: &Path) -> Vec<u64> {
    records(path).iter().map(|r| r.1 - 1_000_000_000).collect()
}

#[test]
fn records_are_merged_by_time_across_byte_orders_and_rotations() {
    let dir = tempfile::tempdir().expect("dir");
    let at =
        |name: &str, order, stamps_at: &[u32]| write(dir.path(), name, &stamps(order, stamps_at));
    let inputs = [
        at("wqcap-q00-9.pcap", ByteOrder::Little, &[70, 90]),
        at("wqcap-q00-1.pcap", ByteOrder::Little, &[10, 40]),
        at("wqcap-q01-2.pcap", ByteOrder::Big, &[20, 40, 60, 100]),
    ];
    let out = dir.path().join("all.pcap");
    let summary = merge(&inputs, &out);
    assert_eq!(ns_of(&out), [10, 20, 40, 40, 60, 70, 90, 100]);
    assert_eq!((summary.streams, summary.frames), (2, 8));
    assert_eq!(summary.format, "pcap");
    assert_eq!(summary.late, Lateness::default());
    let gaps = summary.gaps;
    assert_eq!(
        (gaps.count, gaps.min_ns, gaps.median_ns, gaps.max_ns),
        (5, Some(0), Some(10), Some(20))
    );
    assert_eq!(summary.bytes, fs::metadata(&out).expect("there").len());
    let read: u64 = inputs
        .iter()
        .map(|p| fs::metadata(p).expect("there").len())
        .sum();
    assert_eq!(summary.bytes_read, read);
    assert_eq!(summary.interfaces.len(), 1);
    assert_eq!(
        fs::read_dir(dir.path()).expect("lists").count(),
        4,
        "no temporary files"
    );
}

#[test]
fn two_ports_are_two_interfaces_with_queues_options_and_sums() {
    let dir = tempfile::tempdir().expect("dir");
    let file = |name: &str, order: ByteOrder, port: &str, queue: u8, ticks: &[u64]| {
        let mut blocks = Blocks::new(order);
        let name_of = format!("{port} queue {queue}");
        blocks.interface(96, &[(2, name_of.as_bytes()), (9, &[9]), (3, b"tap")]);
        for ns in ticks {
            let options = [
                blocks.option(2, &blocks.word(1)),
                blocks.option(1, b"look"),
                blocks.option(6, &blocks.word(queue.into())),
                blocks.option(4, &[[0; 4], blocks.word(7)].concat()),
            ]
            .concat();
            blocks.packet(0, 1_000_000_000 + ns, &[queue; 5], 1500, &options);
        }
        let sums = [
            blocks.option(4, &[5, 0, 0, 0, 0, 0, 0, 0]),
            blocks.option(5, &[1, 0, 0, 0, 0, 0, 0, 0]),
        ]
        .concat();
        if order == ByteOrder::Little {
            blocks.block(5, &[&[0; 12][..], &sums].concat());
        }
        write(dir.path(), name, &blocks.1)
    };
    let inputs = [
        file(
            "a/wqcap-q00-1.pcapng",
            ByteOrder::Little,
            "mlx5_0",
            0,
            &[1, 3],
        ),
        file("a/wqcap-q01-1.pcapng", ByteOrder::Little, "mlx5_0", 1, &[2]),
        file("b/wqcap-q00-1.pcapng", ByteOrder::Big, "mlx5_1", 0, &[2, 4]),
    ];
    let out = dir.path().join("out.pcapng");
    let summary = merge(&inputs, &out);
    let all = records(&out);
    let ports: Vec<_> = all.iter().map(|r| (r.1 - 1_000_000_000, r.0)).collect();
    assert_eq!(ports, [(1, 0), (2, 0), (2, 1), (3, 0), (4, 1)]);
    for (i, (_, _, bytes, options)) in all.iter().enumerate() {
        let queue = u32::from(bytes[0]).to_ne_bytes().to_vec();
        assert!(options.contains(&(6, queue)), "{i}: {options:?}");
        assert!(options.contains(&(1, b"look".to_vec())));
        assert!(options.contains(&(2, 1u32.to_ne_bytes().to_vec())));
        let drops = &options.iter().find(|(code, _)| *code == 4).expect("kept").1;
        let want: u64 = if ports[i].1 == 0 { 7 << 32 } else { 7 };
        assert_eq!(drops[..], want.to_ne_bytes());
    }
    let mut reader = read::open(&out).expect("opens");
    while reader.advance().expect("reads") {}
    let interfaces = reader.interfaces();
    let names: Vec<_> = interfaces.iter().filter_map(|i| i.name.clone()).collect();
    assert_eq!(names, ["mlx5_0", "mlx5_1"]);
    assert!(
        interfaces
            .iter()
            .all(|i| i.snaplen == 96 && i.options == [(3, b"tap".to_vec())])
    );
    assert_eq!(
        (
            interfaces[0].statistics.received,
            interfaces[0].statistics.dropped
        ),
        (Some(10), Some(2))
    );
    assert_eq!(interfaces[1].statistics.received, None);
    let facts: Vec<_> = summary
        .interfaces
        .iter()
        .map(|i| (i.frames, i.received))
        .collect();
    assert_eq!(facts, [(3, Some(10)), (2, None)]);
}

#[test]
fn a_queue_in_a_file_name_is_written_to_pcapng() {
    let dir = tempfile::tempdir().expect("dir");
    let inputs = [
        write(
            dir.path(),
            "cap/wqcap-q02-1.pcap",
            &stamps(ByteOrder::Big, &[1]),
        ),
        write(dir.path(), "cap/other.pcap", &stamps(ByteOrder::Big, &[2])),
    ];
    let out = dir.path().join("out.pcapng");
    let summary = merge(&inputs, &out);
    let all = records(&out);
    assert_eq!(all[0].3, [(6, 2u32.to_ne_bytes().to_vec())]);
    assert_eq!((all[0].0, all[1].0, &all[1].3[..]), (0, 1, &[][..]));
    let names: Vec<_> = summary.interfaces.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["cap", "other"]);
}

#[test]
fn disorder_within_a_file_is_counted_and_no_record_lost() {
    let dir = tempfile::tempdir().expect("dir");
    let inputs = [
        write(
            dir.path(),
            "a.pcap",
            &stamps(ByteOrder::Little, &[10, 50, 20, 60]),
        ),
        write(dir.path(), "b.pcap", &stamps(ByteOrder::Little, &[30, 55])),
    ];
    let out = dir.path().join("out.pcap");
    let summary = merge(&inputs, &out);
    assert_eq!(ns_of(&out), [10, 30, 50, 20, 55, 60]);
    let late = Lateness {
        frames: 1,
        most_ns: 30,
    };
    assert_eq!((summary.inputs[0].out_of_order, summary.late), (late, late));
    assert_eq!(summary.inputs[1].out_of_order, Lateness::default());
    // A file that begins before the previous one has ended is out of order as well.
    let inputs = [
        write(
            dir.path(),
            "r/wqcap-q00-1.pcap",
            &stamps(ByteOrder::Little, &[10, 50]),
        ),
        write(
            dir.path(),
            "r/wqcap-q00-2.pcap",
            &stamps(ByteOrder::Little, &[40, 60]),
        ),
    ];
    let summary = merge(&inputs, &out);
    assert_eq!(summary.inputs[1].out_of_order.most_ns, 10);
}

#[test]
fn a_torn_or_damaged_file_loses_only_its_unreadable_records() {
    let dir = tempfile::tempdir().expect("dir");
    let whole = stamps(ByteOrder::Little, &[10, 30, 50]);
    let mut damaged = stamps(ByteOrder::Little, &[20, 40, 60]);
    damaged[24 + 20 + 8..24 + 20 + 12].copy_from_slice(&[0xff; 4]);
    let inputs = [
        write(dir.path(), "torn.pcap", &whole[..whole.len() - 1]),
        write(dir.path(), "damaged.pcap", &damaged),
        write(
            dir.path(),
            "whole.pcap",
            &stamps(ByteOrder::Little, &[45, 70]),
        ),
    ];
    let out = dir.path().join("out.pcap");
    let summary = merge(&inputs, &out);
    assert_eq!(ns_of(&out), [10, 20, 30, 45, 70]);
    let loss = |i: usize| summary.inputs[i].loss.clone().unwrap_or_default();
    assert_eq!(
        loss(0),
        "at byte 64: the last record is torn, 19 bytes are left of it"
    );
    assert!(
        loss(1).starts_with("at byte 44: a record of 4294967295 bytes"),
        "{}",
        loss(1)
    );
    assert_eq!(loss(2), "");
}

#[test]
fn losses_are_in_the_closing_comment_without_interfaces_and_however_many() {
    let dir = tempfile::tempdir().expect("dir");
    let out = dir.path().join("out.pcapng");
    for losses in [vec!["a file is lost".into()], vec!["ä".repeat(100); 1000]] {
        let plan = MergePlan::from_found(Vec::new(), Vec::new(), &out, false);
        let mut plan = plan.expect("a plan");
        plan.limit(OutputLimits::default(), losses.clone());
        plan.add_closing_comment();
        let target = MergeTarget::new(&out, &plan).expect("a target");
        let summary = run(plan, target, |_| true).expect("a merge");
        assert_eq!(summary.losses, losses);
        let written = fs::read(&out).expect("the output");
        let comment = format!("incomplete: 0 frames; {}", losses[0]);
        let found = written
            .windows(comment.len())
            .any(|it| it == comment.as_bytes());
        assert!(found, "{} losses", losses.len());
        assert_eq!(records(&out).len(), 0, "the output can be read");
    }
}

#[test]
fn a_record_above_the_snaplen_raises_the_outputs_snaplen() {
    let dir = tempfile::tempdir().expect("dir");
    let long = pcap_file(ByteOrder::Little, NS, &[(1, 1, &[3; 100], 1500)]);
    for name in ["out.pcap", "out.pcapng"] {
        let inputs = [
            write(dir.path(), "a.pcap", &long),
            write(dir.path(), "b.pcap", &stamps(ByteOrder::Big, &[1])),
        ];
        let out = dir.path().join(name);
        merge(&inputs, &out);
        let mut reader = read::open(&out).expect("opens");
        while reader.advance().expect("reads") {}
        assert!(reader.interfaces().iter().all(|i| i.snaplen == 100));
        assert_eq!(reader.anomalies().above_snaplen, 0);
    }
}

#[test]
fn invalid_inputs_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().expect("dir");
    let a = write(dir.path(), "a.pcap", &stamps(ByteOrder::Little, &[1]));
    let text = write(dir.path(), "b.txt", b"text");
    let empty = dir.path().join("none");
    fs::create_dir(&empty).expect("made");
    let out = dir.path().join("out.pcap");
    for (inputs, out, said) in [
        (vec![a.clone(), a.clone()], out.clone(), "given twice"),
        (vec![text], out.clone(), "not a pcap or pcapng"),
        (vec![dir.path().join("x")], out.clone(), "No such file"),
        (vec![empty.clone()], out.clone(), "has no .pcap"),
        (vec![a.clone()], a.clone(), "is one of the inputs"),
        (vec![a.clone()], empty, "is a directory"),
        (
            vec![a.clone()],
            dir.path().join("no/out.pcap"),
            "cannot be created",
        ),
        (
            vec![a.clone()],
            dir.path().join("out.pcap.gz"),
            "cannot write compressed",
        ),
    ] {
        let message = refused(&inputs, &out);
        assert!(message.contains(said), "{message}");
    }
    assert!(!out.exists());
}

#[test]
fn frames_of_several_link_types_are_kept_in_pcapng_and_counted_in_pcap() {
    let dir = tempfile::tempdir().expect("dir");
    let a = write(dir.path(), "a.pcap", &stamps(ByteOrder::Little, &[1, 3]));
    let mut raw = stamps(ByteOrder::Big, &[2]);
    raw[23] = 101;
    let raw = write(dir.path(), "raw.pcap", &raw);
    for (name, want, is_lost) in [
        ("out.pcapng", &[1, 2, 3][..], false),
        ("out", &[1, 2, 3], false),
        ("out.pcap", &[1, 3], true),
    ] {
        let out = dir.path().join(name);
        let summary = merge(&[a.clone(), raw.clone()], &out);
        let lost = summary.inputs[1].loss.as_deref().unwrap_or_default();
        assert_eq!(
            lost.contains("does not include 1 frames"),
            is_lost,
            "{lost}"
        );
        let first = ns_of(&out)[0] - 1;
        let ns: Vec<_> = ns_of(&out).iter().map(|ns| ns - first).collect();
        assert_eq!(ns, want, "{name}");
        let mut reader = read::open(&out).expect("opens");
        while reader.advance().expect("reads") {}
        let links: Vec<_> = reader.interfaces().iter().map(|it| it.link_type).collect();
        assert_eq!(links, if is_lost { &[1][..] } else { &[1, 101] });
    }
}

#[test]
fn a_stopped_merge_leaves_no_output_and_keeps_an_old_file() {
    let dir = tempfile::tempdir().expect("dir");
    let many: Vec<u32> = (0..40_000).collect();
    let input = write(dir.path(), "a.pcap", &stamps(ByteOrder::Little, &many));
    let out = write(dir.path(), "out.pcap", b"old");
    let plan = MergePlan::new(&[input], None, &out).expect("plan");
    let target = MergeTarget::new(&out, &plan).expect("target");
    let stopped = run(plan, target, |_| false);
    assert!(matches!(stopped, Err(MergeError::Stopped)));
    assert_eq!(fs::read(&out).expect("there"), b"old");
    assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 2);
}

#[test]
fn texts_are_kept_up_to_a_limit_and_others_are_counted() {
    let dir = tempfile::tempdir().expect("dir");
    let mut blocks = Blocks::new(ByteOrder::Little);
    let comment = vec![0xff; 65_532];
    let comments = vec![(1, &comment[..]); 40];
    for _ in 0..20 {
        blocks.interface(0, &comments);
    }
    blocks.packet(19, 1, &[1; 60], 60, &[]);
    let input = write(dir.path(), "bomb.pcapng", &blocks.1);
    let mut reader = read::open(&input).expect("opens");
    while reader.advance().expect("reads") {}
    let kept = |texts: &[(u16, Vec<u8>)]| texts.iter().map(|it| it.1.len()).sum::<usize>();
    let all: Vec<_> = reader.interfaces().iter().map(|it| &it.options).collect();
    let bytes: usize = all.iter().map(|texts| kept(texts)).sum();
    assert!(bytes <= MOST_TEXTS && bytes > MOST_TEXTS / 2, "{bytes}");
    assert!(all.iter().all(|texts| kept(texts) <= MOST_TEXTS / 2));
    let count: usize = all.iter().map(|texts| texts.len()).sum();
    assert_eq!(reader.anomalies().texts_left_out, 800 - count as u64);

    // The second file is another port with the same texts, which exceed the limit.
    let again = write(dir.path(), "again.pcapng", &blocks.1);
    let out = dir.path().join("out.pcapng");
    let summary = merge(&[input, again], &out);
    for input in &summary.inputs {
        let note = input.notes.join("; ");
        assert!(note.contains("more than 16 MiB"), "{note}");
    }
    assert_eq!(records(&out).len(), 2);
    let mut reader = read::open(&out).expect("opens");
    while reader.advance().expect("reads") {}
    assert_eq!(reader.anomalies().texts_left_out, 0);
}

#[test]
fn options_that_readers_refuse_are_left_out_and_counted() {
    let dir = tempfile::tempdir().expect("dir");
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let mut blocks = Blocks::new(order);
        blocks.interface(50, &[]);
        let long = [[0; 4], blocks.word(7)].concat();
        let sound = [(1, &b"look"[..]), (2, &blocks.word(1)), (4, &long)];
        let verdict = [&[2][..], &[[0; 4], blocks.word(9)].concat()].concat();
        let custom = [&blocks.word(32_473)[..], b"xyz"].concat();
        let more = [(7, &verdict[..]), (2988, &custom), (0x8001, b"mine")];
        let bad = [
            (2, &[1; 3][..]),
            (3, &[]),
            (4, &[1; 4]),
            (5, &[]),
            (6, &[0; 8]),
            (7, &[1, 2]),
            (19_372, &[0; 3]),
        ];
        let encode = |all: &[(u16, &[u8])]| -> Vec<u8> {
            let each = all.iter().map(|it| blocks.option(it.0, it.1));
            each.collect::<Vec<_>>().concat()
        };
        let cut = [&blocks.option(1, b"")[..2], &[0xea, 0x60, 1, 2]].concat();
        let options = [encode(&sound), encode(&bad), encode(&more), cut].concat();
        blocks.packet(0, 5, &[1; 60], 60, &options);
        // A simple packet block has as many bytes as the frame, up to the snapshot length.
        let simple = [&blocks.word(100)[..], &[0xee; 100]].concat();
        blocks.block(3, &simple);
        let input = write(dir.path(), "in.pcapng", &blocks.1);
        let out = dir.path().join("out.pcapng");
        let summary = merge(&[input], &out);
        let note = summary.notes.join("; ");
        let said = format!("{} options of records are malformed", bad.len() + 1);
        assert!(note.contains(&said), "{note}");
        let all = records(&out);
        let codes: Vec<_> = all[0].3.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, [1, 2, 4, 7, 2988, 0x8001]);
        let native = Blocks::new(ByteOrder::NATIVE);
        assert_eq!(all[0].3[1].1, native.word(1));
        assert_eq!(all[0].3[4].1[..4], native.word(32_473));
        let nine = [&[2][..], &order.u64(&verdict, 1).to_ne_bytes()].concat();
        assert_eq!(all[0].3[3].1, nine);
        assert_eq!((&all[1].2, &all[1].3[..]), (&vec![0xee; 50], &[][..]));
    }
}

#[test]
fn secrets_keep_their_position_and_are_written_once() {
    let dir = tempfile::tempdir().expect("dir");
    let input = |order, name: &str, own: &[u8]| {
        let mut blocks = Blocks::new(order);
        let of = |blocks: &Blocks, bytes: &[u8]| {
            let len = u32::try_from(bytes.len()).expect("short");
            let mut body = [blocks.word(0x544c_534b), blocks.word(len)].concat();
            body.extend(bytes);
            body.resize(body.len().next_multiple_of(4), 0);
            body
        };
        let both = [of(&blocks, b"both"), blocks.option(1, b"why")].concat();
        blocks.block(10, &both).interface(0, &[]);
        blocks.packet(0, 5, &[1; 60], 60, &[]);
        let own = of(&blocks, own);
        blocks.block(10, &own).packet(0, 9, &[2; 60], 60, &[]);
        // A secrets block whose stated length exceeds the block.
        let body = [blocks.word(1), blocks.word(100)].concat();
        blocks.block(10, &body);
        write(dir.path(), name, &blocks.1)
    };
    let inputs = [
        input(ByteOrder::Little, "a.pcapng", b"first"),
        input(ByteOrder::Big, "b.pcapng", b"second one"),
    ];
    let out = dir.path().join("out.pcapng");
    let mut plan = MergePlan::new(&inputs, None, &out).expect("plan");
    let injected = Secrets::from_tls_key_log(b"CLIENT_RANDOM 00 11").expect("a log");
    plan.inject(injected.secrets).expect("a place");
    let target = MergeTarget::new(&out, &plan).expect("target");
    let summary = run(plan, target, |_| true).expect("merge");
    for input in &summary.inputs {
        assert!(
            input.notes.concat().contains("1 blocks are neither"),
            "{:?}",
            input.notes
        );
    }
    let file = fs::read(&out).expect("reads");
    let (mut at, mut seen) = (0, Vec::new());
    while at < file.len() {
        let word = |n: usize| ByteOrder::NATIVE.u32(&file, at + n);
        let body = &file[at + 16..at + word(4) as usize - 4];
        match word(0) {
            6 => seen.push("packet".to_owned()),
            10 => seen.push(String::from_utf8_lossy(&body[..word(12) as usize]).into_owned()),
            _ => {}
        }
        if word(0) == 10 && word(12) == 4 {
            let comment = Options::new(&body[4..], ByteOrder::NATIVE).next();
            assert_eq!(comment, Some((1, &b"why"[..])));
        }
        at += word(4) as usize;
    }
    // Secrets of a stream are written once it has advanced to the record after them.
    let wanted = [
        "CLIENT_RANDOM 00 11",
        "both",
        "packet",
        "first",
        "packet",
        "second one",
    ];
    assert_eq!(seen, [&wanted[..], &["packet"; 2]].concat());
    let pcap = dir.path().join("out.pcap");
    let note = merge(&inputs, &pcap).notes.concat();
    assert!(
        note.contains("4 blocks of decryption secrets are left out"),
        "{note}"
    );
}

#[test]
fn the_number_of_interfaces_is_limited_as_in_readers() {
    let dir = tempfile::tempdir().expect("dir");
    let file = |name: &str, from: usize, n: usize| {
        let mut blocks = Blocks::new(ByteOrder::Little);
        for i in from..from + n {
            blocks.interface(0, &[(2, format!("if{i}").as_bytes())]);
        }
        let last = u32::try_from(n - 1).expect("few");
        blocks.packet(last, 1, &[1; 60], 60, &[]);
        write(dir.path(), name, &blocks.1)
    };
    let full = file("full.pcapng", 0, MOST_INTERFACES);
    let out = dir.path().join("out.pcapng");
    merge(std::slice::from_ref(&full), &out);
    assert_eq!(records(&out)[0].0, MOST_INTERFACES - 1);
    let over = file("over.pcapng", 0, MOST_INTERFACES + 1);
    let message = refused(&[over], &out);
    assert!(message.contains("more than 65536 interfaces"), "{message}");
    let other = file("other.pcapng", MOST_INTERFACES, 1);
    let message = refused(&[full, other], &out);
    assert!(message.contains("merge fewer files"), "{message}");
    // In a folder such files lose frames, and the others are read.
    let out = tempfile::tempdir().expect("dir");
    let out = out.path().join("out.pcapng");
    let summary = merge(&[dir.path().to_owned()], &out);
    assert_eq!(summary.frames, 1);
    let lost: Vec<_> = summary.losses.iter().map(String::as_str).collect();
    let [full, over] = lost[..] else {
        panic!("{lost:?}");
    };
    assert!(full.contains("does not include 1 frames"), "{full}");
    assert!(over.contains("more than 65536 interfaces"), "{over}");
    assert_eq!(records(&out).len(), 1);
}

#[test]
fn a_record_above_the_limit_of_readers_is_cut_and_counted() {
    let dir = tempfile::tempdir().expect("dir");
    let long = pcap_file(ByteOrder::Little, NS, &[(1, 1, &[3; 300_000], 300_000)]);
    for name in ["out.pcap", "out.pcapng"] {
        let input = write(dir.path(), "long.pcap", &long);
        let out = dir.path().join(name);
        let note = merge(&[input], &out).notes.join("; ");
        assert!(note.contains("1 records are cut to 262144 bytes"), "{note}");
        let mut reader = read::open(&out).expect("opens");
        let packet = reader.next().expect("reads").expect("one");
        assert_eq!((packet.bytes.len(), packet.len), (262_144, 300_000));
    }
}

/// Builds a capture file of one queue with records at these times (nanoseconds).
fn of_queue(interface: &str, at: &[u64]) -> Vec<u8> {
    let mut blocks = Blocks::new(ByteOrder::Little);
    blocks.interface(0, &[(2, interface.as_bytes()), (9, &[9])]);
    for ns in at {
        blocks.packet(0, 1_000_000_000 + ns, &[1; 60], 60, &[]);
    }
    blocks.1
}

#[test]
fn files_are_ordered_by_their_content_not_their_names() {
    let dir = tempfile::tempdir().expect("dir");
    for (name, interface, at) in [
        ("tap-b.pcapng", "eth0 queue 0", &[10, 30][..]),
        ("tap-a.pcapng", "eth0 queue 0", &[50, 70]),
        ("other.pcapng", "eth0 queue 1", &[20, 60]),
        ("wqcap-q07-1.pcapng", "eth0 queue 1", &[80]),
        // A file without records, and a file of a queue of another port.
        ("empty.pcapng", "eth0 queue 1", &[]),
        ("zap.pcapng", "eth1 queue 1", &[40]),
    ] {
        write(dir.path(), name, &of_queue(interface, at));
    }
    let out = tempfile::tempdir().expect("dir");
    let out = out.path().join("out.pcapng");
    let summary = merge(&[dir.path().to_owned()], &out);
    assert_eq!(ns_of(&out), [10, 20, 30, 40, 50, 60, 70, 80]);
    assert_eq!((summary.streams, summary.frames), (3, 8));
    let late = summary.inputs.iter().map(|it| it.out_of_order);
    assert!(late.eq([Lateness::default(); 6]));
    assert_eq!(summary.gaps.count, 7);
    let queues: Vec<_> = records(&out).into_iter().map(|it| it.3).collect();
    let queue = |n: u32| vec![(6, n.to_ne_bytes().to_vec())];
    let want = [0, 1, 0, 1, 0, 1, 0, 1].map(queue);
    assert_eq!(queues, want);
    let ports: Vec<_> = summary
        .interfaces
        .iter()
        .map(|it| (&it.name[..], it.frames))
        .collect();
    assert_eq!(ports, [("eth0", 7), ("eth1", 1)]);
}

#[test]
fn overlapping_files_of_one_queue_are_merged() {
    let dir = tempfile::tempdir().expect("dir");
    for (name, at) in [
        ("a.pcapng", &[10, 50, 90][..]),
        ("b.pcapng", &[20, 40, 100]),
        ("c.pcapng", &[30, 60, 95]),
        ("d.pcapng", &[110]),
    ] {
        write(dir.path(), name, &of_queue("eth0 queue 0", at));
    }
    let out = dir.path().join("out.pcapng");
    let summary = merge(&[dir.path().to_owned()], &out);
    assert_eq!(ns_of(&out), [10, 20, 30, 40, 50, 60, 90, 95, 100, 110]);
    assert_eq!((summary.streams, summary.late), (1, Lateness::default()));
    assert_eq!(summary.gaps.count, 0, "all of one queue");

    for (open, frames) in [(3, 10), (2, 2)] {
        let mut plan = MergePlan::new(&[dir.path().to_owned()], None, &out).expect("plan");
        let limits = OutputLimits {
            open,
            ..OutputLimits::default()
        };
        plan.limit(limits, Vec::new());
        let target = MergeTarget::new(&out, &plan).expect("target");
        let summary = run(plan, target, |_| true).expect("merge");
        assert_eq!(summary.frames, frames);
        let said = summary.losses.join("; ");
        assert_eq!(
            said.contains("more than 2 files overlap in time"),
            open == 2,
            "{said}"
        );
    }
}

#[test]
fn output_in_an_input_folder_is_not_merged_again() {
    let dir = tempfile::tempdir().expect("dir");
    let folder = [dir.path().to_owned()];
    write(
        dir.path(),
        "tap-1.pcapng",
        &of_queue("eth0 queue 0", &[10, 30]),
    );
    write(dir.path(), "tap-2.pcapng", &of_queue("eth0 queue 1", &[20]));
    let out = dir.path().join("out.pcapng");
    let said = |summary: &MergeSummary| summary.notes.join("; ");
    assert_eq!(said(&merge(&folder, &out)), "");
    for name in ["out.pcapng", "more.pcapng"] {
        let summary = merge(&folder, &dir.path().join(name));
        assert_eq!((summary.frames, summary.inputs.len()), (3, 2));
        let note = said(&summary);
        assert!(note.contains("files that wqcap merge"), "{note}");
        assert!(note.contains(&out.display().to_string()), "{note}");
    }
    // Files named by the user are inputs, and so are merged files in a folder without others.
    let more = dir.path().join("more.pcapng");
    let all = dir.path().join("all/all.pcapng");
    fs::create_dir(dir.path().join("all")).expect("made");
    assert_eq!(merge(&[out.clone(), more.clone()], &all).frames, 6);
    let into = refused(&[out.clone(), more], &out);
    assert!(into.contains("is one of the inputs"), "{into}");
    let again = dir.path().join("again.pcapng");
    let summary = merge(&[dir.path().join("all")], &again);
    assert_eq!((summary.frames, said(&summary)), (6, String::new()));

    // A pcap file does not contain the name of its program.
    for name in ["all/out.pcap", "out.pcap"] {
        let out = dir.path().join(name);
        let summary = merge(&folder, &out);
        assert!(
            said(&summary).contains("does not name its program"),
            "{summary:?}"
        );
    }
    let message = refused(&folder, &dir.path().join("out.pcap"));
    assert!(message.contains("is one of the inputs"), "{message}");
}

#[test]
fn repetitions_are_left_out_and_counted() {
    let dir = tempfile::tempdir().expect("dir");
    let frame = |mac: u8, ttl: u8, last: u8| {
        let mut frame = vec![mac; 12];
        frame.extend([8, 0, 0x45, 0, 0, 30, 0, 1, 0, 0, ttl, 17, ttl, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9, 0, 10, 0, 0]);
        frame.extend([1, last]);
        frame
    };
    let file = |name: &str, records: &[(u32, Vec<u8>)]| {
        let records: Vec<_> = records
            .iter()
            .map(|(ns, bytes)| (1, *ns, &bytes[..], u32::try_from(bytes.len()).unwrap()))
            .collect();
        write(
            dir.path(),
            name,
            &pcap_file(ByteOrder::Little, NS, &records),
        )
    };
    let inputs = [
        file(
            "tap.pcap",
            &[
                (10, frame(1, 64, 1)),
                (200, frame(1, 64, 2)),
                (2000, frame(1, 64, 1)),
            ],
        ),
        // The same frames after a router, and one of them unchanged.
        file(
            "far.pcap",
            &[
                (30, frame(2, 63, 1)),
                (210, frame(2, 63, 2)),
                (300, frame(1, 64, 2)),
            ],
        ),
    ];
    let out = dir.path().join("out.pcap");
    let routed = IgnoredFields::from_iter([MayDiffer::Mac, MayDiffer::Ttl]);
    for (ignored, wanted) in [
        (IgnoredFields::default(), &[10, 30, 200, 210, 2000][..]),
        (routed, &[10, 200, 2000]),
    ] {
        let mut plan = MergePlan::new(&inputs, None, &out).expect("plan");
        plan.leave_out_repetitions(1000, ignored).expect("Ethernet");
        let target = MergeTarget::new(&out, &plan).expect("target");
        let summary = run(plan, target, |_| true).expect("merge");
        assert_eq!(ns_of(&out), wanted);
        assert_eq!(summary.frames, wanted.len() as u64);
        assert_eq!(summary.frames + summary.deduplicated, 6);
    }
}

#[test]
fn a_frame_that_a_pcap_file_cannot_hold_is_a_loss() {
    let dir = tempfile::tempdir().expect("dir");
    let mut file = Vec::new();
    section_header(&mut file, |_| {});
    interface_description(&mut file, 1, 0, None, |_| {});
    for (ns, bytes) in [(0, &[][..]), (0, &[7; 20]), (5, &[])] {
        enhanced_packet(&mut file, 0, ns, bytes, bytes.len() as u32, |_| {});
    }
    let file = write(dir.path(), "a.pcapng", &file);
    for (name, frames) in [("out.pcap", 2), ("out.pcapng", 3)] {
        let summary = merge(std::slice::from_ref(&file), &dir.path().join(name));
        assert_eq!(summary.frames, frames, "{name}");
        let said = summary.losses.join("; ");
        assert_eq!(said.contains("is taken for damage"), frames == 2, "{said}");
    }
}

#[test]
fn a_time_that_a_pcap_file_cannot_hold_is_noted() {
    let dir = tempfile::tempdir().expect("dir");
    let mut file = Vec::new();
    section_header(&mut file, |_| {});
    interface_description(&mut file, 1, 0, None, |_| {});
    let end = crate::format::pcap::END_OF_TIME;
    for ns in [end - 1, end, end + 1] {
        enhanced_packet(&mut file, 0, ns, &[7; 20], 20, |_| {});
    }
    let file = write(dir.path(), "a.pcapng", &file);
    for (name, noted) in [("out.pcap", true), ("out.pcapng", false)] {
        let summary = merge(std::slice::from_ref(&file), &dir.path().join(name));
        assert_eq!(summary.frames, 3, "{name}");
        let said = summary.notes.join("; ");
        assert_eq!(
            said.contains("2 records are later than 2106"),
            noted,
            "{said}"
        );
    }
    assert_eq!(records(&dir.path().join("out.pcap"))[0].1, end - 1);
    assert_eq!(records(&dir.path().join("out.pcapng"))[2].1, end + 1);
}

/// Files whose zstd window has 128 MiB: three of them may be open together, beside their interfaces.
#[test]
fn files_without_memory_for_their_decompression_are_lost_alone() {
    let dir = tempfile::tempdir().expect("dir");
    for i in 0..6 {
        let mut blocks = Blocks::new(ByteOrder::Little);
        blocks.interface(0, &[]);
        for ns in [i, 100 + i] {
            blocks.packet(0, ns, &[1; 60], 60, &[]);
        }
        // A frame with a window descriptor and a raw block (RFC 8878, 3.1.1).
        let len = u32::try_from(blocks.1.len()).expect("short");
        let block = (len << 3 | 1).to_le_bytes();
        let frame = [
            &[0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3],
            &block[..3],
            &blocks.1,
        ]
        .concat();
        write(dir.path(), &format!("f{i}.pcapng.zst"), &frame);
    }
    let out = tempfile::tempdir().expect("dir");
    let summary = merge(&[dir.path().to_owned()], &out.path().join("out.pcapng"));
    assert_eq!((summary.frames, summary.losses.len()), (6, 3));
    for loss in &summary.losses {
        assert!(
            loss.contains("decompression needs 128 MiB of memory"),
            "{loss}"
        );
    }
}

/// A file of a few megabytes may have as many comments and secrets as fit.
#[test]
fn hundreds_of_thousands_of_comments_and_secrets_are_read_at_once() {
    let dir = tempfile::tempdir().expect("dir");
    let mut blocks = Blocks::new(ByteOrder::Little);
    blocks.interface(0, &[]);
    blocks.packet(0, 1, &[1; 60], 60, &[]);
    let mut bytes = blocks.1;
    let mut block = |kind: u32, body: &[u8]| {
        let len = 12 + body.len() as u32;
        for part in [
            &kind.to_le_bytes()[..],
            &len.to_le_bytes(),
            body,
            &len.to_le_bytes(),
        ] {
            bytes.extend(part);
        }
    };
    for i in 0..200_000u32 {
        // A section header with a comment of 8 bytes, and TLS keys of 4 bytes.
        let fixed = [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0];
        let comment = [1, 0, 8, 0];
        let text = format!("{i:08}");
        block(
            0x0a0d_0d0a,
            &[&fixed[..], &[0xff; 8], &comment, text.as_bytes(), &[0; 4]].concat(),
        );
        block(
            10,
            &[&b"KLST"[..], &4u32.to_le_bytes(), &i.to_le_bytes()].concat(),
        );
    }
    let input = write(dir.path(), "many.pcapng", &bytes);
    let begun = Instant::now();
    let summary = merge(&[input], &dir.path().join("out.pcapng"));
    assert_eq!(summary.frames, 1);
    let notes = summary.notes.concat();
    assert!(notes.contains("200000 comments of sections"), "{notes}");
    // With a search through all of them for each this takes minutes.
    assert!(begun.elapsed() < Duration::from_secs(20));
}
