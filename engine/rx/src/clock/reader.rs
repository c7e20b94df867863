//! Looks at the device's clock beside the host's.

use crate::error::RxError;
use std::{thread, time::Duration};
use wqcap_core::time::{monotonic_ns, system_ns};
use wqcap_verbs::{ClockInfo, Context, VerbsError};

/// A look that is less sure is repeated, in nanoseconds, and so many times in a reading.
const COARSE_NS: u64 = 10_000;
const LOOKS: usize = 4;
/// A NIC's counter is another at each question. A software NIC's stands from one of its rounds to the next, and shows
/// what it was a moment ago: it is read until it moves, and one that rests is asked for something else then, since it sets
/// its counter with whatever it does. One that does not move by that either tells nothing of now.
const STILL_NS: u64 = 10_000;
const UNKNOWN_NS: u64 = 1_000_000_000;

/// Looks at the start, of which one should be sure, and the time between them.
const FIRST_LOOKS: usize = 50;
const MOMENT: Duration = Duration::from_millis(1);

/// The device's clock beside the host's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockReading {
    /// The counter.
    pub ticks: u64,
    /// What the driver takes that for, where it can be asked.
    pub nic: Option<NicTime>,
    /// The host's time, in nanoseconds since 1970.
    pub system_ns: u64,
    /// The host's monotonic clock.
    pub mono_ns: u64,
    /// How far these may be from the moment when the counter was so, either way.
    pub uncertainty_ns: u64,
}

/// The NIC's time as the driver reckons it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NicTime {
    /// Nanoseconds since 1970.
    pub ns: u64,
    /// Nanoseconds a tick of the counter, as far as the driver knows.
    pub ns_per_tick: f64,
}

/// Reads one device's clock.
#[derive(Clone)]
pub struct Reader<'a> {
    context: &'a Context,
    port: u8,
}

impl<'a> Reader<'a> {
    /// Of a device, which has a port of this number.
    #[must_use]
    pub fn of(context: &'a Context, port: u8) -> Self {
        Self { context, port }
    }

    /// The surest of a few looks: the first after a sleep finds no cache warm.
    ///
    /// # Errors
    /// The device cannot be asked for its clock.
    pub fn read(&self) -> Result<ClockReading, RxError> {
        let mut best = self.look()?;
        for _ in 1..LOOKS {
            if best.uncertainty_ns < COARSE_NS {
                break;
            }
            let Ok(it) = self.look() else { break };
            let tells = it.nic.is_some() || best.nic.is_none();
            if tells && it.uncertainty_ns < best.uncertainty_ns {
                best = it;
            }
        }
        Ok(best)
    }

    /// A look.
    fn look(&self) -> Result<ClockReading, RxError> {
        let info = self.info()?;
        let before = self.context.query_clock()?;
        let began = monotonic_ns();
        // Before the last answer that was the same.
        let mut still = began;
        loop {
            let asked = monotonic_ns();
            let stands = asked - began > STILL_NS;
            if stands {
                self.context.query_port(self.port)?;
            }
            let ticks = self.context.query_clock()?;
            let answered = monotonic_ns();
            if ticks != before {
                return Ok(reading(ticks, info, still, answered));
            }
            if stands {
                return Ok(ClockReading {
                    uncertainty_ns: UNKNOWN_NS,
                    ..reading(ticks, info, asked, answered)
                });
            }
            still = asked;
        }
    }

    /// Looks until one is sure, a few times with a moment in between; else the one that was answered soonest, which
    /// shows the device's clock, of nominally so many kHz, furthest ahead.
    ///
    /// # Errors
    /// The device cannot be asked for its clock.
    pub fn first_reading(&self, khz: u64) -> Result<ClockReading, RxError> {
        let mut best = self.look()?;
        // How much earlier than the best so far a look was answered, in nanoseconds.
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
            let it = self.look()?;
            let more = it.nic.is_some() && best.nic.is_none();
            if more || it.uncertainty_ns < COARSE_NS || sooner(&it, &best) > 0 {
                best = it;
            }
        }
        Ok(best)
    }

    /// The driver's reckoning; `None`: the device has none, or it was being changed for all the time there was.
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

/// The counter showed `ticks` at a time between two of the monotonic clock.
fn reading(ticks: u64, info: Option<ClockInfo>, from: u64, to: u64) -> ClockReading {
    let mono_ns = from + (to - from) / 2;
    let (system, mono) = host();
    ClockReading {
        ticks,
        nic: info.map(|info| NicTime {
            ns: info.ns(ticks),
            ns_per_tick: info.ns_per_tick(),
        }),
        system_ns: system - (mono - mono_ns),
        mono_ns,
        uncertainty_ns: (to - from).div_ceil(2),
    }
}

/// Both clocks of the host at one moment: the tightest of three.
fn host() -> (u64, u64) {
    tightest((0..3).map(|_| (monotonic_ns(), system_ns(), monotonic_ns())))
}

/// Of the system's times that were read between two of the monotonic clock the one where these are closest, and the
/// middle between them.
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
    fn both_clocks_of_the_host_are_of_one_moment() {
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
    fn a_reading_stands_in_the_middle() {
        let now = monotonic_ns();
        let it = reading(7, None, now - 301, now);
        assert_eq!(
            (it.ticks, it.mono_ns, it.uncertainty_ns),
            (7, now - 301 + 150, 151)
        );
    }
}
