//! Receive loop of several queues, one of each port: passes their frames to one outlet in the order of
//! their time stamps.
//!
//! Each queue has a [`Worker`] of its own, whose outlet only holds the frames of one batch ([`Hold`]).
//! The paired loop makes turns of the workers that hold no frame, and passes on held frames.
//!
//! A frame is passed on when no other queue can still deliver an earlier one: each other queue holds a
//! later frame, or was empty after the frame was received. A packet socket delivers frames in blocks, so
//! it is empty only if the kernel is not filling a block for it either.
//!
//! A queue without much free memory does not wait for others: frames would be lost.

use super::{
    Ended, IDLE_AFTER, Idle, LoopState, Outlet, SLEEP, StampSource, Stamper, Taken, Turn, Worker,
    sleep_after,
};
use crate::{Batch, Control, Filled, Queue, Slot, SlotMemory, Wake};
use crossbeam_channel::TryRecvError;
use std::{
    os::fd::BorrowedFd,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use wqcap_core::{stats::Budget, time::system_ns};

/// Time after a frame's stamp for which the kernel may still enter earlier frames of another
/// interface: it stamps a frame first (`netif_receive_skb` of net/core/dev.c), and another CPU may be
/// between that and the entry into the ring (`tpacket_rcv` of net/packet/af_packet.c).
const ENTRY: Duration = Duration::from_millis(2);
/// Longest time for which the kernel fills a block. Its timer passes a block with frames on much
/// earlier; a block that stays longer is one that the kernel has not begun yet.
const FILLING: Duration = Duration::from_millis(200);
/// Number of turns without frames before the loop sleeps: fewer than with one queue, because a turn polls
/// several.
const POLLS: u32 = 16;
/// Number of turns of a paired loop between two readings of the clock.
const TURNS: u32 = 1024;
/// Number of runs of frames for which a paired loop has room from its start: two batches of
/// alternating frames.
const RUNS: usize = 128;

/// Outlet of one queue of a paired loop: holds the frames of a receive batch until they are passed on.
#[derive(Debug, Default)]
pub struct Hold {
    frames: Vec<Filled>,
    /// Time of reception of each held frame, in nanoseconds since 1970.
    stamps: Vec<u64>,
    /// Index of the first held frame that was not passed on.
    next: usize,
}

impl Hold {
    /// Returns `true` if all held frames were passed on.
    #[inline]
    fn is_dry(&self) -> bool {
        self.next == self.stamps.len()
    }
}

impl Outlet for Hold {
    fn room(&self) -> usize {
        if self.is_dry() { usize::MAX } else { 0 }
    }

    fn take(
        &mut self,
        frames: &mut Vec<Filled>,
        _memory: &SlotMemory,
        stamper: &mut Stamper,
    ) -> Taken {
        let away = frames.len();
        self.stamps.extend(frames.iter().map(|it| stamper.ns(it)));
        if self.frames.is_empty() {
            std::mem::swap(&mut self.frames, frames);
        } else {
            self.frames.append(frames);
        }
        Taken {
            away,
            ..Taken::default()
        }
    }

    fn collect(&mut self, home: &mut Vec<Slot>) {
        if self.is_dry() && self.next > 0 {
            home.extend(self.frames.drain(..).map(Filled::into_slot));
            self.stamps.clear();
            self.next = 0;
        }
    }
}

/// Takes the frames of several queues in the order of their time stamps.
pub trait MergedOutlet {
    /// Takes a batch of frames, and returns the number of those that it counted as captured.
    fn take(&mut self, batch: &MergedBatch<'_>) -> u64;

    /// Called by the receive loop each time no queue has had a frame for 200 ms.
    fn idle(&mut self) {}
}

/// Batch of frames of several queues in the order of their time stamps.
pub struct MergedBatch<'a> {
    queues: &'a [PairedQueue],
    runs: &'a [FrameRange],
}

/// Successive frames of one queue in a [`MergedBatch`].
#[derive(Clone, Copy)]
pub struct MergedRun<'a> {
    /// Index among the paired loop's queues of the queue that has the run's frames.
    pub queue: usize,
    /// Frames of the run in the order of reception.
    pub frames: &'a [Filled],
    /// Time of reception of each frame of the run, in nanoseconds since 1970.
    pub stamps: &'a [u64],
    /// Memory of the receive slots that hold the run's frames.
    pub memory: &'a SlotMemory,
}

impl<'a> MergedRun<'a> {
    /// Returns the bytes of each frame of the run.
    pub fn bytes(self) -> impl Iterator<Item = &'a [u8]> {
        self.frames.iter().map(move |it| it.bytes(self.memory))
    }
}

