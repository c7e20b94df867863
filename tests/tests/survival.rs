//! Captures whose process or disk comes to harm: what was complete stays whole, what was open is readable up to a point
//! and is finished by `wqcap recover`, and where the process survives its ledger names every frame that is lost.
//!
//! | test | harm | what may be lost |
//! |---|---|---|
//! | `killed` | SIGKILL | what was in the write buffers |
//! | `a_trickle_that_is_killed` | SIGKILL, at any rate | the last second, with `output.order = "time"` the last two |
//! | `four_hundred_and_fifty_kills` | the same at any moment (soak) | what was in the write buffers |
//! | `power_cut` | `EXT4_IOC_SHUTDOWN` on an ext4 in a file | what was in no finished file |
//! | `an_open_file_after_a_power_cut` | the same | what was written since the last sync |
//! | `a_slow_disk_costs_what_the_ledger_says` | each write stalls | nothing with a wire that waits, else `dropped_storage` |
//! | `a_disk_that_is_gone` | every call fails with EIO | `dropped_storage`: all that is in no finished file |
//! | `a_folder_that_is_removed` | rm -r of `output.dir` | `dropped_storage`: all of it |
//!
//! Each frame carries a number, so that a gap shows.

use rustix::process::Signal;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use wqcap_tests::{
    Dir, Done, Program, Running, Summary, Wqcap, files,
    machine::disks::{Image, Shaky},
    need,
    process::{HANG, TICK},
    wqcap::wqcap,
};

/// Bytes of a frame.
const SIZE: u64 = 1000;
/// `output.buffer`: what may wait for the disk.
const BUFFER: u64 = 1 << 20;
/// A wire that does not end within a test, and waits for whom it serves: whatever holds up the machine, no frame is lost
/// for want of a buffer.
const PATIENT: &str = "synth:size=1000,flows=64,pps=5000,count=1000000000000";
/// One that goes on.
const IMPATIENT: &str = "synth:size=1000,flows=64,pps=5000";
/// What a write to a broken disk fails with.
const BROKEN: &str = "Input/output error";

/// A run of one queue into `out`, with files of 1 MiB and a buffer of as much.
fn run<'d>(dir: &'d Dir, out: &Path, wire: &str) -> Wqcap<'d> {
    Wqcap::run(dir, "run")
        .model(wire)
        .queues(1)
        .out(out)
        .set("output.buffer=1MiB")
        .set("output.rotate_size=1MiB")
}

/// Ends a run whose disk is broken, once it has found out; it may then end by itself.
fn end_broken(mut running: Running) -> Done {
    running.until("the disk is found broken", |it| {
        it.stderr().contains(BROKEN)
    });
    if !running.ended() {
        running.signal(Signal::TERM);
    }
    let done = running.wait();
    done.says(&[BROKEN]);
    done
}

fn ending(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == ending))
        .collect();
    all.sort();
    all
}

/// The frames' numbers in these files.
#[track_caller]
fn numbers(files: &[PathBuf]) -> Vec<u64> {
    let records = files.iter().flat_map(|file| files::read(file));
    records
        .map(|record| {
            assert_eq!(u64::from(record.caplen), SIZE);
            record.number()
        })
        .collect()
}

/// The numbers begin with the first frame and have no gap. Gives how many they are.
#[track_caller]
fn unbroken(files: &[PathBuf]) -> u64 {
    let numbers = numbers(files);
    let gap = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
    assert_eq!(gap, None, "a gap among {} frames", numbers.len());
    numbers.len() as u64
}

/// Recovers until nothing is in use: the kernel may hold a dead writer's files until its last writes have ended.
#[track_caller]
fn recovered(dir: &Path) {
    let deadline = Instant::now() + HANG;
    loop {
        let done = wqcap(["recover", "--json"]).arg(dir).run().expect(0);
        if ending(dir, "part").is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{done}");
        thread::sleep(TICK);
    }
}

