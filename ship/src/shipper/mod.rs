//! Takes files through their steps: found, begun, sent in parts, whole, verified, to be found.
//!
//! ```text
//! pass: take_in (folders -> journal) -> the next file -> steps -> ... until nothing is left to do
//! ```
//!
//! Flow records go before frames, what is begun before what is not, and the oldest first. A file that cannot be read, or
//! changes, waits for the next pass and is named; a store that does not answer ends the pass.
//!
//! Beside the passes, `lease` puts the sensor's status into the store, and ends them when another ships under its name.
//!
//! Invariants: a step is taken only when the one before it is in the journal, so a pass may end anywhere. A file that is being
//! sent is read through one descriptor: when retention deletes it meanwhile, all of it is still sent. Files count as deleted
//! only by a directory that is the one they were in. What the capture deletes is counted once, whether it was found before or not.

mod ahead;
mod copies;
mod dry_run;
#[cfg(test)]
pub(crate) mod fixtures;
mod lease;
mod run;
mod status;
mod steps;
#[cfg(test)]
mod tests;

pub use dry_run::{Planned, dry_run};
pub use run::{Mode, ShipError, run};
pub use status::Status;

use crate::{
    ShipPlan,
    bandwidth::Pace,
    blocks::{self, OfObject},
    journal::{DirStamp, FileId, Journal, JournalError, Kind, Record, State},
    key,
    source::{self, Found},
    store::{Store, StoreError},
};
use ahead::Ahead;
use bytes::BytesMut;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::task::spawn_blocking;
use wqcap_files::{
    folder::{
        FileStamp,
        expired::{self, ExpiredFile},
    },
    index::{self, CaptureIndex, IndexFolder},
    open::open_regular,
};

/// For so long the capture may still be writing a new file's index: to make another one would read the file twice.
const INDEX_TIME: Duration = Duration::from_secs(30);

/// Why a pass ends, or a file waits.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    /// The store does not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A folder cannot be read.
    #[error("{0}")]
    Folder(String),
    /// One file cannot be sent.
    #[error("{0}")]
    File(String),
}

/// Ships what one capture finishes.
struct Shipper {
    plan: ShipPlan,
    store: Arc<dyn Store>,
    journal: Journal,
    pace: Pace,
    status: Arc<Mutex<Status>>,
    /// The capture is under way, and may be writing indexes.
    follows: bool,
    /// Files without a record yet, since nobody has counted their frames.
    uncounted: Vec<Found>,
    /// Files that wait for the next pass, and why.
    later: BTreeMap<FileId, String>,
    /// Files whose sending began anew in this pass.
    begun_again: BTreeSet<FileId>,
    /// The digest of the next file, made while another is sent.
    ahead: Option<Ahead>,
    /// Memory of parts that have been sent.
    buffers: Vec<BytesMut>,
}

impl Shipper {
    fn new(plan: ShipPlan, store: Arc<dyn Store>, journal: Journal, follows: bool) -> Self {
        Self {
            pace: Pace::new(plan.bandwidth),
            plan,
            store,
            journal,
            status: Arc::default(),
            follows,
            uncounted: Vec::new(),
            later: BTreeMap::new(),
            begun_again: BTreeSet::new(),
            ahead: None,
            buffers: Vec::new(),
        }
    }

    /// Ships what there is, until nothing is left that can be.
    async fn pass(&mut self) -> Result<(), Trouble> {
        self.later.clear();
        self.begun_again.clear();
        let outcome = self.work().await;
        self.tell(|status| status.now = None);
        self.buffers.clear();
        outcome
    }

    async fn work(&mut self) -> Result<(), Trouble> {
        loop {
            self.take_in().await?;
            let Some(id) = self.next_file() else {
                if self.count_one().await? {
                    continue;
                }
                return Ok(());
            };
            self.tell(|status| status.now = Some(id.1.clone()));
            match self.advance(&id).await {
                Err(Trouble::File(problem)) => self.put_off(id, problem),
                other => other?,
            }
        }
    }