/// Range of successive frames that a receive queue holds until the frames of the other queues
/// with earlier stamps have been passed on.
#[derive(Clone, Copy)]
struct FrameRange {
    queue: usize,
    from: usize,
    to: usize,
}

impl<'a> MergedBatch<'a> {
    /// Returns the merged batch as runs of successive frames of one queue.
    pub fn runs(&self) -> impl Iterator<Item = MergedRun<'a>> + use<'a> {
        let queues = self.queues;
        self.runs.iter().map(move |it| {
            let PairedQueue { lane, hold } = &queues[it.queue];
            MergedRun {
                queue: it.queue,
                frames: &hold.frames[it.from..it.to],
                stamps: &hold.stamps[it.from..it.to],
                memory: lane.memory(),
            }
        })
    }
}

/// One of the receive queues that a paired loop polls.
pub struct PairedQueue {
    lane: Box<dyn PortLane>,
    hold: Hold,
}

impl PairedQueue {
    /// Creates a queue of a paired loop from the receive loop that it would have alone.
    #[must_use]
    pub fn new<Q: Queue + Send + 'static>(worker: Worker<Hold, Q>) -> Self {
        let capacity = worker.batch;
        let mut lane = WorkerLane {
            batch: Batch::new(capacity),
            state: worker.state(),
            worker,
            phase: LanePhase::Receiving,
        };
        lane.begin();
        let mut hold = Hold::default();
        hold.frames.reserve(capacity);
        hold.stamps.reserve(capacity);
        Self {
            lane: Box::new(lane),
            hold,
        }
    }
}

/// State of the frames that a queue has not entered, after a poll that found none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LaneOutlook {
    /// All frames that were received before the poll were entered.
    Complete,
    /// All frames that the kernel stamped longer than [`ENTRY`] before the poll were entered.
    Stamped,
    /// Frames that were received before the poll are in a block that the kernel has not passed on.
    Partial,
}

/// Queue of a paired loop, of any kind.
trait PortLane: Send {
    /// Makes a turn of the queue's worker, which reposts the slots of `hold` and leaves new frames there.
    /// Returns `true` if there is more to do.
    fn turn(&mut self, hold: &mut Hold) -> bool;
    /// Returns the memory of the queue's receive slots.
    fn memory(&self) -> &SlotMemory;
    /// Returns the state of the frames that the queue has not entered, after a turn that found
    /// none.
    fn outlook(&self) -> LaneOutlook;
    /// Returns `true` if most of the memory of the queue's ring is in use.
    fn is_short_of_memory(&self) -> bool;
    /// Requests a wake-up by the queue's descriptor. Returns `false` if the loop cannot sleep on it.
    fn arm(&mut self, wake: Wake) -> bool;
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;
    fn take_event(&mut self);
    /// Returns the behaviour that the queue's loop would have while the queue is empty.
    fn idle(&self) -> Idle;
    /// Counts an idle iteration of a loop whose queue was found empty after `since`.
    fn count_idle(&self, since: Instant);
    fn has_ended(&self) -> bool;
    /// Returns the queue's number, its ring, and the reason for the end of its loop.
    fn end(self: Box<Self>) -> LoopEnd;
}

/// End of the receive loop of one queue: the queue's number, its ring, and the reason.
pub type LoopEnd = (u16, Box<dyn Send>, Ended);

/// State of a queue in a paired loop.
enum LanePhase {
    /// The loop polls the queue's ring.
    Receiving,
    /// The loop no longer polls the ring, and still holds frames of it.
    Leaving(Ended),
    /// The loop waits for the ring that replaces the one that it has left.
    Away(Ended),
    /// The queue has ended and delivers no more frames.
    Ended(Ended),
}

struct WorkerLane<Q> {
    worker: Worker<Hold, Q>,
    batch: Batch,
    state: LoopState,
    phase: LanePhase,
}

impl<Q: Queue> WorkerLane<Q> {
    fn begin(&mut self) {
        let worker = &self.worker;
        worker.counters.publish_posted(worker.ring.outstanding());
        self.phase = LanePhase::Receiving;
    }

    /// Leaves the ring, or ends the queue, once all its frames were passed on.
    #[cold]
    fn leave(&mut self, ended: Ended) -> LanePhase {
        let worker = &mut self.worker;
        if !worker.outlet.is_dry() {
            return LanePhase::Leaving(ended);
        }
        worker.outlet.collect(&mut self.batch.home);
        if worker.leave_ring(&self.batch, &self.state, &ended) {
            return LanePhase::Away(ended);
        }
        self.finish(ended)
    }

