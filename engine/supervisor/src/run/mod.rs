//! Capture run: its plan, the capture that runs or is drained, and the delays between attempts to find
//! a lost device.

mod flushing;
mod snapshot_timer;

pub use snapshot_timer::Interval;
pub(crate) use {
    flushing::{Flushing, refuse_flush},
    snapshot_timer::SnapshotTimer,
};

use std::time::{Duration, Instant};
use wqcap_engine::{
    capture::{Capture, Report},
    plan::Plan,
};

/// Delay before the first attempt to find a lost device. Each further delay is twice as long, up to
/// [`LONGEST`].
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);
/// Duration of a capture after which the delays between attempts to find a lost device begin at
/// [`FIRST`] again.
const STABLE: Duration = Duration::from_secs(30);

/// Delay before the next attempt to find a lost device, which grows with each attempt.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    /// Creates the delays for a lost device, starting with the shortest.
    pub(crate) fn new() -> Self {
        Self(FIRST)
    }

    /// Returns the delay before the next attempt to find a lost device and doubles it, up to the
    /// longest.
    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST);
        wait
    }

    /// Resets the delay between attempts if the capture ran for at least [`STABLE`]. A device that
    /// is lost repeatedly after a short time keeps long delays, which limits the CPU load.
    pub(crate) fn record_run(&mut self, time: Duration) {
        if time >= STABLE {
            self.0 = FIRST;
        }
    }
}

/// Capture that is running or drained, with its run, timer and flush.
pub(crate) struct LiveCapture {
    pub(crate) capture: Capture,
    pub(crate) run: Run,
    pub(crate) timer: SnapshotTimer,
    pub(crate) flushing: Option<Flushing>,
}

/// Capture run from a start to the next stop, including all losses of the device in between.
pub(crate) struct Run {
    pub(crate) plan: Plan,
    /// Time at which the first WQ of the capture run was ready.
    pub(crate) began: Instant,
    /// Time at which the first WQ of the present capture was ready.
    pub(crate) ready: Instant,
    pub(crate) backoff: Backoff,
    /// Combined report of the capture runs before this one; `None`: this run is the first.
    pub(crate) before: Option<Report>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_up_to_a_limit_and_are_reset_after_a_stable_run() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..9).map(|_| backoff.next().as_millis()).collect();
        assert_eq!(
            waits,
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
        backoff.record_run(STABLE / 2);
        assert_eq!(backoff.next(), LONGEST);
        backoff.record_run(STABLE);
        assert_eq!(backoff.next(), FIRST);
    }
}
