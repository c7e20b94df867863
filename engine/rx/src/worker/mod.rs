//! Receive loop of one queue: polls the ring, passes the frames to the outlet, reposts returned slots,
//! and publishes the counters.
//!
//! Work done once per batch, not per frame: the check of the stop flag, the update of the clock
//! conversion, the list of reposted WRs, the stores to the counters. While frames flow, the loop does
//! not allocate, lock or log.

use super::{
    Batch, DeviceQueue, Filled, LoadSampler, LoopRequests, Queue, Recovered, Ring, Slot, SlotMemory,
};
use crate::{
    clock::{Conversion, SharedConversion},
    error::{LoopError, RingError, StrideMismatch, WqErrorCause},
    ring::Wake,
};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use first_frames::FirstFrames;
use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use wqcap_core::{
    notes::RunNotes,
    settings,
    stats::{Budget, QueueCounters, ReceivedCounts},
    sync::wakeup::{Alarm, Wakeup},
    text::iso_8601,
    time::{coarse_ns, system_ns},
};
use wqcap_verbs::WqHandle;

mod first_frames;
mod paired;

pub use paired::{Hold, LoopEnd, MergedBatch, MergedOutlet, MergedRun, PairedQueue, PairedWorker};

/// Outlet of a receive loop: passes the received frames on to the queue's pipeline.
pub trait Outlet {
    /// Returns the number of received frames that the outlet accepts now. The receive loop polls at
    /// most this many.
    #[inline]
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Accepts received frames in the order of reception. Frames left in `frames` are finished: the
    /// receive loop reposts their slots at once.
    fn take(
        &mut self,
        frames: &mut Vec<Filled>,
        memory: &SlotMemory,
        stamper: &mut Stamper,
    ) -> Taken;

    /// Appends the receive slots that the pipeline returned since the last call.
    #[inline]
    fn collect(&mut self, _home: &mut Vec<Slot>) {}

    /// Waits until the outlet accepts frames again, for at most `_timeout`.
    fn wait(&mut self, _timeout: Duration) {}

    /// Called by the receive loop each time its queue has been empty for 200 ms.
    fn idle(&mut self) {}

    /// Returns the reason why the outlet cannot accept frames any more, if it failed.
    #[inline]
    fn broken(&self) -> Option<&str> {
        None
    }

    /// Ends the outlet after the last frame: waits until the pipeline has returned every slot, and
    /// appends these slots.
    ///
    /// # Errors
    /// Some slots cannot be returned.
    fn finish(&mut self, _home: &mut Vec<Slot>) -> Result<(), SlotsLost> {
        Ok(())
    }
}

/// Numbers of frames that an outlet took from a receive batch, by their outcome.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Number of frames that the outlet counted as captured.
    pub captured: u64,
    /// Number of frames that the pipeline still processes. The outlet settles the frame budget for
    /// them later.
    pub away: usize,
    /// Number of frames dropped because the outlet had no room, counted as `dropped_pipeline`.
    pub refused: u64,
}

/// Receive slots that a pipeline cannot return at its end. The frame in each slot is not yet
/// counted.
#[derive(Clone, Debug)]
pub struct SlotsLost {
    /// Number of lost receive slots, and so of frames.
    pub frames: u64,
    /// Reason for which the pipeline lost the receive slots.
    pub why: String,
}

/// Behaviour of a receive loop or another thread while its queue or channel is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Busy polling of the empty queue: lowest latency, uses a whole core.
    Spin,
    /// Polling of the empty queue with `sched_yield` after each poll, so that other threads of the
    /// core can run.
    Yield,
    /// Sleeping on the completion channel while the queue is empty.
    Sleep,
}

impl Idle {
    /// Returns the configured idle behaviour, with `Spin` replaced by `Yield` if other receive
    /// loops share the core.
    #[must_use]
    pub fn resolve(configured: settings::Idle, shared_core: bool) -> Self {
        match (configured, shared_core) {
            (settings::Idle::Sleep, _) => Self::Sleep,
            (settings::Idle::Spin, true) => Self::Yield,
            (settings::Idle::Spin, false) => Self::Spin,
        }
    }
}

