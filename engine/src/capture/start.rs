//! Start of a capture: from a plan to running loops. Creates files or consumers, verbs objects and
//! threads; installs the rules last.

use super::{
    CHECK, CHECK_ASLEEP, Capture, Limits, Report, Resources, SharedRun,
    clock::ClockWatch,
    loss::LossSearch,
    open::open_port,
    respread,
    source::{LoopChannels, PortSource, Rings, Sources},
    wq_flags::WqFlagsHandle,
};
use crate::{
    Error, ResourceError,
    analysis::{
        flow_table,
        flows::PortLabels,
        limits::CutoffPlan,
        observer::{Observers, ObserversAttr},
    },
    config::{self, Format, Order, PipelineMode},
    device::counters::NicReaders,
    filter::{FilterCell, FilterCompiler},
    pipeline::{
        Consumer, ConsumerPlace, ConsumerSource, Fanout, FanoutAttr, Inline, Judge, Paired,
        PerThread, ToSink,
        reduce::{Stage, StageCounters},
    },
    plan::{Merge, Plan, PortPlan, Stamps, longest},
    rx::{
        Control, Hold, Idle, Outlet, PairedQueue, PairedWorker, Queue, Replacement, Ring, Worker,
        pin,
    },
    sink::{
        Count, Encoder, InOrder, Origin, OutputPlan, PcapEncoder, PcapngEncoder, PortDescription,
        WriteLimit, Writer, WriterConfig,
    },
    stats::{
        Budget, QueueCounters,
        outage::{OutageLog, OutageReporter, Outages},
    },
    sync::{thread::spawn, wakeup::Wakeup},
};
use crossbeam_channel::{Receiver, Sender};
use std::{fs::File, os::fd::AsFd, sync::Arc, time::Instant};
use wqcap_files::sealed::SecretKey;

/// State of a capture's start before the first verb is called.
pub(super) struct Startup<'p> {
    plan: &'p Plan,
    resources: Resources,
    limits: Limits,
    started: Instant,
    counters: Vec<Arc<QueueCounters>>,
    clock: ClockWatch,
    outages: OutageLog,
    earlier: Option<Arc<Report>>,
    wakeup: Wakeup,
    /// `true` if the stages after the merge by time, not those of the queues, sample, cut and
    /// observe frames.
    in_order: bool,
    /// Counters of the reduction stages of queues and parsers, followed by those of the stages
    /// after the merge by time.
    stages: Vec<Arc<StageCounters>>,
}

impl Capture {
    /// Creates every object of the plan, starts the receive loops, and installs the flow rules.
    /// `wakeup` ends the owner's [`Capture::wait`]; the capture's threads use it, and other threads
    /// may.
    ///
    /// # Errors
    /// A verb or a file operation failed; every object created until then is removed.
    pub fn start(
        plan: &Plan,
        resources: &Resources,
        limits: Limits,
        wakeup: &Wakeup,
    ) -> Result<Self, Error> {
        Startup::new(plan, resources, limits, None, wakeup).begin()
    }

    /// Starts a capture that continues an earlier one of the same plan whose device was lost. The
    /// report has the sum of both captures' counters, and their notes and files. New files are
    /// started; they state what is missing before them. `limits` apply to the rest of the run
    /// ([`Limits::after`]).
    ///
    /// # Errors
    /// The errors of [`Capture::start`]. They are likely while the device is lost; the call may be
    /// repeated.
    pub fn continue_from(
        plan: &Plan,
        resources: &Resources,
        limits: Limits,
        earlier: &Report,
        wakeup: &Wakeup,
    ) -> Result<Self, Error> {
        Startup::new(plan, resources, limits, Some(earlier), wakeup).begin()
    }

    /// Starts a capture with custom consumers instead of files. `make` is called once per queue, or
    /// once for each parser of a queue, or once for the queues of all ports ([`Plan::is_paired`]). The
    /// verdict that a consumer returns selects the frame's
    /// line in the ledger.
    ///
    /// # Errors
    /// A verb failed; every object created until then is removed.
    pub fn start_with<C: Consumer + 'static>(
        plan: &Plan,
        limits: Limits,
        make: impl Fn(ConsumerPlace) -> C,
    ) -> Result<Self, Error> {
        let wakeup = Wakeup::new().map_err(|source| ResourceError::System {
            what: "cannot create an eventfd".into(),
            source,
        })?;
        Startup::new(plan, &Resources::default(), limits, None, &wakeup).with_consumers(&make)
    }
}

