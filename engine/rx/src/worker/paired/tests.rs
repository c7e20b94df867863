//! Tests of a paired loop on fake queues: the order of frames, what a frame waits for, the frame budget,
//! and the loss of one queue.

use super::*;
use crate::{
    Hashing, LoadSampler, LoopRequests, QueueLoad, Replacement, SamplingRate,
    ring::fake::{FakeQueue, ScriptStep},
};
use std::sync::{Mutex, atomic::AtomicBool};
use wqcap_core::{stats::QueueCounters, sync::wakeup::Wakeup};
use wqcap_rss::{HashDepth, RssKey, Toeplitz};

const SLOTS: u32 = 16;

/// Index of a frame's queue, and the frame's time stamp.
type Seen = (usize, u64);

/// Outlet that records the frames it takes, and sets the stop flag after a number of frames.
struct Sink {
    seen: Arc<Mutex<Vec<Seen>>>,
    stop_after: usize,
    control: Arc<Control>,
}

impl MergedOutlet for Sink {
    fn take(&mut self, batch: &MergedBatch<'_>) -> u64 {
        let mut seen = self.seen.lock().expect("the test's");
        let before = seen.len();
        for run in batch.runs() {
            assert_eq!(run.frames.len(), run.stamps.len());
            assert!(run.bytes().all(|it| it.len() == 60));
            seen.extend(run.stamps.iter().map(|ns| (run.queue, *ns)));
        }
        if seen.len() >= self.stop_after {
            self.control.stop.store(true, Ordering::Release);
        }
        (seen.len() - before) as u64
    }
}

/// Builder of a paired loop on two fake queues.
struct Bench {
    queues: [FakeQueue; 2],
    control: Arc<Control>,
    budget: Option<Arc<Budget>>,
    stop_after: usize,
    replacements: Option<crossbeam_channel::Receiver<Replacement<FakeQueue>>>,
    orders: [Arc<LoopRequests>; 2],
}

impl Bench {
    fn new(steps: [Vec<ScriptStep>; 2]) -> Self {
        let frames = |it: &ScriptStep| matches!(it, ScriptStep::Stamped(_));
        let stop_after = steps.iter().flatten().filter(|it| frames(it)).count();
        Self {
            queues: steps.map(with_steps),
            control: Arc::default(),
            budget: None,
            stop_after,
            replacements: None,
            orders: [0, 1].map(|it| Arc::new(LoopRequests::new(it))),
        }
    }

    /// Runs the paired loop to its end. Returns the frames in the order of passing on, and the ends
    /// of the queues' loops.
    fn run(self) -> (Vec<Seen>, Vec<LoopEnd>) {
        let hashing = Arc::new(Hashing {
            toeplitz: Toeplitz::new(&RssKey::SYMMETRIC),
            depth: HashDepth::L3,
        });
        let counters: [Arc<QueueCounters>; 2] = Default::default();
        let mut replacements = self.replacements;
        let queues = self.queues.iter().enumerate().map(|(at, queue)| {
            let load = Arc::new(QueueLoad::new(1));
            PairedQueue::new(Worker {
                queue: at as u16,
                ring: queue.ring(SLOTS),
                outlet: Hold::default(),
                batch: 4,
                idle: Idle::Sleep,
                counters: Arc::clone(&counters[at]),
                clock: StampSource::Kernel,
                control: Arc::clone(&self.control),
                budget: self.budget.clone(),
                wq_fatal: Arc::<AtomicBool>::default(),
                orders: Arc::clone(&self.orders[at]),
                sampler: LoadSampler::new(Arc::clone(&hashing), load, SamplingRate::Never),
                replacements: replacements.take_if(|_| at == 1),
            })
        });
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let worker = PairedWorker {
            queues: queues.collect(),
            outlet: Sink {
                seen: Arc::clone(&seen),
                stop_after: self.stop_after,
                control: Arc::clone(&self.control),
            },
            control: Arc::clone(&self.control),
            budget: self.budget,
        };
        let ends = worker.run();
        let seen = std::mem::take(&mut *seen.lock().expect("the test's"));
        for (at, counters) in counters.iter().enumerate() {
            let of_queue = seen.iter().filter(|(queue, _)| *queue == at).count();
            assert_eq!(counters.ledger(0).received, of_queue as u64);
        }
        (seen, ends)
    }
}

fn with_steps(steps: Vec<ScriptStep>) -> FakeQueue {
    let queue = FakeQueue::default();
    queue.script().steps = steps.into();
    queue
}

fn stamped(stamps: impl IntoIterator<Item = u64>) -> Vec<ScriptStep> {
    stamps.into_iter().map(ScriptStep::Stamped).collect()
}

