//! A running capture: one pinned loop per queue, a writer, and the hand that starts and stops them.

use crate::{
    Error,
    analysis::{
        flows::FlowsReport,
        live,
        observer::{Observer, Observers},
    },
    capture::port::Port,
    config::{self, Format, OnPortDown, Order, PipelineMode},
    device::{
        clock::{ClockReport, system_ns},
        counters::NicReader,
    },
    filter::{Filter, FilterCell},
    pipeline::{
        Consumer, Fanout, FanoutAttr, Inline, Made, Place, Rest, Source, ToSink,
        reduce::{FcsReport, Stage, StageCounters},
    },
    plan::{Plan, Stamps, steering::Split},
    rx::{Control, Ended, Idle, Orders, Outlet, Ring, Worker, pin, wait_readable},
    sink::{
        Backlog, Count, Deleted, Encoder, Files, Finished, HookReport, Origin, PcapEncoder,
        PcapngEncoder, Writer,
    },
    stats::{
        Budget, NicCounters, QueueCounters, QueueLedger, RingState, nic_sum,
        outage::{OutageLog, Outages},
    },
    verbs::{AsyncEvent, AsyncEvents},
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::AsFd,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use wqcap_rss::profile::HashDepth;

mod clock;
mod loss;
pub mod port;
mod respread;
mod rules;
pub mod supervisor;
mod wq_flags;

use clock::{Clock, ClockWatch};
pub use respread::{Respread, Respreading};
pub use wq_flags::WqFlagsHandle;

/// How often a waiting hand looks at its flags.
const LOOK: Duration = Duration::from_millis(20);
/// Between taking the rules away and asking the loops to drain: frames already in the NIC come out by then.
const SETTLE: Duration = Duration::from_millis(2);

/// When a run ends by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// After this many captured frames, exactly.
    pub count: Option<u64>,
    /// After this long from the first WQ ready.
    pub duration: Option<Duration>,
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
    /// By queue.
    orders: Vec<Arc<Orders>>,
    /// Why CVLAN stripping cannot be turned on, if it cannot.
    no_stripping: Option<String>,
    stripping: Arc<AtomicBool>,
    spreading: respread::Spreading,
    /// What a rule table is made into rules with.
    depth: HashDepth,
    clock: Option<Clock>,
    nic: Arc<NicReader>,
    limits: Limits,
    on_port_down: OnPortDown,
    started: Instant,
    ready: Instant,
    end: Option<End>,
}

/// What loops and hand share.
#[derive(Clone)]
struct Shared {
    control: Arc<Control>,
    counters: Vec<Arc<QueueCounters>>,
    budget: Option<Arc<Budget>>,
    filter: Arc<FilterCell>,
    /// What the NIC's rules take, where they were made of the filter.
    split: Option<Arc<Split>>,
    /// By queue and parser.
    stages: Vec<Arc<StageCounters>>,
    /// Frames are parsed, so that the malformed are counted.
    parses: bool,
    /// Each frame's FCS is checked.
    verifies: bool,
    /// Times in which nothing could be received.
    outages: OutageLog,
    /// What this capture goes on from.
    earlier: Option<Arc<Report>>,
}

/// What there is before the first verb.
struct Beginning {
    started: Instant,
    counters: Vec<Arc<QueueCounters>>,
    clock: ClockWatch,
    outages: OutageLog,
    earlier: Option<Arc<Report>>,
}

impl Beginning {
    fn of(plan: &Plan, earlier: Option<&Report>) -> Self {
        Self {
            started: Instant::now(),
            counters: plan.queues.iter().map(|_| Arc::default()).collect(),
            clock: ClockWatch::default(),
            outages: OutageLog::of(earlier.map_or_else(Outages::default, |it| it.outages.clone())),
            earlier: earlier.cloned().map(Arc::new),
        }
    }
}

/// Counters of a moment, for progress lines.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Since the first WQ was ready, without the time in which the device was lost.
    pub elapsed: Duration,
    /// By queue.
    pub queues: Vec<QueueLedger>,
    /// By queue.
    pub rings: Vec<RingState>,
    /// What the NIC lost, by the counters' own names.
    pub nic: NicCounters,
    /// Times in which nothing could be received.
    #[serde(skip)]
    pub outages: Outages,
}