    #[cold]
    fn finish(&mut self, ended: Ended) -> LanePhase {
        let batch = std::mem::replace(&mut self.batch, Batch::new(0));
        LanePhase::Ended(self.worker.end(batch, &mut self.state, ended))
    }

    /// Leaves the ring, once all its frames were passed on, or looks for its replacement.
    #[cold]
    fn continue_leaving(&mut self) {
        match std::mem::replace(&mut self.phase, LanePhase::Receiving) {
            LanePhase::Leaving(ended) => self.phase = self.leave(ended),
            LanePhase::Away(ended) => self.look_for_replacement(ended),
            other => self.phase = other,
        }
    }

    /// Continues with the ring that replaces the one that was left, if there is one.
    #[cold]
    fn look_for_replacement(&mut self, ended: Ended) {
        let next = self.worker.replacements.as_ref().map(|it| it.try_recv());
        self.phase = match next {
            _ if self.worker.control.stop.load(Ordering::Acquire) => self.finish(ended),
            Some(Ok(next)) => {
                self.worker.take_over(next, &mut self.batch);
                return self.begin();
            }
            Some(Err(TryRecvError::Empty)) => LanePhase::Away(ended),
            _ => self.finish(ended),
        };
    }
}

impl<Q: Queue + Send + 'static> PortLane for WorkerLane<Q> {
    fn turn(&mut self, hold: &mut Hold) -> bool {
        std::mem::swap(&mut self.worker.outlet, hold);
        let found = match &self.phase {
            LanePhase::Receiving => match self.worker.turn(&mut self.batch, &mut self.state) {
                Turn::Found => true,
                Turn::Empty | Turn::Full => false,
                Turn::Ended(ended) => {
                    self.phase = self.leave(ended);
                    true
                }
            },
            LanePhase::Ended(_) => false,
            LanePhase::Leaving(_) | LanePhase::Away(_) => {
                self.continue_leaving();
                false
            }
        };
        std::mem::swap(&mut self.worker.outlet, hold);
        found
    }

    #[inline]
    fn memory(&self) -> &SlotMemory {
        self.worker.ring.memory()
    }

    fn outlook(&self) -> LaneOutlook {
        match (&self.phase, &self.worker.clock) {
            (LanePhase::Receiving, _) if self.worker.ring.has_partial_block() => {
                LaneOutlook::Partial
            }
            (LanePhase::Receiving, StampSource::Kernel) => LaneOutlook::Stamped,
            // A queue without a ring delivers no frame.
            _ => LaneOutlook::Complete,
        }
    }

    fn is_short_of_memory(&self) -> bool {
        self.worker.ring.is_short_of_memory()
    }

    fn arm(&mut self, wake: Wake) -> bool {
        match self.phase {
            LanePhase::Receiving => {
                self.worker.ring.event_fd().is_some() && self.worker.ring.arm(wake).is_ok()
            }
            _ => true,
        }
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        match self.phase {
            LanePhase::Receiving => self.worker.ring.event_fd(),
            _ => None,
        }
    }

    fn take_event(&mut self) {
        if let LanePhase::Receiving = self.phase {
            self.worker.ring.take_event();
        }
    }

    fn idle(&self) -> Idle {
        match self.phase {
            LanePhase::Receiving => self.worker.idle,
            _ => Idle::Sleep,
        }
    }

    fn count_idle(&self, since: Instant) {
        self.worker.counters.idle(since);
    }

    fn has_ended(&self) -> bool {
        matches!(self.phase, LanePhase::Ended(_))
    }

    fn end(self: Box<Self>) -> LoopEnd {
        let Self { worker, phase, .. } = *self;
        let ended = match phase {
            LanePhase::Ended(ended) | LanePhase::Leaving(ended) | LanePhase::Away(ended) => ended,
            LanePhase::Receiving => Ended::Stopped,
        };
        (worker.queue, Box::new(worker.ring), ended)
    }
}

/// Receive loop of several queues, ready to run on its thread.
pub struct PairedWorker<O> {
    /// Queues that the paired loop polls, one of each port.
    pub queues: Vec<PairedQueue>,
    /// Outlet that takes the frames of all queues.
    pub outlet: O,
    /// State that the receive loops share with the capture's owner.
    pub control: Arc<Control>,
    /// Number of frames that may still be captured; `None`: no limit.
    pub budget: Option<Arc<Budget>>,
}

