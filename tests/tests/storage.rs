//! Files as they come and go: rotation, what is kept, hooks, compression, and the readers of other people.
//!
//! | test | what it shows |
//! |---|---|
//! | `the_oldest_files_go_and_strangers_stay` | `output.keep_files`, `output.keep` |
//! | `how_long_the_disk_holds_is_told_by_the_status_and_the_plan` | at the rate of the files there are |
//! | `a_clock_that_is_set_deletes_no_fresh_file` | `output.keep_age`: no age is computed from a clock that was just set |
//! | `what_others_place_holds_up_neither_retention_nor_the_end` | pipes, endless files and links in shared folders |
//! | `each_finished_file_has_its_hook` | `output.hook`: every file once, whole and named |
//! | `hooks_that_fail_are_counted_and_cost_nothing` | failures do not change the run's end |
//! | `every_format_and_rotation_..._reads_everywhere` | capinfos, tshark, tcpdump and `pcap-file` see the same |
//! | `rotation_under_full_load_is_seamless` | every 100 ms and every 1 MiB: frames in = frames out |
//! | `a_killed_compressed_capture_is_finished` | torn frames are cut off, the rest stays |
//! | `merge_reads_compressed_files` | what is joined is what was captured |
//! | `one_file_in_the_order_of_time` | `output.order = "time"`, with every format of files |
//! | `a_stream_is_read_as_it_comes` | `output.stdout` into tshark and tcpdump |
//! | `a_reader_that_leaves_ends_the_run_in_order` | and what it did not take is in the ledger |
//! | `parsers_and_every_output_go_together` | fan-out with compression, one ordered file, and stdout |
//! | `another_filter_is_told_of_in_one_row_too` | comments in ordered files and streams, in both shapes |

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
    process::{
        HANG, TICK,
        clients::{self, Build},
    },
    wqcap::wqcap,
};

/// Some megabytes in a second or so.
const WIRE: &str = "synth:size=1500,flows=64,count=4000";

/// The names in a folder, sorted.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("lists")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("plain")
        })
        .collect();
    names.sort();
    names
}

/// The summary of a run that has ended well; its files are for the test to judge.
#[track_caller]
fn summary(run: &Wqcap<'_>) -> Summary {
    let done = run.done().expect(0);
    let text = fs::read_to_string(run.summary_path()).unwrap_or_else(|e| panic!("{e}: {done}"));
    Summary::parse(&text)
}

#[test]
fn the_oldest_files_go_and_strangers_stay() {
    let dir = Dir::new();
    let sets: [(&[&str], usize, u64); 3] = [
        (&["output.keep_files=5"], 5, u64::MAX),
        (&["output.keep=1MiB"], usize::MAX, 1 << 20),
        (&["output.keep=1MiB", "output.keep_files=2"], 2, 1 << 20),
    ];
    for (i, (sets, most_files, most_bytes)) in sets.into_iter().enumerate() {
        let out = dir.folder(&format!("{i}.out"));
        // Older than any of the run's, but for those that are not its own.
        for name in [
            "wqcap-q00-17.pcap",
            "wqcap-q01-18.pcap.zst",
            "wqcap-q00-19.pcap.part",
            "notes.pcap",
        ] {
            fs::write(out.join(name), b"old").expect("written");
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
        for stranger in ["notes.pcap", "wqcap-q00-19.pcap.part"] {
            let at = left.iter().position(|name| name == stranger);
            left.remove(at.unwrap_or_else(|| panic!("{stranger} is gone: {left:?}")));
        }
        assert!(!left.is_empty() && left.len() <= most_files, "{left:?}");
        let paths: Vec<_> = left.iter().map(|name| out.join(name)).collect();
        let bytes: u64 = paths
            .iter()
            .map(|p| fs::metadata(p).expect("there").len())
            .sum();
        assert!(bytes <= most_bytes, "{bytes} in {left:?}");
        let mut named = summary.files.clone();
        named.sort();
        assert_eq!(named, paths, "the summary names what is left");
        let deleted = summary.json["deleted"]["files"].as_u64().expect("told");
        assert!(deleted >= 2 + 4000 / 133 - paths.len() as u64, "{deleted}");
        // What stays is the newest: of each queue, the end of its frames.
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
fn how_long_the_disk_holds_is_told_by_the_status_and_the_plan() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "run")
        .model("synth:size=1000,flows=64,pps=1000")
        .queues(1)
        .control()
        .set("output.rotate_size=100KB")
        .set("output.keep=10MB");
    let mut running = run.start();
    let told = |status: &Value| status["capture"]["disk"].is_object();
    let status = run.ctl().until(&mut running, "status", "an outlook", told);
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
    assert!(full.stdout.contains("#   disk      full in "), "{full}");
    let plan: Value =
        serde_json::from_str(&check("--json --set output.keep_age=30s").stdout).expect("JSON");
    assert_eq!(plan["outlook"]["deletes"], true);
    assert_eq!(plan["outlook"]["seconds"], 30.0);
}

/// A machine whose clock is set again and again, as by a lost or a false source of time.
#[test]
fn a_clock_that_is_set_deletes_no_fresh_file() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "x")
        .model("synth:size=300,flows=64,pps=5000")
        .queues(1)
        .set("output.rotate_time=100ms")
        .set("output.keep_age=1h");
    let mut running = run
        .program()
        .env("LD_PRELOAD", clients::ours("stepped_clock", Build::Library))
        .env("STEP_S", "3700")
        .env("STEP_EVERY_MS", "700")
        .start();
    running.until("a step that retention has seen", |it| {
        it.stderr().contains("the system's clock was set")
    });
    let so_far = names(run.out_path()).len();
    running.until("files after it, and more steps", |_| {
        names(run.out_path()).len() > so_far + 30
    });
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    assert_eq!(finished.summary.json["deleted"]["files"], 0);
    assert!(finished.summary.files.iter().all(|it| it.exists()));
    finished
        .done
        .says(&["output.keep_age deletes nothing until"]);
}

