//! The loop of one queue: poll, hand the frames on, repost what came back, publish the counters.
//!
//! Per batch, not per frame: one check of the stop flag, one conversion of the clock, one list of reposted WRs, one
//! round of counter stores. Nothing here allocates, locks or logs while frames flow.

use super::{
    Batch, DeviceQueue, Filled, Orders, Queue, Recovered, Ring, Sampler, Slot, SlotMemory,
};
use crate::clock::{Conversion, SharedConversion};
use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use wqcap_core::{
    settings,
    stats::{Budget, QueueCounters, Received},
    sync::wakeup::{Alarm, Wakeup, wait_readable},
    text::iso_8601,
    time::{coarse_ns, system_ns},
};

/// Where a loop's frames go: its side of a pipeline.
pub trait Outlet {
    /// How many frames it takes now; the loop polls no more.
    #[inline]
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Takes frames in their order. The slots of those that it leaves go straight back on the ring.
    fn take(
        &mut self,
        frames: &mut Vec<Filled>,
        memory: &SlotMemory,
        stamper: &mut Stamper,
    ) -> Taken;

    /// Adds slots that came back since.
    #[inline]
    fn collect(&mut self, _home: &mut Vec<Slot>) {}

    /// Waits for room, no longer than so long.
    fn wait(&mut self, _timeout: Duration) {}

    /// The queue has been empty for a moment.
    fn idle(&mut self) {}

    /// Why it takes no more, if it broke.
    #[inline]
    fn broken(&self) -> Option<&str> {
        None
    }

    /// No more frames will come: waits for every slot it has.
    ///
    /// # Errors
    /// Slots will not come back.
    fn finish(&mut self, _home: &mut Vec<Slot>) -> Result<(), Lost> {
        Ok(())
    }
}

/// What an outlet did with a batch's frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// They ended as captured.
    pub captured: u64,
    /// Their end is yet to come; the outlet settles the budget for them.
    pub away: usize,
    /// It had no room for them: `dropped_pipeline`.
    pub refused: u64,
}

/// Slots that do not come back, each with a frame that nobody has counted.
#[derive(Clone, Debug)]
pub struct Lost {
    /// How many.
    pub frames: u64,
    /// Why.
    pub why: String,
}

/// What a thread does while its queue or its channel is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Poll on: the least delay, a whole core.
    Spin,
    /// Poll on, but let others run on this core in between.
    Yield,
    /// Sleep on the channel.
    Sleep,
}

impl Idle {
    /// As configured; where others have the same core, nobody spins.
    #[must_use]
    pub fn of(configured: settings::Idle, shared_core: bool) -> Self {
        match (configured, shared_core) {
            (settings::Idle::Sleep, _) => Self::Sleep,
            (settings::Idle::Spin, true) => Self::Yield,
            (settings::Idle::Spin, false) => Self::Spin,
        }
    }
}

/// Why a loop ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to, and its ring is drained.
    Stopped,
    /// The queue cannot go on; the text says why.
    Failed(String),
}

/// What the owner of the loops shares with all of them.
#[derive(Debug, Default)]
pub struct Control {
    /// Drain and end.
    pub stop: AtomicBool,
    /// A loop has ended by itself.
    pub failed: Alarm,
    /// Who ends the run once its budget is used up.
    pub(crate) owner: Wakeup,
    /// What a reader of the files should know: gaps, recoveries. Written in exceptional moments alone.
    pub notes: Mutex<Vec<String>>,
}

impl Control {
    /// Of loops whose end, and that of their budget, `owner` is to hear of.
    pub fn of(owner: &Wakeup) -> Self {
        Self {
            failed: Alarm::of(owner),
            owner: owner.clone(),
            ..Self::default()
        }
    }
}

