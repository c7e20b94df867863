//! Snapshots of a capture, one per second, for the progress line, the service manager, the control
//! service and metrics. A snapshot reads the NIC's counters with system calls, so all of them share
//! it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use wqcap_engine::capture::{Capture, SOON, Snapshot};

const EVERY: Duration = Duration::from_secs(1);

/// Schedule of the snapshots of a capture's counters, with the last snapshot.
pub(crate) struct SnapshotTimer {
    last: Option<Arc<Snapshot>>,
    next: Instant,
}

/// Two consecutive snapshots of a capture's counters: rates are computed from their difference.
pub struct Interval {
    before: Option<Arc<Snapshot>>,
    now: Arc<Snapshot>,
    at: Instant,
}

impl Interval {
    /// Returns the previous snapshot of the capture's counters; `None`: the latest is the first.
    #[must_use]
    pub fn before(&self) -> Option<&Snapshot> {
        self.before.as_deref()
    }

    /// Returns the latest snapshot of the capture's counters.
    #[must_use]
    pub fn now(&self) -> &Snapshot {
        &self.now
    }

    /// Returns the time at which the latest snapshot of the capture's counters was taken.
    #[must_use]
    pub fn at(&self) -> Instant {
        self.at
    }
}

impl SnapshotTimer {
    /// Creates a timer for snapshots of a capture's counters; the first one is due immediately.
    pub(crate) fn new() -> Self {
        Self {
            last: None,
            next: Instant::now(),
        }
    }

    /// Returns the time at which the next snapshot of the capture's counters is due.
    pub(crate) fn due(&self) -> Instant {
        self.next
    }

    /// Takes a snapshot of the capture's counters if one is due; `None`: none is due.
    pub(crate) fn take(&mut self, capture: &Capture) -> Option<Interval> {
        let at = Instant::now();
        // `Capture::wait` ends up to `SOON` before its deadline.
        if at + SOON < self.next {
            return None;
        }
        // Not `next + EVERY`: missed snapshots are not made up for after a pause (the process was
        // stopped).
        self.next = at + EVERY;
        let now = Arc::new(capture.snapshot());
        Some(Interval {
            before: self.last.replace(Arc::clone(&now)),
            now,
            at,
        })
    }
}
