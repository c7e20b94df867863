//! Choice of the captured device and port, and checks on the traffic that the capture takes from
//! the kernel.

use super::{PortPlan, found::PlanErrors};
use crate::{
    Error,
    config::{self, Config},
    device::{DeviceFacts, PortFacts, management},
    verbs::RingAccess,
};

/// Returns the device or network interface that the configuration selects to capture.
pub(super) fn device<'d>(
    config: &Config,
    devices: &'d [DeviceFacts],
) -> Result<&'d DeviceFacts, Error> {
    let known = || {
        let names: Vec<_> = devices.iter().map(|it| it.name.as_str()).collect();
        if names.is_empty() {
            "there is no RDMA device".to_owned()
        } else {
            format!("this machine has {}", names.join(", "))
        }
    };
    let device = match (&config.device.name, &config.device.netdev) {
        (Some(name), _) => devices.iter().find(|d| d.name == *name).ok_or_else(|| {
            let problem = format!("there is no such RDMA device; {}", known());
            Error::config("device.name", format!("{name:?}"), problem)
        })?,
        (None, Some(netdev)) => devices
            .iter()
            .find(|d| d.ports.iter().any(|p| p.netdev.as_ref() == Some(netdev)))
            .ok_or_else(|| {
                Error::config(
                    "device.netdev",
                    format!("{netdev:?}"),
                    format!(
                        "there is no RDMA device with this network interface; {}",
                        known()
                    ),
                )
            })?,
        (None, None) => match devices {
            [] => return Err(Error::NoDevice),
            [one] => one,
            _ => {
                let names = devices.iter().map(|it| it.name.clone()).collect();
                return Err(Error::SeveralDevices(names));
            }
        },
    };
    if device.can_capture(config.capture.mode) {
        Ok(device)
    } else {
        Err(Error::Incapable {
            device: device.name.clone(),
            missing: device.missing.clone(),
            sniffs_roce: device.raw_qp_only,
        })
    }
}

/// Adds a note on the traffic that the capture mode or the backend `af_xdp` takes from the kernel,
/// and returns an error if that would cut off the management traffic of this machine.
pub(super) fn stolen(
    config: &Config,
    device: &DeviceFacts,
    port: &PortFacts,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let is_xdp = device.kernel.is_some();
    match config.capture.mode {
        _ if is_xdp => {}
        config::Mode::Sniffer => {
            if device.raw_qp_only {
                // `bnxt_re_create_flow` of drivers/infiniband/hw/bnxt_re/ib_verbs.c.
                notes.push(format!(
                    "mode \"sniffer\": {} has no WQs, so its only sniffer rule leads to a QP with one queue; on bnxt_re it mirrors \
                     RoCE frames only, and a second capture of the device fails with EBUSY; capture other \
                     frames with device.backend = \"af_packet\" or \"af_xdp\"",
                    device.name
                ));
                return Ok(());
            }
            notes.push(
                "mode \"sniffer\": frames that the host sends are captured too, including RoCE"
                    .into(),
            );
            if port.place.is_vf {
                notes.push(
                    "mode \"sniffer\": the port is a virtual function, which has no sniffer rules: expect ibv_create_flow \
                     to fail with EOPNOTSUPP; use mode \"steal\" or \"filtered\""
                        .into(),
                );
            }
            return Ok(());
        }
        config::Mode::Filtered => {
            let refused = if config.capture.filter.trim().is_empty() {
                ""
            } else {
                ", including frames that the filter then rejects"
            };
            notes.push(format!("mode \"filtered\": the kernel does not receive frames that the rules take{refused}; fragments have no ports and match no rule with ports"));
            notes.extend(transport(device, port));
            return Ok(());
        }
        config::Mode::Steal => {}
    }
    let (taken_by, instead) = if is_xdp {
        (
            "backend \"af_xdp\"",
            "another interface, backend \"af_packet\",",
        )
    } else if device.software {
        // The software NIC copies frames, and its interface still receives them.
        return Ok(());
    } else {
        (
            "mode \"steal\"",
            "another port, mode \"filtered\" or \"sniffer\",",
        )
    };
    notes.extend(transport(device, port).filter(|_| !is_xdp));
    let permitted = config.capture.steal_management;
    let refused = |problem: String| {
        let problem = format!("{problem}; use {instead} or set capture.steal_management = true");
        let error = match is_xdp {
            true => Error::config("device.backend", "\"af_xdp\"", problem),
            false => Error::config("capture.mode", "\"steal\"", problem),
        };
        Err(error.involving(&["capture.steal_management"]))
    };
    let Some(netdev) = &port.netdev else {
        let (name, number) = (&device.name, port.number);
        notes.push(format!("{taken_by}: the kernel receives no frames from port {number} of {name} while the capture runs; frames that the host sends are not captured"));
        if !permitted {
            return refused(format!(
                "the network interface of port {number} of {name} is unknown: its GID table and RDMA netlink name none, and \
                 /sys/class/infiniband/{name}/device/net does not have exactly one. If a login session or the default route \
                 uses this port, {taken_by} cuts it off"
            ));
        }
        notes.push(format!(
            "capture.steal_management: the network interface of port {number} of {name} is unknown; a login session over it \
             is cut off while the capture runs"
        ));
        return Ok(());
    };
    notes.push(format!("{taken_by}: the kernel receives no frames from {netdev} while the capture runs; frames that the host sends are not captured"));
    match management::reason_against_steal(netdev) {
        Some(reason) if !permitted => refused(format!(
            "{taken_by} would cut off the management traffic of this machine: {reason}"
        )),
        Some(reason) => {
            notes.push(format!(
                "capture.steal_management: {reason}; this traffic is cut off while the capture runs"
            ));
            Ok(())
        }
        None => Ok(()),
    }
}

