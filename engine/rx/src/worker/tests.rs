//! Tests of the receive loop on a fake queue: batches, frame budget, recovery, stop, waiting for room,
//! and the completeness of the pool at the end.

use super::*;
use crate::{
    Hashing, QueueLoad, SamplingRate,
    ring::fake::{FakeQueue, Script, ScriptStep},
};
use std::collections::VecDeque;
use wqcap_rss::{HashDepth, RssKey, Toeplitz};
use wqcap_verbs::WqState;

const SLOTS: u32 = 16;
/// `IBV_WC_LOC_LEN_ERR`: the frame was too long; the WQ stays ready.
const TOO_LONG: u32 = 1;
/// `IBV_WC_LOC_PROT_ERR`: a completion with this error puts the WQ into error.
const PROTECTION: u32 = 4;

/// Record of the calls to an outlet, shared with the test.
#[derive(Debug, Default)]
struct Seen {
    /// Bytes of each frame that the outlet took, in order.
    frames: Vec<Vec<u8>>,
    /// Number of frames in each batch that the outlet took.
    batches: Vec<usize>,
    /// Number of calls of the outlet's [`Outlet::wait`].
    waits: u32,
}

/// Outlet whose room, kept frames and lost slots a test configures.
#[derive(Default)]
struct Sink {
    seen: Arc<Mutex<Seen>>,
    /// Room of the outlet after each successive wait; unlimited once the list is used up.
    rooms: VecDeque<usize>,
    /// Number of frames that the outlet's [`Outlet::room`] returns.
    room: usize,
    /// `true`: the outlet keeps the frames, as parsers do, and returns their slots at the end.
    keeps: bool,
    kept: Vec<Filled>,
    /// `true`: the outlet does not return the last kept slot.
    loses_one: bool,
    /// Number of frames after which the stop flag of the control is set.
    stop_after: Option<(usize, Arc<Control>)>,
}

impl Outlet for Sink {
    fn room(&self) -> usize {
        self.room
    }

    fn take(
        &mut self,
        frames: &mut Vec<Filled>,
        memory: &SlotMemory,
        stamper: &mut Stamper,
    ) -> Taken {
        let mut seen = self.seen.lock().expect("the test's");
        seen.batches.push(frames.len());
        let mut last = 0;
        for filled in frames.iter() {
            let ns = stamper.ns(filled);
            assert!(ns >= last, "the time stamps run backward");
            last = ns;
            seen.frames.push(filled.bytes(memory).to_vec());
        }
        if let Some((count, control)) = &self.stop_after
            && seen.frames.len() >= *count
        {
            control.stop.store(true, Ordering::Release);
        }
        let count = frames.len();
        if self.keeps {
            self.kept.append(frames);
            return Taken {
                captured: 0,
                away: count,
                refused: 0,
            };
        }
        Taken {
            captured: count as u64,
            ..Taken::default()
        }
    }

    fn wait(&mut self, _timeout: Duration) {
        self.seen.lock().expect("the test's").waits += 1;
        self.room = self.rooms.pop_front().unwrap_or(usize::MAX);
    }

    fn finish(&mut self, home: &mut Vec<Slot>) -> Result<(), SlotsLost> {
        if self.loses_one {
            self.kept.pop();
        }
        let lost = u64::from(self.loses_one);
        home.extend(self.kept.drain(..).map(Filled::into_slot));
        if lost > 0 {
            return Err(SlotsLost {
                frames: lost,
                why: "a parser ended with a slot".into(),
            });
        }
        Ok(())
    }
}

/// Builder of a receive loop on a fake queue.
struct Bench {
    queue: FakeQueue,
    control: Arc<Control>,
    counters: Arc<QueueCounters>,
    seen: Arc<Mutex<Seen>>,
    sink: Sink,
    budget: Option<Arc<Budget>>,
    wq_fatal: Arc<AtomicBool>,
    batch: usize,
    replacements: Option<Receiver<Replacement<FakeQueue>>>,
    orders: Arc<LoopRequests>,
}

impl Bench {
    fn new(steps: Vec<ScriptStep>) -> Self {
        let queue = FakeQueue::default();
        queue.script().steps = steps.into();
        let seen = Arc::<Mutex<Seen>>::default();
        let control = Arc::<Control>::default();
        let sink = Sink {
            seen: Arc::clone(&seen),
            room: usize::MAX,
            ..Sink::default()
        };
        Self {
            queue,
            control,
            counters: Arc::default(),
            seen,
            sink,
            budget: None,
            wq_fatal: Arc::default(),
            batch: 4,
            replacements: None,
            orders: Arc::new(LoopRequests::new(0)),
        }
    }

