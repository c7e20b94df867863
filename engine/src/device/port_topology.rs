//! Where a port stands among others that share its hardware, as sysfs tells: what reaches it at all is decided there,
//! before any rule of ours.
//!
//! May import: nothing beyond this folder. Invariant: only facts; what they mean to a capture is [`crate::plan`]'s to say.
//!
//! Sources: `Documentation/ABI/testing/sysfs-bus-pci` (`physfn`, `sriov_numvfs`), `sysfs-class-net`
//! (`phys_switch_id`, `phys_port_name`), `Documentation/networking/switchdev.rst` (names of uplinks and representors).

use super::{read, read_number};
use serde::Serialize;
use std::{fs, path::Path};

/// What a port shares its hardware with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortTopology {
    /// The PCI function is a virtual one.
    pub is_vf: bool,
    /// Virtual functions that this one has brought up.
    pub vfs: u32,
    /// The interface stands for this port of the e-switch (`pf0vf3`): what that one sends is what arrives here.
    pub represents: Option<String>,
    /// The e-switch forwards by rules of its own (switchdev mode).
    pub switchdev: bool,
    /// The bond that the interface belongs to.
    pub bond: Option<String>,
    /// The RDMA device stands for several physical ports (RoCE LAG).
    pub is_lag: bool,
}

impl PortTopology {
    /// Of an RDMA device's port over `netdev`, read below `sysfs`, which is `/sys`.
    #[must_use]
    pub fn of(sysfs: &Path, device: &str, netdev: Option<&str>) -> Self {
        let function = sysfs.join(format!("class/infiniband/{device}/device"));
        let mut place = Self {
            is_vf: function.join("physfn").exists(),
            vfs: read_number(function.join("sriov_numvfs")).unwrap_or(0),
            // The driver's own name for the device over a bond (mlx5_ib_stage_init_init).
            is_lag: device.starts_with("mlx5_bond_"),
            ..Self::default()
        };
        if let Some(netdev) = netdev {
            place.read_interface(&sysfs.join(format!("class/net/{netdev}")));
        }
        place
    }

    fn read_interface(&mut self, interface: &Path) {
        // Without switchdev mode the kernel answers EOPNOTSUPP.
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

/// Whether an e-switch port's name is a physical port's: `p0`, and not `pf0`, `pf0vf3` or `pf0sf88`.
fn is_uplink(name: &str) -> bool {
    let number = name.strip_prefix('p').unwrap_or_default();
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A tree with a device `mlx5_0` over interface `ens1`.
    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for folder in ["class/infiniband/mlx5_0/device", "class/net/ens1"] {
            fs::create_dir_all(root.path().join(folder)).expect("made");
        }
        root
    }

    fn put(root: &tempfile::TempDir, file: &str, text: &str) {
        fs::write(root.path().join(file), format!("{text}\n")).expect("written");
    }

    fn of(root: &tempfile::TempDir) -> PortTopology {
        PortTopology::of(root.path(), "mlx5_0", Some("ens1"))
    }

    #[test]
    fn a_port_of_its_own_shares_with_nobody() {
        let root = tree();
        assert_eq!(of(&root), PortTopology::default());
        put(&root, "class/infiniband/mlx5_0/device/sriov_numvfs", "0");
        put(&root, "class/net/ens1/phys_switch_id", "");
        put(&root, "class/net/ens1/phys_port_name", "p0");
        assert_eq!(of(&root), PortTopology::default());
        assert_eq!(
            PortTopology::of(root.path(), "none", None),
            PortTopology::default()
        );
    }

    #[test]
    fn virtual_functions_are_told_from_both_sides() {
        let root = tree();
        put(&root, "class/infiniband/mlx5_0/device/sriov_numvfs", "4");
        assert_eq!((of(&root).vfs, of(&root).is_vf), (4, false));
        let physical = root.path().join("class/infiniband/mlx5_0/device/physfn");
        symlink(root.path(), physical).expect("linked");
        assert!(of(&root).is_vf);
    }

    #[test]
    fn an_uplink_in_switchdev_mode_is_no_representor() {
        let root = tree();
        put(&root, "class/net/ens1/phys_switch_id", "f4b0a10003b4e9ec");
        for (name, represents) in [
            ("p0", None),
            ("p12", None),
            ("pf0", Some("pf0")),
            ("pf0vf3", Some("pf0vf3")),
            ("c1pf0vf3", Some("c1pf0vf3")),
            ("pf0sf88", Some("pf0sf88")),
        ] {
            put(&root, "class/net/ens1/phys_port_name", name);
            let place = of(&root);
            assert!(place.switchdev);
            assert_eq!(place.represents.as_deref(), represents, "{name}");
        }
    }

    #[test]
    fn a_bond_is_no_bridge() {
        let root = tree();
        let master = root.path().join("class/net/bond0");
        fs::create_dir_all(&master).expect("made");
        symlink("../bond0", root.path().join("class/net/ens1/master")).expect("linked");
        assert_eq!(of(&root).bond, None);
        fs::create_dir(master.join("bonding")).expect("made");
        assert_eq!(of(&root).bond.as_deref(), Some("bond0"));
        assert!(PortTopology::of(root.path(), "mlx5_bond_0", None).is_lag);
    }
}