/// Why a run ended.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Asked to: a signal, a command.
    Stopped,
    /// [`Limits::count`] reached.
    Count,
    /// [`Limits::duration`] over.
    Duration,
    /// The port went down and the configuration says to stop there; a finite wire has ended.
    PortDown,
    /// The device is gone; the text says how it was noticed.
    DeviceLost(String),
    /// Files can no longer be written; the text names the file and the error.
    Storage(String),
    /// A queue could not be recovered.
    Failed(String),
    /// Whoever read the stream on stdout has gone.
    ReaderLeft,
}

impl End {
    /// Whether this is a failure: exit status 1.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::DeviceLost(_) | Self::Storage(_) | Self::Failed(_)
        )
    }

    /// Whether another capture can go on from here once the device is back.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::DeviceLost(_))
    }
}

/// What a finished run tells; the source of `--summary`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Why it ended.
    pub end: End,
    /// By queue.
    pub queues: Vec<QueueLedger>,
    /// What the NIC lost during the run.
    pub nic: NicCounters,
    /// Malformed frames by class, of those that were parsed; `None`: nothing in this run parses.
    pub malformed: Option<BTreeMap<&'static str, u64>>,
    /// Live statistics as they were at the end; `None`: they were off.
    pub statistics: Option<live::TrafficSnapshot>,
    /// Frames whose FCS was checked; `None`: `capture.verify_fcs` is off.
    pub fcs: Option<FcsReport>,
    /// Flow records; `None`: there were none to write.
    pub flows: Option<FlowsReport>,
    /// Finished files that are still there, in name order.
    pub files: Vec<PathBuf>,
    /// Old files deleted to keep within limits; `None`: nothing is ever deleted.
    pub deleted: Option<Deleted>,
    /// How the hooks went; `None`: there are none.
    pub hooks: Option<HookReport>,
    /// Times in which nothing could be received.
    #[serde(skip)]
    pub outages: Outages,
    /// From the first WQ ready to the last file synced and closed, without the time in which the device was lost.
    pub duration: Duration,
    /// From start to the first WQ ready.
    pub startup: Duration,
    /// How the device's clock went; `None` with software stamps.
    pub clock: Option<ClockReport>,
    /// What happened on the way that a reader of the files should know, a line each.
    pub notes: Vec<String>,
}

impl Report {
    /// Two runs of one plan told as one: what was counted is added up, and the later one says how it ended.
    #[must_use]
    pub fn followed_by(self, later: Self) -> Self {
        let queues = self.queues.iter().zip(&later.queues);
        let mut files = [self.files, later.files].concat();
        if later.deleted.is_some() {
            // The later run may have deleted files of the earlier one.
            files.retain(|path| path.exists());
        }
        files.sort();
        Self {
            end: later.end,
            queues: queues.map(|(a, b)| a.plus(b)).collect(),
            nic: nic_sum(self.nic, later.nic),
            malformed: added(self.malformed, later.malformed, |sum, more| {
                for (class, n) in more {
                    *sum.entry(class).or_default() += n;
                }
            }),
            statistics: later.statistics,
            fcs: added(self.fcs, later.fcs, |sum, more| *sum += more),
            flows: added(self.flows, later.flows, FlowsReport::absorb),
            files,
            deleted: added(self.deleted, later.deleted, |sum, more| {
                sum.files += more.files;
                sum.bytes += more.bytes;
            }),
            hooks: added(self.hooks, later.hooks, |sum, more| {
                sum.succeeded += more.succeeded;
                sum.failed += more.failed;
                sum.not_run += more.not_run;
            }),
            outages: self.outages.plus(later.outages),
            duration: self.duration + later.duration,
            startup: self.startup,
            clock: match (self.clock, later.clock) {
                (Some(earlier), Some(later)) => Some(later.after(&earlier)),
                (earlier, later) => later.or(earlier),
            },
            notes: [self.notes, later.notes].concat(),
        }
    }
}