    /// Replaces the control by one that wakes `owner`. Call it first: later settings refer to the
    /// control.
    fn owned_by(mut self, owner: &Wakeup) -> Self {
        self.control = Arc::new(Control::new(owner));
        self
    }

    /// Sets the loop's stop flag after `frames` frames.
    fn stopped_after(mut self, frames: usize) -> Self {
        self.sink.stop_after = Some((frames, Arc::clone(&self.control)));
        self
    }

    /// Runs the receive loop to its end and collects its counters and notes.
    fn run(self) -> Outcome {
        let ring = self.queue.ring(SLOTS);
        self.queue.script().longest_list = 0;
        let hashing = Arc::new(Hashing {
            toeplitz: Toeplitz::new(&RssKey::SYMMETRIC),
            depth: HashDepth::L3,
        });
        let worker = Worker {
            queue: 0,
            ring,
            outlet: self.sink,
            batch: self.batch,
            idle: Idle::Spin,
            counters: Arc::clone(&self.counters),
            clock: StampSource::Batch,
            control: Arc::clone(&self.control),
            budget: self.budget,
            wq_fatal: self.wq_fatal,
            orders: self.orders,
            sampler: LoadSampler::new(hashing, Arc::new(QueueLoad::new(1)), SamplingRate::Closely),
            replacements: self.replacements,
        };
        let (ring, ended) = worker.run();
        let seen = std::mem::take(&mut *self.seen.lock().expect("the test's"));
        let notes = self.control.notes.lock().expect("the test's");
        let notes = notes.lines().map(String::from).collect();
        Outcome {
            ended,
            seen,
            notes,
            received: self.counters.ledger(0).received,
            errors: self.counters.ledger(0).errors,
            dropped: self.counters.ledger(0).dropped_pipeline,
            failed: self.control.failed.is_raised(),
            outstanding: ring.outstanding(),
            queue: self.queue,
        }
    }
}

struct Outcome {
    ended: Ended,
    seen: Seen,
    notes: Vec<String>,
    received: u64,
    errors: u64,
    dropped: u64,
    failed: bool,
    outstanding: u32,
    queue: FakeQueue,
}

impl Outcome {
    #[track_caller]
    fn stopped(&self) {
        assert!(matches!(self.ended, Ended::Stopped), "{:?}", self.ended);
        assert!(!self.failed);
    }

    #[track_caller]
    fn failed_for(&self, words: &str) {
        assert!(
            matches!(&self.ended, Ended::Failed(why) if why.to_string().contains(words)),
            "{:?}",
            self.ended
        );
        assert!(self.failed, "the failure alarm is not raised");
    }
}

fn frame(number: u8) -> ScriptStep {
    ScriptStep::Frame(vec![number; 60])
}

fn frames(numbers: std::ops::Range<u8>) -> Vec<ScriptStep> {
    numbers.map(frame).collect()
}

#[track_caller]
fn assert_numbers(seen: &Seen, numbers: std::ops::Range<u8>) {
    let got: Vec<_> = seen.frames.iter().map(|bytes| bytes[0]).collect();
    assert_eq!(got, numbers.collect::<Vec<_>>());
}

#[test]
fn each_batch_is_reposted_with_one_list() {
    let mut steps = frames(0..2);
    steps.push(ScriptStep::Pause);
    steps.extend(frames(2..10));
    let it = Bench::new(steps).stopped_after(10).run();
    it.stopped();
    assert_numbers(&it.seen, 0..10);
    assert_eq!(
        it.seen.batches,
        [2, 4, 4],
        "all completions up to the limit of 4"
    );
    assert_eq!(it.queue.script().longest_list, 4);
    assert_eq!((it.received, it.outstanding), (10, SLOTS));
}

#[test]
fn frames_completed_before_the_stop_are_drained() {
    // The first batch of four sets the stop flag; nine more frames have completed by then.
    let it = Bench::new(frames(0..13)).stopped_after(1).run();
    it.stopped();
    assert_numbers(&it.seen, 0..13);
    assert_eq!((it.received, it.outstanding), (13, SLOTS));
}

