//! How shipping goes, for whoever watches.

use crate::{
    fleet::LastObject,
    journal::{FileId, Journal, State},
    ledger::DeliveryLedger,
    source::Found,
};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

/// How it goes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
    /// Where all captured frames are.
    pub ledger: DeliveryLedger,
    /// Files that are not shipped yet, of frames and of flow records, and their bytes.
    pub pending_files: u64,
    /// Their bytes.
    pub pending_bytes: u64,
    /// Finished files whose frames nobody has counted yet: they are not in the ledger.
    pub uncounted_files: u64,
    /// Files that were deleted before they were sent.
    pub expired_files: u64,
    /// Files of flow records that were deleted before they were sent.
    pub expired_flow_files: u64,
    /// Files of frames that were deleted before anybody had counted them: they are not in the ledger.
    pub expired_uncounted_files: u64,
    /// How long the oldest of the files that are not shipped has been finished, in seconds.
    pub lag_s: f64,
    /// When that one was finished.
    #[serde(skip)]
    pub oldest: Option<SystemTime>,
    /// Since the start: objects that the store has taken.
    pub objects: u64,
    /// Since the start: bytes that the store has taken.
    pub bytes: u64,
    /// Since the start: files that were another one when they were looked at again, and are sent anew.
    pub changed_files: u64,
    /// Since the start: passes that ended because the store, or a folder, failed.
    pub failures: u64,
    /// Since the start: requests that were sent again.
    pub retries: u64,
    /// The object that was shipped last.
    pub last_object: Option<LastObject>,
    /// What cannot be done now, and why.
    pub problems: Vec<String>,
    /// The file that is being sent or read.
    pub now: Option<String>,
}

impl Status {
    /// The store has taken so much more.
    pub(super) fn sent(&mut self, objects: u64, bytes: u64) {
        self.objects += objects;
        self.bytes += bytes;
    }

    /// The lag of now: while a store does not answer, that is all that goes on.
    pub(super) fn count_lag(&mut self) {
        let lag = |it: SystemTime| SystemTime::now().duration_since(it).unwrap_or_default();
        self.lag_s = self.oldest.map_or(Duration::ZERO, lag).as_secs_f64();
    }

    /// What the journal says, and what it does not know yet.
    pub(super) fn take(
        &mut self,
        journal: &Journal,
        uncounted: &[Found],
        later: &BTreeMap<FileId, String>,
    ) {
        self.ledger = journal.ledger();
        (self.expired_files, self.expired_flow_files) = journal.expired_files();
        self.expired_uncounted_files = journal.expired_uncounted_files();
        let open = journal.records().filter(|it| it.state != State::Shipped);
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
        self.problems = later.values().cloned().collect();
    }
}