/// Returns a note on RoCE frames that the NIC's transport takes before any rule, if RoCE is enabled.
/// The software NIC has no transport.
fn transport(device: &DeviceFacts, port: &PortFacts) -> Option<String> {
    (port.roce == Some(true) && !device.software).then(|| {
        let name = &device.name;
        format!(
            "RoCE frames to the addresses of {name} go to its transport and not to the capture; mode \"sniffer\" captures them, and \
             every mode does after `devlink dev param set pci/ADDRESS name enable_roce value false cmode driverinit` and \
             `devlink dev reload pci/ADDRESS`, which ends RDMA on the port"
        )
    })
}

/// Returns the backend (verbs, packet sockets or AF_XDP) that receives from the device, by
/// `device.backend` and `capture.access`.
pub(super) fn backend(config: &Config, device: &DeviceFacts) -> Result<config::Backend, Error> {
    use config::{Access, Backend};
    let wanted = config.device.backend;
    let refused = |problem: String| {
        Err(Error::config(
            "device.backend",
            format!("\"{wanted}\""),
            problem,
        ))
    };
    let name = &device.name;
    match (wanted, &device.kernel) {
        (Backend::Auto | Backend::AfPacket, Some(_)) => Ok(Backend::AfPacket),
        (Backend::AfXdp, Some(_)) => Ok(Backend::AfXdp),
        (_, Some(_)) => refused(format!(
            "the interface {name} has no RDMA device; set device.backend = \"auto\", \"af_packet\" or \"af_xdp\""
        )),
        (Backend::AfPacket | Backend::AfXdp, None) if name.is_empty() => {
            refused("no network interface is named; set device.netdev, or name it with -i".into())
        }
        (Backend::AfPacket | Backend::AfXdp, None) => refused(format!(
            "{name} is an RDMA device; name its network interface in device.netdev"
        )),
        (Backend::Mlx5, None) if device.access != RingAccess::Mlx5 => refused(format!(
            "the device {name} does not support the direct verbs of libmlx5; set device.backend = \"verbs\""
        )),
        (Backend::Mlx5, None) => Ok(Backend::Mlx5),
        (Backend::Auto, None)
            if device.access == RingAccess::Mlx5 && config.capture.access == Access::Auto =>
        {
            Ok(Backend::Mlx5)
        }
        (Backend::Auto | Backend::Verbs, None) => Ok(Backend::Verbs),
    }
}

/// Returns the port of the device that the configuration selects.
pub(super) fn port<'d>(config: &Config, device: &'d DeviceFacts) -> Result<&'d PortFacts, Error> {
    let number = config.device.port;
    let port = device.ports.iter().find(|it| it.number == number);
    let port = port.ok_or_else(|| {
        let there = match device.ports.len() {
            1 => format!("the device {} has port 1 only", device.name),
            ports => format!("the device {} has ports 1 to {ports}", device.name),
        };
        Error::config("device.port", number, there)
    })?;
    // What an interface of another hardware type needs is reported with its other limits.
    if port.ethernet || device.kernel.is_some() {
        return Ok(port);
    }
    Err(Error::config(
        "device.port",
        number,
        "the link layer of the port is not Ethernet; only Ethernet ports can be captured",
    ))
}

/// Checks that no interface is captured twice, by its RDMA device and by the kernel or under two
/// names.
pub(super) fn distinct(ports: &[PortPlan], found: &mut PlanErrors) {
    for (i, port) in ports.iter().enumerate() {
        let name = &port.device.name;
        // The device of a port may be unknown.
        let same = |it: &&PortPlan| {
            !name.is_empty() && it.device.name == *name && it.number == port.number
                || it.netdev.is_some() && it.netdev == port.netdev
        };
        if let Some(other) = ports[..i].iter().find(same) {
            let problem = format!(
                "this port of the machine is also the port {:?}, which is received as {}; remove one of the two sections",
                other.label, other.backend
            );
            let key = format!("port {}", i + 1);
            found.keep::<()>(Err(Error::config(
                key,
                format!("{:?}", port.label),
                problem,
            )));
        }
    }
}