/// Reason for the end of a receive loop.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended {
    /// The loop's stop flag was set, and the receive ring is drained.
    Stopped,
    /// The queue's port is lost, and the receive ring is drained.
    PortLost,
    /// The receive queue failed.
    Failed(LoopError),
}

/// Receive ring for a port whose device was lost and is back; it replaces the lost ring. With the
/// state that belongs to the ring.
pub struct Replacement<Q> {
    /// Receive ring that the loop polls from now on.
    pub ring: Ring<Q>,
    /// Source of the frames' times of reception.
    pub clock: StampSource,
    /// Set by another thread when the device reports the new WQ in error.
    pub wq_fatal: Arc<AtomicBool>,
}

/// State shared by the receive loops and the thread that owns the capture.
#[derive(Default)]
pub struct Control {
    /// Set to make the receive loops drain their rings and end.
    pub stop: AtomicBool,
    /// Wakeup of sleeping receive loops after `stop` is set. It stays pending, for all loops.
    stopping: Wakeup,
    /// Alarm raised by a receive loop that failed.
    pub failed: Alarm,
    /// Numbers of the queues whose loops failed since the alarm was last cleared.
    pub failures: Mutex<Vec<u16>>,
    /// Wakeup of the capture's owner, the thread that ends the run when the frame budget is used
    /// up.
    pub(crate) owner: Wakeup,
    /// Notes on gaps and WQ recoveries for the run's report and files. Written only on such events.
    pub notes: Mutex<RunNotes>,
    /// New WQs of queues that fell back from a striding WQ, with the queue's number. The capture's
    /// owner puts them into the indirection tables.
    pub replaced: Mutex<Vec<(u16, WqHandle)>>,
}

impl Control {
    /// Creates the state shared by the receive loops. The capture's owner `owner` is woken when a
    /// loop fails or the frame budget is used up.
    pub fn new(owner: &Wakeup) -> Self {
        Self {
            failed: Alarm::new(owner),
            owner: owner.clone(),
            // Without a descriptor, a loop notices the flag after its sleep.
            stopping: Wakeup::new().unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Makes the receive loops drain their rings and end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.stopping.wake();
    }

    /// Records the failure of a queue's receive loop and raises the alarm.
    fn report_failure(&self, queue: u16) {
        if let Ok(mut failures) = self.failures.lock() {
            failures.push(queue);
        }
        self.failed.raise();
    }
}

/// Number of empty polls before a receive loop with [`Idle::Sleep`] sleeps. They take as long as a
/// wakeup, a few microseconds.
const POLLS_BEFORE_SLEEP: u32 = 64;
/// Number of empty polls of a receive loop between two readings of the clock.
const EMPTY_POLLS: u32 = 1024;
/// Number of empty polls with a yield after which a loop reads the clock. On a core with other busy
/// threads, each yield may take as long as their time slices.
const YIELDS_PER_CLOCK: u32 = 16;
/// Time that a receive queue is empty before [`Outlet::idle`] is called.
const IDLE_AFTER: Duration = Duration::from_millis(200);
/// Longest delay of a WQ's error event after the loop has recovered the WQ.
const LATE: Duration = Duration::from_secs(1);
/// Longest sleep of a receive loop that has had frames a moment ago: its consumers still return slots,
/// which it reposts.
const SLEEP: Duration = Duration::from_millis(100);
/// Number of successive sleeps of [`SLEEP`] before a receive loop sleeps longer.
const SHORT_SLEEPS: u32 = 4;
/// Longest sleep of a receive loop without frames, so that it checks its requests. A wake-up costs as
/// much as the reception of hundreds of frames.
const LONG_SLEEP: Duration = IDLE_AFTER;

/// Returns the longest sleep of a receive loop after `sleeps` successive sleeps without frames, and what
/// ends it. A long sleep ends with the first frame, which may be the only one for a long time.
const fn sleep_after(sleeps: u32) -> (Duration, Wake) {
    if sleeps < SHORT_SLEEPS {
        (SLEEP, Wake::AtMany)
    } else {
        (LONG_SLEEP, Wake::AtFirst)
    }
}

/// Receive loop of one queue, ready to run on its thread.
pub struct Worker<O, Q = DeviceQueue> {
    /// Number of the receive queue.
    pub queue: u16,
    /// Receive ring that the loop polls.
    pub ring: Ring<Q>,
    /// Outlet that takes the received frames.
    pub outlet: O,
    /// Maximum number of completions that one poll of the receive ring takes.
    pub batch: usize,
    /// Behaviour of the loop while its receive queue is empty.
    pub idle: Idle,
    /// Counters of the receive queue, which the loop publishes.
    pub counters: Arc<QueueCounters>,
    /// Source of the frames' times of reception.
    pub clock: StampSource,
    /// State that the receive loops share with the capture's owner.
    pub control: Arc<Control>,
    /// Number of frames that may still be captured; `None`: no limit.
    pub budget: Option<Arc<Budget>>,
    /// Set by another thread when the device reports this WQ in error.
    pub wq_fatal: Arc<AtomicBool>,
    /// Requests to the receive loop to change its WQ.
    pub orders: Arc<LoopRequests>,
    /// Sampler that counts the receive queue's load by indirection table entry.
    pub sampler: LoadSampler,
    /// Rings that replace that of a lost port; `None`: the loop ends with its ring.
    pub replacements: Option<Receiver<Replacement<Q>>>,
}

/// Source of the times of reception of a queue's frames.
#[derive(Clone, Debug)]
pub enum StampSource {
    /// Device time stamps, converted to nanoseconds since 1970.
    Device(Arc<SharedConversion>),
    /// Time stamps in nanoseconds since 1970, which the kernel gave each frame.
    Kernel,
    /// One reading of the system clock per batch, for all of its frames.
    Batch,
}

/// Converter of device time stamps to times of reception that never run backward.
#[derive(Debug)]
pub struct Stamper {
    stamp: Stamp,
    last_ns: u64,
    /// All bits set if a time of reception is never less than the one before; 0 for stamps of the
    /// kernel.
    ordered: u64,
}

/// Source of the reception times of one batch of frames.
#[derive(Clone, Copy, Debug)]
enum Stamp {
    /// Device time stamps, converted to nanoseconds since 1970.
    Device {
        line: Conversion,
        /// Upper bound of the batch's reception times in nanoseconds since 1970.
        latest: u64,
    },
    /// System time of the whole batch in nanoseconds since 1970.
    System(u64),
}

impl Stamper {
    fn new() -> Self {
        Self {
            stamp: Stamp::System(0),
            last_ns: 0,
            ordered: u64::MAX,
        }
    }

