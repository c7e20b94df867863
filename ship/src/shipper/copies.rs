//! Anonymized copies, which are sent instead of the files if `[anonymize]` is set.
//!
//! A copy is made before its file is sent, in the folder `copies` of the journal, and is deleted
//! when the store has it. A pass begins with the deletion of copies that no file needs. Equal files
//! and parameters yield equal bytes: a lost copy is made again, and its upload continues. A copy that
//! was made with other parameters is never sent: it is made again, and its upload is aborted.

use super::{PassError, Shipper, UnshippedReason, error::CopyError};
use crate::{
    ShipPlan,
    blocks::{self, ObjectInfo},
    journal::{ContentKind, DeliveryRecord, DeliveryState},
    threads,
};
use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};
use wqcap_files::{
    anonymize::AnonymizeParams,
    extract::anonymize_file,
    folder::FileStamp,
    index::{self, CaptureIndex},
    name::FileName,
};

/// Name of the folder of anonymized copies, inside the journal.
const COPIES: &str = "copies";

/// Returns a capture file's name without the extension of a compression, because anonymized copies
/// are not compressed.
fn uncompressed(name: &str) -> &str {
    let name = name.strip_suffix(".zst").unwrap_or(name);
    name.strip_suffix(".lz4").unwrap_or(name)
}

/// Returns the parsed name of a capture file with the extension that the file's object has in the
/// store.
pub(super) fn object_name<'p>(plan: &ShipPlan, path: &'p Path) -> Option<FileName<'p>> {
    let name = FileName::parse(path)?;
    Some(match plan.anonymize {
        Some(_) => FileName {
            ending: uncompressed(name.ending),
            ..name
        },
        None => name,
    })
}

impl Shipper {
    pub(super) fn copy_path(&self, record: &DeliveryRecord) -> PathBuf {
        let copies = self.plan.journal.join(COPIES);
        copies.join(uncompressed(&record.file))
    }

    /// Returns `true` if an anonymized copy of the capture file must be made before the file's next
    /// step.
    pub(super) fn needs_copy(&self, record: &DeliveryRecord) -> bool {
        let is_before = matches!(
            record.state,
            DeliveryState::Seen | DeliveryState::Started { .. }
        );
        let is_usable = |params: &AnonymizeParams| {
            record.copy.is_some()
                && record.copy_params.as_ref() == Some(&params.fingerprint())
                && self.copy_path(record).exists()
        };
        let wanted = self.plan.anonymize.as_ref();
        record.kind == ContentKind::Packets
            && record.selected
            && is_before
            && wanted.is_some_and(|it| !is_usable(it))
    }

    /// Makes a capture file's anonymized copy, and the table of the copy's blocks.
    pub(super) async fn copy(&mut self, record: DeliveryRecord) -> Result<(), PassError> {
        let Some(query) = self.plan.anonymize.clone() else {
            return Ok(());
        };
        let params = Some(query.fingerprint());
        let original = DeliveryRecord {
            copy: None,
            copy_params: None,
            ..record.clone()
        };
        let (path, to) = (self.path_of(&original), self.copy_path(&record));
        let failed = |e: CopyError| UnshippedReason::Copy(e).of(&path);
        let file = self.open(&original)?;
        let from = path.clone();
        let made = threads::run(move || made(&from, &query, &to)).await;
        let made = made.map_err(CopyError::Io).flatten();
        let (index, stamp) = made.map_err(failed)?;
        self.check(&original, &file)?;
        if index.frames != record.frames {
            let (has, of) = (index.frames, record.frames);
            return Err(failed(CopyError::Frames { has, of }).into());
        }
        let object = ObjectInfo {
            key: Some(&record.key),
            bytes: stamp.len,
            queue: FileName::parse(&path).and_then(|it| it.queue),
        };
        let blocks = blocks::write(&index, object).map_err(|e| failed(e.into()))?;
        self.journal.set_blocks(&record.id(), &blocks)?;
        let is_the_same =
            record.copy_params == params && record.copy.is_some_and(|it| it.len == stamp.len);
        let state = match record.state {
            DeliveryState::Started { upload, .. } if !is_the_same => {
                self.store.abort(&record.key, &upload).await?;
                DeliveryState::Seen
            }
            state => state,
        };
        Ok(self.journal.set(DeliveryRecord {
            copy: Some(stamp),
            copy_params: params,
            state,
            ..original
        })?)
    }

    /// Deletes what no file needs in the folder of copies: unfinished copies of a process that ended,
    /// copies that were finished before the end but not recorded, and copies whose objects the store
    /// has. No copy may be in progress.
    pub(super) fn sweep_copies(&self) {
        let records = self.journal.records();
        let is_needed =
            |it: &&DeliveryRecord| it.copy.is_some() && !matches!(it.state, DeliveryState::Shipped);
        let needed = records.filter(is_needed);
        let needed: HashSet<_> = needed.map(|it| self.copy_path(it)).collect();
        // The folder may be missing.
        let there = fs::read_dir(self.plan.journal.join(COPIES));
        for entry in there.into_iter().flatten().flatten() {
            let path = entry.path();
            if !needed.contains(&path) {
                // A file that stays takes space, and is tried again in the next pass.
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Deletes the anonymized copy of a file, which is not needed any more.
    pub(super) fn drop_copy(&self, record: &DeliveryRecord) {
        if record.copy.is_some() {
            // A missing copy is not an error.
            let _ = fs::remove_file(self.copy_path(record));
        }
    }
}

fn made(
    path: &Path,
    query: &AnonymizeParams,
    to: &Path,
) -> Result<(CaptureIndex, FileStamp), CopyError> {
    fs::create_dir_all(to.parent().unwrap_or(Path::new(".")))?;
    anonymize_file(path, query, to)?;
    let index = index::build(to, None, || true)?;
    let stamp = FileStamp::read(to)?;
    Ok((index.ok_or(CopyError::Changed)?, stamp))
}
