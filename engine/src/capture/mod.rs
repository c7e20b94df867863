//! Running capture: one pinned loop per queue, a writer, and the owner that starts and stops them.

use crate::{
    Error,
    analysis::{
        limits::CutoffReport,
        live,
        observer::{Observer, Observers},
    },
    config::OnPortDown,
    device::counters::NicReaders,
    filter::{FilterCell, FilterCompiler},
    pipeline::{
        Consumer,
        reduce::{FcsReport, Reduction, Stage, StageCounters},
    },
    plan::{Plan, steering::Split},
    rx::{Control, Ended, LoopEnd},
    sink::{OutputLimits, Reached, WriteLimit, Writer, WriterReport, Written},
    stats::{Budget, ClockReport, QueueCounters, QueueLedger, outage::OutageLog},
    sync::wakeup::Wakeup,
    text::iso_8601,
    time::system_ns,
    verbs::{AsyncEvent, WqHandle},
};
use std::{
    collections::BTreeMap,
    ops::AddAssign,
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
mod link;
mod loss;
mod open;
mod packet_port;
pub mod port;
mod report;
mod resources;
mod respread;
mod rules;
mod source;
mod start;
mod wq_flags;
mod xdp_port;

pub use handle::{CaptureHandle, FilterChange};
use link::InterfaceChange;
pub use port::promisc::Membership;
pub use report::{End, Report, Snapshot};
pub use resources::Resources;
pub use respread::{Respread, Respreading};
use source::{PortSource, Source, SourceEvent, Sources};
pub use wq_flags::WqFlagsHandle;

/// Interval at which a capture's waiting owner reads the NIC's clock. Each reading costs as much
/// CPU time as some hundred frames. Events that end a run wake the owner earlier.
const CHECK: Duration = Duration::from_millis(20);
/// Interval of readings of the NIC's clock while the receive loops sleep.
const CHECK_ASLEEP: Duration = Duration::from_millis(500);
/// Interval of readings of the NIC's clock until the clock's rate is known.
const CHECK_FIRST: Duration = Duration::from_millis(100);
/// Time before a deadline at which a wait of the capture's owner ends: sleeping until the deadline
/// costs more than ending early.
pub const SOON: Duration = Duration::from_micros(200);
/// Smallest delay of the capture owner's wakeup that indicates that the process was stopped.
const OVERDUE: Duration = Duration::from_millis(100);
/// Time within which SIGCONT is handled after a stopped process continues.
const OVERDUE_KEPT: Duration = Duration::from_secs(2);
/// Limits at which a capture run ends by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Number of captured frames after which the run ends, exactly.
    pub count: Option<u64>,
    /// Time after which the capture run ends, counted from when the first WQ was ready.
    pub duration: Option<Duration>,
    /// Bytes written to capture files, before compression, after which the run ends. The total may
    /// exceed the limit slightly.
    pub bytes: Option<u64>,
    /// Number of full capture files after which the run ends. The last file receives all frames
    /// until the run has ended.
    pub files: Option<u64>,
}

impl Limits {
    /// Returns the limits of the run that the file writer counts: bytes and files.
    fn writes(&self, owner: &Wakeup) -> Option<WriteLimit> {
        let limit = || WriteLimit::new(self.bytes, self.files, owner);
        (self.bytes.is_some() || self.files.is_some()).then(limit)
    }
}

/// Running capture: its ports, receive loops and files.
///
/// The owner must call [`Capture::wait`] repeatedly: it reads the device's events and adjusts its
/// clock.
pub struct Capture {
    sources: Sources,
    loops: Vec<JoinHandle<Vec<LoopEnd>>>,
    writer: Option<Writer>,
    shared: SharedRun,
    observers: Observers,
    wq_flags: WqFlagsHandle,
    spreading: respread::Spreading,
    /// Depth of the RSS hash for rules that are added while the capture runs.
    depth: HashDepth,
    nic: Arc<NicReaders>,
    limits: Limits,
    write_limit: Option<Arc<WriteLimit>>,
    on_port_down: OnPortDown,
    search: loss::LossSearch,
    check: Duration,
    next_check: Instant,
    /// End and delay of the capture owner's last wait that ended late by [`OVERDUE`] or more.
    overdue: Option<(Instant, Duration)>,
    wakeup: Wakeup,
    started: Instant,
    end: Option<End>,
}

