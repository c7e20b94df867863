//! Settings of the model, of its devices and of their ports.
//!
//! Imports `fault` and the wire specifications of `wire`.

use std::path::PathBuf;

use crate::wire::WireSpec;

use super::fault::Fault;

/// Maximum number of ports of a modelled device.
pub const MAX_PORTS: usize = 2;
/// Number of entries in a port's GID table outside switchdev mode: two of the link-local address
/// and two of the IPv4 address, each as RoCE v1 and v2.
pub const GIDS: usize = 4;

/// Link rates of a port in Gbit/s. Each has the link width and lane speed that the driver reports
/// (`translate_eth_proto_oper`, by `enum ib_port_width` and `enum ib_port_speed`), and the text
/// that drivers/infiniband/core/sysfs.c shows for them (`rate_show`).
pub const RATES: [(u32, u8, u8, &str); 7] = [
    (1, 1, 1, "2.5 Gb/sec (1X SDR)"),
    (10, 1, 4, "10 Gb/sec (1X QDR)"),
    (25, 1, 32, "25 Gb/sec (1X EDR)"),
    (40, 2, 4, "40 Gb/sec (4X QDR)"),
    (50, 1, 64, "50 Gb/sec (1X HDR)"),
    (100, 2, 32, "100 Gb/sec (4X EDR)"),
    (200, 2, 64, "200 Gb/sec (4X HDR)"),
];

#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Modelled devices `mlx5_0`, `mlx5_1`, ...; empty when the library is inert.
    pub devices: Vec<DeviceSettings>,
    /// `true` if commands require the process's own Linux capabilities (`caps=process`), `false` if
    /// all are granted.
    pub enforce_caps: bool,
    pub debug: bool,
}

#[derive(Debug, Clone)]
pub struct DeviceSettings {
    /// Device name: `mlx5_<N>`, or `mlx5_bond_<N>` with LAG.
    pub name: String,
    pub caps: NicCaps,
    /// PCI functions and physical ports that belong to the device, in sysfs.
    pub topology: DeviceTopology,
    /// Settings of the device's ports; the entry `N - 1` is port `N`.
    pub ports: Vec<PortSettings>,
    pub cpu: Option<usize>,
    pub faults: Vec<Fault>,
}

/// PCI functions and physical ports that belong to a device.
#[derive(Debug, Clone, Default)]
pub struct DeviceTopology {
    pub is_vf: bool,
    /// Set when the host trusts the device, a virtual function: it may be in promiscuous mode.
    pub is_trusted: bool,
    /// Number of virtual functions that the device has enabled.
    pub vfs: u32,
    /// Set when the device bonds several physical ports (RoCE LAG).
    pub lag: bool,
    /// Set when the device is named by its PCI address, as `roceP5555p1s0`.
    pub has_persistent_name: bool,
    /// Set when RDMA netlink reports the netdevs of the device's ports.
    pub rdma_netlink: bool,
    /// Set when the device's RoCE is enabled (devlink's `enable_roce`).
    pub roce: bool,
    /// Set when the device's e-switch is in switchdev mode: the GID tables are empty, and each
    /// virtual function has a representor.
    pub switchdev: bool,
}

#[derive(Debug, Clone)]
pub struct PortSettings {
    /// Wire that the port's frames come from and go to.
    pub wire: WireSpec,
    /// Link rate of the port in Gbit/s that sysfs and the verbs report.
    pub rate_gbps: u32,
    pub mac: [u8; 6],
    /// Name of the real network interface under the port, if there is one.
    pub netdev: Option<String>,
    /// Name of the port's netdev in sysfs, real or virtual.
    pub ifname: String,
    pub mtu: u32,
    pub link_up: bool,
    /// Set when the port delivers frames with a wrong FCS.
    pub rx_all: bool,
    /// Set when the port drops frames that are longer than its MTU allows.
    pub enforces_mtu: bool,
    /// File whose existence starts the port's pcap or synth wire; `None`: the wire does not wait
    /// for a file.
    pub gate: Option<PathBuf>,
    /// Port name of the port's virtual netdev on an e-switch in switchdev mode.
    pub eswitch_port: Option<String>,
    pub bond: Option<String>,
}

