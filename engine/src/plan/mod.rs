//! Configuration and device facts in, a complete plan out: all meaning is settled here, before the first verb
//! that creates anything. `wqcap check` prints a plan; [`crate::capture`] carries it out.

mod any_device;
mod constraints;
mod found;
mod memory;
mod output;
mod queues;
mod receive;
mod reduction;
pub mod respread;
pub mod simulate;
mod stamps;
pub mod steering;
mod target;
mod visibility;

pub(crate) use output::longest;
pub use queues::QueuePlan;
pub use receive::QueueMemory;
pub(crate) use reduction::compiled;
pub use reduction::reduction;
pub use stamps::Stamps;

use crate::{
    Error,
    analysis::flows::FlowsPlan,
    config::{self, Config},
    device::DeviceFacts,
    pipeline::reduce::Reduction,
    rx::clock::Form,
    sink::{FinishTimes, HookProcess, KeptRing, OutputPlan},
    verbs::{CVLAN_STRIPPING, DELAY_DROP, MiniFormat, Moderation, SCATTER_FCS},
};
use found::Found;
use serde::{Serialize, Serializer};
use std::sync::Arc;
use steering::Steering;
use wqcap_files::sealed::SecretKey;
use wqcap_rss::{key::RssKey, profile::HashDepth};

/// What a run will create, touch and write.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// The device.
    pub device: DeviceFacts,
    /// Port number.
    pub port: u8,
    /// The kernel's network interface over the port.
    pub netdev: Option<String>,
    /// One entry for each queue.
    pub queues: Vec<QueuePlan>,
    /// The shared RWQ indirection table: a queue number for each entry.
    pub table: Vec<u16>,
    /// The RSS QPs and flow rules.
    pub steering: Steering,
    /// How deep the hash reaches.
    #[serde(serialize_with = "text")]
    pub depth: HashDepth,
    /// Even the queues' load out at run time.
    pub respread: bool,
    /// The Toeplitz key, as the configuration names it.
    #[serde(serialize_with = "text")]
    pub key: RssKey,
    /// Creation flags of the WQs (`ibv_wq_flags`).
    pub wq_flags: u32,
    /// The memory of each queue's ring.
    #[serde(flatten)]
    pub ring: QueueMemory,
    /// How completions are compressed; `None`: they are not.
    #[serde(rename = "cqe_compression")]
    pub compression: Option<MiniFormat>,
    /// Registered memory of all queues together, in bytes.
    pub memory: u64,
    /// Longest record in bytes; 0 means whole frames.
    pub snaplen: u32,
    /// Who works on frames.
    pub pipeline: PipelinePlan,
    /// What is left out, or cut off, on purpose.
    pub reduction: Reduction,
    /// Keep live statistics.
    pub statistics: bool,
    /// Flow records; `None`: none.
    pub flows: Option<FlowsPlan>,
    /// How stamps are made.
    pub stamps: Stamps,
    /// The device stamps in UTC, instead of counting ticks.
    pub real_time: bool,
    /// Reach rings in their own memory where the device allows it, else by the verbs.
    pub direct: bool,
    /// Put VLAN tags back that the NIC takes off.
    pub restore_vlan: bool,
    /// What a loop does with an empty queue.
    pub idle: config::Idle,
    /// Completions that a loop takes with one poll at most.
    pub batch: usize,
    /// When frames wake a sleeper; `None`: at once, for want of the device's moderation or of sleepers.
    pub moderation: Option<Moderation>,
    /// Join promiscuous mode on the network interface.
    pub promiscuous: bool,
    /// When the port goes down.
    pub on_port_down: config::OnPortDown,
    /// What is written.
    pub output: OutputPlan,
    /// The process that runs the hook; `None`: the capture's own.
    #[serde(skip)]
    pub hook_process: Option<Arc<HookProcess>>,
    /// The key of [`OutputPlan::encrypt`]; `None`: it is read when the capture starts.
    #[serde(skip)]
    pub at_rest: Option<Arc<SecretKey>>,
    /// When this run's files were finished, for captures that follow one another in a run.
    #[serde(skip)]
    pub finish_times: FinishTimes,
    /// The writer's ring of io_uring, for a process that may make none later; `None`: each writer makes its own.
    #[serde(skip)]
    pub write_ring: Option<Arc<KeptRing>>,
    /// What the user should know: a warning a line.
    pub notes: Vec<String>,
}

/// Who works on frames.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PipelinePlan {
    /// `inline` or `fanout`.
    pub mode: config::PipelineMode,
    /// When a parser is full: stop polling, or drop.
    pub on_full: config::OnFull,
}

