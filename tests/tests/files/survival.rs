//! Tests of captures whose process is killed or whose disk fails. Finished files stay intact. An
//! open file is readable up to a point, and `wqcap recover` finishes it. If the process survives,
//! its ledger counts every lost frame.
//!
//! | test | harm | what may be lost |
//! |---|---|---|
//! | `a_killed_capture_loses_at_most_its_buffer` | SIGKILL | what was in the write buffers |
//! | `a_kill_at_any_rate_loses_at_most_the_last_seconds` | SIGKILL, at any rate | the last second, with `output.order = "time"` the last two |
//! | `a_kill_at_any_moment_leaves_no_gap` | SIGKILL at any moment, 450 times (soak) | what was in the write buffers |
//! | `finished_files_survive_a_power_cut` | `EXT4_IOC_SHUTDOWN` on an ext4 in a file | what was in no finished file |
//! | `an_open_file_keeps_its_synced_data_after_a_power_cut` | `EXT4_IOC_SHUTDOWN` on an ext4 in a file | what was written since the last sync |
//! | `a_slow_disk_drops_only_frames_that_the_ledger_counts` | each write stalls | nothing with a wire that waits, else `dropped_storage` |
//! | `a_failed_disk_leaves_finished_files_intact` | every call fails with EIO | `dropped_storage`: all that is in no finished file |
//! | `a_removed_output_folder_ends_the_run_with_status_1` | rm -r of `output.dir` | `dropped_storage`: all of it |
//!
//! Each frame carries a sequence number, so a gap is detected.

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

/// Size of a frame in bytes.
const SIZE: u64 = 1000;
/// Value of `output.buffer` in bytes: the most data that can wait for the disk.
const BUFFER: u64 = 1 << 20;
/// Wire that does not end within a test and waits for free buffers, so that a slow machine loses no
/// frame.
const WAITING_WIRE: &str = "synth:size=1000,flows=64,pps=5000,count=1000000000000";
/// Wire without an end that does not wait for free buffers.
const ENDLESS_WIRE: &str = "synth:size=1000,flows=64,pps=5000";
/// Error text of a write to a failed disk.
const IO_ERROR: &str = "Input/output error";

/// Returns a run of one queue into `out`, with files of 1 MiB and a buffer of 1 MiB.
fn run<'d>(dir: &'d Dir, out: &Path, wire: &str) -> Wqcap<'d> {
    Wqcap::run(dir, "run")
        .model(wire)
        .queues(1)
        .out(out)
        .set("output.buffer=1MiB")
        .set("output.rotate_size=1MiB")
}

/// Waits until a run reports its failed disk, and ends it with SIGTERM unless it has ended already.
fn end_after_io_error(mut running: Running) -> Done {
    running.until("the error of the disk is reported", |it| {
        it.stderr().contains(IO_ERROR)
    });
    if !running.ended() {
        running.signal(Signal::TERM);
    }
    let done = running.wait();
    done.says(&[IO_ERROR]);
    done
}

/// Returns the sorted paths of the files in `dir` whose extension is `ending`.
fn with_extension(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == ending))
        .collect();
    all.sort();
    all
}

/// Returns the sequence numbers of the frames in these files.
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

/// Asserts that the frames in these files have consecutive numbers, and returns their count.
#[track_caller]
fn assert_no_gap(files: &[PathBuf]) -> u64 {
    let numbers = numbers(files);
    let gap = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
    assert_eq!(gap, None, "no gap among {} frames", numbers.len());
    numbers.len() as u64
}

/// Runs `wqcap recover` until no unfinished file is left.
///
/// One run may not be enough: the kernel may hold a dead writer's files until its last writes have
/// ended.
#[track_caller]
fn recover(dir: &Path) {
    let deadline = Instant::now() + HANG;
    loop {
        let done = wqcap(["recover", "--json"]).arg(dir).run().expect(0);
        if with_extension(dir, "part").is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{done}");
        thread::sleep(TICK);
    }
}