/// Capabilities of a modelled device; commands that request more are refused. The table `keys`
/// describes each field and has the values of a ConnectX-5 as defaults.
#[derive(Debug, Clone, Default)]
pub struct NicCaps {
    pub scatter_fcs: bool,
    pub scatter_fcs_ignored: bool,
    pub cvlan_stripping: bool,
    pub delay_drop: bool,
    pub delay_drop_timeout_us: u32,
    pub end_padding: bool,
    pub rwq: bool,
    pub drop_too_long: bool,
    pub steer_missed: bool,
    pub diverts_roce: bool,
    pub striding_rq: bool,
    pub multi_packet_sends: bool,
    pub ext_stride_num_range: bool,
    pub sniffer: bool,
    pub tunnel_offloads: bool,
    pub mpls: bool,
    pub esp: bool,
    pub fragment_protocol: bool,
    pub max_ind_table_log: u32,
    pub max_wq: u32,
    pub max_recv_wr: u32,
    pub max_qp_wr: u32,
    pub refuse_stale_state: bool,
    pub unflushed_wrs: u16,
    pub flush_at_reset: bool,
    pub max_cqe: u32,
    pub cq_moderation: bool,
    pub cqe_compression: bool,
    pub cqe_compression_max: u32,
    pub cqe_compression_wraps: bool,
    pub mini_cqe_stride_index: bool,
    pub filler_counter_zero: bool,
    pub error_own_strides: bool,
    pub wrong_striding_cqe: WrongCqeField,
    pub clock_khz: u64,
    pub clock_drift_ppm: i32,
    pub timestamp_mask: u64,
    pub realtime_clock: bool,
    pub utc_stamps: bool,
    pub utc_offset_ns: i64,
    pub utc_drift_ppm: i32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub numa_node: i32,
    pub counter_start: u32,
}

/// Field of the CQEs of frames in striding WQs that the device reports differently from what drivers
/// read there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WrongCqeField {
    /// Wrong CQE field: none, all fields of a striding WQ's CQEs are correct.
    #[default]
    None,
    /// Wrong CQE field: `wqe_counter` is the WQE's counter, not the frame's first stride.
    WqeCounter,
    /// Wrong CQE field: the number of strides in `byte_cnt` is one too many.
    Strides,
    /// Wrong CQE field: `wqe_id` is the next WQE's.
    WqeId,
    /// Wrong CQE field: the length in `byte_cnt` is 4 bytes too many.
    ByteCount,
}

impl WrongCqeField {
    /// Parses the value of the setting `wrong_striding_cqe`.
    pub fn parse(value: &str) -> Option<Self> {
        Some(match value {
            "none" => Self::None,
            "wqe_counter" => Self::WqeCounter,
            "strides" => Self::Strides,
            "wqe_id" => Self::WqeId,
            "byte_count" => Self::ByteCount,
            _ => return None,
        })
    }
}

impl PortSettings {
    /// Returns the entry of [`RATES`] for the port's link rate: Gbit/s, link width, lane speed and
    /// sysfs text.
    pub fn rate(&self) -> (u32, u8, u8, &'static str) {
        let known = RATES.into_iter().find(|rate| rate.0 == self.rate_gbps);
        known.unwrap_or(RATES[5])
    }
}

impl DeviceSettings {
    /// Returns the number of entries in the GID table of each of the device's ports: none in
    /// switchdev mode or without RoCE (`mlx5_query_port_roce` of drivers/infiniband/hw/mlx5/main.c,
    /// `is_rep` and `mlx5_is_roce_on`).
    pub fn gids(&self) -> usize {
        if self.topology.switchdev || !self.topology.roce {
            0
        } else {
            GIDS
        }
    }

    /// Returns the node GUID of device `index`, host-endian. mlx5's firmware derives it in the same
    /// way from the first port's MAC. The index distinguishes two devices on one network interface.
    pub fn node_guid(&self, index: usize) -> u64 {
        let [a, b, c, d, e, f] = self.ports.first().map_or([0; 6], |port| port.mac);
        u64::from_be_bytes([a, b, c, 3, index as u8, d, e, f])
    }
}
