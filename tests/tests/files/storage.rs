//! Tests of capture files: rotation, retention, hooks, compression, and third-party readers.
//!
//! | test | what it shows |
//! |---|---|
//! | `the_oldest_files_are_deleted_and_foreign_files_are_kept` | `output.keep_files`, `output.keep` |
//! | `the_status_and_the_plan_estimate_how_long_the_disk_lasts` | estimate at the rate of the existing files |
//! | `setting_the_clock_deletes_no_new_file` | `output.keep_age`: no age is computed from a clock that was just set |
//! | `foreign_entries_delay_neither_retention_nor_the_end` | pipes, huge files and links in shared folders |
//! | `the_hook_runs_once_for_each_finished_file` | `output.hook`: every file once, complete and under its final name |
//! | `failed_hooks_are_counted_and_do_not_fail_the_run` | failures do not change the run's exit status |
//! | `every_reader_accepts_every_format_and_rotation...` | capinfos, tshark, tcpdump and `pcap-file` read the same frames |
//! | `rotation_under_full_load_is_seamless` | every 100 ms and every 1 MiB: frames in = frames out |
//! | `recover_finishes_a_killed_compressed_capture` | incomplete compressed frames are cut off, the others are kept |
//! | `merge_reads_compressed_files` | the merged frames are the captured ones |
//! | `time_order_merges_all_queues_into_sorted_files` | `output.order = "time"`, with every file format |
//! | `other_tools_read_the_stream_on_stdout` | `output.stdout` into tshark and tcpdump |
//! | `a_reader_that_exits_ends_the_run_in_order` | the run ends with status 0 and the reason `reader_left` |
//! | `fan_out_works_with_every_output` | fan-out with compression, one ordered file, and stdout |
//! | `ordered_output_records_a_change_of_the_filter` | comments in ordered files and streams, inline and with fan-out |

use rustix::process::Signal;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use wqcap_tests::{
    Dir, Finished, Program, Summary, Wqcap,
    compare::assert_frames,
    files::{self, Record},
    frames, ledger,
    oracles::capinfos,
    process::{
        HANG, TICK,
        clients::{self, Build},
    },
    wqcap::wqcap,
};

/// Wire of 4000 frames of 1500 bytes, 6 MB in total.
const WIRE: &str = "synth:size=1500,flows=64,count=4000";

/// Returns the sorted names in a folder.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("the folder can be listed")
        .map(|entry| {
            entry
                .expect("the folder can be listed")
                .file_name()
                .into_string()
                .expect("the name is UTF-8")
        })
        .collect();
    names.sort();
    names
}

/// Runs to the end, asserts exit status 0, and returns the summary. The files are not checked.
#[track_caller]
fn summary(run: &Wqcap<'_>) -> Summary {
    let done = run.done().expect(0);
    let text = fs::read_to_string(run.summary_path()).unwrap_or_else(|e| panic!("{e}: {done}"));
    Summary::parse(&text)
}

/// Returns `true` if a file in time order is sorted, or the summary says that a thread got no CPU
/// time, so that frames are out of order.
fn is_in_order<'a>(records: impl IntoIterator<Item = &'a Record>, summary: &Summary) -> bool {
    let notes = summary.json["notes"].to_string();
    records.into_iter().is_sorted_by_key(|r| r.ts)
        || notes.contains("frames behind one with a later time stamp")
}

#[test]
fn the_oldest_files_are_deleted_and_foreign_files_are_kept() {
    let dir = Dir::new();
    let sets: [(&[&str], usize, u64); 3] = [
        (&["output.keep_files=5"], 5, u64::MAX),
        (&["output.keep=1MiB"], usize::MAX, 1 << 20),
        (&["output.keep=1MiB", "output.keep_files=2"], 2, 1 << 20),
    ];
    for (i, (sets, most_files, most_bytes)) in sets.into_iter().enumerate() {
        let out = dir.folder(&format!("{i}.out"));
        // The first two are older than the files of the run. Retention must keep the last two: an
        // unfinished file, and a file that is not a capture's.
        for name in [
            "wqcap-q00-17.pcap",
            "wqcap-q01-18.pcap.zst",
            "wqcap-q00-19.pcap.part",
            "notes.pcap",
        ] {
            fs::write(out.join(name), b"old").expect("the file can be written");
        }
        let mut run = Wqcap::run(&dir, &i.to_string())
            .model(WIRE)
            .queues(2)
            .out(&out)
            .set("output.rotate_size=200KB");
        for set in sets {
            run = run.set(set);
        }
        let summary = summary(&run);
        assert_eq!(summary.ledger.total.captured, 4000);
        let mut left = names(&out);
        for foreign in ["notes.pcap", "wqcap-q00-19.pcap.part"] {
            let at = left.iter().position(|name| name == foreign);
            left.remove(at.unwrap_or_else(|| panic!("{foreign} is missing: {left:?}")));
        }
        assert!(!left.is_empty() && left.len() <= most_files, "{left:?}");
        let paths: Vec<_> = left.iter().map(|name| out.join(name)).collect();
        let bytes: u64 = paths
            .iter()
            .map(|p| fs::metadata(p).expect("the file exists").len())
            .sum();
        assert!(
            bytes <= most_bytes,
            "at most {most_bytes} bytes are kept: {bytes} in {left:?}"
        );
        let mut named = summary.files.clone();
        named.sort();
        assert_eq!(named, paths, "the summary names the remaining files");
        let deleted = summary.json["deleted"]["files"].as_u64().expect("a number");
        assert!(deleted >= 2 + 4000 / 133 - paths.len() as u64, "{deleted}");
        // The newest files are kept: the last frames of each queue.
        let last = paths
            .iter()
            .flat_map(|p| files::read(p))
            .map(|r| r.ts)
            .max();
        let first = paths
            .iter()
            .flat_map(|p| files::read(p))
            .map(|r| r.ts)
            .min();
        assert!(last > first);
    }
}

