//! Clock of the device: converts stamps of completions to nanoseconds since 1970.
//!
//! A [`ClockReader`] samples the device's clock and the host's together. A [`ClockDiscipline`]
//! computes a linear conversion (a line) from these readings. The loops convert stamps with that
//! line ([`SharedConversion`]).
//!
//! Only `reader` calls verbs. `wqcap-engine` decides when the clock is read.
//!
//! Invariant: a correction never moves the line back in time. It changes the slope from the present
//! stamp on. The line steps only when the device's clock has jumped, to continue as if it had not
//! jumped.

mod discipline;
mod reader;
mod shared;

pub use discipline::{ClockDiscipline, Disturbance};
pub use reader::{ClockReader, ClockReading, NicTime};
pub use shared::SharedConversion;

/// Maximum lead of converted stamps over the host's coarse clock, in nanoseconds. The coarse clock
/// is up to 10 ms old.
const AHEAD_NS: u64 = 20_000_000;

/// Form of the time stamp in a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampForm {
    /// Stamp in ticks of the device's free-running counter.
    Ticks {
        /// Number of high bits of the stamp that are not part of the counter.
        unused: u32,
    },
    /// UTC stamp: seconds in the upper 32 bits, nanoseconds in the lower (PRM, "Real time clock").
    ///
    /// The stamps are of the device's clock, which another function may steer. The driver's clock
    /// info describes the counter of this function (`mlx5_update_clock_info_page`). So the clock
    /// that stamps cannot be read, and stamps are passed on unchanged.
    RealTime,
}

impl StampForm {
    /// Returns the stamp form of a device counter whose valid bits are `mask`.
    #[must_use]
    pub fn ticks(mask: u64) -> Self {
        Self::Ticks {
            unused: mask.leading_zeros().min(63),
        }
    }

    /// Returns the distance between two device stamps of this form, in ticks or nanoseconds.
    #[inline]
    fn distance(self, from: u64, to: u64) -> i64 {
        match self {
            Self::Ticks { unused } => (to.wrapping_sub(from) << unused) as i64 >> unused,
            Self::RealTime => linear(to).wrapping_sub(linear(from)) as i64,
        }
    }
}

/// Converts a real-time device stamp to nanoseconds since 1970.
#[inline]
fn linear(stamp: u64) -> u64 {
    (stamp >> 32)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(stamp & 0xffff_ffff)
}

/// Converts nanoseconds since 1970 to a real-time device stamp.
fn real_time(ns: u64) -> u64 {
    ((ns / 1_000_000_000) << 32) | (ns % 1_000_000_000)
}

/// Number of fraction bits in the slope of a stamp conversion.
///
/// The remaining bits of 64 are free in a distance below 2^55 ticks, which is a year at 1 GHz.
const ONE: u32 = 56;
/// Number of high bits that a distance below 2^55 ticks between two stamps leaves free.
const SPARE: u32 = 64 - ONE;

/// Linear conversion from device stamps to nanoseconds since 1970: a start and a slope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// Form of the device stamps that the conversion takes.
    form: StampForm,
    /// Device stamp at which the linear conversion starts.
    base: u64,
    /// Nanoseconds since 1970 at which the linear conversion starts.
    base_ns: u64,
    /// Slope of the stamp conversion: nanoseconds per tick as a fixed-point number with 56 fraction
    /// bits; less than 128 ns.
    slope: u64,
    /// Host's monotonic clock at the start of the stamp conversion, in nanoseconds; 0 if the
    /// conversion does not follow the host's time.
    base_mono_ns: u64,
}

impl Conversion {
    /// Creates a stamp conversion that starts at `stamp` with the time `ns` and has the slope
    /// `ns_per_tick`.
    #[must_use]
    pub fn new(form: StampForm, stamp: u64, ns: u64, ns_per_tick: f64) -> Self {
        let slope = (ns_per_tick * 2f64.powi(ONE as i32)).round() as u64;
        Self {
            form,
            base: stamp,
            base_ns: ns,
            slope: slope.min(i64::MAX as u64),
            base_mono_ns: 0,
        }
    }

