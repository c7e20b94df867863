//! Table of all setting keys: valid values, default, meaning, and the setting that each key stores.
//!
//! Imports `draft` and `value`. Invariant: the parser accepts only the keys of this table. The
//! README repeats each row; a test compares them.

use super::device::{RATES, Settings, WrongCqeField};
use super::draft::{DeviceDraft, PortDraft};
use super::error::ModelValueError;
use super::fault;
use super::value::{boolean, interface_name, mac, mask, number, within};

/// Result of storing the value of a setting in the draft of a device or port.
type Stored = Result<(), ModelValueError>;

/// Scope that a setting key applies to (model, device or port), with the function that stores its
/// value.
pub enum KeyScope {
    Model(fn(&mut Settings, &str) -> Stored),
    Device(fn(&mut DeviceDraft, &str) -> Stored),
    Port(fn(&mut PortDraft, &str) -> Stored),
}

/// A setting key, from the table that the parser, the error messages and the README share.
pub struct SettingKey {
    /// Name of the setting key without a prefix such as `mlx5_0.`.
    pub name: &'static str,
    pub takes: &'static str,
    pub default: &'static str,
    pub meaning: &'static str,
    pub scope: KeyScope,
}

macro_rules! keys {
    ($({ $($key:tt)* })*) => {
        /// All setting keys of the model.
        pub static KEYS: &[SettingKey] = &[$(key!($($key)*)),*];
    };
}

/// Declares a setting key. A `Flag` or a `Count` stores the field of [`super::NicCaps`] that has
/// the key's name.
macro_rules! key {
    (Flag $name:ident = $default:literal; $meaning:literal) => {
        key!(Device $name: "true, false"; default stringify!($default); $meaning;
            |device, value| device.caps.$name = boolean(value)?)
    };
    (Count $name:ident: $low:literal to $high:literal = $default:literal; $meaning:literal) => {
        key!(Device $name: concat!($low, " to ", $high); default stringify!($default); $meaning;
            |device, value| device.caps.$name = within(value, $low, $high)?)
    };
    ($scope:ident $name:ident: $takes:expr; default $default:expr; $meaning:literal; |$target:ident, $value:ident| $store:expr) => {
        SettingKey {
            name: stringify!($name),
            takes: $takes,
            default: $default,
            meaning: $meaning,
            scope: KeyScope::$scope(|$target, $value| {
                $store;
                Ok(())
            }),
        }
    };
}

