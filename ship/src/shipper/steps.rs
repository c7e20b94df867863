//! Steps of one file. Each step starts from the file's state in the journal and returns the next
//! state.

use super::{PassError, Shipper, UnshippedReason};
use crate::{
    fleet::LastObject,
    journal::{DeliveryRecord, DeliveryState, FileId},
    store::{PartPosition, StoreError},
    threads,
};
use bytes::{Bytes, BytesMut};
use std::{
    fs::File,
    io::{self, ErrorKind},
    os::unix::fs::FileExt,
    sync::Arc,
};
use tokio::{
    select,
    task::{JoinError, JoinSet},
    time::sleep_until,
};

/// Maximum number of parts of a multipart upload. No store accepts more parts.
const MOST_PARTS: u64 = 10_000;

/// Upload part that has been sent: its number, its bytes, and the result from the store.
type SentPart = (usize, Bytes, Result<String, StoreError>);

/// Multipart upload of a file in progress.
struct Upload {
    id: String,
    part_bytes: u64,
    parts: Vec<Option<String>>,
}

impl Upload {
    fn state(&self) -> DeliveryState {
        DeliveryState::Started {
            upload: self.id.clone(),
            part_bytes: self.part_bytes,
            parts: self.parts.clone(),
        }
    }
}

impl Shipper {
    /// Takes a file through all remaining steps of shipping, from sending to listing in `blocks/`.
    pub(super) async fn advance(&mut self, id: &FileId) -> Result<(), PassError> {
        while let Some(record) = self.journal.get(id).cloned() {
            if self.needs_copy(&record) {
                self.copy(record).await?;
                continue;
            }
            let next = match &record.state {
                DeliveryState::Seen if record.selected => self.begin(&record).await?,
                // Only its blocks are sent.
                DeliveryState::Seen => DeliveryState::Verified,
                DeliveryState::Started {
                    upload,
                    part_bytes,
                    parts,
                } => {
                    let upload = Upload {
                        id: upload.clone(),
                        part_bytes: *part_bytes,
                        parts: parts.clone(),
                    };
                    self.send(&record, upload).await?
                }
                DeliveryState::Sent { etag } => self.verify(&record, etag.as_deref()).await?,
                DeliveryState::Verified => self.publish(&record).await?,
                DeliveryState::Shipped => {
                    self.drop_copy(&record);
                    return Ok(self.journal.drop_blocks(id)?);
                }
            };
            self.journal.set_state(id, next)?;
            self.update_status(|_| {});
        }
        Ok(())
    }

    /// Sends a small file to the store in one request, or begins a multipart upload.
    async fn begin(&mut self, record: &DeliveryRecord) -> Result<DeliveryState, PassError> {
        let file = Arc::new(self.open(record)?);
        let len = record.sent().len;
        let part_bytes = self.part_bytes(len);
        if len > part_bytes {
            let digest = self.digest(record, &file).await?;
            self.check(record, &file)?;
            let id = self.store.begin(&record.key, &digest).await?;
            let parts = len.div_ceil(part_bytes);
            return Ok(Upload {
                id,
                part_bytes,
                // At most `MOST_PARTS` parts.
                parts: vec![None; parts as usize],
            }
            .state());
        }
        let bytes = self.read(record, &file, 0, len).await?;
        self.check(record, &file)?;
        self.pace.wait(len).await;
        let etag = self.store.put(&record.key, bytes.clone()).await?;
        self.reuse(bytes);
        self.update_status(|status| status.sent(1, len));
        Ok(DeliveryState::Sent { etag })
    }

    /// Returns the length in bytes of a file's upload parts: `ship.part_size`, or more if the file
    /// would exceed [`MOST_PARTS`] parts.
    pub(super) fn part_bytes(&self, len: u64) -> u64 {
        self.plan.part_bytes.max(len.div_ceil(MOST_PARTS))
    }

