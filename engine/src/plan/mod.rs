//! Configuration and device facts in, a complete plan out: all meaning is settled here, before the first verb
//! that creates anything. `wqcap check` prints a plan; [`crate::capture`] carries it out.

pub mod respread;
pub mod steering;
mod visibility;

use crate::{
    Error,
    analysis::flows::FlowsPlan,
    config::{self, Config},
    device::{DeviceCaps, DeviceFacts, PortFacts, clock::Form, management},
    filter::Filter,
    pipeline::{Seat, reduce::Reduction},
    sink::{HookProcess, Retention, Rotation, Share},
    verbs::{CVLAN_STRIPPING, DELAY_DROP, Moderation, PCI_WRITE_END_PADDING, SCATTER_FCS},
};
use serde::{Serialize, Serializer};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use steering::Steering;
use wqcap_rss::{key::RssKey, profile::HashDepth, table::IndirectionTable};

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
    #[serde(serialize_with = "name_of_key")]
    pub key: RssKey,
    /// Creation flags of the WQs (`ibv_wq_flags`).
    pub wq_flags: u32,
    /// WRs per queue.
    pub ring: u32,
    /// Bytes of one scatter entry.
    pub buffer: u32,
    /// Scatter entries of one WR.
    pub max_sge: u32,
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
    /// Empty queues sleep on their channel instead of spinning.
    pub sleep: bool,
    /// Completions that a loop takes with one poll at most.
    pub batch: usize,
    /// When frames wake a sleeper; `None`: at once, for want of the device's moderation or of sleepers.
    pub moderation: Option<Moderation>,
    /// Join promiscuous mode on the network interface.
    pub promiscuous: bool,
    /// End the run when the port goes down.
    pub stop_on_port_down: bool,
    /// What is written.
    pub output: OutputPlan,
    /// What the user should know: a warning a line.
    pub notes: Vec<String>,
}

/// One receive queue: an `ibv_wq` with its CQ, polled on one core.
#[derive(Clone, Debug, Serialize)]
pub struct QueuePlan {
    /// Number, from 0; it is in the file's name.
    pub index: u16,
    /// CPU the loop is pinned to.
    pub core: usize,
    /// Another loop or a parser has the same core: an empty poll yields instead of spinning.
    pub shared_core: bool,
    /// Where its parsers run; none with an inline pipeline.
    pub parsers: Vec<Seat>,
}

/// Who works on frames.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PipelinePlan {
    /// `inline` or `fanout`.
    pub mode: config::PipelineMode,
    /// When a parser is full: stop polling, instead of dropping.
    pub hold: bool,
}

/// Files of the run.
#[derive(Clone, Debug, Serialize)]
pub struct OutputPlan {
    /// Where; `None`: nothing is written, frames are counted.
    pub dir: Option<PathBuf>,
    /// One stream to stdout in place of files, in the order of time.
    pub stdout: bool,
    /// One file in the order of time in place of one for each queue.
    pub by_time: bool,
    /// `pcap`, `pcapng` or `none`.
    pub format: config::Format,
    /// Bytes of write buffers of all queues together.
    pub buffer: u64,
    /// When every buffer waits for the disk: wait too, instead of dropping.
    pub hold: bool,
    /// When a queue goes on to its next file.
    pub rotation: Rotation,
    /// How files are compressed.
    pub compress: config::Compress,
    /// Cores for that, which no queue has.
    pub spare_cores: Vec<usize>,
    /// What stays of finished files.
    pub keep: Retention,
    /// The program to run after each finished file.
    pub hook: Option<PathBuf>,
    /// The process that runs it; `None`: the capture's own.
    #[serde(skip)]
    pub hook_process: Option<Arc<HookProcess>>,
    /// The folder of indexes of finished files.
    pub index_dir: Option<PathBuf>,
    /// What becomes of tags that the NIC takes off.
    pub vlan: config::Vlan,
}

fn name_of_key<S: Serializer>(key: &RssKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(key)
}

fn text<T: std::fmt::Display, S: Serializer>(it: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(it)
}

/// How stamps are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stamps {
    /// The device's clock, held to the system's.
    HardwareSystem,
    /// The device's clock as it runs.
    HardwareNic,
    /// The system clock when a batch was polled.
    Software,
}

/// Most queues a plan has by default.
const DEFAULT_QUEUES: usize = 8;
/// When frames wake a loop that sleeps: few enough to leave the ring almost empty, soon enough not to be noticed beside
/// the wake-up itself.
const WAKE: Moderation = Moderation {
    count: 32,
    period_us: 20,
};