keys! {
    { Model caps: "process, all"; default "process";
        "whether RAW_PACKET QPs, flows and delay drop require the process's own Linux capabilities, or all are granted";
        |model, value| model.enforce_caps = match value {
            "process" => true,
            "all" => false,
            _ => return Err(ModelValueError::NotACapsSource(value.to_owned())),
        } }
    { Model debug: "true, false"; default "false"; "print each command on standard error";
        |model, value| model.debug = boolean(value)? }
    { Device ports: "1 to 2"; default "1"; "number of ports";
        |device, value| device.ports = within(value, 1, 2)? }
    { Device cpu: "a CPU number"; default "not pinned"; "CPU that the NIC's thread is pinned to";
        |device, value| device.cpu = Some(number(value)?) }
    { Device numa_node: "a node number, -1"; default "-1"; "the device's NUMA node in sysfs";
        |device, value| device.caps.numa_node = within(value, -1, 1023)? }
    { Device vf: "true, false"; default "false";
        "the device is a virtual function that the host does not trust: no sniffer rules, no promiscuous mode (only frames to its own MAC, broadcasts and all-nodes groups arrive)";
        |device, value| device.topology.is_vf = boolean(value)? }
    { Device vf_trusted: "true, false"; default "false";
        "the host trusts the virtual function: frames to all MACs arrive; sniffer rules stay refused";
        |device, value| device.topology.is_trusted = boolean(value)? }
    { Device vfs: "0 to 127"; default "0"; "number of virtual functions that the device has enabled in sysfs";
        |device, value| device.topology.vfs = within(value, 0, 127)? }
    { Device lag: "true, false"; default "false";
        "the device bonds several physical ports (RoCE LAG) and is named mlx5_bond_<N>; keys still name it mlx5_<N>";
        |device, value| device.topology.lag = boolean(value)? }
    { Device persistent_name: "true, false"; default "false";
        "the device is named by its PCI address, roceP5555p<N+1>s0, as udev's rdma_rename does; keys still name it mlx5_<N>";
        |device, value| device.topology.has_persistent_name = boolean(value)? }
    { Device switchdev: "true, false"; default "false";
        "the e-switch is in switchdev mode: no GIDs, a representor for each virtual function, and the queue counters are in the device's hw_counters instead of the port's";
        |device, value| device.topology.switchdev = boolean(value)? }
    { Device rdma_netlink: "true, false"; default "true";
        "RDMA netlink reports the netdevs of a device without GIDs (switchdev, enable_roce)";
        |device, value| device.topology.rdma_netlink = boolean(value)? }
    { Device enable_roce: "true, false"; default "true";
        "devlink's parameter of this name; false: no GIDs, and RoCE frames are ordinary frames";
        |device, value| device.topology.roce = boolean(value)? }
    { Flag diverts_roce = false;
        "with enable_roce, RoCE frames to the port's own MAC go to the NIC's transport: only sniffer rules see them" }
    { Device counter_start: "0 to 4294967295"; default "0";
        "initial value of the queue counters (hw_counters), which are 32 bits wide and wrap";
        |device, value| device.caps.counter_start = number(value)? }
    { Flag scatter_fcs = true; "the device can deliver the FCS" }
    // DPDK knows such cards: `mlx5_rx_queue_setup` refuses to keep the FCS where decapsulation excludes
    // it (`scatter_fcs_w_decap_disable` of drivers/net/mlx5/mlx5.h).
    { Flag scatter_fcs_ignored = false; "WQs that request the FCS are created, and deliver frames without it" }
    { Flag cvlan_stripping = true; "the device can strip the C-VLAN tag" }
    { Flag delay_drop = true; "the device can hold the wire while a WQ is empty" }
    { Device delay_drop_timeout: "100 to 100000"; default "100000";
        "maximum time for which the wire is held, in microseconds, rounded up to a multiple of 100";
        |device, value| device.caps.delay_drop_timeout_us = within::<u32>(value, 100, 100_000)?.next_multiple_of(100) }
    { Flag end_padding = true; "the device can pad PCI writes to cache lines" }
    { Flag rwq = true; "the device has WQs, indirection tables and RSS QPs; false: plain RAW_PACKET QPs and one sniffer rule only, which sees RoCE frames, as bnxt_re" }
    { Flag drop_too_long = false;
        "a frame longer than its WQE is dropped without a CQE and counted in rx_oversize_pkts_buffer; it consumes no WQE" }
    { Flag steer_missed = false;
        "received frames that match no rule and are not for the host are counted in rx_steer_missed_packets" }
    { Flag striding_rq = true; "WQs can be striding: many frames share a WQE" }
    { Flag multi_packet_sends = false;
        "the device reports send WQEs of several packets, which it does not execute: for programs that ask and do not use them" }
    { Flag ext_stride_num_range = false; "a WQE of a striding WQ has 8 strides or more, not 512 or more" }
    { Flag sniffer = true; "the device accepts sniffer rules" }
    { Flag tunnel_offloads = true; "the device can hash and match inner headers" }
    { Flag mpls = true; "rules can match MPLS labels" }
    { Flag esp = true; "rules can match the SPI of ESP" }
    { Flag fragment_protocol = false; "rules that name an IP protocol and no port match fragments of IPv4" }
    { Count max_ind_table_log: 0 to 13 = 11; "base-2 logarithm of the largest RWQ indirection table" }
    { Count max_wq: 1 to 16777216 = 131072; "maximum number of WQs" }
    { Count max_recv_wr: 1 to 32768 = 32768; "maximum number of WRs in a WQ or the receive queue of a QP" }
    // The driver counts 64-byte units of `log_max_qp_sz`. It assumes a WQE of 256 bytes, the
    // largest overhead of any QP type with one SGE, so the limit is a quarter
    // (mlx5_ib_calc_max_qp_wr of drivers/infiniband/hw/mlx5/main.c).
    { Count max_qp_wr: 1 to 32768 = 8192;
        "max_qp_wr of ibv_query_device: a quarter of the largest send queue, as Linux reports since 2025; before that 32768" }
    { Flag refuse_stale_state = false;
        "MODIFY_WQ is refused where the driver's record of a WQ's state says RDY and the NIC has put the WQ in error" }
    { Count unflushed_wrs: 0 to 32768 = 0;
        "number of WRs, the last of those posted to a WQ in error, that never complete" }
    { Flag flush_at_reset = false; "the WRs that unflushed_wrs leaves out complete when the WQ is reset" }
    { Count max_cqe: 1 to 4194303 = 4194303; "maximum number of CQEs in a CQ" }
    { Flag cq_moderation = true; "CQs can moderate their events" }
    { Flag cqe_compression = true; "CQs of 64-byte CQEs can compress them" }
    { Count cqe_compression_max: 2 to 64 = 64; "maximum number of completions in a title CQE and its mini CQEs" }
    { Flag cqe_compression_wraps = false; "a title CQE's mini CQEs can continue at the start of the ring" }
    { Flag mini_cqe_stride_index = true; "mini CQEs can carry the index of a stride" }
    // Linux and DPDK do not read `wqe_counter` of a filler (`mlx5e_handle_rx_cqe_mpwrq` of
    // drivers/net/ethernet/mellanox/mlx5/core/en_rx.c, `mlx5_rx_burst_mprq` of
    // drivers/net/mlx5/mlx5_rx.c).
    { Flag filler_counter_zero = false; "wqe_counter of a striding WQ's filler CQE is 0, not its first stride" }
    // Both drivers add the strides of an error CQE as those of any other (the same functions).
    { Flag error_own_strides = false;
        "an error CQE of a striding WQ consumes the strides of its frame, for a too long frame one, and not the rest of its WQE" }
    { Device wrong_striding_cqe: "none, wqe_counter, strides, wqe_id, byte_count"; default "none";
        "field that is wrong in the CQEs of frames in striding WQs";
        |device, value| device.caps.wrong_striding_cqe = WrongCqeField::parse(value)
            .ok_or_else(|| ModelValueError::NotACqeField(value.to_owned()))? }
    { Count clock_khz: 1000 to 4000000 = 1000000; "nominal rate of the NIC's clock in kHz" }
    { Device clock_drift: "-10000 to 10000"; default "0";
        "rate error of the NIC's clock in parts per million; a positive value runs fast";
        |device, value| device.caps.clock_drift_ppm = within(value, -10_000, 10_000)? }
    { Device timestamp_mask: "64 bits, 0x for hexadecimal"; default "0xffffffffffffffff";
        "valid bits of a completion's timestamp; 0: the device has no timestamps";
        |device, value| device.caps.timestamp_mask = mask(value)? }
    { Flag realtime_clock = false; "the device can stamp completions in UTC" }
    // A device whose `rq_ts_format` is REAL_TIME only: `get_ts_format` of
    // drivers/infiniband/hw/mlx5/qp.c then returns DEFAULT for a CQ without the flag REAL_TIME_TS.
    { Flag utc_stamps = false; "CQs that are created for ticks are stamped in UTC, too" }
    { Device utc_offset: "-1000000000000000 to 1000000000000000"; default "0";
        "initial lead of the device's UTC clock over the NIC's clock, in nanoseconds";
        |device, value| device.caps.utc_offset_ns = within(value, -1_000_000_000_000_000, 1_000_000_000_000_000)? }
    { Device utc_drift: "-10000 to 10000"; default "0";
        "rate difference of the device's UTC clock to the NIC's clock in parts per million; a positive value runs fast";
        |device, value| device.caps.utc_drift_ppm = within(value, -10_000, 10_000)? }
    { Count max_srq: 0 to 16777216 = 65536; "maximum number of SRQs" }
    { Count max_srq_wr: 1 to 32767 = 32767; "maximum number of WRs in an SRQ" }
    { Count max_srq_sge: 1 to 31 = 31; "maximum number of SGEs in an SRQ's WR" }
    { Device fault: "KIND[:k=v,...]@frames=N, @ms=N or @file=PATH; several separated by ;"; default "none";
        "faults to inject into the device, each with its trigger: see Faults";
        |device, value| device.faults = fault::parse(value)? }
    { Port wire: "a wire"; default "from MLX5_MODEL_WIRES";
        "source of received frames and destination of sent ones; required for a second port";
        |port, value| port.wire = Some(value.to_owned()) }
    { Port rate: "1, 10, 25, 40, 50, 100, 200"; default "100"; "reported link rate in Gbit/s";
        |port, value| port.rate_gbps = match number(value)? {
            rate if RATES.iter().any(|known| known.0 == rate) => Some(rate),
            rate => return Err(ModelValueError::NotARate(rate)),
        } }
    { Port mac: "a MAC address"; default "the interface's, or 0c:42:a1:00:<device>:<port>";
        "MAC address of the port's netdev";
        |port, value| port.mac = Some(mac(value)?) }
    { Port netdev: "an interface name"; default "the wire's interface, or mlx5_<N>p<port>";
        "the port's netdev in sysfs; virtual if no interface has that name";
        |port, value| port.netdev = Some(interface_name(value)?) }
    { Port mtu: "68 to 65536"; default "the interface's, or 1500"; "MTU of the port's netdev";
        |port, value| port.mtu = Some(within(value, 68, 65536)?) }
    { Port port_mtu: "true, false"; default "false";
        "the port drops frames of more than MTU + 18 bytes without FCS, and counts them in rx_oversize_pkts_phy";
        |port, value| port.enforces_mtu = boolean(value)? }
    { Port eswitch_port: "a port name such as p0 or pf0vf3"; default "none";
        "port name of a virtual netdev on an e-switch in switchdev mode, in sysfs: an uplink or a representor";
        |port, value| port.eswitch_port = Some(interface_name(value)?) }
    { Port bond: "an interface name"; default "none"; "the bond that a virtual netdev belongs to, in sysfs";
        |port, value| port.bond = Some(interface_name(value)?) }
    { Port link_up: "true, false"; default "true"; "whether the link is up at the start";
        |port, value| port.link_up = Some(boolean(value)?) }
    { Port rx_all: "true, false"; default "false";
        "frames with a wrong FCS are delivered, as after `ethtool -K IFACE rx-all on`, and not dropped by the port";
        |port, value| port.rx_all = boolean(value)? }
    { Port gate: "a file's path"; default "none";
        "a pcap or synth wire starts when this file exists";
        |port, value| port.gate = Some(value.into()) }
}

/// Returns a device draft with every setting at its default. A setting whose default is a phrase
/// ("not pinned") stays unset.
pub fn default_device() -> DeviceDraft {
    let mut draft = DeviceDraft::default();
    for key in KEYS {
        if let KeyScope::Device(store) = key.scope {
            let _ = store(&mut draft, key.default);
        }
    }
    draft
}

/// Returns the table of setting keys as text, for the error about an unknown key.
pub fn table() -> String {
    let row = |it: &SettingKey| {
        format!(
            "\n  {} = {}: {} (default: {})",
            it.name, it.takes, it.meaning, it.default
        )
    };
    KEYS.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_values() {
        let prose = KEYS.iter().filter(|key| match key.scope {
            KeyScope::Device(store) => store(&mut DeviceDraft::default(), key.default).is_err(),
            KeyScope::Model(_) | KeyScope::Port(_) => false,
        });
        let prose: Vec<_> = prose.map(|key| key.name).collect();
        assert_eq!(prose, ["cpu", "fault"]);
        assert!(default_device().caps.scatter_fcs && default_device().ports == 1);
    }
}