/// State of a capture that its receive loops share with its owner.
#[derive(Clone)]
struct SharedRun {
    control: Arc<Control>,
    /// Time at which the capture's first WQ was ready.
    ready: Instant,
    counters: Vec<Arc<QueueCounters>>,
    /// Index of the port of each receive queue.
    port_of: Arc<[u16]>,
    /// Names of the captured ports, if there are several; else empty.
    ports: Arc<[String]>,
    budget: Option<Arc<Budget>>,
    filter: Arc<FilterCell>,
    /// Compiler of the filters that callers set as expressions.
    filters: FilterCompiler,
    /// Split of the capture filter between NIC and software, if the rules were derived from the
    /// filter.
    split: Option<Arc<Split>>,
    /// Counters of the reduction stages of queues and parsers, followed by those of the stages
    /// after the merge by time.
    stages: Vec<Arc<StageCounters>>,
    /// Reduction steps that the queues and parsers apply to frames.
    reduction: Arc<Reduction>,
    /// `true` if statistics and flow records observe frames after the merge by time, not in queues
    /// and parsers.
    observes_in_order: bool,
    /// `true` if the run parses the headers of frames, so that malformed ones are counted.
    parses: bool,
    /// `true` if the run checks the FCS of each frame.
    verifies: bool,
    /// `true` if `[[cutoff]]` limits how much of a flow is kept.
    cuts_off: bool,
    /// Outages of the capture: periods in which nothing could be received.
    outages: OutageLog,
    /// Report of the earlier capture that this one continues.
    earlier: Option<Arc<Report>>,
}

