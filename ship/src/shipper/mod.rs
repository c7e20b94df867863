//! Ships files step by step: found, upload begun, parts sent, complete, verified, listed.
//!
//! ```text
//! pass: update_journal (folders -> journal) -> next file -> steps -> ... until nothing is left to
//! do
//! ```
//!
//! Flow records are sent before capture files, begun uploads before new ones, and older files
//! first. A file that cannot be read, or that changes, is reported and retried in the next pass. A
//! file whose object the store refuses is retried later. A store that does not answer, or that
//! refuses several files in a row, ends the pass; the next one begins with other files.
//!
//! Concurrently with the passes, `lease` writes the sensor's status to the store, and ends the
//! passes if another instance ships under the sensor's name.
//!
//! Invariants: a step is taken only after the previous one is in the journal, so that a pass may
//! end anywhere. A file is read through one descriptor, so that it is sent completely even if
//! retention deletes it. A file counts as deleted only if its directory is still the one that it
//! was found in. A file that the capture deletes is counted once, with or without a record.

mod ahead;
mod bandwidth;
mod copies;
mod dry_run;
mod error;
#[cfg(test)]
pub(crate) mod fixtures;
mod lease;
mod run;
mod source;
mod status;
mod steps;
#[cfg(test)]
mod tests;

pub use crate::journal::{JournalError, JournalFileError};
pub use dry_run::{DryRun, Planned, dry_run};
pub use error::{FolderError, PassError, ShipError, UnshippedFile};
use error::{FolderProblem, UnshippedReason};
pub use lease::{LeaseRefusal, LeaseTaken};
pub use run::{Mode, check_store, run};
pub use status::ShipStatus;

use crate::{
    ShipPlan,
    blocks::{self, ObjectInfo},
    journal::{ContentKind, DeliveryRecord, DeliveryState, DirStamp, FileId, Journal},
    key,
    store::{Store, StoreError},
    threads,
};
use ahead::PendingDigest;
use bandwidth::PartPace;
use bytes::BytesMut;
use source::{FoundCapture, FoundFiles, UnreadFile};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};
use wqcap_files::{
    folder::open::open_regular,
    folder::{
        FileStamp,
        expired::{self, ExpiredFile},
    },
    index::{self, CaptureIndex, IndexFolder},
    read::FileEnd,
};

/// Time that the capture has to write the index of a new capture file. If `wqcap ship` built the
/// index instead, it would read the file twice.
const INDEX_TIME: Duration = Duration::from_secs(30);

/// Number of files in a row whose objects the store refuses, after which the store counts as
/// refusing all if it also refuses the newest file's.
const MOST_REFUSED: usize = 3;
/// Time after which a file is sent again whose object the store refused.
const REFUSED_FOR: Duration = Duration::from_secs(300);

/// File that a pass sends next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextFile {
    /// The first file in the order of shipping.
    Oldest,
    /// The last file in the order of shipping: the store has refused the first ones.
    Newest,
}

/// Shipper, which sends the finished files of one capture to the store.
struct Shipper {
    plan: ShipPlan,
    store: Arc<dyn Store>,
    journal: Journal,
    pace: PartPace,
    status: Arc<Mutex<ShipStatus>>,
    /// Set when shipping follows a running capture, which may still write indexes.
    follows: bool,
    /// Capture files without a delivery record, because their frames are not counted yet or cannot
    /// be.
    uncounted: Vec<FoundCapture>,
    /// Files that are deferred to the next pass of shipping, with the reason.
    later: BTreeMap<FileId, String>,
    /// Files whose objects the store refuses, with the time before which they are not sent again,
    /// and the reason.
    refused: BTreeMap<FileId, (Instant, String)>,
    /// Files at which the store failed, so that a pass ended. The next passes send other files
    /// first.
    failing: BTreeSet<FileId>,
    /// Files that end within a record, with the place: a length in them is wrong, or they were
    /// truncated.
    torn: BTreeMap<FileId, String>,
    /// Files whose upload was restarted in this pass of shipping.
    begun_again: BTreeSet<FileId>,
    /// Digest of the next file, computed while another file is sent.
    ahead: Option<PendingDigest>,
    /// Buffers of upload parts that have been sent, for reuse.
    buffers: Vec<BytesMut>,
}

