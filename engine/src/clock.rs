//! The device's clock: ticks of a completion in, nanoseconds since 1970 out.
//!
//! May import: nothing of the engine. Who queries the device's clock and when is [`crate::capture`]'s business.
//!
//! Invariant: a conversion is continuous. A correction bends the line from the present tick on and never steps it,
//! so stamps do not run backward when the system clock is slewed under them.

mod shared;

pub use shared::SharedConversion;

/// Most a correction may bend the line: 500 parts per million, the most the kernel slews its own clock by.
const MAX_SLEW: f64 = 500e-6;
/// A difference too large to slew away, in nanoseconds: the system clock was set, not disciplined.
const STEP: i64 = 1_000_000_000;

/// A line from ticks to nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// The device's ticks at the line's start.
    base_ticks: u64,
    /// Nanoseconds since 1970 at the line's start.
    base_ns: u64,
    /// Nanoseconds per tick, 2^32 being one.
    slope: u64,
}

impl Conversion {
    /// A line through one reading, at the clock's nominal rate in kHz.
    #[must_use]
    pub fn new(ticks: u64, ns: u64, khz: u64) -> Self {
        let slope = (1_000_000u128 << 32) / u128::from(khz.max(1));
        Self {
            base_ticks: ticks,
            base_ns: ns,
            slope: u64::try_from(slope).unwrap_or(u64::MAX),
        }
    }

    /// Nanoseconds since 1970 at `ticks`, which may lie on either side of the line's start.
    #[inline]
    #[must_use]
    pub fn ns(&self, ticks: u64) -> u64 {
        #[allow(
            clippy::cast_possible_wrap,
            reason = "a signed distance on a wrapping counter"
        )]
        let distance = i128::from(ticks.wrapping_sub(self.base_ticks) as i64);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the distance fits 64 bits"
        )]
        let ns = ((distance * i128::from(self.slope)) >> 32) as i64;
        self.base_ns.wrapping_add_signed(ns)
    }

    /// Nanoseconds from the line's start to `ns`.
    #[must_use]
    pub fn since_base(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.base_ns)
    }

    /// The line bent at `ticks` so that it meets the reference clock, which shows `ns` there, one `interval` on.
    /// `nominal` is the line at the clock's nominal rate. A difference of more than a second forward is stepped
    /// over; backward it is slewed all the same.
    #[must_use]
    pub fn corrected(&self, ticks: u64, ns: u64, interval_ns: u64, nominal: &Self) -> Self {
        let here = self.ns(ticks);
        #[allow(clippy::cast_possible_wrap, reason = "a signed distance")]
        let error = ns.wrapping_sub(here) as i64;
        if error > STEP {
            return Self {
                base_ticks: ticks,
                base_ns: ns,
                slope: nominal.slope,
            };
        }
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "parts per million of a rate"
        )]
        let slope = {
            let bend = (error as f64 / interval_ns.max(1) as f64).clamp(-MAX_SLEW, MAX_SLEW);
            (nominal.slope as f64 * (1.0 + bend)) as u64
        };
        Self {
            base_ticks: ticks,
            base_ns: here,
            slope,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nominal_line_counts_nanoseconds() {
        let gigahertz = Conversion::new(1_000, 5_000_000_000, 1_000_000);
        assert_eq!(gigahertz.ns(1_000), 5_000_000_000);
        assert_eq!(gigahertz.ns(1_001), 5_000_000_001);
        assert_eq!(gigahertz.ns(999), 4_999_999_999);
        let slow = Conversion::new(0, 0, 156_250);
        // 6.4 ns a tick; the fixed-point slope is short by less than one part in 2^34.
        assert!((6_399_999_999..=6_400_000_000).contains(&slow.ns(1_000_000_000)));
    }

    #[test]
    fn wraps_with_the_counter() {
        let line = Conversion::new(u64::MAX - 5, 1_000, 1_000_000);
        assert_eq!(line.ns(4), 1_010);
    }

    #[test]
    fn a_correction_is_continuous_and_bounded() {
        let nominal = Conversion::new(0, 0, 1_000_000);
        // The system clock runs 100 ppm faster than the device's.
        let mut line = nominal;
        for second in 1..=20u64 {
            let ticks = second * 1_000_000_000;
            let system = ticks + ticks / 10_000;
            let next = line.corrected(ticks, system, 1_000_000_000, &nominal);
            assert_eq!(next.ns(ticks), line.ns(ticks), "no step");
            line = next;
        }
        let ticks = 21_000_000_000u64;
        let error = (ticks + ticks / 10_000).abs_diff(line.ns(ticks));
        assert!(
            error <= 110_000,
            "follows within one second's drift, not {error} ns"
        );
    }

    #[test]
    fn a_system_clock_set_back_does_not_turn_stamps_back() {
        let nominal = Conversion::new(0, 10_000_000_000, 1_000_000);
        let line = nominal.corrected(1_000_000_000, 0, 1_000_000_000, &nominal);
        assert!(line.ns(2_000_000_000) > line.ns(1_000_000_000));
    }

    #[test]
    fn a_shared_line_is_read_whole() {
        let shared = SharedConversion::new(Conversion::new(0, 0, 1_000_000));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 1..=100_000u64 {
                    shared.store(Conversion {
                        base_ticks: i,
                        base_ns: i,
                        slope: i,
                    });
                }
            });
            loop {
                let c = shared.load();
                if c.base_ticks != 0 {
                    assert!(c.base_ticks == c.base_ns && c.base_ns == c.slope, "{c:?}");
                }
                if c.base_ticks == 100_000 {
                    break;
                }
            }
        });
    }
}