impl Capture {
    /// Returns the number of the capture's receive queues.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.shared.counters.len()
    }

    /// Returns a handle with which other threads read the capture's counters and change its filter.
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

    /// Returns the wakeup with which another thread ends the owner's [`Capture::wait`].
    #[must_use]
    pub fn wakeup(&self) -> Wakeup {
        self.wakeup.clone()
    }

    /// Returns the capture's current counters. The call only reads memory to which the receive
    /// loops publish them.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.share().snapshot()
    }

    /// Requests the next capture file of every queue, which starts with the queue's next frame. The
    /// queue's loop completes the open file soon. Returns `false` if this run writes no files.
    pub fn rotate(&self) -> bool {
        self.writer.as_ref().map(Writer::rotate).is_some()
    }

    /// Replaces the limits of the capture files: when a file ends, and how many finished ones are
    /// kept. If the conditions for starting files differ, each queue begins its next file. Without
    /// effect if this run writes no files.
    pub fn set_output_limits(&self, limits: OutputLimits) {
        if let Some(writer) = &self.writer {
            writer.set_limits(limits);
        }
    }

    /// Requests that all frames received so far are written to the files. Returns the number of the
    /// flush, for [`Capture::has_flushed`]; `None`: this run writes no frames.
    pub fn flush(&self) -> Option<u64> {
        self.writer.as_ref().map(Writer::flush)
    }

    /// Returns `true` if all frames received before the [`Capture::flush`] that returned the number
    /// `flush` can be read in the files.
    #[must_use]
    pub fn has_flushed(&self, flush: u64) -> bool {
        let writer = self.writer.as_ref();
        writer.is_some_and(|it| it.has_flushed(flush))
    }

    /// Returns the delay of the capture owner's last wait if it was long and ended recently. The
    /// process was stopped for at least that time. Each delay is returned once.
    pub fn take_stopped_time(&mut self) -> Option<Duration> {
        let (ended, overdue) = self.overdue.take()?;
        (ended.elapsed() < OVERDUE_KEPT).then_some(overdue)
    }

    /// Adds a note on a current event to the capture's report.
    pub fn note(&self, note: String) {
        self.shared.note(note);
    }

    /// Removes the flow rules, so that no more frames are received, and completes the capture
    /// files. All other objects stay for [`Capture::resume`].
    pub fn pause(&mut self) {
        self.sources.close();
        std::thread::sleep(self.sources.settle());
        self.rotate();
        self.shared.note(
            "the capture receives no more frames, because its flow rules were removed".into(),
        );
    }

    /// Installs the flow rules again after [`Capture::pause`].
    ///
    /// # Errors
    /// A rule cannot be installed; then no rule is installed.
    pub fn resume(&mut self, plan: &Plan) -> Result<(), Error> {
        self.sources.close();
        if let Err(e) = self.sources.open(plan) {
            self.sources.close();
            return Err(e);
        }
        self.shared.note(
            "the capture receives frames again, because its flow rules were installed again".into(),
        );
        Ok(())
    }

    /// Returns a handle to the live traffic statistics for any thread; `None`: statistics are off
    /// ([`Plan::statistics`]). Reading never slows the loops.
    #[must_use]
    pub fn statistics_handle(&self) -> Option<live::Statistics> {
        self.observers.statistics().cloned()
    }

    /// Returns the report on the NIC's clock; `None` with software time stamps.
    #[must_use]
    pub fn clock(&self) -> Option<ClockReport> {
        self.sources.clock_report()
    }

    /// Waits until the capture run has ended by itself, `deadline` is less than 0.2 ms away, or
    /// another thread has woken the owner. Returns `true` if the run has ended. Reads the device's
    /// events and adjusts the capture's clock during the wait.
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
            has_event = self.sources.wait(&self.wakeup, rest);
            let woke = Instant::now();
            let overdue = woke.saturating_duration_since(now).saturating_sub(rest);
            if overdue >= OVERDUE {
                self.overdue = Some((woke, overdue));
            }
            was_woken = has_event && self.wakeup.take();
        }
    }

    /// Returns the time of the capture owner's next check after one that ended at `now`, at the
    /// latest the end of a limited duration.
    fn next_check_after(&self, now: Instant) -> Instant {
        let rest = match self.clock() {
            Some(clock) if clock.looks == 0 => self.check.min(CHECK_FIRST),
            _ => self.check,
        };
        let duration = self.limits.duration;
        let over = duration.and_then(|it| self.shared.ready.checked_add(it));
        over.map_or(now + rest, |over| over.min(now + rest))
    }

    /// Processes the device's events and checks all conditions that end a capture run.
    fn check(&mut self) {
        while let Some((port, event)) = self.sources.take_event() {
            match event {
                SourceEvent::Device(event) => self.handle(port, event),
                SourceEvent::Link(InterfaceChange::Down) => self.port_went_down(port),
                SourceEvent::Link(InterfaceChange::Up) => self.port_came_up(port),
                SourceEvent::Link(InterfaceChange::Gone) => {
                    self.port_was_lost(port, "the network interface was removed".into());
                }
            }
        }
        if self.end.as_ref().is_some_and(End::is_loss) {
            // Clock readings of a lost device are invalid.
            return;
        }
        for what in self.sources.read_clocks() {
            self.shared.note(what);
        }
        for port in self.sources.ports_mut() {
            port.report_odd_frames();
        }
        self.respread_if_due();
        self.search_for_lost_ports();
        if self.shared.control.failed.take() {
            self.judge_failed_loops();
        }
        self.replace_wqs();
        if self.end.is_some() {
            return;
        }
        self.end = if self.writer.as_ref().is_some_and(Writer::has_failed) {
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

    /// Directs frames to the new WQs of the queues that replaced a striding WQ by one with a WQE
    /// per frame.
    fn replace_wqs(&mut self) {
        let replaced = self.shared.control.replaced.lock();
        let replaced = replaced.map(|mut it| std::mem::take(&mut *it));
        for (queue, wq) in replaced.unwrap_or_default() {
            if let Err(e) = self.replace_wq(usize::from(queue), wq) {
                let failed = format!("queue {queue}: its new WQ cannot be used: {e}");
                self.end.get_or_insert(End::Failed(failed));
            }
        }
    }

    fn replace_wq(&mut self, queue: usize, wq: WqHandle) -> Result<(), Error> {
        let ports = &self.shared.port_of;
        let port = usize::from(ports[queue]);
        let first = ports.iter().position(|it| usize::from(*it) == port);
        let index = queue - first.unwrap_or_default();
        if let Source::Verbs(it) = &mut self.sources.ports_mut()[port].source {
            it.fatal[index].0 = wq.id();
            it.port.replace_wq(index, wq)?;
        }
        Ok(())
    }

    fn handle(&mut self, port: usize, event: AsyncEvent) {
        let source = &self.sources.ports()[port].source;
        match event {
            AsyncEvent::WqFatal(id) | AsyncEvent::QpFatal(id) => {
                if let Source::Verbs(it) = source {
                    for (_, flag) in it.fatal.iter().filter(|(queue, _)| *queue == id) {
                        flag.store(true, Ordering::Release);
                    }
                }
            }
            AsyncEvent::PortError(number) if number == source.number() => self.port_went_down(port),
            AsyncEvent::PortActive(number) if number == source.number() => self.port_came_up(port),
            AsyncEvent::DeviceFatal => {
                let how = "the device reported a fatal error (IBV_EVENT_DEVICE_FATAL)";
                self.port_was_lost(port, how.into());
            }
            AsyncEvent::CqError => {
                self.end.get_or_insert(End::Failed(
                    "CQ overrun (IBV_EVENT_CQ_ERR): completions are lost".into(),
                ));
            }
            AsyncEvent::PortError(_)
            | AsyncEvent::PortActive(_)
            | AsyncEvent::SrqLimit(_)
            | AsyncEvent::SrqError(_)
            | AsyncEvent::Other(_) => {
                tracing::debug!(?event, "device event that a capture ignores");
            }
        }
    }

    /// Returns the open source of the port that has queue number `queue`.
    fn port_of(&self, queue: usize) -> &PortSource {
        &self.sources.ports()[usize::from(self.shared.port_of[queue])]
    }

    /// Requests that the receive loops and the file writer end. A loop may wait for the writer, and
    /// the writer for free disk space.
    fn request_end(&self) {
        self.shared.control.stop();
        if let Some(writer) = &self.writer {
            writer.begin_shutdown();
        }
    }

    /// Makes the writer discard write buffers that are not being written yet, and count their
    /// frames as lost, from when `flag` is set.
    pub fn discard_pending_when(&self, flag: &Arc<AtomicBool>) {
        if let Some(writer) = &self.writer {
            writer.give_up_on(Arc::clone(flag));
        }
    }

    /// Ends the capture run in order: removes the flow rules, drains the rings, closes the files.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.check();
        let mut end = self.end.take().unwrap_or(End::Stopped);
        self.sources.close();
        std::thread::sleep(self.sources.settle());
        let nic = if end.is_loss() {
            self.nic.growth_so_far()
        } else {
            self.nic.growth()
        };
        self.request_end();
        let mut aside = Vec::new();
        let mut rings = Vec::with_capacity(self.loops.len());
        for thread in std::mem::take(&mut self.loops) {
            let Ok(ends) = thread.join() else {
                let why = "the receive loop of a queue panicked";
                aside.extend(end.merge_failure(End::Failed(why.into())));
                continue;
            };
            for (queue, ring, ended) in ends {
                rings.push(ring);
                match ended {
                    // The loss of its port is in the notes.
                    Ended::Failed(why) if self.port_of(queue.into()).is_gone && !end.is_loss() => {
                        aside.push(why.to_string());
                    }
                    Ended::Failed(why) => {
                        aside.extend(end.merge_failure(End::Failed(why.to_string())));
                    }
                    _ => {}
                }
            }
        }
        drop(rings);
        let finished = self
            .writer
            .take()
            .map_or_else(WriterReport::default, Writer::finish);
        let ended = finished.synced.unwrap_or_else(Instant::now);
        for failure in finished.failures {
            aside.extend(end.merge_failure(End::Storage(failure)));
        }
        let flows = self.observers.finish();
        if let Some(failure) = flows.as_ref().and_then(|it| it.failures.first()) {
            aside.extend(end.merge_failure(End::Storage(failure.clone())));
        }
        let mut notes = self
            .shared
            .control
            .notes
            .lock()
            .map(|mut n| std::mem::take(&mut *n))
            .unwrap_or_default();
        notes.extend(finished.notes);
        let ports = self.sources.ports().iter();
        notes.extend(ports.flat_map(PortSource::odd_frames));
        notes.extend(self.shared.out_of_order());
        notes.extend(aside);
        let outages = self.shared.outages.get();
        let report = Report {
            end,
            queues: self.shared.ledgers(),
            ports: self.shared.ports.to_vec(),
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
            // The log of outages covers all captures since the first one.
            Some(earlier) => Report {
                outages,
                ..Arc::unwrap_or_clone(earlier).merge(report)
            },
        }
    }
}

