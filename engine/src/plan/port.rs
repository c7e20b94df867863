//! Plan of one captured port: its device, its rings, and how frames are steered to them.

use super::{
    Plan, PlanErrors, QueueMemory, Stamps, constraints, kernel, queues, receive,
    steering::{self, Steering},
    target, visibility,
};
use crate::{
    Error,
    config::{self, Config, DeviceConfig, OutputConfig, Size},
    device::{DeviceFacts, PortFacts},
    filter::FilterCompiler,
    rx::{
        StampSource,
        clock::{SharedConversion, StampForm},
    },
    verbs::{CVLAN_STRIPPING, DELAY_DROP, MiniFormat, Moderation, RingAccess, SCATTER_FCS},
};
use serde::{Serialize, Serializer};
use std::sync::Arc;
use wqcap_rss::{key::RssKey, profile::HashDepth};

/// Plan of one captured port: the device, and the objects that the run creates on it.
#[derive(Clone, Debug, Serialize)]
pub struct PortPlan {
    /// RDMA device or network interface that the run captures from.
    pub device: DeviceFacts,
    /// Way in which the port's frames are received; never `auto`.
    pub backend: config::Backend,
    /// Name of the port in files, counters and flow records.
    pub label: String,
    /// Number of receive queues of the port.
    #[serde(skip)]
    pub queues: usize,
    /// Direction of the frames that a packet socket receives.
    pub direction: config::Direction,
    /// Number of the captured port on its device, from 1.
    #[serde(rename = "port")]
    pub number: u8,
    /// Name of the kernel's network interface on the captured port.
    pub netdev: Option<String>,
    /// Shared RSS indirection table: the index of one of the port's queues in each entry.
    pub table: Vec<u16>,
    /// RSS QPs and flow rules of the port.
    pub steering: Steering,
    /// Headers that the RSS hash covers: IP addresses, or addresses and ports.
    #[serde(serialize_with = "text")]
    pub depth: HashDepth,
    /// Toeplitz key of the RSS hash, serialized as the configuration names it.
    #[serde(serialize_with = "text")]
    pub key: RssKey,
    /// Creation flags of the receive WQs (`ibv_wq_flags`).
    pub wq_flags: u32,
    /// Memory of each queue's receive ring.
    #[serde(flatten)]
    pub ring: QueueMemory,
    /// Format of compressed completions (CQEs); `None` if completions are not compressed.
    #[serde(rename = "cqe_compression")]
    pub compression: Option<MiniFormat>,
    /// Registered receive memory of the port's queues together, in bytes.
    pub memory: u64,
    /// Source of the frames' time stamps: NIC, kernel or software.
    pub stamps: Stamps,
    /// `true` if the device stamps completions in UTC instead of ticks.
    pub real_time: bool,
    /// Method of access to the receive rings: directly in memory or through libibverbs.
    #[serde(rename = "direct")]
    pub access: RingAccess,
    /// `true` if VLAN tags that the NIC strips are put back into the frames.
    pub restore_vlan: bool,
    /// Behaviour of a receive loop while its queue is empty.
    pub idle: config::Idle,
    /// Moderation of the completion events that wake a sleeping receive loop; `None` if no loop
    /// sleeps or the device has no moderation, so that each event is raised at once.
    pub moderation: Option<Moderation>,
    /// `true` if the capture sets promiscuous mode on the network interface.
    pub promiscuous: bool,
    /// `true` if one receive loop polls the queue of this port and those of the others.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paired: bool,
}

/// Serializes a setting of the plan by its `Display` text.
pub(super) fn text<T: std::fmt::Display, S: Serializer>(
    it: &T,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(it)
}

/// Returns the number of completions and the time after which the device wakes a sleeping receive
/// loop.
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

/// Inputs from which the settings of a captured port are resolved.
pub(super) struct PortContext<'a> {
    /// Configuration whose `[device]` selects the port.
    pub(super) config: &'a Config,
    /// Label of the port, if it is in the list of `[[port]]`.
    pub(super) label: Option<&'a str>,
    pub(super) devices: &'a [DeviceFacts],
    pub(super) filters: &'a FilterCompiler,
    /// Number of cores for the run's receive loops.
    pub(super) cores: usize,
}

