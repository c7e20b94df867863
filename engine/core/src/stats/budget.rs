//! Limit of `--count`: a number of frames that all queues share.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Number of frames that all receive loops together may still capture (`--count`).
#[derive(Debug)]
pub struct Budget {
    /// Total number of frames to capture (`--count`).
    total: u64,
    /// Number of frames of the `--count` budget that no receive loop has claimed.
    left: AtomicU64,
    /// Number of frames of the `--count` budget that were captured.
    used: AtomicU64,
}

impl Budget {
    /// Creates a `--count` budget of `total` frames to capture.
    #[must_use]
    pub fn new(total: u64) -> Self {
        Self {
            total,
            left: AtomicU64::new(total),
            used: AtomicU64::new(0),
        }
    }

    /// Claims up to `want` frames of the `--count` budget before a poll, and returns the number of
    /// frames granted. All loops together thus take at most the budget's total off their rings.
    pub fn claim(&self, want: usize) -> usize {
        let mut granted = 0;
        let _ = self
            .left
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                granted = usize::try_from(left).unwrap_or(usize::MAX).min(want);
                (granted > 0).then(|| left - granted as u64)
            });
        granted
    }

    /// Counts the frames that a poll captured, and returns its other granted frames to the
    /// `--count` budget.
    pub fn settle(&self, granted: usize, captured: u64) {
        if granted as u64 > captured {
            self.left
                .fetch_add(granted as u64 - captured, Ordering::AcqRel);
        }
        self.used.fetch_add(captured, Ordering::AcqRel);
    }

    /// Returns `true` if all frames of the `--count` budget have been captured.
    #[must_use]
    pub fn is_used_up(&self) -> bool {
        self.used.load(Ordering::Acquire) >= self.total
    }
}