#[test]
fn the_status_and_the_plan_estimate_how_long_the_disk_lasts() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "run")
        .model("synth:size=1000,flows=64,pps=1000")
        .queues(1)
        .control()
        .set("output.rotate_size=100KB")
        .set("output.keep=10MB");
    let mut running = run.start();
    let has_estimate = |status: &Value| status["capture"]["disk"].is_object();
    let status = run
        .ctl()
        .until(&mut running, "status", "an estimate", has_estimate);
    let disk = &status["capture"]["disk"];
    let number = |name: &str| disk[name].as_f64().expect("a number");
    let held = number("seconds") * number("bytes_per_s");
    assert!((held - 10e6).abs() < 1.0, "{disk}");
    assert_eq!(disk["deletes"], true);
    let shown = run.ctl().run(&["status"]).expect(0);
    assert!(shown.stdout.contains("files are deleted after "), "{shown}");
    running.signal(Signal::TERM);
    let _ = running.wait().expect(0);

    let check = |more: &str| {
        let set = format!("output.dir={}", run.out_path().display());
        let args = ["check", "--model", "loopback", "--set", &set];
        wqcap(args).args(more.split_whitespace()).run().expect(0)
    };
    let full = check("");
    assert!(
        full.stdout.contains("#   disk      the disk is full in "),
        "{full}"
    );
    let plan: Value =
        serde_json::from_str(&check("--json --set output.keep_age=30s").stdout).expect("JSON");
    assert_eq!(plan["outlook"]["deletes"], true);
    assert_eq!(plan["outlook"]["seconds"], 30.0);
}

/// The clock of the machine is set repeatedly, as with a lost or wrong time source.
#[test]
fn setting_the_clock_deletes_no_new_file() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "x")
        .model("synth:size=300,flows=64,pps=5000")
        .queues(1)
        .set("output.rotate_time=100ms")
        .set("output.keep_age=1h");
    let mut running = run
        .program()
        .env(
            "LD_PRELOAD",
            clients::ours("tests/clients/stepped_clock.c", Build::Library),
        )
        .env("STEP_S", "3700")
        .env("STEP_EVERY_MS", "700")
        .start();
    running.until("retention has reported a step of the clock", |it| {
        it.stderr().contains("the system's clock was set")
    });
    let before = names(run.out_path()).len();
    running.until("more files and more steps of the clock", |_| {
        names(run.out_path()).len() > before + 30
    });
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    assert_eq!(finished.summary.json["deleted"]["files"], 0);
    assert!(finished.summary.files.iter().all(|it| it.exists()));
    finished
        .done
        .says(&["output.keep_age deletes nothing until"]);
}

/// The age of a file of this run is known at once; other files need a steady clock first.
#[test]
fn files_of_this_run_expire_by_age_without_a_steady_clock() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "x")
        .model("synth:size=300,flows=64,pps=5000")
        .queues(1)
        .set("output.rotate_time=200ms")
        .set("output.keep_age=1s");
    let mut running = run.start();
    let mut seen = BTreeSet::new();
    running.until("a file is deleted", |_| {
        let there = names(run.out_path());
        let gone = seen.iter().any(|it| !there.contains(it));
        // Only finished files count: an open file changes its name when it is finished.
        seen.extend(there.into_iter().filter(|it| it.ends_with(".pcap")));
        gone
    });
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    let summary = fs::read_to_string(run.summary_path()).expect("a summary");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    assert!(summary["deleted"]["files"].as_u64() > Some(0), "{done}");
}

