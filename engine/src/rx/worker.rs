//! The loop of one queue: poll, hand each frame to the consumer, repost, publish the counters.
//!
//! Per batch, not per frame: one look at the stop flag, one conversion of the clock, one list of reposted WRs, one
//! round of counter stores. Nothing here allocates, locks or logs while frames flow.

use super::{Batch, FCS_LEN, Filled, Orders, Ring, Sampler, SlotMemory};
use crate::{
    clock::{Conversion, SharedConversion},
    stats::{Budget, QueueCounters},
};
use std::{
    os::fd::RawFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// One frame, borrowed from its slot for the length of a call.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// What there is of its bytes: all, unless a stage before has cut it.
    pub bytes: &'a [u8],
    /// Its length on the wire without the FCS, at least that of `bytes`.
    pub len: u32,
    /// Its FCS, where the device delivers it. Never part of `bytes`, which is what headers are sought in.
    pub fcs: Option<Fcs>,
    /// When it was received, in nanoseconds since 1970. Never runs backward within a queue.
    pub ns: u64,
}

/// A frame check sequence as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fcs {
    /// As on the wire.
    pub bytes: [u8; FCS_LEN],
    /// It was checked, and is another frame's.
    pub bad: bool,
}

/// What became of a frame: its line in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Kept.
    Captured,
    /// The filter refused it.
    Filtered,
    /// Sampling left it out.
    SampledOut,
    /// It repeats one that was kept.
    Deduplicated,
    /// There was no room for it.
    DroppedStorage,
}

/// What a loop feeds. It runs on the queue's own core, so what it does is part of each frame's cost.
pub trait Consumer: Send {
    /// Takes one frame. The bytes are gone when it returns.
    fn frame(&mut self, frame: Frame<'_>) -> Verdict;
    /// A batch begins: a chance to look, once for many frames, at what others may have changed.
    fn batch(&mut self) {}
    /// The batch's frames have all been handled: their buffers go back to the NIC now.
    fn handled(&mut self) {}
    /// What decides on the frames that follow has changed; the text says how, for those who keep notes.
    fn changed(&mut self, _what: &str) {}
    /// The queue has been empty for a moment: a chance to let go of what is half full.
    fn idle(&mut self) {}
}

/// What a loop does while its queue is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Poll on: the least delay, a whole core.
    Spin,
    /// Poll on, but let others run on this core in between.
    Yield,
    /// Sleep on the completion channel after a while.
    Sleep,
}

/// Why a loop ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to, and its ring is drained.
    Stopped,
    /// The queue cannot go on; the text says why.
    Failed(String),
}

/// What the hand that starts and stops the loops shares with all of them.
#[derive(Debug, Default)]
pub struct Control {
    /// Drain and end.
    pub stop: AtomicBool,
    /// A loop has ended by itself.
    pub failed: AtomicBool,
    /// What a reader of the files should know: gaps, recoveries. Written in exceptional moments alone.
    pub notes: Mutex<Vec<String>>,
}

/// Polls without a frame before a sleeper goes to sleep, and between two looks at the clock of a spinner.
const EMPTY_POLLS: u32 = 1024;
/// How long a queue is empty before the consumer is told.
const IDLE_AFTER: Duration = Duration::from_millis(200);
/// How much later than its flushed WRs the event of a WQ in error may be read.
const LATE: Duration = Duration::from_secs(1);
/// How long a sleeper sleeps at most: it must see the stop flag.
const SLEEP: Duration = Duration::from_millis(50);

/// A queue's loop, ready to run on its thread.
pub struct Worker<C> {
    /// Queue number.
    pub queue: u16,
    /// The ring.
    pub ring: Ring,
    /// Where frames go.
    pub consumer: C,
    /// Completions a poll takes at most.
    pub batch: usize,
    /// Behaviour of an empty queue.
    pub idle: Idle,
    /// Published counters.
    pub counters: Arc<QueueCounters>,
    /// Ticks to nanoseconds; `None`: stamps are the system clock's, one a batch.
    pub clock: Option<Arc<SharedConversion>>,
    /// Shared with all loops.
    pub control: Arc<Control>,
    /// How many frames may still be captured; `None`: any number.
    pub budget: Option<Arc<Budget>>,
    /// Set from outside when the device reports this WQ in error.
    pub wq_fatal: Arc<AtomicBool>,
    /// What the hand asks for meanwhile.
    pub orders: Arc<Orders>,
    /// Tells the hand how the load is spread.
    pub sampler: Sampler,
}

