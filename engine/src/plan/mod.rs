//! Plan of a run: configuration and device facts in, a complete plan out.
//!
//! Every setting is resolved here, before the first verb that creates an object. `wqcap check`
//! prints the plan; [`crate::capture`] carries it out.

mod any_device;
mod constraints;
mod found;
mod kernel;
mod memory;
mod output;
mod port;
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
pub use port::PortPlan;
pub use queues::QueuePlan;
pub use receive::QueueMemory;
pub use reduction::compile_filter;
pub use reduction::reduction;
pub use stamps::Stamps;

use crate::{
    Error,
    analysis::flows::FlowsPlan,
    config::{self, Config},
    device::DeviceFacts,
    filter::FilterCompiler,
    pipeline::reduce::Reduction,
    sink::OutputPlan,
    verbs::{Moderation, RingAccess},
};
use found::PlanErrors;
use serde::Serialize;
use steering::Steering;

/// Complete plan of a capture run: the objects it creates, the settings it changes and the files it
/// writes.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Plan of the captured port, of the first one if there are several.
    #[serde(flatten)]
    pub port: PortPlan,
    /// Plans of the run's receive queues, those of all ports.
    pub queues: Vec<QueuePlan>,
    /// `true` if the RSS indirection table is rewritten at run time to even out the queues' load.
    pub respread: bool,
    /// Maximum bytes of a frame that the run writes; 0 means whole frames.
    pub snaplen: u32,
    /// Threads that process received frames.
    pub pipeline: PipelinePlan,
    /// Reduction of the capture: frames and bytes that are left out on purpose.
    pub reduction: Reduction,
    /// `true` if the capture keeps live statistics.
    pub statistics: bool,
    /// Flow records to write; `None` if the run writes none.
    pub flows: Option<FlowsPlan>,
    /// Behaviour of a receive loop while its queue is empty.
    pub idle: config::Idle,
    /// Maximum number of completions taken per poll of a queue.
    pub batch: usize,
    /// Action of the capture when the port goes down.
    pub on_port_down: config::OnPortDown,
    /// Capture files or stream that the run writes.
    pub output: OutputPlan,
    /// Warnings for the user, one line each.
    pub notes: Vec<String>,
}

/// Threads that process received frames, and their behaviour under load.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct PipelinePlan {
    /// Pipeline mode: `inline` or `fanout`.
    pub mode: config::PipelineMode,
    /// Action when a parser thread holds its share of frames: the receive loop stops polling, or
    /// drops frames.
    pub on_full: config::OnFull,
}

/// Returns the completion count and the period after which a sleeping receive loop is woken.
///
/// A wake-up costs as much as hundreds of frames, so it should cover many of them. The count leaves
/// three quarters of the queue free. The period bounds the delay on the way to the disk, and the
/// memory that long frames fill: 100 Gbit/s bring 6 MB in half a millisecond.
fn wake_moderation(ring: &QueueMemory) -> Moderation {
    Moderation {
        count: u16::try_from(ring.cqes() / 4)
            .unwrap_or(u16::MAX)
            .clamp(1, 8192),
        period_us: 500,
    }
}

impl Plan {
    /// Default of [`Plan::batch`]: completions taken per poll of a queue.
    pub const BATCH: usize = 64;

    /// Returns the number of stages that process frames: one per queue when inline, else one per
    /// parser.
    #[must_use]
    pub fn stages(&self) -> usize {
        queues::stages(&self.queues)
    }

    /// Returns `true` if repetitions of frames are also removed across all queues, in time order.
    ///
    /// Frames are then sampled, cut and observed after that step, once for each queue.
    #[must_use]
    pub fn reduces_in_order(&self) -> bool {
        reduces_in_order(&self.output, self.reduction.dedup_ns)
    }

    /// Returns the number of stages that observe frames for statistics and flow records.
    #[must_use]
    pub fn observers(&self) -> usize {
        queues::observers(&self.queues, self.reduces_in_order())
    }

    /// Plans a capture run of `config` on one of `devices`.
    ///
    /// # Errors
    /// The configuration asks for something that the device or the machine cannot do. The error
    /// lists every such setting with its key, its value and the limit.
    pub fn new(config: &Config, devices: &[DeviceFacts]) -> Result<Self, Error> {
        Self::with_filters(config, devices, &FilterCompiler::default())
    }