    /// Sends the remaining upload parts of a file concurrently, and completes the object in the
    /// store.
    async fn send(
        &mut self,
        record: &DeliveryRecord,
        mut upload: Upload,
    ) -> Result<DeliveryState, PassError> {
        let file = Arc::new(self.open(record)?);
        self.hash_next_file();
        let mut sending: JoinSet<SentPart> = JoinSet::new();
        let left: Vec<_> = (0..upload.parts.len())
            .filter(|n| upload.parts[*n].is_none())
            .collect();
        for number in left {
            // Wait before the next part is read, so that memory holds only parts that are being
            // sent.
            while sending.len() >= self.plan.concurrency {
                let done = sending.join_next().await;
                if let Some(again) = self.part_sent(record, &mut upload, done)? {
                    return Ok(again);
                }
            }
            let offset = (number as u64).saturating_mul(upload.part_bytes);
            let left = record.sent().len.saturating_sub(offset);
            let len = upload.part_bytes.min(left);
            let bytes = self.read(record, &file, offset, len).await?;
            let begin = self.pace.begin(len);
            // Completed parts are recorded in the meantime.
            loop {
                let done = select! {
                    Some(done) = sending.join_next() => done,
                    () = sleep_until(begin) => break,
                };
                if let Some(again) = self.part_sent(record, &mut upload, Some(done))? {
                    return Ok(again);
                }
            }
            let (store, key, id) = (
                Arc::clone(&self.store),
                record.key.clone(),
                upload.id.clone(),
            );
            let place = PartPosition { number, offset };
            let sent = bytes.clone();
            sending.spawn(async move {
                let said = store.part(&key, &id, place, bytes).await;
                (number, sent, said)
            });
        }
        while let Some(done) = sending.join_next().await {
            if let Some(again) = self.part_sent(record, &mut upload, Some(done))? {
                return Ok(again);
            }
        }
        self.check(record, &file)?;
        let parts = upload.parts.into_iter().flatten().collect();
        match self.store.complete(&record.key, &upload.id, parts).await {
            Ok(etag) => {
                self.update_status(|status| status.sent(1, 0));
                Ok(DeliveryState::Sent { etag })
            }
            // The upload was completed and the process ended before recording it; or the store has
            // dropped the upload or a part of it. The parts that the store may still have are of no
            // use, so an error of their removal is ignored.
            Err(StoreError::NotFound(why)) => {
                let _ = self.store.abort(&record.key, &upload.id).await;
                self.restart(record, why)
            }
            // Some stores refuse an upload that is over or lost. If the object may be read, the
            // refusal is not caused by missing rights.
            Err(StoreError::Refused(why)) => match self.store.head(&record.key).await {
                Ok(_) | Err(StoreError::NotFound(_)) => self.restart(record, why),
                Err(_) => Err(StoreError::Refused(why).into()),
            },
            Err(e) => Err(e.into()),
        }
    }

    /// Records in the journal that the store has an upload part. `Some`: the upload is lost, and
    /// the file is sent from the start.
    fn part_sent(
        &mut self,
        record: &DeliveryRecord,
        upload: &mut Upload,
        done: Option<Result<SentPart, JoinError>>,
    ) -> Result<Option<DeliveryState>, PassError> {
        let (number, bytes, said) = match done {
            Some(Ok(done)) => done,
            Some(Err(e)) => return Err(StoreError::Failed(e.to_string()).into()),
            None => return Ok(None),
        };
        let len = bytes.len() as u64;
        self.reuse(bytes);
        match said {
            Ok(part) => upload.parts[number] = Some(part),
            Err(StoreError::NotFound(why)) => return self.restart(record, why).map(Some),
            Err(e) => return Err(e.into()),
        }
        self.journal.set_state(&record.id(), upload.state())?;
        self.update_status(|status| status.sent(0, len));
        Ok(None)
    }

    /// Checks that the object of a file in the store is the one that was sent.
    async fn verify(
        &mut self,
        record: &DeliveryRecord,
        etag: Option<&str>,
    ) -> Result<DeliveryState, PassError> {
        match self
            .difference(&record.key, record.sent().len, etag)
            .await?
        {
            Some(why) => self.restart(record, why),
            None => Ok(DeliveryState::Verified),
        }
    }