impl Plan {
    /// Completions that a loop takes with one poll, unless somebody wishes otherwise.
    pub const BATCH: usize = 64;

    /// Stages that work on frames: one for each queue whose loop does so itself, or for each of its parsers.
    #[must_use]
    pub fn stages(&self) -> usize {
        stages(&self.queues)
    }

    /// Bytes in front of each slot, where VLAN tags are put back.
    #[must_use]
    pub fn headroom(&self) -> usize {
        headroom(self.restore_vlan)
    }

    /// Settles everything a run needs.
    ///
    /// # Errors
    /// The configuration asks for what the device or the machine cannot do; the error names the key, the value
    /// and the limit.
    pub fn new(config: &Config, devices: &[DeviceFacts]) -> Result<Self, Error> {
        let reduction = reduction(&config.capture)?;
        let device = choose(config, devices)?;
        let port = device
            .ports
            .iter()
            .find(|p| p.number == config.device.port)
            .ok_or_else(|| {
                Error::config(
                    "device.port",
                    config.device.port,
                    format!("{} has ports 1 to {}", device.name, device.ports.len()),
                )
            })?;
        if !port.ethernet {
            return Err(Error::config(
                "device.port",
                port.number,
                "its link layer is not Ethernet; only Ethernet ports can be captured",
            ));
        }
        let mut notes = Vec::new();
        if port.state != "ACTIVE" {
            notes.push(format!(
                "port {} of {} is {}: nothing arrives until it is up",
                port.number, device.name, port.state
            ));
        }
        let caps = &device.caps;
        let queues = queues(config, device, &mut notes)?;
        let table = table(config, queues.len(), caps.max_table)?;
        let (ring, buffer, max_sge) = buffers(config, caps)?;
        let wq_flags = wq_flags(config, device)?;
        notes.extend(visibility::notes(config, port));
        let stamps = match (config.capture.timestamps, config.capture.clock) {
            (config::Timestamps::Software, _) => Stamps::Software,
            (config::Timestamps::Hardware, _)
                if caps.clock_khz == 0 || caps.timestamp_mask == 0 =>
            {
                notes.push(format!(
                    "{} stamps no completions: capture.timestamps is software",
                    device.name
                ));
                Stamps::Software
            }
            (config::Timestamps::Hardware, config::Clock::System) => Stamps::HardwareSystem,
            (config::Timestamps::Hardware, config::Clock::Nic) => Stamps::HardwareNic,
        };
        let steering = Steering::of(config, u16::try_from(queues.len()).unwrap_or(u16::MAX))?;
        let direct = device.direct && config.capture.access == config::Access::Auto;
        if config.wq.cvlan_stripping && config.output.vlan == config::Vlan::Restore && !direct {
            return Err(Error::config(
                "wq.cvlan_stripping",
                true,
                "the verbs do not tell which frames lost a tag, so it cannot be put back; leave the flag off, set \
                 output.vlan = \"lost\", or capture.access = \"auto\" on a device with direct verbs",
            ));
        }
        if config.wq.cvlan_stripping && config.output.vlan == config::Vlan::Lost {
            notes.push(
                "output.vlan = \"lost\": the files do not hold the outer VLAN tags (TPID 0x8100)"
                    .into(),
            );
        }
        verifiable(config)?;
        // Stripping may be turned on later: the room to put a tag back must be there from the start.
        let restore_vlan =
            direct && caps.cvlan_stripping && config.output.vlan == config::Vlan::Restore;
        let slot = u64::from(buffer) * u64::from(max_sge) + headroom(restore_vlan) as u64;
        respreadable(config, queues.len())?;
        tunnels(config, device)?;
        stolen(config, device, port, &mut notes)?;
        let key = config
            .rss
            .key
            .parse()
            .map_err(|e: wqcap_rss::key::KeyError| Error::config("rss.key", &config.rss.key, e))?;
        let spare_cores = spare_cores(&config.output, &queues, &mut notes);
        let stdout = config.output.is_stdout();
        let dir = match config.output.format {
            config::Format::None => None,
            _ if stdout => None,
            _ => Some(config.output.dir.clone()),
        };
        let flows = config
            .flows
            .as_ref()
            .map(|it| flows(it, dir.as_deref(), stages(&queues)))
            .transpose()?;
        let sleep = config.capture.idle == config::Idle::Sleep;
        Ok(Self {
            port: port.number,
            netdev: port.netdev.clone(),
            memory: u64::from(ring) * slot * queues.len() as u64,
            queues,
            table,
            steering,
            wq_flags,
            key,
            ring,
            buffer,
            max_sge,
            snaplen: config.capture.snaplen.to_u32(),
            pipeline: PipelinePlan {
                mode: config.pipeline.mode,
                hold: config.pipeline.on_full() == config::OnFull::Hold,
            },
            reduction,
            statistics: config.statistics(),
            flows,
            // By the verbs, completions would be lost: see `CompletionStamps::RealTime`.
            real_time: stamps != Stamps::Software && caps.real_time && direct,
            stamps,
            direct,
            depth: steering::depth(config),
            respread: config.rss.respread,
            restore_vlan,
            sleep,
            batch: Self::BATCH,
            moderation: (sleep && caps.max_cq_period >= WAKE.period_us).then_some(WAKE),
            promiscuous: config.capture.promiscuous,
            stop_on_port_down: config.capture.on_port_down() == config::OnPortDown::Stop,
            output: OutputPlan {
                dir,
                stdout,
                by_time: config.output.order == config::Order::Time,
                format: config.output.format,
                buffer: config.output.buffer.0,
                vlan: config.output.vlan,
                hold: config.output.on_full() == config::OnFull::Hold,
                rotation: Rotation {
                    size: config.output.rotate_size.0,
                    period_ns: u64::try_from(config.output.rotate_time.0.as_nanos())
                        .unwrap_or(u64::MAX),
                },
                compress: config.output.compress,
                spare_cores,
                keep: keep(&config.output),
                hook: hook(&config.output)?,
                hook_process: None,
                index_dir: (!config.output.index_dir.as_os_str().is_empty())
                    .then(|| config.output.index_dir.clone()),
            },
            notes,
            device: device.clone(),
        })
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

/// What the stage before the sinks does.
fn reduction(capture: &config::CaptureConfig) -> Result<Reduction, Error> {
    let filter = Filter::compile(&capture.filter)
        .map_err(|e| Error::config("capture.filter", format!("{:?}", capture.filter), e))?;
    Ok(Reduction::new(
        filter,
        u64::try_from(capture.dedup.0.as_nanos()).unwrap_or(u64::MAX),
        capture.sample,
        capture.sample_by,
        capture.slice,
    )
    .verifying(capture.verify_fcs))
}

/// Hashing what is in tunnels takes a device that can.
fn tunnels(config: &Config, device: &DeviceFacts) -> Result<(), Error> {
    let has = device.caps.tunnels;
    let missing = match (has.vxlan, has.gre) {
        _ if !config.rss.inner => return Ok(()),
        (true, true) => return Ok(()),
        (false, _) => "MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_VXLAN",
        (_, false) => "MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_GRE",
    };
    Err(Error::config(
        "rss.inner",
        true,
        format!("{} lacks {missing}; leave it off", device.name),
    ))
}

/// Re-spreading needs something to spread over.
fn respreadable(config: &Config, queues: usize) -> Result<(), Error> {
    let problem = if !config.rss.respread {
        return Ok(());
    } else if config.rss.inner {
        "with rss.inner it is not known what flows inside tunnels load a queue with; leave one of them off"
    } else if queues < 2 {
        "there is one queue; set capture.queues"
    } else {
        return Ok(());
    };
    Err(Error::config("rss.respread", true, problem))
}

/// An FCS can be checked where it is delivered, with the frame that it belongs to.
fn verifiable(config: &Config) -> Result<(), Error> {
    if !config.capture.verify_fcs {
        return Ok(());
    }
    if !config.wq.scatter_fcs {
        return Err(Error::config(
            "capture.verify_fcs",
            true,
            "the NIC keeps the FCS to itself; set wq.scatter_fcs = true",
        ));
    }
    if config.wq.cvlan_stripping && config.output.vlan == config::Vlan::Lost {
        return Err(Error::config(
            "capture.verify_fcs",
            true,
            "the FCS belongs to the frame with its VLAN tag; set output.vlan = \"restore\", or wq.cvlan_stripping = false",
        ));
    }
    Ok(())
}

/// Cores that compress: those this process may use and no loop or parser has.
fn spare_cores(
    output: &config::OutputConfig,
    queues: &[QueuePlan],
    notes: &mut Vec<String>,
) -> Vec<usize> {
    if output.compress == config::Compress::None || output.format == config::Format::None {
        return Vec::new();
    }
    let cores: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|core| core.id)
        .filter(|id| {
            let taken = |queue: &QueuePlan| {
                queue.core == *id || queue.parsers.iter().any(|seat| seat.core == *id)
            };
            !queues.iter().any(taken)
        })
        .collect();
    if cores.is_empty() {
        notes.push(
            "output.compress: every core has a loop or a parser, so compression takes time from them; name fewer capture.cores"
                .into(),
        );
    }
    cores
}

/// What stays of finished files.
fn keep(output: &config::OutputConfig) -> Retention {
    Retention {
        bytes: match output.keep {
            config::Keep::Size(config::Size(0)) => None,
            config::Keep::Size(size) => Some(Share::Bytes(size.0)),
            config::Keep::Percent(n) => Some(Share::Percent(n)),
        },
        files: output.keep_files,
    }
}

/// The hook, by a path that does not depend on PATH.
fn hook(output: &config::OutputConfig) -> Result<Option<PathBuf>, Error> {
    if output.hook.as_os_str().is_empty() {
        return Ok(None);
    }
    std::path::absolute(&output.hook)
        .map(Some)
        .map_err(|e| Error::config("output.hook", output.hook.display(), e))
}

/// What flow records are written.
fn flows(
    flows: &config::FlowsConfig,
    output: Option<&Path>,
    stages: usize,
) -> Result<FlowsPlan, Error> {
    if !cfg!(feature = "flows") {
        return Err(Error::config(
            "flows",
            flows.dir.display(),
            "this build has no flow records; build it with cargo's feature `flows`",
        ));
    }
    let same = |output: &Path| {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        real(output) == real(&flows.dir)
    };
    if output.is_some_and(same) {
        return Err(Error::config(
            "flows.dir",
            flows.dir.display(),
            "output.dir holds capture files only; name another folder",
        ));
    }
    let nanoseconds = |span: config::Span| u64::try_from(span.0.as_nanos()).unwrap_or(u64::MAX);
    Ok(FlowsPlan {
        dir: flows.dir.clone(),
        interval_ns: nanoseconds(flows.interval),
        active_ns: nanoseconds(flows.active),
        idle_ns: nanoseconds(flows.idle),
        capacity: FlowsPlan::capacity_of(flows.memory.0 / stages.max(1) as u64),
    })
}

/// As [`Plan::stages`].
fn stages(queues: &[QueuePlan]) -> usize {
    queues.iter().map(|queue| queue.parsers.len().max(1)).sum()
}

/// As [`Plan::headroom`]: a cache line, so that frames stay aligned.
fn headroom(restore_vlan: bool) -> usize {
    if restore_vlan { 64 } else { 0 }
}

/// The device the configuration means.
fn choose<'d>(config: &Config, devices: &'d [DeviceFacts]) -> Result<&'d DeviceFacts, Error> {
    let names = || {
        devices
            .iter()
            .map(|d| d.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let known = || {
        if devices.is_empty() {
            "there is no RDMA device".to_owned()
        } else {
            format!("there are: {}", names())
        }
    };
    let device = match (&config.device.name, &config.device.netdev) {
        (Some(name), _) => devices
            .iter()
            .find(|d| d.name == *name)
            .ok_or_else(|| Error::config("device.name", name, known()))?,
        (None, Some(netdev)) => devices
            .iter()
            .find(|d| d.ports.iter().any(|p| p.netdev.as_ref() == Some(netdev)))
            .ok_or_else(|| {
                Error::config(
                    "device.netdev",
                    netdev,
                    format!("no RDMA device has this interface; {}", known()),
                )
            })?,
        (None, None) => match devices {
            [] => {
                return Err(Error::Device(
                    "there is no RDMA device on this machine".into(),
                ));
            }
            [one] => one,
            _ => {
                return Err(Error::Device(format!(
                    "there are several RDMA devices ({}): set device.name or device.netdev",
                    names()
                )));
            }
        },
    };
    if device.missing.is_empty() {
        Ok(device)
    } else {
        Err(Error::Device(format!(
            "{} cannot capture: it lacks {}",
            device.name,
            device.missing.join(", ")
        )))
    }
}

/// How many queues, and on which cores.
fn queues(
    config: &Config,
    device: &DeviceFacts,
    notes: &mut Vec<String>,
) -> Result<Vec<QueuePlan>, Error> {
    let allowed: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|c| c.id)
        .collect();
    let cores = match &config.capture.cores {
        Some(cores) => {
            if let Some(core) = cores.iter().find(|c| !allowed.contains(c)) {
                return Err(Error::config(
                    "capture.cores",
                    core,
                    format!("this process may run on {allowed:?}"),
                ));
            }
            cores.clone()
        }
        None => near(device.numa_node, &allowed),
    };
    if cores.is_empty() {
        return Err(Error::config(
            "capture.cores",
            "[]",
            "name at least one core, or leave the key out",
        ));
    }
    let usual = match config.capture.mode {
        // One is all it takes: see `Steering`.
        config::Mode::Sniffer => 1,
        _ => cores.len().min(DEFAULT_QUEUES),
    };
    let count = config.capture.queues.map_or(usual, usize::from);
    let most = device.caps.max_wq.min(device.caps.max_table) as usize;
    if count == 0 || count > most {
        return Err(Error::config(
            "capture.queues",
            count,
            format!("{} takes 1 to {most}", device.name),
        ));
    }
    if count > cores.len() {
        notes.push(format!("capture.queues = {count}, but there are {} cores for them: loops share cores and yield when empty", cores.len()));
    }
    let loops: Vec<usize> = (0..count).map(|i| cores[i % cores.len()]).collect();
    let parsers = match config.pipeline.mode {
        config::PipelineMode::Inline => Vec::new(),
        config::PipelineMode::Fanout => {
            let wanted = count * usize::from(config.pipeline.parsers_per_queue);
            parser_cores(&loops, &near(device.numa_node, &allowed), wanted, notes)
        }
    };
    let is_shared = |core: usize| {
        let threads = loops.iter().chain(&parsers).filter(|it| **it == core);
        threads.count() > 1
    };
    let mut seats = parsers.iter().map(|&core| Seat {
        core,
        shared_core: is_shared(core),
    });
    let queue = |(index, &core)| QueuePlan {
        index,
        core,
        shared_core: is_shared(core),
        parsers: seats.by_ref().take(parsers.len() / count).collect(),
    };
    Ok((0..).zip(&loops).map(queue).collect())
}

