//! Faults of the NIC: the capture recovers if possible, ends in order otherwise, and accounts for
//! every frame in both cases.

use serde_json::Value;
use std::{collections::BTreeSet, fs};
use wqcap_tests::{
    Dir, Finished, Summary, Wqcap,
    compare::assert_numbers,
    files::{self, Record},
    skip,
};

const COUNT: u64 = 20_000;

/// Setting of the model: a RESET may name a current state that the device has already left.
const STALE_ACCEPTED: &str = "model.refuse_stale_state=false";

/// Returns a run with `fault` on a wire that waits for buffers and sends `COUNT` numbered frames of
/// 64 flows.
fn run<'d>(dir: &'d Dir, name: &str, fault: &str) -> Wqcap<'d> {
    on_wire(
        dir,
        name,
        &format!("synth:size=100,flows=64,count={COUNT}"),
        fault,
    )
}

fn on_wire<'d>(dir: &'d Dir, name: &str, wire: &str, fault: &str) -> Wqcap<'d> {
    Wqcap::run(dir, name)
        .model(wire)
        .set(&format!("model.fault={fault}"))
        .queues(3)
}

/// Asserts that all frames are captured, except `errors` frames that completed in error.
#[track_caller]
fn assert_complete(finished: &Finished, errors: u64) {
    let total = finished.summary.ledger.total;
    assert_eq!(
        (total.received, total.captured, total.errors),
        (COUNT, COUNT - errors, errors),
        "{}",
        finished.done
    );
    let numbers = finished.numbers();
    assert_eq!(numbers.len() as u64, COUNT - errors);
    assert!(numbers.last().is_some_and(|last| *last < COUNT));
}

/// Returns the notes of the summary.
#[track_caller]
fn notes(finished: &Finished) -> Vec<String> {
    let notes = finished.summary.json["notes"]
        .as_array()
        .expect("a list of notes");
    notes
        .iter()
        .map(|note| note.as_str().expect("notes are text").to_owned())
        .collect()
}

/// Asserts recovery from three failures of a WQ, for one and three queues and for all [`WAYS`].
fn assert_recovered(kind: &str, errors: u64, set: &str) {
    let dir = Dir::new();
    for queues in [1, 3] {
        for (way, settings) in WAYS {
            let queue = queues - 1;
            let fault = [100, 5000, 5300]
                .map(|frames| format!("{kind}:queue={queue}@frames={frames}"))
                .join(";");
            let finished = run(&dir, &format!("{queues}-{way}"), &fault)
                .queues(queues)
                .sets(settings)
                .set(set)
                .finish(0);
            assert_complete(&finished, errors);
            assert_eq!(
                finished.summary.ledger.queues[queue].errors, errors,
                "errors of the queue that failed"
            );
            // One note per fault: an event that is read late is not a second error.
            let notes = notes(&finished);
            assert_eq!(notes.len(), 3, "{notes:?}");
            for note in notes {
                assert!(note.starts_with(&format!("queue {queue}: ")), "{note}");
                assert!(note.contains("recovered; frames between"), "{note}");
            }
        }
    }
}

/// Ways to access a ring: striding WQs, one WR per frame, access through the verbs, and the first
/// two with compressed completions.
const WAYS: [(&str, &[&str]); 5] = [
    ("striding", &["capture.receive=striding"]),
    ("frame", &["capture.receive=frame"]),
    ("verbs", &["capture.access=verbs"]),
    (
        "striding, compressed",
        &["capture.receive=striding", "capture.timestamps=software"],
    ),
    (
        "frame, compressed",
        &["capture.receive=frame", "capture.timestamps=software"],
    ),
];

#[test]
fn a_wq_that_fails_is_recovered_and_no_frame_is_lost() {
    assert_recovered("wq_fatal", 0, STALE_ACCEPTED);
}

/// The kernel does not record an error that the device raises itself, and firmware may refuse a
/// RESET from the state that the kernel names.
#[test]
fn a_wq_is_recovered_where_a_stale_state_is_refused() {
    assert_recovered("wq_fatal", 0, "model.refuse_stale_state=true");
}

#[test]
fn a_wq_whose_last_wrs_are_never_flushed_is_recovered_with_all_its_slots() {
    assert_recovered_unflushed(false);
}

/// Completions between the last poll and the reset refer to WQEs from before the reset.
#[test]
fn wrs_flushed_by_the_reset_are_polled_from_the_cq() {
    assert_recovered_unflushed(true);
}

/// Puts each WQ into error in turn, every 100,000 frames, while `frames` frames arrive, and asserts
/// that none is lost.
fn churn(frames: u64, way: &str, settings: &[&str]) {
    const EVERY: u64 = 100_000;
    let dir = Dir::new();
    let queues = 3;
    let faults: Vec<_> = (1..frames / EVERY)
        .map(|i| format!("wq_fatal:queue={}@frames={}", i % queues, i * EVERY))
        .collect();
    let wire = format!("synth:size=100,flows=64,count={frames}");
    let finished = on_wire(&dir, way, &wire, &faults.join(";"))
        .sets(settings)
        .set("output.format=none")
        .finish(0);
    let total = &finished.summary.ledger.total;
    let all = (frames, frames, 0);
    let seen = (total.received, total.captured, total.errors);
    assert_eq!(seen, all, "{way}: {}", finished.done);
    assert_eq!(notes(&finished).len(), faults.len(), "{way}");
    skip::say(&format!(
        "churn, {way}: {frames} frames, {} recoveries",
        faults.len()
    ));
}