/// The counters of a loop, kept in registers and its own cache lines, published once a batch.
#[derive(Default)]
struct Tally {
    received: u64,
    captured: u64,
    filtered: u64,
    sampled_out: u64,
    deduplicated: u64,
    dropped_storage: u64,
    errors: u64,
    bytes: u64,
    last_ns: u64,
}

impl Tally {
    #[inline]
    fn take<C: Consumer>(
        &mut self,
        consumer: &mut C,
        filled: &Filled,
        memory: &SlotMemory,
        stamp: Stamp,
    ) {
        let bytes = filled.bytes(memory);
        let ns = stamp.ns(filled).max(self.last_ns);
        self.last_ns = ns;
        self.received += 1;
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let fcs = filled.fcs(memory).map(|bytes| Fcs { bytes, bad: false });
        let frame = Frame {
            bytes,
            len,
            fcs,
            ns,
        };
        match consumer.frame(frame) {
            Verdict::Captured => {
                self.captured += 1;
                self.bytes += bytes.len() as u64;
            }
            Verdict::Filtered => self.filtered += 1,
            Verdict::SampledOut => self.sampled_out += 1,
            Verdict::Deduplicated => self.deduplicated += 1,
            Verdict::DroppedStorage => self.dropped_storage += 1,
        }
    }
}

/// A batch's way from ticks to time.
#[derive(Clone, Copy)]
enum Stamp {
    Device(Conversion),
    System(u64),
}

impl Stamp {
    #[inline]
    fn ns(self, filled: &Filled) -> u64 {
        match self {
            Self::Device(line) => line.ns(filled.ticks()),
            Self::System(ns) => ns,
        }
    }
}

impl<C: Consumer> Worker<C> {
    /// Runs until stopped, then until the ring is drained. Gives back the ring and the consumer, so that their
    /// owner chooses when objects are destroyed and files closed.
    pub fn run(mut self) -> (Ring, C, Ended) {
        let mut tally = Tally::default();
        let mut batch = Batch::new(self.batch);
        let mut quiet = Quiet::new();
        let mut ahead = Ahead::default();
        let ended = loop {
            // Read before the poll: when it is set, rules are gone, so an empty ring stays empty.
            let stopping = self.control.stop.load(Ordering::Acquire);
            let grant = self
                .budget
                .as_ref()
                .map_or(usize::MAX, |b| b.claim(batch.size()));
            let before = tally.captured;
            if self.orders.are_pending() {
                let ring = &mut self.ring;
                self.orders.obey(|on| ring.set_cvlan_stripping(on));
            }
            let polled = self.ring.poll(&mut batch, grant);
            if !batch.is_empty() {
                quiet.reset();
                self.sampler.look(&batch, self.ring.memory());
                let stamp = self.stamp();
                self.consumer.batch();
                for filled in &batch.frames {
                    tally.take(&mut self.consumer, filled, self.ring.memory(), stamp);
                }
                self.consumer.handled();
                tally.received += batch.failed.len() as u64;
                tally.errors += batch.failed.len() as u64;
            }
            if let Some(budget) = &self.budget {
                budget.settle(grant, tally.captured - before);
            }
            if let Err(e) = polled {
                break Ended::Failed(format!("queue {}: {e}", self.queue));
            }
            if batch.is_empty() {
                // With nothing left to claim, frames stay on the ring, unreceived.
                if stopping {
                    break Ended::Stopped;
                }
                if self.wq_fatal.swap(false, Ordering::AcqRel)
                    && !ahead.expected_it()
                    && let Err(e) = self.recover(&mut tally, "the device reported it in error")
                {
                    break Ended::Failed(e);
                }
                self.rest(&mut quiet);
                continue;
            }
            if let Err(e) = self.turn(&mut batch, &mut tally, &mut ahead) {
                break Ended::Failed(e);
            }
            self.publish(&tally);
        };
        self.publish(&tally);
        if ended != Ended::Stopped {
            self.control.failed.store(true, Ordering::Release);
        }
        (self.ring, self.consumer, ended)
    }