fn text<T: std::fmt::Display, S: Serializer>(it: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(it)
}

/// When frames wake a loop that sleeps: few enough to leave three quarters of the queue, soon enough to be on disk as early,
/// and so many that a wake-up, which costs as much as hundreds of frames, is worth it. Frames that are long are soon enough by
/// the time: in half a millisecond 100 Gbit/s bring 6 MB.
fn wake(ring: &QueueMemory) -> Moderation {
    Moderation {
        count: u16::try_from(ring.cqes() / 4)
            .unwrap_or(u16::MAX)
            .clamp(1, 8192),
        period_us: 500,
    }
}

impl Plan {
    /// Completions that a loop takes with one poll, unless somebody wishes otherwise.
    pub const BATCH: usize = 64;

    /// Stages that work on frames: one for each queue whose loop does so itself, or for each of its parsers.
    #[must_use]
    pub fn stages(&self) -> usize {
        queues::stages(&self.queues)
    }

    /// Whether repetitions are also sought among all queues, in the order of time. Frames are then sampled, cut and observed
    /// behind that step, once for each queue.
    #[must_use]
    pub fn reduces_in_order(&self) -> bool {
        reduces_in_order(&self.output, self.reduction.dedup_ns)
    }

    /// Number of stages that observe frames for statistics and flow records.
    #[must_use]
    pub fn observers(&self) -> usize {
        queues::observers(&self.queues, self.reduces_in_order())
    }

    /// Settles everything a run needs.
    ///
    /// # Errors
    /// The configuration asks for what the device or the machine cannot do: all that it does, each with the key, the value
    /// and the limit.
    pub fn new(config: &Config, devices: &[DeviceFacts]) -> Result<Self, Error> {
        let mut found = Found::default();
        match Self::settle(config, devices, &mut found) {
            Some(plan) if found.is_empty() => Ok(plan),
            _ => Err(found.into()),
        }
    }

    /// Holds a configuration to all that needs no device.
    ///
    /// # Errors
    /// As [`Plan::new`], on whatever device.
    pub fn check_without_device(config: &Config) -> Result<(), Error> {
        Self::new(config, &[any_device::capable_of_all(config)]).map(drop)
    }

