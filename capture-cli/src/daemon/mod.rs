//! Services around a long capture: sandbox, signals, service manager, metrics.

pub mod end;
pub mod metrics;
#[cfg(any(feature = "serve", feature = "ship"))]
pub mod reload;
pub mod sandbox;
pub mod sd_notify;
pub mod signals;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wqcap_engine::caught::caught;

/// Raises the limit on open file descriptors to the highest value that the process may set, as a
/// program that does not use select(2) should (systemd.exec(5), `LimitNOFILE=`).
pub fn raise_descriptor_limit() {
    // With debug assertions, rustix panics if the call fails, as a seccomp filter can make it.
    let Some(limit) = caught(|| getrlimit(Resource::Nofile)) else {
        return;
    };
    let maximum = limit.maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    if let Err(e) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!("cannot raise the limit on open file descriptors: {e}");
    }
}
