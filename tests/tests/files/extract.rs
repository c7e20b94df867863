//! `wqcap extract`: selects frames by time and filter, and reads no more than necessary. tcpdump,
//! which uses no indexes, determines the expected frames.

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};
use wqcap_tests::{
    Dir, Done, Finished, Program, Wqcap,
    compare::assert_same,
    files,
    frames::{Ends, Frame, IPV4},
    wqcap::wqcap,
};

/// Start of the first file, in seconds since 1970.
const START: u32 = 1_700_000_000;
/// Seconds from one file to the next.
const STEP: u32 = 10;
/// Number of files per queue.
const FILES: u32 = 4;
/// Number of frames of a file, one per microsecond: about 4 MiB.
const FRAMES: u32 = 4_000;

fn frame(from: u16, sport: u16, protocol: u8) -> Vec<u8> {
    let ends = Ends {
        from,
        to: 2000,
        sport,
        dport: 443,
    };
    let ip = Frame::ethernet(&[], IPV4).ipv4(ends, protocol, 0);
    let transport = match protocol {
        6 => ip.tcp(ends),
        _ => ip.udp(ends),
    };
    transport.payload(1000).done()
}

/// Writes four files for each of two queues. The TCP flow of port 777 is at one place of one file;
/// a UDP frame with that port is in every file.
fn captures(dir: &Dir) -> PathBuf {
    let out = dir.folder("cap");
    for queue in 0..2u8 {
        for n in 0..FILES {
            let frames: Vec<_> = (0..FRAMES)
                .map(|i| match (queue, n, i) {
                    (1, 2, 3000..3010) => frame(77, 777, 6),
                    (_, _, 5) => frame(1, 777, 17),
                    _ => frame(
                        u16::from(queue) * 256 + (i % 50) as u16,
                        1000 + (i % 50) as u16,
                        17,
                    ),
                })
                .collect();
            let start = START + n * STEP;
            let name = format!("wqcap-q{queue:02}-{start}000000000.pcap");
            files::write(&out.join(&name), start, &frames);
            // The time of the last write is part of what the end of a file is taken from.
            let written = UNIX_EPOCH + Duration::from_secs(u64::from(start) + 1);
            let file = fs::File::options().append(true).open(out.join(name));
            let file = file.expect("the file exists");
            file.set_modified(written).expect("the time is set");
        }
    }
    out
}

/// A frame whose time no 64 bits of nanoseconds can express, as of a writer that mistakes the
/// resolution, is found if no time is given.
#[test]
fn a_frame_after_the_last_time_is_found_without_times() {
    let dir = Dir::new();
    let cap = dir.folder("cap");
    let words = |all: &[u32]| {
        all.iter()
            .flat_map(|it| it.to_le_bytes())
            .collect::<Vec<_>>()
    };
    let mut file = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28]);
    file.extend(words(&[1, 20, 1, 0, 20]));
    // Nanoseconds in units of microseconds: the year 58877.
    let ns = 1_795_790_000_000_000_000_u64;
    file.extend(words(&[6, 92, 0, (ns >> 32) as u32, ns as u32, 60, 60]));
    file.extend([7; 60]);
    file.extend(words(&[92]));
    fs::write(cap.join("far.pcapng"), file).expect("written");
    let out = dir.join("out.pcapng");
    let index = dir.join("idx");
    let index = ["--index", index.to_str().expect("text")];
    for args in [&[][..], &["--filter", "len > 0"], &index] {
        assert_eq!(
            facts(&extract(&cap, &out, args).run().expect(0))["frames"],
            1
        );
    }
}

