//! The second halves of the tests of stamps: each frame's stamp beside the system's clock when it was worked on.
//!
//! How late a frame is worked on, and a look at the clock is answered, is the machine's affair. So the clock jumps by far
//! more than a machine can be late; how near a held line comes to the system's clock, nanosecond by nanosecond, is tested
//! where both clocks are made up (`device::clock::discipline`).

use super::{on_the_wire, pass, until};
use std::{
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
/// How far the clock jumps; see the first halves.
const JUMP: i64 = 60 * SECOND;
/// Anything below this is a machine that is busy.
const FAR: i64 = JUMP / 2;
/// Frames at most for which the software NIC reads its clock once.
const BURST: u64 = 64;

/// One frame, by queue.
#[derive(Clone, Copy, Debug)]
struct Seen {
    queue: u16,
    number: u64,
    stamp: u64,
    /// The system's time, a moment after it was received.
    now: u64,
}

impl Seen {
    /// How old the frame was when it was looked at, by its stamp.
    fn age(&self) -> i64 {
        self.now.cast_signed() - self.stamp.cast_signed()
    }
}

/// Writes down every frame.
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

/// What a run has seen.
struct Run {
    /// Every frame, as the wire numbers them.
    seen: Vec<Seen>,
    report: Report,
    clock: ClockReport,
    /// When it began, by the system's time: what was worked on until then.
    before: u64,
    /// Frames from this number on came when it was over.
    after: u64,
}

impl Run {
    /// Captures while something happens.
    fn of(settings: &[(&str, &str)], happens: impl FnOnce(&mut Capture)) -> Self {
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
        let mut capture = Capture::start_with(&plan, Limits::default(), make).expect("it starts");
        let captured = |queues: &[QueueLedger]| queues.iter().map(|it| it.captured).sum::<u64>();
        pass(&mut capture, 1000);
        let enough = on_the_wire();
        until(&mut capture, "they are worked on", |it| {
            captured(&it.snapshot().queues) >= enough
        });
        // One queue may be far behind the other.
        let before = system_ns();
        happens(&mut capture);
        // Those of a burst have the time at which the NIC began it, however long it got no turn since.
        let after = on_the_wire() + BURST;
        pass(&mut capture, 1000);
        let report = capture.finish();
        let clock = report.clock.expect("the device stamps");
        let mut seen = std::mem::take(&mut *seen.lock().expect("sound"));
        for queue in &report.queues {
            assert_eq!(queue.errors, 0);
            queue.check().expect("it adds up");
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

    /// The least and the most that frames are older than their stamps say.
    fn ages(&self, of: impl Fn(&Seen) -> bool) -> (i64, i64) {
        let ages = || self.seen.iter().filter(|it| of(it)).map(Seen::age);
        (ages().min().expect("frames"), ages().max().expect("frames"))
    }

    /// Those of the frames before it happened, and of those after it.
    fn before_and_after(&self) -> [(i64, i64); 2] {
        [
            self.ages(|it| it.now < self.before),
            self.ages(|it| it.number >= self.after),
        ]
    }
}

/// Lets a fault strike: see the first halves.
fn strike(name: &str) {
    let dir = std::env::var(super::DIR).expect("run by the test in main.rs");
    std::fs::write(Path::new(&dir).join(name), "").expect("room");
}

fn clock(capture: &Capture) -> ClockReport {
    capture.clock().expect("the device stamps")
}

fn jump(capture: &mut Capture) {
    strike("jump");
    until(capture, "the jump is found", |it| {
        clock(it).jumped_ns.abs() > FAR
    });
}

#[test]
#[ignore = "runs on the software NIC, by its first half"]
fn held() {
    let run = Run::of(&[], jump);
    let off = run.clock.jumped_ns.abs() - JUMP;
    assert!(off.abs() < FAR, "{:?}", run.clock);
    let told = |note: &String| note.contains("the NIC's clock jumped by");
    assert!(run.report.notes.iter().any(told), "{:?}", run.report.notes);
    // Nothing was received later than now, not even until the jump is found.
    let (youngest, _) = run.ages(|_| true);
    assert!(youngest > -FAR, "{youngest} ns old: {:?}", run.clock);
    for (_, oldest) in run.before_and_after() {
        assert!(oldest < FAR, "{oldest} ns old: {:?}", run.clock);
    }
}

#[test]
#[ignore = "runs on the software NIC, by its first half"]
fn own() {
    let run = Run::of(&[("capture.clock", "nic")], jump);
    let off = run.clock.offset_ns - JUMP;
    assert!(off.abs() < FAR, "{:?}", run.clock);
    let [before, after] = run.before_and_after();
    assert!(before.0 > -FAR && before.1 < FAR, "{before:?}");
    let after = (after.0 + JUMP, after.1 + JUMP);
    assert!(after.0 > -FAR && after.1 < FAR, "{after:?} beside the jump");
}

fn busy(access: &str) {
    // For 200 ms of the wire's clock the driver's reckoning cannot be had.
    const FRAMES: u64 = 20 * 200;
    let settings = [("capture.access", access), ("capture.clock", "nic")];
    let run = Run::of(&settings, |capture| {
        for time in ["first", "second"] {
            strike(time);
            pass(capture, FRAMES);
            let before = clock(capture).looks;
            until(capture, "it is read again", |it| clock(it).looks > before);
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
#[ignore = "runs on the software NIC, by its first half"]
fn busy_auto() {
    busy("auto");
}

#[test]
#[ignore = "runs on the software NIC, by its first half"]
fn busy_verbs() {
    busy("verbs");
}