/// What an ended run says of itself. Its ledger adds up, and what it calls captured is in the files it names.
#[track_caller]
fn told(run: &Wqcap<'_>, done: &Done) -> Summary {
    let text = fs::read_to_string(run.summary_path()).unwrap_or_else(|e| panic!("{e}: {done}"));
    let summary = Summary::parse(&text);
    summary.ledger.assert_sums();
    let total = summary.ledger.total;
    assert_eq!(
        total.captured,
        numbers(&summary.files).len() as u64,
        "captured, and in files: {done}"
    );
    assert_eq!(
        total.received,
        total.captured + total.dropped_storage,
        "{done}"
    );
    summary
}

/// Waits until something is written of an open file.
fn until_written(running: &mut Running, out: &Path) {
    running.until("something is written", |_| {
        let written = |it: &PathBuf| fs::metadata(it).is_ok_and(|it| it.len() > 0);
        ending(out, "part").iter().any(written)
    });
}

/// Waits until there are so many finished files and an open one.
fn until_rotated(running: &mut Running, out: &Path, finished: usize) {
    running.until("files rotated", |_| {
        ending(out, "pcap").len() >= finished && !ending(out, "part").is_empty()
    });
}

#[test]
fn killed() {
    let dir = Dir::new();
    let out = dir.folder("out");
    let run = run(&dir, &out, PATIENT);
    let mut running = run.start();
    until_rotated(&mut running, &out, 2);
    let finished = ending(&out, "pcap");
    let before: Vec<_> = finished
        .iter()
        .map(|it| fs::read(it).expect("reads"))
        .collect();
    let open: u64 = ending(&out, "part")
        .iter()
        .filter_map(|it| fs::metadata(it).ok())
        .map(|it| it.len())
        .sum();
    let had: u64 = before.iter().map(|it| it.len() as u64).sum::<u64>() + open;
    running.signal(Signal::KILL);
    assert_eq!(running.wait().signal(), Some(9));
    recovered(&out);
    for (file, bytes) in finished.iter().zip(before) {
        assert!(
            fs::read(file).expect("reads") == bytes,
            "{} changed",
            file.display()
        );
    }
    let all = ending(&out, "pcap");
    unbroken(&all);
    let kept: u64 = all
        .iter()
        .map(|it| fs::metadata(it).expect("there").len())
        .sum();
    assert!(
        kept + BUFFER >= had,
        "{had} bytes were there before the kill, {kept} after: more than the buffer is lost"
    );
}