/// A lost port's ring is drained first. The loop of a ring that fails waits as well, until its owner
/// stops it or finds that the port is lost.
#[test]
fn a_ring_that_replaces_the_one_of_a_lost_port_is_polled() {
    let (to, replacements) = crossbeam_channel::unbounded();
    let (failing, last) = (FakeQueue::default(), FakeQueue::default());
    failing.script().steps = frames(4..6).into();
    failing
        .script()
        .steps
        .push_back(ScriptStep::Bogus(u64::MAX));
    last.script().steps = frames(6..9).into();
    for queue in [&failing, &last] {
        let _ = to.send(Replacement {
            ring: queue.ring(SLOTS),
            clock: StampSource::Batch,
            wq_fatal: Arc::default(),
        });
    }
    let mut bench = Bench::new(frames(0..4)).stopped_after(9);
    bench.replacements = Some(replacements);
    bench.orders.leave_ring();
    let it = bench.run();
    assert!(matches!(it.ended, Ended::Stopped), "{:?}", it.ended);
    assert_numbers(&it.seen, 0..9);
    assert_eq!((it.received, it.outstanding), (9, SLOTS));
    assert!(it.failed, "the owner is not asked about the failed ring");
}

#[test]
fn a_budget_is_exact_and_frames_beyond_it_stay_on_the_ring() {
    let owner = Wakeup::new().expect("a descriptor");
    let mut bench = Bench::new(frames(0..12)).owned_by(&owner).stopped_after(6);
    bench.budget = Some(Arc::new(Budget::new(6)));
    let it = bench.run();
    it.stopped();
    assert!(
        owner.take(),
        "the owner is not woken when the budget is used up"
    );
    assert_numbers(&it.seen, 0..6);
    assert_eq!(it.received, 6, "the others were never received");
    assert_eq!(it.queue.script().steps.len(), 6);
}

#[test]
fn a_frame_that_is_too_long_is_an_error_and_the_queue_continues() {
    let mut steps = frames(0..2);
    steps.push(ScriptStep::Error(TOO_LONG));
    steps.extend(frames(2..4));
    let it = Bench::new(steps).stopped_after(4).run();
    it.stopped();
    assert_numbers(&it.seen, 0..4);
    assert_eq!((it.received, it.errors), (5, 1));
    assert_eq!(it.queue.script().states, []);
    assert_eq!(it.outstanding, SLOTS);
}

#[test]
fn a_queue_in_error_is_recovered_and_loses_no_completed_frame() {
    // The batch ends with the error; three more frames completed before the WQ stopped.
    let mut steps = frames(0..3);
    steps.push(ScriptStep::Error(PROTECTION));
    steps.extend(frames(3..6));
    let it = Bench::new(steps).stopped_after(6).run();
    it.stopped();
    assert_numbers(&it.seen, 0..6);
    assert_eq!(
        (it.received, it.errors),
        (7, 1),
        "flushed WRs are not frames"
    );
    assert_eq!(it.queue.script().states, RECOVERED);
    assert_eq!(it.queue.script().posted.len() as u32, SLOTS);
    assert_eq!(it.outstanding, SLOTS);
    assert!(
        it.notes.len() == 1 && it.notes[0].contains("recovered"),
        "{:?}",
        it.notes
    );
}

#[test]
fn a_budget_holds_through_a_recovery() {
    let mut steps = frames(0..2);
    steps.push(ScriptStep::Error(PROTECTION));
    steps.extend(frames(2..6));
    let mut bench = Bench::new(steps).stopped_after(3);
    bench.budget = Some(Arc::new(Budget::new(3)));
    let it = bench.run();
    it.stopped();
    assert_numbers(&it.seen, 0..3);
    assert_eq!((it.received, it.errors, it.outstanding), (4, 1, SLOTS));
}

#[test]
fn an_event_alone_triggers_a_recovery() {
    let bench = Bench::new(Vec::new());
    bench.wq_fatal.store(true, Ordering::Release);
    // Frames arrive once the WQ is ready again.
    let (queue, control) = (bench.queue.clone(), Arc::clone(&bench.control));
    let device = std::thread::spawn(move || {
        while queue.script().states.last() != Some(&WqState::Ready) {
            std::thread::yield_now();
        }
        queue.script().steps.extend(frames(0..2));
        while !queue.script().steps.is_empty() {
            std::thread::yield_now();
        }
        control.stop.store(true, Ordering::Release);
    });
    let it = bench.run();
    device.join().expect("ends");
    it.stopped();
    assert_numbers(&it.seen, 0..2);
    assert!(
        it.notes[0].contains("the device reported an error event"),
        "{:?}",
        it.notes
    );
    assert_eq!(it.outstanding, SLOTS);
}

