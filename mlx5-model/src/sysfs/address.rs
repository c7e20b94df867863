//! PCI addresses of the devices, and names and indexes of the virtual interfaces.

use crate::settings;

/// PCI domain of the model's devices: Mellanox's vendor number, which no firmware assigns as a
/// domain.
pub const PCI_DOMAIN: &str = "15b3";

/// Returns the PCI address of a modelled device.
pub fn pci_address(device: usize) -> String {
    format!("{PCI_DOMAIN}:{:02x}:00.0", device + 1)
}

/// Returns the number of the modelled device that has this PCI address.
pub fn device_at(address: &str) -> Option<usize> {
    let bus = address.strip_prefix(PCI_DOMAIN)?.strip_prefix(':')?;
    let bus = usize::from_str_radix(bus.strip_suffix(":00.0")?, 16).ok()?;
    bus.checked_sub(1)
}

/// Returns the `ifindex` of a port's virtual interface, which is above the indexes that a kernel
/// assigns.
pub fn virtual_ifindex(device: usize, port: u8) -> u32 {
    0x15b3_0000 + device as u32 * 16 + u32::from(port)
}

/// Returns the device number and the port of the virtual network interface with this name.
pub fn virtual_netdev(name: &str) -> Option<(usize, u8)> {
    let mut devices = settings::global().devices.iter().enumerate();
    devices.find_map(|(device, settings)| {
        let mut ports = settings.ports.iter().zip(1..);
        let (_, number) = ports.find(|(port, _)| port.netdev.is_none() && port.ifname == name)?;
        Some((device, number))
    })
}
