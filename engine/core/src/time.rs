//! Clocks of the host, in nanoseconds.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read_ns(ClockId::Monotonic)
}

/// Returns the time of `CLOCK_MONOTONIC_COARSE` in nanoseconds: the monotonic clock at the kernel's
/// last tick, up to 10 ms ago. A call takes a few nanoseconds.
#[inline]
#[must_use]
pub fn coarse_ns() -> u64 {
    read_ns(ClockId::MonotonicCoarse)
}

/// Returns the time of the system clock in nanoseconds since 1970. It calls the standard library,
/// because rustix finds the vDSO by itself, which fails under valgrind.
#[must_use]
pub fn system_ns() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, nanos)
}

/// Converts a duration to nanoseconds, at most `u64::MAX`.
#[must_use]
pub fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[inline]
fn read_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
