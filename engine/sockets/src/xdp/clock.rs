//! Conversion of the XDP program's stamps, which are of the monotonic clock, to the system's clock.

use wqcap_core::time::{monotonic_ns, system_ns};

/// Time in nanoseconds between two readings of a clock below which they count as not interrupted.
const UNDISTURBED_NS: u64 = 2_000;
/// Maximum number of attempts to read both clocks for one difference between them.
const READINGS: usize = 4;

/// Difference between the system's clock and the monotonic clock, read once for each batch of
/// frames, because the system's clock may be set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ArrivalClock {
    /// Time by the system's clock minus time by the monotonic clock in nanoseconds, modulo 2^64.
    ahead_ns: u64,
    /// System time of the last update in nanoseconds since 1970.
    now_ns: u64,
}

impl ArrivalClock {
    /// Reads the system's clock and the monotonic clock, and updates their difference.
    #[inline]
    pub(super) fn update(&mut self) {
        let mut best_ns = u64::MAX;
        for _ in 0..READINGS {
            let before = monotonic_ns();
            let now = system_ns();
            let took = monotonic_ns().saturating_sub(before);
            if took < best_ns {
                best_ns = took;
                self.ahead_ns = now.wrapping_sub(before + took / 2);
                self.now_ns = now;
            }
            if took < UNDISTURBED_NS {
                break;
            }
        }
    }

    /// Returns the time of arrival, in nanoseconds since 1970, of a frame that was stamped by the
    /// monotonic clock; without a stamp the time of the last update.
    #[inline]
    pub(super) fn arrival_ns(&self, stamp_ns: Option<u64>) -> u64 {
        stamp_ns.map_or(self.now_ns, |it| it.wrapping_add(self.ahead_ns))
    }
}
