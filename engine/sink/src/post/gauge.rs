//! What retention has found at its last look, for threads that look on.

use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wqcap_core::stats::Outlook;

/// Finished files that pins hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PinnedFiles {
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Found {
    pinned: PinnedFiles,
    outlook: Option<Outlook>,
}

/// What there was at the last look.
#[derive(Clone, Debug, Default)]
pub struct RetentionGauge(Arc<Mutex<Found>>);

impl RetentionGauge {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What pins hold.
    #[must_use]
    pub fn pinned(&self) -> PinnedFiles {
        self.found().pinned
    }

    /// How long the disk holds what comes; `None`: that is not known yet.
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
