//! Tests of the reports on the NIC's clock: in the summary, in the files and in the log.
//!
//! On a busy machine, readings of the software NIC's clock are late, so no single reading is
//! judged. Captures run until their files report the drift or the jump that the test has set.

use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use wqcap_tests::{Dir, Finished, Wqcap};

/// Clock statistics from the end of a pcapng file.
#[derive(Debug)]
struct ClockReport {
    /// NIC clock minus system clock in nanoseconds.
    offset_ns: i64,
    /// Drift of the NIC clock against the system clock, in parts per million.
    drift_ppm: f64,
    /// Largest error of a time stamp at any reading, in nanoseconds.
    worst_error_ns: u64,
    /// Number of readings of the two clocks.
    looks: u64,
    /// Number of jumps of the NIC clock.
    jumps: u64,
}

/// Beginning of the line with the clock statistics in a pcapng file.
const BEGINNING: &str = "stamps: NIC clock minus system clock ";

/// Returns the last clock statistics in the bytes of a file, if there are any.
fn clock_report(bytes: &[u8]) -> Option<ClockReport> {
    let text = String::from_utf8_lossy(bytes);
    let (_, rest) = text.rsplit_once(BEGINNING)?;
    let line = rest.split(|c: char| c.is_control()).next()?;
    let words: Vec<_> = line
        .split_whitespace()
        .map(|it| it.trim_end_matches(','))
        .collect();
    let [
        offset,
        "ns",
        "drift",
        drift,
        "ppm",
        "worst",
        "error",
        error,
        "ns",
        "looks",
        looks,
        "jumps",
        jumps,
    ] = words[..]
    else {
        panic!("{line}");
    };
    Some(ClockReport {
        offset_ns: offset.parse().expect(line),
        drift_ppm: drift.parse().expect(line),
        worst_error_ns: error.parse().expect(line),
        looks: looks.parse().expect(line),
        jumps: jumps.parse().expect(line),
    })
}

/// Returns a capture of one queue into pcapng files, on a software NIC with the settings `sets`.
fn capture<'d>(dir: &'d Dir, wire: &str, sets: &[&str]) -> Wqcap<'d> {
    let run = Wqcap::run(dir, "run")
        .model(wire)
        .queues(1)
        .set("output.format=pcapng");
    run.sets(sets)
}

/// Returns the content of the run's last file.
fn last_file(finished: &Finished) -> Vec<u8> {
    let files = finished.files();
    let (_, last) = files.last().expect("a file");
    fs::read(last).expect("readable")
}

/// Asserts that the file and the summary agree if they are based on the same reading.
#[track_caller]
fn assert_agree(in_file: &ClockReport, clock: &Value) {
    let looks = clock["looks"].as_u64().expect("a number");
    assert!(looks >= in_file.looks, "{in_file:?} {clock}");
    if looks > in_file.looks {
        return;
    }
    assert_eq!(clock["offset_ns"], in_file.offset_ns, "{in_file:?}");
    assert_eq!(
        clock["worst_error_ns"], in_file.worst_error_ns,
        "{in_file:?}"
    );
    assert_eq!(clock["jumps"], in_file.jumps, "{in_file:?}");
    let drift = clock["drift_ppm"].as_f64().expect("a number");
    // The file has three decimal places.
    assert!(
        (drift - in_file.drift_ppm).abs() < 0.001,
        "{in_file:?} {clock}"
    );
}

/// Asserts that the drift and the offset of the NIC clock are in the summary and in the files.
fn assert_drift_is_reported(real_time: bool) {
    let dir = Dir::new();
    let (clock, stamps) = if real_time {
        ("nic", "hardware_nic")
    } else {
        ("system", "hardware_system")
    };
    let sets = [
        "model.clock_drift=2000",
        &format!("model.realtime_clock={real_time}"),
        &format!("capture.clock={clock}"),
        "output.rotate_time=100ms",
    ];
    let run = capture(&dir, "synth:size=64,flows=4,pps=2000", &sets);
    let out = run.out_path().to_owned();
    let mut running = run.start();
    running.until("a file with the drift", |_| {
        let files = fs::read_dir(&out).into_iter().flatten().flatten();
        let finished = files.filter(|it| it.path().extension().is_some_and(|it| it == "pcapng"));
        finished
            .filter_map(|it| clock_report(&fs::read(it.path()).ok()?))
            .any(|it| it.offset_ns > 0 && (1000.0..3000.0).contains(&it.drift_ppm))
    });
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    let (summary, bytes) = (&finished.summary.json, last_file(&finished));
    let clock = &summary["clock"];
    assert_eq!(clock["real_time"], real_time);
    assert_eq!(summary["stamps"], stamps);
    assert!(clock["looks"].as_u64() >= Some(1), "{clock}");
    // A late reading makes the NIC's clock appear slow, never fast.
    let most = finished.done.elapsed.as_secs_f64() * 1e9 * 3000e-6;
    let offset = clock["offset_ns"].as_f64().expect("a number");
    assert!(
        offset <= most,
        "offset of {offset} ns, at most {most} ns expected"
    );
    assert_agree(&clock_report(&bytes).expect("clock statistics"), clock);
    assert_eq!(
        holds(&bytes, "real-time"),
        real_time,
        "\"real-time\" in the header"
    );
}

