//! Pacing of a wire with a constant rate, by the NIC's clock.
//!
//! Invariant: frame `k` after a start is due `k / pps` seconds after the start, rounded up to a
//! nanosecond. Rounding errors do not accumulate.

use std::num::NonZeroU64;

const NS: u128 = 1_000_000_000;

/// Constant frame rate of a paced wire, which starts with the wire's first burst.
#[derive(Clone, Debug)]
pub(super) struct FramePace {
    pps: NonZeroU64,
    /// Due time of the paced wire's first frame in nanoseconds, by the NIC's clock.
    start: Option<u64>,
    /// Number of frames taken from the paced wire since its `start`.
    sent: u64,
}

impl FramePace {
    pub(super) fn new(pps: NonZeroU64) -> FramePace {
        FramePace {
            pps,
            start: None,
            sent: 0,
        }
    }

    /// Returns the number of frames of a paced wire that are due at `now`. A wire that was not
    /// polled for a while catches up, because its frames were under way meanwhile.
    pub(super) fn due(&mut self, now: u64) -> u64 {
        let start = *self.start.get_or_insert(now);
        let elapsed = u128::from(now.saturating_sub(start));
        let allowed = elapsed * u128::from(self.pps.get()) / NS + 1;
        u64::try_from(allowed)
            .unwrap_or(u64::MAX)
            .saturating_sub(self.sent)
    }

    /// Adds `frames` to the number of frames taken from the paced wire.
    pub(super) fn count(&mut self, frames: usize) {
        self.sent += frames as u64;
    }

    /// Restarts the pace of a wire after the receiver has held it. The frame at the head is due at
    /// `now` and the others follow at the pace, as on a link that was paused. Due frames do not
    /// accumulate.
    pub(super) fn hold(&mut self, now: u64) {
        self.start = Some(now);
        self.sent = 0;
    }

    /// Returns the time at which the paced wire's next frame is due; 0 before the first burst.
    pub(super) fn next_due_ns(&self) -> u64 {
        let Some(start) = self.start else { return 0 };
        let after = (u128::from(self.sent) * NS).div_ceil(u128::from(self.pps.get()));
        start.saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_due_at_next_due_ns() {
        for pps in [1, 3, 7, 1_000, 999_983, 14_880_952, 3_000_000_000] {
            let mut pace = FramePace::new(NonZeroU64::new(pps).unwrap());
            let mut now = 12_345;
            assert_eq!(pace.due(now), 1);
            for _ in 0..100 {
                let due = pace.due(now);
                assert!(due >= 1, "pps {pps}");
                pace.count(due as usize);
                now = pace.next_due_ns();
                assert_eq!(pace.due(now - 1), 0, "pps {pps}");
            }
        }
    }

    #[test]
    fn the_pace_catches_up_but_not_after_a_hold() {
        let mut pace = FramePace::new(NonZeroU64::new(1_000).unwrap());
        pace.due(0);
        pace.count(1);
        assert_eq!(pace.due(1_000_000_000), 1_000);
        pace.hold(1_000_000_000);
        assert_eq!(pace.due(1_000_000_000), 1);
        assert_eq!(pace.due(1_001_000_000), 2);
    }
}