/// Returns the summary of an ended run. Asserts that its ledger adds up, and that the captured
/// frames are in the files that the summary names.
#[track_caller]
fn checked_summary(run: &Wqcap<'_>, done: &Done) -> Summary {
    let text = fs::read_to_string(run.summary_path()).unwrap_or_else(|e| panic!("{e}: {done}"));
    let summary = Summary::parse(&text);
    summary.ledger.assert_sums();
    let total = summary.ledger.total;
    assert_eq!(
        total.captured,
        numbers(&summary.files).len() as u64,
        "captured frames are in the files: {done}"
    );
    assert_eq!(
        total.received,
        total.captured + total.dropped_storage,
        "{done}"
    );
    summary
}

/// Waits until an open file has data.
fn until_written(running: &mut Running, out: &Path) {
    running.until("an open file has data", |_| {
        let written = |it: &PathBuf| fs::metadata(it).is_ok_and(|it| it.len() > 0);
        with_extension(out, "part").iter().any(written)
    });
}

/// Waits until there are at least `finished` finished files and an open one.
fn until_rotated(running: &mut Running, out: &Path, finished: usize) {
    running.until("enough finished files and an open one", |_| {
        with_extension(out, "pcap").len() >= finished && !with_extension(out, "part").is_empty()
    });
}

#[test]
fn a_killed_capture_loses_at_most_its_buffer() {
    let dir = Dir::new();
    let out = dir.folder("out");
    let run = run(&dir, &out, WAITING_WIRE);
    let mut running = run.start();
    until_rotated(&mut running, &out, 2);
    let finished = with_extension(&out, "pcap");
    let before: Vec<_> = finished
        .iter()
        .map(|it| fs::read(it).expect("the file can be read"))
        .collect();
    let open: u64 = with_extension(&out, "part")
        .iter()
        .filter_map(|it| fs::metadata(it).ok())
        .map(|it| it.len())
        .sum();
    let had: u64 = before.iter().map(|it| it.len() as u64).sum::<u64>() + open;
    running.signal(Signal::KILL);
    assert_eq!(running.wait().signal(), Some(9));
    recover(&out);
    for (file, bytes) in finished.iter().zip(before) {
        assert!(
            fs::read(file).expect("the file can be read") == bytes,
            "{} is unchanged",
            file.display()
        );
    }
    let all = with_extension(&out, "pcap");
    assert_no_gap(&all);
    let kept: u64 = all
        .iter()
        .map(|it| fs::metadata(it).expect("the file exists").len())
        .sum();
    assert!(
        kept + BUFFER >= had,
        "at most the buffer is lost: {had} bytes before the kill, {kept} after"
    );
}