#[test]
fn wqs_fail_again_and_again_and_no_frame_is_lost() {
    for (way, settings) in WAYS {
        let frames = if way.starts_with("striding") {
            10_000_000
        } else {
            1_000_000
        };
        churn(frames, way, settings);
    }
}

#[test]
#[ignore = "takes minutes: scripts/soak runs it"]
fn wqs_fail_a_thousand_times() {
    for (way, settings) in WAYS {
        churn(100_000_000, way, settings);
    }
}

fn assert_recovered_unflushed(at_reset: bool) {
    let dir = Dir::new();
    for (way, settings) in WAYS {
        // A few WRs, and more than a ring has, so that none is flushed.
        for unflushed in [7, 32768] {
            let fault = "wq_fatal:queue=0@frames=5000";
            let finished = run(&dir, &format!("{way}-{unflushed}"), fault)
                .sets(settings)
                .set(&format!("model.unflushed_wrs={unflushed}"))
                .set(&format!("model.flush_at_reset={at_reset}"))
                .set("capture.ring=512")
                .finish(0);
            assert_complete(&finished, 0);
            let notes = notes(&finished);
            let [note] = &notes[..] else {
                panic!("{notes:?}");
            };
            let is_unflushed = note.contains("were not flushed within");
            assert_eq!(is_unflushed, !at_reset, "{note}");
        }
    }
}

#[test]
fn a_bad_key_fails_only_the_frame_that_it_hits() {
    assert_recovered("bad_lkey", 3, STALE_ACCEPTED);
}

/// Runs a capture on a wire that does not wait for buffers, and ends it after `captured` frames.
fn run_lossy(dir: &Dir, fault: &str, captured: u64) -> Finished {
    let run = on_wire(dir, "lossy", "synth:size=100,flows=64,pps=20000", fault)
        .gated()
        .control()
        .queues(1)
        .set("capture.ring=4096")
        .set("capture.on_port_down=wait");
    let mut running = run.start();
    run.ctl().until_counted(&mut running, "captured", captured);
    run.ctl().run(&["shutdown"]).expect(0);
    run.finished(running.wait(), 0)
}

#[test]
fn an_event_read_late_loses_no_frame_of_a_lossy_wire() {
    let dir = Dir::new();
    let finished = run_lossy(&dir, "wq_fatal:queue=0@frames=5000", 8000);
    let seen = finished.numbers();
    assert_eq!(seen.len() as u64, finished.summary.ledger.total.captured);
    assert_eq!(notes(&finished).len(), 1, "{:?}", notes(&finished));
    // Frames are lost once, while the WQ is in error. All other missing frames found no WR and are
    // counted.
    let back = *seen.range(5000..).next().expect("the queue continues");
    let last = *seen.last().expect("frames");
    let missing = 5000 + last + 1 - back - seen.len() as u64;
    let no_buffer = finished.summary.nic("out_of_buffer");
    assert!(
        missing <= no_buffer,
        "{missing} missing, {no_buffer} counted"
    );
}

/// Queue counters are 32 bits wide and start at any value. In switchdev mode they belong to the
/// device.
#[test]
fn losses_are_counted_across_a_counter_wrap() {
    const ALL: u64 = 500_000;
    for switchdev in [false, true] {
        let dir = Dir::new();
        let (read, out) = (dir.join("read"), dir.join("out.pcap"));
        let run = Wqcap::run(&dir, "wraps")
            .model(&format!(
                "synth:size=64,flows=64,pps=1000000,count={ALL},lossy"
            ))
            .gated()
            .control()
            .queues(1)
            .set("capture.ring=64")
            .set("output.stdout=true")
            .set("output.on_full=hold")
            .set("model.counter_start=4294967290")
            .set(&format!("model.switchdev={switchdev}"))
            // The loop waits for the unread output, while the wire does not wait.
            .read_later(&read, &out);
        let (ctl, mut running) = (run.ctl(), run.start());
        let lost = |stats: &Value| stats["nic"]["out_of_buffer"].as_u64() >= Some(1000);
        ctl.until(&mut running, "stats", "1000 frames found no buffer", lost);
        fs::write(&read, "").expect("the write succeeds");
        let done = running.wait().expect(0);
        let summary = fs::read_to_string(run.summary_path()).expect("a summary");
        let no_buffer = Summary::parse(&summary).nic("out_of_buffer");
        let seen: BTreeSet<_> = files::read(&out).iter().map(Record::number).collect();
        let all = (seen.len() as u64 + no_buffer, ALL);
        assert_eq!(all.0, all.1, "{no_buffer}, switchdev {switchdev}: {done}");
    }
}

