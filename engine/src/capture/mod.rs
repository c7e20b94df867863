//! A running capture: one pinned loop per queue, a writer, and their owner, which starts and stops them.

use crate::{
    Error,
    analysis::{
        limits::CutoffReport,
        live,
        observer::{Observer, Observers},
    },
    capture::port::Port,
    config::OnPortDown,
    device::counters::NicReader,
    filter::FilterCell,
    pipeline::{
        Consumer,
        reduce::{FcsReport, Reduction, Stage, StageCounters},
    },
    plan::{Plan, steering::Split},
    rx::{Control, Ended, Ring},
    sink::{Finished, Reached, WriteLimit, Writer, Written},
    stats::{Budget, ClockReport, QueueCounters, QueueLedger, outage::OutageLog},
    sync::wakeup::Wakeup,
    text::iso_8601,
    time::system_ns,
    verbs::{AsyncEvent, AsyncEvents},
};
use std::{
    collections::BTreeMap,
    ops::AddAssign,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use wqcap_rss::profile::HashDepth;

mod clock;
mod handle;
mod loss;
pub mod port;
mod report;
mod respread;
mod rules;
mod start;
pub mod supervisor;
mod wq_flags;

use clock::Clock;
pub use handle::{CaptureHandle, FilterChange};
pub use port::promisc::Membership;
pub use report::{End, Report, Snapshot};
pub use respread::{Respread, Respreading};
pub use wq_flags::WqFlagsHandle;

/// How often a waiting owner reads the device's clock; less often where loops sleep, since each time costs as much CPU time
/// as some hundred frames. What ends a run wakes it.
const CHECK: Duration = Duration::from_millis(20);
const CHECK_ASLEEP: Duration = Duration::from_millis(500);
/// The same until the clock's rate is known.
const CHECK_FIRST: Duration = Duration::from_millis(100);
/// A deadline so near has come: to sleep until then costs more than to be early.
pub(crate) const SOON: Duration = Duration::from_micros(200);
/// Delay of a wait's end from which on the process may have been stopped.
const OVERDUE: Duration = Duration::from_millis(100);
/// Time within which SIGCONT is handled after a stopped process continues.
const OVERDUE_KEPT: Duration = Duration::from_secs(2);
/// Between taking the rules away and asking the loops to drain: frames already in the NIC come out by then.
const SETTLE: Duration = Duration::from_millis(2);

/// When a run ends by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// After this many captured frames, exactly.
    pub count: Option<u64>,
    /// After this long from the first WQ ready.
    pub duration: Option<Duration>,
    /// After so many bytes of files, compression aside, or a little more.
    pub bytes: Option<u64>,
    /// Once so many files are full; the last one takes what comes until the run has ended.
    pub files: Option<u64>,
}

impl Limits {
    /// Those that the files keep count of.
    fn writes(&self, owner: &Wakeup) -> Option<WriteLimit> {
        let limit = || WriteLimit::new(self.bytes, self.files, owner);
        (self.bytes.is_some() || self.files.is_some()).then(limit)
    }
}

/// A capture under way.
///
/// Somebody must call [`Capture::wait`] again and again: it reads the device's events and holds its clock.
pub struct Capture {
    port: Port,
    events: AsyncEvents,
    loops: Vec<JoinHandle<(Ring, Ended)>>,
    writer: Option<Writer>,
    shared: Shared,
    observers: Observers,
    fatal: Vec<(usize, Arc<AtomicBool>)>,
    wq_flags: WqFlagsHandle,
    spreading: respread::Spreading,
    /// What a rule table is made into rules with.
    depth: HashDepth,
    clock: Option<Clock>,
    nic: Arc<NicReader>,
    limits: Limits,
    write_limit: Option<Arc<WriteLimit>>,
    on_port_down: OnPortDown,
    check: Duration,
    next_check: Instant,
    /// The last wait that was overdue by [`OVERDUE`] or more: its end, and by how much.
    overdue: Option<(Instant, Duration)>,
    wakeup: Wakeup,
    started: Instant,
    end: Option<End>,
}