/// A file whose successor begins before it ends is read to its end, without an index, with one that
/// is built first, and by a pin.
#[test]
fn files_of_a_queue_that_overlap_are_found() {
    let dir = Dir::new();
    let cap = dir.folder("cap");
    let name = |start: u32| format!("wqcap-q00-{start}000000000.pcap");
    // The first file has a frame at its start and one 600 s later; the second file has one after 10 s.
    let one = [frame(1, 1000, 17)];
    files::write(&cap.join(name(START)), START, &one);
    let mut bytes = fs::read(cap.join(name(START))).expect("a file");
    let mut later = bytes[24..].to_vec();
    later[..4].copy_from_slice(&(START + 600).to_le_bytes());
    bytes.extend(later);
    fs::write(cap.join(name(START)), bytes).expect("written");
    files::write(&cap.join(name(START + 10)), START + 10, &one);
    let out = dir.join("out.pcap");
    let from = (START + 300).to_string();
    let index = dir.join("idx");
    let index = ["--index", index.to_str().expect("text")];
    for more in [&[][..], &index] {
        let args = [&["--from", &from][..], more].concat();
        assert_eq!(
            facts(&extract(&cap, &out, &args).run().expect(0))["frames"],
            1
        );
    }
    let pinned = wqcap([
        "pin", "--json", "--reason", "x", "--from", &from, "--to", "now", "--dir",
    ]);
    let pinned: Value =
        serde_json::from_str(&pinned.arg(&cap).run().expect(0).stdout).expect("JSON");
    assert_eq!(pinned["files"], 2, "{pinned}");
}

fn extract(dir: &Path, out: &Path, args: &[&str]) -> Program {
    wqcap(["extract", "--json"])
        .arg(dir)
        .arg("-o")
        .arg(out)
        .args(args)
}

#[track_caller]
fn facts(done: &Done) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
}

/// Returns the stamps and bytes of all frames in `dir` that match `filter` according to tcpdump,
/// with stamps from `from` and before `to`.
fn expected(dir: &Path, scratch: &Dir, filter: &str, from: u64, to: u64) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        let some = scratch.join("some.pcap");
        // libpcap cannot decompress.
        let plain = scratch.join("plain");
        fs::write(&plain, files::unpacked(&path)).expect("written");
        Program::new("tcpdump")
            .args(["--nano", "-r"])
            .arg(&plain)
            .arg("-w")
            .arg(&some)
            .arg(filter)
            .run()
            .expect(0);
        let records = files::read_as_it_stands(&some);
        all.extend(records.into_iter().map(|r| (r.ts, r.bytes)));
    }
    all.retain(|(ts, _)| (from..to).contains(ts));
    all.sort();
    all
}

#[track_caller]
fn found(out: &Path) -> Vec<(u64, Vec<u8>)> {
    let records = files::read(out);
    assert!(
        records.is_sorted_by_key(|r| r.ts),
        "the output is in time order"
    );
    let mut all: Vec<_> = records.into_iter().map(|r| (r.ts, r.bytes)).collect();
    all.sort();
    all
}

