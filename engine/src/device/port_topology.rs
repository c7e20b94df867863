//! Topology of a port, read from sysfs: the functions, e-switch and bond that decide which frames
//! reach the port before any flow rule.
//!
//! May import: nothing beyond this folder. Invariant: only facts; [`crate::plan`] decides what they
//! mean to a capture.
//!
//! Sources: `Documentation/ABI/testing/sysfs-bus-pci` (`physfn`, `sriov_numvfs`), `sysfs-class-net`
//! (`phys_switch_id`, `phys_port_name`), `Documentation/networking/switchdev.rst` (names of uplinks and representors).

use super::{read, read_number};
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
            // The driver's name for the device over a bond (mlx5_ib_stage_init_init).
            is_lag: device.starts_with("mlx5_bond_"),
            ..Self::from_function(&function)
        };
        if let Some(netdev) = netdev {
            place.read_interface(&sysfs.join(format!("class/net/{netdev}")));
        }
        place
    }

    /// Reads the topology of an ordinary network interface from its directory in sysfs.
    #[must_use]
    pub fn from_interface(interface: &Path) -> Self {
        let mut place = Self::from_function(&interface.join("device"));
        place.read_interface(interface);
        place
    }

    /// Reads what a PCI function says of its virtual functions, from its directory in sysfs.
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
}
