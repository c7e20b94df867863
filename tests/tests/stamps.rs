//! What is written of the NIC's clock: the summary, the files, the log.
//!
//! A reading of the software NIC's clock is as late as the machine is busy, so no single one is judged: captures go on
//! until their files tell of what was set.

use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use wqcap_tests::{Dir, Finished, Wqcap};

/// What a pcapng file's end says of the clocks.
#[derive(Debug)]
struct Told {
    offset_ns: i64,
    drift_ppm: f64,
    worst_error_ns: u64,
    looks: u64,
    jumps: u64,
}

const BEGINNING: &str = "stamps: NIC clock minus system clock ";

/// The last that is in a file's bytes; `None`: there is none.
fn told(bytes: &[u8]) -> Option<Told> {
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
    Some(Told {
        offset_ns: offset.parse().expect(line),
        drift_ppm: drift.parse().expect(line),
        worst_error_ns: error.parse().expect(line),
        looks: looks.parse().expect(line),
        jumps: jumps.parse().expect(line),
    })
}

/// A capture of one queue in pcapng files on a software NIC with `sets`.
fn capture<'d>(dir: &'d Dir, wire: &str, sets: &[&str]) -> Wqcap<'d> {
    let run = Wqcap::run(dir, "run")
        .model(wire)
        .queues(1)
        .set("output.format=pcapng");
    run.sets(sets)
}

/// The bytes of its last file.
fn last_file(finished: &Finished) -> Vec<u8> {
    let files = finished.files();
    let (_, last) = files.last().expect("a file");
    fs::read(last).expect("readable")
}

/// The file and the summary, if of the same look, say the same.
#[track_caller]
fn assert_agree(told: &Told, clock: &Value) {
    let looks = clock["looks"].as_u64().expect("a number");
    assert!(looks >= told.looks, "{told:?} {clock}");
    if looks > told.looks {
        return;
    }
    assert_eq!(clock["offset_ns"], told.offset_ns, "{told:?}");
    assert_eq!(clock["worst_error_ns"], told.worst_error_ns, "{told:?}");
    assert_eq!(clock["jumps"], told.jumps, "{told:?}");
    let drift = clock["drift_ppm"].as_f64().expect("a number");
    // The file has three digits behind the point.
    assert!((drift - told.drift_ppm).abs() < 0.001, "{told:?} {clock}");
}

fn drifts(real_time: bool) {
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
    running.until("a file that tells of the drift", |_| {
        let files = fs::read_dir(&out).into_iter().flatten().flatten();
        let finished = files.filter(|it| it.path().extension().is_some_and(|it| it == "pcapng"));
        finished
            .filter_map(|it| told(&fs::read(it.path()).ok()?))
            .any(|it| it.offset_ns > 0 && (1000.0..3000.0).contains(&it.drift_ppm))
    });
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    let (summary, bytes) = (&finished.summary.json, last_file(&finished));
    let clock = &summary["clock"];
    assert_eq!(clock["real_time"], real_time);
    assert_eq!(summary["stamps"], stamps);
    assert!(clock["looks"].as_u64() >= Some(1), "{clock}");
    // What a reading is late by makes the NIC's clock look slow, and never fast.
    let most = finished.done.elapsed.as_secs_f64() * 1e9 * 3000e-6;
    let offset = clock["offset_ns"].as_f64().expect("a number");
    assert!(offset <= most, "{offset} of {most}");
    assert_agree(&told(&bytes).expect("the clocks"), clock);
    assert_eq!(holds(&bytes, "real-time"), real_time, "the header says so");
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|it| it == text.as_bytes())
}

#[test]
fn drift_and_offset_of_a_counter_are_in_the_summary_and_in_the_files() {
    drifts(false);
}

#[test]
fn drift_and_offset_in_real_time_are_in_the_summary_and_in_the_files() {
    drifts(true);
}

/// UTC, of which a device makes real-time stamps, and the clock that its driver shows are two: where they part, stamps
/// that are held to the system's clock stay with it, and those of the NIC's own are UTC as it is.
#[test]
fn a_utc_clock_that_parts_from_the_counter_is_passed_on_or_left_alone() {
    /// How far UTC is behind: two days, of which no machine is late by a hundredth.
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

fn system_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.expect("after 1970").as_nanos()).expect("fits")
}

#[test]
fn a_jump_is_noted() {
    /// A day, of which no machine is late by a thousandth.
    const JUMP: i64 = 86_400_000_000_000;
    let dir = Dir::new();
    let jump = format!("model.fault=clock_jump:ns={JUMP}@frames=500");
    let run = capture(&dir, "synth:size=64,flows=4,pps=2000", &[&jump]).env("RUST_LOG", "info");
    let mut running = run.start();
    let said = "the NIC's clock jumped by +";
    // A NIC's thread that gets no CPU answers late, and a clock that caught up by milliseconds has jumped, too.
    let by_a_day = |line: &str| {
        let by: f64 = line.split_once(said)?.1.split(' ').next()?.parse().ok()?;
        Some((by * 1e9 - JUMP as f64).abs() < JUMP as f64 / 1000.0)
    };
    running.until("the jump is told", |run| {
        run.stderr().lines().filter_map(by_a_day).any(|it| it)
    });
    running.signal(Signal::TERM);
    let finished = run.finished(running.wait(), 0);
    let summary = &finished.summary.json;
    let jumped = summary["clock"]["jumped_ns"].as_i64().expect("a number");
    assert!((jumped - JUMP).abs() < JUMP / 1000, "{jumped}");
    assert!(
        summary["notes"].to_string().contains(said),
        "{}",
        summary["notes"]
    );
    let told = told(&last_file(&finished)).expect("the clocks");
    assert!(told.jumps >= 1, "it is counted in the file: {told:?}");
    assert_agree(&told, &summary["clock"]);
}

#[test]
fn software_stamps_tell_of_no_clock() {
    let dir = Dir::new();
    let sets = ["capture.timestamps=software"];
    let finished = capture(&dir, "synth:size=64,flows=4,count=1000", &sets).finish(0);
    assert!(finished.summary.json["clock"].is_null());
    assert!(told(&last_file(&finished)).is_none());
}