/// Cores for so many parsers: those that no loop has, in turn; all, where loops have all.
fn parser_cores(
    loops: &[usize],
    near: &[usize],
    wanted: usize,
    notes: &mut Vec<String>,
) -> Vec<usize> {
    let free: Vec<usize> = near
        .iter()
        .copied()
        .filter(|core| !loops.contains(core))
        .collect();
    let cores = if free.is_empty() { near } else { &free };
    if free.len() < wanted {
        notes.push(format!(
            "pipeline.parsers_per_queue: {wanted} parsers, but {} cores beside those of the loops: they share cores; \
             fewer capture.queues leave more",
            free.len()
        ));
    }
    cores.iter().copied().cycle().take(wanted).collect()
}

/// The allowed CPUs of the device's NUMA node; all allowed ones where there is none to prefer.
fn near(node: Option<u32>, allowed: &[usize]) -> Vec<usize> {
    let list = node.and_then(|n| {
        std::fs::read_to_string(format!("/sys/devices/system/node/node{n}/cpulist")).ok()
    });
    let on_node: Vec<usize> = list.map(|l| cpus(l.trim())).unwrap_or_default();
    let both: Vec<usize> = allowed
        .iter()
        .copied()
        .filter(|c| on_node.contains(c))
        .collect();
    if both.is_empty() {
        allowed.to_vec()
    } else {
        both
    }
}