    /// Creates the conversion of stamps that are nanoseconds since 1970 already, within 400 days of
    /// `around_ns`.
    #[must_use]
    pub fn identity(around_ns: u64) -> Self {
        Self::new(StampForm::Ticks { unused: 0 }, around_ns, around_ns, 1.0)
    }

    /// Creates the conversion of UTC stamps, near `around_ns` nanoseconds since 1970.
    #[must_use]
    pub fn utc(around_ns: u64) -> Self {
        let base = real_time(around_ns);
        Self::new(StampForm::RealTime, base, around_ns, 1.0)
    }

    /// Returns `true` if a device stamp is in UTC although this conversion takes it for ticks.
    ///
    /// A device that stamps in real time only does so for every CQ: its `rq_ts_format` allows no
    /// other, and the driver then asks for the default (`get_ts_format` of
    /// drivers/infiniband/hw/mlx5/qp.c). The device's counter, which this conversion was made from,
    /// is another clock. `now_ns` is the present time.
    #[must_use]
    pub fn is_utc_stamp(&self, stamp: u64, now_ns: u64) -> bool {
        /// Maximum difference between the device's UTC and the host's, in seconds.
        const NEAR_S: u64 = 86_400;
        /// Minimum error of a UTC stamp that is converted as ticks, in nanoseconds.
        const FAR_NS: u64 = 3_600_000_000_000;
        matches!(self.form, StampForm::Ticks { .. })
            && (stamp >> 32).abs_diff(now_ns / 1_000_000_000) < NEAR_S
            && stamp & 0xffff_ffff < 1_000_000_000
            && self.ns(stamp).abs_diff(now_ns) > FAR_NS
    }

    /// Marks the stamp conversion as following the host's time, whose monotonic clock showed
    /// `mono_ns` at the conversion's start.
    #[must_use]
    pub fn held_from(self, mono_ns: u64) -> Self {
        Self {
            base_mono_ns: mono_ns,
            ..self
        }
    }

    /// Converts a device stamp, before or after the conversion's start, to nanoseconds since 1970.
    #[inline]
    #[must_use]
    pub fn ns(&self, stamp: u64) -> u64 {
        let distance = self.form.distance(self.base, stamp);
        let near = distance << SPARE;
        if near >> SPARE != distance {
            return self.far(distance);
        }
        // Taking the upper half of the product needs no shift. A shift would be a good part of the
        // loop's cost per frame.
        let ns = (i128::from(near) * i128::from(self.slope.cast_signed())) >> 64;
        self.base_ns.wrapping_add_signed(ns as i64)
    }

    /// Converts a distance of at least 2^55 ticks from the conversion's start to nanoseconds since
    /// 1970.
    ///
    /// Kept out of line: the compiler would otherwise merge both paths into one with shifts by
    /// variable counts.
    #[cold]
    #[inline(never)]
    fn far(&self, distance: i64) -> u64 {
        let ns = (i128::from(distance) * i128::from(self.slope.cast_signed())) >> ONE;
        self.base_ns.wrapping_add_signed(ns as i64)
    }

