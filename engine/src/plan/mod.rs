//! Plan of a run: configuration and device facts in, a complete plan out.
//!
//! Every setting is resolved here, before the first verb that creates an object. `wqcap check`
//! prints the plan; [`crate::capture`] carries it out.

mod any_device;
mod constraints;
mod control_group;
mod descriptors;
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

pub use descriptors::DescriptorPlan;
pub use memory::available_memory;
pub use output::limits as output_limits;
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
};
use found::PlanErrors;
use serde::Serialize;

/// Complete plan of a capture run: the objects it creates, the settings it changes and the files it
/// writes.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Plan of the captured port, of the first one if there are several.
    #[serde(flatten)]
    pub port: PortPlan,
    /// Plans of the other captured ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_ports: Vec<PortPlan>,
    /// Plans of the run's receive queues, those of all ports.
    pub queues: Vec<QueuePlan>,
    /// `true` if the RSS indirection table is rewritten at run time to even out the queues' load.
    pub respread: bool,
    /// Maximum bytes of a frame that the run writes; 0 means whole frames.
    pub snaplen: u32,
    /// Threads that process received frames, and their behaviour under load.
    pub pipeline: PipelinePlan,
    /// Reduction of the capture: frames and bytes that are left out on purpose.
    pub reduction: Reduction,
    /// `true` if the capture keeps live statistics.
    pub statistics: bool,
    /// Flow records to write; `None` if the run writes none.
    pub flows: Option<FlowsPlan>,
    /// Maximum number of completions taken per poll of a queue.
    pub batch: usize,
    /// Action of the capture when the port goes down.
    pub on_port_down: config::OnPortDown,
    /// Action when a captured device or interface is lost: the run stops, or searches for it.
    #[serde(skip)]
    pub on_loss: config::OnLoss,
    /// Capture files or stream that the run writes.
    pub output: OutputPlan,
    /// File descriptors that the run may have at the same time.
    #[serde(skip)]
    pub descriptors: DescriptorPlan,
    /// Warnings about the run for the user, one line each.
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

impl Plan {
    /// Default of [`Plan::batch`]: completions taken per poll of a queue.
    pub const BATCH: usize = 64;

    /// Returns the number of stages (filter, deduplication, sampling, cutoff) that process frames:
    /// one per receive loop when inline, else one per parser.
    #[must_use]
    pub fn stages(&self) -> usize {
        match self.is_paired() {
            true => 1,
            false => queues::stages(&self.queues),
        }
    }

    /// Returns the steps that apply to frames after the queues' frames are merged in time order.
    #[must_use]
    pub fn merge(&self) -> Merge {
        let ports = 1 + self.more_ports.len();
        merges(
            &self.output,
            ports,
            self.is_paired(),
            self.reduction.dedup_ns,
        )
    }

    /// Returns `true` if frames pass steps, such as deduplication, after the merge in time order.
    /// Without such steps, queues relay only the bytes that are written.
    #[must_use]
    pub fn has_steps_in_order(&self) -> bool {
        match self.merge() {
            Merge::Nothing | Merge::Loop => false,
            Merge::Queues => true,
            Merge::Ports => {
                self.parses() || self.reduction.sample > 1 || self.reduction.dedup_ns > 0
            }
        }
    }

    /// Returns the number of stages that observe frames for statistics and flow records.
    #[must_use]
    pub fn observers(&self) -> usize {
        queues::observers(&self.queues, self.merge())
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
        let of_ports = config.of_ports();
        let devices: Vec<_> = of_ports.iter().map(any_device::capable_of_all).collect();
        Self::with_filters(config, &devices, filters).map(drop)
    }

    /// Resolves all settings of a run into a plan, and adds each error to `found`. A plan is valid
    /// only if `found` stays empty.
    fn settle(
        config: &Config,
        devices: &[DeviceFacts],
        filters: &FilterCompiler,
        found: &mut PlanErrors,
    ) -> Option<Self> {
        let reduction = found.keep(reduction::with_filters(config, filters));
        found.keep(constraints::verifiable(config));
        let allowed = queues::allowed();
        let of_ports = config.of_ports();
        let chosen = of_ports
            .iter()
            .find_map(|it| target::device(it, devices).ok());
        let near = queues::near(chosen.and_then(|it| it.numa_node), &allowed);
        let cores = found.keep(queues::cores(config, &allowed, &near))?;
        let mut notes = Vec::new();
        let mut ports = Vec::new();
        for (i, config_of_port) in of_ports.iter().enumerate() {
            let mut errors = PlanErrors::default();
            let context = port::PortContext {
                config: config_of_port,
                label: config.port.get(i).map(config::PortConfig::label),
                devices,
                filters,
                cores: cores.len(),
            };
            ports.extend(context.settle(&mut errors, &mut notes));
            found.absorb(errors, (!config.port.is_empty()).then_some(i + 1));
        }
        if ports.len() < of_ports.len() {
            return None;
        }
        target::distinct(&ports, found);
        let counts: Vec<_> = ports.iter().map(|it| it.queues).collect();
        let paired = queues::are_paired(config, &ports, &mut notes);
        ports.iter_mut().for_each(|it| it.paired = paired);
        let queues = match paired {
            true => queues::of_one_loop(ports.len(), cores[0]),
            false => queues::queues(config, &counts, &cores, &near, &mut notes),
        };
        let cpus = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        notes.extend(queues::quota_note(&queues, allowed.len(), cpus));
        let buffer = ports.iter().map(PortPlan::write_buffers).max()?;
        let buffer = config.output.buffer.unwrap_or(buffer);
        let rings = ports
            .iter()
            .map(|it| it.memory + it.ring.cq() * it.queues as u64);
        let there = available_memory();
        found.keep(memory::fits(config, rings.sum(), &queues, buffer, there));
        let longest = ports.iter().map(|it| longest(&it.ring)).max()?;
        let merged = if paired { 0 } else { queues.len() };
        let output = output::output(config, &queues, merged, buffer, longest, &mut notes);
        let output = found.keep(output)?;
        let merges = merges(&output, ports.len(), paired, config.capture.dedup.nanos());
        let stages = queues::observers(&queues, merges);
        let dir = output.dir.as_deref();
        let flows = config.flows.as_ref();
        let flows = flows.map(|it| output::flows(it, dir, stages, memory::of_cutoff(config)));
        let flows = found.keep(flows.transpose())?;
        if ports.len() > 1 && merges == Merge::Nothing && flows.is_some() {
            notes.push(
                "flows: without one file in time order, each port has records of its own, with one direction of a flow; \
                 set output.order = \"time\" for records of both directions"
                    .into(),
            );
        }
        let mut ports = ports.into_iter();
        let mut plan = Self {
            port: ports.next()?,
            more_ports: ports.collect(),
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
            batch: Self::BATCH,
            on_port_down: config.capture.on_port_down.unwrap_or_default(),
            on_loss: config.device.on_loss,
            output,
            descriptors: DescriptorPlan::default(),
            notes,
        };
        plan.descriptors = DescriptorPlan::of(&plan);
        plan.notes.extend(plan.descriptors.note());
        found.keep(output::names_fit(&plan));
        Some(plan)
    }