impl Shipper {
    fn new(plan: ShipPlan, store: Arc<dyn Store>, journal: Journal, follows: bool) -> Self {
        Self {
            pace: PartPace::new(plan.bandwidth),
            plan,
            store,
            journal,
            status: Arc::default(),
            follows,
            uncounted: Vec::new(),
            later: BTreeMap::new(),
            refused: BTreeMap::new(),
            failing: BTreeSet::new(),
            torn: BTreeMap::new(),
            begun_again: BTreeSet::new(),
            ahead: None,
            buffers: Vec::new(),
        }
    }

    /// Runs a pass: ships files until no file is left that can be shipped.
    async fn pass(&mut self) -> Result<(), PassError> {
        self.failing.retain(|id| self.journal.get(id).is_some());
        let now = Instant::now();
        self.refused.retain(|_, (until, _)| *until > now);
        let refused = self.refused.iter();
        self.later = refused
            .map(|(id, (_, why))| (id.clone(), why.clone()))
            .collect();
        self.begun_again.clear();
        self.sweep_copies();
        let outcome = self.work().await;
        self.update_status(|status| status.now = None);
        self.buffers.clear();
        outcome
    }

    async fn work(&mut self) -> Result<(), PassError> {
        // Refusals since the last step that the store took, and whether it took any.
        let (mut in_row, mut is_sound) = (Vec::new(), false);
        loop {
            self.update_journal().await?;
            let next = match in_row.len() < MOST_REFUSED {
                true => NextFile::Oldest,
                false => NextFile::Newest,
            };
            let is_open = |it: &DeliveryRecord| it.state != DeliveryState::Shipped;
            let sound = self.find(next, |it| is_open(it) && !self.failing.contains(&it.id()));
            if sound.is_none() && self.count_one(next).await? {
                continue;
            }
            let Some(id) = sound.or_else(|| self.find(next, is_open)) else {
                return match in_row.pop().filter(|_| !is_sound) {
                    Some(e) => Err(self.refused_all(e)),
                    None => Ok(()),
                };
            };
            self.update_status(|status| status.now = Some(id.1.clone()));
            match self.advance(&id).await {
                Err(PassError::File(e)) => self.defer(id, &e),
                Err(PassError::Store(e @ (StoreError::Refused(_) | StoreError::Unusable(_)))) => {
                    if next == NextFile::Newest {
                        return Err(self.refused_all(e));
                    }
                    self.refuse(id, &e);
                    in_row.push(e);
                }
                Err(e @ PassError::Store(_)) => {
                    self.failing.insert(id);
                    return Err(e);
                }
                other => {
                    other?;
                    self.failing.remove(&id);
                    in_row.clear();
                    is_sound = true;
                }
            }
        }
    }

    /// Defers a file whose object the store refuses. Another file may be accepted.
    fn refuse(&mut self, id: FileId, e: &StoreError) {
        let problem = e.to_string();
        tracing::warn!(
            "{}: the store refuses an object of this file: {problem}; the other files are sent",
            id.1
        );
        let until = Instant::now() + REFUSED_FOR;
        self.refused.insert(id.clone(), (until, problem.clone()));
        self.later.insert(id, problem);
        self.update_status(|_| {});
    }

    /// Returns the error that the store refuses all objects, which no longer counts for single
    /// files.
    fn refused_all(&mut self, e: StoreError) -> PassError {
        self.refused.clear();
        e.into()
    }

    /// Returns the first or last file, in the order of shipping, whose delivery record matches
    /// `wanted`. Deferred files are left out.
    fn find(&self, next: NextFile, wanted: impl Fn(&DeliveryRecord) -> bool) -> Option<FileId> {
        let waits = |it: &DeliveryRecord| self.later.contains_key(&it.id());
        let open = self.journal.records().filter(|it| wanted(it) && !waits(it));
        let order = |it: &&DeliveryRecord| {
            (
                it.kind,
                it.state == DeliveryState::Seen,
                it.ns,
                it.file.clone(),
            )
        };
        let found = match next {
            NextFile::Oldest => open.min_by_key(order),
            NextFile::Newest => open.max_by_key(order),
        };
        found.map(DeliveryRecord::id)
    }

    fn defer(&mut self, id: FileId, e: &UnshippedFile) {
        tracing::warn!("{e}; the next pass of `wqcap ship` retries this file");
        self.later.insert(id, e.to_string());
        self.update_status(|_| {});
    }