impl<'p> Startup<'p> {
    pub(super) fn new(
        plan: &'p Plan,
        resources: &Resources,
        limits: Limits,
        earlier: Option<&Report>,
        wakeup: &Wakeup,
    ) -> Self {
        Self {
            plan,
            resources: resources.clone(),
            limits,
            started: Instant::now(),
            counters: plan.queues.iter().map(|_| Arc::default()).collect(),
            clock: ClockWatch::default(),
            outages: OutageLog::continuing(
                earlier.map_or_else(Outages::default, |it| it.outages.clone()),
            ),
            earlier: earlier.cloned().map(Arc::new),
            wakeup: wakeup.clone(),
            in_order: false,
            stages: (0..plan.stages()).map(|_| Arc::default()).collect(),
        }
    }

    pub(super) fn begin(self) -> Result<Capture, Error> {
        let plan = self.plan;
        match plan.output.format {
            Format::Pcap => {
                let (snaplen, fcs) = (plan.snaplen, plan.ports().all(PortPlan::scatters_fcs));
                self.with_files(&PcapEncoder { snaplen, fcs })
            }
            Format::Pcapng => {
                let encoder = PcapngEncoder {
                    snaplen: plan.snaplen,
                    interfaces: plan.ports().map(|it| described(plan, it)).collect(),
                    ports: plan.queues.iter().map(|it| it.port).collect(),
                    origin: origin(plan),
                    clock: plan
                        .ports()
                        .any(|it| it.stamp_form().is_some())
                        .then(|| Arc::clone(&self.clock)),
                    outages: OutageReporter::new(self.outages.clone()),
                };
                self.with_files(&encoder)
            }
            Format::None => self.with_consumers(&|_| Count),
        }
    }

