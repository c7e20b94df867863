//! Files whose value changes; they are rendered when they are opened.

use std::sync::atomic::Ordering;

use crate::device::counters::{self, CounterGroup, CounterValue, FILES};
use crate::settings::{self, MAX_DEVICES, MAX_PORTS};

use super::address::{device_at, virtual_netdev};

/// Files of `delay_drop` in debugfs whose value changes, with the function that reads the current
/// value.
pub const DELAY_DROP_FILES: [(&str, CounterValue); 2] = [
    ("num_timeout_events", |port| {
        port.delay_drop_timeouts.load(Ordering::Relaxed)
    }),
    ("num_rqs", |port| {
        port.delay_drop_queues.load(Ordering::Relaxed)
    }),
];

/// Files of sysfs that follow a port's link state: name, value while the link is up, value while it
/// is down, as drivers/infiniband/core/sysfs.c and net/core/net-sysfs.c write them.
const LINK_FILES: [(&str, &str, &str); 4] = [
    ("state", "4: ACTIVE\n", "1: DOWN\n"),
    ("phys_state", "5: LinkUp\n", "3: Disabled\n"),
    ("carrier", "1\n", "0\n"),
    ("operstate", "up\n", "down\n"),
];

/// Returns `true` if a run directory's file of this name may have a value that changes. The check
/// is cheap; opens that it selects are examined further, and it may be wrong only by returning
/// `true`.
pub fn may_be_live(name: &str) -> bool {
    LINK_FILES.iter().any(|(file, ..)| *file == name)
        || FILES.iter().any(|(_, file, _)| *file == name)
        || DELAY_DROP_FILES.iter().any(|(file, _)| *file == name)
}

/// Renders the current value of a run directory's file whose value changes, given its canonical
/// path below the run directory; `None` for other files.
pub fn render(path: &str) -> Option<String> {
    let mut parts = path.rsplit('/');
    let name = parts.next()?;
    let mut directory = parts.next()?;
    if directory == "delay_drop" {
        let (_, value) = DELAY_DROP_FILES.iter().find(|(file, _)| *file == name)?;
        let device = device_at(parts.next()?).filter(|device| *device < MAX_DEVICES)?;
        return Some(format!("{}\n", value(counters::port(device, 1))));
    }
    let counter = FILES
        .iter()
        .find(|(group, file, _)| *file == name && group.directory() == directory);
    if counter.is_some() {
        directory = parts.next()?;
    }
    let (device, port) = match parts.next()? {
        // .../infiniband/mlx5_<N>/hw_counters, in switchdev mode
        "infiniband" => (device_named(directory)?, 1),
        // .../infiniband/mlx5_<N>/ports/<P>
        "ports" => {
            let device = device_named(parts.next()?)?;
            (device, directory.parse().ok()?)
        }
        // .../net/<a virtual interface>
        "net" => virtual_netdev(directory)?,
        _ => return None,
    };
    if device >= MAX_DEVICES || !(1..=MAX_PORTS).contains(&usize::from(port)) {
        return None;
    }
    let port = counters::port(device, port);
    if let Some((group, _, value)) = counter {
        let value = value(port);
        let shown = if *group == CounterGroup::Queue {
            value & u64::from(u32::MAX)
        } else {
            value
        };
        return Some(format!("{shown}\n"));
    }
    let (_, up, down) = LINK_FILES.iter().find(|(file, ..)| *file == name)?;
    Some(if port.is_link_up() { *up } else { *down }.to_owned())
}

/// Returns the number of the modelled device `mlx5_<N>`, `mlx5_bond_<N>` or with a persistent name.
fn device_named(name: &str) -> Option<usize> {
    match name.strip_prefix("mlx5_") {
        Some(rest) => rest.strip_prefix("bond_").unwrap_or(rest).parse().ok(),
        None => {
            let mut devices = settings::global().devices.iter();
            devices.position(|device| device.name == name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: &str = "sys/devices/pci15b3:00/15b3:1f:00.0/infiniband/mlx5_30/ports/2";

    #[test]
    fn live_files_show_the_current_value() {
        let counters = counters::port(30, 2);
        counters.out_of_buffer.store(7, Ordering::Relaxed);
        assert_eq!(
            render(&format!("{PORT}/hw_counters/out_of_buffer")).as_deref(),
            Some("7\n")
        );
        counters.start_queue_counters(u64::from(u32::MAX));
        counters.out_of_buffer.fetch_add(3, Ordering::Relaxed);
        let device = "sys/devices/pci15b3:00/15b3:1f:00.0/infiniband/mlx5_30";
        counters::port(30, 1).start_queue_counters(5);
        assert_eq!(
            render(&format!("{PORT}/hw_counters/out_of_buffer")).as_deref(),
            Some("2\n"),
            "queue counters are 32 bits wide"
        );
        assert_eq!(
            render(&format!("{device}/hw_counters/out_of_buffer")).as_deref(),
            Some("5\n")
        );
        assert_eq!(
            render("sys/devices/x/15b3:1f:00.0/infiniband/mlx5_bond_30/hw_counters/out_of_buffer")
                .as_deref(),
            Some("5\n")
        );
        counters.set_link_up(true);
        assert_eq!(
            render(&format!("{PORT}/state")).as_deref(),
            Some("4: ACTIVE\n")
        );
        counters.set_link_up(false);
        counters.set_link_up(false);
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
    fn delay_drop_files_are_where_the_driver_has_them() {
        let counters = counters::port(28, 1);
        counters.delay_drop_timeouts.store(3, Ordering::Relaxed);
        let dir = "sys/kernel/debug/mlx5/15b3:1d:00.0/delay_drop";
        let shown = |file: &str| render(&format!("{dir}/{file}"));
        assert_eq!(shown("num_timeout_events").as_deref(), Some("3\n"));
        assert_eq!(shown("num_rqs").as_deref(), Some("0\n"));
        assert_eq!(shown("timeout"), None);
    }

    #[test]
    fn other_files_are_not_rendered() {
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
