//! Topology of a port, read from sysfs: the functions, e-switch and bond that decide which frames
//! reach the port before any flow rule.
//!
//! May import: nothing beyond this folder. Invariant: only facts; [`crate::plan`] decides what they
//! mean to a capture.
//!
//! Sources: `Documentation/ABI/testing/sysfs-bus-pci` (`physfn`, `sriov_numvfs`), `sysfs-class-net`
//! (`phys_switch_id`, `phys_port_name`), `Documentation/networking/switchdev.rst` (names of uplinks and representors).

use super::{delay_drop::debug_folder, read, read_number};
use serde::Serialize;
use std::{fs, path::Path};

/// Functions, e-switch and bond that a port shares its hardware with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PortTopology {
    /// `true` if the port's PCI function is a virtual function.
    pub is_vf: bool,
    /// Number of enabled virtual functions of the port's PCI function.
    pub vfs: u32,
    /// Port of the e-switch, such as `pf0vf3`, that the network interface represents: it receives
    /// the frames that this port sends.
    pub represents: Option<String>,
    /// `true` if the port's e-switch forwards by its own rules (switchdev mode).
    pub switchdev: bool,
    /// Name of the bond that the port's network interface belongs to.
    pub bond: Option<String>,
    /// `true` if the port's RDMA device covers several physical ports (RoCE LAG).
    pub is_lag: bool,
}

impl PortTopology {
    /// Reads the topology of an RDMA device's port with the interface `netdev`, below `sysfs`
    /// (`/sys`).
    #[must_use]
    pub fn read(sysfs: &Path, device: &str, netdev: Option<&str>) -> Self {
        let function = sysfs.join(format!("class/infiniband/{device}/device"));
        let mut place = Self {
            // The driver's name for the device over a bond (mlx5_ib_stage_init_init), which
            // persistent naming replaces.
            is_lag: device.starts_with("mlx5_bond_") || has_active_lag(sysfs, device),
            ..Self::from_function(&function)
        };
        if let Some(netdev) = netdev {
            let interface = sysfs.join(format!("class/net/{netdev}"));
            place.read_interface(&interface);
            place.is_lag |= covers_bond(&interface);
        }
        place
    }

    /// Returns the limits of a capture on a virtual function, one sentence each, for reports; empty
    /// for any other port.
    #[must_use]
    pub fn limits(&self) -> &'static [&'static str] {
        // mlx5_core of the host: `esw_update_vport_rx_mode` for promiscuous mode. That the firmware
        // gives tables for sniffer rules to physical functions only is inferred.
        if self.is_vf {
            &[
                "a virtual function that the host does not trust is not in promiscuous mode: unicast frames to other MACs do not arrive",
                "a virtual function has no sniffer rules: ibv_create_flow fails with EOPNOTSUPP",
                "the port's counters (rx_*_phy) and its MTU, FCS and pause settings belong to the host",
            ]
        } else {
            &[]
        }
    }

    /// Reads the topology of an ordinary network interface from its directory in sysfs.
    #[must_use]
    pub fn from_interface(interface: &Path) -> Self {
        let mut place = Self::from_function(&interface.join("device"));
        place.read_interface(interface);
        place
    }

    /// Reads whether a PCI function is a virtual one, and how many virtual functions it has, from
    /// its directory in sysfs.
    fn from_function(function: &Path) -> Self {
        Self {
            is_vf: function.join("physfn").exists(),
            vfs: read_number(function.join("sriov_numvfs")).unwrap_or(0),
            ..Self::default()
        }
    }

    /// Reads the e-switch port and the bond of a network interface.
    fn read_interface(&mut self, interface: &Path) {
        // Without switchdev mode the kernel returns EOPNOTSUPP.
        self.switchdev = read(interface.join("phys_switch_id")).is_some_and(|id| !id.is_empty());
        self.represents = read(interface.join("phys_port_name"))
            .filter(|name| self.switchdev && !is_uplink(name) && !name.is_empty());
        let master = interface.join("master");
        if master.join("bonding").exists() {
            self.bond = fs::read_link(&master)
                .ok()
                .and_then(|to| Some(to.file_name()?.to_str()?.to_owned()));
        }
    }
}

/// Returns `true` if the driver reports an active LAG of the RDMA device in debugfs, which only root
/// can read on most machines (`state_show` of mlx5/core/lag/debugfs.c).
fn has_active_lag(sysfs: &Path, device: &str) -> bool {
    let state = debug_folder(sysfs, device).and_then(|it| read(it.join("lag/state")));
    state.is_some_and(|it| it == "active")
}

/// Returns `true` if the RDMA device of a network interface covers the bond that the interface is or
/// belongs to: another member is a function of the same driver without an RDMA device
/// (`mlx5_lag_add_devices` of mlx5/core/lag/lag.c gives the device to one function).
fn covers_bond(interface: &Path) -> bool {
    let master = interface.join("master");
    let bond = [interface, &master]
        .into_iter()
        .find(|it| it.join("bonding").exists());
    let driver = |function: &Path| {
        fs::read_link(function.join("driver"))
            .ok()?
            .file_name()
            .map(ToOwned::to_owned)
    };
    let members = bond.and_then(|bond| fs::read_dir(bond).ok());
    let members = members.into_iter().flatten().flatten();
    members
        .filter(|it| it.file_name().to_string_lossy().starts_with("lower_"))
        .map(|it| it.path().join("device"))
        .any(|function| {
            driver(&function).is_some_and(|it| it == "mlx5_core")
                && !function.join("infiniband").exists()
        })
}