/// Firmware that refuses a RESET whose request does not name the error state as the present state, as
/// when the kernel sends its own stale record, which is still ready.
const STALE: fn(Option<WqState>) -> bool = |from| from != Some(WqState::Error);
const RECOVERED: [WqState; 3] = [WqState::Error, WqState::Reset, WqState::Ready];

/// Runs a loop whose WQ fails between two frames, on a device that `script` modifies. The frames
/// behind the error arrive once the WQ is ready again.
fn broken_between_frames(script: impl FnOnce(&mut Script)) -> Outcome {
    let bench = Bench::new(vec![frame(0), ScriptStep::Error(PROTECTION)]).stopped_after(3);
    bench.queue.script().once_ready = frames(1..3);
    script(&mut bench.queue.script());
    let it = bench.run();
    it.stopped();
    assert_numbers(&it.seen, 0..3);
    assert_eq!((it.received, it.errors, it.outstanding), (4, 1, SLOTS));
    assert_eq!(it.queue.script().states, RECOVERED);
    assert_eq!(it.notes.len(), 1, "{:?}", it.notes);
    it
}

#[test]
fn a_refused_reset_is_retried_from_the_error_state() {
    let it = broken_between_frames(|script| script.refuses_reset = Some(STALE));
    assert!(!it.notes[0].contains("not flushed"), "{:?}", it.notes);
}

#[test]
fn wrs_that_are_not_flushed_are_taken_back_after_a_reset() {
    // One slot holds a frame and one the error; both are still in the batch that showed the error.
    for (flushes, unflushed) in [(0, SLOTS - 2), (5, SLOTS - 7)] {
        let it = broken_between_frames(|script| script.flushes = Some(flushes));
        let says = format!("{unflushed} WRs of the WQ were not flushed within a second");
        assert!(it.notes[0].contains(&says), "{:?}", it.notes);
    }
}

#[test]
fn completions_made_by_the_reset_are_taken_from_the_cq() {
    let it = broken_between_frames(|script| {
        (script.flushes, script.flushes_at_reset) = (Some(3), true);
        script.refuses_reset = Some(STALE);
    });
    assert!(!it.notes[0].contains("not flushed"), "{:?}", it.notes);
}

#[test]
fn a_queue_that_cannot_be_reset_fails() {
    let bench = Bench::new(vec![ScriptStep::Error(PROTECTION)]);
    bench.queue.script().refuses_reset = Some(|_| true);
    bench.run().failed_for("cannot be recovered: ibv_modify_wq");
}

#[test]
fn a_completion_of_a_slot_that_is_not_posted_creates_no_token() {
    for index in [u64::from(SLOTS), u64::MAX] {
        let it = Bench::new(vec![frame(0), ScriptStep::Bogus(index)]).run();
        it.failed_for(&format!("names WR {index}, which is not posted"));
        assert_numbers(&it.seen, 0..1);
    }
}

#[test]
fn without_room_the_ring_is_not_polled_and_no_frame_is_lost() {
    let mut bench = Bench::new(frames(0..6)).stopped_after(6);
    (bench.sink.room, bench.sink.rooms) = (0, [0, 0, 2, 0].into());
    let it = bench.run();
    it.stopped();
    assert_numbers(&it.seen, 0..6);
    assert_eq!(it.seen.waits, 3, "one wait each time the room was 0");
    assert!(
        it.seen.batches.iter().all(|it| *it <= 2),
        "{:?}",
        it.seen.batches
    );
    assert_eq!(it.dropped, 0);
}

#[test]
fn slots_held_by_the_outlet_are_returned_before_the_end() {
    let mut bench = Bench::new(frames(0..9)).stopped_after(9);
    bench.sink.keeps = true;
    let it = bench.run();
    it.stopped();
    assert_numbers(&it.seen, 0..9);
    assert_eq!(
        it.outstanding,
        SLOTS - 9,
        "the returned slots are in the last batch, not on the ring"
    );
}

#[test]
fn a_slot_that_is_not_returned_is_a_failure_and_its_frame_is_counted() {
    let mut bench = Bench::new(frames(0..3)).stopped_after(3);
    (bench.sink.keeps, bench.sink.loses_one) = (true, true);
    let it = bench.run();
    it.failed_for("a parser ended with a slot");
    assert_eq!((it.received, it.dropped), (3, 1));
}
