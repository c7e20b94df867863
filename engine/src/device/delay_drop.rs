//! What the mlx5 driver tells of delay drop: how long the NIC holds the wire for a WQ without buffers, and how often
//! that was not long enough. It tells it in debugfs, which is root's alone on most machines.
//!
//! May import: nothing beyond this folder. Source: `drivers/infiniband/hw/mlx5/main.c` (`delay_drop_debugfs_init`).

use super::read_number;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The driver's file of timeouts, and the name under which they are told.
pub const TIMEOUTS: &str = "num_timeout_events";

/// A device's delay drop, which all its queues share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DelayDrop {
    /// How long frames are held, in microseconds.
    pub timeout_us: u64,
    /// How often that ran out since the driver was loaded. The NIC then drops until the driver arms it anew.
    pub num_timeout_events: u64,
}

impl DelayDrop {
    /// Of an RDMA device, read below `sysfs`, which is `/sys`; `None` where it cannot be read.
    #[must_use]
    pub fn of(sysfs: &Path, device: &str) -> Option<Self> {
        let folder = folder(sysfs, device)?;
        Some(Self {
            timeout_us: read_number(folder.join("timeout"))?,
            num_timeout_events: read_number(folder.join(TIMEOUTS))?,
        })
    }
}

/// Where the driver tells it; `None`: the device has no PCI address.
pub(crate) fn folder(sysfs: &Path, device: &str) -> Option<PathBuf> {
    let function = sysfs.join(format!("class/infiniband/{device}/device"));
    let function = function.canonicalize().ok()?;
    let mlx5 = Path::new("kernel/debug/mlx5").join(function.file_name()?);
    Some(sysfs.join(mlx5).join("delay_drop"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn it_is_found_by_the_pci_address() {
        let root = tempfile::tempdir().expect("a folder");
        let function = root.path().join("devices/0000:3b:00.0");
        let class = root.path().join("class/infiniband/mlx5_0");
        let debug = root
            .path()
            .join("kernel/debug/mlx5/0000:3b:00.0/delay_drop");
        for folder in [&function, &class, &debug] {
            fs::create_dir_all(folder).expect("made");
        }
        assert_eq!(DelayDrop::of(root.path(), "mlx5_0"), None);
        symlink(&function, class.join("device")).expect("linked");
        assert_eq!(
            DelayDrop::of(root.path(), "mlx5_0"),
            None,
            "nothing to read"
        );
        fs::write(debug.join("timeout"), "100000\n").expect("written");
        fs::write(debug.join(TIMEOUTS), "7\n").expect("written");
        let expected = DelayDrop {
            timeout_us: 100_000,
            num_timeout_events: 7,
        };
        assert_eq!(DelayDrop::of(root.path(), "mlx5_0"), Some(expected));
    }
}