/// Progress of a paired loop: its next frames, and the times of its empty turns.
struct Progress {
    /// Ranges of held frames that are passed on next.
    runs: Vec<FrameRange>,
    /// For each queue, the index of the first held frame that is in no range of `runs`.
    next: Vec<usize>,
    /// For each queue, the time since which the kernel has been filling a block for it.
    filling: Vec<Option<Instant>>,
    /// Number of turns since the paired loop last read the clock.
    unclocked: u32,
    /// Number of successive turns without a frame that was found or passed on.
    quiet: u32,
    /// Time from which the next idle call is due after [`IDLE_AFTER`].
    since: Instant,
    /// `true` if the loop has passed a frame to its consumer after the time `since`.
    is_busy: bool,
}

/// Limit of the time stamps of held frames that are passed on while other queues are empty.
#[derive(Clone, Copy)]
struct Horizon {
    /// Latest time stamp of a held frame that is passed on, in nanoseconds since 1970.
    until: u64,
    /// Time of the poll, in nanoseconds since 1970. Frames with later stamps are passed on too: the
    /// clock was set back, so that no stamp of an earlier frame is known.
    polled: u64,
    /// Time after which frames with later stamps may be passed on; `None`: once an empty queue has
    /// frames.
    retry: Option<Duration>,
}

impl Horizon {
    const OPEN: Self = Self {
        until: u64::MAX,
        polled: u64::MAX,
        retry: None,
    };
    const CLOSED: Self = Self {
        until: 0,
        ..Self::OPEN
    };

    #[inline]
    fn includes(&self, ns: u64) -> bool {
        ns <= self.until || ns > self.polled
    }

    fn and(self, other: Self) -> Self {
        if self.until.min(other.until) == 0 {
            return Self::CLOSED;
        }
        Self {
            until: self.until.min(other.until),
            polled: self.polled.min(other.polled),
            retry: self.retry.or(other.retry),
        }
    }
}

impl<O: MergedOutlet> PairedWorker<O> {
    /// Runs the receive loop until each queue has ended: after the stop flag is set, its ring is
    /// drained, and every slot is back. Returns the ends of the queues. The outlet is dropped.
    pub fn run(mut self) -> Vec<LoopEnd> {
        let count = self.queues.len();
        let mut progress = Progress {
            runs: Vec::with_capacity(RUNS),
            next: vec![0; count],
            filling: vec![None; count],
            unclocked: 0,
            quiet: 0,
            since: Instant::now(),
            is_busy: false,
        };
        while !self.queues.iter().all(|it| it.lane.has_ended()) {
            let (found, horizon) = self.poll(&mut progress);
            // Queues that were empty before the frames were found are polled again first.
            let passed = horizon.is_some_and(|it| self.pass_on(&mut progress, it));
            progress.is_busy |= passed;
            if found || passed {
                progress.quiet = 0;
            } else {
                self.pause(&mut progress, horizon.and_then(|it| it.retry));
            }
            self.count_time(&mut progress);
        }
        self.queues.into_iter().map(|it| it.lane.end()).collect()
    }

    /// Polls each queue that holds no frame. Returns `true` if one of them has found frames, and
    /// the limit that the empty queues set for held frames; `None`: the limit is not known before
    /// the next poll.
    #[inline]
    fn poll(&mut self, progress: &mut Progress) -> (bool, Option<Horizon>) {
        let (mut found, mut is_open) = (false, true);
        let mut horizon = Horizon::OPEN;
        for (queue, filling) in self.queues.iter_mut().zip(&mut progress.filling) {
            let PairedQueue { lane, hold } = queue;
            if !hold.is_dry() {
                continue;
            }
            let now = system_ns();
            found |= lane.turn(hold);
            if !hold.is_dry() {
                *filling = None;
                continue;
            }
            is_open = false;
            let outlook = lane.outlook();
            if outlook != LaneOutlook::Partial {
                *filling = None;
            }
            horizon = horizon.and(match outlook {
                LaneOutlook::Complete => Horizon::OPEN,
                LaneOutlook::Stamped => Horizon {
                    until: now.saturating_sub(ENTRY.as_nanos() as u64),
                    polled: now,
                    retry: Some(ENTRY),
                },
                LaneOutlook::Partial => {
                    match filling.get_or_insert_with(Instant::now).elapsed() < FILLING {
                        true => Horizon::CLOSED,
                        false => Horizon::OPEN,
                    }
                }
            });
        }
        (found, (is_open || !found).then_some(horizon))
    }