/// The folders of records, pins and captures contain pipes, huge files and links.
#[test]
fn foreign_entries_delay_neither_retention_nor_the_end() {
    let dir = Dir::new();
    let (journal, store, index) = (
        dir.folder("journal"),
        dir.folder("store"),
        dir.folder("idx"),
    );
    let records = dir.folder("journal/packets");
    let fifo = |path: &Path| {
        let _ = Program::new("mkfifo").arg(path).run().expect(0);
    };
    let run = |name: &str| {
        Wqcap::run(&dir, name)
            .config(&format!(
                "[ship]\nstore = \"file://{}\"\nsensor = \"tap1\"\njournal = \"{}\"\n",
                store.display(),
                journal.display()
            ))
            .out(&dir.join("out"))
            .set(&format!("output.index_dir={}", index.display()))
            .set("output.rotate_size=64KiB")
            .queues(1)
    };
    let out = dir.folder("out");
    let _ = run("first")
        .model("synth:size=500,count=800")
        .done()
        .expect(0);
    let before = names(&out);
    assert!(before.len() > 4, "{before:?}");
    for (i, name) in before.iter().enumerate() {
        let record = records.join(format!("{name}.json"));
        match i % 3 {
            0 => fifo(&record),
            1 => std::os::unix::fs::symlink("/dev/zero", &record)
                .expect("the test's folder is writable"),
            _ => {
                let file = fs::File::create(&record).expect("the test's folder is writable");
                file.set_len(1 << 36).expect("the file can be sparse");
            }
        }
    }
    fifo(&journal.join("ledger.json"));
    let pins = dir.folder("out/.wqcap-pins");
    fifo(&pins.join("20261126T083937Z.json"));
    let lists = dir.folder("out/.wqcap-expired");
    fifo(&lists.join("0.jsonl"));
    fifo(&out.join("wqcap-q00-1700000000000000000.pcap.part"));
    fifo(&out.join("wqcap-q00-1700000000000000001.pcap"));

    let second = run("second")
        .model("synth:size=500,pps=4000")
        .set("output.keep_files=4");
    let mut running = second.start();
    running.until("the old files are deleted", |_| {
        let there = names(&out);
        before.iter().all(|it| !there.contains(it))
    });
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    let summary = fs::read_to_string(second.summary_path()).expect("a summary");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    assert!(
        summary["deleted"]["unshipped"].as_u64() >= Some(before.len() as u64),
        "{done}"
    );
}

#[test]
fn the_hook_runs_once_for_each_finished_file() {
    let dir = Dir::new();
    let seen = dir.folder("seen");
    // The hook gets a complete file under its final name, and may move it.
    let hook = dir.script("hook", &format!("mv \"$1\" {}", seen.display()));
    let run = Wqcap::run(&dir, "x")
        .model(WIRE)
        .queues(2)
        .set("output.rotate_size=500KB")
        .set(&format!("output.hook={}", hook.display()));
    let summary = summary(&run);
    assert_eq!(names(run.out_path()), Vec::<String>::new());
    let named: BTreeSet<_> = summary
        .files
        .iter()
        .map(|p| {
            p.file_name()
                .and_then(|n| n.to_str())
                .expect("the name is UTF-8")
                .to_owned()
        })
        .collect();
    let moved = names(&seen);
    assert_eq!(moved.iter().cloned().collect::<BTreeSet<_>>(), named);
    assert_eq!(summary.json["hooks"]["succeeded"], moved.len());
    assert_eq!(summary.json["hooks"]["failed"], 0);
    let paths: Vec<PathBuf> = moved.iter().map(|name| seen.join(name)).collect();
    let frames: usize = paths.iter().map(|p| files::read(p).len()).sum();
    assert_eq!(frames, 4000);
}

/// The time that hooks take is not part of the duration.
#[test]
fn the_duration_ends_with_the_last_file() {
    let dir = Dir::new();
    let [began, go] = ["began", "go"].map(|name| dir.join(name));
    let hook = format!(
        "touch {}; until [ -e {} ]; do sleep 0.02; done",
        began.display(),
        go.display()
    );
    let hook = dir.script("hook", &hook);
    let run = Wqcap::run(&dir, "x")
        .model("synth:count=1000,size=94")
        .queues(1)
        .set(&format!("output.hook={}", hook.display()));
    let start = Instant::now();
    let mut running = run.start();
    running.until("the hook of the last file", |_| began.exists());
    let synced = start.elapsed();
    // The duration would be longer by this time if it included the hook.
    thread::sleep(synced.max(Duration::from_millis(500)));
    fs::write(&go, "").expect("the file can be written");
    let finished = run.finished(running.wait(), 0);
    let took = finished.summary.duration_s;
    assert!(
        took <= synced.as_secs_f64(),
        "a duration of {took} s, and {synced:?} until the file was complete"
    );
}

#[test]
fn failed_hooks_are_counted_and_do_not_fail_the_run() {
    let dir = Dir::new();
    let hook = dir.script("hook", "echo to stdout; echo to stderr >&2; exit 7");
    let run = Wqcap::run(&dir, "x")
        .model(WIRE)
        .queues(1)
        .args(&["--json"])
        .set(&format!("output.hook={}", hook.display()));
    let finished = run.finish(0);
    assert_eq!(finished.summary.json["hooks"]["failed"], 1);
    finished
        .done
        .says(&["output.hook", "exit status: 7", "to stdout", "to stderr"]);
    let json: serde_json::Value = serde_json::from_str(&finished.done.stdout).expect("JSON alone");
    assert_eq!(json["hooks"]["failed"], 1);
    // A hook that cannot be executed is refused before any object is created.
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o644)).expect("the mode can be changed");
    for (hook, problem) in [(&hook, "chmod +x"), (&dir.join("absent"), "No such file")] {
        Wqcap::run(&dir, "refused")
            .model(WIRE)
            .set(&format!("output.hook={}", hook.display()))
            .done()
            .expect(2)
            .says(&["output.hook", problem]);
    }
}

