//! Facts about a device and its capabilities, read through verbs and sysfs before a capture creates
//! anything on it.
//!
//! One limit that no query reports is found by creating WQs (`wq_limit`).
//!
//! Invariant: only facts. [`crate::plan`] decides what a configuration uses of a device.

pub mod counters;
pub mod delay_drop;
pub mod interface;
pub mod kernel;
pub mod management;
mod netlink;
pub mod port_topology;
mod provider;
mod raw_qp;
mod wq_limit;

use crate::{
    Error,
    config::{Backend, Config, Mode},
    device::{delay_drop::DelayDrop, port_topology::PortTopology},
    verbs::{self, Context, MiniFormat, RingAccess, StridingCaps, TunnelOffloads, sys as ffi},
};
use kernel::KernelFacts;
use serde::Serialize;
use std::{fs, io::Read as _, path::Path, str::FromStr};

/// Value of `IBV_LINK_LAYER_ETHERNET`, the link layer of ports that can be captured.
const LINK_LAYER_ETHERNET: u8 = 2;
/// Names of port states (`ibv_port_state`), indexed by value.
const STATES: [&str; 6] = ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"];
/// Bit `IBV_DEVICE_PCI_WRITE_END_PADDING` of the extended capability flags.
const PCI_WRITE_END_PADDING: u64 = 1 << 36;

/// Facts of one RDMA device, from `ibv_query_device_ex` and sysfs.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceFacts {
    /// Verbs name of the RDMA device, such as `mlx5_0`.
    pub name: String,
    /// Node GUID of the RDMA device, as sysfs prints it.
    pub node_guid: String,
    /// Firmware version of the RDMA device.
    pub firmware: String,
    /// Vendor ID and part ID of the RDMA device.
    pub vendor_part: (u32, u32),
    /// NUMA node of the device's PCI function; `None` if sysfs reports none.
    pub numa_node: Option<u32>,
    /// Capabilities of the RDMA device that matter to a capture.
    pub caps: DeviceCaps,
    /// Delay drop state of the device from the driver's debugfs; `None` if it does not exist or
    /// cannot be read.
    pub delay_drop: Option<DelayDrop>,
    /// Ports of the RDMA device in the order of their numbers (port 1 first).
    pub ports: Vec<PortFacts>,
    /// Fastest method of access to the device's receive rings that it supports.
    #[serde(rename = "direct")]
    pub access: RingAccess,
    /// `true` for the software NIC of wqcap, which copies the frames that it captures: the kernel
    /// still receives them.
    pub software: bool,
    /// Names of the verbs that a capture needs and this device lacks. If empty, the device can
    /// capture.
    pub missing: Vec<String>,
    /// `true` if the device has no WQs, but RAW_PACKET QPs with their own receive queue: it
    /// captures in mode `sniffer` only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub raw_qp_only: bool,
    /// Facts of an ordinary network interface, which the kernel receives from; `None` for an RDMA
    /// device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelFacts>,
}

/// Capabilities and limits of an RDMA device that matter to a capture.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceCaps {
    /// Maximum number of WQs of type RQ that the device supports.
    pub max_wq: u32,
    /// Maximum WRs with one scatter entry in one WQ, a power of two; `None` if unknown.
    pub max_wq_wr: Option<u32>,
    /// Maximum WRs in a queue of a QP, as the driver reports it. A WQ may have more.
    pub max_qp_wr: u32,
    /// Maximum scatter entries of a WR that the device supports.
    pub max_sge: u32,
    /// Maximum entries of an RWQ indirection table that the device supports.
    pub max_table: u32,
    /// Maximum number of CQEs in one CQ that the device supports.
    pub max_cqe: u32,
    /// Maximum time that a CQ can delay a completion event, in microseconds; 0 means no moderation.
    pub max_cq_period: u16,
    /// `true` if the device's RAW_PACKET QPs support Toeplitz hashing (RSS).
    pub rss_toeplitz: bool,
    /// Header fields that the device's RSS hash supports (`ibv_rx_hash_fields`).
    pub rss_fields: u64,
    /// `true` if the device's WQs can strip C-VLAN tags (`IBV_RAW_PACKET_CAP_CVLAN_STRIPPING`).
    pub cvlan_stripping: bool,
    /// `true` if WQs can deliver the FCS of frames (`IBV_RAW_PACKET_CAP_SCATTER_FCS`).
    pub scatter_fcs: bool,
    /// `true` if WQs without buffers can hold frames instead of dropping them
    /// (`IBV_RAW_PACKET_CAP_DELAY_DROP`).
    pub delay_drop: bool,
    /// `true` if the device's PCI writes can be padded to cache lines
    /// (`IBV_DEVICE_PCI_WRITE_END_PADDING`).
    pub end_padding: bool,
    /// Tunnels whose inner headers the device can match and hash.
    pub tunnels: TunnelOffloads,
    /// Limits of the device's striding WQs, whose buffers take many frames; `None` if it has none.
    pub striding: Option<StridingCaps>,
    /// Formats of compressed CQEs that the device supports.
    pub mini_cqes: Vec<MiniFormat>,
    /// Rate of the device's clock that stamps completions, in kHz; 0 means no completion
    /// timestamps.
    pub clock_khz: u64,
    /// Mask of the valid bits of the device's completion timestamps.
    pub timestamp_mask: u64,
    /// `true` if the device can stamp completions in UTC.
    pub real_time: bool,
}

