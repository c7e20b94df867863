//! Conversion of the kernel's time stamps to arrival times by the NIC's clock.
//!
//! Imports nothing of the NIC. The NIC's clock runs at the rate of the host's raw monotonic clock,
//! from another start. The difference of the two is constant, but they are read one after the
//! other, so the smallest difference of all readings is the most accurate. The kernel's clock is
//! adjusted and may be set, so it is read again in each burst.

use rustix::time::{ClockId, clock_gettime};

/// Converter of one wire's frame times, from the kernel's time stamps to the NIC's clock.
pub(super) struct Arrivals {
    /// Host clock that the kernel's time stamps of frames come from.
    kernel: ClockId,
    /// Lead of the host's raw monotonic clock over the NIC's clock in nanoseconds, the smallest one
    /// read.
    raw_ahead_ns: i64,
    /// Lead of the host clock of the kernel's time stamps over the NIC's clock in this burst, in
    /// nanoseconds.
    ahead_ns: i64,
    /// Time of this burst of frames by the NIC's clock.
    now_ns: u64,
}

impl Arrivals {
    pub(super) fn new(kernel: ClockId) -> Arrivals {
        Arrivals {
            kernel,
            raw_ahead_ns: i64::MAX,
            ahead_ns: 0,
            now_ns: 0,
        }
    }

    /// Begins a burst of frames at `now_ns`, a time of the NIC's clock that was read before this
    /// call.
    pub(super) fn begin(&mut self, now_ns: u64) {
        let (raw, kernel) = (read(ClockId::MonotonicRaw), read(self.kernel));
        self.record_readings(now_ns, raw, kernel);
    }

    fn record_readings(&mut self, now_ns: u64, raw: i64, kernel: i64) {
        self.raw_ahead_ns = self.raw_ahead_ns.min(raw - now_ns.cast_signed());
        self.ahead_ns = self.raw_ahead_ns + (kernel - raw);
        self.now_ns = now_ns;
    }

    /// Converts the kernel's stamp of a frame to its arrival time by the NIC's clock, at most the
    /// time of the burst.
    #[inline]
    pub(super) fn came_ns(&self, stamp_ns: u64) -> u64 {
        let came = stamp_ns.cast_signed().saturating_sub(self.ahead_ns);
        // 0 would mean that the frame arrived with the burst.
        came.max(1).cast_unsigned().min(self.now_ns)
    }
}

/// Returns the time of the host clock `id` in nanoseconds.
fn read(id: ClockId) -> i64 {
    let now = clock_gettime(id);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn stamps_are_converted_to_the_nics_clock_and_never_later_than_the_burst() {
        let mut it = Arrivals::new(ClockId::Realtime);
        // The NIC's clock is at 1,000 s, the raw clock at 5 s, the kernel's at 9,000 s; the reading
        // took 300 ns.
        it.record_readings(
            1_000 * SECOND as u64,
            5 * SECOND + 300,
            9_000 * SECOND + 300,
        );
        // A second later, read without a delay.
        it.record_readings(1_001 * SECOND as u64, 6 * SECOND, 9_001 * SECOND);
        let came = it.came_ns((9_001 * SECOND - 2_000) as u64);
        assert_eq!(came, (1_001 * SECOND - 2_000) as u64);
        // Read with a delay, but the difference of the clocks is already known.
        it.record_readings(
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
    fn a_kernel_clock_that_was_set_takes_effect_at_once() {
        let mut it = Arrivals::new(ClockId::Realtime);
        it.record_readings(1_000 * SECOND as u64, 5 * SECOND, 9_000 * SECOND);
        it.record_readings(1_001 * SECOND as u64, 6 * SECOND, 500 * SECOND);
        let came = it.came_ns((500 * SECOND - 7) as u64);
        assert_eq!(came, (1_001 * SECOND - 7) as u64);
    }

    #[test]
    fn the_hosts_own_clocks_agree() {
        for kernel in [ClockId::Realtime, ClockId::Monotonic] {
            let mut it = Arrivals::new(kernel);
            let now_ns = read(ClockId::MonotonicRaw).cast_unsigned();
            let stamp = read(kernel).cast_unsigned();
            it.begin(now_ns);
            let came = it.came_ns(stamp);
            assert!(now_ns.abs_diff(came) < SECOND as u64, "{now_ns} {came}");
        }
    }
}
