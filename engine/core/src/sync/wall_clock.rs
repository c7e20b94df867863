//! System clock, and detection of its steps.
//!
//! CLOCK_REALTIME can be set. CLOCK_BOOTTIME cannot be set, and counts suspended time. Slewing
//! changes both at the same rate, so the difference between the two changes only by steps.

use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime};

/// Smallest change of the system clock that counts as a step, in nanoseconds. A leap second is
/// smaller, and so is the delay between two readings on a busy machine.
const LEAST_STEP_NS: i128 = 2_000_000_000;
/// Maximum time for a reading of both clocks that needs no further attempt.
const CLOSE: Duration = Duration::from_millis(10);
/// Maximum number of attempts to read the system clock and the boot time close together.
const ATTEMPTS: usize = 8;

/// One moment, as system time and as boot time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// System time of the moment.
    pub wall: SystemTime,
    /// Boot time of the moment: the time since the machine's start.
    pub boot: Duration,
}

impl Moment {
    /// Reads the system clock and the boot time at one moment.
    pub fn now() -> Self {
        let read = || {
            let before = boot_time();
            let wall = SystemTime::now();
            let boot = boot_time();
            (boot.saturating_sub(before), Self { wall, boot })
        };
        let mut best = read();
        for _ in 1..ATTEMPTS {
            if best.0 < CLOSE {
                break;
            }
            let next = read();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    /// Returns the moment's system time minus its boot time, in nanoseconds.
    fn offset_ns(self) -> i128 {
        let nanos = |it: Duration| i128::try_from(it.as_nanos()).unwrap_or(i128::MAX);
        let wall = match self.wall.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => nanos(since),
            Err(e) => -nanos(e.duration()),
        };
        wall - nanos(self.boot)
    }
}

/// Returns the time since the machine's start, including suspended time.
pub fn boot_time() -> Duration {
    // Through the C library, whose call valgrind knows. Linux has had this clock since 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
}

/// Detector of steps of the system clock.
#[derive(Debug)]
pub struct StepWatch {
    /// System clock minus boot time after the last detected step, in nanoseconds.
    offset_ns: i128,
    /// Boot time of the first check of the clock, or of the check that detected the last step.
    since: Duration,
}

impl StepWatch {
    /// Starts to detect steps of the system clock at `now`.
    pub fn new(now: Moment) -> Self {
        Self {
            offset_ns: now.offset_ns(),
            since: now.boot,
        }
    }

    /// Returns the seconds by which the system clock was set forward since the last call (negative:
    /// back), if it was set.
    pub fn step(&mut self, now: Moment) -> Option<f64> {
        let step = now.offset_ns() - self.offset_ns;
        if step.abs() < LEAST_STEP_NS {
            return None;
        }
        self.offset_ns += step;
        self.since = now.boot;
        #[expect(clippy::cast_precision_loss, reason = "printed value")]
        Some(step as f64 / 1e9)
    }

    /// Returns the time since the last detected step of the system clock, or since the start of the
    /// detection.
    pub fn steady_for(&self, now: Moment) -> Duration {
        now.boot.saturating_sub(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a moment, in seconds on both clocks.
    fn moment(wall_s: u64, boot_s: u64) -> Moment {
        Moment {
            wall: SystemTime::UNIX_EPOCH + Duration::from_secs(wall_s),
            boot: Duration::from_secs(boot_s),
        }
    }

    #[test]
    fn steps_are_detected_and_small_changes_add_up() {
        let mut watch = StepWatch::new(moment(1000, 10));
        assert_eq!(watch.step(moment(1030, 40)), None);
        assert_eq!(watch.steady_for(moment(1030, 40)), Duration::from_secs(30));
        assert_eq!(watch.step(moment(4640, 50)), Some(3600.0));
        assert_eq!(watch.steady_for(moment(4640, 50)), Duration::ZERO);
        assert_eq!(watch.step(moment(4650, 60)), None);
        assert_eq!(watch.step(moment(1060, 70)), Some(-3600.0));
        // Two changes of one second add up to a step.
        assert_eq!(watch.step(moment(1071, 80)), None);
        assert_eq!(watch.step(moment(1082, 90)), Some(2.0));
        // Before 1970.
        let early = Moment {
            wall: SystemTime::UNIX_EPOCH - Duration::from_secs(5),
            boot: Duration::from_secs(95),
        };
        assert_eq!(watch.step(early), Some(-1092.0));
    }

    #[test]
    fn both_clocks_are_read() {
        let (first, second) = (Moment::now(), Moment::now());
        assert!(second.boot >= first.boot && first.boot > Duration::ZERO);
        assert_eq!(StepWatch::new(first).step(second), None);
    }
}