    /// Updates the delivery journal to the files that are now in the capture's folders.
    async fn update_journal(&mut self) -> Result<(), PassError> {
        let mut found = FoundFiles::default();
        if let Some(dir) = &self.plan.flows_dir {
            found.append(self.listed("flows.dir", dir, source::tables)?);
        }
        found.append(self.listed("output.dir", &self.plan.dir, source::packets)?);
        self.count_expired(&mut found.files)?;
        self.end_records(&found).await?;
        self.torn.retain(|id, _| self.journal.get(id).is_some());
        self.uncounted.clear();
        for UnreadFile { id, path, error } in found.unread {
            if !self.later.contains_key(&id) {
                self.defer(id, &UnshippedReason::Io(error).of(&path));
            }
        }
        for file in found.files {
            if self.is_known(&file) {
                continue;
            }
            if self.later.contains_key(&file.id()) {
                let has_record = self.journal.get(&file.id()).is_some();
                if file.kind == ContentKind::Packets && !has_record {
                    self.uncounted.push(file);
                }
                continue;
            }
            self.forget(&file.id()).await?;
            match file.kind {
                ContentKind::Flows | ContentKind::Dns | ContentKind::Dhcp => {
                    let key = key::table(file.kind, file.ns, &self.plan.sensor);
                    self.journal.set(file.record(key))?;
                }
                ContentKind::Packets => match load_index(&self.plan, &file) {
                    Some(index) => self.enter_packets(&file, &index)?,
                    None => self.uncounted.push(file),
                },
            }
        }
        self.update_status(|_| {});
        Ok(())
    }

    /// Counts the deleted capture files that have no delivery record. A file with a record is
    /// counted when its record ends. The capture's lists of deleted files are read after the folder
    /// and before records end, so that every deleted file is in a list by then.
    fn count_expired(&mut self, found: &mut Vec<FoundCapture>) -> Result<(), PassError> {
        let dir = &self.plan.dir;
        let lines = expired::read(dir, self.journal.expired_read());
        let mut lines = lines.map_err(|e| FolderProblem::ExpiredList(e).of("output.dir", dir))?;
        let is_known = |it: &ExpiredFile| {
            let id = (ContentKind::Packets, it.file.clone());
            self.journal.get(&id).is_some()
        };
        // A file that still exists is about to be deleted, or the capture was killed: it gets a
        // record first.
        let is_there = |it: &ExpiredFile| match FileStamp::read(&self.plan.dir.join(&it.file)) {
            Ok(now) => now == it.stamp,
            Err(e) => e.kind() != io::ErrorKind::NotFound,
        };
        let waits = lines.iter().position(|(it, _)| {
            let file = it.as_ref();
            file.is_some_and(|it| !is_known(it) && is_there(it))
        });
        lines.truncate(waits.unwrap_or(lines.len()));
        let Some((_, read)) = lines.last() else {
            return Ok(());
        };
        let read = *read;
        let gone = lines.into_iter().map(|(it, _)| it);
        let gone: Vec<_> = gone
            .filter(|it| !it.as_ref().is_some_and(is_known))
            .collect();
        for it in &gone {
            let Some(it) = it else {
                tracing::warn!(
                    "{}: a line of the list of deleted files is damaged, so that the frames of one file are unknown",
                    dir.display()
                );
                continue;
            };
            tracing::warn!("{}: the file was deleted before it was sent", it.file);
            found.retain(|there| there.kind != ContentKind::Packets || there.name != it.file);
        }
        Ok(self.journal.enter_expired(&gone, read)?)
    }

    /// Lists the finished files of a directory, if the directory is still the one in which the
    /// journal's files were found. An unmounted file system looks like a directory that retention
    /// has emptied.
    fn listed(
        &self,
        key: &'static str,
        dir: &Path,
        list: fn(&Path) -> io::Result<FoundFiles>,
    ) -> Result<FoundFiles, PassError> {
        let listed = || {
            let before = DirStamp::read(dir)?;
            Ok((before, list(dir)?, DirStamp::read(dir)?))
        };
        let (before, found, now) = listed().map_err(|e| FolderProblem::Io(e).of(key, dir))?;
        if now != before {
            return Err(FolderProblem::Replaced.of(key, dir).into());
        }
        let was = self.journal.dir_of(key)?;
        if was.is_some_and(|was| was.is_of(&now)) {
            return Ok(found);
        }
        let of_packets = key == "output.dir";
        let mut known = self.journal.records();
        let has_files = known.any(|it| (it.kind == ContentKind::Packets) == of_packets);
        let is_there = |it: &FoundCapture| {
            self.journal
                .get(&it.id())
                .is_some_and(|was| was.stamp == it.stamp)
        };
        if was.is_some() && has_files && !found.files.iter().any(is_there) {
            let problem = FolderProblem::Other(self.journal.dirs_path());
            return Err(problem.of(key, dir).into());
        }
        self.journal.set_dir(key, now)?;
        Ok(found)
    }