impl PortContext<'_> {
    /// Resolves all settings of the captured port into its plan, and adds each error to `found`.
    pub(super) fn settle(
        &self,
        found: &mut PlanErrors,
        notes: &mut Vec<String>,
    ) -> Option<PortPlan> {
        let config = self.config;
        let DeviceConfig { name, netdev, .. } = &config.device;
        if self.label.is_some() && name.is_none() && netdev.is_none() {
            // The check of the configuration has reported this.
            return None;
        }
        let key = config.rss.key.parse();
        let key = key.map_err(|e: wqcap_rss::key::KeyError| {
            Error::config("rss.key", format!("{:?}", config.rss.key), e)
        });
        let key = found.keep(key);
        let Some(device) = found.keep(target::device(config, self.devices)) else {
            found.keep(Plan::check_without_device(config, self.filters));
            return None;
        };
        let backend = found.keep(target::backend(config, device));
        let honoured;
        let config = match &device.kernel {
            Some(kernel) => {
                found.keep(kernel::applicable(config, device, kernel));
                honoured = kernel::honoured(config);
                &honoured
            }
            None => config,
        };
        let port = found.keep(target::port(config, device));
        let caps = &device.caps;
        if let Some(port) = port.filter(|port| port.state != "ACTIVE") {
            notes.push(format!(
                "port {} of {} is {}: no frames arrive until the port is up",
                port.number, device.name, port.state
            ));
        }
        let buffers = found.keep(constraints::buffers(config, device));
        let wq_flags = found.keep(constraints::wq_flags(config, device));
        let access = match backend {
            Some(config::Backend::Mlx5) => device.access,
            _ => RingAccess::Verbs,
        };
        let rings = access.caps();
        found.keep(constraints::tunnels(config, device));
        let queues = found.keep(queues::count(config, device, self.cores))?;
        if let (Some(config::Backend::AfXdp), Some(kernel)) = (backend, &device.kernel)
            && (queues as u32) < kernel.rx_queues
        {
            notes.push(format!(
                "{} has {} receive queues, of which wqcap captures those before queue {queues}; the kernel receives the frames of the other queues",
                device.name, kernel.rx_queues
            ));
        }
        let table = found.keep(queues::table(config, queues, device));
        notes.extend(
            port.iter()
                .flat_map(|port| visibility::notes(config, port, device.kernel.is_some())),
        );
        let stamps = Stamps::from_config(&config.capture, device, notes);
        let count = u16::try_from(queues).unwrap_or(u16::MAX);
        let steering = match &device.kernel {
            Some(_) => Some(Steering::default()),
            None => found.keep(Steering::with_filters(config, count, self.filters)),
        };
        let restore_vlan = found.keep(constraints::restores_vlan(config, caps, rings, notes));
        found.keep(constraints::respreadable(config, queues));
        let takes_frames = device.kernel.is_none() || backend == Some(config::Backend::AfXdp);
        if let Some(port) = port.filter(|_| takes_frames) {
            found.keep(target::stolen(config, device, port, notes));
        }
        notes.extend(steering.iter().flat_map(visibility::fragments));
        let (buffers, restore_vlan) = (buffers?, restore_vlan?);
        let ring = match &device.kernel {
            Some(_) => kernel::ring(backend?, port, queues),
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
        let compression = receive::compression(config, device, &ring, rings, stamps);
        let compression = found.keep(compression);
        let idle = match &device.kernel {
            Some(_) => config::Idle::Sleep,
            None => config::Idle::default(),
        };
        let idle = config.capture.idle.unwrap_or(idle);
        let moderation = Some(wake_moderation(&ring))
            .filter(|_| idle == config::Idle::Sleep && !device.raw_qp_only)
            .filter(|it| caps.max_cq_period >= it.period_us);
        let port = port?;
        let name = port.netdev.as_ref().unwrap_or(&device.name);
        Some(PortPlan {
            backend: backend?,
            label: self.label.unwrap_or(name).to_owned(),
            queues,
            paired: false,
            direction: kernel::direction(config, device),
            number: port.number,
            netdev: port.netdev.clone(),
            memory: ring.registered() * queues as u64,
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
            idle,
            moderation,
            promiscuous: config.capture.promiscuous,
            device: device.clone(),
        })
    }
}

impl PortPlan {
    /// Returns the bytes of write buffers that are enough for the speed of the port's link.
    pub(super) fn write_buffers(&self) -> Size {
        match &self.device.kernel {
            Some(_) => kernel::write_buffers(self.facts()),
            None => OutputConfig::BUFFER,
        }
    }

    /// Returns the facts of the captured port; `None`: its device has no such port.
    #[must_use]
    pub fn facts(&self) -> Option<&PortFacts> {
        self.device.ports.iter().find(|it| it.number == self.number)
    }

    /// Returns the form of a completion's time stamp, or `None` if the device is not requested to
    /// stamp completions.
    #[must_use]
    pub fn stamp_form(&self) -> Option<StampForm> {
        match self.stamps {
            Stamps::Software | Stamps::Kernel => None,
            _ if self.real_time => Some(StampForm::RealTime),
            _ => Some(StampForm::ticks(self.device.caps.timestamp_mask)),
        }
    }

    /// Returns the source of the frames' times for a receive loop; `clock` is the conversion of the
    /// NIC's stamps, if the capture uses them.
    pub(crate) fn stamp_source(&self, clock: Option<Arc<SharedConversion>>) -> StampSource {
        match (self.stamps, clock) {
            (_, Some(clock)) => StampSource::Device(clock),
            (Stamps::Kernel, None) => StampSource::Kernel,
            (_, None) => StampSource::Batch,
        }
    }

    /// Returns `true` if the NIC delivers each frame's FCS.
    #[must_use]
    pub fn scatters_fcs(&self) -> bool {
        self.wq_flags & SCATTER_FCS != 0
    }

    /// Returns `true` if the NIC strips CVLAN tags from the start of the run.
    #[must_use]
    pub fn strips_vlan(&self) -> bool {
        self.wq_flags & CVLAN_STRIPPING != 0
    }

    /// Returns `true` if the NIC delays drops when a WQ has no buffers (`IBV_WQ_FLAGS_DELAY_DROP`).
    #[must_use]
    pub fn delays_drop(&self) -> bool {
        self.wq_flags & DELAY_DROP != 0
    }
}