/// Form of output: name and settings.
type Form = (&'static str, &'static [&'static str]);

/// Forms of output that the kills are tested with.
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

/// Kills a run at `rate` frames per second after it has received `first` frames and then `more`.
///
/// Asserts that the recovered frames begin with the first one and have no gap and no duplicate, and
/// returns their number. If `more` is not 0, it also asserts that the frames received up to the
/// count of `first` are recovered.
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
    // The time is counted in polls: if the machine stands still for a while, wqcap does too.
    let mut polls = Duration::from_secs(more / rate).as_millis() / TICK.as_millis();
    running.until("the time for `more` frames has passed", |_| {
        polls = polls.saturating_sub(1);
        polls == 0
    });
    let what = format!("{} received", had + more);
    let stats = run.ctl().until(&mut running, "stats", &what, |it| {
        received(it) >= Some(had + more)
    });
    running.signal(Signal::KILL);
    // A busy machine can delay a loop for long, and frames are lost. These counters have them.
    let lost: u64 = [
        &stats["ledger"]["total"]["late"],
        &stats["nic"]["out_of_buffer"],
        &stats["nic"]["wire_dropped"],
    ]
    .iter()
    .filter_map(|it| it.as_u64())
    .sum();
    assert_eq!(running.wait().signal(), Some(9));
    recover(&out);
    let entries = fs::read_dir(&out)
        .expect("the folder can be listed")
        .flatten();
    let records = entries.flat_map(|it| files::read(&it.path()));
    let mut numbers: Vec<_> = records.map(|record| record.number()).collect();
    numbers.sort_unstable();
    let kept = numbers.len() as u64;
    let twice = numbers.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(
        twice, None,
        "no duplicate among {kept} frames: {}, {rate}/s",
        form.0
    );
    let missing = numbers.last().map_or(0, |last| last + 1 - kept);
    assert!(
        missing <= lost,
        "at most the {lost} lost frames are missing: {missing} missing, {kept} kept: {}, {rate}/s",
        form.0
    );
    assert!(
        more == 0 || kept >= had,
        "at least {had} frames are kept: {kept}, {}, {rate}/s",
        form.0
    );
    kept
}

#[test]
fn a_kill_at_any_rate_loses_at_most_the_last_seconds() {
    for form in FORMS {
        // One second more than can be lost, because a busy machine is slow.
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
fn a_kill_at_any_moment_leaves_no_gap() {
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
fn finished_files_survive_a_power_cut() {
    let dir = Dir::new();
    let disk = need!(Image::new(&dir, 128));
    let out = disk.path().join("cap");
    fs::create_dir(&out).expect("the folder can be created");
    let run = run(&dir, &out, WAITING_WIRE);
    let mut running = run.start();
    until_rotated(&mut running, &out, 3);
    let finished = with_extension(&out, "pcap");
    let before: BTreeMap<_, _> = finished
        .iter()
        .map(|it| (it.clone(), fs::read(it).expect("the file can be read")))
        .collect();
    disk.cut();
    let done = end_after_io_error(running);
    let text = fs::read_to_string(run.summary_path()).unwrap_or_else(|e| panic!("{e}: {done}"));
    let summary = Summary::parse(&text);
    summary.ledger.assert_sums();
    let total = summary.ledger.total;
    assert!(total.dropped_storage > 0, "{done}");
    let named = summary.files.len();
    disk.restart();
    recover(&out);
    // Recovery restores names that were not yet on the disk. Their synced data is complete.
    for (file, bytes) in &before {
        assert!(
            fs::read(file).expect("the file exists") == *bytes,
            "{} is unchanged",
            file.display()
        );
    }
    let all = with_extension(&out, "pcap");
    assert!(named >= before.len() && all.len() >= named, "{done}");
    assert_no_gap(&finished);
    // Each file is checked separately: the disk may have kept a block but not the one before it,
    // which is in another file.
    let kept: u64 = all
        .iter()
        .map(|it| assert_no_gap(std::slice::from_ref(it)))
        .sum();
    assert!(
        kept >= total.captured,
        "at least the captured frames are kept: {kept}, {done}"
    );
}

#[test]
fn an_open_file_keeps_its_synced_data_after_a_power_cut() {
    let dir = Dir::new();
    let disk = need!(Image::new(&dir, 128));
    let out = disk.path().join("cap");
    fs::create_dir(&out).expect("the folder can be created");
    // The folder is on the disk before the run.
    drop(Program::new("sync").run().expect(0));
    let run = run(&dir, &out, WAITING_WIRE)
        .set("output.rotate_size=1GiB")
        .env("RUST_LOG", "debug");
    let mut running = run.start();
    // Wait for syncs of the file between which it has grown.
    let mut synced = Vec::new();
    running.until("several syncs", |it| {
        synced = syncs(&it.stderr());
        synced.last() > synced.first()
    });
    disk.cut();
    running.signal(Signal::KILL);
    let _ = running.wait();
    disk.restart();
    recover(&out);
    assert!(synced.is_sorted(), "{synced:?}");
    let all = with_extension(&out, "pcap");
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(assert_no_gap(&all) > 0);
    let kept = fs::metadata(&all[0]).expect("the file exists").len();
    assert!(
        kept >= synced[synced.len() - 1],
        "at least the synced bytes are kept: {kept} of {synced:?}"
    );
}

/// Returns the synced bytes of the run's only file at each sync, from the log.
fn syncs(log: &str) -> Vec<u64> {
    let bytes = |line: &str| {
        let (_, rest) = line.split_once(": the first ")?;
        rest.strip_suffix(" bytes are synced")?.parse().ok()
    };
    log.lines().filter_map(bytes).collect()
}

/// Runs two captures on a disk on which at least `stalls` writes stall for `stall` each: one with a
/// wire that waits for free buffers, and one with a wire that does not.
fn capture_on_slow_disk(stall: Duration, stalls: u64) {
    let dir = Dir::new();
    for (wire, waits) in [
        ("synth:size=1000,flows=64,count=4000", true),
        (ENDLESS_WIRE, false),
    ] {
        let disk = need!(Shaky::new(&dir));
        let run = run(&dir, disk.path(), wire);
        disk.stall(stall);
        let mut running = run.start();
        running.until("the disk has stalled often enough", |_| {
            disk.stalls() >= stalls
        });
        disk.stall(Duration::ZERO);
        if !waits {
            running.signal(Signal::TERM);
        }
        let done = running.wait().expect(0);
        let summary = checked_summary(&run, &done);
        let total = summary.ledger.total;
        if waits {
            assert_eq!((total.captured, total.dropped_storage), (4000, 0), "{done}");
            assert_eq!(assert_no_gap(&summary.files), 4000);
        } else {
            assert!(total.captured > 0, "{done}");
        }
    }
}

#[test]
fn a_slow_disk_drops_only_frames_that_the_ledger_counts() {
    capture_on_slow_disk(Duration::from_millis(100), 5);
}

#[test]
#[ignore = "takes a minute: scripts/soak"]
fn a_disk_that_stalls_for_seconds_drops_only_counted_frames() {
    capture_on_slow_disk(Duration::from_secs(1), 5);
    capture_on_slow_disk(Duration::from_secs(5), 3);
}

#[test]
fn a_failed_disk_leaves_finished_files_intact() {
    let dir = Dir::new();
    let disk = need!(Shaky::new(&dir));
    let run = run(&dir, disk.path(), WAITING_WIRE);
    let mut running = run.start();
    until_rotated(&mut running, disk.path(), 2);
    disk.gone(true);
    let done = end_after_io_error(running);
    disk.gone(false);
    let summary = checked_summary(&run, &done);
    assert!(summary.ledger.total.dropped_storage > 0, "{done}");
    assert!(summary.files.len() >= 2);
    assert_no_gap(&summary.files);
    // The data of the open file on the disk is still there.
    recover(disk.path());
    assert_no_gap(&with_extension(disk.path(), "pcap"));
}

#[test]
fn a_removed_output_folder_ends_the_run_with_status_1() {
    let dir = Dir::new();
    let out = dir.folder("out");
    let run = run(&dir, &out, WAITING_WIRE).set("output.rotate_size=1GiB");
    let mut running = run.start();
    until_written(&mut running, &out);
    fs::remove_dir_all(&out).expect("the folder can be removed");
    running.signal(Signal::TERM);
    let done = running.wait().expect(1);
    let summary = checked_summary(&run, &done);
    let total = summary.ledger.total;
    assert!(total.received > 0, "{done}");
    assert_eq!((total.captured, summary.files.len()), (0, 0), "{done}");
    let document: Value = serde_json::from_str(
        &fs::read_to_string(run.summary_path()).expect("the summary can be read"),
    )
    .expect("JSON");
    assert!(
        document["error"]
            .as_str()
            .is_some_and(|e| e.contains("No such file")),
        "{document}"
    );
}
