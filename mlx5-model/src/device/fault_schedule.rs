//! Faults that are still to be injected.
//!
//! Imports the settings' faults. Invariant: a fault is injected once. Frames are counted exactly,
//! because a port ends its burst where a fault is due.

use crate::settings::fault::{Fault, Trigger};

/// Faults of a device that have not been injected yet.
#[derive(Debug, Default)]
pub struct FaultSchedule(Vec<Fault>);

impl FaultSchedule {
    /// Schedules all faults of a device for injection.
    pub fn new(faults: &[Fault]) -> Self {
        Self(faults.to_vec())
    }

    /// Returns `true` if every fault of the device has been injected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Offers each scheduled fault, in the order of the settings, to `inject`, which returns
    /// whether it has injected the fault. Faults that are not due or whose target does not exist
    /// yet stay scheduled.
    pub fn run(&mut self, mut inject: impl FnMut(&Fault) -> bool) {
        self.0.retain(|fault| !inject(fault));
    }

    /// Returns the number of frames that a port, after `frames` frames, may take before its next
    /// fault is due.
    pub fn frames_left(&self, port: u8, frames: u64) -> u64 {
        let left = |fault: &Fault| match fault.trigger {
            // A fault that is due but waits for its target must not stop the port.
            Trigger::Frames(after) if fault.port == port && after > frames => Some(after - frames),
            _ => None,
        };
        self.0.iter().filter_map(left).min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::fault::{self, Effect};

    #[test]
    fn a_fault_is_injected_once_and_a_port_stops_where_it_is_due() {
        let faults = fault::parse("bad_lkey@frames=10;wq_fatal@frames=4;device_fatal:port=2@frames=1;clock_jump:ns=1@ms=2")
            .expect("valid faults");
        let mut schedule = FaultSchedule::new(&faults);
        assert_eq!(schedule.frames_left(1, 0), 4);
        assert_eq!(schedule.frames_left(2, 0), 1);
        let injected = |schedule: &mut FaultSchedule, frames, ns| {
            let mut injected = Vec::new();
            schedule.run(|fault| {
                let due = fault.port == 1 && fault.is_due(frames, ns);
                injected.extend(due.then_some(fault.effect));
                due
            });
            injected
        };
        assert_eq!(injected(&mut schedule, 3, None), []);
        assert_eq!(
            injected(&mut schedule, 4, Some(2_000_000)),
            [Effect::WqFatal(0), Effect::ClockJump(1)]
        );
        assert_eq!(schedule.frames_left(1, 4), 6);
        // Due, but its target does not exist: the port continues meanwhile.
        schedule.run(|_| false);
        assert_eq!(schedule.frames_left(1, 10), u64::MAX);
        assert_eq!(injected(&mut schedule, 11, None), [Effect::BadLkey(0)]);
        assert!(!schedule.is_empty());
        schedule.run(|_| true);
        assert!(schedule.is_empty());
    }
}