/// A way to write files: what it is called, and what is set for it.
type Form = (&'static str, &'static [&'static str]);

const FORMS: [Form; 4] = [
    ("pcap", &["output.format=pcap"]),
    (
        "zstd",
        &[
            "output.format=pcapng",
            "output.compress=zstd",
            "pipeline.mode=fanout",
        ],
    ),
    (
        "time",
        &[
            "output.format=pcapng",
            "output.order=time",
            "capture.queues=2",
        ],
    ),
    (
        "time-lz4",
        &[
            "output.format=pcap",
            "output.order=time",
            "output.compress=lz4",
            "capture.queues=2",
        ],
    ),
];

/// Kills a run at `rate` frames a second once it has received `first` frames and then `more`. What is recovered begins with
/// the first frame, and has no gap and no frame twice. Gives how many frames that are.
#[track_caller]
fn kill_and_recover(form: Form, rate: u64, first: u64, more: u64) -> u64 {
    let dir = Dir::new();
    let out = dir.folder("out");
    let run = Wqcap::run(&dir, "run")
        .model(&format!(
            "synth:size=100,flows=64,pps={rate},count=1000000000000"
        ))
        .queues(1)
        .out(&out)
        .control();
    let run = run.sets(form.1);
    let mut running = run.start();
    let had = run.ctl().until_counted(&mut running, "received", first);
    let received = |stats: &Value| stats["ledger"]["total"]["received"].as_u64();
    // Not by a clock: a machine that stands still for a while does so for wqcap, too.
    let mut turns = Duration::from_secs(more / rate).as_millis() / TICK.as_millis();
    running.until("its time", |_| {
        turns = turns.saturating_sub(1);
        turns == 0
    });
    let what = format!("{} received", had + more);
    let stats = run.ctl().until(&mut running, "stats", &what, |it| {
        received(it) >= Some(had + more)
    });
    running.signal(Signal::KILL);
    // A machine so busy that a loop stands still for long loses frames of a wire that does not wait, and says so.
    let lost: u64 = [
        &stats["ledger"]["total"]["late"],
        &stats["nic"]["out_of_buffer"],
        &stats["nic"]["wire_dropped"],
    ]
    .iter()
    .filter_map(|it| it.as_u64())
    .sum();
    assert_eq!(running.wait().signal(), Some(9));
    recovered(&out);
    let entries = fs::read_dir(&out).expect("lists").flatten();
    let records = entries.flat_map(|it| files::read(&it.path()));
    let mut numbers: Vec<_> = records.map(|record| record.number()).collect();
    numbers.sort_unstable();
    let kept = numbers.len() as u64;
    let twice = numbers.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None, "among {kept} frames: {}, {rate}/s", form.0);
    let missing = numbers.last().map_or(0, |last| last + 1 - kept);
    assert!(
        missing <= lost,
        "{missing} of {kept} frames are missing, {lost} counted as lost: {}, {rate}/s",
        form.0
    );
    assert!(
        more == 0 || kept >= had,
        "{kept} of {had} frames: {}, {rate}/s",
        form.0
    );
    kept
}

#[test]
fn a_trickle_that_is_killed() {
    for form in FORMS {
        // A second more than may be lost: what a busy machine takes.
        let seconds = if form.0.starts_with("time") { 3 } else { 2 };
        thread::scope(|scope| {
            for rate in [1, 5, 20, 200, 20_000] {
                scope.spawn(move || {
                    kill_and_recover(form, rate, rate.div_ceil(2), seconds * rate);
                });
            }
        });
    }
}

#[test]
#[ignore = "a quarter of an hour; scripts/soak runs it"]
fn four_hundred_and_fifty_kills() {
    let rates = [5, 20, 200, 2000, 20_000];
    let rounds: Vec<_> = (0..450)
        .map(|i| {
            let rate = rates[i / FORMS.len() % rates.len()];
            (
                FORMS[i % FORMS.len()],
                rate,
                1 + i as u64 * 7919 % (2 * rate),
            )
        })
        .collect();
    thread::scope(|scope| {
        for rounds in rounds.chunks(rounds.len().div_ceil(3)) {
            scope.spawn(move || {
                for (form, rate, first) in rounds {
                    kill_and_recover(*form, *rate, *first, 0);
                }
            });
        }
    });
}

#[test]
fn power_cut() {
    let dir = Dir::new();
    let disk = need!(Image::new(&dir, 128));
    let out = disk.path().join("cap");
    fs::create_dir(&out).expect("made");
    let run = run(&dir, &out, PATIENT);
    let mut running = run.start();
    until_rotated(&mut running, &out, 3);
    let finished = ending(&out, "pcap");
    let before: BTreeMap<_, _> = finished
        .iter()
        .map(|it| (it.clone(), fs::read(it).expect("reads")))
        .collect();
    disk.cut();
    let done = end_broken(running);
    let text = fs::read_to_string(run.summary_path()).unwrap_or_else(|e| panic!("{e}: {done}"));
    let summary = Summary::parse(&text);
    summary.ledger.assert_sums();
    let total = summary.ledger.total;
    assert!(total.dropped_storage > 0, "{done}");
    let named = summary.files.len();
    disk.restart();
    recovered(&out);
    // A name that was not yet on the disk comes back with recovery; what was synced under it is all there.
    for (file, bytes) in &before {
        assert!(
            fs::read(file).expect("there") == *bytes,
            "{} changed",
            file.display()
        );
    }
    let all = ending(&out, "pcap");
    assert!(named >= before.len() && all.len() >= named, "{done}");
    unbroken(&finished);
    // Each for itself: the disk may have kept a block and not the one before it, in another file.
    let kept: u64 = all
        .iter()
        .map(|it| unbroken(std::slice::from_ref(it)))
        .sum();
    assert!(kept >= total.captured, "{kept} frames are left of {done}");
}

#[test]
fn an_open_file_after_a_power_cut() {
    let dir = Dir::new();
    let disk = need!(Image::new(&dir, 128));
    let out = disk.path().join("cap");
    fs::create_dir(&out).expect("made");
    // The folder itself is there before the run.
    drop(Program::new("sync").run().expect(0));
    let run = run(&dir, &out, PATIENT)
        .set("output.rotate_size=1GiB")
        .env("RUST_LOG", "debug");
    let mut running = run.start();
    // Now and then it is synced, and grows meanwhile.
    let mut synced = Vec::new();
    running.until("several syncs", |it| {
        synced = syncs(&it.stderr());
        synced.last() > synced.first()
    });
    disk.cut();
    running.signal(Signal::KILL);
    let _ = running.wait();
    disk.restart();
    recovered(&out);
    assert!(synced.is_sorted(), "{synced:?}");
    let all = ending(&out, "pcap");
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(unbroken(&all) > 0);
    let kept = fs::metadata(&all[0]).expect("there").len();
    assert!(
        kept >= synced[synced.len() - 1],
        "{kept} bytes are left of {synced:?}"
    );
}

/// The bytes of the only file that were on the disk with each of its syncs, as the log tells.
fn syncs(log: &str) -> Vec<u64> {
    let bytes = |line: &str| {
        let (_, rest) = line.split_once(": its first ")?;
        rest.strip_suffix(" bytes are synced")?.parse().ok()
    };
    log.lines().filter_map(bytes).collect()
}

/// A disk whose writes stall this long each, `stalls` times and more: under a wire that waits, and under one that goes
/// on.
fn slow(stall: Duration, stalls: u64) {
    let dir = Dir::new();
    for (wire, waits) in [
        ("synth:size=1000,flows=64,count=4000", true),
        (IMPATIENT, false),
    ] {
        let disk = need!(Shaky::new(&dir));
        let run = run(&dir, disk.path(), wire);
        disk.stall(stall);
        let mut running = run.start();
        running.until("the disk stalled", |_| disk.stalls() >= stalls);
        disk.stall(Duration::ZERO);
        if !waits {
            running.signal(Signal::TERM);
        }
        let done = running.wait().expect(0);
        let summary = told(&run, &done);
        let total = summary.ledger.total;
        if waits {
            assert_eq!((total.captured, total.dropped_storage), (4000, 0), "{done}");
            assert_eq!(unbroken(&summary.files), 4000);
        } else {
            assert!(total.captured > 0, "{done}");
        }
    }
}

#[test]
fn a_slow_disk_costs_what_the_ledger_says() {
    slow(Duration::from_millis(100), 5);
}

#[test]
#[ignore = "takes a minute: scripts/soak"]
fn a_disk_that_stalls_for_seconds() {
    slow(Duration::from_secs(1), 5);
    slow(Duration::from_secs(5), 3);
}

#[test]
fn a_disk_that_is_gone() {
    let dir = Dir::new();
    let disk = need!(Shaky::new(&dir));
    let run = run(&dir, disk.path(), PATIENT);
    let mut running = run.start();
    until_rotated(&mut running, disk.path(), 2);
    disk.gone(true);
    let done = end_broken(running);
    disk.gone(false);
    let summary = told(&run, &done);
    assert!(summary.ledger.total.dropped_storage > 0, "{done}");
    assert!(summary.files.len() >= 2);
    unbroken(&summary.files);
    // What was on the disk of the open file is there still.
    recovered(disk.path());
    unbroken(&ending(disk.path(), "pcap"));
}

#[test]
fn a_folder_that_is_removed() {
    let dir = Dir::new();
    let out = dir.folder("out");
    let run = run(&dir, &out, PATIENT).set("output.rotate_size=1GiB");
    let mut running = run.start();
    until_written(&mut running, &out);
    fs::remove_dir_all(&out).expect("removed");
    running.signal(Signal::TERM);
    let done = running.wait().expect(1);
    let summary = told(&run, &done);
    let total = summary.ledger.total;
    assert!(total.received > 0, "{done}");
    assert_eq!((total.captured, summary.files.len()), (0, 0), "{done}");
    let document: Value =
        serde_json::from_str(&fs::read_to_string(run.summary_path()).expect("read")).expect("JSON");
    assert!(
        document["error"]
            .as_str()
            .is_some_and(|e| e.contains("No such file")),
        "{document}"
    );
}