/// Facts of one port of an RDMA device.
#[derive(Clone, Debug, Serialize)]
pub struct PortFacts {
    /// Number of the port on its device, from 1.
    pub number: u8,
    /// State of the port as text: `ACTIVE`, `DOWN`, ...
    pub state: String,
    /// `true` if the port's link layer is Ethernet. Only such ports can be captured.
    pub ethernet: bool,
    /// Link rate of the port in Gbit/s; 0 if unknown.
    pub rate_gbps: f64,
    /// Name of the kernel's network interface on the port; `None` if unknown.
    pub netdev: Option<String>,
    /// MTU of the port's network interface, in bytes.
    pub mtu: Option<u32>,
    /// `true` if RoCE is enabled on the port, `false` if it is disabled (`enable_roce` of devlink);
    /// `None` if unknown.
    pub roce: Option<bool>,
    /// Functions, e-switch and bond that the port shares its hardware with.
    pub place: PortTopology,
}

impl DeviceFacts {
    /// Returns `true` if the device can capture in `mode`.
    #[must_use]
    pub fn can_capture(&self, mode: Mode) -> bool {
        self.missing.is_empty() || self.raw_qp_only && mode == Mode::Sniffer
    }
}

/// Lists the RDMA devices on this machine that can be opened.
///
/// A device that cannot be opened is logged and skipped, so that it does not hide the others.
///
/// # Errors
/// The verbs library cannot list devices.
pub fn list() -> Result<Vec<DeviceFacts>, Error> {
    let facts_of = |name: &String| match Context::open(name)
        .map_err(Error::from)
        .and_then(|c| facts(&c))
    {
        Ok(facts) => Some(facts),
        Err(e) => {
            tracing::warn!("the RDMA device {name} cannot be used: {e}");
            None
        }
    };
    Ok(verbs::names()?.iter().filter_map(facts_of).collect())
}

/// Lists the devices that a capture of `config` can choose from: the RDMA devices of this machine,
/// and the ordinary network interface that the configuration names, if no RDMA device has it.
///
/// # Errors
/// The verbs library cannot list devices, and no ordinary interface is named; or /sys shows the
/// interfaces of another network namespace.
pub fn candidates(config: &Config) -> Result<Vec<DeviceFacts>, Error> {
    let of_ports = config.of_ports();
    let rdma = match of_ports.iter().all(|it| it.device.backend.is_of_kernel()) {
        true => Ok(Vec::new()),
        false => list(),
    };
    let mut interfaces = Vec::new();
    for Config { device: port, .. } in &of_ports {
        let is_captured = |it: &DeviceFacts| {
            it.can_capture(config.capture.mode)
                && it.ports.iter().any(|it| it.netdev == port.netdev)
        };
        let has_device = !port.backend.is_of_kernel()
            && rdma.as_ref().is_ok_and(|all| all.iter().any(is_captured));
        if !has_device && (port.backend == Backend::Auto || port.backend.is_of_kernel()) {
            if let Some(name) = port
                .netdev
                .as_ref()
                .filter(|it| kernel::has_foreign_sysfs(it))
            {
                let problem = "/sys shows the interfaces of another network namespace, as after `nsenter --net`; enter the namespace with \
                               `ip netns exec NAME`, which mounts its own /sys";
                return Err(Error::config("device.netdev", format!("{name:?}"), problem));
            }
            interfaces.extend(port.netdev.as_deref().and_then(kernel::interface));
        }
    }
    if interfaces.is_empty() {
        return rdma;
    }
    // On a machine without RDMA the library may have nothing to list.
    interfaces.extend(rdma.unwrap_or_default());
    Ok(interfaces)
}

