//! Settings of devices and ports while keys are applied, and the defaults that complete them.

use std::path::PathBuf;

use crate::wire::WireSpec;

use super::device::{DeviceSettings, DeviceTopology, NicCaps, PortSettings};
use super::error::ModelSettingsError;
use super::fault::Fault;
use super::value::mac;

/// Settings of a port as the keys gave them, before defaults complete them.
#[derive(Debug, Clone, Default)]
pub struct PortDraft {
    pub wire: Option<String>,
    pub rate_gbps: Option<u32>,
    pub mac: Option<[u8; 6]>,
    pub netdev: Option<String>,
    pub mtu: Option<u32>,
    pub link_up: Option<bool>,
    pub rx_all: bool,
    pub enforces_mtu: bool,
    pub gate: Option<PathBuf>,
    pub eswitch_port: Option<String>,
    pub bond: Option<String>,
}

/// Settings of a device as the keys gave them, before defaults complete them.
#[derive(Debug, Default)]
pub struct DeviceDraft {
    pub ports: usize,
    pub topology: DeviceTopology,
    pub cpu: Option<usize>,
    pub faults: Vec<Fault>,
    pub caps: NicCaps,
    /// Settings drafts of the device's ports, port 1 first; empty until `ports` is parsed.
    pub port: Vec<PortDraft>,
}

impl DeviceDraft {
    /// Completes the settings of the device with number `index`. Fails if a port has no valid wire
    /// or a fault names a missing port.
    pub fn finish(self, index: usize) -> Result<DeviceSettings, ModelSettingsError> {
        let ports = self
            .port
            .into_iter()
            .enumerate()
            .map(|(port, draft)| draft.finish(index, port + 1))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(fault) = self
            .faults
            .iter()
            .find(|fault| usize::from(fault.port) > ports.len())
        {
            return Err(ModelSettingsError::NoFaultPort {
                device: index,
                port: fault.port,
                ports: ports.len(),
            });
        }
        Ok(DeviceSettings {
            // Names as in the driver (`mlx5_ib_stage_init_init`), or by the PCI address as in
            // rdma-core's kernel-boot/rdma_rename.c (`by_pci`).
            name: if self.topology.has_persistent_name {
                format!("roceP{}p{}s0", 0x15b3, index + 1)
            } else if self.topology.lag {
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
    /// Completes the settings of port number `port` (from 1). MAC address and MTU default to those
    /// of the network interface under the port.
    fn finish(self, device: usize, port: usize) -> Result<PortSettings, ModelSettingsError> {
        let text = self
            .wire
            .ok_or(ModelSettingsError::NoWire { device, port })?;
        let wire: WireSpec = text.parse().map_err(|source| ModelSettingsError::Wire {
            device,
            port,
            source: Box::new(source),
        })?;
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
            enforces_mtu: self.enforces_mtu,
            gate: self.gate,
            eswitch_port: self.eswitch_port,
            bond: self.bond,
        })
    }
}
