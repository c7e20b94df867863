//! Status of shipping, published to the caller.

use super::source::FoundCapture;
use crate::{
    fleet::LastObject,
    journal::{DeliveryState, Journal},
    ledger::DeliveryLedger,
};
use serde::Serialize;
use std::time::{Duration, SystemTime};

/// Status of shipping: delivery ledger, pending files and problems.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ShipStatus {
    /// Delivery ledger: numbers of all captured frames by delivery state.
    pub ledger: DeliveryLedger,
    /// Number of files of all kinds that are not shipped yet.
    pub pending_files: u64,
    /// Total length of all unshipped files in bytes.
    pub pending_bytes: u64,
    /// Number of finished capture files whose frames are not counted yet: the delivery ledger does
    /// not include them.
    pub uncounted_files: u64,
    /// Number of capture files that were deleted before they were sent to the store.
    pub expired_files: u64,
    /// Number of files of flow records, DNS and DHCP that were deleted before they were sent to the
    /// store.
    pub expired_flow_files: u64,
    /// Number of capture files that were deleted before their frames were counted: the delivery
    /// ledger does not include them.
    pub expired_uncounted_files: u64,
    /// Time in seconds since the oldest unshipped file was finished.
    pub lag_s: f64,
    /// Time when the oldest unshipped file was finished.
    #[serde(skip)]
    pub oldest: Option<SystemTime>,
    /// Number of objects that the store has accepted since shipping started.
    pub objects: u64,
    /// Number of bytes that the store has accepted since shipping started.
    pub bytes: u64,
    /// Number of files that were shipped again since shipping started, because the file or the
    /// selection had changed.
    pub changed_files: u64,
    /// Number of passes since shipping started that ended because the store or a folder failed.
    pub failures: u64,
    /// Number of store requests that were retried since shipping started.
    pub retries: u64,
    /// Object that was shipped last, and the time when it was complete.
    pub last_object: Option<LastObject>,
    /// Current problems of shipping, a line each.
    pub problems: Vec<String>,
    /// Name of the file that is being shipped or indexed; `None`: no file is.
    pub now: Option<String>,
}

impl ShipStatus {
    /// Adds the counts of the status `before` to this status, so that they count from the start of
    /// the process if shipping began again with other settings.
    #[must_use]
    pub fn after(mut self, before: &Self) -> Self {
        self.objects += before.objects;
        self.bytes += before.bytes;
        self.changed_files += before.changed_files;
        self.failures += before.failures;
        self.retries += before.retries;
        self
    }

    /// Adds `objects` and `bytes` to the numbers that the store has accepted.
    pub(super) fn sent(&mut self, objects: u64, bytes: u64) {
        self.objects += objects;
        self.bytes += bytes;
    }

    /// Computes the present shipping lag, which grows while the store does not answer.
    pub(super) fn count_lag(&mut self) {
        let lag = |it: SystemTime| SystemTime::now().duration_since(it).unwrap_or_default();
        self.lag_s = self.oldest.map_or(Duration::ZERO, lag).as_secs_f64();
    }

    /// Updates the status of shipping from the journal, from files without a delivery record, and
    /// from the problems of files.
    pub(super) fn update<'a>(
        &mut self,
        journal: &Journal,
        uncounted: &[FoundCapture],
        problems: impl Iterator<Item = &'a String>,
    ) {
        self.ledger = journal.ledger();
        (self.expired_files, self.expired_flow_files) = journal.expired_files();
        self.expired_uncounted_files = journal.expired_uncounted_files();
        let open = journal
            .records()
            .filter(|it| it.state != DeliveryState::Shipped);
        let mut oldest = None;
        (self.pending_files, self.pending_bytes) = (0, 0);
        let stamps = open.map(|it| it.stamp);
        for stamp in stamps.chain(uncounted.iter().map(|it| it.stamp)) {
            self.pending_files += 1;
            self.pending_bytes += stamp.len;
            let modified = stamp.modified();
            oldest = Some(oldest.map_or(modified, |it: SystemTime| it.min(modified)));
        }
        self.oldest = oldest;
        self.count_lag();
        self.uncounted_files = uncounted.len() as u64;
        self.problems = journal.problems();
        self.problems.extend(problems.cloned());
    }
}
