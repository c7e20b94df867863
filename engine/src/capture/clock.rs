//! The device's clock while a capture runs.

use crate::{
    Error,
    capture::port::Port,
    device::clock::{ClockReport, Disturbance, Keeper, Patience, SharedConversion},
    plan::{Plan, Stamps},
};
use std::sync::{Arc, Mutex};

/// How the clock went, for those who write it down; `None`: stamps are not the device's, or it has not begun.
pub(super) type ClockWatch = Arc<Mutex<Option<ClockReport>>>;

/// The device's clock, what was seen of it, and what the loops convert by.
pub(super) struct Clock {
    pub(super) shared: Arc<SharedConversion>,
    keeper: Keeper,
    watch: ClockWatch,
    pace: Pace,
}

/// Looks that are left out at most between two at a clock that stands still.
const MOST_SKIPPED: u32 = 8;
/// Short looks between two long ones at such a clock: a second of them.
const MOST_GLANCES: u32 = 5;

/// When to look at the clock: always, but for one that stands still, at which a look takes long and tells nothing. A NIC's
/// never does; the software NIC's does while it rests on a wire without frames.
#[derive(Default)]
struct Pace {
    /// Looks to be left out, and how many were the last time.
    skip: u32,
    skipped: u32,
    /// Short looks since the last long one.
    glances: u32,
}

impl Pace {
    fn is_due(&mut self) -> bool {
        let due = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        due
    }

    /// How the next look is to be: a clock that has stood still again and again is seldom waited for.
    fn patience(&mut self) -> Patience {
        if self.skipped < MOST_SKIPPED || self.glances >= MOST_GLANCES {
            self.glances = 0;
            Patience::Long
        } else {
            self.glances += 1;
            Patience::Short
        }
    }

    fn saw(&mut self, still: bool) {
        self.skipped = match still {
            true => (2 * self.skipped + 1).min(MOST_SKIPPED),
            false => self.skipped / 2,
        };
        self.skip = self.skipped;
    }
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
            pace: Pace::default(),
        };
        clock.publish();
        Ok(Some(clock))
    }

    /// How it went.
    pub(super) fn report(&self) -> ClockReport {
        self.keeper.report()
    }

    /// Reads the clock, which costs a microsecond or two. Gives what a reader of the files should know.
    pub(super) fn read(&mut self, port: &Port) -> Option<String> {
        if !self.pace.is_due() {
            return None;
        }
        // A device that is gone is noticed elsewhere.
        let reading = port.clock().read(self.pace.patience()).ok()?;
        self.pace.saw(reading.is_still());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stands_is_looked_at_less_often_until_it_goes() {
        let mut pace = Pace::default();
        let mut looks = |still: bool| -> Vec<usize> {
            let due = (0..24).filter(|_| {
                let due = pace.is_due();
                if due {
                    pace.saw(still);
                }
                due
            });
            due.collect()
        };
        assert_eq!(looks(false), (0..24).collect::<Vec<_>>());
        assert_eq!(looks(true), [0, 2, 6, 14, 23]);
        assert_eq!(looks(false), [8, 13, 16, 18, 19, 20, 21, 22, 23]);
    }
}