#[test]
fn the_age_of_a_runs_own_files_needs_no_steady_clock() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "x")
        .model("synth:size=300,flows=64,pps=5000")
        .queues(1)
        .set("output.rotate_time=200ms")
        .set("output.keep_age=1s");
    let mut running = run.start();
    let mut seen = BTreeSet::new();
    running.until("files that were deleted", |_| {
        let there = names(run.out_path());
        let gone = seen.iter().any(|it| !there.contains(it));
        // An open file loses its name when it is finished.
        seen.extend(there.into_iter().filter(|it| it.ends_with(".pcap")));
        gone
    });
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    let summary = fs::read_to_string(run.summary_path()).expect("a summary");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    assert!(summary["deleted"]["files"].as_u64() > Some(0), "{done}");
}

/// Pipes, endless files and links where a capture looks for records, pins, indexes and captures.
#[test]
fn what_others_place_holds_up_neither_retention_nor_the_end() {
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
            1 => std::os::unix::fs::symlink("/dev/zero", &record).expect("own"),
            _ => {
                let file = fs::File::create(&record).expect("own");
                file.set_len(1 << 36).expect("sparse");
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
    running.until("old files to go, in spite of their records", |_| {
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
fn each_finished_file_has_its_hook() {
    let dir = Dir::new();
    let seen = dir.folder("seen");
    // A hook sees a whole file under its final name, and may take it away.
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
                .expect("plain")
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

/// However long hooks take.
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
    // So much would be on top.
    thread::sleep(synced.max(Duration::from_millis(500)));
    fs::write(&go, "").expect("an own file");
    let finished = run.finished(running.wait(), 0);
    let took = finished.summary.duration_s;
    assert!(
        took <= synced.as_secs_f64(),
        "{took} s, and {synced:?} until the file was there"
    );
}

#[test]
fn hooks_that_fail_are_counted_and_cost_nothing() {
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
    // What cannot be run is refused before anything is created.
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o644)).expect("set");
    for (hook, problem) in [(&hook, "chmod +x"), (&dir.join("absent"), "No such file")] {
        Wqcap::run(&dir, "refused")
            .model(WIRE)
            .set(&format!("output.hook={}", hook.display()))
            .done()
            .expect(2)
            .says(&["output.hook", problem]);
    }
}

/// Frames, and the file that holds them.
fn sample(dir: &Dir, count: u16) -> (Vec<Vec<u8>>, PathBuf) {
    let frames = frames::udp_flows(count, 300);
    let path = dir.join("in.pcap");
    files::write(&path, 1_700_000_000, &frames);
    (frames, path)
}

/// The period of `output.rotate_time` below.
const PERIOD: Duration = Duration::from_millis(100);

#[test]
fn every_format_and_rotation_reads_everywhere() {
    reads_everywhere("none");
}

#[test]
fn every_format_and_rotation_with_lz4_reads_everywhere() {
    reads_everywhere("lz4");
}

#[test]
fn every_format_and_rotation_with_zstd_reads_everywhere() {
    reads_everywhere("zstd:1");
}

fn reads_everywhere(compress: &str) {
    let dir = Dir::new();
    let (mut sent, input) = sample(&dir, 5000);
    sent.sort();
    let wire = format!("pcap:{}", input.display());
    for format in ["pcap", "pcapng"] {
        for (rotation, wire) in [
            ("rotate_size=0", wire.clone()),
            ("rotate_size=100KiB", wire.clone()),
            // Paced, so that the clock passes some tenths of a second.
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
            let files: Vec<_> = finished.files().into_iter().map(File::of).collect();
            let by_queue = |queue| {
                let files = files.iter().filter(move |it| it.queue == queue);
                files.flat_map(|it| &it.records)
            };
            // At every multiple of the time there is another file, if there are frames.
            let period = |r: &Record| r.ts / u64::try_from(PERIOD.as_nanos()).expect("short");
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
                assert!(sorted, "{name}: times run backward");
            }
            let all = files.iter().flat_map(|it| &it.records);
            let mut got: Vec<_> = all.map(|r| &r.bytes).collect();
            got.sort();
            assert_frames(&name, &got, &sent);
            if format == "pcapng" {
                assert_statistics(&finished, &files);
            }
            others_agree(&dir, &files);
        }
    }
}

/// A finished file, unpacked and read once.
struct File {
    queue: usize,
    path: PathBuf,
    unpacked: Vec<u8>,
    records: Vec<Record>,
}

impl File {
    #[track_caller]
    fn of((queue, path): (usize, PathBuf)) -> Self {
        let unpacked = files::unpacked(&path);
        Self {
            queue,
            records: files::records(&path, &unpacked),
            path,
            unpacked,
        }
    }
}

/// What the files say of themselves is what the ledger says.
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

/// capinfos, tshark and tcpdump count as many frames in each file as `pcap-file`. The first two unpack themselves.
#[track_caller]
fn others_agree(dir: &Dir, files: &[File]) {
    let counts: Vec<_> = files.iter().map(|it| it.records.len()).collect();
    let capinfos = Program::new("capinfos")
        .args(["-T", "-r", "-c", "-M"])
        .args(files.iter().map(|it| &it.path))
        .run()
        .expect(0);
    let told: Vec<usize> = capinfos
        .stdout
        .lines()
        .filter_map(|line| line.rsplit('\t').next()?.parse().ok())
        .collect();
    assert_eq!(told, counts, "{capinfos}");

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
        // libpcap unpacks nothing.
        let plain = dir.join("plain");
        fs::write(&plain, &file.unpacked).expect("written");
        let tcpdump = Program::new("tcpdump")
            .args(["-n", "--count", "-r"])
            .arg(&plain)
            .run()
            .expect(0);
        let said = format!("{count} packet");
        assert!(
            tcpdump.stdout.contains(&said) || tcpdump.stderr.contains(&said),
            "{tcpdump}"
        );
    }
}

