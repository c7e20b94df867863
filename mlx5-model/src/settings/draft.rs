//! Settings of devices and ports while keys are applied, and their completion by defaults.

use std::path::PathBuf;

use crate::wire::WireSpec;

use super::device::{DeviceSettings, DeviceTopology, NicCaps, PortSettings};
use super::fault::Fault;
use super::value::mac;

/// A port whose settings are not complete yet.
#[derive(Debug, Clone, Default)]
pub struct PortDraft {
    pub wire: Option<String>,
    pub rate_gbps: Option<u32>,
    pub mac: Option<[u8; 6]>,
    pub netdev: Option<String>,
    pub mtu: Option<u32>,
    pub link_up: Option<bool>,
    pub rx_all: bool,
    pub gate: Option<PathBuf>,
    pub eswitch_port: Option<String>,
    pub bond: Option<String>,
}

/// A device whose settings are not complete yet.
#[derive(Debug, Default)]
pub struct DeviceDraft {
    pub ports: usize,
    pub topology: DeviceTopology,
    pub cpu: Option<usize>,
    pub faults: Vec<Fault>,
    pub caps: NicCaps,
    /// Empty until `ports` is known.
    pub port: Vec<PortDraft>,
}

impl DeviceDraft {
    /// The settings of device `index`.
    pub fn finish(mut self, index: usize) -> Result<DeviceSettings, String> {
        let ports = self
            .port
            .into_iter()
            .enumerate()
            .map(|(port, draft)| draft.finish(index, port + 1))
            .collect::<Result<Vec<_>, _>>()?;
        // A sniffer's frames are the kernel's too, and the host's own are among them.
        self.caps.sniffer &= !ports.iter().any(|port| port.wire.steals());
        if let Some(fault) = self
            .faults
            .iter()
            .find(|fault| usize::from(fault.port) > ports.len())
        {
            return Err(format!(
                "mlx5_{index}.fault: there is no port {}, only {}; set mlx5_{index}.ports to have more",
                fault.port,
                ports.len()
            ));
        }
        Ok(DeviceSettings {
            // As the driver names it (`mlx5_ib_stage_init_init`).
            name: if self.topology.lag {
                format!("mlx5_bond_{index}")
            } else {
                format!("mlx5_{index}")
            },
            topology: self.topology,
            caps: self.caps,
            ports,
            cpu: self.cpu,
            faults: self.faults,
        })
    }
}

impl PortDraft {
    /// The settings of port `port` (from 1), with what the interface under it tells.
    fn finish(self, device: usize, port: usize) -> Result<PortSettings, String> {
        let text = self.wire.ok_or_else(|| {
            format!(
                "mlx5_{device} port {port} has no wire; set mlx5_{device}.port{port}.wire=<wire>"
            )
        })?;
        let wire: WireSpec = text
            .parse()
            .map_err(|error| format!("mlx5_{device} port {port}: {error}"))?;
        let named = self.netdev.or_else(|| wire.netdev().map(str::to_owned));
        let attribute = |name: &str, what: &str| {
            let text = std::fs::read_to_string(format!("/sys/class/net/{name}/{what}")).ok()?;
            Some(text.trim().to_owned())
        };
        let real = named
            .clone()
            .filter(|name| attribute(name, "ifindex").is_some());
        let of_real = |what: &str| real.as_deref().and_then(|name| attribute(name, what));
        Ok(PortSettings {
            wire,
            rate_gbps: self.rate_gbps.unwrap_or(100),
            mac: self
                .mac
                .or_else(|| mac(&of_real("address")?).ok())
                .unwrap_or([0x0c, 0x42, 0xa1, 0, device as u8, port as u8]),
            mtu: self
                .mtu
                .or_else(|| of_real("mtu")?.parse().ok())
                .unwrap_or(1500),
            ifname: named.unwrap_or_else(|| format!("mlx5_{device}p{port}")),
            netdev: real,
            link_up: self.link_up.unwrap_or(true),
            rx_all: self.rx_all,
            gate: self.gate,
            eswitch_port: self.eswitch_port,
            bond: self.bond,
        })
    }
}