/// What two runs have of something, where both have it.
fn added<T>(one: Option<T>, other: Option<T>, add: impl FnOnce(&mut T, T)) -> Option<T> {
    match (one, other) {
        (Some(mut sum), Some(more)) => {
            add(&mut sum, more);
            Some(sum)
        }
        (one, other) => one.or(other),
    }
}

impl Capture {
    /// Creates every object of the plan, starts the loops, and lets frames in.
    ///
    /// # Errors
    /// A verb or a file failed; nothing is left behind.
    pub fn start(plan: &Plan, limits: Limits) -> Result<Self, Error> {
        Self::begin(plan, limits, Beginning::of(plan, None))
    }

    fn begin(plan: &Plan, limits: Limits, beginning: Beginning) -> Result<Self, Error> {
        match plan.output.format {
            Format::Pcap => {
                let encoder = PcapEncoder::new(plan.snaplen).with_fcs(plan.scatters_fcs());
                Self::to_files(plan, limits, beginning, &encoder)
            }
            Format::Pcapng => {
                let interface = plan
                    .netdev
                    .clone()
                    .unwrap_or_else(|| format!("{} port {}", plan.device.name, plan.port));
                let encoder = PcapngEncoder::new(plan.snaplen, interface)
                    .with_fcs(plan.scatters_fcs())
                    .from_origin(origin(plan))
                    .with_clock(plan.stamp_form().map(|_| Arc::clone(&beginning.clock)))
                    .with_outages(beginning.outages.clone());
                Self::to_files(plan, limits, beginning, &encoder)
            }
            Format::None => Self::to_made(plan, limits, beginning, &|_| Count),
        }
    }