/// Reads a file of sysfs or debugfs as trimmed text; returns `None` if it cannot be read or has 4
/// KiB or more. One read suffices, since an attribute has at most a page
/// (Documentation/filesystems/sysfs.rst).
#[expect(clippy::disallowed_methods, reason = "a file of sysfs")]
fn read(path: impl AsRef<Path>) -> Option<String> {
    let mut text = [0; 4096];
    let count = fs::File::open(path).ok()?.read(&mut text).ok()?;
    let text = text.get(..count).filter(|it| it.len() < text.len())?;
    Some(str::from_utf8(text).ok()?.trim().to_owned())
}

/// Reads a file of sysfs or debugfs as a number; returns `None` if it cannot be read or parsed.
fn read_number<N: FromStr>(path: impl AsRef<Path>) -> Option<N> {
    read(path)?.parse().ok()
}

/// Reads a file in the sysfs directory of an RDMA device as trimmed text; `None` if it cannot be
/// read.
fn sysfs(device: &str, file: &str) -> Option<String> {
    read(format!("/sys/class/infiniband/{device}/{file}"))
}

/// Collects the facts of an open RDMA device from verbs and sysfs.
fn facts(context: &Context) -> Result<DeviceFacts, Error> {
    let name = context.name();
    let attr = context.query_device()?;
    let caps = DeviceCaps {
        tunnels: TunnelOffloads::query(context),
        striding: StridingCaps::query(context),
        mini_cqes: MiniFormat::supported_by(context),
        real_time: context.stamps_real_time(),
        ..DeviceCaps::from_attr(&attr)
    };
    let mut missing = caps.missing();
    let sysfs_root = Path::new("/sys");
    missing.extend(provider::lacks(sysfs_root, name).map(str::to_owned));
    let raw_qp_only =
        caps.max_wq == 0 && raw_qp::exists(context, provider::mirrors_roce(sysfs_root, name));
    let caps = DeviceCaps {
        max_wq_wr: if missing.is_empty() {
            largest_wq(context)
        } else {
            None
        },
        ..caps
    };
    let ports = attr.orig_attr.phys_port_cnt;
    let ports = (1..=ports)
        .map(|number| port(context, number, ports))
        .collect::<Result<_, _>>()?;
    Ok(DeviceFacts {
        name: name.to_owned(),
        node_guid: sysfs(name, "node_guid").unwrap_or_default(),
        firmware: sysfs(name, "fw_ver").unwrap_or_default(),
        vendor_part: (attr.orig_attr.vendor_id, attr.orig_attr.vendor_part_id),
        // The kernel reports -1 on a machine with one node.
        numa_node: sysfs(name, "device/numa_node").and_then(|t| t.parse().ok()),
        delay_drop: DelayDrop::read(Path::new("/sys"), name),
        access: match raw_qp_only {
            true => RingAccess::Verbs,
            false => RingAccess::fastest(context),
        },
        software: sysfs(name, "device/model/wire").is_some(),
        missing,
        raw_qp_only,
        caps,
        ports,
        kernel: None,
    })
}