#[test]
fn only_blocks_that_can_match_are_read() {
    let dir = Dir::new();
    let cap = captures(&dir);
    let index = dir.folder("idx");
    let out = dir.join("out.pcap");
    let args = |filter| ["--index", index.to_str().expect("text"), "--filter", filter];

    // A foreign file with the name of an index is ignored.
    let garbage = format!("wqcap-q00-{START}000000000.pcap.cbor");
    fs::write(index.join(garbage), "no index").expect("written");
    let rare = "host 10.0.0.77 and tcp port 777";
    let first = facts(&extract(&cap, &out, &args(rare)).run().expect(0));
    let want = expected(&cap, &dir, rare, 0, u64::MAX);
    assert_eq!(want.len(), 10);
    assert_same("one place of one file", &found(&out), &want);
    assert_eq!(first["frames"], 10);
    assert_eq!(first["index"]["made"], 2 * FILES);
    assert_eq!(first["files"]["total"], 2 * FILES);
    assert_eq!(first["files"]["read"], 1, "{first}");

    // The second run finds the indexes and reads a single block of 1 MiB.
    let second = facts(&extract(&cap, &out, &args(rare)).run().expect(0));
    assert_same("by the index", &found(&out), &want);
    assert_eq!(second["index"]["made"], 0);
    assert_eq!(second["index"]["bytes_to_make"], 0);
    let read = second["file_bytes"]["read"].as_u64().expect("a number");
    assert!(read > 10 * 1000 && read < (1 << 20) + 20_000, "{second}");
    assert!(second["file_bytes"]["total"].as_u64() > Some(30_000_000));

    // UDP port 777 is in the first block of each file.
    let port = facts(&extract(&cap, &out, &args("udp port 777")).run().expect(0));
    let want = expected(&cap, &dir, "udp port 777", 0, u64::MAX);
    assert_same("one frame of each file", &found(&out), &want);
    assert_eq!(
        (&port["frames"], &port["files"]["read"]),
        (&8.into(), &8.into())
    );
    let read = port["file_bytes"]["read"].as_u64().expect("a number");
    assert!(read < 8 * ((1 << 20) + 20_000), "{port}");

    // A filter that an index cannot answer is applied to every frame.
    let any = "host 10.0.0.77 or udp src port 777";
    let all = facts(&extract(&cap, &out, &args(any)).run().expect(0));
    let want = expected(&cap, &dir, any, 0, u64::MAX);
    assert_same("a filter that no index helps with", &found(&out), &want);
    assert_eq!(all["index"]["helps_filter"], false);

    // No match: the output is empty, and little is read.
    let none = facts(&extract(&cap, &out, &args("host 1.2.3.4")).run().expect(0));
    let empty = [&args("host 1.2.3.4")[..], &["--fail-if-empty"]].concat();
    let done = extract(&cap, &out, &empty).run().expect(1);
    done.says(&["no frame matches"]);
    assert_eq!(none["frames"], 0);
    assert!(none["file_bytes"]["read"].as_u64() < Some(20_000), "{none}");
    assert_eq!(files::read(&out).len(), 0);

    // A changed file gets a new index.
    let path = cap.join(format!("wqcap-q00-{START}000000000.pcap"));
    files::write(&path, START, &[frame(77, 777, 6)]);
    let third = facts(&extract(&cap, &out, &args(rare)).run().expect(0));
    assert_eq!(
        (&third["frames"], &third["index"]["made"]),
        (&11.into(), &1.into())
    );
    let want = expected(&cap, &dir, rare, 0, u64::MAX);
    assert_same("a file that changed", &found(&out), &want);
}

#[test]
fn time_limits_select_files_by_first_record_and_blocks_by_index() {
    let dir = Dir::new();
    let cap = captures(&dir);
    fs::write(cap.join("wqcap-q00-1.pcap.part"), "open").expect("written");
    let index = dir.join("idx");
    let out = dir.join("out.pcapng");
    let second = u64::from(START + 2 * STEP) * 1_000_000_000;
    // The last 100 frames of the third files, without the frame stamped with the end.
    let (from, to) = (second + 3_900_000, second + 3_999_000);
    let decimal = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let (from_text, to_text) = (decimal(from), decimal(to));
    let times = ["--from", &from_text, "--to", &to_text];
    fs::remove_file(cap.join("wqcap-q00-1.pcap.part")).expect("the file exists");
    let want = expected(&cap, &dir, "", from, to);
    fs::write(cap.join("wqcap-q00-1.pcap.part"), "open").expect("written");
    assert_eq!(want.len(), 2 * 99);

    let done = extract(&cap, &out, &times).run().expect(0);
    let whole = facts(&done);
    assert_same("by first records", &found(&out), &want);
    // The third files and the second files, which may reach one second into the time of the third.
    assert_eq!(whole["files"]["read"], 4, "{whole}");
    assert!(done.stdout.contains("1 .part files are left out"), "{done}");
    let read_whole = whole["file_bytes"]["read"].as_u64().expect("a number");
    // Half of the files are read completely, the others only at their beginnings.
    let total = whole["file_bytes"]["total"].as_u64().expect("a number");
    assert!(
        (total / 2..total / 2 + 4 * 5000).contains(&read_whole),
        "{whole}"
    );

    let with = [&times[..], &["--index", index.to_str().expect("text")]].concat();
    let indexed = facts(&extract(&cap, &out, &with).run().expect(0));
    assert_same("by the index", &found(&out), &want);
    assert_eq!(
        indexed["index"]["made"], 4,
        "only files in the time range get an index"
    );
    assert_eq!(indexed["files"]["read"], 2, "{indexed}");
    let read = indexed["file_bytes"]["read"].as_u64().expect("a number");
    assert!(read * 3 < read_whole, "{read} of {read_whole}");

    // The same times in another notation.
    let words = [
        "--from",
        "2023-11-14T22:13:40Z",
        "--to",
        "2023-11-14T23:13:45+01:00",
    ];
    let done = extract(&cap, &out, &words).run().expect(0);
    assert_eq!(facts(&done)["frames"], 2 * FRAMES);
    let none = extract(&cap, &out, &["--from", "-10m"]).run().expect(0);
    assert_eq!(facts(&none)["frames"], 0);

    // Times in file names are ignored.
    for queue in 0..2 {
        for n in 0..FILES {
            let from = cap.join(format!(
                "wqcap-q{queue:02}-{}000000000.pcap",
                START + n * STEP
            ));
            let to = cap.join(format!("wqcap-q{queue:02}-{}.pcap", FILES - n));
            fs::rename(from, to).expect("renamed");
        }
    }
    let renamed = facts(&extract(&cap, &out, &times).run().expect(0));
    assert_same("under other names", &found(&out), &want);
    assert_eq!(renamed["files"], whole["files"]);
    assert_eq!(renamed["file_bytes"], whole["file_bytes"]);
}

