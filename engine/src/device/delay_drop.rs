//! Delay drop state of the mlx5 driver: how long the NIC holds frames for a WQ without buffers, and
//! how often that time ran out. The state is in debugfs, which only root can read on most machines.
//!
//! May import: nothing beyond this folder. Source: `drivers/infiniband/hw/mlx5/main.c` (`delay_drop_debugfs_init`).

use super::read_number;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Name of the mlx5 driver's file of delay drop timeouts, and of their counter in reports.
pub const TIMEOUTS: &str = "num_timeout_events";

/// Delay drop state of a device, shared by all its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DelayDrop {
    /// Maximum time that delay drop holds frames in the NIC, in microseconds.
    pub timeout_us: u64,
    /// Number of delay drop timeouts since the driver was loaded. After a timeout the NIC drops
    /// frames until the driver rearms it.
    pub num_timeout_events: u64,
}

impl DelayDrop {
    /// Reads the delay drop state of an RDMA device below `sysfs` (`/sys`); `None` if it cannot be
    /// read.
    #[must_use]
    pub fn read(sysfs: &Path, device: &str) -> Option<Self> {
        let folder = folder(sysfs, device)?;
        Some(Self {
            timeout_us: read_number(folder.join("timeout"))?,
            num_timeout_events: read_number(folder.join(TIMEOUTS))?,
        })
    }
}

/// Returns the driver's debugfs directory of delay drop, or `None` if the device has no PCI
/// address.
pub(crate) fn folder(sysfs: &Path, device: &str) -> Option<PathBuf> {
    Some(debug_folder(sysfs, device)?.join("delay_drop"))
}

/// Returns the mlx5 driver's debugfs directory of an RDMA device, or `None` if the device has no PCI
/// address.
pub(super) fn debug_folder(sysfs: &Path, device: &str) -> Option<PathBuf> {
    let function = sysfs.join(format!("class/infiniband/{device}/device"));
    let function = function.canonicalize().ok()?;
    let mlx5 = Path::new("kernel/debug/mlx5").join(function.file_name()?);
    Some(sysfs.join(mlx5))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn delay_drop_is_found_by_the_pci_address() {
        let root = tempfile::tempdir().expect("temporary directory");
        let function = root.path().join("devices/0000:3b:00.0");
        let class = root.path().join("class/infiniband/mlx5_0");
        let debug = root
            .path()
            .join("kernel/debug/mlx5/0000:3b:00.0/delay_drop");
        for folder in [&function, &class, &debug] {
            fs::create_dir_all(folder).expect("create directory");
        }
        assert_eq!(DelayDrop::read(root.path(), "mlx5_0"), None);
        symlink(&function, class.join("device")).expect("create symlink");
        assert_eq!(
            DelayDrop::read(root.path(), "mlx5_0"),
            None,
            "nothing to read"
        );
        fs::write(debug.join("timeout"), "100000\n").expect("write file");
        fs::write(debug.join(TIMEOUTS), "7\n").expect("write file");
        let expected = DelayDrop {
            timeout_us: 100_000,
            num_timeout_events: 7,
        };
        assert_eq!(DelayDrop::read(root.path(), "mlx5_0"), Some(expected));
    }
}