/// The kernel's list form, `0-3,8`.
fn cpus(list: &str) -> Vec<usize> {
    list.split(',')
        .filter_map(|part| {
            let (a, b) = part.split_once('-').unwrap_or((part, part));
            Some(a.parse::<usize>().ok()?..=b.parse::<usize>().ok()?)
        })
        .flatten()
        .collect()
}

/// The shared indirection table.
fn table(config: &Config, queues: usize, most: u32) -> Result<Vec<u16>, Error> {
    let size = config.rss.table_size;
    if size > most {
        return Err(Error::config(
            "rss.table_size",
            size,
            format!("the device takes a power of two up to {most}"),
        ));
    }
    let queues = u16::try_from(queues).unwrap_or(u16::MAX);
    let table = IndirectionTable::new(size, queues, &config.rss.weights)
        .map_err(|e| Error::config("rss.table_size", size, e))?;
    Ok(table.entries().to_vec())
}

/// WRs, bytes and scatter entries, held to the device's limits.
fn buffers(config: &Config, caps: &DeviceCaps) -> Result<(u32, u32, u32), Error> {
    let (ring, buffer, max_sge) = (
        config.capture.ring,
        config.capture.buffer,
        config.capture.max_sge,
    );
    // libmlx5 rounds the WRs up to a power of two; what is more than asked for would stay empty.
    if !ring.is_power_of_two() || ring > caps.max_wq_wr {
        let below = ring
            .checked_next_power_of_two()
            .unwrap_or(u32::MAX)
            .min(caps.max_wq_wr);
        return Err(Error::config(
            "capture.ring",
            ring,
            format!("a power of two up to {}; {below}, say", caps.max_wq_wr),
        ));
    }
    if max_sge == 0 || max_sge > caps.max_sge {
        return Err(Error::config(
            "capture.max_sge",
            max_sge,
            format!("the device takes 1 to {}", caps.max_sge),
        ));
    }
    let bytes = buffer.to_u32();
    if bytes < 64 {
        return Err(Error::config(
            "capture.buffer",
            buffer,
            "the shortest frame has 64 bytes",
        ));
    }
    Ok((ring, bytes, max_sge))
}

