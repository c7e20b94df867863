//! Two network namespaces joined by a veth pair, for live traffic that is isolated from the rest of
//! the machine.
//!
//! The names begin with `wqcap-t<pid>-`, so that the next run recognises and removes namespaces
//! left by a killed run. Both links are created inside the namespaces and are deleted with them.

use crate::Program;
use std::{
    path::PathBuf,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// Deadline for an interface to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Name of the interface in both namespaces.
pub const IFACE: &str = "veth0";

/// Two network namespaces joined by a veth pair.
#[derive(Debug)]
pub struct Pair {
    /// Sending namespace, with the addresses 10.77.0.1 and fd77::1.
    pub near: Namespace,
    /// Captured namespace, with the addresses 10.77.0.2 and fd77::2.
    pub far: Namespace,
}

impl Pair {
    /// Creates both namespaces, with addresses that are usable immediately.
    ///
    /// # Errors
    /// Returns a reason to skip if this process cannot create namespaces.
    pub fn new() -> Result<Self, String> {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);
        let pair = Self {
            near: Namespace::new("near")?,
            far: Namespace::new("far")?,
        };
        let (near, far) = (&pair.near.name, &pair.far.name);
        ip(&[
            "link", "add", IFACE, "netns", near, "type", "veth", "peer", "name", IFACE, "netns",
            far,
        ])?;
        for (namespace, host) in [(near, 1), (far, 2)] {
            ip(&[
                "-n",
                namespace,
                "addr",
                "add",
                &format!("10.77.0.{host}/24"),
                "dev",
                IFACE,
            ])?;
            ip(&[
                "-n",
                namespace,
                "addr",
                "add",
                &format!("fd77::{host}/64"),
                "dev",
                IFACE,
                "nodad",
            ])?;
            ip(&["-n", namespace, "link", "set", IFACE, "up"])?;
        }
        until_it_sends(near, IFACE)?;
        Ok(pair)
    }

    /// Creates the pair, with senders that finish their frames: they compute checksums, and send no
    /// segment longer than the MTU. Otherwise they leave this work to hardware that a veth pair does
    /// not have, and a capture gets unfinished frames.
    ///
    /// # Errors
    /// Also returns an error if `ethtool` cannot change the interfaces.
    pub fn without_offloads() -> Result<Self, String> {
        let pair = Self::new()?;
        for end in [&pair.near, &pair.far] {
            let done = end.program("ethtool", &["-K", IFACE, "tx", "off"]).run();
            if !done.status.success() {
                return Err(format!("ethtool cannot switch off offloads: {done}"));
            }
        }
        Ok(pair)
    }
}

/// Network namespace, deleted on drop.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    fn new(role: &str) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("wqcap-t{}-{number}-{role}", std::process::id());
        ip(&["netns", "add", &name])
            .map_err(|e| format!("cannot create a network namespace: {e}"))?;
        let namespace = Self { name };
        ip(&["-n", &namespace.name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Returns the name of the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Wraps `program` so that it runs inside the namespace.
    #[must_use]
    pub fn enter(&self, program: Program) -> Program {
        program.wrapped(["ip", "netns", "exec", &self.name])
    }

    /// Returns the command line of program `name` with `args`, to run inside the namespace.
    #[must_use]
    pub fn program(&self, name: &str, args: &[&str]) -> Program {
        self.enter(Program::new(name).args(args))
    }

    /// Returns the statistics counter `name` of the interface from sysfs.
    ///
    /// # Panics
    /// Panics if the value cannot be read.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let path = format!("/sys/class/net/{IFACE}/statistics/{name}");
        let done = self.program("cat", &[&path]).run().expect(0);
        done.stdout
            .trim()
            .parse()
            .unwrap_or_else(|e| panic!("{path}: {e}: {done}"))
    }

    /// Returns the number of users of the interface's promiscuous mode (ip-link(8)).
    ///
    /// # Panics
    /// Panics if the value cannot be read.
    #[must_use]
    #[track_caller]
    pub fn promiscuity(&self) -> u32 {
        let done = self.program("ip", &["-d", "link", "show", IFACE]);
        let done = done.run().expect(0);
        let mut words = done.stdout.split_whitespace();
        let _ = words.find(|word| *word == "promiscuity");
        let count = words.next().and_then(|it| it.parse().ok());
        count.unwrap_or_else(|| panic!("no promiscuity: {done}"))
    }

    /// Deletes the interface, as an unloaded driver would. The kernel deletes its peer, too.
    ///
    /// # Panics
    /// Panics if there is no such interface.
    pub fn delete_interface(&self) {
        ip(&["-n", &self.name, "link", "del", IFACE]).unwrap_or_else(|e| panic!("{e}"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.name]);
    }
}

/// Waits until an interface that is set up transmits. If its peer came up later, the interface
/// silently drops frames for a while, because the kernel starts its queue in the background
/// (`linkwatch_do_dev`, net/core/link_watch.c).
///
/// # Errors
/// Returns an error if there is no such interface.
///
/// # Panics
/// Panics if the interface does not come up within a minute.
pub fn until_it_sends(namespace: &str, iface: &str) -> Result<(), String> {
    let began = Instant::now();
    while !ip(&["-n", namespace, "link", "show", iface])?.contains("state UP") {
        assert!(began.elapsed() < PATIENCE, "{iface} does not come up");
    }
    // The kernel changes the state first and then starts the queue, both under one lock. This
    // command waits for that lock.
    ip(&["-n", namespace, "link", "set", iface, "up"]).map(drop)
}

/// Runs `ip` and returns its output.
fn ip(args: &[&str]) -> Result<String, String> {
    let done = Program::new("ip").args(args).run();
    if done.status.success() {
        return Ok(done.stdout);
    }
    Err(format!("ip {}: {}", args.join(" "), done.stderr.trim()))
}

/// Removes the namespaces of test processes that have ended. Runs before this process creates any.
fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // A namespace with the pid of this process was left by an earlier process with that pid:
        // this process has none yet.
        let is_left =
            |pid| pid == std::process::id() || !PathBuf::from(format!("/proc/{pid}")).exists();
        if owner(&name).is_some_and(is_left) {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

/// Returns the pid of the test process that created a namespace; `None` if a test did not create
/// it.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("wqcap-t")?
        .split_once('-')?
        .0
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_namespaces_of_tests_have_an_owner() {
        assert_eq!(owner("wqcap-t123-0-near"), Some(123));
        assert_eq!(owner("wqcap-demo-1"), None);
        assert_eq!(owner("t123-0"), None);
    }
}