impl Drop for Capture {
    /// Ends a capture that was not finished, for example because its start failed: the loops must
    /// not outlive it.
    fn drop(&mut self) {
        self.sources.close();
        self.request_end();
        for thread in self.loops.drain(..) {
            let _ = thread.join();
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.finish();
        }
    }
}

impl SharedRun {
    /// Returns a function that creates the reduction stage (filter, deduplication, sampling,
    /// cutoff, slicing) in front of a consumer of frames.
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

    /// Returns a note on the frames of a file in time order that are behind later ones.
    fn out_of_order(&self) -> Option<String> {
        let frames: u64 = self.counters.iter().map(|it| it.out_of_order()).sum();
        (frames > 0).then(|| {
            format!(
                "frames behind one with a later time stamp in a file in time order: {frames}; their stamps are from other \
                 cores, a thread got no CPU time, or a clock was set back; `reordercap` sorts a file"
            )
        })
    }

    fn ledgers(&self) -> Vec<QueueLedger> {
        let counters = (0u16..).zip(&self.counters).zip(self.port_of.iter());
        let ledger = |((queue, counters), port): ((u16, &Arc<QueueCounters>), &u16)| QueueLedger {
            port: *port,
            ..counters.ledger(queue)
        };
        counters.map(ledger).collect()
    }

    /// Logs `note` and adds it with the current time to the capture's report.
    fn note(&self, note: String) {
        tracing::info!("{note}");
        if let Ok(mut notes) = self.control.notes.lock() {
            notes.push(&format!("{}: {note}", iso_8601(system_ns(), 3)));
        }
    }
}
