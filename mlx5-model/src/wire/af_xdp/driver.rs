//! What an interface and its driver lose before an XDP program sees it, from the interface's statistics in sysfs.
//!
//! Imports nothing of the model. Invariant: the files are opened with the wire, and read again and again.

use std::ffi::c_int;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// A statistic and what it was at the start.
struct StatisticGrowth {
    file: File,
    start: u64,
}

impl StatisticGrowth {
    fn open(folder: &str, name: &str) -> Option<StatisticGrowth> {
        let file = File::open(format!("{folder}/statistics/{name}")).ok()?;
        let start = read(&file)?;
        Some(StatisticGrowth { file, start })
    }

    fn now(&self) -> u64 {
        read(&self.file).map_or(0, |now| now.saturating_sub(self.start))
    }
}

fn read(file: &File) -> Option<u64> {
    let mut text = [0; 32];
    let len = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}

pub(super) struct DriverDrops {
    /// Frames that the NIC had no buffer for (`rx_missed_errors`).
    missed: StatisticGrowth,
    /// Frames that the driver dropped, and the kernel's stack where it gets any (`rx_dropped`).
    dropped: StatisticGrowth,
}

impl DriverDrops {
    /// `None` where sysfs does not show this interface: it is another network namespace's.
    pub(super) fn open(iface: &str, index: c_int) -> Option<DriverDrops> {
        let folder = format!("/sys/class/net/{iface}");
        let shown = fs::read_to_string(format!("{folder}/ifindex")).ok()?;
        if shown.trim().parse() != Ok(index) {
            return None;
        }
        Some(DriverDrops {
            missed: StatisticGrowth::open(&folder, "rx_missed_errors")?,
            dropped: StatisticGrowth::open(&folder, "rx_dropped")?,
        })
    }

    /// Frames that the NIC had no buffer for, and frames that were dropped behind it.
    pub(super) fn now(&self) -> (u64, u64) {
        (self.missed.now(), self.dropped.now())
    }
}