    /// Returns the latest time at which a frame can have been received when the host's monotonic
    /// clock shows `mono_ns`.
    ///
    /// A device whose clock has jumped makes later stamps until the jump is detected.
    #[inline]
    #[must_use]
    pub fn latest(&self, mono_ns: u64) -> u64 {
        if self.base_mono_ns == 0 {
            return u64::MAX;
        }
        let elapsed = mono_ns.saturating_sub(self.base_mono_ns);
        // The line runs at most a thousandth faster than the host's clock.
        self.base_ns
            .saturating_add(elapsed + elapsed / 1000 + AHEAD_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stamp form of a device counter with 64 valid bits.
    const ALL: StampForm = StampForm::Ticks { unused: 0 };

    #[test]
    fn a_line_counts_nanoseconds() {
        let gigahertz = Conversion::new(ALL, 1_000, 5_000_000_000, 1.0);
        assert_eq!(gigahertz.ns(1_000), 5_000_000_000);
        assert_eq!(gigahertz.ns(1_001), 5_000_000_001);
        assert_eq!(gigahertz.ns(999), 4_999_999_999);
        let slow = Conversion::new(ALL, 0, 0, 6.4);
        assert!(slow.ns(1_000_000_000).abs_diff(6_400_000_000) <= 1);
        // One day before and after the line's start.
        let day = 86_400_000_000_000;
        let late = Conversion::new(ALL, day, 2 * day, 1.000_001);
        assert!(late.ns(2 * day).abs_diff(3 * day + 86_400_000) <= 1);
        assert!(late.ns(0).abs_diff(day - 86_400_000) <= 1);
        // Distances around the limit of the fast path.
        let (base, near) = (
            Conversion::new(ALL, 1 << 60, 1 << 60, 1.0),
            1 << (63 - SPARE),
        );
        for distance in [near - 1, near, near + 1] {
            let (later, earlier) = ((1 << 60) + distance, (1 << 60) - distance);
            assert_eq!([base.ns(later), base.ns(earlier)], [later, earlier]);
        }
        let slowest = Conversion::new(ALL, 0, 0, 1e9);
        assert_eq!(slowest.ns(1 << 20), (128 << 20) - 1, "largest slope");
    }

    #[test]
    fn a_line_wraps_with_the_counter() {
        let line = Conversion::new(ALL, u64::MAX - 5, 1_000, 1.0);
        assert_eq!(line.ns(4), 1_010);
        let narrow = Conversion::new(StampForm::ticks((1 << 40) - 1), (1 << 40) - 6, 1_000, 1.0);
        assert_eq!(narrow.ns(4), 1_010);
        assert_eq!(narrow.ns((1 << 40) - 7), 999);
        assert_eq!(narrow.ns(4 | 0xff << 40), 1_010, "unused bits are ignored");
    }

    #[test]
    fn real_time_stamps_have_seconds_and_nanoseconds() {
        let now = 1_700_000_000_999_999_999;
        let line = Conversion::new(StampForm::RealTime, real_time(now), now, 1.0);
        assert_eq!(line.ns(real_time(now)), now);
        assert_eq!(line.ns(real_time(now + 2)), now + 2);
        assert_eq!(line.ns(real_time(now - 1_000_000_000)), now - 1_000_000_000);
        // A clock that has not been set.
        assert_eq!(line.ns(real_time(5)), 5);
    }

    #[test]
    fn utc_stamps_are_distinguished_from_ticks() {
        let now = 1_790_000_000_123_456_789;
        // Counters that began at power-up, and one that shows nanoseconds since 1970.
        for (ticks, ns_per_tick) in [(5_000_000_000, 1.0), (77, 6.4), (now, 1.0)] {
            let line = Conversion::new(ALL, ticks, now, ns_per_tick);
            for stamp in [ticks, ticks + 1_000_000_000, ticks - 70] {
                assert!(!line.is_utc_stamp(stamp, now), "{stamp}");
            }
            assert!(line.is_utc_stamp(real_time(now), now));
            assert!(line.is_utc_stamp(real_time(now + 37_000_000_000), now));
            assert!(!line.is_utc_stamp(real_time(now) | 0xffff_ffff, now));
            assert!(!line.is_utc_stamp(real_time(5), now), "not set");
        }
        let utc = Conversion::utc(now - 5_000_000_000);
        assert!(!utc.is_utc_stamp(real_time(now), now));
        assert_eq!(utc.ns(real_time(now)), now);
        let shared = SharedConversion::new(Conversion::new(ALL, 7, now, 1.0));
        assert!(shared.switch_to_utc() && !shared.switch_to_utc());
        assert_eq!(shared.load().ns(real_time(now + 9)), now + 9);
    }

    #[test]
    fn frames_are_received_no_later_than_now() {
        let line = Conversion::new(ALL, 0, 5_000_000_000, 1.0);
        assert_eq!(line.latest(1), u64::MAX, "does not follow the host");
        let held = line.held_from(1_000);
        let now = held.latest(1_000_001_000);
        assert!((6_000_000_000..6_100_000_000).contains(&now), "{now}");
    }

    #[test]
    fn a_shared_line_is_read_consistently() {
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
