//! The device's clock while a capture runs.

use crate::{
    Error,
    capture::port::Port,
    plan::{Plan, Stamps},
    rx::clock::{Disturbance, Keeper, SharedConversion},
    stats::ClockReport,
};
use std::sync::{Arc, Mutex};

/// How the clock went, for those who write it down; `None`: stamps are not the device's, or it has not begun.
pub(super) type ClockWatch = Arc<Mutex<Option<ClockReport>>>;

/// The device's clock, what was seen of it, and what the loops convert by.
pub(super) struct Clock {
    pub(super) shared: Arc<SharedConversion>,
    keeper: Keeper,
    watch: ClockWatch,
}

impl Clock {
    /// Begins; `None`: stamps are the host's own.
    ///
    /// # Errors
    /// The device cannot be asked for its clock.
    pub(super) fn start(
        plan: &Plan,
        port: &Port,
        watch: ClockWatch,
    ) -> Result<Option<Self>, Error> {
        let Some(form) = plan.stamp_form() else {
            return Ok(None);
        };
        let first = port.clock().first_reading(plan.device.caps.clock_khz)?;
        let held = plan.stamps == Stamps::HardwareSystem;
        let keeper = Keeper::new(form, plan.device.caps.clock_khz, held, first);
        let clock = Self {
            shared: Arc::new(SharedConversion::new(*keeper.line())),
            keeper,
            watch,
        };
        clock.publish();
        Ok(Some(clock))
    }

    /// How it went.
    pub(super) fn report(&self) -> ClockReport {
        self.keeper.report()
    }

    /// Reads the clock, which costs a microsecond or two where the counter moves, some dozens where it stands. Gives what a
    /// reader of the files should know.
    pub(super) fn read(&mut self, port: &Port) -> Option<String> {
        // A device that is gone is noticed elsewhere.
        let reading = port.clock().read().ok()?;
        let disturbance = self.keeper.see(&reading);
        self.publish();
        let disturbance = disturbance?;
        self.shared.store(self.keeper.line());
        let clock = if self.report().real_time {
            "the NIC's time counter, which real-time stamps are not of,"
        } else {
            "the NIC's clock"
        };
        describe(clock, disturbance)
    }

    fn publish(&self) {
        if let Ok(mut watch) = self.watch.lock() {
            *watch = Some(self.keeper.report());
        }
    }
}

/// A step of the NIC's clock, as it is called, or of the system's, in words.
fn describe(clock: &str, disturbance: Disturbance) -> Option<String> {
    let by = |ns: i64| format!("{:+.6} s", ns as f64 / 1e9);
    match (disturbance.nic_ns, disturbance.host_ns) {
        (0, 0) => None,
        (nic, 0) => Some(format!("{clock} jumped by {}", by(nic))),
        (0, host) => Some(format!("the system's clock was set by {}", by(host))),
        (nic, host) => Some(format!(
            "{clock} jumped by {}, and the system's was set by {}",
            by(nic),
            by(host)
        )),
    }
}