/// Polls without a frame before a sleeper goes to sleep: as long as it takes to wake up, a few microseconds.
const POLLS_BEFORE_SLEEP: u32 = 64;
/// Polls without a frame between two readings of the clock.
const EMPTY_POLLS: u32 = 1024;
/// How long a queue is empty before the outlet's `idle` is called.
const IDLE_AFTER: Duration = Duration::from_millis(200);
/// How much later than its flushed WRs the event of a WQ in error may be read.
const LATE: Duration = Duration::from_secs(1);
/// How long a sleeper sleeps at most: it must see the stop flag.
const SLEEP: Duration = Duration::from_millis(50);

/// A queue's loop, ready to run on its thread.
pub struct Worker<O, Q = DeviceQueue> {
    /// Queue number.
    pub queue: u16,
    /// The ring.
    pub ring: Ring<Q>,
    /// Where frames go.
    pub outlet: O,
    /// Completions a poll takes at most.
    pub batch: usize,
    /// Behaviour of an empty queue.
    pub idle: Idle,
    /// Published counters.
    pub counters: Arc<QueueCounters>,
    /// From the device's stamps to nanoseconds; `None`: stamps are the system clock's, one a batch.
    pub clock: Option<Arc<SharedConversion>>,
    /// Shared with all loops.
    pub control: Arc<Control>,
    /// How many frames may still be captured; `None`: any number.
    pub budget: Option<Arc<Budget>>,
    /// Set from outside when the device reports this WQ in error.
    pub wq_fatal: Arc<AtomicBool>,
    /// Requests to change the WQ while it receives.
    pub orders: Arc<Orders>,
    /// Counts which entries of the indirection table the load comes by.
    pub sampler: Sampler,
}

/// Gives frames their time.
#[derive(Debug)]
pub struct Stamper {
    stamp: Stamp,
    last_ns: u64,
}

/// A batch's way from stamps to time.
#[derive(Clone, Copy, Debug)]
enum Stamp {
    Device {
        line: Conversion,
        /// Nothing in the batch was received later.
        latest: u64,
    },
    System(u64),
}

impl Stamper {
    fn new() -> Self {
        Self {
            stamp: Stamp::System(0),
            last_ns: 0,
        }
    }

    /// Once a batch: the conversion that holds, or the system's time.
    #[inline]
    fn update(&mut self, clock: Option<&SharedConversion>) {
        self.stamp = match clock {
            Some(clock) => {
                let line = clock.load();
                let latest = line.latest(coarse_ns());
                Stamp::Device { line, latest }
            }
            None => Stamp::System(system_ns()),
        };
    }

    /// When the frame was received, in nanoseconds since 1970; to be asked in the frames' order, since it never runs
    /// backward.
    #[inline]
    pub fn ns(&mut self, filled: &Filled) -> u64 {
        let ns = match &self.stamp {
            Stamp::Device { line, latest } => line.ns(filled.stamp()).min(*latest),
            Stamp::System(ns) => *ns,
        };
        self.last_ns = ns.max(self.last_ns);
        self.last_ns
    }
}

/// What a loop keeps while it runs.
struct State {
    /// Published once a batch.
    received: Received,
    stamper: Stamper,
    ahead: Ahead,
    /// The owner knows that nothing more may be captured.
    told: bool,
}

impl<O: Outlet, Q: Queue> Worker<O, Q> {
    /// Runs until stopped, then until the ring is drained and every slot is back. Gives back the ring, so that its
    /// owner chooses when objects are destroyed; the outlet goes here.
    pub fn run(mut self) -> (Ring<Q>, Ended) {
        let mut state = State {
            received: Received::default(),
            stamper: Stamper::new(),
            ahead: Ahead::default(),
            told: false,
        };
        let mut batch = Batch::new(self.batch);
        let mut ended = self.turns(&mut batch, &mut state);
        if let Err(lost) = self.outlet.finish(&mut batch.home) {
            state.received.dropped_pipeline += lost.frames;
            ended = ended.or(lost.why);
        }
        self.counters.publish_received(&state.received);
        let (away, here) = (self.ring.away(), batch.slots());
        if away != here {
            ended = ended.or(format!(
                "queue {}: {here} of the {away} slots that its ring lacks are left at the end; this is a fault in wqcap: \
                 please report it",
                self.queue,
            ));
        }
        if ended != Ended::Stopped {
            self.control.failed.raise();
        }
        (self.ring, ended)
    }

