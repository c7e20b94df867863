//! When frames came, by the NIC's clock, of wires whose kernel tells it by one of its own.
//!
//! Imports nothing of the NIC. The NIC's clock runs as the host's raw one does, and begins elsewhere. How far they are apart
//! is a constant, but a look at both has something in between: the least difference of all looks is the truest. The
//! kernel's clock is steered, and may be set: it is looked at in each burst.

use rustix::time::{ClockId, clock_gettime};

/// Of one wire.
pub(super) struct Arrivals {
    /// The clock that the kernel stamps frames by.
    kernel: ClockId,
    /// How far the raw clock is ahead of the NIC's.
    raw_ahead_ns: i64,
    /// How far the kernel's clock is ahead of the NIC's in this burst, and the burst's time.
    ahead_ns: i64,
    now_ns: u64,
}

impl Arrivals {
    pub(super) fn by(kernel: ClockId) -> Arrivals {
        Arrivals {
            kernel,
            raw_ahead_ns: i64::MAX,
            ahead_ns: 0,
            now_ns: 0,
        }
    }

    /// Begins a burst at a time of the NIC's clock, which was read before.
    pub(super) fn begin(&mut self, now_ns: u64) {
        let (raw, kernel) = (read(ClockId::MonotonicRaw), read(self.kernel));
        self.see(now_ns, raw, kernel);
    }

    fn see(&mut self, now_ns: u64, raw: i64, kernel: i64) {
        self.raw_ahead_ns = self.raw_ahead_ns.min(raw - now_ns.cast_signed());
        self.ahead_ns = self.raw_ahead_ns + (kernel - raw);
        self.now_ns = now_ns;
    }

    /// When a frame came that the kernel stamped so, by the NIC's clock; with the burst at the latest.
    #[inline]
    pub(super) fn came_ns(&self, stamp_ns: u64) -> u64 {
        let came = stamp_ns.cast_signed().saturating_sub(self.ahead_ns);
        // 0 would be: with the burst.
        came.max(1).cast_unsigned().min(self.now_ns)
    }
}

fn read(id: ClockId) -> i64 {
    let now = clock_gettime(id);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn a_stamp_is_told_by_the_nics_clock_and_never_from_the_future() {
        let mut it = Arrivals::by(ClockId::Realtime);
        // The NIC's clock is at 1,000 s, the raw one at 5 s, the kernel's at 9,000 s; the look took 300 ns.
        it.see(
            1_000 * SECOND as u64,
            5 * SECOND + 300,
            9_000 * SECOND + 300,
        );
        // A second later, looked at once.
        it.see(1_001 * SECOND as u64, 6 * SECOND, 9_001 * SECOND);
        let came = it.came_ns((9_001 * SECOND - 2_000) as u64);
        assert_eq!(came, (1_001 * SECOND - 2_000) as u64);
        // Looked at late, but it is known by now how far the clocks are apart.
        it.see(
            1_002 * SECOND as u64,
            7 * SECOND + 900,
            9_002 * SECOND + 900,
        );
        let came = it.came_ns((9_002 * SECOND - 2_000) as u64);
        assert_eq!(came, (1_002 * SECOND - 2_000) as u64);
        assert_eq!(it.came_ns((9_003 * SECOND) as u64), 1_002 * SECOND as u64);
        assert_eq!(it.came_ns(0), 1);
        assert_eq!(it.came_ns(u64::MAX), 1);
    }

    #[test]
    fn a_clock_that_was_set_is_followed_at_once() {
        let mut it = Arrivals::by(ClockId::Realtime);
        it.see(1_000 * SECOND as u64, 5 * SECOND, 9_000 * SECOND);
        it.see(1_001 * SECOND as u64, 6 * SECOND, 500 * SECOND);
        let came = it.came_ns((500 * SECOND - 7) as u64);
        assert_eq!(came, (1_001 * SECOND - 7) as u64);
    }

    #[test]
    fn the_hosts_own_clocks_agree() {
        for kernel in [ClockId::Realtime, ClockId::Monotonic] {
            let mut it = Arrivals::by(kernel);
            let now_ns = read(ClockId::MonotonicRaw).cast_unsigned();
            let stamp = read(kernel).cast_unsigned();
            it.begin(now_ns);
            let came = it.came_ns(stamp);
            assert!(now_ns.abs_diff(came) < SECOND as u64, "{now_ns} {came}");
        }
    }
}
