//! `wqcap merge`: every record of every input is written once, in order of time, as other tools
//! read and merge it. Two ports stay two interfaces, losses with a torn file are reported, and OUT
//! is either complete or absent.

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Done, Program, Wqcap, binaries,
    captures::{Captures, DAMAGED},
    compare::{assert_frames, assert_same},
    files::{self, Record},
    frames,
    oracles::{capinfos, reference},
    skip,
    wqcap::wqcap,
};

const QUEUES: usize = 4;

fn merge(out: &Path, inputs: &[PathBuf]) -> Program {
    wqcap(["merge", "--json", "-o"]).arg(out).args(inputs)
}

fn summary(done: &Done) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
}

/// Splits a capture by the queue of each record, and returns one file per queue. The file header
/// and the records are copied unchanged.
fn split(dir: &Dir, file: &Path) -> Vec<PathBuf> {
    let bytes = fs::read(file).expect("the capture is readable");
    let records = files::read_as_it_stands(file);
    let mut parts = vec![bytes[..24].to_vec(); QUEUES];
    let mut at = 24;
    for record in &records {
        let end = at + 16 + record.bytes.len();
        let queue = if record.bytes.len() < 14 {
            0
        } else {
            reference::queue(&record.bytes, QUEUES, 128)
        };
        parts[queue].extend(&bytes[at..end]);
        at = end;
    }
    parts
        .iter()
        .enumerate()
        .map(|(queue, part)| dir.write(&format!("wqcap-q{queue:02}-1.pcap"), part))
        .collect()
}

/// Returns the time stamp, length on the wire and bytes of a record, as a merged file has them.
fn row(record: &Record) -> (u64, u32, Vec<u8>) {
    let len = record.len.max(record.caplen);
    (record.ts, len, record.bytes.clone())
}

fn is_in_order(records: &[Record]) -> bool {
    records.is_sorted_by_key(|r| r.ts)
}

#[test]
fn merging_the_queues_of_a_capture_restores_its_records() {
    Captures::find().each(|file| {
        let dir = Dir::new();
        let parts = split(&dir, file);
        let out = dir.join("merged.pcap");
        let done = merge(&out, &parts).run();
        // Some readers take zeros at a file's end for padding, others for empty records.
        if done.stdout.contains("zeros to the end") {
            return;
        }
        let done = done.expect(0);
        let original = files::read_as_it_stands(file);
        let merged = files::read_as_it_stands(&out);
        let facts = summary(&done);
        assert_eq!(facts["frames"], original.len(), "{}", file.display());
        let mut want: Vec<_> = original.iter().map(row).collect();
        let mut got: Vec<_> = merged.iter().map(row).collect();
        if is_in_order(&original) {
            assert!(is_in_order(&merged), "{}", file.display());
            assert_eq!(facts["late"]["frames"], 0, "{}", file.display());
        }
        // Records of different queues with the same time stamp may have been swapped.
        want.sort();
        got.sort();
        assert_same(file.display(), &got, &want);
    });
}

/// Every 40th capture is compared with mergecap's result.
#[test]
fn records_are_in_the_same_order_as_by_mergecap() {
    let captures = Captures::find();
    let mut compared = 0;
    for file in captures.files.iter().step_by(40) {
        let dir = Dir::new();
        let parts = split(&dir, file);
        let (ours, theirs) = (dir.join("merged.pcap"), dir.join("mergecap.pcap"));
        let done = merge(&ours, &parts).run();
        let made = Program::new("mergecap")
            .args(["-F", "nsecpcap", "-w"])
            .arg(&theirs)
            .args(&parts)
            .run();
        if done.stdout.contains("zeros to the end") || !made.status.success() {
            continue;
        }
        let _ = done.expect(0);
        let stamps = [&ours, &theirs].map(|path| {
            let records = files::read_as_it_stands(path);
            records.iter().map(|r| r.ts).collect::<Vec<_>>()
        });
        assert_same(file.display(), &stamps[0], &stamps[1]);
        assert_eq!(capinfos::frames(&ours), stamps[0].len() as u64);
        compared += 1;
    }
    assert!(
        compared > 0 || !captures.real,
        "at least one capture was merged by mergecap"
    );
}

