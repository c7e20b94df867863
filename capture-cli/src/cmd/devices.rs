//! `wqcap devices`: lists the RDMA devices of this machine with their capabilities, and all network
//! interfaces with the backend that captures them.

use crate::{
    args::DevicesArgs,
    failure::Failure,
    preload,
    term::{output, terminal, text::Text},
};
use serde::Serialize;
use std::fmt::Write;
use wqcap_engine::{
    config::Mode,
    device::{self, DeviceFacts, PortFacts, kernel},
};

/// Example command for the user, which works on every machine that supports the software NIC.
pub const TRY_MODEL: &str = "wqcap run --model synth:count=1000000 --set output.format=none";

/// Report that `wqcap devices --json` prints.
#[derive(Serialize)]
struct DeviceReport {
    devices: Vec<DeviceFacts>,
    interfaces: Vec<DeviceFacts>,
}

/// Prints the RDMA devices and network interfaces of this machine. An empty list is not a failure.
pub fn devices(args: &DevicesArgs) -> Result<(), Failure> {
    let devices = device::list()?;
    let interfaces = kernel::interfaces();
    if args.json {
        return output::print_json(&DeviceReport {
            devices,
            interfaces,
        });
    }
    if devices.is_empty() {
        terminal::print_block(&format!(
            "no RDMA device on this machine; to try the software NIC:\n  {TRY_MODEL}"
        ));
    }
    let devices_text = text(&devices);
    let gap = if devices.is_empty() { "" } else { "\n" };
    let interfaces = interfaces_text(&devices, &interfaces);
    output::print(&format!("{devices_text}{gap}{interfaces}"))
}

/// Describes network interfaces, one line for each: the backend that `device.backend = "auto"`
/// selects, and the link.
fn interfaces_text(devices: &[DeviceFacts], interfaces: &[DeviceFacts]) -> String {
    let width = interfaces.iter().map(|it| it.name.len()).max().unwrap_or(0);
    let mut text = String::from("interfaces (-i NAME)\n");
    for interface in interfaces {
        let Some(port) = interface.ports.first() else {
            continue;
        };
        let has_it = |it: &&DeviceFacts| {
            it.missing.is_empty() && it.ports.iter().any(|other| other.netdev == port.netdev)
        };
        let backend = match devices.iter().find(has_it) {
            Some(device) => format!("RDMA device {}; af_packet on request", device.name),
            None if port.ethernet => "af_packet".into(),
            None => "no Ethernet header: cannot be captured".into(),
        };
        let driver = interface
            .kernel
            .as_ref()
            .and_then(|it| it.driver.as_deref());
        let driver = driver.map(|it| format!(", {it}")).unwrap_or_default();
        let rate = match port.rate_gbps {
            0.0 => String::new(),
            rate => format!(", {rate} Gbit/s"),
        };
        let mtu = port.mtu.map(|it| format!(", MTU {it}")).unwrap_or_default();
        let (name, state) = (&interface.name, &port.state);
        let _ = writeln!(
            text,
            "  {}",
            Text(format_args!(
                "{name:<width$}  {backend}; {state}{rate}{mtu}{driver}"
            ))
        );
    }
    text
}

/// Describes RDMA devices, one paragraph for each.
pub fn text(devices: &[DeviceFacts]) -> String {
    let texts: Vec<_> = devices.iter().map(describe).collect();
    texts.join("\n")
}

/// Describes an RDMA device as a paragraph.
fn describe(device: &DeviceFacts) -> String {
    let caps = &device.caps;
    let (vendor, part) = device.vendor_part;
    let numa = device
        .numa_node
        .map_or("none".into(), |node| node.to_string());
    let mut text = format!("{}\n", device.name);
    let mut line = |what: &str, value: String| {
        let _ = writeln!(text, "  {what:<9} {value}");
    };
    line(
        "device",
        format!(
            "{vendor:04x}:{part:04x}, firmware {}, GUID {}, NUMA node {numa}",
            device.firmware, device.node_guid
        ),
    );
    for port in &device.ports {
        line(&format!("port {}", port.number), describe_port(port));
    }
    line(
        "queues",
        format!(
            "{} WQs of {} with {} SGEs, CQs of {} CQEs",
            caps.max_wq,
            caps.max_wq_wr
                .map_or("an unknown number of WRs".into(), |it| format!("{it} WRs")),
            caps.max_sge,
            caps.max_cqe
        ),
    );
    let toeplitz = if caps.rss_toeplitz {
        "the Toeplitz"
    } else {
        "no Toeplitz"
    };
    line(
        "spread",
        format!(
            "the device has {toeplitz} hash, and its indirection tables have at most {} entries",
            caps.max_table
        ),
    );
    line(
        "clock",
        match caps.clock_khz {
            0 => "no completion timestamps".into(),
            khz => format!(
                "{} MHz, {} bits{}",
                khz as f64 / 1000.0,
                caps.timestamp_mask.count_ones(),
                if caps.real_time { ", real time" } else { "" }
            ),
        },
    );
    line("flags", flags(device));
    line(
        "capture",
        match device.missing.as_slice() {
            [] => "yes".into(),
            missing => format!(
                "no: lacks {}{}",
                missing.join(", "),
                if device.raw_qp_only {
                    "; only RoCE frames, with capture.mode = \"sniffer\""
                } else {
                    ""
                }
            ),
        },
    );
    text
}

/// Describes a port of an RDMA device in one line.
fn describe_port(port: &PortFacts) -> String {
    let link = if port.ethernet {
        "Ethernet"
    } else {
        "not Ethernet (cannot be captured)"
    };
    let netdev = port
        .netdev
        .as_deref()
        .unwrap_or("unknown network interface");
    let mtu = port
        .mtu
        .map(|mtu| format!(", MTU {mtu}"))
        .unwrap_or_default();
    format!(
        "{}, {link}, {} Gbit/s, {netdev}{mtu}",
        port.state, port.rate_gbps
    )
}

