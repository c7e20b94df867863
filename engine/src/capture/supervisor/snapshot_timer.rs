//! One snapshot of a capture each second, for all who report on it: the progress line, the service manager, the control
//! service and metrics. A snapshot reads the NIC's counters, which takes system calls; so it is taken once.

use crate::capture::{Capture, SOON, Snapshot};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const EVERY: Duration = Duration::from_secs(1);

/// Says when the next snapshot is due, and keeps the last one.
pub(super) struct SnapshotTimer {
    last: Option<Arc<Snapshot>>,
    next: Instant,
}

/// A snapshot beside the one before it: rates are their difference.
pub struct Interval {
    /// The snapshot before; `None`: this is the first.
    pub before: Option<Arc<Snapshot>>,
    /// The snapshot of now.
    pub now: Arc<Snapshot>,
    /// When it was taken.
    pub at: Instant,
}

impl SnapshotTimer {
    /// The first snapshot is due at once.
    pub(super) fn new() -> Self {
        Self {
            last: None,
            next: Instant::now(),
        }
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Instant {
        self.next
    }

    /// Takes a snapshot if one is due.
    pub(super) fn take(&mut self, capture: &Capture) -> Option<Interval> {
        let at = Instant::now();
        // As `Capture::wait` returns for it.
        if at + SOON < self.next {
            return None;
        }
        // Not `next + EVERY`: after a pause (the process was stopped) there is nothing to catch up on.
        self.next = at + EVERY;
        let now = Arc::new(capture.snapshot());
        Some(Interval {
            before: self.last.replace(Arc::clone(&now)),
            now,
            at,
        })
    }
}
