//! Sizing of an SRQ: decisions only, without verbs, so that every case can be tested.
//!
//! The limit (low watermark) is a quarter of the size. When it is reached, the SRQ was nearly
//! empty: the size doubles, up to the cap. After a calm time, the size halves, down to the initial
//! size. On a device that does not resize SRQs, the size is the cap from the start.

use std::time::{Duration, Instant};

/// Size of the shared receive queue (SRQ) of RDMA clients in WRs, and the decisions to change it.
#[derive(Clone, Copy, Debug)]
pub struct SrqSizing {
    floor: u32,
    cap: u32,
    size: u32,
    resizes: bool,
    calm: Duration,
    /// Time at which the SRQ last reached its limit (low watermark), or its size last changed.
    since: Instant,
}

impl SrqSizing {
    /// Creates the sizing of an SRQ, which begins with `floor` WRs if the device resizes SRQs,
    /// otherwise with `cap` WRs.
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

    /// Returns the number of receive WRs to keep posted to the SRQ.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the limit (low watermark) in WRs at which the SRQ is to report an event.
    #[must_use]
    pub fn limit(&self) -> u32 {
        (self.size / 4).max(1)
    }

    /// Returns `true` if the device resizes SRQs, according to its capabilities and to all attempts
    /// so far.
    #[must_use]
    pub fn resizes(&self) -> bool {
        self.resizes
    }

    /// Records that the SRQ reached its limit (low watermark). Returns the number of WRs to which
    /// the SRQ grows; `None`: it does not grow.
    pub fn limit_reached(&mut self, now: Instant) -> Option<u32> {
        self.since = now;
        let larger = self.size.saturating_mul(2).min(self.cap);
        (self.resizes && larger > self.size).then_some(larger)
    }

    /// Returns the number of WRs to which the SRQ shrinks after a calm time without a reached
    /// limit; `None`: it does not shrink.
    #[must_use]
    pub fn shrink_to(&self, now: Instant) -> Option<u32> {
        let smaller = (self.size / 2).max(self.floor);
        let calm = now.saturating_duration_since(self.since) >= self.calm;
        (self.resizes && calm && smaller < self.size).then_some(smaller)
    }

    /// Returns the time until [`SrqSizing::shrink_to`] may have a new result; `None`: the SRQ
    /// cannot shrink.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        (self.resizes && self.size > self.floor)
            .then(|| (self.since + self.calm).saturating_duration_since(now))
    }

    /// Records the size in WRs that the device gave the SRQ, which may be more than requested.
    pub fn resized(&mut self, size: u32, now: Instant) {
        self.size = size.clamp(1, self.cap);
        self.since = now;
    }

    /// Records that the device refused to resize the SRQ, contrary to its capabilities, so that no
    /// further attempt is made.
    pub fn refused(&mut self) {
        self.resizes = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALM: Duration = Duration::from_secs(30);

    #[test]
    fn the_size_grows_when_low_and_shrinks_when_calm() {
        let start = Instant::now();
        let mut sizing = SrqSizing::new(16, 100, true, CALM, start);
        assert_eq!((sizing.size(), sizing.limit()), (16, 4));
        for size in [32, 64, 100] {
            assert_eq!(sizing.limit_reached(start), Some(size));
            sizing.resized(size, start);
        }
        assert_eq!(sizing.limit_reached(start), None, "the cap is reached");
        assert_eq!(sizing.shrink_to(start + CALM / 2), None);
        let mut now = start;
        for size in [50, 25, 16] {
            assert_eq!(sizing.wait(now), Some(CALM));
            now += CALM;
            assert_eq!(sizing.shrink_to(now), Some(size));
            sizing.resized(size, now);
        }
        assert_eq!(sizing.shrink_to(now + CALM), None);
        assert_eq!(sizing.wait(now), None);
    }

    #[test]
    fn the_granted_size_is_used_up_to_the_cap() {
        let now = Instant::now();
        let mut sizing = SrqSizing::new(16, 100, true, CALM, now);
        sizing.resized(31, now);
        assert_eq!((sizing.size(), sizing.limit()), (31, 7));
        sizing.resized(127, now);
        assert_eq!(sizing.size(), 100);
    }

    #[test]
    fn a_device_that_does_not_resize_has_the_cap_from_the_start() {
        let now = Instant::now();
        let mut sizing = SrqSizing::new(16, 100, false, CALM, now);
        assert_eq!((sizing.size(), sizing.limit()), (100, 25));
        assert_eq!(sizing.limit_reached(now), None);
        assert_eq!(sizing.shrink_to(now + CALM), None);

        let mut sizing = SrqSizing::new(16, 100, true, CALM, now);
        assert_eq!(sizing.limit_reached(now), Some(32));
        sizing.refused();
        assert_eq!(sizing.limit_reached(now), None);
        assert_eq!(sizing.size(), 16);
    }
}