/// Captures `frames` and ends the run once each file has an index. The indexer has the lowest
/// priority, and a run that ends earlier leaves the other files without indexes.
fn indexed(run: Wqcap<'_>, index: &Path, frames: u64) -> Finished {
    fs::create_dir_all(index).expect("a folder for the index");
    let run = run
        .set("capture.on_port_down=wait")
        .set(&format!("output.index_dir={}", index.display()))
        .control();
    let (mut running, ctl) = (run.start(), run.ctl());
    ctl.until_counted(&mut running, "captured", frames);
    ctl.run(&["rotate"]).expect(0);
    let names = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("a folder");
        entries
            .map(|it| it.expect("the folder can be listed").path())
            .collect()
    };
    let ends = |path: &PathBuf, with: &str| path.extension().is_some_and(|it| it == with);
    running.until("each file has an index", |_| {
        let files = names(run.out_path());
        let indexes = names(index).iter().filter(|it| ends(it, "cbor")).count();
        !files.is_empty() && !files.iter().any(|it| ends(it, "part")) && indexes == files.len()
    });
    ctl.run(&["shutdown"]).expect(0);
    run.finished(running.wait(), 0)
}

#[test]
fn a_capture_writes_an_index_for_each_file() {
    let dir = Dir::new();
    let index = dir.join("idx");
    let run = Wqcap::run(&dir, "run")
        .model("synth:size=1000,flows=64,count=6000")
        .queues(2)
        .set("output.format=pcapng")
        .set("output.rotate_size=1MiB");
    let finished = indexed(run, &index, 6000);
    let files = finished.files();
    assert!(files.len() >= 5);
    assert_eq!(fs::read_dir(&index).expect("made").count(), files.len());
    let cap = files[0].1.parent().expect("a folder");
    let out = dir.join("out.pcapng");
    let args = ["--index", index.to_str().expect("text")];
    let all = facts(&extract(cap, &out, &args).run().expect(0));
    assert_eq!(all["index"]["made"], 0, "{all}");
    assert_eq!(all["frames"], 6000);
    assert_eq!(files::read(&out).len(), 6000);

    // All frames of one flow, compared with an independent reader.
    let record = &files::read(&files[0].1)[0].bytes;
    let source = record[26..30].iter().map(u8::to_string).collect::<Vec<_>>();
    let port = u16::from_be_bytes([record[34], record[35]]);
    let filter = format!("src host {} and src port {port}", source.join("."));
    let flow = facts(
        &extract(cap, &out, &[&args[..], &["--filter", &filter]].concat())
            .run()
            .expect(0),
    );
    let want = expected(cap, &dir, &filter, 0, u64::MAX);
    assert_same("one flow", &found(&out), &want);
    assert!(flow["frames"].as_u64() > Some(0), "{flow}");
    assert_eq!(flow["index"]["helps_filter"], true);
}