/// Returns `true` if an e-switch port name is that of a physical port: `p0`, but not `pf0`,
/// `pf0vf3` or `pf0sf88`.
fn is_uplink(name: &str) -> bool {
    let number = name.strip_prefix('p').unwrap_or_default();
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Creates a sysfs tree with a device `mlx5_0` and its interface `ens1`.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("temporary directory");
        for folder in ["class/infiniband/mlx5_0/device", "class/net/ens1"] {
            fs::create_dir_all(root.path().join(folder)).expect("create directory");
        }
        root
    }

    /// Writes a line of text to a file of the sysfs tree.
    fn write_file(root: &tempfile::TempDir, file: &str, text: &str) {
        fs::write(root.path().join(file), format!("{text}\n")).expect("write file");
    }

    /// Reads the port topology of the sysfs tree's device.
    fn topology(root: &tempfile::TempDir) -> PortTopology {
        PortTopology::read(root.path(), "mlx5_0", Some("ens1"))
    }

    #[test]
    fn an_unshared_port_has_the_default_topology() {
        let root = tree();
        assert_eq!(topology(&root), PortTopology::default());
        write_file(&root, "class/infiniband/mlx5_0/device/sriov_numvfs", "0");
        write_file(&root, "class/net/ens1/phys_switch_id", "");
        write_file(&root, "class/net/ens1/phys_port_name", "p0");
        assert_eq!(topology(&root), PortTopology::default());
        assert_eq!(
            PortTopology::read(root.path(), "none", None),
            PortTopology::default()
        );
    }

    #[test]
    fn virtual_and_physical_functions_are_distinguished() {
        let root = tree();
        write_file(&root, "class/infiniband/mlx5_0/device/sriov_numvfs", "4");
        assert_eq!((topology(&root).vfs, topology(&root).is_vf), (4, false));
        let physical = root.path().join("class/infiniband/mlx5_0/device/physfn");
        symlink(root.path(), physical).expect("create symlink");
        assert!(topology(&root).is_vf);
    }

    #[test]
    fn an_uplink_in_switchdev_mode_is_not_a_representor() {
        let root = tree();
        write_file(&root, "class/net/ens1/phys_switch_id", "f4b0a10003b4e9ec");
        for (name, represents) in [
            ("p0", None),
            ("p12", None),
            ("pf0", Some("pf0")),
            ("pf0vf3", Some("pf0vf3")),
            ("c1pf0vf3", Some("c1pf0vf3")),
            ("pf0sf88", Some("pf0sf88")),
        ] {
            write_file(&root, "class/net/ens1/phys_port_name", name);
            let place = topology(&root);
            assert!(place.switchdev);
            assert_eq!(place.represents.as_deref(), represents, "{name}");
        }
    }

    #[test]
    fn a_bond_is_distinguished_from_a_bridge() {
        let root = tree();
        let master = root.path().join("class/net/bond0");
        fs::create_dir_all(&master).expect("create directory");
        symlink("../bond0", root.path().join("class/net/ens1/master")).expect("create symlink");
        assert_eq!(topology(&root).bond, None);
        fs::create_dir(master.join("bonding")).expect("create directory");
        assert_eq!(topology(&root).bond.as_deref(), Some("bond0"));
        assert!(PortTopology::read(root.path(), "mlx5_bond_0", None).is_lag);
    }

    #[test]
    fn a_lag_is_found_under_any_name_of_its_device() {
        let root = tree();
        let class = root.path().join("class/infiniband/rocep59s0f0");
        let debug = root.path().join("kernel/debug/mlx5/0000:3b:00.0/lag");
        let function = root.path().join("devices/0000:3b:00.0");
        for folder in [&class, &debug, &function] {
            fs::create_dir_all(folder).expect("create directory");
        }
        symlink(&function, class.join("device")).expect("create symlink");
        let is_lag = || PortTopology::read(root.path(), "rocep59s0f0", None).is_lag;
        for (state, active) in [("disabled", false), ("active", true)] {
            fs::write(debug.join("state"), format!("{state}\n")).expect("write file");
            assert_eq!(is_lag(), active, "{state}");
        }
        // Without debugfs: the second member of the bond has no RDMA device.
        let bond = root.path().join("class/net/bond0");
        fs::create_dir_all(bond.join("bonding")).expect("create directory");
        symlink("../bond0", root.path().join("class/net/ens1/master")).expect("create symlink");
        let members = ["ens1", "ens2"].map(|name| {
            let function = bond.join(format!("lower_{name}/device"));
            fs::create_dir_all(function.join("infiniband")).expect("create directory");
            symlink("../drivers/mlx5_core", function.join("driver")).expect("create symlink");
            function
        });
        assert!(!topology(&root).is_lag, "two devices");
        fs::remove_dir(members[1].join("infiniband")).expect("remove directory");
        assert!(topology(&root).is_lag, "one device for both");
    }
}