    /// Passes on held frames in the order of their time stamps, until a queue that held frames has
    /// none left. Returns `true` if frames were passed on.
    #[inline]
    fn pass_on(&mut self, progress: &mut Progress, mut horizon: Horizon) -> bool {
        let Progress { runs, next, .. } = progress;
        runs.clear();
        for (next, queue) in next.iter_mut().zip(&self.queues) {
            *next = queue.hold.next;
        }
        let mut count = 0;
        while let Some((queue, other)) = self.earliest(next) {
            let stamps = &self.queues[queue].hold.stamps;
            let from = next[queue];
            let passes = |ns: &&u64| **ns <= other && horizon.includes(**ns);
            let to = from + stamps[from..].iter().take_while(passes).count();
            if to == from {
                let is_short = |it: &PairedQueue| it.lane.is_short_of_memory();
                if !horizon.includes(stamps[from]) && self.queues.iter().any(is_short) {
                    horizon = Horizon::OPEN;
                    continue;
                }
                break;
            }
            next[queue] = to;
            count += to - from;
            runs.push(FrameRange { queue, from, to });
            if to == stamps.len() {
                break;
            }
        }
        if count == 0 {
            return false;
        }
        let captured = self.outlet.take(&MergedBatch {
            queues: &self.queues,
            runs,
        });
        for (next, queue) in next.iter().zip(&mut self.queues) {
            queue.hold.next = *next;
        }
        if let Some(budget) = &self.budget {
            budget.settle(count, captured);
        }
        true
    }

    /// Returns the queue whose next frame is the earliest, and the stamp of the earliest next frame of
    /// the others.
    #[inline]
    fn earliest(&self, next: &[usize]) -> Option<(usize, u64)> {
        let heads = self.queues.iter().zip(next).enumerate();
        let heads =
            heads.filter_map(|(queue, (it, next))| Some((queue, *it.hold.stamps.get(*next)?)));
        let mut first: Option<(usize, u64)> = None;
        let mut other = u64::MAX;
        for (queue, ns) in heads {
            match first {
                Some((_, least)) if ns >= least => other = other.min(ns),
                _ => {
                    other = first.map_or(other, |(_, ns)| ns);
                    first = Some((queue, ns));
                }
            }
        }
        first.map(|(queue, _)| (queue, other))
    }

    /// Spins, yields or sleeps after a turn without frames, for at most `retry` if frames are held.
    fn pause(&mut self, progress: &mut Progress, retry: Option<Duration>) {
        progress.quiet = progress.quiet.saturating_add(1);
        let idle = |of: Idle| self.queues.iter().any(|it| it.lane.idle() == of);
        if idle(Idle::Yield) {
            std::thread::yield_now();
        } else if idle(Idle::Spin) || progress.quiet < POLLS {
            std::hint::spin_loop();
        } else {
            self.sleep(progress, retry);
        }
    }

    /// Lets the paired loop sleep until an empty queue has a completion, or the time limit has
    /// passed.
    fn sleep(&mut self, progress: &mut Progress, retry: Option<Duration>) {
        progress.unclocked = TURNS;
        let is_dry = |it: &PairedQueue| it.hold.is_dry();
        let (timeout, wake) = match self.queues.iter().all(is_dry) {
            true => sleep_after(progress.quiet.saturating_sub(POLLS)),
            false => (retry.unwrap_or(SLEEP), Wake::AtMany),
        };
        let mut empty = self.queues.iter_mut().filter(|it| is_dry(it));
        if !empty.all(|it| it.lane.arm(wake)) {
            return std::thread::yield_now();
        }
        let empty = self.queues.iter().filter(|it| is_dry(it));
        let events = empty.filter_map(|it| it.lane.event_fd());
        if self.control.stopping.wait(events, timeout) {
            for it in self.queues.iter_mut().filter(|it| is_dry(it)) {
                it.lane.take_event();
            }
            progress.quiet = 0;
        }
    }

    /// Counts the idle iterations of empty queues, and calls the outlet if no frame has come.
    #[inline]
    fn count_time(&mut self, progress: &mut Progress) {
        progress.unclocked += 1;
        if progress.unclocked < TURNS {
            return;
        }
        progress.unclocked = 0;
        let now = Instant::now();
        if now.duration_since(progress.since) < IDLE_AFTER {
            return;
        }
        for it in self.queues.iter().filter(|it| it.hold.is_dry()) {
            it.lane.count_idle(progress.since);
        }
        if !std::mem::take(&mut progress.is_busy) {
            self.outlet.idle();
        }
        progress.since = now;
    }
}

#[cfg(test)]
mod tests;
