//! Samples of the device's clock, taken together with the host's clocks.

use crate::error::RxError;
use std::{thread, time::Duration};
use wqcap_core::time::{monotonic_ns, system_ns};
use wqcap_verbs::{ClockInfo, Context, VerbsError};

/// Uncertainty of a clock sample, in nanoseconds, from which on the sample is repeated.
const COARSE_NS: u64 = 10_000;
/// Maximum number of clock samples in one clock reading.
const LOOKS: usize = 4;
/// Time, in nanoseconds, after which a device counter that does not change is prompted by a port
/// query.
///
/// A NIC's counter differs at each query. A software NIC's counter changes only between its rounds,
/// so it is read until it changes. An idle software NIC updates its counter with any query. A
/// counter that does not change even then says nothing about the present time.
const STILL_NS: u64 = 10_000;
/// Uncertainty, in nanoseconds, of a clock sample whose device counter did not change: 1 s.
const UNKNOWN_NS: u64 = 1_000_000_000;

/// Maximum number of samples of the NIC's clock by which the first reading exceeds a later one.
const FIRST_LOOKS: usize = 50;
/// Time between the clock samples of the first clock reading.
const MOMENT: Duration = Duration::from_millis(1);

/// Reading of the device's clock and the host's clocks at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClockReading {
    /// Value of the device's counter at the reading, in ticks.
    pub ticks: u64,
    /// NIC's time as the driver computes it from the device's counter; `None` if the driver does
    /// not report it.
    pub nic: Option<NicTime>,
    /// Host's system time at the reading, in nanoseconds since 1970.
    pub system_ns: u64,
    /// Time of the reading on the host's monotonic clock, in nanoseconds.
    pub mono_ns: u64,
    /// Maximum distance of a clock reading's host times from the time of its counter value, in
    /// nanoseconds either way.
    pub uncertainty_ns: u64,
}

/// Time on the NIC's clock, as the driver computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct NicTime {
    /// NIC's time in nanoseconds since 1970.
    pub ns: u64,
    /// Nanoseconds per tick of the NIC's counter, as the driver estimates them.
    pub ns_per_tick: f64,
}

/// Reader of one device's clock.
#[derive(Clone)]
pub struct ClockReader<'a> {
    /// Open verbs context of the device.
    context: &'a Context,
    /// Number of the device's port that is queried to prompt the device's counter.
    port: u8,
}

impl<'a> ClockReader<'a> {
    /// Creates a reader of a device's clock. `port` is the number of one of the device's ports.
    #[must_use]
    pub fn new(context: &'a Context, port: u8) -> Self {
        Self { context, port }
    }

    /// Takes up to four clock samples and returns the one with the least uncertainty. The first
    /// sample after a sleep is slow because the caches are cold.
    ///
    /// # Errors
    /// The device's clock cannot be read.
    pub fn read(&self) -> Result<ClockReading, RxError> {
        let mut best = self.sample()?;
        for _ in 1..LOOKS {
            if best.uncertainty_ns < COARSE_NS {
                break;
            }
            let Ok(it) = self.sample() else { break };
            let is_as_complete = it.nic.is_some() || best.nic.is_none();
            if is_as_complete && it.uncertainty_ns < best.uncertainty_ns {
                best = it;
            }
        }
        Ok(best)
    }

    /// Takes one clock sample: reads the device's counter until it changes.
    fn sample(&self) -> Result<ClockReading, RxError> {
        let info = self.info()?;
        let before = self.context.query_clock()?;
        let began = monotonic_ns();
        // Time before the last query that returned the same value.
        let mut still = began;
        loop {
            let asked = monotonic_ns();
            let is_still = asked - began > STILL_NS;
            if is_still {
                self.context.query_port(self.port)?;
            }
            let ticks = self.context.query_clock()?;
            let answered = monotonic_ns();
            if ticks != before {
                return Ok(reading(ticks, info, (still, answered), host()));
            }
            if is_still {
                return Ok(ClockReading {
                    uncertainty_ns: UNKNOWN_NS,
                    ..reading(ticks, info, (asked, answered), host())
                });
            }
            still = asked;
        }
    }

