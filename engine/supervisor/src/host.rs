//! What a program provides to its supervisor: the configuration, the device, and reports.

use super::{run::Interval, transitions::Event};
use std::time::Duration;
use wqcap_engine::{config::Config, plan::Plan};

/// Error of the program around a supervisor; its text is logged, or is the reason of a refusal.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// Functions that a program provides to its supervisor. Only the first two are required.
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

    /// Called by the supervisor when a capture with the plan `_plan` has started to run.
    fn running(&mut self, _plan: &Plan) {}

    /// Called by the supervisor once per second with the counters of the running capture.
    fn snapshot(&mut self, _interval: &Interval) {}

    /// Called by the supervisor before it drains the capture's queues and closes its files; `_why`
    /// is the event that ends the capture.
    fn finishing(&mut self, _why: Event) {}

    /// Called by the supervisor before the supervisor ends.
    fn ending(&mut self) {}

    /// Called by the supervisor repeatedly while the capture is stopped.
    fn stopped(&mut self) {}

    /// Called by the supervisor repeatedly while the device is lost, after `_tries` failed attempts
    /// to find it; the next attempt follows after `_wait`.
    fn searching(&mut self, _device: &str, _tries: u32, _wait: Duration) {}
}