    /// Returns `true` if a file's delivery record matches the present file and the selection in the
    /// configuration.
    fn is_known(&self, file: &FoundCapture) -> bool {
        let Some(record) = self.journal.get(&file.id()) else {
            return false;
        };
        let as_wanted = match record.kind {
            ContentKind::Flows | ContentKind::Dns | ContentKind::Dhcp => true,
            ContentKind::Packets => {
                let is_done = record.selected && record.state == DeliveryState::Shipped;
                let wanted = self.plan.packets.of_each();
                // The copy is made when the file is sent.
                let as_anonymous = record.state == DeliveryState::Seen
                    || !record.selected
                    || record.copy.is_some() == self.plan.anonymize.is_some();
                is_done || as_anonymous && wanted.is_none_or(|it| it == record.selected)
            }
        };
        record.stamp == file.stamp && as_wanted
    }

    /// Drops the delivery record of a file that is shipped again from the start, and aborts the
    /// file's upload.
    async fn forget(&mut self, id: &FileId) -> Result<(), PassError> {
        let Some(record) = self.journal.get(id).cloned() else {
            return Ok(());
        };
        tracing::info!(
            "{}: shipping restarts, because the file or the selection has changed",
            record.file
        );
        self.drop_copy(&record);
        if let DeliveryState::Started { upload, .. } = &record.state {
            self.store.abort(&record.key, upload).await?;
        }
        self.journal.forget(id)?;
        self.update_status(|status| status.changed_files += 1);
        Ok(())
    }

    /// Ends the delivery records of deleted files. Their objects that are complete in the store are
    /// still verified and listed in `blocks/`.
    async fn end_records(&mut self, found: &FoundFiles) -> Result<(), PassError> {
        let read = found.files.iter().map(FoundCapture::id);
        let unread = found.unread.iter().map(|it| it.id.clone());
        let here: BTreeSet<_> = read.chain(unread).collect();
        let gone = self.journal.records().map(DeliveryRecord::id);
        let gone: Vec<_> = gone.filter(|it| !here.contains(it)).collect();
        let mut begun = Vec::new();
        for id in gone {
            let Some(record) = self.journal.get(&id).cloned() else {
                continue;
            };
            match record.state {
                DeliveryState::Shipped => self.journal.end_record(&id)?,
                DeliveryState::Seen if record.selected => self.expire(&id)?,
                DeliveryState::Started { upload, .. } => {
                    begun.push((id, record.key, upload));
                }
                DeliveryState::Seen | DeliveryState::Sent { .. } | DeliveryState::Verified => {}
            }
        }
        // Aborts come last: the store may not answer, and all other records have ended by then.
        for (id, key, upload) in begun {
            self.store.abort(&key, &upload).await?;
            self.expire(&id)?;
        }
        Ok(())
    }

    fn expire(&mut self, id: &FileId) -> Result<(), PassError> {
        tracing::warn!("{}: the file was deleted before it was sent", id.1);
        if let Some(record) = self.journal.get(id) {
            self.drop_copy(record);
        }
        self.journal.end_record(id)?;
        self.update_status(|_| {});
        Ok(())
    }