/// Writes `count` UDP frames into a file, and returns the frames and the path.
fn sample(dir: &Dir, count: u16) -> (Vec<Vec<u8>>, PathBuf) {
    let frames = frames::udp_flows(count, 300);
    let path = dir.join("in.pcap");
    files::write(&path, 1_700_000_000, &frames);
    (frames, path)
}

/// Value of `output.rotate_time` in the tests below.
const PERIOD: Duration = Duration::from_millis(100);

#[test]
fn every_reader_accepts_every_format_and_rotation() {
    assert_every_reader_accepts("none");
}

#[test]
fn every_reader_accepts_every_format_and_rotation_with_lz4() {
    assert_every_reader_accepts("lz4");
}

#[test]
fn every_reader_accepts_every_format_and_rotation_with_zstd() {
    assert_every_reader_accepts("zstd:1");
}

/// Asserts that all readers get the frames that were sent, for each format and rotation.
fn assert_every_reader_accepts(compress: &str) {
    let dir = Dir::new();
    let (mut sent, input) = sample(&dir, 5000);
    sent.sort();
    let wire = format!("pcap:{}", input.display());
    for format in ["pcap", "pcapng"] {
        for (rotation, wire) in [
            ("rotate_size=0", wire.clone()),
            ("rotate_size=100KiB", wire.clone()),
            // The pace makes the run last several periods of 100 ms.
            ("rotate_time=100ms", format!("{wire},pps=12000")),
        ] {
            let name = format!("{format}-{rotation}");
            let run = Wqcap::run(&dir, &name)
                .model(&wire)
                .queues(2)
                .set(&format!("output.format={format}"))
                .set(&format!("output.compress={compress}"))
                .set(&format!("output.{rotation}"));
            let finished = run.finish(0);
            let files: Vec<_> = finished.files().into_iter().map(File::read).collect();
            let by_queue = |queue| {
                let files = files.iter().filter(move |it| it.queue == queue);
                files.flat_map(|it| &it.records)
            };
            // Each period in which a queue has frames has its own file.
            let period =
                |r: &Record| r.ts / u64::try_from(PERIOD.as_nanos()).expect("the period fits u64");
            let periods: usize = [0, 1]
                .map(|queue| by_queue(queue).map(period).collect::<BTreeSet<_>>().len())
                .into_iter()
                .sum();
            let (least, most) = match rotation {
                "rotate_size=0" => (2, 2),
                "rotate_time=100ms" => (periods.max(3), periods),
                _ => (12, usize::MAX),
            };
            let n = files.len();
            assert!(
                (least..=most).contains(&n),
                "{name}: {n} files, {periods} periods"
            );
            for queue in [0, 1] {
                assert!(by_queue(queue).all(|r| r.caplen <= r.len), "{name}");
                let sorted = by_queue(queue).is_sorted_by_key(|r| r.ts);
                assert!(sorted, "{name}: frames are in time order");
            }
            let all = files.iter().flat_map(|it| &it.records);
            let mut got: Vec<_> = all.map(|r| &r.bytes).collect();
            got.sort();
            assert_frames(&name, &got, &sent);
            if format == "pcapng" {
                assert_statistics(&finished, &files);
            }
            assert_other_readers_agree(&dir, &files);
        }
    }
}

/// Finished file with its decompressed content and its records.
struct File {
    queue: usize,
    path: PathBuf,
    unpacked: Vec<u8>,
    records: Vec<Record>,
}

impl File {
    #[track_caller]
    fn read((queue, path): (usize, PathBuf)) -> Self {
        let unpacked = files::unpacked(&path);
        Self {
            queue,
            records: files::records(&path, &unpacked),
            path,
            unpacked,
        }
    }
}

/// Asserts that the interface statistics in the files match the ledger.
#[track_caller]
fn assert_statistics(finished: &Finished, files: &[File]) {
    for (queue, lines) in finished.summary.ledger.queues.iter().enumerate() {
        let of_queue = files.iter().filter(|it| it.queue == queue);
        let (received, dropped) = of_queue
            .map(|it| files::statistics_of(&it.path, &it.unpacked))
            .fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        assert_eq!(
            (received, dropped),
            (
                lines.captured + lines.dropped_storage,
                lines.dropped_storage
            ),
            "queue {queue}"
        );
    }
}