    /// Returns in what the object `key` of the store differs from the `len` bytes that were sent,
    /// for which the store returned `etag`. `None`: nothing differs.
    async fn difference(
        &self,
        key: &str,
        len: u64,
        etag: Option<&str>,
    ) -> Result<Option<String>, StoreError> {
        let facts = match self.store.head(key).await {
            Ok(facts) => facts,
            Err(StoreError::NotFound(why)) => return Ok(Some(why)),
            Err(e) => return Err(e),
        };
        if facts.bytes != len {
            let has = facts.bytes;
            let why = format!("{key}: the object has {has} bytes in the store instead of {len}");
            return Ok(Some(why));
        }
        // Some stores quote the ETag in one response and not in the other.
        let [sent, there] =
            [etag, facts.etag.as_deref()].map(|it| it.map(|it| it.trim_matches('"')));
        Ok(match (sent, there) {
            (Some(sent), Some(there)) if sent != there => Some(format!(
                "{key}: the object has ETag {there} in the store instead of {sent}"
            )),
            _ => None,
        })
    }

    /// Writes a file's table of blocks to the store, which makes the file visible to queries, and
    /// checks that the store has it.
    async fn publish(&mut self, record: &DeliveryRecord) -> Result<DeliveryState, PassError> {
        if let Some(key) = &record.blocks_key {
            let Some(blocks) = self.journal.blocks(&record.id())? else {
                tracing::warn!(
                    "{}: the table of its blocks in the journal is damaged, so that the file is sent again",
                    record.file
                );
                // The next pass finds the file, and makes its table again.
                self.journal.forget(&record.id())?;
                return Ok(DeliveryState::Seen);
            };
            let len = blocks.len() as u64;
            let etag = self.store.put(key, blocks).await?;
            self.update_status(|status| status.sent(1, len));
            if let Some(why) = self.difference(key, len, etag.as_deref()).await? {
                return Err(StoreError::Failed(why).into());
            }
        }
        let sent = Some(&record.key).filter(|_| record.selected);
        let last = sent.or(record.blocks_key.as_ref());
        self.update_status(|status| status.last_object = last.map(|key| LastObject::now(key)));
        Ok(DeliveryState::Shipped)
    }

    /// Restarts the shipping of a file. A second restart in one pass of shipping is an error.
    fn restart(
        &mut self,
        record: &DeliveryRecord,
        why: String,
    ) -> Result<DeliveryState, PassError> {
        if !self.begun_again.insert(record.id()) {
            self.journal.set_state(&record.id(), DeliveryState::Seen)?;
            return Err(StoreError::Failed(why).into());
        }
        tracing::warn!("{}: shipping of the file restarts: {why}", record.file);
        Ok(DeliveryState::Seen)
    }

    /// Keeps the buffer of an upload part for the next part, if it is not in use any more.
    fn reuse(&mut self, bytes: Bytes) {
        self.buffers.extend(bytes.try_into_mut());
    }

    /// Reads an upload part of a file on a blocking thread.
    async fn read(
        &mut self,
        record: &DeliveryRecord,
        file: &Arc<File>,
        offset: u64,
        len: u64,
    ) -> Result<Bytes, PassError> {
        let file = Arc::clone(file);
        let mut bytes = self.buffers.pop().unwrap_or_default();
        let read = move || -> io::Result<BytesMut> {
            // A part fits into memory: its length is `ship.part_size`, or a fraction of the file.
            bytes.resize(usize::try_from(len).map_err(io::Error::other)?, 0);
            file.read_exact_at(&mut bytes, offset)?;
            Ok(bytes)
        };
        let bytes = threads::run(read).await.flatten();
        let bytes = bytes.map_err(|e| self.unread(record, e))?;
        Ok(bytes.freeze())
    }

    /// Returns the error for a capture file that cannot be read while it is sent.
    pub(super) fn unread(&self, record: &DeliveryRecord, e: io::Error) -> PassError {
        let reason = match e.kind() {
            ErrorKind::UnexpectedEof => UnshippedReason::Shorter,
            _ => UnshippedReason::Io(e),
        };
        reason.of(&self.path_of(record)).into()
    }
}