    /// Plans a capture run like [`Plan::new`]. `filters` compiles its filters; a caller that plans
    /// repeatedly keeps it, because libpcap may need seconds for a long filter.
    ///
    /// # Errors
    /// See [`Plan::new`].
    pub fn with_filters(
        config: &Config,
        devices: &[DeviceFacts],
        filters: &FilterCompiler,
    ) -> Result<Self, Error> {
        let mut found = PlanErrors::default();
        match Self::settle(config, devices, filters, &mut found) {
            Some(plan) if found.is_empty() => Ok(plan),
            _ => Err(found.into()),
        }
    }

    /// Checks the configuration as far as it does not depend on the RDMA device. `filters` compiles
    /// its filters.
    ///
    /// # Errors
    /// The configuration asks for something that [`Plan::new`] refuses on every device.
    pub fn check_without_device(config: &Config, filters: &FilterCompiler) -> Result<(), Error> {
        Self::with_filters(config, &[any_device::capable_of_all(config)], filters).map(drop)
    }

    /// Resolves all settings of a run and adds each error to `found`. A plan is valid only if
    /// `found` stays empty.
    fn settle(
        config: &Config,
        devices: &[DeviceFacts],
        filters: &FilterCompiler,
        found: &mut PlanErrors,
    ) -> Option<Self> {
        let reduction = found.keep(reduction::with_filters(config, filters));
        found.keep(constraints::verifiable(config));
        let key = config.rss.key.parse();
        let key = key.map_err(|e: wqcap_rss::key::KeyError| {
            Error::config("rss.key", format!("{:?}", config.rss.key), e)
        });
        let key = found.keep(key);
        let Some(device) = found.keep(target::device(config, devices)) else {
            found.keep(Self::check_without_device(config, filters));
            return None;
        };
        let backend = found.keep(target::backend(config, device));
        if let Some(kernel) = &device.kernel {
            found.keep(kernel::applicable(config, device, kernel));
        }
        let port = found.keep(target::port(config, device));
        let caps = &device.caps;
        let mut notes = Vec::new();
        if let Some(port) = port.filter(|port| port.state != "ACTIVE") {
            notes.push(format!(
                "port {} of {} is {}: no frames arrive until the port is up",
                port.number, device.name, port.state
            ));
        }
        let allowed = queues::allowed();
        let near = queues::near(device.numa_node, &allowed);
        let buffers = found.keep(constraints::buffers(config, device));
        let wq_flags = found.keep(constraints::wq_flags(config, device));
        let access = match backend {
            Some(config::Backend::Mlx5) => device.access,
            _ => RingAccess::Verbs,
        };
        let rings = access.caps();
        found.keep(constraints::tunnels(config, device));
        let queues = found.keep(queues::queues(config, device, &allowed, &near, &mut notes))?;
        let table = found.keep(queues::table(config, queues.len(), caps.max_table));
        notes.extend(port.iter().flat_map(|port| visibility::notes(config, port)));
        let stamps = Stamps::from_config(&config.capture, device, &mut notes);
        let count = u16::try_from(queues.len()).unwrap_or(u16::MAX);
        let steering = match &device.kernel {
            Some(_) => Some(Steering::default()),
            None => found.keep(Steering::with_filters(config, count, filters)),
        };
        let restore_vlan = found.keep(constraints::restores_vlan(config, caps, rings, &mut notes));
        found.keep(constraints::respreadable(config, queues.len()));
        if let Some(port) = port.filter(|_| device.kernel.is_none()) {
            found.keep(target::stolen(config, device, port, &mut notes));
        }
        notes.extend(steering.iter().flat_map(visibility::fragments));
        let (buffers, restore_vlan) = (buffers?, restore_vlan?);
        let ring = match &device.kernel {
            Some(_) => kernel::ring(port, queues.len()),
            None => found.keep(QueueMemory::new(
                config,
                device,
                buffers,
                rings,
                restore_vlan,
            ))?,
        };
        // Frames that share a buffer follow each other directly and leave no room for a tag.
        let restore_vlan = restore_vlan && ring.striding.is_none();
        let buffer = match &device.kernel {
            Some(_) => kernel::write_buffers(port),
            None => config::OutputConfig::BUFFER,
        };
        let buffer = config.output.buffer.unwrap_or(buffer);
        let there = memory::of_machine();
        found.keep(memory::fits(config, &ring, &queues, buffer, there));
        let compression = receive::compression(config, device, &ring, rings, stamps);
        let compression = found.keep(compression);
        let longest = longest(&ring);
        let output = output::output(config, &queues, buffer, longest, &mut notes);
        let output = found.keep(output)?;
        let in_order = reduces_in_order(&output, config.capture.dedup.nanos());
        let stages = queues::observers(&queues, in_order);
        let dir = output.dir.as_deref();
        let flows = config.flows.as_ref();
        let flows = flows.map(|it| output::flows(it, dir, stages, memory::of_cutoff(config)));
        let flows = found.keep(flows.transpose())?;
        let idle = match &device.kernel {
            Some(_) => config::Idle::Sleep,
            None => config::Idle::default(),
        };
        let idle = config.capture.idle.unwrap_or(idle);
        let port = port?;
        let moderation = Some(wake_moderation(&ring))
            .filter(|it| idle == config::Idle::Sleep && caps.max_cq_period >= it.period_us);
        let port = PortPlan {
            backend: backend?,
            direction: kernel::direction(config, device),
            number: port.number,
            netdev: port.netdev.clone(),
            memory: ring.registered() * queues.len() as u64,
            table: table?,
            steering: steering?,
            wq_flags: wq_flags?,
            key: key?,
            ring,
            compression: compression?,
            // Through the verbs, completions would be lost: see `CompletionStamps::RealTime`.
            // Disciplining the stamps to the system clock needs readings of the clock that makes
            // them, and the driver shows another clock (see `Form::RealTime`).
            real_time: stamps == Stamps::HardwareNic && caps.real_time && rings.real_time,
            stamps,
            access,
            depth: steering::depth(config),
            restore_vlan,
            moderation,
            promiscuous: config.capture.promiscuous,
            device: device.clone(),
        };
        Some(Self {
            port,
            queues,
            snaplen: config.capture.snaplen.to_u32(),
            pipeline: PipelinePlan {
                mode: config.pipeline.mode,
                on_full: config.pipeline.on_full.unwrap_or_default(),
            },
            reduction: reduction::divide_cutoff(reduction?, stages, flows.as_ref()),
            statistics: config.statistics(),
            flows,
            respread: config.rss.respread,
            idle,
            batch: Self::BATCH,
            on_port_down: config.capture.on_port_down.unwrap_or_default(),
            output,
            notes,
        })
    }