    /// What is to be done first.
    fn next_file(&self) -> Option<FileId> {
        self.first(|it| it.state != State::Shipped)
    }

    /// The first of these files in the order in which they are sent, but for those that wait.
    fn first(&self, wanted: impl Fn(&Record) -> bool) -> Option<FileId> {
        let waits = |it: &Record| self.later.contains_key(&it.id());
        let open = self.journal.records().filter(|it| wanted(it) && !waits(it));
        let order = |it: &&Record| (it.kind, it.state == State::Seen, it.ns, it.file.clone());
        open.min_by_key(order).map(Record::id)
    }

    fn put_off(&mut self, id: FileId, problem: String) {
        tracing::warn!("{problem}; the file waits");
        self.later.insert(id, problem);
        self.tell(|_| {});
    }

    /// Brings the journal to what is in the folders.
    async fn take_in(&mut self) -> Result<(), Trouble> {
        let mut found = Vec::new();
        if let Some(dir) = &self.plan.flows_dir {
            found.extend(self.listed("flows.dir", dir, source::tables)?);
        }
        found.extend(self.listed("output.dir", &self.plan.dir, source::packets)?);
        self.take_in_expired(&mut found)?;
        self.let_go(&found).await?;
        self.uncounted.clear();
        for file in found {
            if self.later.contains_key(&file.id()) || self.is_known(&file) {
                continue;
            }
            self.forget(&file.id()).await?;
            match file.kind {
                Kind::Flows | Kind::Dns | Kind::Dhcp => self.enter_table(&file)?,
                Kind::Packets => match load_index(&self.plan, &file) {
                    Some(index) => self.enter_packets(&file, &index)?,
                    None => self.uncounted.push(file),
                },
            }
        }
        self.tell(|_| {});
        Ok(())
    }

    /// Counts the files that the capture has deleted and no record is of. Those that have one go with it, so the lists are read
    /// after the folder and before its records end: whatever is gone has its line by then.
    fn take_in_expired(&mut self, found: &mut Vec<Found>) -> Result<(), Trouble> {
        let told = |e: io::Error| {
            let dir = self.plan.dir.display();
            Trouble::Folder(format!(
                "output.dir = \"{dir}\": what the capture has deleted: {e}"
            ))
        };
        let mut lines = expired::read(&self.plan.dir, self.journal.expired_read()).map_err(told)?;
        let is_known = |it: &ExpiredFile| {
            let id = (Kind::Packets, it.file.clone());
            self.journal.get(&id).is_some()
        };
        // One that is still there is about to go, or the capture was killed: it gets its record first.
        let is_there = |it: &ExpiredFile| {
            FileStamp::read(&self.plan.dir.join(&it.file)).is_ok_and(|now| now == it.stamp)
        };
        let waits = lines
            .iter()
            .position(|(it, _)| !is_known(it) && is_there(it));
        lines.truncate(waits.unwrap_or(lines.len()));
        let Some((_, read)) = lines.last() else {
            return Ok(());
        };
        let read = *read;
        let gone: Vec<_> = lines
            .into_iter()
            .map(|(it, _)| it)
            .filter(|it| !is_known(it))
            .collect();
        for it in &gone {
            tracing::warn!("{}: was deleted before it was sent", it.file);
            found.retain(|there| there.kind != Kind::Packets || there.name != it.file);
        }
        Ok(self.journal.enter_expired(gone.iter(), read)?)
    }

