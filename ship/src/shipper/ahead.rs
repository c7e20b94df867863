//! Digest of the next file, computed while another file is sent: a multipart upload begins with the
//! object's metadata, which includes the digest.

use super::{NextFile, PassError, Shipper};
use crate::{
    journal::{DeliveryRecord, DeliveryState, FileId},
    store::Digest,
    threads,
};
use std::{fs::File, io, sync::Arc};
use tokio::task::JoinHandle;
use wqcap_files::folder::FileStamp;

/// SHA-256 digest of a file that is being computed on another thread.
pub(super) struct PendingDigest {
    file: FileId,
    stamp: FileStamp,
    digest: JoinHandle<io::Result<Digest>>,
}

impl Shipper {
    /// Starts to compute the digest of the next file that will be sent in parts, if such a file
    /// exists.
    pub(super) fn hash_next_file(&mut self) {
        let next = self.find(NextFile::Oldest, |it| {
            let is_next = it.state == DeliveryState::Seen && it.selected && !self.needs_copy(it);
            is_next && it.sent().len > self.part_bytes(it.sent().len)
        });
        let Some(record) = next.and_then(|id| self.journal.get(&id)).cloned() else {
            return;
        };
        // A file that cannot be opened is reported when it is sent.
        if let Ok(file) = self.open(&record) {
            self.ahead = Some(PendingDigest {
                file: record.id(),
                stamp: record.sent(),
                digest: digest_of(Arc::new(file), record.sent().len),
            });
        }
    }

    /// Returns the SHA-256 digest of a file; uses the digest that was computed in advance if it is
    /// of this file.
    pub(super) async fn digest(
        &mut self,
        record: &DeliveryRecord,
        file: &Arc<File>,
    ) -> Result<Digest, PassError> {
        let is_of = |it: &mut PendingDigest| it.file == record.id() && it.stamp == record.sent();
        let digest = match self.ahead.take_if(is_of) {
            Some(ahead) => ahead.digest,
            None => digest_of(Arc::clone(file), record.sent().len),
        };
        let done = digest.await.map_err(io::Error::other).flatten();
        done.map_err(|e| self.unread(record, e))
    }
}

fn digest_of(file: Arc<File>, len: u64) -> JoinHandle<io::Result<Digest>> {
    let work = move || Digest::from_file(&file, len);
    tokio::spawn(async move { threads::run(work).await.flatten() })
}