    fn with_consumers<C: Consumer + 'static>(
        self,
        make: &impl Fn(ConsumerPlace) -> C,
    ) -> Result<Capture, Error> {
        let sources = self.plan.queues.iter().map(|queue| PerThread {
            queue: queue.index,
            make,
        });
        let observers = self.observers()?;
        self.with(None, None, observers, sources)
    }

    fn observers(&self) -> Result<Observers, Error> {
        let plan = self.plan;
        let label = |port: &PortPlan| Arc::from(port.label.as_str());
        let ports: Vec<PortLabels> =
            if plan.is_paired() || self.in_order && plan.merge() == Merge::Ports {
                vec![plan.ports().map(label).collect()]
            } else {
                let queues = plan.queues.iter();
                queues.map(|it| [label(plan.port_of(it))].into()).collect()
            };
        let each = if self.in_order || plan.is_paired() {
            1
        } else {
            plan.stages() / plan.queues.len()
        };
        // Without flow records, each reduction stage has a flow table for the cutoff.
        if let (Some(cutoff), None) = (&plan.reduction.cutoff, &plan.flows) {
            flow_table::check_memory(ports.len() * each, cutoff.capacity, CutoffPlan::FLOW_BYTES)?;
        }
        let attr = ObserversAttr {
            ports: &ports,
            each,
            statistics: plan.statistics,
            system_time: !plan.ports().any(|it| it.stamps == Stamps::HardwareNic) && !self.in_order,
            flows: plan.flows.as_ref(),
        };
        Ok(Observers::start(&attr)?)
    }

    /// Prepares the reduction stages after the merge by time. The merging thread creates them, so
    /// that their memory is on its NUMA node.
    fn steps_in_order(
        &self,
        observers: &Observers,
    ) -> Option<impl FnOnce() -> InOrder + Send + use<>> {
        let plan = self.plan;
        if !self.in_order {
            return None;
        }
        let reduction = plan.reduction.after_order();
        let window = plan.reduction.dedup_window();
        let snaplen = match plan.snaplen {
            0 => usize::MAX,
            snaplen => snaplen as usize,
        };
        let counters = self.stages[plan.stages()..].iter().cloned();
        let observers = (0..plan.observers()).map(|queue| observers.observer(queue));
        let parts: Vec<_> = counters.zip(observers).collect();
        let ports = plan.queues.iter().map(|it| it.port as u8).collect();
        Some(move || {
            let stages = parts.into_iter().map(|(counters, observer)| {
                let stage = Stage::new(Count, &reduction, Arc::default(), counters, observer());
                Box::new(stage) as Box<dyn Judge>
            });
            InOrder::new(window, stages.collect(), ports, snaplen)
        })
    }

    fn with_files<E: Encoder>(mut self, encoder: &E) -> Result<Capture, Error> {
        let plan = self.plan;
        if plan.has_steps_in_order() {
            self.in_order = true;
            let more = (0..plan.observers()).map(|_| Arc::default());
            self.stages.extend(more);
        }
        let observers = self.observers()?;
        let name = &plan.output.name;
        let output = OutputPlan {
            name: name.bind(&Origin::here().host, &plan.names_in_files()),
            ..plan.output.clone()
        };
        let frame = plan.ports().map(|it| longest(&it.ring)).max();
        let mut files = WriterConfig::new(output, frame.unwrap_or_default());
        files.snaplen = plan.snaplen as usize;
        files.hook_process = self.resources.hook_process.clone();
        files.at_rest = encryption_key(plan, &self.resources)?;
        files.finish_times = self.resources.finish_times.clone();
        files.ring = self.resources.write_ring.clone();
        files.limit = self.limits.writes(&self.wakeup).map(Arc::new);
        files.owner = self.wakeup.clone();
        let limit = files.limit.clone();
        let in_order = self.steps_in_order(&observers);
        if plan.output.stdout {
            // Uses a duplicate descriptor: std's buffer would hide how many bytes were written.
            let out = std::io::stdout().as_fd().try_clone_to_owned();
            let out = out.map_err(|source| ResourceError::System {
                what: "cannot duplicate stdout".into(),
                source,
            })?;
            let (writer, sinks) =
                Writer::start_stream(&files, encoder, &self.counters, in_order, File::from(out))?;
            self.with(
                Some(writer),
                limit,
                observers,
                sinks.into_iter().map(ToSink),
            )
        } else if plan.is_paired() {
            let (writer, sinks) = Writer::start_of_ports(&files, encoder, &self.counters)?;
            self.with(
                Some(writer),
                limit,
                observers,
                sinks.into_iter().map(ToSink),
            )
        } else if plan.output.order == Order::Time {
            let (writer, sinks) = Writer::start_ordered(&files, encoder, &self.counters, in_order)?;
            self.with(
                Some(writer),
                limit,
                observers,
                sinks.into_iter().map(ToSink),
            )
        } else {
            let (writer, sinks) = Writer::start(&files, encoder, &self.counters)?;
            self.with(
                Some(writer),
                limit,
                observers,
                sinks.into_iter().map(ToSink),
            )
        }
    }

    fn with<S: ConsumerSource>(
        self,
        writer: Option<Writer>,
        write_limit: Option<Arc<WriteLimit>>,
        observers: Observers,
        sources: impl Iterator<Item = S>,
    ) -> Result<Capture, Error> {
        let (plan, limits) = (self.plan, self.limits);
        let mut ready = None;
        let mut ports = Vec::new();
        let mut readers = Vec::new();
        let mut rings = Vec::new();
        for (i, port) in plan.ports().enumerate() {
            let queues: Vec<_> = plan.queues_of(i).map(|it| it.index).collect();
            let opened = open_port(port, &queues, self.clock.clone(), &mut ready)?;
            let (source, nic, rings_of_port) = opened;
            ports.push(PortSource {
                plan: port.clone(),
                loops: LoopChannels::Device(Vec::new()),
                source,
                reported_odd_frames: 0,
                is_down: false,
                is_gone: false,
            });
            readers.push((port.label.clone(), nic));
            rings.push(rings_of_port);
        }
        let nic = Arc::new(NicReaders::new(readers));
        let shared = SharedRun {
            control: Arc::new(Control::new(&self.wakeup)),
            ready: ready.unwrap_or(self.started),
            counters: self.counters,
            port_of: plan.queues.iter().map(|it| it.port as u16).collect(),
            ports: match plan.has_several_ports() {
                true => plan.ports().map(|it| it.label.clone()).collect(),
                false => Arc::default(),
            },
            budget: limits.count.map(|n| Arc::new(Budget::new(n))),
            filter: Arc::new(FilterCell::new(plan.reduction.filter.clone())),
            filters: FilterCompiler::default(),
            split: plan
                .ports()
                .find_map(|it| it.steering.split.clone())
                .map(Arc::new),
            stages: self.stages,
            reduction: Arc::new(if self.in_order {
                plan.reduction.before_order()
            } else {
                plan.reduction.clone()
            }),
            observes_in_order: self.in_order,
            parses: plan.parses(),
            verifies: plan.reduction.verify_fcs,
            cuts_off: plan.reduction.cutoff.is_some(),
            outages: self.outages,
            earlier: self.earlier,
        };
        let mut capture = Capture {
            sources: Sources::new(ports),
            loops: Vec::with_capacity(plan.queues.len()),
            writer,
            wq_flags: WqFlagsHandle::new(plan, &shared),
            shared,
            observers,
            spreading: respread::Spreading::new(plan),
            depth: plan.port.depth,
            nic,
            limits,
            write_limit,
            on_port_down: plan.on_port_down,
            search: LossSearch::new(plan, self.clock),
            check: if plan.ports().all(|it| it.idle == config::Idle::Sleep) {
                CHECK_ASLEEP
            } else {
                CHECK
            },
            next_check: self.started,
            overdue: None,
            wakeup: self.wakeup,
            started: self.started,
            end: None,
        };
        let (mut first, mut sources, mut pairs) = (0, sources, Vec::new());
        for (port, rings) in rings.into_iter().enumerate() {
            let mut start = Start {
                plan,
                next: &mut first,
                sources: &mut sources,
                pairs: plan.is_paired().then_some(&mut pairs),
            };
            capture.sources.ports_mut()[port].loops = match rings {
                Rings::Device(it) => LoopChannels::Device(capture.start_queues(&mut start, it)?),
                Rings::Packet(it) => LoopChannels::Packet(capture.start_queues(&mut start, it)?),
                Rings::Xdp(it) => LoopChannels::Xdp(capture.start_queues(&mut start, it)?),
            };
        }
        if let Some(source) = sources.next().filter(|_| plan.is_paired()) {
            capture.start_paired(plan, pairs, source)?;
        }
        if let Some(writer) = &mut capture.writer {
            writer.wait_for_memory()?;
        }
        capture.note_port_state();
        capture.end_device_outage();
        if let Err(e) = capture.sources.open(plan)
            // If the device was lost meanwhile, its event ends the capture, and received frames are
            // kept.
            && capture.sources.respond().is_ok()
        {
            return Err(e);
        }
        Ok(capture)
    }
}

