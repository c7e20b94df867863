//! The device's clock: stamps of completions in, nanoseconds since 1970 out.
//!
//! A [`Reader`] looks at the device's clock beside the host's, a [`Keeper`] makes a line of what it saw, and the loops
//! convert by that line ([`SharedConversion`]).
//!
//! May import: [`wqcap_verbs`], in `reader` alone. Who looks and when is [`crate::capture`]'s business.
//!
//! Invariant: a correction never turns the line back. It bends it from the present stamp on; the line steps only where
//! the device's own clock has jumped, to go on as if it had not.

mod discipline;
mod reader;
mod shared;

pub use discipline::{Disturbance, Keeper};
pub use reader::{ClockReading, NicTime, Reader};
pub use shared::SharedConversion;

/// How far a held line may be ahead of the host's coarse clock, which is up to 10 ms old.
const AHEAD_NS: u64 = 20_000_000;

/// What a completion's stamp is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A free-running counter.
    Ticks {
        /// High bits that do not count.
        unused: u32,
    },
    /// UTC: seconds in the upper half, nanoseconds in the lower (PRM, "Real time clock"). It is the device's clock, which
    /// another function may steer; the driver's clock info describes the function's own counter
    /// (`mlx5_update_clock_info_page`). So nothing that can be read tells how it goes, and stamps are passed on as they are.
    RealTime,
}

impl Form {
    /// A counter of which these bits count.
    #[must_use]
    pub fn ticks(mask: u64) -> Self {
        Self::Ticks {
            unused: mask.leading_zeros().min(63),
        }
    }

    /// From one stamp of this form to another, in ticks or nanoseconds.
    #[inline]
    fn distance(self, from: u64, to: u64) -> i64 {
        match self {
            Self::Ticks { unused } => (to.wrapping_sub(from) << unused) as i64 >> unused,
            Self::RealTime => linear(to).wrapping_sub(linear(from)) as i64,
        }
    }
}

/// Nanoseconds of a real-time stamp.
#[inline]
fn linear(stamp: u64) -> u64 {
    (stamp >> 32)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(stamp & 0xffff_ffff)
}

/// The real-time stamp of a time.
fn real_time(ns: u64) -> u64 {
    ((ns / 1_000_000_000) << 32) | (ns % 1_000_000_000)
}

/// Bits behind the point of a slope. As many as are left of 64 are spare in front of a distance below 2^55 ticks, which is a year
/// of a GHz.
const ONE: u32 = 56;
const SPARE: u32 = 64 - ONE;

/// A line from stamps to nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    form: Form,
    /// The stamp at the line's start.
    base: u64,
    /// Nanoseconds since 1970 at the line's start.
    base_ns: u64,
    /// Nanoseconds per tick, 2^56 being one: below 128.
    slope: u64,
    /// The host's monotonic clock at the line's start; 0: the line does not follow the host's time.
    base_mono_ns: u64,
}

impl Conversion {
    /// A line through one stamp, with so many nanoseconds a tick.
    #[must_use]
    pub fn new(form: Form, stamp: u64, ns: u64, ns_per_tick: f64) -> Self {
        let slope = (ns_per_tick * 2f64.powi(ONE as i32)).round() as u64;
        Self {
            form,
            base: stamp,
            base_ns: ns,
            slope: slope.min(i64::MAX as u64),
            base_mono_ns: 0,
        }
    }

    /// The same line, known to follow the host's time, whose monotonic clock showed `mono_ns` at its start.
    #[must_use]
    pub fn held_from(self, mono_ns: u64) -> Self {
        Self {
            base_mono_ns: mono_ns,
            ..self
        }
    }

    /// Nanoseconds since 1970 at a stamp, which may lie on either side of the line's start.
    #[inline]
    #[must_use]
    pub fn ns(&self, stamp: u64) -> u64 {
        let distance = self.form.distance(self.base, stamp);
        let near = distance << SPARE;
        if near >> SPARE != distance {
            return self.far(distance);
        }
        // The product's upper half: nothing is left to shift, which is a good part of what a frame costs the loop.
        let ns = (i128::from(near) * i128::from(self.slope.cast_signed())) >> 64;
        self.base_ns.wrapping_add_signed(ns as i64)
    }

