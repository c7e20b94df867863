//! Ordinary network interfaces, which the kernel receives from: facts from sysfs, in the form of a
//! device with one port.
//!
//! Source of the files: `Documentation/ABI/testing/sysfs-class-net` of the kernel.

use super::{
    DeviceCaps, DeviceFacts, PortFacts,
    interface::{exists_in_kernel, kernel_names},
    port_topology::PortTopology,
    read, read_number,
};
use crate::verbs::RingAccess;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use serde::Serialize;
use std::{fs, path::Path};

/// Largest number of packet sockets in a fanout group (`PACKET_FANOUT_MAX` of kernels before 5.13).
const MOST_QUEUES: u32 = 256;
/// Hardware types whose frames begin with an Ethernet header: `ARPHRD_ETHER` and `ARPHRD_LOOPBACK`
/// (linux/if_arp.h).
const ETHERNET: [u16; 2] = [1, 772];

/// Facts of an ordinary network interface that an RDMA device does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelFacts {
    /// Name of the interface's driver; `None` for an interface that the kernel itself provides.
    pub driver: Option<String>,
    /// MAC address of the interface, as sysfs prints it; `None` if it has none.
    pub mac: Option<String>,
    /// Hardware type of the interface (`ARPHRD_…` of linux/if_arp.h).
    pub hardware_type: u16,
    /// Number of the interface's receive queues.
    pub rx_queues: u32,
    /// Names of the network interfaces below this one, on which its frames also arrive: the members
    /// of a bond, the ports of a bridge, the parent of a VLAN.
    pub lower: Vec<String>,
}

impl KernelFacts {
    /// Returns `true` for the loopback interface, on which a packet socket sees each frame twice.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.hardware_type == ETHERNET[1]
    }
}

/// Returns the facts of the network interface `name`; `None`: the kernel has no such interface.
#[must_use]
pub fn interface(name: &str) -> Option<DeviceFacts> {
    if !exists_in_kernel(name) {
        return None;
    }
    let sys = Path::new("/sys/class/net").join(name);
    let hardware_type = read_number(sys.join("type"))?;
    // Of interfaces without a carrier, the driver answers EINVAL or -1.
    let speed: Option<i64> = read_number(sys.join("speed"));
    let is_up = has_carrier(name);
    let link = fs::read_link(sys.join("device/driver")).ok();
    let driver = link.and_then(|it| Some(it.file_name()?.to_str()?.to_owned()));
    let mac = read(sys.join("address")).filter(|it| !it.is_empty());
    Some(DeviceFacts {
        name: name.to_owned(),
        node_guid: String::new(),
        firmware: String::new(),
        vendor_part: (0, 0),
        numa_node: read_number(sys.join("device/numa_node")),
        caps: DeviceCaps {
            max_wq: MOST_QUEUES,
            // Limits of what a packet socket does not have.
            max_sge: u32::MAX,
            max_table: u32::MAX,
            ..DeviceCaps::default()
        },
        delay_drop: None,
        ports: vec![PortFacts {
            number: 1,
            state: if is_up { "ACTIVE" } else { "DOWN" }.into(),
            ethernet: ETHERNET.contains(&hardware_type),
            rate_gbps: speed.filter(|it| *it > 0).map_or(0.0, |it| it as f64 / 1e3),
            netdev: Some(name.to_owned()),
            mtu: read_number(sys.join("mtu")),
            roce: None,
            place: PortTopology::from_interface(&sys),
        }],
        access: RingAccess::Verbs,
        software: false,
        missing: Vec::new(),
        raw_qp_only: false,
        kernel: Some(KernelFacts {
            driver,
            mac,
            hardware_type,
            rx_queues: names(&sys.join("queues"), "rx-").len() as u32,
            lower: names(&sys, "lower_"),
        }),
    })
}

/// Returns the rest after `prefix` of the names of a sysfs directory's entries that begin with
/// `prefix`, in order.
fn names(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let entries = entries.filter_map(|it| it.file_name().into_string().ok());
    let mut names: Vec<_> = entries
        .filter_map(|it| it.strip_prefix(prefix).map(str::to_owned))
        .collect();
    names.sort_unstable();
    names
}

/// Returns `true` if the network interface `name` is up and has a carrier.
#[must_use]
pub fn has_carrier(name: &str) -> bool {
    read(format!("/sys/class/net/{name}/carrier")).is_some_and(|it| it == "1")
}

/// Lists the facts of the network interfaces of this network namespace, in the order of their
/// names. An interface whose name is not UTF-8 is left out: no key can name it.
#[must_use]
pub fn interfaces() -> Vec<DeviceFacts> {
    let names = kernel_names();
    let names = names.iter().filter_map(|it| it.to_str());
    names.filter_map(interface).collect()
}

/// Returns `true` if sysfs shows the interfaces of another network namespace than that of this
/// process, as after `nsenter --net`: it has another index for the interface `name`, or lacks an
/// interface. State, counters and queues would be those of another interface.
pub(super) fn has_foreign_sysfs(name: &str) -> bool {
    let sys = Path::new("/sys/class/net");
    let index = || {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
        netdevice::name_to_index(&socket, name).ok()
    };
    let differs = || {
        let shown = read_number::<u32>(sys.join(name).join("ifindex"));
        index().is_some_and(|it| shown != Some(it))
            || kernel_names().iter().any(|it| !sys.join(it).exists())
    };
    // An interface may be created or removed between the two readings.
    differs() && differs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_a_device_with_one_port_of_ethernet_frames() {
        let lo = interface("lo").expect("every namespace has it");
        let kernel = lo.kernel.as_ref().expect("facts");
        assert!(kernel.is_loopback() && kernel.driver.is_none());
        assert!(lo.ports[0].ethernet && lo.missing.is_empty());
        assert_eq!(lo.ports[0].netdev.as_deref(), Some("lo"));
        assert!(interfaces().iter().any(|it| it.name == "lo"));
        assert!(interface("nosuch0").is_none());
        assert!(!has_foreign_sysfs("lo") && !has_foreign_sysfs("nosuch0"));
    }
}
