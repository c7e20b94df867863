//! Two network namespaces joined by a veth pair, for live traffic that touches nothing else on the machine.
//!
//! Their names begin with `wqcap-t<pid>-`, so that those left by a run that was killed can be told, and are removed
//! by the next run. Both links live inside the namespaces from their first moment and go with them.

use crate::Program;
use std::{
    path::PathBuf,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// Bounds what would hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// The interface's name, at either end.
pub const IFACE: &str = "veth0";

/// Two hosts on one cable.
#[derive(Debug)]
pub struct Pair {
    /// Sends: 10.77.0.1, fd77::1.
    pub near: Namespace,
    /// Is captured on: 10.77.0.2, fd77::2.
    pub far: Namespace,
}

impl Pair {
    /// Makes them, with addresses that are usable at once.
    ///
    /// # Errors
    /// Why this process cannot make namespaces: a reason to skip.
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
}

/// One network namespace; goes with its owner.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    fn new(role: &str) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("wqcap-t{}-{number}-{role}", std::process::id());
        ip(&["netns", "add", &name]).map_err(|e| format!("no network namespaces here ({e})"))?;
        let namespace = Self { name };
        ip(&["-n", &namespace.name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets `program` run inside.
    #[must_use]
    pub fn enter(&self, program: Program) -> Program {
        program.wrapped(["ip", "netns", "exec", &self.name])
    }

    /// `name` with `args`, inside.
    #[must_use]
    pub fn program(&self, name: &str, args: &[&str]) -> Program {
        self.enter(Program::new(name).args(args))
    }

    /// The counter `name` of the interface, as the kernel keeps it.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let path = format!("/sys/class/net/{IFACE}/statistics/{name}");
        let done = self.program("cat", &[&path]).run().expect(0);
        done.stdout
            .trim()
            .parse()
            .unwrap_or_else(|e| panic!("{path}: {e}: {done}"))
    }

    /// How many ask the interface for promiscuous mode (ip-link(8)).
    ///
    /// # Panics
    /// When it cannot be read.
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

    /// Deletes the interface, as if its driver went away. Its peer goes too.
    ///
    /// # Panics
    /// When it is not there.
    pub fn delete_interface(&self) {
        ip(&["-n", &self.name, "link", "del", IFACE]).unwrap_or_else(|e| panic!("{e}"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "del", &self.name]);
    }
}

/// Waits until an interface that is set up sends what it is given. If its peer came up after it, it drops that until then,
/// and says nothing: the kernel starts its queue in the background (`linkwatch_do_dev`, net/core/link_watch.c).
///
/// # Errors
/// There is no such interface.
///
/// # Panics
/// It does not come up within a minute.
pub fn until_it_sends(namespace: &str, iface: &str) -> Result<(), String> {
    let began = Instant::now();
    while !ip(&["-n", namespace, "link", "show", iface])?.contains("state UP") {
        assert!(began.elapsed() < PATIENCE, "{iface} does not come up");
    }
    // The state comes first, and then the queue. Whoever sets anything waits for the lock that is held meanwhile.
    ip(&["-n", namespace, "link", "set", iface, "up"]).map(drop)
}

/// What `ip` prints.
fn ip(args: &[&str]) -> Result<String, String> {
    let done = Program::new("ip").args(args).run();
    if done.status.success() {
        return Ok(done.stdout);
    }
    Err(format!("ip {}: {}", args.join(" "), done.stderr.trim()))
}

/// Removes the namespaces of test processes that are no more. Before this process makes any.
fn sweep() {
    let Ok(entries) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // One of this process's own number is of an earlier process that had it: this one has none yet.
        let is_left =
            |pid| pid == std::process::id() || !PathBuf::from(format!("/proc/{pid}")).exists();
        if owner(&name).is_some_and(is_left) {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

/// The test process a namespace was made by; `None`: not one of ours.
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
    fn only_own_namespaces_have_an_owner() {
        assert_eq!(owner("wqcap-t123-0-near"), Some(123));
        assert_eq!(owner("wqcap-demo-1"), None);
        assert_eq!(owner("t123-0"), None);
    }
}
