//! Inner tests of time stamps: each frame's stamp is compared with the system clock when the frame is
//! processed.
//!
//! The delay until a frame is processed or a clock reading is answered depends on the machine. The clock
//! therefore jumps by much more than any such delay. The accuracy of the corrected stamps in nanoseconds
//! is tested with simulated clocks (`wqcap_rx::clock::discipline`).

use super::{on_the_wire, pass, until};
use std::{
    borrow::Cow,
    path::Path,
    sync::{Arc, Mutex},
};
use wqcap_core::time::system_ns;
use wqcap_engine::{
    capture::{Capture, Limits, Report},
    config::Config,
    device,
    pipeline::{Consumer, ConsumerPlace, Frame, Verdict},
    plan::Plan,
    stats::{ClockReport, QueueLedger},
};

const SECOND: i64 = 1_000_000_000;
/// Jump of the clock in nanoseconds, as in the faults of the outer tests.
const JUMP: i64 = 60 * SECOND;
/// Smallest difference in nanoseconds that counts as a jump; smaller ones are delays of the machine.
const FAR: i64 = JUMP / 2;
/// Maximum number of frames for which the software NIC reads its clock once.
const BURST: u64 = 64;

/// Stamp of a received frame.
#[derive(Clone, Copy, Debug)]
struct Seen {
    queue: u16,
    number: u64,
    stamp: u64,
    /// System time at which the frame was processed, in nanoseconds since 1970.
    now: u64,
}

impl Seen {
    /// Returns the time between the frame's stamp and its processing in nanoseconds.
    fn age(&self) -> i64 {
        self.now.cast_signed() - self.stamp.cast_signed()
    }
}

/// Consumer that records every frame's stamp.
struct Diary {
    queue: u16,
    seen: Vec<Seen>,
    all: Arc<Mutex<Vec<Seen>>>,
}

impl Consumer for Diary {
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        let now = system_ns();
        let number = frame.bytes.last_chunk().expect("frames hold a number");
        self.seen.push(Seen {
            queue: self.queue,
            number: u64::from_le_bytes(*number),
            stamp: frame.ns,
            now,
        });
        Verdict::Captured
    }
}

impl Drop for Diary {
    fn drop(&mut self) {
        self.all.lock().expect("sound").append(&mut self.seen);
    }
}

/// Frames and report of a capture during an event.
struct Run {
    /// All frames, sorted by their number on the wire.
    seen: Vec<Seen>,
    report: Report,
    clock: ClockReport,
    /// System time at which the event began.
    before: u64,
    /// Number of the first frame that arrived after the event.
    after: u64,
}

impl Run {
    /// Captures frames before, during and after the event `happens`.
    fn new(settings: &[(&str, &str)], happens: impl FnOnce(&mut Capture)) -> Self {
        let mut all = vec![
            ("capture.queues", "2"),
            ("capture.ring", "4096"),
            ("capture.idle", "sleep"),
        ];
        all.extend(settings);
        let config = Config::with_overrides("", &all).expect("a configuration");
        let plan = Plan::new(&config, &device::list().expect("devices")).expect("a plan");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let make = |place: ConsumerPlace| Diary {
            queue: place.queue,
            seen: Vec::with_capacity(100_000),
            all: Arc::clone(&seen),
        };
        let mut capture =
            Capture::start_with(&plan, Limits::default(), make).expect("the capture starts");
        let captured = |queues: &[QueueLedger]| queues.iter().map(|it| it.captured).sum::<u64>();
        pass(&mut capture, 1000);
        let enough = on_the_wire();
        until(&mut capture, "the frames are processed", |it| {
            captured(&it.snapshot().queues) >= enough
        });
        // A time and not a frame number, because one queue may be far behind the other.
        let before = system_ns();
        happens(&mut capture);
        // The frames of a burst have the time of its start, even if the NIC did not run for a while since.
        let after = on_the_wire() + BURST;
        pass(&mut capture, 1000);
        let report = capture.finish();
        let clock = report.clock.expect("the device stamps");
        let mut seen = std::mem::take(&mut *seen.lock().expect("sound"));
        for queue in &report.queues {
            assert_eq!(queue.errors, 0);
            queue.check().expect("the ledger adds up");
        }
        assert_eq!(seen.len() as u64, captured(&report.queues));
        for queue in 0..2 {
            let of_queue: Vec<_> = seen.iter().filter(|it| it.queue == queue).collect();
            let backward = of_queue.windows(2).find(|two| two[0].stamp > two[1].stamp);
            assert!(backward.is_none(), "stamps run backward: {backward:?}");
        }
        seen.sort_by_key(|it| it.number);
        Self {
            seen,
            report,
            clock,
            before,
            after,
        }
    }