/// Asserts that capinfos, tshark and tcpdump read the same number of frames as `pcap-file`.
/// They decompress files themselves.
#[track_caller]
fn assert_other_readers_agree(dir: &Dir, files: &[File]) {
    let counts: Vec<_> = files.iter().map(|it| it.records.len() as u64).collect();
    let paths: Vec<_> = files.iter().map(|it| &it.path).collect();
    assert_eq!(capinfos::counts(&paths), counts);

    let first = &files[0];
    let tshark = Program::new("tshark")
        .args([
            "-n",
            "-T",
            "fields",
            "-e",
            "frame.cap_len",
            "-e",
            "frame.len",
            "-e",
            "frame.time_epoch",
            "-r",
        ])
        .arg(&first.path)
        .run()
        .expect(0);
    let wanted: Vec<String> = first
        .records
        .iter()
        .map(|r| {
            let (s, ns) = (r.ts / 1_000_000_000, r.ts % 1_000_000_000);
            format!("{}\t{}\t{s}.{ns:09}", r.caplen, r.len)
        })
        .collect();
    assert!(tshark.stdout.lines().eq(wanted.iter()), "{tshark}");

    for (file, count) in files.iter().zip(&counts) {
        // libpcap does not decompress files.
        let plain = dir.join("plain");
        fs::write(&plain, &file.unpacked).expect("the file can be written");
        let tcpdump = Program::new("tcpdump")
            .args(["-n", "--count", "-r"])
            .arg(&plain)
            .run()
            .expect(0);
        let message = format!("{count} packet");
        assert!(
            tcpdump.stdout.contains(&message) || tcpdump.stderr.contains(&message),
            "{tcpdump}"
        );
    }
}

/// Returns the sequence number, from 0, that the wire writes at the end of each frame.
fn sequence(frame: &[u8]) -> u64 {
    let bytes = frame.last_chunk().expect("long enough");
    u64::from_le_bytes(*bytes)
}

/// Captures `count` frames at full speed with this rotation, and returns the number of files.
/// Asserts that every frame is in the files exactly once.
fn assert_seamless(dir: &Dir, rotation: &str, compress: &str, count: u64) -> usize {
    let run = Wqcap::run(dir, &format!("{rotation} {compress}"))
        .model(&format!("synth:size=700,flows=64,count={count}"))
        .queues(2)
        .set(&format!("output.{rotation}"))
        .set(&format!("output.compress={compress}"))
        .set("output.buffer=16MiB");
    let finished = run.finish(0);
    let mut seen = vec![false; usize::try_from(count).expect("the number fits usize")];
    for (queue, records) in finished.records().iter().enumerate() {
        let numbers: Vec<_> = records.iter().map(|r| sequence(&r.bytes)).collect();
        assert!(
            numbers.is_sorted(),
            "queue {queue}: frames are in order across its files"
        );
        for number in numbers {
            let seen = &mut seen[usize::try_from(number).expect("the number fits usize")];
            assert!(!std::mem::replace(seen, true), "frame {number} occurs once");
        }
    }
    let gaps = seen.iter().filter(|seen| !**seen).count();
    assert_eq!(gaps, 0, "number of missing frames");
    finished.files().len()
}

#[test]
fn rotation_under_full_load_is_seamless() {
    let dir = Dir::new();
    assert!(assert_seamless(&dir, "rotate_size=1MiB", "none", 100_000) >= 60);
    assert!(assert_seamless(&dir, "rotate_size=1MiB", "lz4", 60_000) >= 40);
    // The number of files depends on the speed of the machine, so it is not checked.
    let _ = assert_seamless(&dir, "rotate_time=100ms", "none", 100_000);
}

#[test]
#[ignore = "a minute each: scripts/soak runs it"]
fn rotation_under_full_load_is_seamless_for_minutes() {
    for rotation in ["rotate_time=100ms", "rotate_size=1MiB"] {
        let began = Instant::now();
        let (mut frames, mut files, mut runs) = (0, 0, 0);
        while began.elapsed() < Duration::from_secs(60) {
            // Each run has its own folder, because the files of a minute take many gigabytes.
            let dir = Dir::new();
            files += assert_seamless(&dir, rotation, "none", 1_000_000);
            frames += 1_000_000;
            runs += 1;
        }
        println!(
            "{rotation}: {frames} frames in {files} files of {runs} runs, none lost, none duplicated"
        );
    }
}

/// Captures at full speed into small files with at most 1024 descriptors, which is the hard limit too.
/// Asserts that the run ends in order and that its ledger adds up.
fn assert_few_descriptors_suffice(size: &str, duration: Duration) {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, size)
        .model("synth:size=1500,flows=64,count=1000000000")
        .queues(2)
        .set(&format!("output.rotate_size={size}"))
        .sets(&[
            "output.on_full=drop",
            "output.buffer=64MiB",
            "output.keep=1GiB",
        ])
        .wrapped(&["prlimit", "--nofile=1024:1024", "--"])
        .args(&["--duration", &format!("{}s", duration.as_secs())]);
    // The sums of the ledger are checked when it is read.
    let summary = summary(&run);
    let total = &summary.ledger.total;
    println!(
        "{size}: {} of {} frames captured; {}",
        total.captured, total.received, summary.json["notes"]
    );
    assert!(total.captured > 0);
}