    /// Returns the plans of all captured ports, in the order of the configuration.
    pub fn ports(&self) -> impl Iterator<Item = &PortPlan> {
        std::iter::once(&self.port).chain(&self.more_ports)
    }

    /// Returns `true` if the run captures several ports.
    #[must_use]
    pub fn has_several_ports(&self) -> bool {
        !self.more_ports.is_empty()
    }

    /// Returns `true` if one receive loop polls the queues of all ports: each port then has one
    /// queue.
    #[must_use]
    pub fn is_paired(&self) -> bool {
        self.port.paired
    }

    /// Returns the name of the captured device, or with several ports their names, joined by `+`.
    #[must_use]
    pub fn names(&self) -> String {
        let labels: Vec<_> = self.ports().map(|it| it.label.as_str()).collect();
        match labels.as_slice() {
            [_] => self.port.device.name.clone(),
            several => several.join("+"),
        }
    }

    /// Returns the names of the captured ports as they occur in the names of capture files.
    pub(crate) fn names_in_files(&self) -> String {
        let names: Vec<_> = self.ports().map(|it| self.name_in_files(it)).collect();
        names.join("+")
    }

    /// Returns the name of a captured port as it occurs in the headers of capture files.
    pub(crate) fn name_in_files(&self, port: &PortPlan) -> String {
        let of_device = || format!("{} port {}", port.device.name, port.number);
        match self.has_several_ports() {
            true => port.label.clone(),
            false => port.netdev.clone().unwrap_or_else(of_device),
        }
    }

    /// Returns the plan of the port that a queue belongs to.
    #[must_use]
    pub fn port_of(&self, queue: &QueuePlan) -> &PortPlan {
        queue
            .port
            .checked_sub(1)
            .map_or(&self.port, |more| &self.more_ports[more])
    }

    /// Returns the plans of the queues of port number `port`, counted from 0.
    pub fn queues_of(&self, port: usize) -> impl Iterator<Item = &QueuePlan> {
        self.queues.iter().filter(move |it| it.port == port)
    }

    /// Writes the plan's resolved settings, and all defaults that depend on the run, into its
    /// configuration.
    pub fn fill_in(&self, config: &mut Config) {
        self.name_device(config);
        let capture = &mut config.capture;
        if self.ports().all(|it| it.queues == self.port.queues) {
            capture.queues = u16::try_from(self.port.queues).ok();
        }
        capture.cores = Some(self.queues.iter().map(|queue| queue.core).collect());
        capture.idle = capture
            .idle
            .or((!self.has_several_ports()).then_some(self.port.idle));
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
        if !config.port.is_empty() {
            return;
        }
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

/// Steps that apply to frames after the queues' frames are merged in time order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Nothing is done after the merge: all steps are done in the queues.
    Nothing,
    /// Repetitions of frames are removed across all queues. Frames are then sampled, cut and
    /// observed, with one stage for each queue.
    Queues,
    /// As with [`Merge::Queues`], but with one stage for all queues: the two directions of a flow
    /// arrive on queues of different ports.
    Ports,
    /// Deduplication, sampling, cutting and observing are done in one receive loop for all ports,
    /// which gets their frames in time order.
    Loop,
}

/// Returns the value of [`Plan::merge`] while the plan is being made.
fn merges(output: &OutputPlan, ports: usize, paired: bool, dedup_ns: u64) -> Merge {
    match ports {
        _ if paired => Merge::Loop,
        _ if !output.is_ordered() => Merge::Nothing,
        1 if dedup_ns == 0 => Merge::Nothing,
        1 => Merge::Queues,
        _ => Merge::Ports,
    }
}

#[cfg(test)]
mod tests;
