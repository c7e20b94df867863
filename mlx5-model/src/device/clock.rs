//! The NIC's clock, and the two pages through which programs read it.
//!
//! Imports `abi` and `process`. Invariants:
//! - The device's own time never steps back.
//! - The time that the clock shows begins at the host's time. It then drifts from it as a NIC's
//!   does, and steps only by [`Clock::jump`].
//! - Only the holder of the device refreshes the pages: the counter at each tick, the info page as
//!   rarely as a driver does.
//! - The device has its own mappings, because libmlx5 unmaps its mappings before it closes the
//!   device.
//!
//! The info page describes the clock as a driver would that assumes the nominal rate. UTC is a
//! second clock, which belongs to the device and not to the function. No page shows it:
//! `mlx5_update_clock_info_page` describes the function's counter, while
//! `mlx5_ptp_adjfreq_real_time` and `mlx5_ptp_settime_real_time`, possibly of another function, set
//! UTC.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::time::{ClockId, clock_gettime};

use crate::abi::bytes_of;
use crate::abi::{self, mlx5_ib_clock_info};
use crate::process::{Errno, MapRequest, real, refuse_if};

/// Size in bytes of every page that a program maps from the modelled device.
pub const PAGE: usize = 4096;
/// Value of `mlx5_ib_clock_info.shift`: its field `mult` has 24 fractional bits.
const SHIFT: u32 = 24;

/// Interval between updates of the clock info page in nanoseconds. A driver updates the page before
/// the clock's counter exceeds `mult`, with interrupts off. The device's thread can be preempted
/// during an update, and then every reader has to retry; so updates are rare.
const REFRESH_NS: u64 = 1_000_000_000;

/// Page of memory that the modelled device writes and programs map read-only.
pub struct Page {
    file: OwnedFd,
    base: *mut u8,
}

// SAFETY: the mapping lives as long as the page, and only the thread that holds the device stores
// to it, through atomics.
unsafe impl Send for Page {}

impl Page {
    fn new(name: &CStr) -> Result<Self, Errno> {
        let file = real::memfd(name, PAGE)?;
        let base = real::map_shared(file.as_raw_fd(), PAGE)?;
        Ok(Self {
            file,
            base: base.cast(),
        })
    }

    /// Maps a page of the modelled device into the program. Fails with `EPERM` for a writable
    /// mapping, as the driver does.
    pub fn map(&self, request: MapRequest) -> Result<*mut c_void, Errno> {
        refuse_if(request.prot & libc::PROT_WRITE != 0, libc::EPERM)?;
        let shared = MapRequest {
            flags: libc::MAP_SHARED | request.flags & libc::MAP_FIXED,
            offset: 0,
            ..request
        };
        real::mmap(self.file.as_raw_fd(), shared)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the page is mapped, aligned and PAGE long; a multiple of 8 below that is the
        // offset of an aligned u64.
        unsafe { &*self.base.add(offset % PAGE / 8 * 8).cast::<AtomicU64>() }
    }

    fn half(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as above, for 4 bytes.
        unsafe { &*self.base.add(offset % PAGE / 4 * 4).cast::<AtomicU32>() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this page, and nothing borrows it any more.
        unsafe { libc::munmap(self.base.cast(), PAGE) };
    }
}

/// Clock readings for one burst of frames: device time, shown time and UTC.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// The device's own time in nanoseconds, for pacing and timeouts.
    pub ns: u64,
    /// Time that the device's clock shows to programs, for timestamps. It differs from `ns` if the
    /// clock drifts or has jumped.
    pub shown_ns: u64,
    /// Rate of the device's clock in kHz, the unit of timestamps.
    pub khz: u64,
    /// Lead of UTC over the time that the device's clock shows, in nanoseconds.
    pub utc_ahead_ns: i64,
}

impl Now {
    /// Converts a time in nanoseconds to the value of the device clock's counter, as in the
    /// timestamp of a completion.
    #[inline]
    pub fn cycles(&self, ns: u64) -> u64 {
        cycles(self.khz, ns)
    }

    /// Converts a time that the device's clock shows to UTC.
    #[inline]
    pub fn utc_ns(&self, shown_ns: u64) -> u64 {
        shown_ns.saturating_add_signed(self.utc_ahead_ns)
    }
}

