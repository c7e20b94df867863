//! PCI addresses of the devices, and interfaces that exist in the run directory alone.

use crate::settings;

/// The PCI domain of the model's devices, which no firmware assigns: Mellanox's vendor number.
pub const PCI_DOMAIN: &str = "15b3";

/// A device's PCI address.
pub fn pci_address(device: usize) -> String {
    format!("{PCI_DOMAIN}:{:02x}:00.0", device + 1)
}

/// The device at a PCI address of the model's.
pub fn device_at(address: &str) -> Option<usize> {
    let bus = address.strip_prefix(PCI_DOMAIN)?.strip_prefix(':')?;
    let bus = usize::from_str_radix(bus.strip_suffix(":00.0")?, 16).ok()?;
    bus.checked_sub(1)
}

/// `ifindex` of a virtual interface: above what a kernel assigns.
pub fn virtual_ifindex(device: usize, port: u8) -> u32 {
    0x15b3_0000 + device as u32 * 16 + u32::from(port)
}

/// Device and port of the virtual interface of this name.
pub fn virtual_netdev(name: &str) -> Option<(usize, u8)> {
    let mut devices = settings::global().devices.iter().enumerate();
    devices.find_map(|(device, settings)| {
        let mut ports = settings.ports.iter().zip(1..);
        let (_, number) = ports.find(|(port, _)| port.netdev.is_none() && port.ifname == name)?;
        Some((device, number))
    })
}
