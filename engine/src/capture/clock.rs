//! Clock of the device while a capture runs.

use crate::{
    Error,
    capture::port::Port,
    plan::{PortPlan, Stamps},
    rx::clock::{ClockDiscipline, Disturbance, SharedConversion},
    stats::ClockReport,
};
use std::sync::{Arc, Mutex};

/// Latest report on the NIC's clock, for the writers of capture files; `None`: frames do not have
/// the NIC's stamps, or the clock is not started.
pub(super) type ClockWatch = Arc<Mutex<Option<ClockReport>>>;

/// Clock of a capture's NIC: its readings, and the conversion of stamps that the receive loops use.
pub(super) struct CaptureClock {
    pub(super) shared: Arc<SharedConversion>,
    keeper: ClockDiscipline,
    watch: ClockWatch,
}

impl CaptureClock {
    /// Starts the readings of the NIC's clock; returns `None` if frames are stamped by the host.
    ///
    /// # Errors
    /// The device's clock cannot be read.
    pub(super) fn start(
        plan: &PortPlan,
        port: &Port,
        watch: ClockWatch,
    ) -> Result<Option<Self>, Error> {
        let Some(form) = plan.stamp_form() else {
            return Ok(None);
        };
        let first = port.clock().first_reading(plan.device.caps.clock_khz)?;
        let held = plan.stamps == Stamps::HardwareSystem;
        let keeper = ClockDiscipline::new(form, plan.device.caps.clock_khz, held, first);
        let clock = Self {
            shared: Arc::new(SharedConversion::new(*keeper.line())),
            keeper,
            watch,
        };
        clock.publish();
        Ok(Some(clock))
    }

    /// Returns the report on the NIC's clock so far.
    pub(super) fn report(&self) -> ClockReport {
        self.keeper.report()
    }

    /// Reads the NIC's clock. This takes 1 to 2 µs while the clock's counter runs, and several
    /// dozen µs while it stands still. Returns a note if the NIC's or the system's clock has
    /// jumped.
    pub(super) fn read(&mut self, port: &Port) -> Option<String> {
        // A lost device is detected elsewhere.
        let reading = port.clock().read().ok()?;
        if self.shared.is_in_utc() && !self.report().real_time {
            self.keeper.switch_to_utc(reading);
        }
        let disturbance = self.keeper.update(&reading);
        self.publish();
        let disturbance = disturbance?;
        self.shared.store(self.keeper.line());
        let clock = if self.report().real_time {
            "the NIC's time counter, which real-time stamps do not use,"
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

/// Describes a jump of the NIC's clock, whose name is `clock`, or of the system clock, for the
/// report.
fn describe(clock: &str, disturbance: Disturbance) -> Option<String> {
    let by = |ns: i64| format!("{:+.6} s", ns as f64 / 1e9);
    match (disturbance.nic_ns, disturbance.host_ns) {
        (0, 0) => None,
        (nic, 0) => Some(format!("{clock} jumped by {}", by(nic))),
        (0, host) => Some(format!("the system's clock jumped by {}", by(host))),
        (nic, host) => Some(format!(
            "{clock} jumped by {}, and the system's clock jumped by {}",
            by(nic),
            by(host)
        )),
    }
}