    /// The loop itself.
    fn turns(&mut self, batch: &mut Batch, state: &mut State) -> Ended {
        let mut quiet = Quiet::new();
        self.counters.posted(self.ring.outstanding());
        loop {
            // Read before the poll: when it is set, rules are gone, so an empty ring stays empty.
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
            // Frames that the outlet has taken along are no longer in the batch.
            let found = match polled {
                Ok(found) => found,
                Err(why) => return Ended::Failed(why),
            };
            if let Some(why) = self.outlet.broken() {
                return Ended::Failed(why.to_owned());
            }
            if let Err(why) = self.turn(batch, state) {
                return Ended::Failed(why);
            }
            if found {
                quiet.reset();
                self.counters.publish_received(&state.received);
                self.counters.posted(self.ring.outstanding());
                self.counters.beat();
            } else if room > 0 {
                if !state.told && self.budget.as_ref().is_some_and(|it| it.is_used_up()) {
                    state.told = true;
                    self.control.owner.wake();
                }
                // With nothing left to claim, frames stay on the ring, unreceived.
                if stopping {
                    return Ended::Stopped;
                }
                if self.wq_fatal.swap(false, Ordering::AcqRel)
                    && !state.ahead.expected_it()
                    && let Err(e) = self.recover(state, "the device reported it in error")
                {
                    return Ended::Failed(e);
                }
                self.rest(&mut quiet);
            }
        }
    }

