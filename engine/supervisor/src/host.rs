//! What a program provides to its supervisor: the configuration, the device, and reports.

use super::{snapshot_timer::Interval, transitions::Event};
use std::time::Duration;
use wqcap_engine::{config::Config, plan::Plan};

/// Error of the program around a supervisor; its text is logged, or is the reason of a refusal.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// Functions that the program around a supervisor provides to it. Only the first two are required.
pub trait Host {
    /// Reads the configuration again, for the command `reload` and SIGHUP.
    ///
    /// # Errors
    /// Reason why the configuration cannot be read.
    fn load_config(&mut self) -> Result<Config, HostError>;

    /// Makes a new plan for the RDMA device in its present state. Called repeatedly while the
    /// device is lost, until it succeeds.
    ///
    /// # Errors
    /// The device is not present, or does not support the configuration.
    fn find_device(&mut self) -> Result<Plan, HostError>;

    /// Called by the supervisor when a capture of this plan starts to run.
    fn running(&mut self, _plan: &Plan) {}

    /// Called by the supervisor once per second while a capture runs.
    fn snapshot(&mut self, _interval: &Interval) {}

    /// Called by the supervisor before queues are drained and files closed; `why` is the event that
    /// ends the capture.
    fn finishing(&mut self, _why: Event) {}

    /// Called by the supervisor before it ends.
    fn ending(&mut self) {}

    /// Called repeatedly by the supervisor while the capture is stopped.
    fn stopped(&mut self) {}

    /// Called repeatedly by the supervisor while the device is lost, after `tries` attempts to find
    /// it; the next one follows after `wait`.
    fn searching(&mut self, _device: &str, _tries: u32, _wait: Duration) {}
}