    /// Loads the current conversion of device stamps, or the system time. Called once per receive
    /// batch.
    #[inline]
    fn update(&mut self, clock: &StampSource) {
        self.stamp = match clock {
            StampSource::Device(clock) => {
                let line = clock.load();
                let latest = line.latest(coarse_ns());
                Stamp::Device { line, latest }
            }
            StampSource::Kernel => {
                // The kernel stamps frames on several cores: later frames may have earlier stamps.
                self.ordered = 0;
                Stamp::Device {
                    line: Conversion::identity(system_ns()),
                    latest: u64::MAX,
                }
            }
            StampSource::Batch => Stamp::System(system_ns()),
        };
    }

    /// Returns a frame's time of reception in nanoseconds since 1970. Call it in the order of the
    /// frames: except for stamps of the kernel, which are unchanged, the result is never less than
    /// that of an earlier call.
    #[inline]
    pub fn ns(&mut self, filled: &Filled) -> u64 {
        let ns = match &self.stamp {
            Stamp::Device { line, latest } => line.ns(filled.stamp()).min(*latest),
            Stamp::System(ns) => *ns,
        };
        // Without a branch: this is done for each frame.
        self.last_ns = ns.max(self.last_ns & self.ordered);
        self.last_ns
    }
}

/// State of a running receive loop.
struct LoopState {
    /// Counts of received frames, published once per receive batch.
    received: ReceivedCounts,
    stamper: Stamper,
    /// WQ recoveries made before the device's error event was read.
    ahead: EarlyRecoveries,
    /// Set once the capture's owner was woken because the frame budget is used up.
    budget_reported: bool,
    first_frames: FirstFrames,
}

/// Result of one turn of a receive loop, which polls its queue once.
enum Turn {
    /// The receive queue had completions.
    Found,
    /// The receive queue was empty.
    Empty,
    /// The outlet had no room for frames.
    Full,
    /// The receive loop ends, or leaves its ring.
    Ended(Ended),
}

impl<O: Outlet, Q: Queue> Worker<O, Q> {
    /// Runs the receive loop until the stop flag is set, then until the ring is drained and every
    /// slot is back. Returns the ring, so that its owner decides when to destroy it. The outlet is
    /// dropped.
    pub fn run(mut self) -> (Ring<Q>, Ended) {
        let mut state = self.state();
        let mut batch = Batch::new(self.batch);
        let mut ended = self.receive(&mut batch, &mut state);
        while let Some(next) = self.wait_for_replacement(&batch, &state, &ended) {
            self.take_over(next, &mut batch);
            ended = self.receive(&mut batch, &mut state);
        }
        let ended = self.end(batch, &mut state, ended);
        (self.ring, ended)
    }