/// What the loops and the owner share.
#[derive(Clone)]
struct Shared {
    control: Arc<Control>,
    /// When the first WQ was ready.
    ready: Instant,
    counters: Vec<Arc<QueueCounters>>,
    budget: Option<Arc<Budget>>,
    filter: Arc<FilterCell>,
    /// What the NIC's rules take, where they were made of the filter.
    split: Option<Arc<Split>>,
    /// Counters of the stages of queues and parsers, then those of the stages behind the order of time.
    stages: Vec<Arc<StageCounters>>,
    /// The steps of the stages of queues and parsers.
    reduction: Arc<Reduction>,
    /// Frames are observed behind the order of time, and not by queues and parsers.
    observes_in_order: bool,
    /// Frames are parsed, so that the malformed are counted.
    parses: bool,
    /// Each frame's FCS is checked.
    verifies: bool,
    /// Flows are cut off.
    cuts_off: bool,
    /// Times in which nothing could be received.
    outages: OutageLog,
    /// What this capture goes on from.
    earlier: Option<Arc<Report>>,
}

impl Capture {
    /// For other threads, which read the capture's counters and change its filter while one waits for its end.
    #[must_use]
    pub fn share(&self) -> CaptureHandle {
        CaptureHandle {
            shared: self.shared.clone(),
            nic: Arc::clone(&self.nic),
            backlog: self.writer.as_ref().and_then(Writer::backlog),
            requests: self.writer.as_ref().map(Writer::requests),
            retention: self.writer.as_ref().and_then(Writer::retention),
        }
    }

    /// Ends [`Capture::wait`] from another thread.
    #[must_use]
    pub fn wakeup(&self) -> Wakeup {
        self.wakeup.clone()
    }