    /// Puts a batch's slots back, after bringing the WQ back if the batch showed that it is in error.
    #[inline]
    fn turn(
        &mut self,
        batch: &mut Batch,
        tally: &mut Tally,
        ahead: &mut Ahead,
    ) -> Result<(), String> {
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
            self.recover(tally, &why)?;
            if !self.wq_fatal.swap(false, Ordering::AcqRel) {
                ahead.recovered();
            }
        }
        self.ring
            .repost(batch)
            .map_err(|e| format!("queue {}: {e}", self.queue))
    }

    /// Brings the WQ back and notes the gap.
    #[cold]
    fn recover(&mut self, tally: &mut Tally, why: &str) -> Result<(), String> {
        let from = system_ns();
        let stamp = self.stamp();
        let consumer = &mut self.consumer;
        let errors = self
            .ring
            .recover(|filled, memory| tally.take(consumer, filled, memory, stamp))
            .map_err(|e| {
                format!(
                    "queue {}: the WQ is in error ({why}) and cannot be recovered: {e}",
                    self.queue
                )
            })?;
        tally.received += errors;
        tally.errors += errors;
        self.counters.recovered();
        let note = format!(
            "queue {}: the WQ went into error ({why}) and was recovered; frames between {} and {} may be missing",
            self.queue,
            seconds(from),
            seconds(system_ns())
        );
        tracing::warn!("{note}");
        if let Ok(mut notes) = self.control.notes.lock() {
            notes.push(note);
        }
        Ok(())
    }

    #[inline]
    fn stamp(&self) -> Stamp {
        match &self.clock {
            Some(clock) => Stamp::Device(clock.load()),
            None => Stamp::System(system_ns()),
        }
    }

    #[inline]
    fn publish(&self, tally: &Tally) {
        self.counters.publish(
            tally.received,
            tally.captured,
            tally.dropped_storage,
            tally.errors,
            tally.bytes,
        );
        self.counters
            .publish_reduced(tally.filtered, tally.sampled_out, tally.deduplicated);
        self.counters.beat();
    }

    /// An empty poll's rest.
    #[inline]
    fn rest(&mut self, quiet: &mut Quiet) {
        match self.idle {
            Idle::Spin => std::hint::spin_loop(),
            Idle::Yield => std::thread::yield_now(),
            Idle::Sleep if quiet.polls >= EMPTY_POLLS => return self.sleep(quiet),
            Idle::Sleep => std::hint::spin_loop(),
        }
        if quiet.is_idle_now() {
            self.consumer.idle();
            self.counters.beat();
        }
    }

    /// Sleeps on the channel until a completion comes, or for a moment.
    fn sleep(&mut self, quiet: &mut Quiet) {
        let Some(fd) = self.ring.event_fd() else {
            return std::thread::yield_now();
        };
        if self.ring.arm().is_err() {
            return std::thread::yield_now();
        }
        if wait_readable(fd, SLEEP) {
            self.ring.take_event();
            quiet.polls = 0;
        } else {
            quiet.looked = EMPTY_POLLS;
            if quiet.is_idle_now() {
                self.consumer.idle();
                self.counters.beat();
            }
            quiet.polls = EMPTY_POLLS;
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

/// How long a queue has been empty, told with a look at the clock every thousand polls only.
struct Quiet {
    polls: u32,
    looked: u32,
    since: Option<Instant>,
}

impl Quiet {
    fn new() -> Self {
        Self {
            polls: 0,
            looked: 0,
            since: None,
        }
    }

    #[inline]
    fn reset(&mut self) {
        *self = Self::new();
    }

    /// True once each time the queue has been empty for [`IDLE_AFTER`].
    #[inline]
    fn is_idle_now(&mut self) -> bool {
        self.polls = self.polls.saturating_add(1);
        self.looked += 1;
        if self.looked < EMPTY_POLLS {
            return false;
        }
        self.looked = 0;
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < IDLE_AFTER {
            return false;
        }
        self.since = Some(now);
        true
    }
}

/// Waits until a descriptor is readable; false when the time is over.
pub(crate) fn wait_readable(fd: RawFd, timeout: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    #[allow(unsafe_code)]
    // SAFETY: one pollfd, which outlives the call.
    unsafe {
        libc::poll(&raw mut poll, 1, millis) > 0
    }
}

/// The system clock, in nanoseconds since 1970.
pub(crate) fn system_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}
