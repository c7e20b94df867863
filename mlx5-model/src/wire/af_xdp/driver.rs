//! Frames that an interface and its driver lose before the XDP program, from the interface's
//! statistics in sysfs.
//!
//! Imports nothing of the model. Invariant: the files are opened once, with the wire, and stay open
//! for all readings.

use std::ffi::c_int;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Growth of a network interface's statistic since its file was opened.
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

/// Loss statistics of a network interface.
pub(super) struct DriverDrops {
    /// Frames of an interface for which the NIC had no buffer (`rx_missed_errors`).
    missed: StatisticGrowth,
    /// Frames of an interface dropped by its driver, and by the kernel's stack if it gets frames
    /// (`rx_dropped`).
    dropped: StatisticGrowth,
}

impl DriverDrops {
    /// Opens the loss statistics of a network interface. `None` if sysfs does not show this
    /// interface, which is then in another network namespace.
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

    /// Returns the frames for which the NIC had no buffer, and the frames that were dropped behind
    /// the NIC, since the statistics were opened.
    pub(super) fn now(&self) -> (u64, u64) {
        (self.missed.now(), self.dropped.now())
    }
}
