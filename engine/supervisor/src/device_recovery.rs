//! Recovery of a lost device with `device.on_loss = "retry"`: delays between attempts, and the new
//! capture.

use super::{
    host::{Host, HostError},
    run::Run,
};
use std::time::{Duration, Instant};
use wqcap_core::sync::wakeup::Wakeup;
use wqcap_engine::{
    Error,
    capture::{Capture, Limits, Report, Resources},
    plan::Plan,
};

/// Search for a lost device, with the capture run that continues once the device is back.
pub(super) struct DeviceSearch {
    /// Report of the capture that lost its device, combined with those of the captures that it
    /// continued.
    pub(super) report: Report,
    pub(super) run: Run,
    /// Number of failed attempts to find the device.
    pub(super) tries: u32,
    /// Delay before the next attempt to find the device; it ends at `due`.
    wait: Duration,
    due: Instant,
}

impl DeviceSearch {
    /// Creates the search for the device that the capture with this `report` has lost.
    pub(super) fn new(report: Report, mut run: Run) -> Self {
        run.backoff.record_run(run.ready.elapsed());
        let wait = run.backoff.next();
        Self {
            report,
            run,
            tries: 0,
            wait,
            due: Instant::now() + wait,
        }
    }

    /// Returns the name of the lost device.
    pub(super) fn device(&self) -> &str {
        &self.run.plan.port.device.name
    }

    /// Returns the time until the next attempt to find the device.
    pub(super) fn left(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Logs that the device is lost.
    pub(super) fn log_loss(&self) {
        let (name, wait) = (self.device(), self.wait);
        tracing::warn!("{name}: the device is lost; wqcap searches for it again in {wait:?}");
    }

    /// Logs a failed attempt to find the device, and sets the time of the next attempt.
    pub(super) fn record_failure(&mut self, why: &DeviceRecoveryError) {
        self.tries += 1;
        self.wait = self.run.backoff.next();
        let (name, wait) = (self.device(), self.wait);
        tracing::warn!(
            "{name}: the lost device is still missing: {why}; wqcap searches for it again in {wait:?}"
        );
        self.due = Instant::now() + wait;
    }
}

/// Error of an attempt to continue a capture on a lost device. The attempt can be repeated.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeviceRecoveryError {
    /// The host does not find the device, or the device does not support the configuration.
    #[error(transparent)]
    Device(#[from] HostError),
    /// The device has no network interface yet, although it had one before it was lost.
    #[error("the network interface {0} of the device is not present")]
    NoInterface(String),
    /// The capture cannot be started on the device that was found.
    #[error(transparent)]
    Capture(#[from] Error),
}

/// Starts a capture on the device that `host` finds, which continues from the report of `search`.
/// The device may have another name or firmware; all other settings are those of the run.
pub(super) fn continue_capture(
    host: &mut impl Host,
    search: &DeviceSearch,
    resources: &Resources,
    limits: Limits,
    wakeup: &Wakeup,
) -> Result<(Capture, Plan), DeviceRecoveryError> {
    let found = host.find_device()?;
    let before = &search.run.plan;
    for (before, found) in before.ports().zip(found.ports()) {
        if let (Some(netdev), None) = (&before.netdev, &found.netdev) {
            return Err(DeviceRecoveryError::NoInterface(netdev.clone()));
        }
    }
    let mut plan = before.clone();
    (plan.port.device, plan.port.netdev) = (found.port.device, found.port.netdev);
    for (before, found) in plan.more_ports.iter_mut().zip(found.more_ports) {
        (before.device, before.netdev) = (found.device, found.netdev);
    }
    let capture = Capture::continue_from(&plan, resources, limits, &search.report, wakeup)?;
    Ok((capture, plan))
}