#[test]
fn rotation_never_uses_up_the_descriptors() {
    assert_few_descriptors_suffice("1MiB", Duration::from_secs(3));
}

#[test]
#[ignore = "a minute: scripts/soak runs it"]
fn rotation_never_uses_up_the_descriptors_for_a_minute() {
    assert_few_descriptors_suffice("4MiB", Duration::from_secs(60));
}

#[test]
fn recover_finishes_a_killed_compressed_capture() {
    for compress in ["lz4", "zstd:1"] {
        let dir = Dir::new();
        let run = Wqcap::run(&dir, compress.trim_end_matches(":1"))
            .model("synth:size=700,flows=64,pps=30000")
            .queues(2)
            .set("output.format=pcapng")
            .set("output.rotate_size=3MiB")
            // A small buffer makes small blocks, and many of them are written before the kill.
            .set("output.buffer=1MiB")
            .set(&format!("output.compress={compress}"));
        let out = run.out_path().to_owned();
        let mut running = run.start();
        running.freeze_when("finished files, and records in an open one", |_| {
            let finished = names(&out).iter().filter(|n| !n.ends_with(".part")).count();
            finished >= 4 && has_open_data(&out)
        });
        running.signal(Signal::KILL);
        let _ = running.wait();
        let deadline = Instant::now() + HANG;
        let recovered = loop {
            let done = wqcap(["recover", "--json"]).arg(&out).run().expect(0);
            if names(&out).iter().all(|name| !name.ends_with(".part")) {
                break done;
            }
            // The kernel may hold a killed writer's files until its last writes have ended.
            assert!(Instant::now() < deadline, "{done}");
            thread::sleep(TICK);
        };
        assert!(recovered.stdout.contains("\"outcome\""), "{recovered}");
        let mut numbers = BTreeSet::new();
        for name in names(&out) {
            for record in files::read(&out.join(&name)) {
                assert!(
                    numbers.insert(sequence(&record.bytes)),
                    "{name}: each frame occurs once"
                );
            }
        }
        assert!(numbers.len() > 10_000, "{}", numbers.len());
    }
}

/// Returns `true` if an open file in `dir` has more than 4096 bytes.
fn has_open_data(dir: &Path) -> bool {
    names(dir)
        .iter()
        .filter(|name| name.ends_with(".part"))
        .any(|name| fs::metadata(dir.join(name)).is_ok_and(|m| m.len() > 4096))
}

#[test]
fn merge_reads_compressed_files() {
    let dir = Dir::new();
    let (mut sent, input) = sample(&dir, 3000);
    sent.sort();
    for compress in ["lz4", "zstd"] {
        let run = Wqcap::run(&dir, compress)
            .replay(&input)
            .queues(3)
            .set("output.rotate_size=64KiB")
            // A small buffer, so that each file has several compressed frames.
            .set("output.buffer=256KiB")
            .set(&format!("output.compress={compress}"));
        let finished = run.finish(0);
        let merged = dir.join(format!("{compress}.pcapng"));
        let done = wqcap(["merge", "--json", "-o"])
            .arg(&merged)
            .arg(run.out_path())
            .run()
            .expect(0);
        let json: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        // The files of a queue are one stream.
        let queues = finished.records().iter().filter(|r| !r.is_empty()).count();
        assert_eq!(json["streams"], queues, "{done}");
        let records = files::read(&merged);
        assert!(records.is_sorted_by_key(|r| r.ts));
        let mut got: Vec<_> = records.into_iter().map(|r| r.bytes).collect();
        got.sort();
        assert_frames("merged", &got, &sent);
        // A file that ends within a compressed frame is read up to that frame, and reported.
        let (_, first) = &finished.files()[0];
        let torn = dir.join(format!(
            "torn.pcap.{}",
            first
                .extension()
                .and_then(|e| e.to_str())
                .expect("a file extension")
        ));
        let bytes = fs::read(first).expect("the file exists");
        fs::write(&torn, &bytes[..bytes.len() - 10]).expect("the file can be written");
        wqcap(["merge", "-o"])
            .arg(&merged)
            .arg(&torn)
            .run()
            .expect(1)
            .says(&["compressed frame at byte"]);
    }
}

/// Reads a file of all queues, and asserts that its name is one of such a file.
fn read_ordered_file(path: PathBuf) -> File {
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .expect("the name is UTF-8");
    assert!(name.starts_with("wqcap-all-"), "{name}");
    File::read((0, path))
}