#[test]
fn only_compressed_frames_that_can_match_are_read() {
    let dir = Dir::new();
    let mut noise = 1u64;
    let sent: Vec<_> = (0..12_000u32)
        .map(|i| {
            let mut frame = match i {
                9000..9010 => frame(77, 777, 6),
                _ => frame((i % 50) as u16, 1000, 17),
            };
            // Incompressible bytes, so that the file size is proportional to the number of frames.
            for byte in &mut frame[60..] {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                *byte = noise as u8;
            }
            frame
        })
        .collect();
    let input = dir.join("in.pcap");
    files::write(&input, START, &sent);
    for compress in ["lz4", "zstd:1"] {
        let name = compress.replace(':', "");
        let index = dir.join(format!("{name}.idx"));
        let run = || {
            Wqcap::run(&dir, &name)
                .replay(&input)
                .queues(1)
                .set(&format!("output.compress={compress}"))
        };
        let _ = indexed(run(), &index, sent.len() as u64);
        let run = run();
        let out = dir.join("out.pcap");
        let with = ["--index", index.to_str().expect("text")];
        let everything = facts(&extract(run.out_path(), &out, &with).run().expect(0));
        assert_eq!(found(&out).len(), sent.len());
        assert_eq!(
            everything["index"]["made"], 0,
            "the capture wrote the index"
        );
        let bytes = |facts: &Value, of: &str| facts["file_bytes"][of].as_u64().expect("a number");
        let (read, total) = (bytes(&everything, "read"), bytes(&everything, "total"));
        assert!(
            total > 10_000_000 && read == total,
            "bytes read twice count once: {everything}"
        );

        let rare = "host 10.0.0.77 and tcp port 777";
        let few = [&with[..], &["--filter", rare]].concat();
        let few = facts(&extract(run.out_path(), &out, &few).run().expect(0));
        let want = expected(run.out_path(), &dir, rare, 0, u64::MAX);
        assert_eq!((found(&out).len(), want.len()), (10, 10));
        assert_same(compress, &found(&out), &want);
        // Two of twelve compressed frames: the first one and the one with the flow.
        assert!(bytes(&few, "read") * 4 < total, "{few}");

        // No frame matches. The first compressed frame is read for the format.
        let none = extract(run.out_path(), &out, &["--from", "-10m", "--to", "-9m"]);
        assert_eq!(facts(&none.run().expect(0))["frames"], 0);
        let times = [&with[..], &["--to", "1970-01-02T00:00:00Z"]].concat();
        let none = facts(&extract(run.out_path(), &out, &times).run().expect(0));
        assert_eq!((none["frames"].as_u64(), found(&out).len()), (Some(0), 0));
    }
}

#[test]
fn invalid_requests_exit_with_status_2() {
    let dir = Dir::new();
    let cap = captures(&dir);
    let out = dir.join("out.pcap");
    let empty = dir.folder("empty");
    for (folder, args, message) in [
        (&cap, vec!["--filter", "tcp prot 80"], "syntax error"),
        (&cap, vec!["--from", "yesterday"], "2026-03-01T12:00:00Z"),
        (
            &cap,
            vec!["--from", "5", "--to", "5"],
            "must be before --to",
        ),
        (&empty, vec![], "no finished .pcap"),
        (&dir.join("none"), vec![], "No such file"),
    ] {
        let done = extract(folder, &out, &args).run().expect(2);
        done.says(&[message]);
        assert!(!out.exists());
    }
    let input = fs::read_dir(&cap).expect("the folder can be listed").next();
    let input = input.expect("a file").expect("the folder can be listed");
    let done = extract(&cap, &input.path(), &[]).run();
    done.expect(2).says(&["is one of the inputs"]);
    let key = dir.write("key", [7; 32]);
    let named = key.display().to_string();
    let done = extract(&cap, &key, &["--anonymize", &named]).run();
    done.expect(2)
        .says(&["the output is the file of --anonymize"]);
    assert_eq!(fs::read(&key).expect("the key is there"), [7; 32]);
}
