//! Gauge of retention: results of its last check of the directory, readable from any thread.

use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wqcap_core::stats::Outlook;

/// Number and size of the finished capture files that pins protect from deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PinnedFiles {
    /// Number of capture files that pins protect from deletion.
    pub files: u64,
    /// Number of bytes of the capture files that pins protect from deletion.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct GaugeState {
    /// Set while a retention limit on capture files is set.
    is_on: bool,
    pinned: PinnedFiles,
    outlook: Option<Outlook>,
}

/// Gauge with the results of the last check of the output directory by the retention thread.
#[derive(Clone, Debug, Default)]
pub struct RetentionGauge(Arc<Mutex<GaugeState>>);

impl RetentionGauge {
    fn found(&self) -> MutexGuard<'_, GaugeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if a retention limit is set. Otherwise files are never deleted, and the gauge
    /// has no numbers.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.found().is_on
    }

    /// Records whether a retention limit is set. Without a limit, the gauge has no numbers.
    pub(super) fn set_on(&self, is_on: bool) {
        let mut found = self.found();
        match is_on {
            true => found.is_on = true,
            false => *found = GaugeState::default(),
        }
    }

    /// Returns the number and size of the capture files that pins protect from deletion.
    #[must_use]
    pub fn pinned(&self) -> PinnedFiles {
        self.found().pinned
    }

    /// Returns the estimate of how long capture files stay on the disk; `None`: it is not known
    /// yet.
    #[must_use]
    pub fn outlook(&self) -> Option<Outlook> {
        self.found().outlook
    }

    pub(super) fn set_pinned(&self, pinned: PinnedFiles) {
        self.found().pinned = pinned;
    }

    pub(super) fn set_outlook(&self, outlook: Option<Outlook>) {
        self.found().outlook = outlook;
    }
}