    /// What is in a directory, if it is the one that the journal's files are in: a file system that is not mounted looks like
    /// one that retention has emptied.
    fn listed(
        &self,
        key: &str,
        dir: &Path,
        list: fn(&Path) -> io::Result<Vec<Found>>,
    ) -> Result<Vec<Found>, Trouble> {
        let told = |e: &dyn Display| Trouble::Folder(format!("{key} = {:?}: {e}", dir.display()));
        let stamp = || DirStamp::read(dir).map_err(|e| told(&e));
        let before = stamp()?;
        let found = list(dir).map_err(|e| told(&e))?;
        let now = stamp()?;
        if now != before {
            return Err(told(&"became another directory while it was listed"));
        }
        let was = self.journal.dir_of(key)?;
        if was.is_some_and(|was| was.is_of(&now)) {
            return Ok(found);
        }
        let of_packets = key == "output.dir";
        let mut known = self.journal.records();
        let has_files = known.any(|it| (it.kind == Kind::Packets) == of_packets);
        let is_there = |it: &Found| {
            self.journal
                .get(&it.id())
                .is_some_and(|was| was.stamp == it.stamp)
        };
        if was.is_some() && has_files && !found.iter().any(is_there) {
            let noted = self.journal.dirs_path();
            return Err(told(&format_args!(
                "is another directory than before, without any file that the journal knows; is its file system mounted? If \
                 those files are gone for good, remove {}: they then count as expired_unshipped unless they were shipped",
                noted.display()
            )));
        }
        self.journal.set_dir(key, now)?;
        Ok(found)
    }

    /// Whether its record is of the file as it is now, and of what is to be done with it.
    fn is_known(&self, file: &Found) -> bool {
        let Some(record) = self.journal.get(&file.id()) else {
            return false;
        };
        let as_wanted = match record.kind {
            Kind::Flows | Kind::Dns | Kind::Dhcp => true,
            Kind::Packets => {
                let is_done = record.selected && record.state == State::Shipped;
                let wanted = self.plan.packets.of_each();
                // A copy is made when it is sent.
                let as_anonymous = record.state == State::Seen
                    || !record.selected
                    || record.copy.is_some() == self.plan.anonymize.is_some();
                is_done || as_anonymous && wanted.is_none_or(|it| it == record.selected)
            }
        };
        record.stamp == file.stamp && as_wanted
    }

    /// A file begins anew: what is in the store of it is given up.
    async fn forget(&mut self, id: &FileId) -> Result<(), Trouble> {
        let Some(record) = self.journal.get(id).cloned() else {
            return Ok(());
        };
        tracing::info!("{}: is sent anew", record.file);
        self.drop_copy(&record);
        if let State::Started { upload, .. } = &record.state {
            self.store.abort(&record.key, upload).await?;
        }
        self.journal.forget(id)?;
        self.tell(|status| status.changed_files += 1);
        Ok(())
    }

    /// Ends the records of files that are gone. What the store has in full goes on without its file.
    async fn let_go(&mut self, found: &[Found]) -> Result<(), Trouble> {
        let here: BTreeSet<_> = found.iter().map(Found::id).collect();
        let gone = self.journal.records().map(Record::id);
        let gone: Vec<_> = gone.filter(|it| !here.contains(it)).collect();
        let mut begun = Vec::new();
        for id in gone {
            let Some(record) = self.journal.get(&id).cloned() else {
                continue;
            };
            match record.state {
                State::Shipped => self.journal.fold(&id)?,
                State::Seen if record.selected => self.expire(&id)?,
                State::Started { upload, .. } => {
                    begun.push((id, record.key, upload));
                }
                State::Seen | State::Sent { .. } | State::Verified => {}
            }
        }
        // Last: the store may not answer, and all the others are told of.
        for (id, key, upload) in begun {
            self.store.abort(&key, &upload).await?;
            self.expire(&id)?;
        }
        Ok(())
    }

    fn expire(&mut self, id: &FileId) -> Result<(), Trouble> {
        tracing::warn!("{}: was deleted before it was sent", id.1);
        if let Some(record) = self.journal.get(id) {
            self.drop_copy(record);
        }
        self.journal.fold(id)?;
        self.tell(|_| {});
        Ok(())
    }

    fn enter_table(&mut self, file: &Found) -> Result<(), Trouble> {
        let key = key::table(file.kind, file.ns, &self.plan.sensor);
        Ok(self.journal.set(file.record(key))?)
    }

