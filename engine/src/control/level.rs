//! How many receives an SRQ has: decisions alone, without a verb, so that each way can be tested.
//!
//! The low watermark is a quarter of the size. Each time it is reached the SRQ was nearly empty: it doubles, up to the
//! cap. After a calm time it halves, down to the size it began with. A device that resizes nothing has the cap's size
//! from the start.

use std::time::{Duration, Instant};

/// An SRQ's size and where it is heading.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    floor: u32,
    cap: u32,
    size: u32,
    resizes: bool,
    calm: Duration,
    /// When the watermark was last reached, or the size last changed.
    since: Instant,
}

impl Level {
    /// Begins with `floor` receives where the device resizes, else with `cap`.
    #[must_use]
    pub fn new(floor: u32, cap: u32, resizes: bool, calm: Duration, now: Instant) -> Self {
        let cap = cap.max(1);
        let floor = floor.clamp(1, cap);
        Self {
            floor,
            cap,
            size: if resizes { floor } else { cap },
            resizes,
            calm,
            since: now,
        }
    }

    /// Receives to hold.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The low watermark to arm.
    #[must_use]
    pub fn limit(&self) -> u32 {
        (self.size / 4).max(1)
    }

    /// Whether the device resizes, as far as is known.
    #[must_use]
    pub fn resizes(&self) -> bool {
        self.resizes
    }

    /// The watermark was reached: the size to grow to, if it is to grow.
    pub fn reached(&mut self, now: Instant) -> Option<u32> {
        self.since = now;
        let larger = self.size.saturating_mul(2).min(self.cap);
        (self.resizes && larger > self.size).then_some(larger)
    }

    /// The size to shrink to, if it has been calm.
    #[must_use]
    pub fn calmed(&self, now: Instant) -> Option<u32> {
        let smaller = (self.size / 2).max(self.floor);
        let calm = now.saturating_duration_since(self.since) >= self.calm;
        (self.resizes && calm && smaller < self.size).then_some(smaller)
    }

    /// When to ask [`Level::calmed`] again.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        (self.resizes && self.size > self.floor)
            .then(|| (self.since + self.calm).saturating_duration_since(now))
    }

    /// It has this size from now on: what the device gave, which may be more than was asked for.
    pub fn resized(&mut self, size: u32, now: Instant) {
        self.size = size.clamp(1, self.cap);
        self.since = now;
    }

    /// The device refused to resize, whatever its capabilities say: it is not asked again.
    pub fn refused(&mut self) {
        self.resizes = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Duration = Duration::from_secs(30);

    #[test]
    fn it_grows_when_it_runs_low_and_shrinks_when_calm() {
        let start = Instant::now();
        let mut level = Level::new(16, 100, true, CALM, start);
        assert_eq!((level.size(), level.limit()), (16, 4));
        for size in [32, 64, 100] {
            assert_eq!(level.reached(start), Some(size));
            level.resized(size, start);
        }
        assert_eq!(level.reached(start), None, "the cap is reached");
        assert_eq!(level.calmed(start + CALM / 2), None);
        let mut now = start;
        for size in [50, 25, 16] {
            assert_eq!(level.wait(now), Some(CALM));
            now += CALM;
            assert_eq!(level.calmed(now), Some(size));
            level.resized(size, now);
        }
        assert_eq!(level.calmed(now + CALM), None);
        assert_eq!(level.wait(now), None);
    }

    #[test]
    fn what_the_device_gives_is_honoured_up_to_the_cap() {
        let now = Instant::now();
        let mut level = Level::new(16, 100, true, CALM, now);
        level.resized(31, now);
        assert_eq!((level.size(), level.limit()), (31, 7));
        level.resized(127, now);
        assert_eq!(level.size(), 100);
    }

    #[test]
    fn a_device_that_resizes_nothing_has_all_from_the_start() {
        let now = Instant::now();
        let mut level = Level::new(16, 100, false, CALM, now);
        assert_eq!((level.size(), level.limit()), (100, 25));
        assert_eq!(level.reached(now), None);
        assert_eq!(level.calmed(now + CALM), None);

        let mut level = Level::new(16, 100, true, CALM, now);
        assert_eq!(level.reached(now), Some(32));
        level.refused();
        assert_eq!(level.reached(now), None);
        assert_eq!(level.size(), 16);
    }
}
