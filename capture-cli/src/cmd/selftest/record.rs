//! Facts of the machine and the device that other findings depend on.

use super::{roce, run::SelftestRun};
use std::fs;
use wqcap_engine::device::DeviceFacts;

/// ID of the finding on the mode of the device's e-switch.
pub const ESWITCH: &str = "device/eswitch";
/// Value of the finding [`ESWITCH`] in switchdev mode.
pub const SWITCHDEV: &str = "switchdev";

/// ID of the finding on whether the device is a virtual function.
pub const FUNCTION: &str = "device/virtual_function";
/// ID of the finding on whether the device covers a link aggregation group (LAG), and on its name.
pub const LAG: &str = "device/lag";
/// Value of the finding [`LAG`] for a device without a link aggregation group.
pub const NO_LAG: &str = "none";
/// Value of the finding [`LAG`] for a device with the driver's name for one
/// (`mlx5_ib_stage_init_init`).
pub const BOND: &str = "mlx5_bond_<N>";

/// Records the version of rdma-core, and for the tested port the mode of its e-switch, whether it
/// is a virtual function, and whether it has RoCE.
pub fn record(run: &mut SelftestRun, device: &DeviceFacts) {
    run.report.rdma_core = rdma_core();
    let port = device.ports.iter().find(|it| it.number == run.port);
    let Some(port) = port else { return };
    let place = &port.place;
    let mode = match place.switchdev {
        true => SWITCHDEV,
        false => "legacy",
    };
    run.value("switchdev", ESWITCH, mode);
    let lag = match (place.is_lag, device.name.starts_with("mlx5_bond_")) {
        (false, _) => NO_LAG,
        (true, true) => BOND,
        (true, false) => "another name",
    };
    run.value("lag", LAG, lag);
    run.value("vf", FUNCTION, place.is_vf);
    run.value("netdev", "port/interface_known", port.netdev.is_some());
    run.value(roce::SUBJECT, roce::ENABLED, port.roce);
    run.value("vf", "port/limits", place.limits());
}

/// Returns the version of the rdma-core whose libibverbs this process has loaded, from the name of
/// the library's file (`rdma_library` of rdma-core's buildlib/rdma_functions.cmake).
#[expect(clippy::disallowed_methods, reason = "a file of /proc")]
fn rdma_core() -> Option<String> {
    version_in(&fs::read_to_string("/proc/self/maps").ok()?)
}

/// Returns the version in the name of libibverbs in a list of mapped files:
/// `libibverbs.so.1.<ABI>.<version>`.
fn version_in(maps: &str) -> Option<String> {
    let name = maps
        .lines()
        .find_map(|it| it.split_once("/libibverbs.so.1."));
    let (_, version) = name?.1.trim().split_once('.')?;
    Some(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_the_name_of_the_library() {
        let line = |file: &str| format!("7f00-7f01 r--p 0 fe:00 12 /usr/lib/{file}\n");
        for (file, expected) in [
            ("libibverbs.so.1.14.44.0", Some("44.0")),
            ("libibverbs.so.1.15.57.1", Some("57.1")),
            ("libibverbs.so.1", None),
            ("libc.so.6", None),
        ] {
            assert_eq!(version_in(&line(file)).as_deref(), expected);
        }
    }
}