#[test]
fn the_run_waits_for_a_port_that_goes_down() {
    let dir = Dir::new();
    let run = run(&dir, "wait", "port_down:for=150@frames=5000")
        .set("capture.on_port_down=wait")
        .args(&["--count", &COUNT.to_string()]);
    let finished = run.finish(0);
    assert_complete(&finished, 0);
    let notes = notes(&finished);
    let events: Vec<_> = notes
        .iter()
        .map(|note| (note.contains("went down"), note.contains("came up")))
        .collect();
    // The last note is the end of the wire, if that came before the last frame was counted.
    let all = [(true, false), (false, true), (true, false)];
    assert!(events.len() >= 2 && all.starts_with(&events), "{notes:?}");
}

#[test]
fn frames_of_a_lossy_wire_that_is_down_are_lost_and_counted() {
    let dir = Dir::new();
    let finished = run_lossy(&dir, "port_down:for=100@frames=2000", 4000);
    let lost = finished.summary.nic("wire_dropped");
    assert!(lost >= 1000, "{lost} lost in 100 ms");
    let no_buffer = finished.summary.nic("out_of_buffer");
    let seen = finished.numbers();
    let last = *seen.last().expect("frames");
    let missing = last + 1 - seen.len() as u64;
    // On a busy machine some frames find no WR; the last of them may follow the last captured
    // frame.
    assert!(
        (lost..=lost + no_buffer).contains(&missing),
        "{missing} missing, {lost} and {no_buffer} counted"
    );
    assert!(last > 2000 + lost, "the capture continues");
}

#[test]
fn a_port_down_ends_a_run_with_on_port_down_stop() {
    let dir = Dir::new();
    let finished = run(&dir, "stop", "port_down@frames=5000")
        .set("capture.on_port_down=stop")
        .finish(0);
    assert_eq!(finished.summary.json["end"], "port_down");
    assert_numbers(&finished.numbers(), 0..5000);
}

#[test]
fn a_dead_device_ends_the_run_and_its_frames_are_kept() {
    let dir = Dir::new();
    for (way, settings) in WAYS {
        let finished = run(&dir, way, "device_fatal@frames=5000")
            .sets(settings)
            .finish(1);
        finished
            .done
            .says(&["error: the device was lost", "IBV_EVENT_DEVICE_FATAL"]);
        assert_numbers(&finished.numbers(), 0..5000);
    }
}

#[test]
fn an_overrun_cq_ends_the_run_in_order() {
    let dir = Dir::new();
    for (way, settings) in WAYS {
        let finished = run(&dir, way, "cq_overrun:queue=1@frames=5000")
            .sets(settings)
            .finish(1);
        finished.done.says(&["error: ", "CQ"]);
        let seen = finished.numbers();
        assert_eq!(
            seen.range(..5000).count(),
            5000,
            "frames before the overrun"
        );
    }
}

#[test]
fn stamps_never_decrease_when_the_clock_jumps() {
    let dir = Dir::new();
    for clock in ["nic", "system"] {
        let fault = "clock_jump:ns=-5000000000@frames=5000;clock_jump:ns=3000000000@frames=9000;\
                     clock_jump:ns=-40@frames=12000";
        let finished = run(&dir, clock, fault)
            .set(&format!("capture.clock={clock}"))
            .finish(0);
        assert_complete(&finished, 0);
    }
}

#[test]
fn a_clock_jump_changes_only_stamps_of_that_clock() {
    let dir = Dir::new();
    // The tolerance of 30 s covers delays between two frames on a busy machine.
    for (clock, steps) in [("nic", 59..90), ("system", 0..30)] {
        // Frames that wait in the ring when the jump is detected get stamps that are too old. A
        // ring with one WR per frame holds few of them.
        let finished = run(&dir, clock, "clock_jump:ns=60000000000@frames=5000")
            .set(&format!("capture.clock={clock}"))
            .set("capture.receive=frame")
            .finish(0);
        assert_complete(&finished, 0);
        let mut records: Vec<_> = finished.records().concat();
        records.sort_by_key(Record::number);
        let step = records[5000].ts - records[4999].ts;
        assert!(
            steps.contains(&(step / 1_000_000_000)),
            "{clock}: {step} ns"
        );
    }
}

#[test]
fn a_slow_bus_loses_nothing_on_a_lossless_wire() {
    let dir = Dir::new();
    let finished = run(&dir, "slow", "slow_pci:ns=20000,for=100@frames=1000").finish(0);
    assert_complete(&finished, 0);
    assert!(
        finished.summary.duration_s > 0.1,
        "{}",
        finished.summary.duration_s
    );
}

#[test]
fn an_invalid_fault_is_refused() {
    let dir = Dir::new();
    for (i, (fault, message)) in [
        ("fire@ms=1", "\"fire\" is not a fault"),
        ("wq_fatal", "@frames=N, @ms=N or @file=PATH"),
        ("port_down:for=x@ms=1", "for=x is not a number"),
        ("device_fatal:port=2@ms=1", "port 2 does not exist"),
    ]
    .into_iter()
    .enumerate()
    {
        run(&dir, &format!("bad-{i}"), fault)
            .done()
            .expect(2)
            .says(&["fault", message]);
    }
}