    /// The same with consumers of one's own in place of files. `make` is called for each place where frames are worked
    /// on: once a queue, or once for each parser of a queue. What they answer is the ledger's line of each frame.
    ///
    /// # Errors
    /// A verb failed; nothing is left behind.
    pub fn start_with<C: Consumer + 'static>(
        plan: &Plan,
        limits: Limits,
        make: impl Fn(Place) -> C,
    ) -> Result<Self, Error> {
        Self::to_made(plan, limits, Beginning::of(plan, None), &make)
    }

    fn to_made<C: Consumer + 'static>(
        plan: &Plan,
        limits: Limits,
        beginning: Beginning,
        make: &impl Fn(Place) -> C,
    ) -> Result<Self, Error> {
        let sources = plan.queues.iter().map(|queue| Made {
            queue: queue.index,
            make,
        });
        Self::with(plan, limits, beginning, None, sources)
    }

    fn to_files<E: Encoder>(
        plan: &Plan,
        limits: Limits,
        beginning: Beginning,
        encoder: &E,
    ) -> Result<Self, Error> {
        let files = Files {
            output: plan.output.clone(),
            snaplen: plan.snaplen as usize,
            // A VLAN tag that is put back stands in front of what the buffers hold.
            longest: plan.buffer as usize * plan.max_sge as usize + 4,
            hook_process: plan.hook_process.clone(),
        };
        let counters = &beginning.counters;
        if plan.output.stdout {
            // Past std's own buffer, which would hide how much was taken.
            let out = std::io::stdout().as_fd().try_clone_to_owned();
            let out = out.map_err(|source| Error::System {
                what: "stdout".into(),
                source,
            })?;
            let written = Writer::start_stream(&files, encoder, counters, File::from(out))?;
            Self::to_sinks(plan, limits, beginning, written)
        } else if plan.output.order == Order::Time {
            let written = Writer::start_ordered(&files, encoder, counters)?;
            Self::to_sinks(plan, limits, beginning, written)
        } else {
            let written = Writer::start(&files, encoder, counters)?;
            Self::to_sinks(plan, limits, beginning, written)
        }
    }

    fn to_sinks<C: Consumer + 'static>(
        plan: &Plan,
        limits: Limits,
        beginning: Beginning,
        (writer, sinks): (Writer, Vec<C>),
    ) -> Result<Self, Error> {
        let sources = sinks.into_iter().map(ToSink);
        Self::with(plan, limits, beginning, Some(writer), sources)
    }

    fn with<S: Source>(
        plan: &Plan,
        limits: Limits,
        beginning: Beginning,
        writer: Option<Writer>,
        sources: impl Iterator<Item = S>,
    ) -> Result<Self, Error> {
        let observers = Observers::start(plan, plan.stages() / plan.queues.len())?;
        let mut port = Port::open(plan)?;
        let events = AsyncEvents::of(port.context())?;
        let nic = NicReader::start(
            &plan.device.name,
            plan.port,
            plan.netdev.as_deref(),
            plan.delays_drop(),
        );
        let nic = Arc::new(nic);
        let mut rings = Vec::with_capacity(plan.queues.len());
        let mut ready = None;
        for queue in &plan.queues {
            rings.push(port.ring(plan, queue.index)?);
            ready.get_or_insert_with(Instant::now);
        }
        port.spread(&rings)?;
        let clock = Clock::start(plan, &port, beginning.clock)?;
        let shared = Shared {
            control: Arc::default(),
            counters: beginning.counters,
            budget: limits.count.map(|n| Arc::new(Budget::new(n))),
            filter: Arc::new(FilterCell::new(plan.reduction.filter.clone())),
            split: plan.steering.split.clone().map(Arc::new),
            stages: (0..plan.stages()).map(|_| Arc::default()).collect(),
            parses: plan.parses(),
            verifies: plan.reduction.verify_fcs,
            outages: beginning.outages,
            earlier: beginning.earlier,
        };
        let fatal: Vec<_> = rings
            .iter()
            .map(|r| (r.wq().id(), Arc::default()))
            .collect();
        let mut capture = Self {
            port,
            events,
            loops: Vec::with_capacity(rings.len()),
            writer,
            shared,
            observers,
            fatal,
            orders: plan.queues.iter().map(|_| Arc::default()).collect(),
            no_stripping: wq_flags::refusal(plan),
            stripping: Arc::new(AtomicBool::new(plan.strips_vlan())),
            spreading: respread::Spreading::of(plan),
            depth: plan.depth,
            clock,
            nic,
            limits,
            on_port_down: plan.on_port_down,
            started: beginning.started,
            ready: ready.unwrap_or(beginning.started),
            end: None,
        };
        for (i, (ring, source)) in rings.into_iter().zip(sources).enumerate() {
            match plan.pipeline.mode {
                PipelineMode::Inline => capture.inline(plan, i, ring, source)?,
                PipelineMode::Fanout => capture.fanout(plan, i, ring, source)?,
            }
        }
        capture.look_at_port();
        capture.is_back();
        if let Err(e) = capture.port.let_in(plan)
            // A device that is lost meanwhile is read of as that of any capture under way, and what has come is kept.
            && capture.port.ask().is_ok()
        {
            return Err(e);
        }
        Ok(capture)
    }

    /// Starts one queue's loop with its consumer.
    fn inline<S: Source>(
        &mut self,
        plan: &Plan,
        i: usize,
        ring: Ring,
        source: S,
    ) -> Result<(), Error> {
        let cell = Arc::clone(&self.shared.filter);
        let stage = self.shared.stage(i, plan, cell, self.observers.observer(i));
        let counters = Arc::clone(&self.shared.counters[i]);
        let consumer = source.inline();
        // Made on the loop's own core, so that its memory is near.
        self.spawn(plan, i, ring, move || {
            Inline::new(stage(consumer), counters)
        })
    }

    /// Starts one queue's parsers, and its loop in front of them.
    fn fanout<S: Source>(
        &mut self,
        plan: &Plan,
        i: usize,
        ring: Ring,
        source: S,
    ) -> Result<(), Error> {
        let queue = &plan.queues[i];
        let parsers = u16::try_from(queue.parsers.len()).unwrap_or(u16::MAX);
        let (consumers, sink) = source.fanout(parsers);
        let attr = FanoutAttr {
            queue: queue.index,
            slots: plan.ring,
            seats: &queue.parsers,
            rest: if plan.idle == config::Idle::Sleep {
                Rest::Sleep
            } else {
                Rest::Spin
            },
            on_full: plan.pipeline.on_full,
            sink,
            ordered: S::ORDERED,
            memory: Arc::clone(ring.memory()),
            counters: Arc::clone(&self.shared.counters[i]),
            budget: self.shared.budget.clone(),
            cell: Arc::clone(&self.shared.filter),
        };
        let filter = self.shared.filter.get();
        let first = queue.parsers.len() * i;
        let stages = (first..).zip(consumers).map(|(at, consumer)| {
            let cell = Arc::new(FilterCell::new((*filter).clone()));
            let observer = self.observers.observer(at);
            let stage = self.shared.stage(at, plan, Arc::clone(&cell), observer);
            (cell, move || stage(consumer))
        });
        let outlet = Fanout::start(attr, stages)?;
        self.spawn(plan, i, ring, move || outlet)
    }

    /// Starts one queue's loop on its core.
    fn spawn<O: Outlet>(
        &mut self,
        plan: &Plan,
        i: usize,
        ring: Ring,
        outlet: impl FnOnce() -> O + Send + 'static,
    ) -> Result<(), Error> {
        let queue = &plan.queues[i];
        let counters = Arc::clone(&self.shared.counters[i]);
        let clock = self.clock.as_ref().map(|c| Arc::clone(&c.shared));
        let control = Arc::clone(&self.shared.control);
        let budget = self.shared.budget.clone();
        let wq_fatal = Arc::clone(&self.fatal[i].1);
        let orders = Arc::clone(&self.orders[i]);
        let sampler = self.spreading.sampler(i);
        let idle = match (plan.idle == config::Idle::Sleep, queue.shared_core) {
            (true, _) => Idle::Sleep,
            (false, true) => Idle::Yield,
            (false, false) => Idle::Spin,
        };
        let (core, number, batch) = (queue.core, queue.index, plan.batch);
        let thread = std::thread::Builder::new()
            .name(format!("wqcap-q{number:02}"))
            .spawn(move || {
                pin(core, format_args!("queue {number}"));
                let worker = Worker {
                    queue: number,
                    ring,
                    outlet: outlet(),
                    batch,
                    idle,
                    counters,
                    clock,
                    control,
                    budget,
                    wq_fatal,
                    orders,
                    sampler,
                };
                // The last block of a file goes to the writer with the outlet.
                worker.run()
            })
            .map_err(|source| Error::System {
                what: format!("the thread of queue {number}"),
                source,
            })?;
        self.loops.push(thread);
        Ok(())
    }

    /// As [`CaptureHandle::set_filter`].
    ///
    /// # Errors
    /// The expression is none; the filter that held holds on.
    pub fn set_filter(&self, expression: &str) -> Result<FilterChange, Error> {
        self.share().set_filter(expression)
    }

    /// For other threads, which look at the capture and change its filter while one waits for its end.
    #[must_use]
    pub fn share(&self) -> CaptureHandle {
        CaptureHandle {
            shared: self.shared.clone(),
            nic: Arc::clone(&self.nic),
            backlog: self.writer.as_ref().and_then(Writer::backlog),
            ready: self.ready,
        }
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

    /// Takes the rules away: nothing more comes in, and files are completed. Everything else stays, for
    /// [`Capture::resume`].
    pub fn pause(&mut self) {
        self.port.shut();
        std::thread::sleep(SETTLE);
        self.rotate();
        self.shared.note(format!(
            "nothing was let in from {:.3} s on",
            self.ready.elapsed().as_secs_f64()
        ));
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
        self.shared.note(format!(
            "frames were let in again from {:.3} s on",
            self.ready.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    /// The traffic of now; `None`: statistics are off ([`Plan::statistics`]). Never slows the loops.
    #[must_use]
    pub fn statistics(&self) -> Option<live::TrafficSnapshot> {
        self.observers.statistics().map(live::Statistics::snapshot)
    }

    /// For those who read statistics while another thread waits for the capture's end.
    #[must_use]
    pub fn statistics_handle(&self) -> Option<live::Statistics> {
        self.observers.statistics().cloned()
    }

    /// How the device's clock went so far; `None` with software stamps.
    #[must_use]
    pub fn clock(&self) -> Option<ClockReport> {
        self.clock.as_ref().map(Clock::report)
    }

    /// Waits until the run has ended by itself, `deadline` has come, or a signal handler has run; true when the run
    /// has ended. Reads the device's events and holds its clock meanwhile.
    pub fn wait(&mut self, deadline: Instant) -> bool {
        loop {
            self.look();
            let now = Instant::now();
            if self.end.is_some() || now >= deadline {
                return self.end.is_some();
            }
            let rest = deadline.duration_since(now).min(LOOK);
            // An interrupted poll returns early, so a signal's flag is seen at once by the caller.
            if !wait_readable(self.port.context().async_fd(), rest) && Instant::now() < now + rest {
                return false;
            }
        }
    }

    /// Looks at everything that can end a run.
    fn look(&mut self) {
        while let Some(event) = self.events.take() {
            self.handle(event);
        }
        if self.end.as_ref().is_some_and(End::is_loss) {
            // Nothing that the device says of its clock counts any more.
            return;
        }
        if let Some(told) = self.clock.as_mut().and_then(|it| it.look(&self.port)) {
            let after = self.ready.elapsed().as_secs_f64();
            self.shared
                .note(format!("{told}, found after {after:.3} s"));
        }
        self.look_at_load();
        if self.end.is_some() {
            return;
        }
        self.end = if self.shared.control.failed.load(Ordering::Acquire) {
            // The loop's own words come with its thread.
            Some(self.lost_or(End::Failed(String::new())))
        } else if self.writer.as_ref().is_some_and(Writer::has_failed) {
            Some(End::Storage(String::new()))
        } else if self.writer.as_ref().is_some_and(Writer::reader_has_left) {
            Some(End::ReaderLeft)
        } else if self.shared.budget.as_ref().is_some_and(|b| b.is_used_up()) {
            Some(End::Count)
        } else if self
            .limits
            .duration
            .is_some_and(|d| self.ready.elapsed() >= d)
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

    /// Tells everybody that the end has come. The writer too: a loop may wait for it, and it for room on the disk.
    fn hurry(&self) {
        self.shared.control.stop.store(true, Ordering::Release);
        if let Some(writer) = &self.writer {
            writer.hurry();
        }
    }

    /// Ends the run in order: rules away, rings drained, files closed.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.look();
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
            statistics: self.statistics(),
            fcs: self.shared.fcs(),
            flows,
            files: finished.files,
            deleted: finished.deleted,
            hooks: finished.hooks,
            outages: outages.clone(),
            duration: self.ready.elapsed(),
            startup: self.ready.duration_since(self.started),
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

impl End {
    /// Lets a failure's own words replace an end that is none, or a failure still without words. Gives back what a
    /// reader should know beside the failure that there is already.
    fn explain(&mut self, failure: Self) -> Option<String> {
        match (&*self, failure) {
            (
                Self::Failed(words) | Self::Storage(words) | Self::DeviceLost(words),
                Self::Failed(more) | Self::Storage(more),
            ) if !words.is_empty() => Some(more),
            (_, failure) => {
                *self = failure;
                None
            }
        }
    }
}

/// A running capture, seen from any thread: snapshots, and what can be changed without its owner.
#[derive(Clone)]
pub struct CaptureHandle {
    shared: Shared,
    nic: Arc<NicReader>,
    backlog: Option<Backlog>,
    ready: Instant,
}

/// One change of the filter.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct FilterChange {
    /// Nanoseconds since 1970. Each queue follows with its next batch.
    pub ns: u64,
    /// The expression before.
    pub before: String,
    /// The expression from now on.
    pub after: String,
}

impl CaptureHandle {
    /// As [`Capture::snapshot`].
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut nic = self.nic.growth();
        if let Some(earlier) = &self.shared.earlier {
            nic = nic_sum(earlier.nic.clone(), nic);
        }
        self.snapshot_beside(nic)
    }

    /// The same with the NIC's counters of another look: reading them takes system calls, the rest a few loads.
    #[must_use]
    pub fn snapshot_beside(&self, nic: NicCounters) -> Snapshot {
        let mut elapsed = self.ready.elapsed();
        let mut queues = self.shared.ledgers();
        if let Some(earlier) = &self.shared.earlier {
            elapsed += earlier.duration;
            for (queue, before) in queues.iter_mut().zip(&earlier.queues) {
                *queue = before.plus(queue);
            }
        }
        Snapshot {
            elapsed,
            queues,
            rings: self.shared.counters.iter().map(|it| it.ring()).collect(),
            nic,
            outages: self.shared.outages.get(),
        }
    }

    /// What the writer has to do; `None`: nothing is written to files.
    #[must_use]
    pub fn backlog(&self) -> Option<&Backlog> {
        self.backlog.as_ref()
    }

    /// The filter that holds; empty: every frame.
    #[must_use]
    pub fn filter(&self) -> String {
        self.shared.filter.get().expression().to_owned()
    }

    /// Lets another filter hold from each queue's next batch on. Notes it in the report; sinks that keep notes are
    /// told between the frames it holds for and those before ([`Consumer::changed`]).
    ///
    /// # Errors
    /// The expression is none, or the NIC's rules, which were made of the first one, do not take all it keeps; the
    /// filter that held holds on.
    pub fn set_filter(&self, expression: &str) -> Result<FilterChange, Error> {
        let refused =
            |problem: String| Error::config("capture.filter", format!("{expression:?}"), problem);
        let filter = Filter::compile(expression).map_err(|e| refused(e.to_string()))?;
        if let Some(split) = &self.shared.split {
            split.allows(&filter).map_err(refused)?;
        }
        let before = self.shared.filter.set(filter);
        let change = FilterChange {
            ns: system_ns(),
            before: before.expression().to_owned(),
            after: expression.to_owned(),
        };
        self.shared.note(format!(
            "the filter was changed after {:.3} s from {:?} to {:?}",
            self.ready.elapsed().as_secs_f64(),
            change.before,
            change.after
        ));
        Ok(change)
    }
}

impl Shared {
    /// Makes the stage in front of a consumer.
    fn stage<C: Consumer, O>(
        &self,
        i: usize,
        plan: &Plan,
        cell: Arc<FilterCell>,
        observer: O,
    ) -> impl FnOnce(C) -> Stage<C> + Send + use<C, O>
    where
        O: FnOnce() -> Observer + Send,
    {
        let reduction = plan.reduction.clone();
        let counters = Arc::clone(&self.stages[i]);
        move |sink| Stage::new(sink, &reduction, cell, counters, observer())
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
        self.verifies.then(|| {
            let mut sum = FcsReport::default();
            for counters in &self.stages {
                sum += counters.fcs();
            }
            sum
        })
    }

    fn ledgers(&self) -> Vec<QueueLedger> {
        (0u16..)
            .zip(&self.counters)
            .map(|(queue, c)| c.ledger(queue))
            .collect()
    }

    fn note(&self, note: String) {
        tracing::info!("{note}");
        if let Ok(mut notes) = self.control.notes.lock() {
            notes.push(note);
        }
    }
}

/// What pcapng files tell of this run.
fn origin(plan: &Plan) -> Origin {
    let port = plan.device.ports.iter().find(|p| p.number == plan.port);
    let (vendor, part) = plan.device.vendor_part;
    let stamps = match (plan.stamps, plan.real_time) {
        (Stamps::HardwareSystem, false) => "the NIC's clock, held to the system's",
        (Stamps::HardwareSystem, true) => "the NIC's real-time clock, held to the system's",
        (Stamps::HardwareNic, false) => "the NIC's clock as it runs",
        (Stamps::HardwareNic, true) => "the NIC's real-time clock as it runs",
        (Stamps::Software, _) => "the system's clock, once a batch",
    };
    let speed = port.map_or(0, |p| (p.rate_gbps * 1e9) as u64);
    Origin {
        description: format!("{} port {}", plan.device.name, plan.port),
        device: format!("{vendor:04x}:{part:04x}, firmware {}", plan.device.firmware),
        speed,
        filter: plan.reduction.filter.expression().to_owned(),
        comment: format!("stamps: {stamps}"),
        ..Origin::here()
    }
}