    /// Returns the state of a receive loop that has received no frame.
    fn state(&self) -> LoopState {
        LoopState {
            received: ReceivedCounts::default(),
            stamper: Stamper::new(),
            ahead: EarlyRecoveries::default(),
            budget_reported: false,
            first_frames: FirstFrames::new(&self.clock, self.ring.memory()),
        }
    }

    /// Ends the outlet and checks that every slot is back. Returns the reason for the end of the loop,
    /// which received until `ended`.
    fn end(&mut self, mut batch: Batch, state: &mut LoopState, mut ended: Ended) -> Ended {
        if let Err(lost) = self.outlet.finish(&mut batch.home) {
            state.received.dropped_pipeline += lost.frames;
            ended = ended.or(LoopError::Outlet(lost.why));
        }
        self.counters.publish_received(&state.received);
        let (away, here) = (self.ring.away(), batch.slots());
        if away != here {
            ended = ended.or(LoopError::SlotsMissing {
                queue: self.queue,
                away,
                returned: here,
            });
        }
        if let Ended::Failed(_) = ended {
            self.control.report_failure(self.queue);
        }
        ended
    }

    /// Publishes the last counters of the receive ring before another ring replaces it. Returns
    /// `false` if none can replace it, so that the receive loop ends.
    fn leave_ring(&self, batch: &Batch, state: &LoopState, ended: &Ended) -> bool {
        if self.replacements.is_none()
            || matches!(ended, Ended::Stopped)
            || self.ring.away() != batch.slots()
        {
            return false;
        }
        if let Ended::Failed(_) = ended {
            // The capture's owner ends the run, unless the port is lost.
            self.control.report_failure(self.queue);
        }
        self.counters.publish_received(&state.received);
        self.counters.publish_posted(0);
        true
    }