#[test]
fn the_queues_of_two_ports_become_one_file_of_two_interfaces() {
    let dir = Dir::new();
    let file = dir.join("in.pcap");
    files::write(&file, 1_600_000_000, &frames::udp_flows(4000, 120));
    let (mut want, mut queues) = (0, 0);
    let runs = ["left", "right"].map(|name| {
        let run = Wqcap::run(&dir, name)
            .replay(&file)
            .queues(QUEUES)
            .set("output.format=pcapng")
            .set("output.rotate_size=64KiB")
            .set("capture.snaplen=96");
        let finished = run.finish(0);
        assert!(finished.files().len() > 8, "files were rotated");
        want += finished.summary.ledger.total.captured;
        let used = finished.records();
        queues += used.iter().filter(|records| !records.is_empty()).count();
        dir.join(format!("{name}.out"))
    });
    let out = dir.join("tap.pcapng");
    // Unfinished files are left out, with a note.
    fs::write(runs[0].join("wqcap-q00-9.pcapng.part"), "").expect("the file is written");
    // The limit on file descriptors is far below the number of files.
    let done = merge(&out, &runs)
        .wrapped(["prlimit", "--nofile=24", "--"])
        .run()
        .expect(0);
    let facts = summary(&done);
    assert!(
        facts["notes"]
            .to_string()
            .contains("1 .part files are left out"),
        "{done}"
    );
    assert_eq!((facts["frames"].as_u64(), want), (Some(want), 8000));
    assert_eq!(facts["streams"], queues);
    assert!(queues >= 4);
    for interface in facts["interfaces"].as_array().expect("the value is a list") {
        assert_eq!(
            (&interface["frames"], &interface["received"]),
            (&4000.into(), &4000.into())
        );
        assert_eq!(interface["dropped"], 0);
    }
    let records = files::read(&out);
    assert!(is_in_order(&records));
    assert!(records.iter().all(|r| (r.caplen, r.len) == (96, 120)));
    let count = Program::new("tcpdump")
        .args(["--count", "-r"])
        .arg(&out)
        .run()
        .expect(0);
    assert!(count.stdout.contains("8000 packets"), "{count}");
    let fields = Program::new("tshark")
        .args([
            "-T",
            "fields",
            "-e",
            "frame.interface_id",
            "-e",
            "frame.interface_queue",
            "-r",
        ])
        .arg(&out)
        .run()
        .expect(0);
    let mut pairs: Vec<_> = fields.stdout.lines().collect();
    assert_eq!(pairs.len(), 8000);
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(
        pairs.len(),
        queues,
        "each interface has all of its queues: {pairs:?}"
    );
}

#[test]
fn merge_writes_to_stdout_and_a_reader_may_close_the_pipe_early() {
    let dir = Dir::new();
    let file = dir.join("in.pcap");
    files::write(&file, 1_600_000_000, &frames::udp_flows(50_000, 100));
    let bin = binaries::wqcap();
    let shell = |line: &str| {
        Program::new("bash")
            .args(["-c", line, "bash"])
            .arg(&bin)
            .arg(&file)
            .run()
    };
    let done = shell("\"$1\" merge -o - \"$2\" | tcpdump --count -r -").expect(0);
    assert!(done.stdout.contains("50000 packets"), "{done}");
    let done = shell("\"$1\" merge -o - \"$2\" | head -c 10 >/dev/null; echo \"${PIPESTATUS[0]}\"");
    assert_eq!(done.stdout, "0\n", "{done}");
    let done = shell("\"$1\" merge -o - - < \"$2\" | cmp - <(\"$1\" merge -o - \"$2\")").expect(0);
    assert_eq!(done.stdout, "", "{done}");
    let before = fs::read(&file).expect("the file is readable");
    let done = shell("\"$1\" merge -o - \"$2\" >> \"$2\"").expect(2);
    done.says(&["standard output is one of the inputs"]);
    assert!(fs::read(&file).is_ok_and(|it| it == before));
}

#[test]
fn a_torn_input_loses_its_last_record_and_the_exit_status_is_1() {
    let dir = Dir::new();
    let (a, b) = (dir.join("a.pcap"), dir.join("b.pcap"));
    files::write(&a, 1, &frames::udp_flows(10, 100));
    files::write(&b, 1, &frames::udp_flows(10, 100));
    let bytes = fs::read(&a).expect("the file is readable");
    fs::write(&a, &bytes[..bytes.len() - 1]).expect("the file is truncated");
    let out = dir.join("out.pcapng");
    let done = merge(&out, &[a.clone(), b]).run().expect(1);
    done.says(&[&a.display().to_string(), "at byte 1068", "torn"]);
    assert_eq!(summary(&done)["frames"], 19);
    assert_eq!(files::read(&out).len(), 19);
}

/// A stream is read once: the damage of its first record is found before the merge begins.
#[test]
fn a_stream_that_is_damaged_before_its_first_record_is_a_loss() {
    let dir = Dir::new();
    let file = dir.join("a.pcap");
    files::write(&file, 1, &frames::udp_flows(10, 100));
    let mut bytes = fs::read(&file).expect("the file is readable");
    // The length of the first record.
    bytes[32..40].fill(0xff);
    fs::write(&file, &bytes).expect("the file is written");
    for (command, out) in [("merge", "out.pcapng"), ("flows", "out")] {
        let line = format!("cat \"$2\" | \"$1\" {command} -o \"$3\" -");
        let done = Program::new("bash")
            .args(["-c", &line, "bash"])
            .arg(binaries::wqcap())
            .arg(&file)
            .arg(dir.join(out))
            .run()
            .expect(1);
        done.says(&["-: ", "at byte 24"]);
    }
}