    /// Takes what there is and hands it on; false: there was nothing.
    #[inline]
    fn poll(&mut self, batch: &mut Batch, state: &mut State, room: usize) -> Result<bool, String> {
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
        let taken = if batch.frames.is_empty() {
            Taken::default()
        } else {
            state.stamper.update(self.clock.as_deref());
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
        polled
            .map(|()| found)
            .map_err(|e| format!("queue {}: {e}", self.queue))
    }

    /// Puts a batch's slots back, after bringing the WQ back if the batch showed that it is in error.
    #[inline]
    fn turn(&mut self, batch: &mut Batch, state: &mut State) -> Result<(), String> {
        let broken = batch
            .failed
            .iter()
            .find(|f| f.stops_the_queue())
            .map(|f| f.status);
        if broken.is_some() || !batch.flushed.is_empty() {
            let why = broken.map_or_else(
                || "its WRs were flushed".to_owned(),
                |s| format!("a WR completed with status {s}"),
            );
            self.recover(state, &why)?;
            if !self.wq_fatal.swap(false, Ordering::AcqRel) {
                state.ahead.recovered();
            }
        }
        if batch.slots() == 0 {
            return Ok(());
        }
        self.ring
            .repost(batch)
            .map_err(|e| format!("queue {}: {e}", self.queue))
    }

    /// Brings the WQ back and notes the gap.
    #[cold]
    fn recover(&mut self, state: &mut State, why: &str) -> Result<(), String> {
        let from = system_ns();
        state.stamper.update(self.clock.as_deref());
        let (outlet, received, stamper) =
            (&mut self.outlet, &mut state.received, &mut state.stamper);
        let budget = self.budget.as_deref();
        let Recovered { errors, unflushed } = self
            .ring
            .recover(|frames, memory| {
                let grant = budget.map_or(usize::MAX, |budget| budget.claim(frames.len()));
                // Beyond what may be captured, a frame is as good as still on the ring.
                let mut beyond = frames.split_off(grant.min(frames.len()));
                received.frames += frames.len() as u64;
                let taken = outlet.take(frames, memory, stamper);
                received.dropped_pipeline += taken.refused;
                if let Some(budget) = budget {
                    budget.settle(grant - taken.away, taken.captured);
                }
                frames.append(&mut beyond);
            })
            .map_err(|e| {
                format!(
                    "queue {}: the WQ is in error ({why}) and cannot be recovered: {e}",
                    self.queue
                )
            })?;
        received.frames += errors;
        received.errors += errors;
        self.counters.recovered();
        let mut note = format!(
            "queue {}: the WQ went into error ({why}) and was recovered; frames between {} and {} may be missing",
            self.queue,
            iso_8601(from, 9),
            iso_8601(system_ns(), 9)
        );
        if unflushed > 0 {
            note += &format!(
                "; {unflushed} of its WRs were not flushed within a second and were taken back after a reset"
            );
        }
        tracing::warn!("{note}");
        if let Ok(mut notes) = self.control.notes.lock() {
            notes.push(note);
        }
        Ok(())
    }

    /// An empty poll's rest.
    #[inline]
    fn rest(&mut self, quiet: &mut Quiet) {
        if self.ring.outstanding() == 0 {
            // Nothing completes before a slot has come home.
            return self.outlet.wait(SLEEP);
        }
        match self.idle {
            Idle::Spin => std::hint::spin_loop(),
            Idle::Yield => std::thread::yield_now(),
            Idle::Sleep if quiet.polls >= POLLS_BEFORE_SLEEP => return self.sleep(quiet),
            Idle::Sleep => std::hint::spin_loop(),
        }
        if let Some(since) = quiet.idle_since() {
            self.outlet.idle();
            self.counters.idle(since);
        }
    }

    /// Sleeps on the channel until a completion comes, or for a moment.
    fn sleep(&mut self, quiet: &mut Quiet) {
        if self.ring.event_fd().is_none() || self.ring.arm().is_err() {
            return std::thread::yield_now();
        }
        let fd = self.ring.event_fd();
        if fd.is_some_and(|fd| wait_readable(fd, SLEEP)) {
            self.ring.take_event();
            quiet.polls = 0;
        } else {
            quiet.unclocked = EMPTY_POLLS;
            if let Some(since) = quiet.idle_since() {
                self.outlet.idle();
                self.counters.idle(since);
            }
            quiet.polls = POLLS_BEFORE_SLEEP;
        }
    }
}

impl Ended {
    /// A failure's words, unless there is a failure already, which came first.
    fn or(self, why: String) -> Self {
        match self {
            Self::Stopped => Self::Failed(why),
            failed @ Self::Failed(_) => failed,
        }
    }
}

/// Completions show a WQ in error before its event is read, or after. The event of an error that is dealt with already
/// must not have the WQ, which is ready again, recovered once more: that would lose what arrives meanwhile.
#[derive(Default)]
struct Ahead {
    events: u32,
    since: Option<Instant>,
}

impl Ahead {
    /// The WQ was brought back, and the event that belongs to it has not been seen.
    #[cold]
    fn recovered(&mut self) {
        self.events = self.events.saturating_add(1);
        self.since = Some(Instant::now());
    }

    /// Whether an event belongs to an error that is dealt with. One event each, and not for long: not every device
    /// raises it.
    #[cold]
    fn expected_it(&mut self) -> bool {
        if self.since.is_none_or(|since| since.elapsed() >= LATE) {
            self.events = 0;
        }
        let expected = self.events > 0;
        self.events = self.events.saturating_sub(1);
        expected
    }
}

/// How long a queue has been empty; the clock is read once in [`EMPTY_POLLS`] polls.
struct Quiet {
    polls: u32,
    /// Polls since the clock was read.
    unclocked: u32,
    since: Option<Instant>,
}

impl Quiet {
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

    /// Once each time the queue has been empty for [`IDLE_AFTER`]: since when. A poll after that has found nothing.
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

/// Pins the calling thread to a core, or says that it cannot be.
pub fn pin(core: usize, who: fmt::Arguments<'_>) {
    if !core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
        tracing::warn!("{who} cannot be pinned to core {core}; it runs where the kernel puts it");
    }
}

#[cfg(test)]
mod tests;