    /// Counters of now; does not touch the loops' cache lines beyond a read.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.share().snapshot()
    }

    /// Asks every queue for its next file, which it begins with its next frame; the open one is completed when the
    /// queue's loop comes by, within a moment. False: this run writes no files.
    pub fn rotate(&self) -> bool {
        self.writer.as_ref().map(Writer::rotate).is_some()
    }

    /// Asks for everything received so far to be written into the files; returns the number that
    /// [`Capture::has_flushed`] takes. `None`: this run writes no frames.
    pub fn flush(&self) -> Option<u64> {
        self.writer.as_ref().map(Writer::flush)
    }

    /// Whether everything received before a [`Capture::flush`] can be read in the files.
    #[must_use]
    pub fn has_flushed(&self, flush: u64) -> bool {
        let writer = self.writer.as_ref();
        writer.is_some_and(|it| it.has_flushed(flush))
    }

    /// How long the owner's last wait was overdue, if it ended a moment ago and was so by far: as long, at least, as the
    /// process was stopped. Returned once.
    pub(crate) fn take_stop(&mut self) -> Option<Duration> {
        let (ended, overdue) = self.overdue.take()?;
        (ended.elapsed() < OVERDUE_KEPT).then_some(overdue)
    }

    /// Adds a note on what has just happened to the report.
    pub(crate) fn note(&self, note: String) {
        self.shared.note(note);
    }

    /// Takes the rules away: nothing more comes in, and files are completed. Everything else stays, for
    /// [`Capture::resume`].
    pub fn pause(&mut self) {
        self.port.shut();
        std::thread::sleep(SETTLE);
        self.rotate();
        self.shared.note("no more frames are let in".into());
    }

    /// Lets frames in again.
    ///
    /// # Errors
    /// A rule cannot be installed; nothing is let in.
    pub fn resume(&mut self, plan: &Plan) -> Result<(), Error> {
        self.port.shut();
        if let Err(e) = self.port.let_in(plan) {
            self.port.shut();
            return Err(e);
        }
        self.shared.note("frames are let in again".into());
        Ok(())
    }

    /// The traffic, for any thread to read; `None`: statistics are off ([`Plan::statistics`]). Never slows the loops.
    #[must_use]
    pub fn statistics_handle(&self) -> Option<live::Statistics> {
        self.observers.statistics().cloned()
    }

    /// How the device's clock went so far; `None` with software stamps.
    #[must_use]
    pub fn clock(&self) -> Option<ClockReport> {
        self.clock.as_ref().map(Clock::report)
    }

    /// Waits until the run has ended by itself, `deadline` has come or is less than 0.2 ms away, or somebody has woken the
    /// owner; true when the run has ended. Reads the device's events and holds its clock meanwhile.
    pub fn wait(&mut self, deadline: Instant) -> bool {
        let (mut has_event, mut was_woken) = (false, false);
        loop {
            let now = Instant::now();
            if has_event || now >= self.next_check {
                self.check();
                self.next_check = self.next_check_after(Instant::now());
            }
            if self.end.is_some() || was_woken || now + SOON >= deadline {
                return self.end.is_some();
            }
            let rest = deadline.min(self.next_check).duration_since(now);
            has_event = self.wakeup.wait(self.events.as_fd(), rest);
            let woke = Instant::now();
            let overdue = woke.saturating_duration_since(now).saturating_sub(rest);
            if overdue >= OVERDUE {
                self.overdue = Some((woke, overdue));
            }
            was_woken = has_event && self.wakeup.take();
        }
    }

    /// When a check is due after one that ended at `now`: a run of limited duration ends by one.
    fn next_check_after(&self, now: Instant) -> Instant {
        let is_new = |it: &Clock| it.report().looks == 0;
        let rest = match &self.clock {
            Some(clock) if is_new(clock) => self.check.min(CHECK_FIRST),
            _ => self.check,
        };
        let duration = self.limits.duration;
        let over = duration.and_then(|it| self.shared.ready.checked_add(it));
        over.map_or(now + rest, |over| over.min(now + rest))
    }

    /// Checks everything that can end a run.
    fn check(&mut self) {
        while let Some(event) = self.events.take() {
            self.handle(event);
        }
        if self.end.as_ref().is_some_and(End::is_loss) {
            // Nothing that the device says of its clock counts any more.
            return;
        }
        if let Some(what) = self.clock.as_mut().and_then(|it| it.read(&self.port)) {
            self.shared.note(what);
        }
        self.respread_if_due();
        if self.end.is_some() {
            return;
        }
        self.end = if self.shared.control.failed.is_raised() {
            // The reason comes with the loop's thread.
            Some(self.lost_or(End::Failed(String::new())))
        } else if self.writer.as_ref().is_some_and(Writer::has_failed) {
            Some(End::Storage(String::new()))
        } else if self.writer.as_ref().is_some_and(Writer::reader_has_left) {
            Some(End::ReaderLeft)
        } else if self.shared.budget.as_ref().is_some_and(|b| b.is_used_up()) {
            Some(End::Count)
        } else if let Some(reached) = self.write_limit.as_ref().and_then(|it| it.reached()) {
            Some(match reached {
                Reached::Bytes => End::Bytes,
                Reached::Files => End::Files,
            })
        } else if self
            .limits
            .duration
            .is_some_and(|d| self.shared.ready.elapsed() >= d)
        {
            Some(End::Duration)
        } else {
            None
        };
    }

    fn handle(&mut self, event: AsyncEvent) {
        match event {
            AsyncEvent::WqFatal(id) => {
                for (_, flag) in self.fatal.iter().filter(|(wq, _)| *wq == id) {
                    flag.store(true, Ordering::Release);
                }
            }
            AsyncEvent::PortError(port) if port == self.port.number() => self.port_went_down(),
            AsyncEvent::PortActive(port) if port == self.port.number() => self.port_came_up(),
            AsyncEvent::DeviceFatal => {
                let how = "the device reported that it is gone (IBV_EVENT_DEVICE_FATAL)";
                let end = self.lost(how.into());
                self.end.get_or_insert(end);
            }
            AsyncEvent::CqError => {
                self.end.get_or_insert(End::Failed(
                    "a CQ was overrun (IBV_EVENT_CQ_ERR): completions are lost".into(),
                ));
            }
            AsyncEvent::PortError(_)
            | AsyncEvent::PortActive(_)
            | AsyncEvent::SrqLimit(_)
            | AsyncEvent::SrqError(_)
            | AsyncEvent::Other(_) => {
                tracing::debug!(?event, "asynchronous event");
            }
        }
    }

    /// Asks the loops and the writer to end. The writer too: a loop may wait for it, and it for room on the disk.
    fn hurry(&self) {
        self.shared.control.stop.store(true, Ordering::Release);
        if let Some(writer) = &self.writer {
            writer.hurry();
        }
    }

    /// Has what is not being written yet given up for lost, and counted so, from when `flag` is set.
    pub(crate) fn give_up_on(&self, flag: &Arc<AtomicBool>) {
        if let Some(writer) = &self.writer {
            writer.give_up_on(Arc::clone(flag));
        }
    }

    /// Ends the run in order: rules away, rings drained, files closed.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.check();
        let mut end = self.end.take().unwrap_or(End::Stopped);
        self.port.shut();
        std::thread::sleep(SETTLE);
        let nic = if end.is_loss() {
            self.nic.growth_so_far()
        } else {
            self.nic.growth()
        };
        self.hurry();
        let mut aside = Vec::new();
        let mut rings = Vec::with_capacity(self.loops.len());
        for thread in std::mem::take(&mut self.loops) {
            match thread.join() {
                Ok((ring, ended)) => {
                    rings.push(ring);
                    if let Ended::Failed(why) = ended {
                        aside.extend(end.explain(End::Failed(why)));
                    }
                }
                Err(_) => {
                    let why = "a queue's loop ended in a panic";
                    aside.extend(end.explain(End::Failed(why.into())));
                }
            }
        }
        drop(rings);
        let finished = self
            .writer
            .take()
            .map_or_else(Finished::default, Writer::finish);
        let ended = finished.synced.unwrap_or_else(Instant::now);
        for failure in finished.failures {
            aside.extend(end.explain(End::Storage(failure)));
        }
        let flows = self.observers.finish();
        if let Some(failure) = flows.as_ref().and_then(|it| it.failures.first()) {
            aside.extend(end.explain(End::Storage(failure.clone())));
        }
        let mut notes = self
            .shared
            .control
            .notes
            .lock()
            .map(|mut n| std::mem::take(&mut *n))
            .unwrap_or_default();
        notes.extend(finished.notes);
        notes.extend(aside);
        let outages = self.shared.outages.get();
        let report = Report {
            end,
            queues: self.shared.ledgers(),
            nic,
            malformed: self.shared.malformed(),
            statistics: self.observers.statistics().map(live::Statistics::snapshot),
            fcs: self.shared.fcs(),
            cutoff: self.shared.cutoff(),
            flows,
            written: self
                .write_limit
                .as_ref()
                .map_or_else(Written::default, |it| it.written()),
            files: finished.files,
            deleted: finished.deleted,
            pinned: finished.pinned,
            encryption: finished.encryption,
            hooks: finished.hooks,
            outages: outages.clone(),
            duration: ended.duration_since(self.shared.ready),
            startup: self.shared.ready.duration_since(self.started),
            clock: self.clock(),
            notes,
        };
        match self.shared.earlier.take() {
            None => report,
            // The log of outages is one from the first of them on.
            Some(earlier) => Report {
                outages,
                ..Arc::unwrap_or_clone(earlier).followed_by(report)
            },
        }
    }
}