/// Returns the names of the WQ creation flags that a device supports.
fn flags(DeviceFacts { caps, .. }: &DeviceFacts) -> String {
    let offered: Vec<_> = [
        (caps.cvlan_stripping, "cvlan_stripping"),
        (caps.scatter_fcs, "scatter_fcs"),
        (caps.delay_drop, "delay_drop"),
        (caps.end_padding, "pci_write_end_padding"),
    ]
    .into_iter()
    .filter_map(|(offered, name)| offered.then_some(name))
    .collect();
    if offered.is_empty() {
        "none".into()
    } else {
        offered.join(", ")
    }
}

/// Returns a failure with a remedy if there is nothing to capture from: no device, or a selected
/// device that lacks verbs for `mode`. The plan of a run reports all other obstacles.
pub fn require_capable(
    devices: &[DeviceFacts],
    name: Option<&str>,
    mode: Mode,
) -> Result<(), Failure> {
    if devices.is_empty() && preload::entered() {
        return Err(Failure::refused(
            "the software NIC has no device; run again with --set model.debug=true",
        ));
    }
    if devices.is_empty() {
        return Err(Failure::refused(format!(
            "there is no RDMA device on this machine; to try the software NIC, run {TRY_MODEL}"
        )));
    }
    let selected = match (name, devices) {
        (Some(name), _) => devices.iter().find(|device| device.name == name),
        (None, [only]) => Some(only),
        _ => None,
    };
    match selected {
        Some(device) if !device.can_capture(mode) => Err(Failure::refused(format!(
            "device {} cannot capture: it lacks {}; {}",
            device.name,
            device.missing.join(", "),
            match device.raw_qp_only {
                true => "set capture.mode = \"sniffer\" to capture its RoCE frames".into(),
                false => format!("to try the software NIC, run {TRY_MODEL}"),
            }
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use wqcap_engine::{
        device::{DeviceCaps, port_topology::PortTopology},
        verbs::RingAccess,
    };

    /// Returns the facts of a device with one Ethernet port; the device lacks the verbs in
    /// `missing`.
    pub fn device(name: &str, missing: &[&str]) -> DeviceFacts {
        DeviceFacts {
            name: name.into(),
            node_guid: "0c42:a103:0000:0001".into(),
            firmware: "16.35.2000".into(),
            vendor_part: (0x15b3, 0x1017),
            numa_node: None,
            caps: DeviceCaps {
                max_wq: 1024,
                max_wq_wr: Some(32768),
                max_qp_wr: 8192,
                max_sge: 32,
                max_table: 2048,
                max_cqe: 4_194_303,
                clock_khz: 1_000_000,
                timestamp_mask: u64::MAX,
                real_time: false,
                rss_toeplitz: true,
                delay_drop: true,
                ..DeviceCaps::default()
            },
            ports: vec![PortFacts {
                number: 1,
                state: "ACTIVE".into(),
                ethernet: true,
                rate_gbps: 100.0,
                netdev: Some("ens1f0np0".into()),
                mtu: Some(1500),
                roce: None,
                place: PortTopology::default(),
            }],
            delay_drop: None,
            access: RingAccess::Mlx5,
            software: false,
            kernel: None,
            raw_qp_only: false,
            missing: missing.iter().map(|verb| (*verb).to_owned()).collect(),
        }
    }

    #[test]
    fn a_device_description_has_its_facts() {
        let text = describe(&device("mlx5_0", &[]));
        for part in [
            "mlx5_0\n",
            "port 1    ACTIVE, Ethernet, 100 Gbit/s, ens1f0np0, MTU 1500",
            "15b3:1017",
            "1000 MHz, 64 bits",
            "flags     delay_drop\n",
            "capture   yes\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in:\n{text}");
        }
    }

    #[test]
    fn missing_verbs_are_named_with_a_remedy() {
        let rxe = [device("rxe0", &["ibv_create_wq", "ibv_create_flow"])];
        let failure = require_capable(&rxe, None, Mode::Steal).unwrap_err();
        assert!(
            failure.messages[0]
                .contains("rxe0 cannot capture: it lacks ibv_create_wq, ibv_create_flow")
        );
        assert!(failure.messages[0].contains("--model"));
        assert!(
            require_capable(&[], None, Mode::Steal)
                .unwrap_err()
                .messages[0]
                .contains("--model")
        );
    }

    #[test]
    fn a_device_that_is_not_selected_is_not_checked() {
        let both = [device("rxe0", &["ibv_create_wq"]), device("mlx5_0", &[])];
        assert!(require_capable(&both, Some("mlx5_0"), Mode::Steal).is_ok());
        assert!(require_capable(&both, Some("rxe0"), Mode::Steal).is_err());
        assert!(require_capable(&both, None, Mode::Steal).is_ok());
    }

    #[test]
    fn a_device_without_wqs_captures_in_mode_sniffer_only() {
        let bnxt = [DeviceFacts {
            raw_qp_only: true,
            ..device("bnxt_re0", &["ibv_create_wq"])
        }];
        assert!(require_capable(&bnxt, None, Mode::Sniffer).is_ok());
        let refused = require_capable(&bnxt, None, Mode::Filtered).unwrap_err();
        assert!(refused.messages[0].contains("capture.mode = \"sniffer\""));
        let rxe = [device("rxe0", &["ibv_create_wq"])];
        assert!(require_capable(&rxe, None, Mode::Sniffer).is_err());
    }
}