    /// `None`, or something in `found`: there is no plan.
    fn settle(config: &Config, devices: &[DeviceFacts], found: &mut Found) -> Option<Self> {
        let reduction = found.keep(reduction::reduction(config));
        found.keep(constraints::verifiable(config));
        let key = config.rss.key.parse();
        let key = key.map_err(|e: wqcap_rss::key::KeyError| {
            Error::config("rss.key", format!("{:?}", config.rss.key), e)
        });
        let key = found.keep(key);
        let Some(device) = found.keep(target::device(config, devices)) else {
            found.keep(Self::check_without_device(config));
            return None;
        };
        let port = found.keep(target::port(config, device));
        let caps = &device.caps;
        let mut notes = Vec::new();
        if let Some(port) = port.filter(|port| port.state != "ACTIVE") {
            notes.push(format!(
                "port {} of {} is {}: nothing arrives until it is up",
                port.number, device.name, port.state
            ));
        }
        let allowed = queues::allowed();
        let near = queues::near(device.numa_node, &allowed);
        let buffers = found.keep(constraints::buffers(config, device));
        let wq_flags = found.keep(constraints::wq_flags(config, device));
        let direct = device.direct && config.capture.access == config::Access::Auto;
        found.keep(constraints::tunnels(config, device));
        let queues = found.keep(queues::queues(config, device, &allowed, &near, &mut notes))?;
        let table = found.keep(queues::table(config, queues.len(), caps.max_table));
        notes.extend(port.iter().flat_map(|port| visibility::notes(config, port)));
        let stamps = Stamps::of(&config.capture, device, &mut notes);
        let count = u16::try_from(queues.len()).unwrap_or(u16::MAX);
        let steering = found.keep(Steering::of(config, count));
        let restore_vlan = found.keep(constraints::restores_vlan(config, caps, direct, &mut notes));
        found.keep(constraints::respreadable(config, queues.len()));
        if let Some(port) = port {
            found.keep(target::stolen(config, device, port, &mut notes));
        }
        notes.extend(steering.iter().flat_map(visibility::fragments));
        let (buffers, restore_vlan) = (buffers?, restore_vlan?);
        let ring = QueueMemory::new(config, device, buffers, direct, restore_vlan);
        let ring = found.keep(ring)?;
        // Between frames that lie one behind the other there is no room for a tag.
        let restore_vlan = restore_vlan && ring.striding.is_none();
        found.keep(memory::fits(config, &ring, &queues, memory::of_machine()));
        let compression = receive::compression(config, device, &ring, direct, stamps);
        let compression = found.keep(compression);
        let longest = longest(&ring);
        let output = output::output(config, &queues, longest, &mut notes);
        let output = found.keep(output)?;
        let in_order = reduces_in_order(&output, config.capture.dedup.nanos());
        let stages = queues::observers(&queues, in_order);
        let dir = output.dir.as_deref();
        let flows = config.flows.as_ref();
        let flows = flows.map(|it| output::flows(it, dir, stages, memory::of_cutoff(config)));
        let flows = found.keep(flows.transpose())?;
        let idle = config.capture.idle.unwrap_or_default();
        let port = port?;
        Some(Self {
            port: port.number,
            netdev: port.netdev.clone(),
            memory: ring.registered() * queues.len() as u64,
            queues,
            table: table?,
            steering: steering?,
            wq_flags: wq_flags?,
            key: key?,
            ring,
            compression: compression?,
            snaplen: config.capture.snaplen.to_u32(),
            pipeline: PipelinePlan {
                mode: config.pipeline.mode,
                on_full: config.pipeline.on_full.unwrap_or_default(),
            },
            reduction: reduction::divide_cutoff(reduction?, stages, flows.as_ref()),
            statistics: config.statistics(),
            flows,
            // By the verbs, completions would be lost: see `CompletionStamps::RealTime`. Held to the system's clock they
            // would need looks at the clock that they are of, and the driver shows another one (see `Form::RealTime`).
            real_time: stamps == Stamps::HardwareNic && caps.real_time && direct,
            stamps,
            direct,
            depth: steering::depth(config),
            respread: config.rss.respread,
            restore_vlan,
            idle,
            batch: Self::BATCH,
            moderation: Some(wake(&ring))
                .filter(|it| idle == config::Idle::Sleep && caps.max_cq_period >= it.period_us),
            promiscuous: config.capture.promiscuous,
            on_port_down: config.capture.on_port_down.unwrap_or_default(),
            output,
            hook_process: None,
            at_rest: None,
            finish_times: FinishTimes::default(),
            write_ring: None,
            notes,
            device: device.clone(),
        })
    }

    /// Writes out in the configuration of this plan what it has settled, and all defaults that depend on the run.
    pub fn fill_in(&self, config: &mut Config) {
        config.device.name = Some(self.device.name.clone());
        config.device.netdev = None;
        let capture = &mut config.capture;
        capture.queues = u16::try_from(self.queues.len()).ok();
        capture.cores = Some(self.queues.iter().map(|queue| queue.core).collect());
        capture.idle = Some(self.idle);
        capture.on_port_down = Some(self.on_port_down);
        config.pipeline.on_full = Some(self.pipeline.on_full);
        config.output.on_full.get_or_insert(self.output.on_full);
        config.fill_in();
    }

    /// What a completion's stamp is; `None`: nobody asks the device for one.
    #[must_use]
    pub fn stamp_form(&self) -> Option<Form> {
        match self.stamps {
            Stamps::Software => None,
            _ if self.real_time => Some(Form::RealTime),
            _ => Some(Form::ticks(self.device.caps.timestamp_mask)),
        }
    }

    /// Whether the NIC delivers each frame's FCS.
    #[must_use]
    pub fn scatters_fcs(&self) -> bool {
        self.wq_flags & SCATTER_FCS != 0
    }

    /// Whether the NIC takes CVLAN tags off from the start.
    #[must_use]
    pub fn strips_vlan(&self) -> bool {
        self.wq_flags & CVLAN_STRIPPING != 0
    }

    /// Whether the NIC holds the wire for a while when a WQ has no buffers.
    #[must_use]
    pub fn delays_drop(&self) -> bool {
        self.wq_flags & DELAY_DROP != 0
    }

    /// Whether frames are parsed, so that malformed ones can be counted.
    #[must_use]
    pub fn parses(&self) -> bool {
        self.reduction.parses() || self.statistics || self.flows.is_some()
    }
}

/// As [`Plan::reduces_in_order`], before there is a plan.
fn reduces_in_order(output: &OutputPlan, dedup_ns: u64) -> bool {
    output.is_ordered() && dedup_ns > 0
}

#[cfg(test)]
mod tests;