/// State of the start of the receive loops of all ports.
struct Start<'s, I> {
    plan: &'s Plan,
    /// Index of the first queue that has no loop yet.
    next: &'s mut usize,
    /// Sources of the frame consumers of the queues that have no loop yet.
    sources: &'s mut I,
    /// Queues of the paired loop; `None`: each queue has a loop of its own.
    pairs: Option<&'s mut Vec<PairedQueue>>,
}

impl Capture {
    /// Starts the receive loops of a port's queues, or prepares the queues for the paired loop,
    /// which polls all ports. Returns the channels for rings that replace those of a lost port;
    /// empty: the loops end with their rings.
    fn start_queues<S: ConsumerSource, Q: Queue + Send + 'static>(
        &mut self,
        start: &mut Start<'_, impl Iterator<Item = S>>,
        rings: Vec<Ring<Q>>,
    ) -> Result<Vec<Sender<Replacement<Q>>>, Error> {
        let mut channels = Vec::new();
        for ring in rings {
            let channel = self.search.is_on().then(crossbeam_channel::unbounded);
            let (to, replacements) = channel.unzip();
            channels.extend(to);
            let (plan, i) = (start.plan, *start.next);
            *start.next += 1;
            if let Some(pairs) = &mut start.pairs {
                let worker = self.worker(plan, i, ring, replacements);
                pairs.push(PairedQueue::new(worker(Hold::default())));
            } else if let Some(source) = start.sources.next() {
                self.start_queue(plan, i, ring, replacements, source)?;
            }
        }
        Ok(channels)
    }

    /// Starts the paired loop, which polls the queues of all ports, with the consumer of their
    /// frames.
    fn start_paired<S: ConsumerSource>(
        &mut self,
        plan: &Plan,
        queues: Vec<PairedQueue>,
        source: S,
    ) -> Result<(), Error> {
        let cell = Arc::clone(&self.shared.filter);
        let stage = self.shared.stage(0, cell, self.observers.observer(0));
        let consumer = source.inline();
        let counters = self.shared.counters.clone();
        let control = Arc::clone(&self.shared.control);
        let budget = self.shared.budget.clone();
        let core = plan.queues[0].core;
        self.loops.push(spawn("wqcap-q00", move || {
            pin(core, format_args!("the queues of all ports"));
            // Created on the loop's core, so that its memory is on the core's NUMA node.
            let outlet = Paired::new(stage(consumer), counters);
            let worker = PairedWorker {
                queues,
                outlet,
                control,
                budget,
            };
            worker.run()
        })?);
        Ok(())
    }

    /// Starts the receive loop of queue `i` with the consumer of its frames, or with parser threads
    /// that have consumers.
    fn start_queue<S: ConsumerSource, Q: Queue + Send + 'static>(
        &mut self,
        plan: &Plan,
        i: usize,
        ring: Ring<Q>,
        replacements: Option<Receiver<Replacement<Q>>>,
        source: S,
    ) -> Result<(), Error> {
        let counters = Arc::clone(&self.shared.counters[i]);
        let cell = Arc::clone(&self.shared.filter);
        if plan.pipeline.mode == PipelineMode::Inline {
            let stage = self.shared.stage(i, cell, self.observers.observer(i));
            let consumer = source.inline();
            // Created on the loop's core, so that its memory is on the core's NUMA node.
            return self.spawn(plan, i, ring, replacements, move || {
                Inline::new(stage(consumer), counters)
            });
        }
        let queue = &plan.queues[i];
        let port = plan.port_of(queue);
        let parsers = u16::try_from(queue.parsers.len()).unwrap_or(u16::MAX);
        let (consumers, sink) = source.fanout(parsers);
        let attr = FanoutAttr {
            queue: queue.index,
            slots: port.ring.parts(),
            seats: &queue.parsers,
            idle: port.idle,
            on_full: plan.pipeline.on_full,
            sink,
            ordered: S::ORDERED,
            memory: Arc::clone(ring.memory()),
            counters,
            budget: self.shared.budget.clone(),
            cell,
        };
        let filter = self.shared.filter.get();
        let first = queue.parsers.len() * i;
        let stages = (first..).zip(consumers).map(|(at, consumer)| {
            let cell = Arc::new(FilterCell::new((*filter).clone()));
            let observer = self.observers.observer(at);
            let stage = self.shared.stage(at, Arc::clone(&cell), observer);
            (cell, move || stage(consumer))
        });
        let outlet = Fanout::start(attr, stages)?;
        self.spawn(plan, i, ring, replacements, move || outlet)
    }

    /// Starts the receive loop of queue `i` in a thread pinned to the queue's core.
    fn spawn<O: Outlet + 'static, Q: Queue + Send + 'static>(
        &mut self,
        plan: &Plan,
        i: usize,
        ring: Ring<Q>,
        replacements: Option<Receiver<Replacement<Q>>>,
        outlet: impl FnOnce() -> O + Send + 'static,
    ) -> Result<(), Error> {
        let worker = self.worker(plan, i, ring, replacements);
        let (core, number) = (plan.queues[i].core, plan.queues[i].index);
        let thread = spawn(&format!("wqcap-q{number:02}"), move || {
            pin(core, format_args!("queue {number}"));
            // Dropping the outlet passes the last block of a file to the writer.
            let (ring, ended) = worker(outlet()).run();
            vec![(number, Box::new(ring) as Box<dyn Send>, ended)]
        })?;
        self.loops.push(thread);
        Ok(())
    }

    /// Returns a function that creates the receive loop of queue `i`, which passes frames to an
    /// outlet.
    fn worker<O, Q: Queue + Send + 'static>(
        &self,
        plan: &Plan,
        i: usize,
        ring: Ring<Q>,
        replacements: Option<Receiver<Replacement<Q>>>,
    ) -> impl FnOnce(O) -> Worker<O, Q> + Send + use<O, Q> {
        let queue = &plan.queues[i];
        let port = plan.port_of(queue);
        let counters = Arc::clone(&self.shared.counters[i]);
        let first = plan.queues_of(queue.port).next().map_or(0, |it| it.index);
        let source = &self.sources.ports()[queue.port].source;
        let (clock, wq_fatal) = source.of_loop(port, usize::from(queue.index - first));
        let control = Arc::clone(&self.shared.control);
        let budget = self.shared.budget.clone();
        let orders = Arc::clone(&self.wq_flags.orders[i]);
        let sampler = self.spreading.sampler(i);
        let idle = Idle::resolve(port.idle, queue.shared_core);
        let (number, batch) = (queue.index, plan.batch);
        move |outlet| Worker {
            queue: number,
            ring,
            outlet,
            batch,
            idle,
            counters,
            clock,
            control,
            budget,
            wq_fatal,
            orders,
            sampler,
            replacements,
        }
    }
}