    fn enter_packets(&mut self, file: &Found, index: &CaptureIndex) -> Result<(), Trouble> {
        let Some(name) = copies::object_name(&self.plan, &file.path) else {
            return Ok(());
        };
        let sensor = &self.plan.sensor;
        let key = key::packets(&name, sensor);
        let selected = self.plan.packets.takes(index);
        let object = OfObject {
            key: selected.then_some(&key),
            bytes: file.stamp.len,
            queue: name.queue,
        };
        let blocks = blocks::write(index, object)
            .map_err(|e| Trouble::Folder(format!("{}: its blocks: {e}", file.path.display())))?;
        self.journal.set_blocks(&file.id(), &blocks)?;
        let record = Record {
            blocks_key: Some(key::blocks(&name, sensor)),
            frames: index.frames,
            selected,
            ..file.record(key)
        };
        Ok(self.journal.set(record)?)
    }

    /// Reads the oldest file that has no index; false: there is none to be read now.
    async fn count_one(&mut self) -> Result<bool, Trouble> {
        let is_due = |file: &&Found| {
            let indexed_soon = self.follows && self.plan.index_dir.is_some();
            !(indexed_soon && is_younger(file, INDEX_TIME))
        };
        let Some(file) = self.uncounted.iter().find(is_due).cloned() else {
            return Ok(false);
        };
        self.tell(|status| status.now = Some(file.name.clone()));
        let path = file.path.clone();
        let built = spawn_blocking(move || index::build(&path, || true)).await;
        match built {
            Ok(Ok(Some(index))) => self.enter_packets(&file, &index)?,
            Ok(Ok(None)) => {
                let problem = format!("{}: changed while it was read", file.path.display());
                self.put_off(file.id(), problem);
            }
            // The capture may have noted its frames when it deleted it; the next pass looks.
            Ok(Err(_)) if !file.path.exists() => {
                let problem = format!(
                    "{}: was deleted before its frames were counted; with output.index_dir they are counted sooner",
                    file.path.display()
                );
                self.put_off(file.id(), problem);
            }
            Ok(Err(e)) => self.put_off(file.id(), format!("{}: {e}", file.path.display())),
            Err(e) => self.put_off(file.id(), format!("{}: {e}", file.path.display())),
        }
        Ok(true)
    }

    /// Changes the status that others see, and brings it to what the journal says.
    fn tell(&self, change: impl FnOnce(&mut Status)) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.take(&self.journal, &self.uncounted, &self.later);
        change(&mut status);
    }

    /// The file of a record as it was found, to be read.
    fn open(&self, record: &Record) -> Result<File, Trouble> {
        let path = self.path_of(record);
        let failed = |e: io::Error| Trouble::File(format!("{}: {e}", path.display()));
        let file = open_regular(&path).map_err(failed)?;
        self.check(record, &file)?;
        Ok(file)
    }

    /// Whether a file is still what was found.
    fn check(&self, record: &Record, file: &File) -> Result<(), Trouble> {
        let now = file.metadata().map(|it| FileStamp::of(&it));
        if now.is_ok_and(|now| now == record.sent()) {
            return Ok(());
        }
        let path = self.path_of(record);
        Err(Trouble::File(format!(
            "{}: changes while it is sent",
            path.display()
        )))
    }

    fn path_of(&self, record: &Record) -> PathBuf {
        if record.copy.is_some() {
            return self.copy_path(record);
        }
        let flows = self.plan.flows_dir.as_deref();
        let dir = match record.kind {
            Kind::Packets => self.plan.dir.clone(),
            kind => source::table_dir(kind, flows.unwrap_or(&self.plan.dir)),
        };
        dir.join(&record.file)
    }
}

/// The index that the capture has made, if it is of the file as it is now.
fn load_index(plan: &ShipPlan, file: &Found) -> Option<CaptureIndex> {
    let indexes = IndexFolder {
        folder: plan.index_dir.as_deref()?,
        dir: &plan.dir,
    };
    Some(indexes.load(&file.path)?.0)
}

/// A clock that was set back makes a file younger, and it waits for its index a little longer.
fn is_younger(file: &Found, than: Duration) -> bool {
    let age = SystemTime::now().duration_since(file.stamp.modified());
    age.is_ok_and(|age| age < than)
}