/// The number that the wire puts at the end of each of its frames, from 0.
fn sequence(frame: &[u8]) -> u64 {
    let bytes = frame.last_chunk().expect("long enough");
    u64::from_le_bytes(*bytes)
}

/// Runs at full speed with a rotation, and looks for every frame in the files.
fn seamless(dir: &Dir, rotation: &str, compress: &str, count: u64) -> usize {
    let run = Wqcap::run(dir, &format!("{rotation} {compress}"))
        .model(&format!("synth:size=700,flows=64,count={count}"))
        .queues(2)
        .set(&format!("output.{rotation}"))
        .set(&format!("output.compress={compress}"))
        .set("output.buffer=16MiB");
    let finished = run.finish(0);
    let mut seen = vec![false; usize::try_from(count).expect("fits")];
    for (queue, records) in finished.records().iter().enumerate() {
        let numbers: Vec<_> = records.iter().map(|r| sequence(&r.bytes)).collect();
        assert!(numbers.is_sorted(), "queue {queue}: files overlap");
        for number in numbers {
            let seen = &mut seen[usize::try_from(number).expect("fits")];
            assert!(!std::mem::replace(seen, true), "frame {number} twice");
        }
    }
    let gaps = seen.iter().filter(|seen| !**seen).count();
    assert_eq!(gaps, 0, "frames are missing");
    finished.files().len()
}