    /// Writes the plan's resolved settings, and all defaults that depend on the run, into its
    /// configuration.
    pub fn fill_in(&self, config: &mut Config) {
        self.name_device(config);
        let capture = &mut config.capture;
        capture.queues = u16::try_from(self.queues.len()).ok();
        capture.cores = Some(self.queues.iter().map(|queue| queue.core).collect());
        capture.idle = Some(self.idle);
        capture.on_port_down = Some(self.on_port_down);
        config.pipeline.on_full = Some(self.pipeline.on_full);
        config.output.on_full.get_or_insert(self.output.on_full);
        let buffer = config::Size(self.output.buffer);
        config.output.buffer.get_or_insert(buffer);
        config.set_defaults();
    }

    /// Writes the plan's device into its configuration: the name of the RDMA device, or of the
    /// ordinary network interface.
    pub fn name_device(&self, config: &mut Config) {
        let name = Some(self.port.device.name.clone());
        (config.device.name, config.device.netdev) = match self.port.device.kernel {
            Some(_) => (None, name),
            None => (name, None),
        };
    }

    /// Returns `true` if the run parses frames, so that malformed ones can be counted.
    #[must_use]
    pub fn parses(&self) -> bool {
        self.reduction.parses() || self.statistics || self.flows.is_some()
    }
}

/// Returns the value of [`Plan::reduces_in_order`] while the plan is being made: `true` if
/// repetitions of frames are removed across all queues.
fn reduces_in_order(output: &OutputPlan, dedup_ns: u64) -> bool {
    output.is_ordered() && dedup_ns > 0
}

#[cfg(test)]
mod tests;