/// Returns the encryption key of finished capture files.
fn encryption_key(plan: &Plan, resources: &Resources) -> Result<Option<SecretKey>, Error> {
    let Some(source) = &plan.output.encrypt else {
        return Ok(None);
    };
    let key = match &resources.encryption_key {
        Some(key) => key.clone(),
        None => source
            .read()
            .map_err(|problem| Error::config(source.config_key(), source, problem))?,
    };
    Ok(Some(key))
}

/// Returns the description of a captured port for the headers of pcapng files.
fn described(plan: &Plan, port: &PortPlan) -> PortDescription {
    let speed = port.facts().map_or(0, |it| (it.rate_gbps * 1e9) as u64);
    let (description, device) = match &port.device.kernel {
        Some(kernel) => (
            port.device.name.clone(),
            kernel.driver.clone().unwrap_or_default(),
        ),
        None => {
            let (vendor, part) = port.device.vendor_part;
            (
                format!("{} port {}", port.device.name, port.number),
                format!("{vendor:04x}:{part:04x}, firmware {}", port.device.firmware),
            )
        }
    };
    PortDescription {
        name: plan.name_in_files(port),
        description,
        device,
        speed,
        fcs: port.scatters_fcs(),
    }
}

/// Returns the description of this run (program, host, ports, settings) for the headers of pcapng
/// files.
fn origin(plan: &Plan) -> Origin {
    let stamps = |port: &PortPlan| match (port.stamps, port.real_time) {
        (Stamps::HardwareSystem, _) => "NIC clock, adjusted to the system clock",
        (Stamps::HardwareNic, false) => "NIC clock, unadjusted",
        (Stamps::HardwareNic, true) => "NIC real-time clock, unadjusted",
        (Stamps::Kernel, _) => "system clock, for each frame by the kernel",
        (Stamps::Software, _) => "system clock, once per batch",
    };
    let comment = match plan.has_several_ports() {
        false => format!("stamps: {}", stamps(&plan.port)),
        true => {
            let of_port = |it| format!("{} ({})", stamps(it), it.label);
            let of_ports: Vec<_> = plan.ports().map(of_port).collect();
            format!("stamps: {}", of_ports.join("; "))
        }
    };
    Origin {
        filter: plan.reduction.filter.expression().to_owned(),
        comment,
        operator_comment: plan.output.comment.clone(),
        ..Origin::here()
    }
}