    /// Takes the first clock reading: up to 51 samples, 1 ms apart, until one is precise.
    ///
    /// If none is precise, returns the sample that was answered fastest. It shows the device's
    /// clock, of `khz` nominally, furthest ahead.
    ///
    /// # Errors
    /// The device's clock cannot be read.
    pub fn first_reading(&self, khz: u64) -> Result<ClockReading, RxError> {
        let mut best = self.sample()?;
        // Nanoseconds by which a sample was answered faster than the best one so far.
        let sooner = |it: &ClockReading, best: &ClockReading| {
            let ticks = i128::from(it.ticks.wrapping_sub(best.ticks).cast_signed());
            let passed = i128::from(it.mono_ns - best.mono_ns);
            ticks * 1_000_000 / i128::from(khz.max(1)) - passed
        };
        for _ in 0..FIRST_LOOKS {
            if best.uncertainty_ns < COARSE_NS && best.nic.is_some() {
                break;
            }
            thread::sleep(MOMENT);
            let it = self.sample()?;
            let more = it.nic.is_some() && best.nic.is_none();
            if more || it.uncertainty_ns < COARSE_NS || sooner(&it, &best) > 0 {
                best = it;
            }
        }
        Ok(best)
    }

    /// Returns the driver's clock info, or `None` if the device has none or the driver was updating
    /// the info during all attempts.
    fn info(&self) -> Result<Option<ClockInfo>, RxError> {
        match self.context.clock_info() {
            Ok(info) => Ok(Some(info)),
            Err(VerbsError::Verb { source, .. })
                if matches!(
                    source.raw_os_error(),
                    Some(libc::EBUSY | libc::EINVAL | libc::EOPNOTSUPP)
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }
}

/// Returns the clock reading of a device counter that showed `ticks` between the times `from` and
/// `to` of the host's monotonic clock. `system` and `mono` are the host's system time and monotonic
/// clock at one later moment. A reading before 1970 has the system time 0.
fn reading(
    ticks: u64,
    info: Option<ClockInfo>,
    (from, to): (u64, u64),
    (system, mono): (u64, u64),
) -> ClockReading {
    let mono_ns = from + (to - from) / 2;
    ClockReading {
        ticks,
        nic: info.map(|info| NicTime {
            ns: info.ns(ticks),
            ns_per_tick: info.ns_per_tick(),
        }),
        system_ns: system.saturating_sub(mono - mono_ns),
        mono_ns,
        uncertainty_ns: (to - from).div_ceil(2),
    }
}

/// Returns the host's system time and monotonic clock at one moment, from the most precise of three
/// samples.
fn host() -> (u64, u64) {
    tightest((0..3).map(|_| (monotonic_ns(), system_ns(), monotonic_ns())))
}

/// Returns the most precise of several samples of the host's clocks: the system time whose
/// surrounding monotonic times are closest, and the middle of these two times.
fn tightest(looks: impl Iterator<Item = (u64, u64, u64)>) -> (u64, u64) {
    looks
        .min_by_key(|(before, _, after)| after - before)
        .map_or((0, 0), |(before, system, after)| {
            (system, before + (after - before) / 2)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_of_the_host_are_read_at_one_moment() {
        let looks = [
            (100, 7_000, 900),
            (1_000, 7_500, 1_011),
            (1_100, 7_700, 1_112),
        ];
        assert_eq!(tightest(looks.into_iter()), (7_500, 1_005));
        let before = monotonic_ns();
        let (system, mono) = host();
        assert!((before..=monotonic_ns()).contains(&mono));
        assert!(system > 1_000_000_000_000_000_000, "nanoseconds since 1970");
        assert!(wqcap_core::time::coarse_ns() <= monotonic_ns());
    }

    #[test]
    fn a_reading_has_the_middle_of_its_time_span() {
        let now = monotonic_ns();
        let it = reading(7, None, (now - 301, now), (1_000_000, now + 49));
        assert_eq!(
            (it.ticks, it.mono_ns, it.uncertainty_ns, it.system_ns),
            (7, now - 301 + 150, 151, 1_000_000 - 200)
        );
    }

    #[test]
    fn a_system_clock_at_1970_is_the_time_zero() {
        let now = monotonic_ns();
        assert_eq!(reading(7, None, (now - 301, now), (0, now)).system_ns, 0);
    }
}