#[test]
fn inputs_that_cannot_be_merged_exit_with_status_2_and_leave_the_output_unchanged() {
    let dir = Dir::new();
    let a = dir.join("a.pcap");
    files::write(&a, 1, &frames::udp_flows(10, 100));
    let out = dir.write("out.pcap", "old");
    let text = dir.write("notes.txt", "text");
    for (inputs, said) in [
        (vec![dir.join("missing.pcap")], "missing.pcap"),
        (vec![a.clone(), text], "notes.txt"),
        (vec![a.clone(), a.clone()], "twice"),
        (vec![a.clone(), out.clone()], "out.pcap"),
    ] {
        let done = merge(&out, &inputs).run().expect(2);
        done.says(&[said]);
        assert_eq!(done.stdout, "");
    }
    assert_eq!(fs::read(&out).expect("OUT exists"), b"old");
    let done = merge(Path::new("-"), &[a]).run().expect(2);
    done.says(&["--json"]);
    assert_eq!(
        fs::read_dir(dir.path())
            .expect("the directory is readable")
            .count(),
        3
    );
}

/// The second input is first the same tap's file, and then the file of a tap behind a router that
/// has changed the MAC addresses.
#[test]
fn frames_seen_by_two_taps_are_written_once_as_by_editcap() {
    let dir = Dir::new();
    let (_, frames) = Captures::find().everything(&dir);
    // Only frames without padding are kept, because editcap does not recognize padding.
    let has_no_padding = |frame: &Vec<u8>| {
        let number = |at: usize| {
            frame[at..at + 2]
                .iter()
                .fold(0, |n, it| n << 8 | usize::from(*it))
        };
        frame.len() > 60
            && match number(12) {
                0x0800 => 14 + number(16) == frame.len(),
                0x86dd => 54 + number(18) == frame.len(),
                _ => false,
            }
    };
    let frames: Vec<_> = frames.into_iter().filter(has_no_padding).collect();
    let near = dir.join("near.pcap");
    files::write(&near, 1_600_000_000, &frames);
    let change_macs = |frame: &Vec<u8>| {
        let mut frame = frame.clone();
        frame[..12].iter_mut().for_each(|it| *it ^= 1);
        frame
    };
    let routed: Vec<_> = frames.iter().map(change_macs).collect();
    let far = dir.join("far.pcap");
    files::write(&far, 1_600_000_000, &routed);
    // `bytes` is the number of leading bytes that editcap ignores.
    for (other, ignored, bytes) in [(&near, None, "0"), (&far, Some("mac"), "12")] {
        let copy = dir.join("copy.pcap");
        fs::copy(other, &copy).expect("a copy");
        let [plain, ours, theirs] =
            ["plain.pcap", "ours.pcap", "theirs.pcap"].map(|it| dir.join(it));
        let merge = |out: &Path, args: &[&str]| {
            let merge = wqcap(["merge", "--json", "-o"]).arg(out).args(args);
            let done = merge.arg(&near).arg(&copy).run().expect(0);
            let report: Value = serde_json::from_str(&done.stdout).expect("the report is JSON");
            report
        };
        let _ = merge(&plain, &[]);
        let mut args = vec!["--dedup", "1h"];
        args.extend(ignored.iter().flat_map(|it| ["--dedup-ignore", it]));
        let report = merge(&ours, &args);
        let _ = Program::new("editcap")
            .args(["-F", "nsecpcap", "-I", bytes, "-w", "3600"])
            .arg(&plain)
            .arg(&theirs)
            .run()
            .expect(0);
        let bytes =
            |file: &Path| -> Vec<_> { files::read(file).into_iter().map(|it| it.bytes).collect() };
        let (ours, theirs) = (bytes(&ours), bytes(&theirs));
        assert_frames("deduplicated frames", &ours, &theirs);
        assert!(ours.len() <= frames.len(), "{} frames", ours.len());
        let left_out = (2 * frames.len() - ours.len()) as u64;
        assert_eq!(report["deduplicated"], left_out);
    }
}

#[test]
fn a_hole_of_zeros_is_damage_and_not_frames_of_1970() {
    let file = binaries::root().join("../shared/pcaps").join(DAMAGED);
    if !file.is_file() {
        skip!("../shared/pcaps is absent");
    }
    let dir = Dir::new();
    let out = dir.join("merged.pcap");
    let done = merge(&out, &[file]).run().expect(1);
    assert!(
        done.stderr.contains("zero bytes instead of a record"),
        "{done}"
    );
    assert_eq!(files::read_as_it_stands(&out).len(), 1);
}
