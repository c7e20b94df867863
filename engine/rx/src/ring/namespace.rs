//! Network namespaces for tests of rings over ordinary interfaces.
#![allow(unsafe_code)]

use std::{io, process::Command, thread};

/// Runs `test` on a thread in a new network namespace, whose loopback interface is up and has this
/// MTU. Without the rights for that, prints the reason and returns.
pub(super) fn in_namespace(mtu: &str, test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a plain system call, for this thread only.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                let e = io::Error::last_os_error();
                return eprintln!("skipped: a network namespace: {e}");
            }
            let up = ["link", "set", "lo", "up", "mtu", mtu];
            // Frames that are sent on several CPUs may overtake each other.
            let cpus = core_affinity::get_core_ids().unwrap_or_default();
            cpus.first().map(|it| core_affinity::set_for_current(*it));
            match Command::new("ip").args(up).status() {
                Ok(status) => assert!(status.success()),
                Err(e) => return eprintln!("skipped: ip: {e}"),
            }
            test();
        });
    });
}