/// Returns `true` if `bytes` contain `text`.
fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|it| it == text.as_bytes())
}

#[test]
fn counter_drift_and_offset_are_in_the_summary_and_in_the_files() {
    assert_drift_is_reported(false);
}

#[test]
fn real_time_drift_and_offset_are_in_the_summary_and_in_the_files() {
    assert_drift_is_reported(true);
}

/// A device makes real-time stamps from UTC, which can differ from the clock of its driver. With
/// `capture.clock` = `system`, stamps follow the system's clock. With `nic`, stamps are the UTC of
/// the device.
#[test]
fn a_utc_clock_that_differs_from_the_counter_is_corrected_or_kept() {
    /// Lag of UTC in nanoseconds: two days. No machine is late by a hundredth of that.
    const APART: i64 = 2 * 86_400_000_000_000;
    for (clock, apart) in [("system", 0), ("nic", APART)] {
        let dir = Dir::new();
        let sets = [
            "model.realtime_clock=true",
            "model.utc_drift=-5000",
            &format!("model.utc_offset=-{APART}"),
            &format!("capture.clock={clock}"),
        ];
        let began = system_ns();
        let finished = capture(&dir, "synth:size=64,flows=4,count=1000", &sets).finish(0);
        let time = began - APART / 100..system_ns() + APART / 100;
        let records = finished.records().concat();
        assert_eq!(records.len(), 1000);
        for record in records {
            let ns = record.ts.cast_signed() + apart;
            assert!(time.contains(&ns), "{clock}: {ns} is not in {time:?}");
        }
        let real_time = &finished.summary.json["clock"]["real_time"];
        assert_eq!(*real_time, clock == "nic");
    }
}

/// Returns the system time in nanoseconds since 1970.
fn system_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.expect("after 1970").as_nanos()).expect("fits")
}

#[test]
fn a_clock_jump_is_reported() {
    /// Jump of the clock in nanoseconds: a day. No machine is late by a thousandth of that.
    const JUMP: i64 = 86_400_000_000_000;
    let dir = Dir::new();
    let jump = format!("model.fault=clock_jump:ns={JUMP}@frames=500");
    let run = capture(&dir, "synth:size=64,flows=4,pps=2000", &[&jump]).env("RUST_LOG", "info");
    let mut running = run.start();
    let message = "the NIC's clock jumped by +";
    // If the NIC's thread gets no CPU for a while, its clock catches up by milliseconds. The log
    // reports that as a jump too, so the size of the jump is checked.
    let by_a_day = |line: &str| {
        let by: f64 = line
            .split_once(message)?
            .1
            .split(' ')
            .next()?
            .parse()
            .ok()?;
        Some((by * 1e9 - JUMP as f64).abs() < JUMP as f64 / 1000.0)
    };
    running.until("the jump is reported", |run| {
        run.stderr().lines().filter_map(by_a_day).any(|it| it)
    });
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    let summary = &finished.summary.json;
    let jumped = summary["clock"]["jumped_ns"].as_i64().expect("a number");
    assert!((jumped - JUMP).abs() < JUMP / 1000, "{jumped}");
    assert!(
        summary["notes"].to_string().contains(message),
        "{}",
        summary["notes"]
    );
    let in_file = clock_report(&last_file(&finished)).expect("clock statistics");
    assert!(in_file.jumps >= 1, "the file counts the jump: {in_file:?}");
    assert_agree(&in_file, &summary["clock"]);
}

#[test]
fn software_stamps_have_no_clock_report() {
    let dir = Dir::new();
    let sets = ["capture.timestamps=software"];
    let finished = capture(&dir, "synth:size=64,flows=4,count=1000", &sets).finish(0);
    assert!(finished.summary.json["clock"].is_null());
    assert!(clock_report(&last_file(&finished)).is_none());
}