    /// Returns the minimum and the maximum age of the selected frames in nanoseconds.
    fn ages(&self, of: impl Fn(&Seen) -> bool) -> (i64, i64) {
        let ages = || self.seen.iter().filter(|it| of(it)).map(Seen::age);
        (ages().min().expect("frames"), ages().max().expect("frames"))
    }

    /// Returns the ages of the frames before the event and of those after it.
    fn before_and_after(&self) -> [(i64, i64); 2] {
        [
            self.ages(|it| it.now < self.before),
            self.ages(|it| it.number >= self.after),
        ]
    }
}

/// Triggers a fault of the outer test by creating its file.
fn trigger_fault(name: &str) {
    let dir = std::env::var(super::DIR).expect("run by the test in main.rs");
    std::fs::write(Path::new(&dir).join(name), "").expect("written");
}

fn clock(capture: &Capture) -> ClockReport {
    capture.clock().expect("the device stamps")
}

fn jump(capture: &mut Capture) {
    trigger_fault("jump");
    until(capture, "the jump is detected", |it| {
        clock(it).jumped_ns.abs() > FAR
    });
}

#[test]
#[ignore = "run by its outer test on the software NIC"]
fn held() {
    let run = Run::new(&[], jump);
    let off = run.clock.jumped_ns.abs() - JUMP;
    assert!(off.abs() < FAR, "{:?}", run.clock);
    let reports_jump = |note: Cow<'_, str>| note.contains("the NIC's clock jumped by");
    let notes = &run.report.notes;
    assert!(notes.lines().any(reports_jump), "{notes:?}");
    // No stamp is in the future, not even before the jump is detected.
    let (youngest, _) = run.ages(|_| true);
    assert!(youngest > -FAR, "{youngest} ns old: {:?}", run.clock);
    for (_, oldest) in run.before_and_after() {
        assert!(oldest < FAR, "{oldest} ns old: {:?}", run.clock);
    }
}

#[test]
#[ignore = "run by its outer test on the software NIC"]
fn own() {
    let run = Run::new(&[("capture.clock", "nic")], jump);
    let off = run.clock.offset_ns - JUMP;
    assert!(off.abs() < FAR, "{:?}", run.clock);
    let [before, after] = run.before_and_after();
    assert!(before.0 > -FAR && before.1 < FAR, "{before:?}");
    let after = (after.0 + JUMP, after.1 + JUMP);
    assert!(after.0 > -FAR && after.1 < FAR, "{after:?} from the jump");
}

fn busy(access: &str) {
    // Frames in the 200 ms of the wire's clock during which the driver's clock info cannot be read.
    const FRAMES: u64 = 20 * 200;
    let settings = [("capture.access", access), ("capture.clock", "nic")];
    let run = Run::new(&settings, |capture| {
        for time in ["first", "second"] {
            trigger_fault(time);
            pass(capture, FRAMES);
            let before = clock(capture).looks;
            until(capture, "the clock is read again", |it| {
                clock(it).looks > before
            });
        }
    });
    assert_eq!(run.clock.real_time, access == "auto", "{:?}", run.clock);
    let (youngest, oldest) = run.ages(|_| true);
    assert!(
        youngest > -FAR && oldest < FAR,
        "{youngest} to {oldest} ns old: {:?}",
        run.clock
    );
}

#[test]
#[ignore = "run by its outer test on the software NIC"]
fn busy_auto() {
    busy("auto");
}

#[test]
#[ignore = "run by its outer test on the software NIC"]
fn busy_verbs() {
    busy("verbs");
}