#[inline]
fn cycles(khz: u64, ns: u64) -> u64 {
    if khz == 1_000_000 {
        ns
    } else {
        (u128::from(ns) * u128::from(khz) / 1_000_000) as u64
    }
}

/// Clock of a modelled device, with the pages that show it to programs.
pub struct Clock {
    khz: u64,
    /// Host time when the device's clock began, in nanoseconds since 1970.
    epoch_ns: u64,
    /// Value of the host's raw monotonic clock when the device's clock began, in nanoseconds.
    began: u64,
    now_ns: u64,
    /// Sum of the jumps of the device's clock in nanoseconds.
    jumped_ns: i64,
    /// Rate error of the device's clock in parts per million.
    drift_ppm: i32,
    /// Lead of UTC over the device's clock when that clock began, in nanoseconds.
    utc_offset_ns: i64,
    /// Rate difference of UTC to the device's clock in parts per million.
    utc_drift_ppm: i32,
    /// Time until which the clock info page reads as in the middle of an update (the fault
    /// `clock_busy`).
    updating_until_ns: u64,
    /// Time of the next update of the clock info page.
    refresh_ns: u64,
    /// Page with the device clock's counter: PRM "Initialization segment", `internal_timer_h` and
    /// `_l`, two big-endian words.
    counter: Page,
    /// Clock info page, with `struct mlx5_ib_clock_info`.
    info: Page,
}

impl Clock {
    /// Creates a device clock that begins at host time, with a nominal rate of `khz` and a rate
    /// error of `drift_ppm`. Fails when there is no memory for the clock's pages.
    pub fn new(khz: u64, drift_ppm: i32) -> Result<Self, Errno> {
        let epoch_ns = read_clock(ClockId::Realtime);
        let mut clock = Self {
            khz: khz.max(1),
            epoch_ns,
            began: read_clock(ClockId::MonotonicRaw),
            now_ns: epoch_ns,
            jumped_ns: 0,
            drift_ppm,
            utc_offset_ns: 0,
            utc_drift_ppm: 0,
            updating_until_ns: 0,
            refresh_ns: 0,
            counter: Page::new(c"mlx5-core-clock")?,
            info: Page::new(c"mlx5-clock-info")?,
        };
        clock.write_constants();
        clock.refresh_pages();
        Ok(clock)
    }

    /// Returns the device clock with a second clock for UTC, which begins `offset_ns` ahead of the
    /// device clock and has a rate difference of `drift_ppm`.
    pub fn with_utc(self, offset_ns: i64, drift_ppm: i32) -> Self {
        Self {
            utc_offset_ns: offset_ns,
            utc_drift_ppm: drift_ppm,
            ..self
        }
    }

    fn write_constants(&self) {
        let info = mlx5_ib_clock_info {
            mult: (((1_000_000u64 << SHIFT) + self.khz / 2) / self.khz) as u32,
            shift: SHIFT,
            mask: u64::MAX,
            // Period after which the driver would have to refresh: never, with a counter of 64
            // bits.
            overflow_period: u64::MAX,
            ..mlx5_ib_clock_info::default()
        };
        for (index, chunk) in bytes_of(&info).chunks_exact(8).enumerate() {
            if let Ok(bytes) = chunk.try_into() {
                self.info
                    .word(index * 8)
                    .store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            }
        }
    }

    /// Advances the device's clock to the host's time and refreshes its pages. Returns the device's
    /// time in nanoseconds.
    pub fn tick(&mut self) -> u64 {
        self.advance(read_clock(ClockId::MonotonicRaw).saturating_sub(self.began))
    }

    /// Sets the device's clock to `elapsed` ns after its beginning, as [`Clock::tick`] does.
    /// Returns the device's time in nanoseconds.
    fn advance(&mut self, elapsed: u64) -> u64 {
        self.now_ns = self.now_ns.max(self.epoch_ns + elapsed);
        self.refresh_pages();
        self.now_ns
    }

    /// Stores the device's time in the clock's counter page, and in its info page if an update is
    /// due.
    fn refresh_pages(&mut self) {
        let shown_ns = self.shown_ns();
        let cycles = cycles(self.khz, shown_ns);
        // One store, because the reader's two words must agree.
        self.counter
            .word(0)
            .store(cycles.to_be(), Ordering::Release);
        if self.now_ns >= self.refresh_ns {
            self.refresh_info(shown_ns, cycles);
        }
    }