#[test]
fn time_order_merges_all_queues_into_sorted_files() {
    let dir = Dir::new();
    for (i, sets) in [
        &["output.format=pcap"][..],
        &["output.format=pcapng", "output.rotate_size=200KiB"],
        &[
            "output.format=pcapng",
            "output.compress=lz4",
            "output.rotate_size=1MiB",
        ],
    ]
    .into_iter()
    .enumerate()
    {
        let mut run = Wqcap::run(&dir, &i.to_string())
            .model("synth:size=200,flows=64,count=12000,pps=60000")
            .queues(3)
            .set("output.buffer=64MiB")
            .set("output.order=time");
        for set in sets {
            run = run.set(set);
        }
        let summary = summary(&run);
        let total = summary.ledger.total;
        assert_eq!(total.received, 12_000);
        assert_eq!(total.captured, 12_000, "{total:?}");
        let mut paths = summary.files.clone();
        paths.sort();
        assert_eq!(paths.len() > 1, sets.len() > 1, "{paths:?}");
        let files: Vec<_> = paths.into_iter().map(read_ordered_file).collect();
        let records: Vec<_> = files.iter().flat_map(|it| &it.records).collect();
        assert!(
            is_in_order(records.iter().copied(), &summary),
            "{sets:?}: frames are in time order"
        );
        let numbers: BTreeSet<_> = records.iter().map(|r| sequence(&r.bytes)).collect();
        assert_eq!(
            numbers.len(),
            records.len(),
            "{sets:?}: each frame occurs once"
        );
        assert_eq!(records.len() as u64, total.captured);
        if sets[0].ends_with("pcapng") {
            let statistics = files
                .iter()
                .map(|it| files::statistics_of(&it.path, &it.unpacked));
            let received: u64 = statistics.map(|(received, _)| received).sum();
            assert_eq!(received, total.received, "{sets:?}");
        }
        assert_other_readers_agree(&dir, &files);
    }
}

/// Pipes the stdout of a run into the shell command `reader`. The exit statuses of both are in the
/// stderr of the result.
fn piped(run: &Wqcap<'_>, reader: &str) -> wqcap_tests::Done {
    let script = format!(
        "set -o pipefail; \"$@\" | {{ {reader}; }}; status=(\"${{PIPESTATUS[@]}}\"); echo \"statuses ${{status[*]}}\" >&2"
    );
    run.program()
        .wrapped(["bash", "-c", &script, "bash"])
        .run()
        .expect(0)
}

#[test]
fn other_tools_read_the_stream_on_stdout() {
    let dir = Dir::new();
    for (format, by) in [("pcap", "output.stdout=true"), ("pcapng", "output.dir=-")] {
        let tools = [
            (
                "tshark",
                "tshark -n -l -r - -T fields -e frame.len | sort | uniq -c",
            ),
            ("tcpdump", "tcpdump -n --count -r -"),
            ("file", "cat"),
        ];
        for (tool, reader) in tools {
            let kept = dir.join(format!("{format}.{tool}.{format}"));
            let reader = format!("tee {} | {reader}", kept.display());
            let run = Wqcap::run(&dir, &format!("{format} {tool}"))
                .model("synth:size=200,flows=64,count=4000,pps=10000")
                .queues(3)
                .set(&format!("output.format={format}"))
                .set(by);
            // `cat` prints binary frames, which are not text and are discarded.
            let reader = if tool == "file" {
                format!("{reader} > /dev/null")
            } else {
                reader
            };
            let done = piped(&run, &reader);
            done.says(&["statuses 0 0", "to stdout"]);
            let text = fs::read_to_string(run.summary_path()).expect("a summary");
            let summary = Summary::parse(&text);
            let total = summary.ledger.total;
            assert_eq!(total.captured, 4000, "{done}");
            assert_eq!(summary.files, Vec::<PathBuf>::new());
            assert_eq!(names(run.out_path()), Vec::<String>::new());
            let message = match tool {
                "tshark" => format!("{} 200", total.captured),
                "tcpdump" => format!("{} packets", total.captured),
                _ => String::new(),
            };
            assert!(
                done.stdout.contains(&message) || done.stderr.contains(&message),
                "{done}"
            );
            let records = files::read(&kept);
            assert_eq!(records.len() as u64, total.captured);
            assert!(is_in_order(&records, &summary));
        }
    }
}

#[test]
fn a_reader_that_exits_ends_the_run_in_order() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "x")
        .model("synth:size=200,flows=64,pps=20000")
        .queues(2)
        .set("output.stdout=true");
    // The wire has no end, so only the exit of the reader ends the run.
    let done = piped(&run, "tcpdump -n -c 100 -r - > /dev/null");
    done.says(&["statuses 0 0", "the reader of stdout exited"]);
    let text = fs::read_to_string(run.summary_path()).expect("a summary");
    let summary = Summary::parse(&text);
    assert_eq!(summary.json["end"], "reader_left");
    assert!(summary.ledger.total.captured >= 100, "{done}");
    // Settings that make no sense with a stream are refused.
    for set in [
        "output.keep_files=1",
        "output.compress=lz4",
        "output.format=none",
        "output.rotate_size=1MiB",
    ] {
        let run = Wqcap::run(&dir, "refused")
            .model(WIRE)
            .set("output.stdout=true")
            .set(set);
        run.done().expect(2).says(&["output.stdout = true"]);
    }
    let run = Wqcap::run(&dir, "json")
        .model(WIRE)
        .set("output.stdout=true")
        .args(&["--json"]);
    run.done().expect(2).says(&["--summary"]);
}

