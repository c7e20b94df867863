//! `wqcap check --privileges`: prints the rights that a run needs, those that are held, and how to
//! grant the others.

use crate::{
    failure::Failure,
    term::{output, table::bytes},
};
use caps::{CapSet, Capability};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::{env, fmt::Write};
use wqcap_engine::{
    config::Backend,
    plan::{Plan, PortPlan},
};

/// Linux capability that a capture run needs.
#[derive(Debug, Serialize)]
struct Right {
    /// Name of the Linux capability.
    capability: &'static str,
    /// Operation of the capture run that needs the capability.
    purpose: String,
    /// `true` if the process has the capability, or does not need it.
    held: bool,
}

/// Report that `wqcap check --privileges --json` prints.
#[derive(Debug, Serialize)]
struct PrivilegeReport<'a> {
    privileges: &'a [Right],
    /// Commands and settings that grant the missing capabilities.
    grant: &'a [String],
}

/// Prints the capabilities that a run of the plan needs, with `wire` on the software NIC. Returns a
/// failure if one is missing.
pub fn check(plan: &Plan, delay_drop: bool, wire: Option<&str>, json: bool) -> Result<(), Failure> {
    let on_model = wire.is_some();
    let is_xdp = |it: &&PortPlan| it.backend == Backend::AfXdp;
    // The software NIC and packet sockets lock no memory of the process.
    let is_kernel = plan.ports().all(|it| it.device.kernel.is_some());
    let locking = plan
        .ports()
        .filter(|it| it.device.kernel.is_none() || is_xdp(it));
    let locked = match on_model {
        true => 0,
        false => locking.map(|it| it.memory).sum(),
    };
    let mut rights = rights(locked, delay_drop);
    if let (true, Some(raw)) = (is_kernel, rights.first_mut()) {
        raw.purpose = "packet sockets and promiscuous mode".into();
    }
    if plan.ports().any(|it| is_xdp(&it)) {
        rights.extend(XDP.map(|(capability, which, purpose)| Right {
            capability,
            purpose: purpose.into(),
            held: has(which),
        }));
    }
    let missing: Vec<_> = rights
        .iter()
        .filter(|it| !it.held)
        .map(|it| it.capability)
        .collect();
    let grants = grants(&missing, on_model);
    if json {
        output::print_json(&PrivilegeReport {
            privileges: &rights,
            grant: &grants,
        })?;
    } else {
        output::print(&text(&rights, &grants))?;
    }
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Failure::refused(format!(
            "this process lacks these privileges: {}; grant them as printed above",
            missing.join(", ")
        )))
    }
}

/// Capabilities that AF_XDP needs besides CAP_NET_RAW, with their purposes.
const XDP: [(&str, Capability, &str); 2] = [
    (
        "CAP_NET_ADMIN",
        Capability::CAP_NET_ADMIN,
        "attaching the XDP program to the interface",
    ),
    (
        "CAP_BPF",
        Capability::CAP_BPF,
        "loading the XDP program and its maps",
    ),
];

/// Returns `true` if this process has `capability` in its effective set.
fn has(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false)
}

/// Returns the capabilities that a run with `memory` bytes of locked memory needs.
fn rights(memory: u64, delay_drop: bool) -> Vec<Right> {
    let mut rights = vec![Right {
        capability: "CAP_NET_RAW",
        purpose: "raw packet QPs and flow rules".into(),
        held: has(Capability::CAP_NET_RAW),
    }];
    if delay_drop {
        rights.push(Right {
            capability: "CAP_SYS_RAWIO",
            purpose: "wq.delay_drop".into(),
            held: has(Capability::CAP_SYS_RAWIO),
        });
    }
    if memory == 0 {
        return rights;
    }
    // An unlimited value suffices.
    let limit = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    let enough = limit >= memory;
    rights.push(Right {
        capability: "CAP_IPC_LOCK",
        purpose: if enough {
            format!(
                "the capability is not needed, because the rings take {}, which `ulimit -l` allows",
                bytes(memory)
            )
        } else {
            format!(
                "the rings take {} of locked memory, but the limit of `ulimit -l` is {}",
                bytes(memory),
                bytes(limit)
            )
        },
        held: enough || has(Capability::CAP_IPC_LOCK),
    });
    rights
}

/// Returns commands and settings, each of which grants the missing capabilities.
fn grants(missing: &[&str], on_model: bool) -> Vec<String> {
    if missing.is_empty() {
        return Vec::new();
    }
    let lower = missing.join(",").to_lowercase();
    let ambient = lower.replace("cap_", "+");
    let this = env::current_exe().map_or("wqcap".into(), |it| it.display().to_string());
    let mut grants = Vec::new();
    // The dynamic linker does not preload into a program with file capabilities.
    if !on_model {
        grants.push(format!("setcap {lower}+ep {this}"));
    }
    grants.push(format!(
        "setpriv --reuid NAME --init-groups --inh-caps {ambient} --ambient-caps {ambient} {this} run ..."
    ));
    grants.push(format!(
        "AmbientCapabilities={}   (systemd: [Service])",
        missing.join(" ")
    ));
    grants
}

/// Formats the needed capabilities, and the commands that grant the missing ones.
fn text(rights: &[Right], grants: &[String]) -> String {
    let mut text = String::new();
    for it in rights {
        let held = if it.held { "yes" } else { "MISSING" };
        let _ = writeln!(text, "{:<14}{held:<9}{}", it.capability, it.purpose);
    }
    if !grants.is_empty() {
        text += "each of these grants the missing capabilities:\n";
    }
    for grant in grants {
        let _ = writeln!(text, "  {grant}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_granted_by_name() {
        let all = grants(&["CAP_NET_RAW", "CAP_SYS_RAWIO"], false);
        assert!(
            all[0].starts_with("setcap cap_net_raw,cap_sys_rawio+ep /"),
            "{all:?}"
        );
        assert!(
            all[1].contains("--ambient-caps +net_raw,+sys_rawio "),
            "{all:?}"
        );
        assert!(all[2].starts_with("AmbientCapabilities=CAP_NET_RAW CAP_SYS_RAWIO"));
        assert!(!grants(&["CAP_NET_RAW"], true)[0].starts_with("setcap"));
        assert!(grants(&[], false).is_empty());
    }

    #[test]
    fn memory_counts_against_the_limit() {
        let last = |memory| rights(memory, true).pop().expect("at least one right");
        assert!(last(1).held && last(1).purpose.contains("is not needed"));
        assert_eq!(rights(1, true).len(), 3);
        assert_eq!(rights(0, false).len(), 1);
    }
}