    fn enter_packets(
        &mut self,
        file: &FoundCapture,
        index: &CaptureIndex,
    ) -> Result<(), PassError> {
        if let end @ FileEnd::Torn { .. } = index.end {
            let shown = file.path.display();
            let problem = format!("{shown}: {end}; the tables have only the frames before that");
            tracing::warn!("{problem}");
            self.torn.insert(file.id(), problem);
        }
        let Some(name) = copies::object_name(&self.plan, &file.path) else {
            return Ok(());
        };
        let sensor = &self.plan.sensor;
        let key = key::packets(&name, sensor);
        let selected = self.plan.packets.takes(index);
        let object = ObjectInfo {
            key: selected.then_some(&key),
            bytes: file.stamp.len,
            queue: name.queue,
        };
        let blocks = blocks::write(index, object).map_err(|source| PassError::Blocks {
            path: file.path.clone(),
            source,
        })?;
        self.journal.set_blocks(&file.id(), &blocks)?;
        let record = DeliveryRecord {
            blocks_key: Some(key::blocks(&name, sensor)),
            frames: index.frames,
            selected,
            ..file.record(key)
        };
        Ok(self.journal.set(record)?)
    }

    /// Builds the index of the oldest or newest capture file without one, which counts the file's
    /// frames. `false`: no such file exists at present.
    async fn count_one(&mut self, next: NextFile) -> Result<bool, PassError> {
        let is_due = |file: &&FoundCapture| {
            let indexed_soon = self.follows && self.plan.index_dir.is_some();
            let is_deferred = self.later.contains_key(&file.id());
            !(is_deferred || indexed_soon && is_younger(file, INDEX_TIME))
        };
        let mut due = self.uncounted.iter().filter(is_due);
        let file = match next {
            NextFile::Oldest => due.next(),
            NextFile::Newest => due.next_back(),
        };
        let Some(file) = file.cloned() else {
            return Ok(false);
        };
        self.update_status(|status| status.now = Some(file.name.clone()));
        let path = file.path.clone();
        let built = threads::run(move || index::build(&path, None, || true)).await;
        let reason = match built {
            Ok(Ok(Some(index))) => {
                self.enter_packets(&file, &index)?;
                return Ok(true);
            }
            Ok(Ok(None)) => UnshippedReason::ChangedWhileRead,
            // The capture may have recorded the number of frames when it deleted the file; the next
            // pass reads it.
            Ok(Err(_)) if !file.path.exists() => UnshippedReason::DeletedUncounted,
            Ok(Err(e)) => e.into(),
            Err(e) => e.into(),
        };
        self.defer(file.id(), &reason.of(&file.path));
        Ok(true)
    }

    /// Updates the published status of shipping from the journal, and applies `change`.
    fn update_status(&self, change: impl FnOnce(&mut ShipStatus)) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let problems = self.later.values().chain(self.torn.values());
        status.update(&self.journal, &self.uncounted, problems);
        change(&mut status);
    }

    /// Opens the file of a delivery record; fails if the file has changed since it was found.
    fn open(&self, record: &DeliveryRecord) -> Result<File, PassError> {
        let path = self.path_of(record);
        let file = open_regular(&path).map_err(|e| UnshippedReason::Io(e).of(&path))?;
        self.check(record, &file)?;
        Ok(file)
    }

    /// Checks that an open file is unchanged since `wqcap ship` found it.
    fn check(&self, record: &DeliveryRecord, file: &File) -> Result<(), PassError> {
        let now = file.metadata().map(|it| FileStamp::from_metadata(&it));
        if now.is_ok_and(|now| now == record.sent()) {
            return Ok(());
        }
        let path = self.path_of(record);
        Err(UnshippedReason::ChangedWhileSent.of(&path).into())
    }

    fn path_of(&self, record: &DeliveryRecord) -> PathBuf {
        if record.copy.is_some() {
            return self.copy_path(record);
        }
        let flows = self.plan.flows_dir.as_deref();
        let dir = match record.kind {
            ContentKind::Packets => self.plan.dir.clone(),
            kind => source::table_dir(kind, flows.unwrap_or(&self.plan.dir)),
        };
        dir.join(&record.file)
    }
}

/// Returns the index that the capture wrote for a file, if the index matches the present file.
fn load_index(plan: &ShipPlan, file: &FoundCapture) -> Option<CaptureIndex> {
    let indexes = IndexFolder {
        folder: plan.index_dir.as_deref()?,
        dir: &plan.dir,
    };
    indexes.load(&file.path)
}

/// Returns `true` if a capture file was modified less than `than` ago. A clock that was set back
/// makes a file younger, so that it waits for its index a little longer.
fn is_younger(file: &FoundCapture, than: Duration) -> bool {
    let age = SystemTime::now().duration_since(file.stamp.modified());
    age.is_ok_and(|age| age < than)
}
