//! Clock information of libmlx5 beyond the device's counter: the driver's conversion of ticks to
//! time, and the capability to stamp completions in real time.
//!
//! Sources: `infiniband/mlx5dv.h` (`mlx5dv_get_clock_info`, `mlx5dv_ts_to_ns`,
//! `MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS`).

use super::context::Context;
use crate::{
    error::{VerbsError, check_errno},
    mlx5dv as ffi,
};
use std::{mem, thread, time::Duration};

/// Number of attempts to read the clock info of the device. libmlx5 itself tries ten times in a
/// row. The kernel updates it in well below a microsecond, unless the updating thread is preempted
/// in the middle.
const TRIES: u32 = 20;
/// Pause between two attempts to read the clock info of the device.
const PAUSE: Duration = Duration::from_micros(50);

/// Driver's conversion of the device's counter: a line from ticks to nanoseconds since 1970, which
/// PTP daemons steer through the device's PTP clock (`struct mlx5dv_clock_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockInfo {
    /// Time at the start of the clock's conversion line, in nanoseconds since 1970.
    nsec: u64,
    /// Counter value at the start of the clock's conversion line.
    last_cycles: u64,
    /// Fraction of a nanosecond at the start of the clock's conversion line, in units of
    /// 2^-`shift`.
    frac: u64,
    /// Nanoseconds per tick of the device's counter, in units of 2^-`shift`.
    mult: u32,
    shift: u32,
    /// Mask of the bits of the device's counter.
    mask: u64,
}

impl ClockInfo {
    /// Returns the time in nanoseconds since 1970 at a counter value before or after the start of
    /// the clock's conversion line.
    #[must_use]
    pub fn ns(&self, ticks: u64) -> u64 {
        let unused = self.mask.leading_zeros();
        let distance = (ticks.wrapping_sub(self.last_cycles) << unused) as i64 >> unused;
        let scaled = i128::from(distance) * i128::from(self.mult) + i128::from(self.frac);
        let ns = (scaled >> self.shift) as i64;
        self.nsec.wrapping_add_signed(ns)
    }

    /// Returns the nanoseconds per tick of the device's counter.
    #[must_use]
    pub fn ns_per_tick(&self) -> f64 {
        f64::from(self.mult) / 2f64.powi(i32::try_from(self.shift).unwrap_or(0))
    }
}

impl Context {
    /// Reads the driver's conversion of the device's clock. While the kernel changes it, retries
    /// for about a millisecond.
    ///
    /// # Errors
    /// EOPNOTSUPP and EINVAL if the device or the driver has none; EBUSY if it was being changed at
    /// every attempt.
    pub fn clock_info(&self) -> Result<ClockInfo, VerbsError> {
        self.0
            .require_mlx5("mlx5dv_get_clock_info", || self.name().into())?;
        // SAFETY: plain integers.
        let mut info: ffi::mlx5dv_clock_info = unsafe { mem::zeroed() };
        let mut read = || {
            // SAFETY: a live context of libmlx5 and a struct that outlives the call.
            unsafe { ffi::mlx5dv_get_clock_info(self.0.raw.cast(), &raw mut info) }
        };
        let mut errno = read();
        for _ in 1..TRIES {
            if errno != libc::EBUSY {
                break;
            }
            thread::sleep(PAUSE);
            errno = read();
        }
        check_errno(errno, "mlx5dv_get_clock_info", || self.name().into())?;
        Ok(ClockInfo {
            nsec: info.nsec,
            last_cycles: info.last_cycles,
            frac: info.frac,
            mult: info.mult,
            shift: info.shift.min(63),
            // A mask of 0 would be a counter without bits.
            mask: info.mask.max(1),
        })
    }

    /// Returns `true` if the device can stamp completions in UTC.
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
    fn ticks_convert_on_both_sides_of_the_start_and_across_a_wrap() {
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
        // Bits above the counter's mask are ignored.
        assert_eq!(info.ns(12 | 0xabc << 48), 1_000_080);
    }
}
