//! One look at a capture each second, for all who tell of it: the progress line, the service manager, the control
//! service and metrics. Looking reads the NIC's counters, which takes system calls; so it is done once.

use engine::capture::{Capture, Snapshot};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// How often is looked.
const EVERY: Duration = Duration::from_secs(1);

/// When to look, and what was seen last.
pub struct Looks {
    last: Option<Arc<Snapshot>>,
    next: Instant,
}

/// What one look has shown.
pub struct Look {
    /// What the one before has; `None`: it is the first.
    pub before: Option<Arc<Snapshot>>,
    /// What there is now.
    pub now: Arc<Snapshot>,
    /// When that was.
    pub at: Instant,
}

impl Looks {
    /// The first look is due at once.
    pub fn new() -> Self {
        Self {
            last: None,
            next: Instant::now(),
        }
    }

    /// Looks, if it is time to.
    pub fn take(&mut self, capture: &Capture) -> Option<Look> {
        let at = Instant::now();
        if at < self.next {
            return None;
        }
        // Not `next + EVERY`: after a pause (the process was stopped) there is nothing to catch up on.
        self.next = at + EVERY;
        let now = Arc::new(capture.snapshot());
        Some(Look {
            before: self.last.replace(Arc::clone(&now)),
            now,
            at,
        })
    }
}