/// The WQs' creation flags, each held to what the device can do.
fn wq_flags(config: &Config, device: &DeviceFacts) -> Result<u32, Error> {
    let (wq, caps) = (&config.wq, &device.caps);
    let flags = [
        (
            "wq.cvlan_stripping",
            wq.cvlan_stripping,
            caps.cvlan_stripping,
            "IBV_RAW_PACKET_CAP_CVLAN_STRIPPING",
            CVLAN_STRIPPING,
        ),
        (
            "wq.scatter_fcs",
            wq.scatter_fcs,
            caps.scatter_fcs,
            "IBV_RAW_PACKET_CAP_SCATTER_FCS",
            SCATTER_FCS,
        ),
        (
            "wq.delay_drop",
            wq.delay_drop,
            caps.delay_drop,
            "IBV_RAW_PACKET_CAP_DELAY_DROP",
            DELAY_DROP,
        ),
        (
            "wq.pci_write_end_padding",
            wq.pci_write_end_padding,
            caps.end_padding,
            "IBV_DEVICE_PCI_WRITE_END_PADDING",
            PCI_WRITE_END_PADDING,
        ),
    ];
    let mut bits = 0;
    for (key, _, has, capability, bit) in flags.into_iter().filter(|f| f.1) {
        if !has {
            return Err(Error::config(
                key,
                true,
                format!("{} lacks {capability}; leave the flag off", device.name),
            ));
        }
        bits |= bit;
    }
    Ok(bits)
}

