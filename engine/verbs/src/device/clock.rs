//! What libmlx5 tells of the device's clock beyond the counter: the driver's own reckoning of it, and whether it can
//! stamp completions in real time.
//!
//! Sources: `infiniband/mlx5dv.h` (`mlx5dv_get_clock_info`, `mlx5dv_ts_to_ns`, `MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS`).

use super::context::Context;
use crate::{
    error::{VerbsError, answered},
    mlx5dv as ffi,
};
use std::{mem, thread, time::Duration};

/// Looks at the clock info before it is given up for this time. libmlx5 itself looks ten times in a row; the kernel
/// takes well below a microsecond to update it, unless the thread that does so was put aside in the middle.
const TRIES: u32 = 20;
/// Between two of them.
const PAUSE: Duration = Duration::from_micros(50);

/// What the driver takes the device's counter for: a line from ticks to nanoseconds since 1970, which PTP daemons
/// steer through the device's PTP clock. `struct mlx5dv_clock_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockInfo {
    /// The time at the line's start.
    nsec: u64,
    /// The counter at the line's start.
    last_cycles: u64,
    /// A fraction of a nanosecond at the line's start, of 2^`shift`.
    frac: u64,
    /// Nanoseconds a tick, of 2^`shift`.
    mult: u32,
    shift: u32,
    /// Bits of the counter.
    mask: u64,
}

impl ClockInfo {
    /// The time at a reading of the counter, on either side of the line's start.
    #[must_use]
    pub fn ns(&self, ticks: u64) -> u64 {
        let unused = self.mask.leading_zeros();
        let distance = (ticks.wrapping_sub(self.last_cycles) << unused) as i64 >> unused;
        let scaled = i128::from(distance) * i128::from(self.mult) + i128::from(self.frac);
        let ns = (scaled >> self.shift) as i64;
        self.nsec.wrapping_add_signed(ns)
    }

    /// Nanoseconds a tick.
    #[must_use]
    pub fn ns_per_tick(&self) -> f64 {
        f64::from(self.mult) / 2f64.powi(i32::try_from(self.shift).unwrap_or(0))
    }
}

impl Context {
    /// The driver's reckoning of the device's clock. The kernel may be about to change it: then a few more looks
    /// follow, a millisecond's worth.
    ///
    /// # Errors
    /// EOPNOTSUPP and EINVAL where the device or the driver has none; EBUSY when it was being changed at every look.
    pub fn clock_info(&self) -> Result<ClockInfo, VerbsError> {
        // SAFETY: plain integers.
        let mut info: ffi::mlx5dv_clock_info = unsafe { mem::zeroed() };
        let mut look = || {
            // SAFETY: a live context and a struct that outlives the call; the library asks the provider first.
            unsafe { ffi::mlx5dv_get_clock_info(self.0.raw.cast(), &raw mut info) }
        };
        let mut errno = look();
        for _ in 1..TRIES {
            if errno != libc::EBUSY {
                break;
            }
            thread::sleep(PAUSE);
            errno = look();
        }
        answered(errno, "mlx5dv_get_clock_info", || self.name().into())?;
        Ok(ClockInfo {
            nsec: info.nsec,
            last_cycles: info.last_cycles,
            frac: info.frac,
            mult: info.mult,
            shift: info.shift.min(63),
            // A counter without bits is none.
            mask: info.mask.max(1),
        })
    }

    /// Whether completions can be stamped in UTC by the device itself.
    #[must_use]
    pub fn stamps_real_time(&self) -> bool {
        self.mlx5_attributes(0)
            .is_some_and(|it| it.flags & u64::from(ffi::MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_on_either_side_and_across_the_counter_s_end() {
        let info = ClockInfo {
            nsec: 1_000_000,
            last_cycles: 2,
            frac: 0,
            mult: 32 << 20,
            shift: 22,
            mask: (1 << 48) - 1,
        };
        // 8 ns a tick.
        assert!((info.ns_per_tick() - 8.0).abs() < f64::EPSILON);
        assert_eq!(info.ns(2), 1_000_000);
        assert_eq!(info.ns(12), 1_000_080);
        assert_eq!(info.ns((1 << 48) - 8), 1_000_000 - 80);
        // What stands above the counter's bits is nothing.
        assert_eq!(info.ns(12 | 0xabc << 48), 1_000_080);
    }
}