    /// Updates the clock info page, unless it must read as in the middle of an update.
    #[cold]
    fn refresh_info(&mut self, shown_ns: u64, cycles: u64) {
        let sign = self.info.half(offset_of!(mlx5_ib_clock_info, sign));
        let count = sign.load(Ordering::Relaxed);
        let updating = abi::MLX5_IB_CLOCK_INFO_KERNEL_UPDATING;
        sign.store(count | updating, Ordering::Relaxed);
        if self.now_ns < self.updating_until_ns {
            return;
        }
        fence(Ordering::Release);
        self.info
            .word(offset_of!(mlx5_ib_clock_info, nsec))
            .store(shown_ns, Ordering::Relaxed);
        self.info
            .word(offset_of!(mlx5_ib_clock_info, cycles))
            .store(cycles, Ordering::Relaxed);
        sign.store((count & !updating).wrapping_add(2), Ordering::Release);
        self.refresh_ns = self.now_ns + REFRESH_NS;
    }

    /// Returns the time that the device's clock showed at its last tick.
    pub fn shown_ns(&self) -> u64 {
        self.now_ns
            .saturating_add_signed(self.drifted(self.drift_ppm))
            .saturating_add_signed(self.jumped_ns)
    }

    /// Returns the lead of UTC over the device's clock at the clock's last tick.
    fn utc_ahead_ns(&self) -> i64 {
        self.utc_offset_ns
            .saturating_add(self.drifted(self.utc_drift_ppm))
    }

    /// Returns the drift in nanoseconds that a rate error of `ppm` parts per million has
    /// accumulated by the clock's last tick.
    fn drifted(&self, ppm: i32) -> i64 {
        const MILLION: i64 = 1_000_000;
        let elapsed = (self.now_ns - self.epoch_ns).cast_signed();
        // Computed in two parts of the same sign: the product would need a 128-bit division at each
        // tick.
        elapsed / MILLION * i64::from(ppm) + elapsed % MILLION * i64::from(ppm) / MILLION
    }

    /// Returns the clock readings for a burst of frames that begins at the clock's last tick.
    pub fn burst(&self) -> Now {
        Now {
            ns: self.now_ns,
            shown_ns: self.shown_ns(),
            khz: self.khz,
            utc_ahead_ns: self.utc_ahead_ns(),
        }
    }

    /// Leaves the clock info page in the middle of an update for `for_ns`: readers have to retry.
    pub fn keep_updating(&mut self, for_ns: u64) {
        self.updating_until_ns = self.now_ns.saturating_add(for_ns);
        self.refresh_ns = self.now_ns;
        self.refresh_pages();
    }

    /// Steps the time that the device's clock shows by `ns` nanoseconds.
    pub fn jump(&mut self, ns: i64) {
        self.jumped_ns = self.jumped_ns.saturating_add(ns);
        self.refresh_ns = self.now_ns;
        self.refresh_pages();
    }

    /// Returns the device's time at the clock's last tick, in ns since 1970.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns the page with the device clock's counter (`MLX5_IB_MMAP_CORE_CLOCK`).
    pub fn counter(&self) -> &Page {
        &self.counter
    }

    /// Returns the clock info page (`MLX5_IB_MMAP_CLOCK_INFO`).
    pub fn info(&self) -> &Page {
        &self.info
    }
}

