//! What programs see under `/sys/class/infiniband*` and in `/dev/infiniband`.
//!
//! Imports `settings` and `counters`; the shims in `preload` ask it. Split: [`run_dir`] owns the
//! directory and its lifetime, [`tree`] fills it, [`presence`] hides a device that has gone away, and this file answers for the values that move.
//!
//! Invariants: the tree is written once, by the first process that needs it, before any program can
//! see it; whatever can change afterwards is rendered when its file is opened, from memory that all
//! processes share, and the file in the tree is only its place.

pub mod presence;
pub mod run_dir;
pub mod tree;

use std::sync::atomic::Ordering;

use crate::device::counters::{self, FILES, PortCounters};
use crate::settings::DeviceSettings;

/// Entries of a port's GID table: two of the link-local address, two of the IPv4 address, each as
/// RoCE v1 and v2.
pub const GIDS: usize = 4;

/// What a counter of a port's memory is at the moment.
type Value = fn(&PortCounters) -> u64;

/// Files of `delay_drop` in debugfs whose value moves, with what they show.
const DELAY_DROP: [(&str, Value); 2] = [
    ("num_timeout_events", |port| {
        port.delay_drop_timeouts.load(Ordering::Relaxed)
    }),
    ("num_rqs", |port| {
        port.delay_drop_queues.load(Ordering::Relaxed)
    }),
];

/// Names of files, other than counters, whose value moves.
const STATES: [&str; 4] = ["state", "phys_state", "carrier", "operstate"];

/// Sets what `ports/<port>/state` and `phys_state` say, in every process of the tree.
pub fn set_port_state(device: usize, port: u8, up: bool) {
    let counters = counters::port(device, port);
    let was = counters.link_up.swap(up.into(), Ordering::AcqRel);
    if was != 0 && !up {
        counters.link_downed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether a port's link is up.
pub fn port_state(device: usize, port: u8) -> bool {
    counters::port(device, port).link_up.load(Ordering::Acquire) != 0
}

/// A device's node GUID, host-endian. As mlx5's firmware makes it from the first port's MAC; the
/// device's number keeps two devices over one interface apart.
pub fn node_guid(device: usize, settings: &DeviceSettings) -> u64 {
    let mac = settings.ports[0].mac;
    u64::from_be_bytes([
        mac[0],
        mac[1],
        mac[2],
        3,
        device as u8,
        mac[3],
        mac[4],
        mac[5],
    ])
}

/// Whether a file of this name may have a value that moves. Cheap, and wrong only in being too
/// generous: it decides whether an open is looked at more closely.
pub fn may_move(name: &str) -> bool {
    STATES.contains(&name)
        || FILES.iter().any(|(_, file, _)| *file == name)
        || DELAY_DROP.iter().any(|(file, _)| *file == name)
}

/// The value of a file, by its canonical path below the run directory, if it is one that moves.
pub fn render(path: &str) -> Option<String> {
    let mut parts = path.rsplit('/');
    let name = parts.next()?;
    let mut directory = parts.next()?;
    if directory == "delay_drop" {
        let (_, value) = DELAY_DROP.iter().find(|(file, _)| *file == name)?;
        let device = tree::device_at(parts.next()?).filter(|at| *at < counters::DEVICES)?;
        return Some(format!("{}\n", value(counters::port(device, 1))));
    }
    let group = FILES
        .iter()
        .find(|(group, file, _)| *file == name && group.directory() == directory);
    if group.is_some() {
        directory = parts.next()?;
    }
    let (device, port) = match parts.next()? {
        // .../infiniband/mlx5_<N>/ports/<P>
        "ports" => {
            let device = parts.next()?.strip_prefix("mlx5_")?.parse().ok()?;
            (device, directory.parse().ok()?)
        }
        // .../net/<a made-up interface>
        "net" => tree::made_up(directory)?,
        _ => return None,
    };
    if device >= counters::DEVICES || !(1..=counters::PORTS).contains(&usize::from(port)) {
        return None;
    }
    if let Some((_, _, value)) = group {
        return Some(format!("{}\n", value(counters::port(device, port))));
    }
    let up = port_state(device, port);
    // The words of drivers/infiniband/core/sysfs.c and net/core/net-sysfs.c.
    let text = match (name, up) {
        ("state", true) => "4: ACTIVE\n",
        ("state", false) => "1: DOWN\n",
        ("phys_state", true) => "5: LinkUp\n",
        ("phys_state", false) => "3: Disabled\n",
        ("carrier", true) => "1\n",
        ("carrier", false) => "0\n",
        ("operstate", true) => "up\n",
        ("operstate", false) => "down\n",
        _ => return None,
    };
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: &str = "sys/devices/pci15b3:00/15b3:1f:00.0/infiniband/mlx5_30/ports/2";

    #[test]
    fn moving_files_show_the_moment() {
        let counters = counters::port(30, 2);
        counters.out_of_buffer.store(7, Ordering::Relaxed);
        assert_eq!(
            render(&format!("{PORT}/hw_counters/out_of_buffer")).as_deref(),
            Some("7\n")
        );
        set_port_state(30, 2, true);
        assert_eq!(
            render(&format!("{PORT}/state")).as_deref(),
            Some("4: ACTIVE\n")
        );
        set_port_state(30, 2, false);
        set_port_state(30, 2, false);
        assert_eq!(
            render(&format!("{PORT}/phys_state")).as_deref(),
            Some("3: Disabled\n")
        );
        assert_eq!(
            render(&format!("{PORT}/counters/link_downed")).as_deref(),
            Some("1\n")
        );
    }

    #[test]
    fn delay_drop_is_shown_where_the_driver_shows_it() {
        let counters = counters::port(28, 1);
        counters.delay_drop_timeouts.store(3, Ordering::Relaxed);
        let dir = "sys/kernel/debug/mlx5/15b3:1d:00.0/delay_drop";
        let shown = |file: &str| render(&format!("{dir}/{file}"));
        assert_eq!(shown("num_timeout_events").as_deref(), Some("3\n"));
        assert_eq!(shown("num_rqs").as_deref(), Some("0\n"));
        assert_eq!(shown("timeout"), None);
    }

    #[test]
    fn others_are_left_as_they_stand() {
        for path in [
            "rate",
            "hw_counters/lifespan",
            "counters/out_of_buffer",
            "hw_counters",
            "out_of_buffer",
        ] {
            assert_eq!(render(&format!("{PORT}/{path}")), None, "{path}");
        }
        assert_eq!(render("infiniband/mlx5_99/ports/1/state"), None);
        assert_eq!(render("infiniband/mlx5_0/ports/3/state"), None);
        assert_eq!(render("state"), None);
    }
}