/// Returns the run in fan-out mode, with two parser threads per queue.
fn fanout(run: Wqcap<'_>) -> Wqcap<'_> {
    run.set("pipeline.mode=fanout")
        .set("pipeline.parsers_per_queue=2")
}

/// Returns the run with `output.stdout`, redirected to the file `to`.
fn streamed<'d>(run: Wqcap<'d>, to: &Path) -> Wqcap<'d> {
    let script = format!("exec \"$@\" > '{}'", to.display());
    run.set("output.stdout=true")
        .wrapped(&["bash", "-c", &script, "bash"])
}

#[test]
fn fan_out_works_with_every_output() {
    let dir = Dir::new();
    let (mut sent, input) = sample(&dir, 5000);
    sent.sort();
    for format in ["pcap", "pcapng"] {
        let run = |name: &str| {
            let run = Wqcap::run(&dir, &format!("{format}-{name}"))
                .replay(&input)
                .queues(2)
                .set(&format!("output.format={format}"));
            fanout(run)
        };
        for compress in ["lz4", "zstd:1"] {
            let run = run(&compress.replace(':', ""))
                .set(&format!("output.compress={compress}"))
                .set("output.rotate_size=64KiB")
                .set("output.buffer=256KiB");
            let records = run.finish(0).records();
            assert!(records.iter().all(|queue| queue.is_sorted_by_key(|r| r.ts)));
            let mut got: Vec<_> = records.into_iter().flatten().map(|r| r.bytes).collect();
            got.sort();
            assert_frames(format!("{format} {compress}"), &got, &sent);
        }
        let stream = dir.join(format!("{format}.stream"));
        let in_time = run("time").set("output.order=time");
        let packed = run("time lz4")
            .set("output.order=time")
            .set("output.compress=lz4");
        let to_stdout = streamed(run("stdout"), &stream);
        for run in [in_time, packed, to_stdout] {
            let summary = summary(&run);
            let path = summary.files.first().unwrap_or(&stream);
            let records = files::read(path);
            assert!(is_in_order(&records, &summary), "{}", path.display());
            let total = summary.ledger.total;
            assert_eq!(records.len() as u64, total.captured);
            assert_eq!(total.captured, 5000);
            // Each captured frame was sent, and none occurs more often than it was sent.
            let mut left = sent.iter();
            let mut got: Vec<_> = records.into_iter().map(|r| r.bytes).collect();
            got.sort();
            assert!(got.iter().all(|frame| left.any(|it| it == frame)));
        }
    }
}

#[test]
fn ordered_output_records_a_change_of_the_filter() {
    let dir = Dir::new();
    let shapes: [(&str, bool, bool); 4] = [
        ("file", false, false),
        ("file parsers", false, true),
        ("stream", true, false),
        ("stream parsers", true, true),
    ];
    for (name, to_stdout, parsers) in shapes {
        let stream = dir.join(format!("{name}.stream"));
        let mut run = Wqcap::run(&dir, name)
            .model("synth:size=200,flows=64,pps=4000")
            .queues(2)
            .set("output.format=pcapng")
            .set("output.order=time")
            .control();
        if parsers {
            run = fanout(run);
        }
        if to_stdout {
            run = streamed(run, &stream);
        }
        let (ctl, mut running) = (run.ctl(), run.start());
        // The smallest number of frames that a queue has captured.
        let captured = |stats: &serde_json::Value| {
            let queues = stats["ledger"]["queues"].as_array();
            let of_queues = queues.into_iter().flatten().map(|it| &it["captured"]);
            of_queues.map(ledger::number).min().unwrap_or(0)
        };
        let both = |stats: &_| captured(stats) > 0;
        ctl.until(&mut running, "stats", "both queues capture", both);
        let _ = ctl.run(&["filter", "udp"]).expect(0);
        let then = captured(&ctl.json(&["stats"]));
        let more = |stats: &_| captured(stats) > then + 500;
        ctl.until(&mut running, "stats", "frames by the new filter", more);
        running.signal(Signal::TERM);
        let done = running.wait().expect(0);
        let text = fs::read_to_string(run.summary_path()).expect("a summary");
        let summary = Summary::parse(&text);
        let path = summary.files.first().unwrap_or(&stream);
        let comments = files::comments(path);
        assert_eq!(comments.len(), 2, "one for each queue: {comments:?} {done}");
        assert!(
            comments.iter().all(
                |(at, text)| *at > 0 && text == "the capture filter from this block on is: udp"
            ),
            "{comments:?}"
        );
        assert_eq!(
            files::read(path).len() as u64,
            summary.ledger.total.captured
        );
    }
}