impl Drop for Capture {
    /// A capture that is not finished, as when starting it failed half way: the loops must not outlive it.
    fn drop(&mut self) {
        self.port.shut();
        self.hurry();
        for thread in self.loops.drain(..) {
            let _ = thread.join();
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.finish();
        }
    }
}

impl Shared {
    /// Makes the stage in front of a consumer.
    fn stage<C: Consumer, O>(
        &self,
        i: usize,
        cell: Arc<FilterCell>,
        observer: O,
    ) -> impl FnOnce(C) -> Stage<C> + Send + use<C, O>
    where
        O: FnOnce() -> Observer + Send,
    {
        let reduction = Arc::clone(&self.reduction);
        let counters = Arc::clone(&self.stages[i]);
        let observer = (!self.observes_in_order).then_some(observer);
        move |sink| {
            let observer = observer.map_or_else(Observer::default, |make| make());
            Stage::new(sink, &reduction, cell, counters, observer)
        }
    }

    fn malformed(&self) -> Option<BTreeMap<&'static str, u64>> {
        self.parses.then(|| {
            let mut sum = BTreeMap::new();
            for counters in &self.stages {
                counters.add_malformed_to(&mut sum);
            }
            sum
        })
    }

    fn fcs(&self) -> Option<FcsReport> {
        self.verifies.then(|| self.over_stages(StageCounters::fcs))
    }

    fn cutoff(&self) -> Option<CutoffReport> {
        self.cuts_off
            .then(|| self.over_stages(StageCounters::cutoff))
    }

    fn over_stages<T: Default + AddAssign>(&self, of: impl Fn(&StageCounters) -> T) -> T {
        let mut sum = T::default();
        for counters in &self.stages {
            sum += of(counters);
        }
        sum
    }

    fn ledgers(&self) -> Vec<QueueLedger> {
        (0u16..)
            .zip(&self.counters)
            .map(|(queue, c)| c.ledger(queue))
            .collect()
    }

    /// Notes what has just happened.
    fn note(&self, note: String) {
        tracing::info!("{note}");
        if let Ok(mut notes) = self.control.notes.lock() {
            notes.push(format!("{}: {note}", iso_8601(system_ns(), 3)));
        }
    }
}