    /// Waits for the ring that replaces the one that the receive loop has left. Returns `None` if the
    /// loop ends instead.
    fn wait_for_replacement(
        &mut self,
        batch: &Batch,
        state: &LoopState,
        ended: &Ended,
    ) -> Option<Replacement<Q>> {
        if !self.leave_ring(batch, state, ended) {
            return None;
        }
        let replacements = self.replacements.as_ref()?;
        loop {
            let since = Instant::now();
            self.outlet.idle();
            self.counters.idle(since);
            match replacements.recv_timeout(SLEEP) {
                _ if self.control.stop.load(Ordering::Acquire) => return None,
                Ok(next) => return Some(next),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Continues with another ring, and empties the batch.
    fn take_over(&mut self, next: Replacement<Q>, batch: &mut Batch) {
        // A request that came while the loop had left its ring is about that ring.
        self.orders.take_leave();
        *batch = Batch::new(self.batch);
        (self.ring, self.clock, self.wq_fatal) = (next.ring, next.clock, next.wq_fatal);
    }

    /// Polls the ring, passes frames to the outlet and reposts slots until the receive loop is
    /// stopped or fails.
    fn receive(&mut self, batch: &mut Batch, state: &mut LoopState) -> Ended {
        let mut quiet = IdleMeter::new();
        self.counters.publish_posted(self.ring.outstanding());
        loop {
            match self.turn(batch, state) {
                Turn::Found => quiet.reset(),
                Turn::Empty => self.pause(&mut quiet),
                Turn::Full => {}
                Turn::Ended(ended) => return ended,
            }
        }
    }

    /// Polls the ring once, passes its frames to the outlet and reposts slots.
    #[inline(always)]
    fn turn(&mut self, batch: &mut Batch, state: &mut LoopState) -> Turn {
        // Read before the poll: the flow rules are removed before this flag is set, so that a ring that is empty
        // now stays empty.
        let stopping = self.control.stop.load(Ordering::Acquire);
        self.outlet.collect(&mut batch.home);
        if self.orders.are_pending() {
            let ring = &mut self.ring;
            self.orders
                .carry_out(|on| Ok(ring.set_cvlan_stripping(on)?));
        }
        let room = self.outlet.room();
        let polled = if room > 0 {
            self.poll(batch, state, room)
        } else {
            self.outlet.wait(SLEEP);
            Ok(false)
        };
        // Frames that the outlet keeps are no longer in the batch.
        let found = match polled {
            Ok(found) => found,
            Err(RingError::Unfit(mismatch)) => match self.fall_back(mismatch) {
                Ok(()) => true,
                Err(why) => return Turn::Ended(Ended::Failed(why)),
            },
            Err(source) => return Turn::Ended(Ended::Failed(self.ring_error(source))),
        };
        if let Some(why) = self.outlet.broken() {
            return Turn::Ended(Ended::Failed(LoopError::Outlet(why.to_owned())));
        }
        if let Err(why) = self.return_slots(batch, state) {
            return Turn::Ended(Ended::Failed(why));
        }
        if found {
            self.counters.publish_received(&state.received);
            self.counters.publish_posted(self.ring.outstanding());
            self.counters.beat();
            return Turn::Found;
        }
        if room == 0 {
            return Turn::Full;
        }
        if !state.budget_reported && self.budget.as_ref().is_some_and(|it| it.is_used_up()) {
            state.budget_reported = true;
            self.control.owner.wake();
        }
        // With the budget used up, frames stay on the ring, unreceived.
        if stopping {
            return Turn::Ended(Ended::Stopped);
        }
        if self.orders.take_leave() {
            return Turn::Ended(Ended::PortLost);
        }
        if self.wq_fatal.swap(false, Ordering::AcqRel)
            && !state.ahead.take_expected_event()
            && let Err(e) = self.recover(state, WqErrorCause::Event)
        {
            return Turn::Ended(Ended::Failed(e));
        }
        Turn::Empty
    }

    /// Polls the receive ring and passes the frames to the outlet. Returns `false` if nothing had
    /// completed.
    #[inline]
    fn poll(
        &mut self,
        batch: &mut Batch,
        state: &mut LoopState,
        room: usize,
    ) -> Result<bool, RingError> {
        let limit = batch.size().min(room);
        let grant = self
            .budget
            .as_ref()
            .map_or(usize::MAX, |budget| budget.claim(limit));
        let polled = self.ring.poll(batch, limit.min(grant));
        let found = !batch.is_empty();
        if found {
            self.sampler.sample(batch, self.ring.memory());
        }
        let mut checked = Ok(());
        let taken = if batch.frames.is_empty() {
            Taken::default()
        } else {
            if state.first_frames.are_pending() {
                checked = self.check_first_frames(batch, state);
            }
            state.stamper.update(&self.clock);
            state.received.frames += batch.frames.len() as u64;
            self.outlet
                .take(&mut batch.frames, self.ring.memory(), &mut state.stamper)
        };
        let failed = batch.failed.len() as u64;
        state.received.frames += failed;
        state.received.errors += failed;
        state.received.dropped_pipeline += taken.refused;
        if let Some(budget) = &self.budget {
            budget.settle(grant - taken.away, taken.captured);
        }
        polled.and(checked).map(|()| found)
    }

    /// Checks received frames against what the NIC was asked for. Adds a note if it stamps in UTC
    /// instead of ticks.
    #[cold]
    fn check_first_frames(&self, batch: &Batch, state: &mut LoopState) -> Result<(), RingError> {
        let memory = self.ring.memory();
        let first = &mut state.first_frames;
        let (in_utc, checked) = first.check(&batch.frames, memory, &self.clock);
        if in_utc {
            self.note(format!(
                "queue {}: the NIC stamps frames in UTC, although ticks of its counter were requested (rq_ts_format is \
                 real time only): time stamps are the NIC's UTC, not adjusted to the system clock",
                self.queue
            ));
        }
        checked
    }

    /// Replaces a queue's striding WQ, whose completions do not have the expected layout, by a WQ
    /// with a WQE per frame. Frames that were received before are counted as usual.
    #[cold]
    fn fall_back(&mut self, mismatch: StrideMismatch) -> Result<(), LoopError> {
        let queue = self.queue;
        let from = iso_8601(system_ns(), 9);
        let handle = self
            .ring
            .fall_back()
            .map_err(|source| LoopError::FallBack {
                queue,
                mismatch,
                source,
            })?;
        self.note(format!(
            "queue {queue}: the receive loop cannot use the completions of a striding WQ ({mismatch}); the queue receives with a WQE \
             per frame, as with capture.receive = \"frame\", and frames from {from} until the flow rules lead to its new \
             WQ may be missing; please report this with the output of wqcap selftest"
        ));
        if let Ok(mut replaced) = self.control.replaced.lock() {
            replaced.push((queue, handle));
        }
        self.control.owner.wake();
        Ok(())
    }

    /// Logs a note and adds it to the capture's report.
    #[cold]
    fn note(&self, note: String) {
        tracing::warn!("{note}");
        if let Ok(mut notes) = self.control.notes.lock() {
            notes.push(&note);
        }
    }

    #[cold]
    fn ring_error(&self, source: RingError) -> LoopError {
        let queue = self.queue;
        LoopError::Ring { queue, source }
    }

    /// Reposts the slots of a receive batch. If the batch shows that the WQ is in error, recovers
    /// the WQ first.
    #[inline]
    fn return_slots(&mut self, batch: &mut Batch, state: &mut LoopState) -> Result<(), LoopError> {
        let broken = batch
            .failed
            .iter()
            .find(|f| f.stops_the_queue())
            .map(|f| f.status);
        if broken.is_some() || !batch.flushed.is_empty() {
            let cause = broken.map_or(WqErrorCause::Flushed, WqErrorCause::Completion);
            self.recover(state, cause)?;
            if !self.wq_fatal.swap(false, Ordering::AcqRel) {
                state.ahead.recovered();
            }
        }
        if batch.slots() == 0 {
            return Ok(());
        }
        self.ring
            .repost(batch)
            .map_err(|source| self.ring_error(source))
    }

    /// Recovers a WQ in error and adds a note on the gap in the capture.
    #[cold]
    fn recover(&mut self, state: &mut LoopState, cause: WqErrorCause) -> Result<(), LoopError> {
        let from = system_ns();
        state.stamper.update(&self.clock);
        let (outlet, received, stamper) =
            (&mut self.outlet, &mut state.received, &mut state.stamper);
        let budget = self.budget.as_deref();
        let Recovered { errors, unflushed } = self
            .ring
            .recover(|frames, memory| {
                let grant = budget.map_or(usize::MAX, |budget| budget.claim(frames.len()));
                // Frames beyond the budget are treated as if they were still on the ring.
                let mut beyond = frames.split_off(grant.min(frames.len()));
                received.frames += frames.len() as u64;
                let taken = outlet.take(frames, memory, stamper);
                received.dropped_pipeline += taken.refused;
                if let Some(budget) = budget {
                    budget.settle(grant - taken.away, taken.captured);
                }
                frames.append(&mut beyond);
            })
            .map_err(|source| LoopError::Recovery {
                queue: self.queue,
                cause,
                source,
            })?;
        received.frames += errors;
        received.errors += errors;
        self.counters.add_recovery();
        let mut note = format!(
            "queue {}: the WQ went into error ({cause}) and was recovered; frames between {} and {} may be missing",
            self.queue,
            iso_8601(from, 9),
            iso_8601(system_ns(), 9)
        );
        if unflushed > 0 {
            note += "; ";
            note += &format!(
                "{unflushed} WRs of the WQ were not flushed within a second and were taken back after a reset"
            );
        }
        self.note(note);
        Ok(())
    }

    /// Spins, yields or sleeps after an empty poll of the receive ring.
    #[inline]
    fn pause(&mut self, quiet: &mut IdleMeter) {
        if self.ring.outstanding() == 0 {
            // Nothing can complete before a slot is reposted.
            return self.outlet.wait(SLEEP);
        }
        match self.idle {
            Idle::Spin => std::hint::spin_loop(),
            Idle::Yield => {
                std::thread::yield_now();
                quiet.unclocked += EMPTY_POLLS / YIELDS_PER_CLOCK - 1;
            }
            Idle::Sleep if quiet.polls >= POLLS_BEFORE_SLEEP => return self.sleep(quiet),
            Idle::Sleep => std::hint::spin_loop(),
        }
        if let Some(since) = quiet.idle_since() {
            self.outlet.idle();
            self.counters.idle(since);
        }
    }

    /// Lets the receive loop sleep on the completion channel until a completion arrives, for at
    /// most [`LONG_SLEEP`].
    fn sleep(&mut self, quiet: &mut IdleMeter) {
        let (longest, wake) = sleep_after(quiet.polls.saturating_sub(POLLS_BEFORE_SLEEP));
        if self.ring.event_fd().is_none() || self.ring.arm(wake).is_err() {
            return std::thread::yield_now();
        }
        let fd = self.ring.event_fd();
        if fd.is_some_and(|fd| self.control.stopping.wait_readable(fd, longest)) {
            self.ring.take_event();
            quiet.polls = 0;
        } else {
            quiet.unclocked = EMPTY_POLLS;
            if let Some(since) = quiet.idle_since() {
                self.outlet.idle();
                self.counters.idle(since);
            }
        }
    }
}

impl Ended {
    /// Returns the loop's first failure: `self` if it is one, else `Failed(why)`.
    fn or(self, why: LoopError) -> Self {
        match self {
            Self::Stopped | Self::PortLost => Self::Failed(why),
            failed @ Self::Failed(_) => failed,
        }
    }
}

/// WQ recoveries whose error event has not been read yet. Completions can show a WQ in error before
/// its event is read. The late event must not trigger a second recovery of the WQ, which is ready
/// again: a recovery loses the frames that arrive during it.
#[derive(Default)]
struct EarlyRecoveries {
    /// Number of expected error events of WQs that are already recovered.
    events: u32,
    /// Time of the last recovery of the WQ; `None`: it was not recovered.
    since: Option<Instant>,
}

impl EarlyRecoveries {
    /// Records a WQ recovery whose error event has not been read.
    #[cold]
    fn recovered(&mut self) {
        self.events = self.events.saturating_add(1);
        self.since = Some(Instant::now());
    }

    /// Returns `true` if an error event belongs to a WQ that is already recovered, and consumes
    /// that expectation. Each recovery accounts for one event within [`LATE`]: not every device
    /// raises the event.
    #[cold]
    fn take_expected_event(&mut self) -> bool {
        if self.since.is_none_or(|since| since.elapsed() >= LATE) {
            self.events = 0;
        }
        let expected = self.events > 0;
        self.events = self.events.saturating_sub(1);
        expected
    }
}

/// Meter of the time that a receive queue has been empty. It reads the clock once every
/// [`EMPTY_POLLS`] polls.
struct IdleMeter {
    /// Number of consecutive empty polls of the receive queue.
    polls: u32,
    /// Number of empty polls since the meter last read the clock.
    unclocked: u32,
    since: Option<Instant>,
}

impl IdleMeter {
    fn new() -> Self {
        Self {
            polls: 0,
            unclocked: 0,
            since: None,
        }
    }

    #[inline]
    fn reset(&mut self) {
        *self = Self::new();
    }

    /// Counts an empty poll of the receive queue. Each time the queue has been empty for
    /// [`IDLE_AFTER`], returns the start of that interval once.
    #[inline]
    fn idle_since(&mut self) -> Option<Instant> {
        self.polls = self.polls.saturating_add(1);
        self.unclocked += 1;
        if self.unclocked < EMPTY_POLLS {
            return None;
        }
        self.unclocked = 0;
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < IDLE_AFTER {
            return None;
        }
        self.since = Some(now);
        Some(since)
    }
}

/// Pins the calling thread to core `core`, or logs a warning that names the thread as `who`.
pub fn pin(core: usize, who: fmt::Arguments<'_>) {
    if !core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
        tracing::warn!(
            "{who} cannot be pinned to core {core}; the kernel's scheduler chooses its core"
        );
    }
}

#[cfg(test)]
mod tests;