fn read_clock(id: ClockId) -> u64 {
    let now = clock_gettime(id);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn counter(clock: &Clock) -> u64 {
        u64::from_be(clock.counter.word(0).load(Ordering::Relaxed))
    }

    /// Returns time and counter of the info page.
    fn info(clock: &Clock) -> [u64; 2] {
        [8, 16].map(|at| clock.info.word(at).load(Ordering::Relaxed))
    }

    fn sign(clock: &Clock) -> u32 {
        clock.info.half(0).load(Ordering::Relaxed)
    }

    #[test]
    fn time_follows_the_host_and_does_not_step() {
        let mut clock = Clock::new(1_000_000, 0).unwrap();
        let since = |clock: &Clock| read_clock(ClockId::MonotonicRaw) - clock.began;
        for _ in 0..100 {
            let before = since(&clock);
            let passed = clock.tick() - clock.epoch_ns;
            assert!((before..=since(&clock)).contains(&passed));
        }
        let now = clock.now_ns();
        assert_eq!(clock.advance(0), now, "time does not step back");
    }

    #[test]
    fn pages_follow_the_clock() {
        let mut clock = Clock::new(1_000_000, 0).unwrap();
        let first = clock.now_ns();
        assert_eq!(clock.advance(REFRESH_NS - 1), first + REFRESH_NS - 1);
        assert_eq!(counter(&clock), first + REFRESH_NS - 1);
        // The info page is from the beginning, and converts any counter to the same time.
        assert_eq!(info(&clock), [first; 2]);
        let last = clock.advance(REFRESH_NS);
        assert_eq!((counter(&clock), info(&clock)), (last, [last; 2]));
        assert_eq!(sign(&clock) & 1, 0, "not being updated");
        assert_eq!(clock.refresh_ns, last + REFRESH_NS);
    }

    #[test]
    fn a_jump_changes_only_the_shown_time() {
        let mut clock = Clock::new(1_000_000, 0).unwrap();
        for jump in [5_000_000_000, -9_000_000_000, i64::MIN, i64::MAX] {
            let before = clock.now_ns();
            clock.jump(jump);
            assert!(clock.now_ns() >= before);
            let shown = clock.shown_ns();
            assert_eq!((counter(&clock), info(&clock)), (shown, [shown; 2]));
        }
        let mut clock = Clock::new(1_000_000, 0).unwrap();
        clock.jump(-7);
        assert_eq!(clock.shown_ns(), clock.now_ns() - 7);
    }

    #[test]
    fn a_drifting_clock_departs_from_host_time() {
        for (drift, ahead) in [(-200, -1_000_000), (10_000, 50_000_000)] {
            let mut clock = Clock::new(1_000_000, drift).unwrap();
            clock.advance(5 * SECOND);
            let shown = clock.shown_ns();
            assert_eq!(
                shown,
                (clock.epoch_ns + 5 * SECOND).wrapping_add_signed(ahead)
            );
            assert_eq!((counter(&clock), info(&clock)), (shown, [shown; 2]));
        }
    }

    #[test]
    fn utc_departs_from_the_clock_and_no_page_shows_it() {
        let mut clock = Clock::new(1_000_000, 100).unwrap().with_utc(-7, -200);
        let begun = clock.burst();
        assert_eq!(begun.utc_ns(begun.shown_ns), begun.shown_ns - 7);
        clock.advance(5 * SECOND);
        let now = clock.burst();
        assert_eq!(now.shown_ns, clock.epoch_ns + 5 * SECOND + 500_000);
        assert_eq!(now.utc_ns(now.shown_ns), now.shown_ns - 1_000_007);
        assert_eq!(
            (counter(&clock), info(&clock)),
            (now.shown_ns, [now.shown_ns; 2])
        );
    }

    #[test]
    fn a_long_update_is_visible_and_ends() {
        let mut clock = Clock::new(1_000_000, 0).unwrap();
        let before = info(&clock);
        clock.keep_updating(1_000_000);
        clock.advance(999_999);
        assert_eq!((sign(&clock) & 1, info(&clock)), (1, before));
        let now = clock.advance(1_000_000);
        assert_eq!((sign(&clock) & 1, info(&clock)), (0, [now; 2]));
    }

    #[test]
    fn other_rates_convert_back_by_mult_and_shift() {
        let clock = Clock::new(156_250, 0).unwrap();
        let ns = clock.now_ns();
        let cycles = cycles(clock.khz, ns + 1_000_000_000) - cycles(clock.khz, ns);
        assert!((156_249_999..=156_250_001).contains(&cycles));
        let mult = u64::from(
            clock
                .info
                .half(offset_of!(mlx5_ib_clock_info, mult))
                .load(Ordering::Relaxed),
        );
        let back = (cycles * mult) >> SHIFT;
        assert!(back.abs_diff(1_000_000_000) < 100, "{back}");
    }

    #[test]
    fn the_pages_cannot_be_mapped_for_writing() {
        let clock = Clock::new(1_000_000, 0).unwrap();
        let request = |prot| MapRequest {
            addr: std::ptr::null_mut(),
            len: PAGE,
            prot,
            flags: libc::MAP_SHARED,
            offset: 0,
        };
        let writable = clock.counter().map(request(libc::PROT_WRITE));
        assert_eq!(writable.unwrap_err(), libc::EPERM);
        let at = clock.info().map(request(libc::PROT_READ)).unwrap();
        // SAFETY: mapped just now.
        unsafe { libc::munmap(at, PAGE) };
    }
}