/// What a mode takes from the kernel: a port that the machine is reached by is refused.
fn stolen(
    config: &Config,
    device: &DeviceFacts,
    port: &PortFacts,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    match config.capture.mode {
        config::Mode::Sniffer => {
            notes.push(
                "mode \"sniffer\": the port's own transmissions are captured too, RoCE among them"
                    .into(),
            );
            return Ok(());
        }
        config::Mode::Filtered => {
            let refused = if config.capture.filter.trim().is_empty() {
                ""
            } else {
                ", also where the filter then refuses it"
            };
            notes.push(format!("mode \"filtered\": the kernel no longer gets what the rules take{refused}; fragments have no ports and match no rule with ports"));
            return Ok(());
        }
        config::Mode::Steal => {}
    }
    let Some(netdev) = &port.netdev else {
        return Ok(());
    };
    if device.software {
        // The software NIC copies what its interface receives.
        return Ok(());
    }
    notes.push(format!("mode \"steal\": the kernel gets nothing that arrives on {netdev} while this runs; its own transmissions are not seen"));
    match management::why(netdev) {
        Some(why) if !config.capture.steal_management => Err(Error::config(
            "capture.mode",
            "steal",
            format!(
                "{netdev} {why}, which would be cut off; take another port, mode \"filtered\" or \"sniffer\", or set capture.steal_management = true"
            ),
        )),
        Some(why) => {
            notes.push(format!(
                "capture.steal_management: {netdev} {why}; it is cut off while this runs"
            ));
            Ok(())
        }
        None => Ok(()),
    }
}