#[test]
fn rotation_under_full_load_is_seamless() {
    let dir = Dir::new();
    assert!(seamless(&dir, "rotate_size=1MiB", "none", 100_000) >= 60);
    assert!(seamless(&dir, "rotate_size=1MiB", "lz4", 60_000) >= 40);
    // However fast it is: at the start and the end of a queue's frames there may be less than a whole period.
    let _ = seamless(&dir, "rotate_time=100ms", "none", 100_000);
}

#[test]
#[ignore = "a minute each: scripts/soak runs it"]
fn rotation_under_full_load_for_minutes() {
    for rotation in ["rotate_time=100ms", "rotate_size=1MiB"] {
        let began = Instant::now();
        let (mut frames, mut files, mut runs) = (0, 0, 0);
        while began.elapsed() < Duration::from_secs(60) {
            // A folder each: the files of a minute are many gigabytes.
            let dir = Dir::new();
            files += seamless(&dir, rotation, "none", 1_000_000);
            frames += 1_000_000;
            runs += 1;
        }
        println!(
            "{rotation}: {frames} frames in {files} files of {runs} runs, none lost, none twice"
        );
    }
}

#[test]
fn a_killed_compressed_capture_is_finished() {
    for compress in ["lz4", "zstd:1"] {
        let dir = Dir::new();
        let run = Wqcap::run(&dir, compress.trim_end_matches(":1"))
            .model("synth:size=700,flows=64,pps=30000")
            .queues(2)
            .set("output.format=pcapng")
            .set("output.rotate_size=3MiB")
            // Small blocks, small frames: a kill finds many of them written.
            .set("output.buffer=1MiB")
            .set(&format!("output.compress={compress}"));
        let out = run.out_path().to_owned();
        let mut running = run.start();
        running.freeze_when("finished files, and records in an open one", |_| {
            let finished = names(&out).iter().filter(|n| !n.ends_with(".part")).count();
            finished >= 4 && open_bytes(&out)
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
                assert!(numbers.insert(sequence(&record.bytes)), "{name}: twice");
            }
        }
        assert!(numbers.len() > 10_000, "{}", numbers.len());
    }
}

/// Whether an open file holds something.
fn open_bytes(dir: &Path) -> bool {
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
            // Some frames in each file.
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
        // However many files, each queue is one stream.
        let queues = finished.records().iter().filter(|r| !r.is_empty()).count();
        assert_eq!(json["streams"], queues, "{done}");
        let records = files::read(&merged);
        assert!(records.is_sorted_by_key(|r| r.ts));
        let mut got: Vec<_> = records.into_iter().map(|r| r.bytes).collect();
        got.sort();
        assert_frames("merged", &got, &sent);
        // What is cut off in the middle of a frame gives what stands before it, and tells.
        let (_, first) = &finished.files()[0];
        let torn = dir.join(format!(
            "torn.pcap.{}",
            first.extension().and_then(|e| e.to_str()).expect("one")
        ));
        let bytes = fs::read(first).expect("there");
        fs::write(&torn, &bytes[..bytes.len() - 10]).expect("written");
        wqcap(["merge", "-o"])
            .arg(&merged)
            .arg(&torn)
            .run()
            .expect(1)
            .says(&["compressed frame at byte"]);
    }
}

/// A file of all queues.
fn ordered(path: PathBuf) -> File {
    let name = path.file_name().and_then(|n| n.to_str()).expect("plain");
    assert!(name.starts_with("wqcap-all-"), "{name}");
    File::of((0, path))
}