impl DeviceCaps {
    /// Returns the device capabilities that `ibv_query_device_ex` reports; the others stay unset.
    fn from_attr(attr: &ffi::ibv_device_attr_ex) -> Self {
        // Flags of WQs.
        let has_wqs = attr.max_wq_type_rq > 0;
        let raw = |cap: ffi::ibv_raw_packet_caps| has_wqs && attr.raw_packet_caps & cap.0 != 0;
        let raw_packet_rss =
            attr.rss_caps.supported_qpts & (1 << ffi::ibv_qp_type::IBV_QPT_RAW_PACKET) != 0;
        let toeplitz = u32::from(attr.rss_caps.rx_hash_function)
            & ffi::ibv_rx_hash_function_flags::IBV_RX_HASH_FUNC_TOEPLITZ.0;
        Self {
            max_wq: attr.max_wq_type_rq,
            max_wq_wr: None,
            max_qp_wr: u32::try_from(attr.orig_attr.max_qp_wr).unwrap_or(0),
            max_sge: u32::try_from(attr.orig_attr.max_sge).unwrap_or(0),
            max_table: attr.rss_caps.max_rwq_indirection_table_size,
            max_cqe: u32::try_from(attr.orig_attr.max_cqe).unwrap_or(0),
            max_cq_period: attr.cq_mod_caps.max_cq_period,
            rss_toeplitz: raw_packet_rss && toeplitz != 0,
            rss_fields: attr.rss_caps.rx_hash_fields_mask,
            cvlan_stripping: raw(ffi::ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING),
            scatter_fcs: raw(ffi::ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_SCATTER_FCS),
            delay_drop: raw(ffi::ibv_raw_packet_caps::IBV_RAW_PACKET_CAP_DELAY_DROP),
            end_padding: has_wqs && attr.device_cap_flags_ex & PCI_WRITE_END_PADDING != 0,
            tunnels: TunnelOffloads::default(),
            striding: None,
            mini_cqes: Vec::new(),
            clock_khz: attr.hca_core_clock,
            timestamp_mask: attr.completion_timestamp_mask,
            real_time: false,
        }
    }

    /// Returns the names of the verbs that a capture needs and that would fail with these device
    /// capabilities.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if self.max_wq == 0 {
            missing.push("ibv_create_wq".into());
        }
        if self.max_table == 0 {
            missing.push("ibv_create_rwq_ind_table".into());
        }
        if !self.rss_toeplitz {
            missing.push("ibv_create_qp_ex (RAW_PACKET with RSS)".into());
            missing.push("ibv_create_flow".into());
        }
        missing
    }
}

/// Returns the maximum WRs of a WQ of the device, or logs the reason why it is unknown and returns
/// `None`.
fn largest_wq(context: &Context) -> Option<u32> {
    wq_limit::find(context)
        .inspect_err(|e| {
            let name = context.name();
            tracing::warn!(
                "{name}: the largest capture.ring that the device supports is unknown: {e}"
            );
        })
        .ok()
}

/// Collects the facts of one port of an RDMA device.
fn port(context: &Context, number: u8, ports: u8) -> Result<PortFacts, Error> {
    let attr = context.query_port(number)?;
    let name = context.name();
    let netdev = netdev(name, number, ports);
    let place = PortTopology::read(Path::new("/sys"), name, netdev.as_deref());
    // The driver leaves the GID table empty in switchdev mode and without RoCE
    // (`mlx5_query_port_roce` of drivers/infiniband/hw/mlx5/main.c).
    let roce = match attr.gid_tbl_len {
        0 if netdev.is_none() || place.switchdev => None,
        entries => Some(entries > 0),
    };
    Ok(PortFacts {
        number,
        state: STATES
            .get(attr.state as usize)
            .unwrap_or(&"UNKNOWN")
            .to_string(),
        ethernet: attr.link_layer == LINK_LAYER_ETHERNET,
        // The file holds, for example, "100 Gb/sec (4X EDR)".
        rate_gbps: sysfs(name, &format!("ports/{number}/rate"))
            .and_then(|t| t.split_whitespace().next()?.parse().ok())
            .unwrap_or(0.0),
        mtu: netdev
            .as_ref()
            .and_then(|n| read_number(format!("/sys/class/net/{n}/mtu"))),
        roce,
        place,
        netdev,
    })
}

/// Returns the name of the network interface on a port of an RDMA device.
///
/// The sources are, in this order: the port's GID table, the kernel's answer over RDMA netlink, and
/// the single interface of the PCI function if the device has one port.
fn netdev(device: &str, port: u8, ports: u8) -> Option<String> {
    let in_gid_table = sysfs(device, &format!("ports/{port}/gid_attrs/ndevs/0"));
    if let Some(name) = in_gid_table.filter(|name| !name.is_empty()) {
        return Some(name);
    }
    match netlink::port_interface(device, port) {
        Ok(Some(name)) => return Some(name),
        Ok(None) => tracing::debug!("{device} port {port}: RDMA netlink names no interface"),
        Err(e) => tracing::debug!("{device} port {port}: no interface from RDMA netlink: {e}"),
    }
    let mut names = fs::read_dir(format!("/sys/class/infiniband/{device}/device/net")).ok()?;
    let first = names.next()?.ok()?.file_name().into_string().ok();
    let is_only = ports == 1 && names.next().is_none();
    first.filter(|_| is_only)
}