    /// The same, so far from the line's start that nothing is spare. Of its own, or both ways would be one, with shifts by what a
    /// register holds.
    #[cold]
    #[inline(never)]
    fn far(&self, distance: i64) -> u64 {
        let ns = (i128::from(distance) * i128::from(self.slope.cast_signed())) >> ONE;
        self.base_ns.wrapping_add_signed(ns as i64)
    }

    /// The latest time that a frame can have been received when the host's monotonic clock shows `mono_ns`. A device
    /// whose clock has jumped stamps later ones until that is found out.
    #[inline]
    #[must_use]
    pub fn latest(&self, mono_ns: u64) -> u64 {
        if self.base_mono_ns == 0 {
            return u64::MAX;
        }
        let elapsed = mono_ns.saturating_sub(self.base_mono_ns);
        // The line runs no more than a thousandth faster.
        self.base_ns + elapsed + elapsed / 1000 + AHEAD_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Form = Form::Ticks { unused: 0 };

    #[test]
    fn a_line_counts_nanoseconds() {
        let gigahertz = Conversion::new(ALL, 1_000, 5_000_000_000, 1.0);
        assert_eq!(gigahertz.ns(1_000), 5_000_000_000);
        assert_eq!(gigahertz.ns(1_001), 5_000_000_001);
        assert_eq!(gigahertz.ns(999), 4_999_999_999);
        let slow = Conversion::new(ALL, 0, 0, 6.4);
        assert!(slow.ns(1_000_000_000).abs_diff(6_400_000_000) <= 1);
        // A day, to either side.
        let day = 86_400_000_000_000;
        let late = Conversion::new(ALL, day, 2 * day, 1.000_001);
        assert!(late.ns(2 * day).abs_diff(3 * day + 86_400_000) <= 1);
        assert!(late.ns(0).abs_diff(day - 86_400_000) <= 1);
        // On either side of what fits in front of the point.
        let (base, near) = (
            Conversion::new(ALL, 1 << 60, 1 << 60, 1.0),
            1 << (63 - SPARE),
        );
        for distance in [near - 1, near, near + 1] {
            let (later, earlier) = ((1 << 60) + distance, (1 << 60) - distance);
            assert_eq!([base.ns(later), base.ns(earlier)], [later, earlier]);
        }
        let slowest = Conversion::new(ALL, 0, 0, 1e9);
        assert_eq!(slowest.ns(1 << 20), (128 << 20) - 1, "no slower than this");
    }

    #[test]
    fn wraps_with_the_counter() {
        let line = Conversion::new(ALL, u64::MAX - 5, 1_000, 1.0);
        assert_eq!(line.ns(4), 1_010);
        let narrow = Conversion::new(Form::ticks((1 << 40) - 1), (1 << 40) - 6, 1_000, 1.0);
        assert_eq!(narrow.ns(4), 1_010);
        assert_eq!(narrow.ns((1 << 40) - 7), 999);
        assert_eq!(narrow.ns(4 | 0xff << 40), 1_010, "bits that do not count");
    }

    #[test]
    fn real_time_is_read_in_halves() {
        let now = 1_700_000_000_999_999_999;
        let line = Conversion::new(Form::RealTime, real_time(now), now, 1.0);
        assert_eq!(line.ns(real_time(now)), now);
        assert_eq!(line.ns(real_time(now + 2)), now + 2);
        assert_eq!(line.ns(real_time(now - 1_000_000_000)), now - 1_000_000_000);
        // A clock that nobody has set yet.
        assert_eq!(line.ns(real_time(5)), 5);
    }

    #[test]
    fn nothing_is_received_later_than_now() {
        let line = Conversion::new(ALL, 0, 5_000_000_000, 1.0);
        assert_eq!(line.latest(1), u64::MAX, "it follows nobody");
        let held = line.held_from(1_000);
        let now = held.latest(1_000_001_000);
        assert!((6_000_000_000..6_100_000_000).contains(&now), "{now}");
    }

    #[test]
    fn a_shared_line_is_read_whole() {
        let at = |i| Conversion {
            form: ALL,
            base: i,
            base_ns: i,
            slope: i,
            base_mono_ns: i,
        };
        let shared = SharedConversion::new(at(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 1..=100_000u64 {
                    shared.store(&at(i));
                }
            });
            loop {
                let c = shared.load();
                assert_eq!(c, at(c.base));
                if c.base == 100_000 {
                    break;
                }
            }
        });
    }
}