#[test]
fn one_file_in_the_order_of_time() {
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
        assert_eq!(total.captured + total.late, 12_000, "{total:?}");
        // Nothing is late unless something has waited for a second, and all of this takes a fraction of one.
        let lasted = summary.duration_s;
        assert!(total.late == 0 || lasted > 1.0, "{lasted} s: {total:?}");
        let mut paths = summary.files.clone();
        paths.sort();
        assert_eq!(paths.len() > 1, sets.len() > 1, "{paths:?}");
        let files: Vec<_> = paths.into_iter().map(ordered).collect();
        let records: Vec<_> = files.iter().flat_map(|it| &it.records).collect();
        assert!(records.is_sorted_by_key(|r| r.ts), "{sets:?}: out of order");
        let numbers: BTreeSet<_> = records.iter().map(|r| sequence(&r.bytes)).collect();
        assert_eq!(numbers.len(), records.len(), "{sets:?}: twice");
        assert_eq!(records.len() as u64, total.captured);
        if sets[0].ends_with("pcapng") {
            let told = files
                .iter()
                .map(|it| files::statistics_of(&it.path, &it.unpacked));
            let told: u64 = told.map(|(received, _)| received).sum();
            assert_eq!(told, total.received, "{sets:?}");
        }
        others_agree(&dir, &files);
    }
}

/// A run that writes to stdout, and `reader` behind it in a pipe; exit statuses of both.
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
fn a_stream_is_read_as_it_comes() {
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
            // Frames that `cat` shows are no text.
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
            assert_eq!(total.captured + total.late, 4000, "{done}");
            assert_eq!(summary.files, Vec::<PathBuf>::new());
            assert_eq!(names(run.out_path()), Vec::<String>::new());
            let said = match tool {
                "tshark" => format!("{} 200", total.captured),
                "tcpdump" => format!("{} packets", total.captured),
                _ => String::new(),
            };
            assert!(
                done.stdout.contains(&said) || done.stderr.contains(&said),
                "{done}"
            );
            let records = files::read(&kept);
            assert_eq!(records.len() as u64, total.captured);
            assert!(records.is_sorted_by_key(|r| r.ts));
        }
    }
}

#[test]
fn a_reader_that_leaves_ends_the_run_in_order() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "x")
        .model("synth:size=200,flows=64,pps=20000")
        .queues(2)
        .set("output.stdout=true");
    // An endless wire: nothing but the reader ends this.
    let done = piped(&run, "tcpdump -n -c 100 -r - > /dev/null");
    done.says(&["statuses 0 0", "the reader of stdout exited"]);
    let text = fs::read_to_string(run.summary_path()).expect("a summary");
    let summary = Summary::parse(&text);
    assert_eq!(summary.json["end"], "reader_left");
    assert!(summary.ledger.total.captured >= 100, "{done}");
    // What makes no sense with a stream is refused.
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

/// The same run with parsers on threads of their own.
fn fanout(run: Wqcap<'_>) -> Wqcap<'_> {
    run.set("pipeline.mode=fanout")
        .set("pipeline.parsers_per_queue=2")
}

/// Lets a run write its stream to a file.
fn streamed<'d>(run: Wqcap<'d>, to: &Path) -> Wqcap<'d> {
    let script = format!("exec \"$@\" > '{}'", to.display());
    run.set("output.stdout=true")
        .wrapped(&["bash", "-c", &script, "bash"])
}

#[test]
fn parsers_and_every_output_go_together() {
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
            assert!(records.is_sorted_by_key(|r| r.ts), "{}", path.display());
            let total = summary.ledger.total;
            assert_eq!(records.len() as u64, total.captured);
            assert_eq!(total.captured + total.late, 5000);
            // Each that is there is one that was sent, and there once.
            let mut left = sent.iter();
            let mut got: Vec<_> = records.into_iter().map(|r| r.bytes).collect();
            got.sort();
            assert!(got.iter().all(|frame| left.any(|it| it == frame)));
        }
    }
}

#[test]
fn another_filter_is_told_of_in_one_row_too() {
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
        // The least that a queue has captured.
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
            comments
                .iter()
                .all(|(at, text)| *at > 0 && text == "filter from here on: udp"),
            "{comments:?}"
        );
        assert_eq!(
            files::read(path).len() as u64,
            summary.ledger.total.captured
        );
    }
}