#[track_caller]
fn stopped(ends: &[LoopEnd]) {
    for (queue, _, ended) in ends {
        assert!(matches!(ended, Ended::Stopped), "{queue}: {ended:?}");
    }
    assert_eq!(ends.len(), 2);
}

/// Forty frames on one queue and ten on the other, in rings of sixteen slots and batches of four.
#[test]
fn frames_of_two_queues_are_passed_on_in_the_order_of_time() {
    let (fast, slow) = ((1..=50).filter(|it| it % 5 != 0), (5..=50).step_by(5));
    let bench = Bench::new([stamped(fast), stamped(slow)]);
    let (seen, ends) = bench.run();
    let expected: Vec<_> = (1..=50).map(|it| (usize::from(it % 5 == 0), it)).collect();
    assert_eq!(seen, expected);
    stopped(&ends);
}

/// The second queue has an earlier frame in a block that it passes on after some polls.
#[test]
fn a_frame_waits_for_the_block_of_another_queue() {
    let late = || std::iter::repeat_with(|| ScriptStep::Pause).take(40);
    let steps = || [stamped([2, 3]), late().chain(stamped([1])).collect()];
    let bench = Bench::new(steps());
    bench.queues[1].script().has_block = true;
    assert_eq!(bench.run().0, [(1, 1), (0, 2), (0, 3)]);
    // A queue whose memory is nearly used up does not wait.
    let bench = Bench::new(steps());
    bench.queues[1].script().has_block = true;
    bench.queues[0].script().is_short_of_memory = true;
    assert_eq!(bench.run().0, [(0, 2), (0, 3), (1, 1)]);
}

/// A frame that was stamped just now waits until the kernel has entered all earlier ones. One that is
/// stamped in the future does not wait: the clock was set back.
#[test]
fn a_recent_frame_waits_and_one_of_the_future_does_not() {
    let began = Instant::now();
    let bench = Bench::new([stamped([system_ns()]), Vec::new()]);
    let (seen, ends) = bench.run();
    assert!(seen.len() == 1 && began.elapsed() >= Duration::from_millis(2));
    stopped(&ends);
    let began = Instant::now();
    let hour = Duration::from_secs(3600);
    let future = system_ns() + hour.as_nanos() as u64;
    let (seen, _) = Bench::new([stamped([future]), Vec::new()]).run();
    assert!(seen == [(0, future)] && began.elapsed() < hour / 60);
}

#[test]
fn the_budget_is_shared_and_exact() {
    let mut bench = Bench::new([stamped(1..20), stamped(1..20)]);
    let budget = Arc::new(Budget::new(11));
    let owner = Wakeup::new().expect("a descriptor");
    bench.control = Arc::new(Control::new(&owner));
    (bench.budget, bench.stop_after) = (Some(Arc::clone(&budget)), 11);
    let (seen, ends) = bench.run();
    assert_eq!(seen.len(), 11);
    assert!(seen.is_sorted_by_key(|(_, ns)| *ns), "{seen:?}");
    assert!(budget.is_used_up());
    stopped(&ends);
}

/// The second queue leaves its ring. The first one continues, and the second one with another ring.
#[test]
fn a_lost_queue_does_not_stop_the_other_and_takes_another_ring() {
    let mut bench = Bench::new([stamped(1..30), stamped([5])]);
    bench.orders[1].leave_ring();
    let (to, replacements) = crossbeam_channel::unbounded();
    bench.replacements = Some(replacements);
    bench.stop_after = 32;
    let next = with_steps(stamped([40, 41]));
    let sent = to.send(Replacement {
        ring: next.ring(SLOTS),
        clock: StampSource::Kernel,
        wq_fatal: Arc::default(),
    });
    assert!(sent.is_ok());
    let (seen, ends) = bench.run();
    let mut stamps: Vec<_> = seen.iter().map(|(_, ns)| *ns).collect();
    stamps.sort_unstable();
    let expected = (1..30).chain([5, 40, 41]);
    let mut expected: Vec<_> = expected.collect();
    expected.sort_unstable();
    assert_eq!(stamps, expected);
    stopped(&ends);

    // Without another ring, only this queue ends.
    let bench = Bench::new([stamped(1..30), stamped([5])]);
    bench.orders[1].leave_ring();
    let (seen, ends) = bench.run();
    assert_eq!(seen.len(), 30);
    assert!(matches!(ends[0].2, Ended::Stopped), "{:?}", ends[0].2);
    assert!(matches!(ends[1].2, Ended::PortLost), "{:?}", ends[1].2);
}
