//! Journal of deliveries: a small record per file, on the disk before the next step is taken.
//!
//! ```text
//! <journal>/ledger.json                  frames of deleted files; the journal's instance
//! <journal>/dirs.json                    identities of the directories that hold the files
//! <journal>/packets/<file>.json          record of a capture file that exists or is being shipped
//! <journal>/packets/<file>.parquet       table of its blocks and a checksum, until it is put
//! <journal>/flows/<file>.json            record of a file of flow records
//! <journal>/dns/<file>.json              record of a table of DNS
//! <journal>/dhcp/<file>.json             record of a table of DHCP
//! ```
//!
//! A record is removed together with its file. Its frames are then added to `ledger.json`, which
//! names the record in the same write: a record that a crash left behind is not counted again.
//! `ledger.json` also counts the frames of files that the capture deleted before the journal had a
//! record of them, and holds the read position in the capture's lists of such files.
//!
//! Invariants: each file of the journal is complete, with either the old or the new content. One
//! process at a time writes a journal. A journal belongs to one sensor and one store.

mod dirs;
mod disk;
mod error;

pub(crate) use dirs::DirStamp;
pub use error::{JournalError, JournalFileError};
pub use wqcap_files::folder::delivery::{ContentKind, DeliveryRecord, DeliveryState, FileId};

use crate::ledger::{DeliveryLedger, FrameState};
use bytes::Bytes;
use dirs::Dirs;
use disk::{check_version, read_folder, read_json, remove, write_json, write_synced};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};
use wqcap_files::{
    folder::open::{MOST_TABLE, read_regular},
    folder::{
        delivery::{SUMS, VERSION},
        expired::{ExpiredFile, ListPosition},
        sync_folder,
    },
    pin::FolderLock,
};
use xxhash_rust::xxh3::xxh3_64;

/// Suffix that the name of a capture file gets for the journal file with its Parquet table of
/// blocks.
const BLOCKS: &str = ".parquet";

/// Last bytes of a journal file with a table of blocks: they follow the checksum (XXH3, 64 bits,
/// little endian).
const CHECKED: &[u8] = b"XXH3";

/// Maximum number of processes that a delivery journal names.
const MOST_RUNS: usize = 64;
/// Number of processes that a delivery journal names after one has written a sensor status: a store
/// may return an older status.
const KEPT_RUNS: usize = 16;

/// Content of the delivery journal's file `ledger.json`: sums over deleted files, and the journal's
/// owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct JournalSums {
    version: u32,
    sensor: String,
    store: String,
    /// Random identifier of the delivery journal.
    #[serde(default)]
    instance: String,
    /// Random identifiers of the processes that used this journal, the present one last. One of
    /// them wrote the sensor's status that is in the store, unless another journal's process did.
    #[serde(default)]
    runs: Vec<String>,
    /// Set when a process with this journal has written a sensor status to the store.
    #[serde(default)]
    has_status: bool,
    /// Numbers of frames by delivery state in files that were deleted.
    frames: DeliveryLedger,
    /// Number of capture files that were deleted before they were sent to the store.
    expired_files: u64,
    /// Number of files of flow records, DNS and DHCP that were deleted before they were sent to the
    /// store.
    expired_flow_files: u64,
    /// Number of capture files that were deleted before `wqcap ship` counted their frames.
    #[serde(default)]
    expired_uncounted_files: u64,
    /// Position up to which the capture's lists of deleted files have been read.
    #[serde(default)]
    expired_read: ListPosition,
    /// Key of the delivery record that was last added to the sums; the record's journal file may
    /// still exist.
    folded: Option<FileId>,
}

/// Delivery journal of a sensor, opened for reading or writing.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    sums: JournalSums,
    records: BTreeMap<FileId, DeliveryRecord>,
    /// Errors of the delivery records that cannot be used, by their paths, until they are written
    /// again.
    unsound: BTreeMap<PathBuf, JournalError>,
    _lock: Option<FolderLock>,
}

impl Journal {
    /// Opens a delivery journal for writing; creates it if it is missing.
    ///
    /// # Errors
    /// The journal cannot be read or written, belongs to another sensor or store, or is in use by
    /// another process.
    pub fn open(dir: &Path, sensor: &str, store: &str) -> Result<Self, JournalError> {
        for kind in ContentKind::ALL {
            let folder = dir.join(kind.folder());
            fs::create_dir_all(&folder).map_err(|source| JournalError::io(&folder, source))?;
        }
        let busy = || JournalError::Busy { dir: dir.into() };
        let lock = FolderLock::take(dir).ok_or_else(busy)?;
        let mut it = Self::read(dir, sensor, store)?;
        it._lock = Some(lock);
        for e in it.unsound.values() {
            tracing::warn!("{e}");
        }
        it.remove_counted()?;
        it.remove_leftovers()?;
        let [instance, run] = [random_name()?, random_name()?];
        it.change_sums(|sums| {
            sums.folded = None;
            if sums.instance.is_empty() {
                sums.instance = instance;
            }
            sums.runs.push(run);
            // One of the first ones may have written the status in the store.
            if sums.runs.len() > MOST_RUNS {
                sums.runs.remove(KEPT_RUNS);
            }
        })?;
        Ok(it)
    }

    /// Reads a delivery journal without changing it. A missing journal is empty.
    ///
    /// # Errors
    /// The journal cannot be read, or belongs to another sensor or store.
    pub fn read(dir: &Path, sensor: &str, store: &str) -> Result<Self, JournalError> {
        let path = dir.join(SUMS);
        let sums = read_json::<JournalSums>(&path)?.unwrap_or_else(|| JournalSums {
            version: VERSION,
            sensor: sensor.into(),
            store: store.into(),
            ..JournalSums::default()
        });
        check_version(&path, sums.version)?;
        if (sums.sensor.as_str(), sums.store.as_str()) != (sensor, store) {
            return Err(JournalError::Foreign {
                dir: dir.into(),
                of: (sums.sensor, sums.store),
                wanted: (sensor.into(), store.into()),
            });
        }
        let mut records = BTreeMap::new();
        let mut unsound = BTreeMap::new();
        for kind in ContentKind::ALL {
            for record in read_folder(&dir.join(kind.folder()), &mut unsound)? {
                records.insert(record.id(), record);
            }
        }
        Ok(Self {
            dir: dir.into(),
            sums,
            records,
            unsound,
            _lock: None,
        })
    }

    /// Returns the delivery journal's random identifier. Processes that use one journal are one
    /// instance of a sensor.
    pub fn instance(&self) -> &str {
        &self.sums.instance
    }

    /// Returns the random identifiers of the processes that used this journal, the present one
    /// last.
    pub(crate) fn runs(&self) -> &[String] {
        &self.sums.runs
    }

    /// Returns `true` if a process with this journal has written a sensor status to the store.
    pub(crate) fn has_status(&self) -> bool {
        self.sums.has_status
    }

    /// Records the identifier of the instance under which this process ships. If the process has
    /// written a sensor status (`is_held`), the journal names only the latest [`KEPT_RUNS`].
    pub(crate) fn set_instance(
        &mut self,
        instance: &str,
        is_held: bool,
    ) -> Result<(), JournalError> {
        let earlier = match is_held {
            true => self.sums.runs.len().saturating_sub(KEPT_RUNS),
            false => 0,
        };
        let has_status = self.sums.has_status || is_held;
        if self.sums.instance == instance && earlier == 0 && self.sums.has_status == has_status {
            return Ok(());
        }
        self.change_sums(|sums| {
            sums.instance = instance.to_owned();
            sums.has_status = has_status;
            sums.runs.drain(..earlier);
        })
    }

    /// Returns the journal's delivery records of all files.
    pub fn records(&self) -> impl Iterator<Item = &DeliveryRecord> {
        self.records.values()
    }

    /// Returns the delivery record of the file `id` from the journal.
    pub fn get(&self, id: &FileId) -> Option<&DeliveryRecord> {
        self.records.get(id)
    }

    /// Returns the problems of the delivery journal, a line each: records that cannot be used,
    /// whose files count as not shipped, and sums of frames that are inconsistent.
    pub fn problems(&self) -> Vec<String> {
        let unsound = self.unsound.values().map(ToString::to_string);
        let wrong = (!self.ledger().adds_up()).then(|| {
            let path = self.dir.join(SUMS);
            format!(
                "{}: the delivery ledger does not add up: captured is not the sum of shipped, pending, not_selected and expired_unshipped",
                path.display()
            )
        });
        unsound.chain(wrong).collect()
    }

    /// Returns the delivery ledger: the number of captured frames in each delivery state.
    pub fn ledger(&self) -> DeliveryLedger {
        let mut ledger = self.sums.frames;
        let records = self.records.iter();
        for (_, record) in records.filter(|(id, _)| self.sums.folded.as_ref() != Some(id)) {
            ledger.add_frames(FrameState::from_record(record), record.frames);
        }
        ledger
    }

    /// Returns the number of capture files, and of flow, DNS and DHCP files, that were deleted
    /// before they were sent to the store.
    pub fn expired_files(&self) -> (u64, u64) {
        (self.sums.expired_files, self.sums.expired_flow_files)
    }

    /// Returns the number of capture files that were deleted unsent and uncounted: their frames are
    /// not in the delivery ledger.
    pub fn expired_uncounted_files(&self) -> u64 {
        self.sums.expired_uncounted_files
    }

    /// Returns the position up to which the capture's lists of deleted files have been read.
    pub(crate) fn expired_read(&self) -> ListPosition {
        self.sums.expired_read
    }

    /// Counts deleted capture files that have no delivery record, and stores `read`, the position
    /// after them in the capture's lists of deleted files. `None` is the file of a damaged line.
    pub(crate) fn enter_expired(
        &mut self,
        files: &[Option<ExpiredFile>],
        read: ListPosition,
    ) -> Result<(), JournalError> {
        self.change_sums(|sums| {
            for file in files {
                sums.expired_files += 1;
                match file.as_ref().and_then(|it| it.frames) {
                    Some(frames) => sums.frames.add_frames(FrameState::Expired, frames),
                    None => sums.expired_uncounted_files += 1,
                }
            }
            sums.expired_read = read;
        })
    }

    /// Writes a file's delivery record to the journal, and replaces an earlier one of that file.
    pub(crate) fn set(&mut self, record: DeliveryRecord) -> Result<(), JournalError> {
        let id = record.id();
        // A new file may have the name of a deleted one.
        if self.sums.folded.as_ref() == Some(&id) {
            self.change_sums(|sums| sums.folded = None)?;
        }
        let path = self.record_path(&id);
        write_json(&path, &record)?;
        self.unsound.remove(&path);
        self.records.insert(id, record);
        Ok(())
    }

    /// Writes a file's new delivery state to its record in the journal.
    pub(crate) fn set_state(
        &mut self,
        id: &FileId,
        state: DeliveryState,
    ) -> Result<(), JournalError> {
        let Some(record) = self.records.get(id) else {
            return Ok(());
        };
        self.set(DeliveryRecord {
            state,
            ..record.clone()
        })
    }

    /// Writes the Parquet table of a capture file's blocks to the journal, with a checksum.
    pub(crate) fn set_blocks(&self, id: &FileId, blocks: &[u8]) -> Result<(), JournalError> {
        let checksum = xxh3_64(blocks).to_le_bytes();
        write_synced(
            &self.blocks_path(id),
            &[blocks, &checksum, CHECKED].concat(),
        )
    }

    /// Reads the Parquet table of a capture file's blocks from the journal; `None`: the table is
    /// damaged.
    pub(crate) fn blocks(&self, id: &FileId) -> Result<Option<Bytes>, JournalError> {
        let path = self.blocks_path(id);
        match read_regular(&path, MOST_TABLE) {
            Ok(content) => Ok(unchecked(content.into())),
            Err(source) => Err(JournalError::io(&path, source)),
        }
    }

    /// Removes the Parquet table of a capture file's blocks from the journal, after it was written
    /// to the store.
    pub(crate) fn drop_blocks(&self, id: &FileId) -> Result<(), JournalError> {
        remove(&self.blocks_path(id))
    }

    /// Removes the delivery record of a file that was replaced by another file of that name, which
    /// is counted from the start.
    pub(crate) fn forget(&mut self, id: &FileId) -> Result<(), JournalError> {
        self.records.remove(id);
        self.remove_files(id)
    }

    /// Removes a deleted file's delivery record from the journal, and adds its frames to the
    /// journal's sums.
    pub(crate) fn end_record(&mut self, id: &FileId) -> Result<(), JournalError> {
        self.remove_counted()?;
        let Some(record) = self.records.get(id) else {
            return Ok(());
        };
        let (state, kind, frames) = (record.state.clone(), record.kind, record.frames);
        let fate = match FrameState::from_record(record) {
            FrameState::Pending => FrameState::Expired,
            fate => fate,
        };
        self.change_sums(|sums| {
            if state != DeliveryState::Shipped {
                match kind {
                    ContentKind::Packets => sums.expired_files += 1,
                    ContentKind::Flows | ContentKind::Dns | ContentKind::Dhcp => {
                        sums.expired_flow_files += 1
                    }
                }
            }
            sums.frames.add_frames(fate, frames);
            sums.folded = Some(id.clone());
        })?;
        self.remove_counted()
    }

    /// Removes the delivery record that was last added to the journal's sums, if a crash or an error
    /// left it.
    fn remove_counted(&mut self) -> Result<(), JournalError> {
        let Some(id) = self.sums.folded.clone() else {
            return Ok(());
        };
        if self.records.contains_key(&id) {
            self.remove_files(&id)?;
            self.records.remove(&id);
        }
        Ok(())
    }

    /// Returns the recorded identity of the source directory that the configuration key `key`
    /// names. The journal's `dirs.json` is read on each call, so that a user who replaced the
    /// directory can remove it.
    pub(crate) fn dir_of(&self, key: &str) -> Result<Option<DirStamp>, JournalError> {
        Ok(Dirs::read(&self.dirs_path())?.dirs.remove(key))
    }

    /// Records the identity of the source directory that the configuration key `key` names.
    pub(crate) fn set_dir(&self, key: &str, stamp: DirStamp) -> Result<(), JournalError> {
        let path = self.dirs_path();
        let mut it = Dirs::read(&path)?;
        it.dirs.insert(key.into(), stamp);
        write_json(&path, &it)
    }

    /// Returns the path of `dirs.json`, the journal file with the identities of the source
    /// directories.
    pub(crate) fn dirs_path(&self) -> PathBuf {
        self.dir.join(dirs::NAME)
    }

    /// Changes the sums in the journal's file, and then those of this process. After an error both
    /// are unchanged.
    fn change_sums(&mut self, change: impl FnOnce(&mut JournalSums)) -> Result<(), JournalError> {
        let mut sums = self.sums.clone();
        change(&mut sums);
        write_json(&self.dir.join(SUMS), &sums)?;
        self.sums = sums;
        Ok(())
    }

    fn remove_files(&self, id: &FileId) -> Result<(), JournalError> {
        // The record is removed last: it is what leads to the blocks.
        remove(&self.blocks_path(id))?;
        remove(&self.record_path(id))?;
        sync_folder(&self.dir.join(id.0.folder()));
        Ok(())
    }

    /// Removes tables of blocks that a crash or a failed removal left in the journal: those of
    /// shipped files, and those of files without a delivery record.
    fn remove_leftovers(&self) -> Result<(), JournalError> {
        let folder = self.dir.join(ContentKind::Packets.folder());
        let failed = |e| JournalError::io(&folder, e);
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            // A directory is not of the journal.
            if entry.file_type().is_ok_and(|it| it.is_dir()) {
                continue;
            }
            let Some(file) = name.to_str().and_then(|it| it.strip_suffix(BLOCKS)) else {
                continue;
            };
            let record = self.get(&(ContentKind::Packets, file.to_owned()));
            if record.is_none_or(|it| it.state == DeliveryState::Shipped) {
                remove(&folder.join(&name))?;
            }
        }
        Ok(())
    }

    fn record_path(&self, (kind, file): &FileId) -> PathBuf {
        kind.record(&self.dir, file)
    }

    fn blocks_path(&self, (kind, file): &FileId) -> PathBuf {
        self.dir.join(kind.folder()).join(format!("{file}{BLOCKS}"))
    }
}

/// Returns a journal file's table of blocks without its checksum; `None`: the checksum is wrong or
/// absent. Version 0.1 wrote tables without a checksum, which end like every Parquet file.
fn unchecked(content: Bytes) -> Option<Bytes> {
    const PARQUET: &[u8] = b"PAR1";
    if content.starts_with(PARQUET) && content.ends_with(PARQUET) {
        return Some(content);
    }
    let (blocks, checksum) = content.strip_suffix(CHECKED)?.split_last_chunk()?;
    let is_sound = xxh3_64(blocks) == u64::from_le_bytes(*checksum);
    is_sound.then(|| content.slice(..blocks.len()))
}

/// Returns a random identifier as 32 hex digits.
pub(crate) fn random_name() -> Result<String, JournalError> {
    let mut bytes = [0; 16];
    let filled = getrandom::fill(&mut bytes).map_err(io::Error::other);
    filled.map_err(|e| JournalError::io(Path::new("/dev/urandom"), e))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_files::folder::FileStamp;

    fn record(name: &str, frames: u64, state: DeliveryState) -> DeliveryRecord {
        // Any existing file.
        let stamp = FileStamp::read(Path::new(env!("CARGO_MANIFEST_DIR")));
        DeliveryRecord {
            version: VERSION,
            kind: ContentKind::Packets,
            file: name.into(),
            stamp: stamp.expect("there"),
            ns: 5,
            key: format!("packets/{name}"),
            blocks_key: None,
            frames,
            selected: true,
            copy: None,
            copy_params: None,
            state,
        }
    }

    fn open(dir: &Path) -> Journal {
        Journal::open(dir, "a", "file:///x").expect("opens")
    }

    #[test]
    fn records_are_read_back() {
        let dir = tempfile::tempdir().expect("dir");
        let started = DeliveryState::Started {
            upload: "id".into(),
            part_bytes: 4,
            parts: vec![Some("e".into()), None],
        };
        let states = [
            DeliveryState::Seen,
            started,
            DeliveryState::Sent {
                etag: Some("\"e\"".into()),
            },
            DeliveryState::Verified,
            DeliveryState::Shipped,
        ];
        let mut journal = open(dir.path());
        for (i, state) in states.iter().enumerate() {
            let record = record(&format!("{i}.pcap"), 10, state.clone());
            journal.set(record).expect("written");
        }
        let before = journal.records.clone();
        let ledger = journal.ledger();
        let instance = journal.instance().to_owned();
        assert_eq!(
            (ledger.captured, ledger.shipped, ledger.pending),
            (50, 10, 40)
        );
        drop(journal);
        // A crash during a write leaves a hidden file.
        fs::write(dir.path().join("packets/.9.pcap.json"), "{").expect("written");
        let journal = open(dir.path());
        assert_eq!(journal.records, before);
        assert_eq!(journal.ledger(), ledger);
        assert_eq!(journal.instance(), instance);
        let other = tempfile::tempdir().expect("dir");
        assert_ne!(open(other.path()).instance(), instance);
    }

    #[test]
    fn processes_are_named_until_one_has_written_a_status() {
        let dir = tempfile::tempdir().expect("dir");
        let first = open(dir.path()).runs().to_vec();
        assert_eq!(first.len(), 1);
        for _ in 0..MOST_RUNS {
            assert_eq!(open(dir.path()).runs()[..1], first);
        }
        let mut journal = open(dir.path());
        assert_eq!(journal.runs().len(), MOST_RUNS);
        journal.set_instance("other", false).expect("written");
        assert_eq!(journal.runs().len(), MOST_RUNS);
        assert!(!journal.has_status());
        journal.set_instance("other", true).expect("written");
        let now = journal.runs().to_vec();
        drop(journal);
        let journal = open(dir.path());
        assert_eq!((journal.instance(), now.len()), ("other", KEPT_RUNS));
        assert_eq!(journal.runs()[..KEPT_RUNS], now);
        assert!(journal.has_status());
    }

    #[test]
    fn tables_that_no_file_needs_are_removed() {
        let dir = tempfile::tempdir().expect("dir");
        let mut journal = open(dir.path());
        let all = [
            record("a.pcap", 1, DeliveryState::Shipped),
            record("b.pcap", 10, DeliveryState::Verified),
        ];
        for record in all {
            journal.set_blocks(&record.id(), b"table").expect("written");
            journal.set(record).expect("written");
        }
        let without = (ContentKind::Packets, "c.pcap".to_owned());
        journal.set_blocks(&without, b"table").expect("written");
        fs::create_dir(dir.path().join("packets/d.pcap.parquet")).expect("made");
        drop(journal);
        let journal = open(dir.path());
        let kept = ["a.pcap", "b.pcap", "c.pcap"].map(|name| {
            let path = journal.blocks_path(&(ContentKind::Packets, name.into()));
            path.exists()
        });
        assert_eq!(kept, [false, true, false]);
    }

    #[test]
    fn directories_are_noted_until_their_file_is_removed() {
        let dir = tempfile::tempdir().expect("dir");
        let journal = open(dir.path());
        let of = |key| journal.dir_of(key).expect("reads");
        assert_eq!(of("output.dir"), None);
        let stamp = DirStamp::read(dir.path()).expect("there");
        for key in ["output.dir", "flows.dir"] {
            journal.set_dir(key, stamp).expect("written");
        }
        assert_eq!([of("output.dir"), of("flows.dir")], [Some(stamp); 2]);
        fs::remove_file(journal.dirs_path()).expect("there");
        assert_eq!(of("flows.dir"), None);
    }

    #[test]
    fn frames_of_deleted_files_are_counted_once() {
        let dir = tempfile::tempdir().expect("dir");
        let mut journal = open(dir.path());
        let all = [
            record("a.pcap", 1, DeliveryState::Shipped),
            record("b.pcap", 10, DeliveryState::Seen),
            DeliveryRecord {
                selected: false,
                ..record("c.pcap", 100, DeliveryState::Shipped)
            },
        ];
        for record in &all {
            journal.set(record.clone()).expect("written");
        }
        journal
            .set_blocks(&all[1].id(), b"blocks")
            .expect("written");
        let mut left_behind = Vec::new();
        for record in &all {
            let path = journal.record_path(&record.id());
            left_behind.push((path.clone(), fs::read(path).expect("there")));
        }
        for (record, (path, bytes)) in all.iter().zip(&left_behind) {
            journal.end_record(&record.id()).expect("written");
            assert!(!path.exists());
            // The process was killed before the record was removed.
            fs::write(path, bytes).expect("written");
            drop(journal);
            journal = open(dir.path());
            assert!(!path.exists());
        }
        let sums = DeliveryLedger {
            captured: 111,
            shipped: 1,
            pending: 0,
            not_selected: 100,
            expired_unshipped: 10,
        };
        assert_eq!(journal.ledger(), sums);
        assert_eq!(journal.expired_files(), (1, 0));
        assert!(!journal.blocks_path(&all[1].id()).exists());
        // A later file of the same name counts as another file.
        journal.set(all[2].clone()).expect("written");
        journal.end_record(&all[2].id()).expect("written");
        journal.set(all[2].clone()).expect("written");
        drop(journal);
        assert_eq!(open(dir.path()).ledger().not_selected, 300);
    }

    #[test]
    fn a_damaged_table_is_recognised() {
        let dir = tempfile::tempdir().expect("dir");
        fs::create_dir(dir.path().join("packets")).expect("made");
        let journal = open(dir.path());
        let id = (ContentKind::Packets, "a.pcap".to_owned());
        let table = b"PAR1 columns PAR1";
        journal.set_blocks(&id, table).expect("written");
        assert_eq!(
            journal.blocks(&id).expect("read").as_deref(),
            Some(&table[..])
        );
        let path = journal.blocks_path(&id);
        let written = fs::read(&path).expect("written");
        let mut changed = written.clone();
        changed[6] ^= 1;
        for damaged in [&written[..written.len() / 2], &written[..9], &[], &changed] {
            fs::write(&path, damaged).expect("written");
            assert_eq!(journal.blocks(&id).expect("read"), None, "{damaged:?}");
        }
        // As version 0.1 wrote it.
        fs::write(&path, table).expect("written");
        assert_eq!(
            journal.blocks(&id).expect("read").as_deref(),
            Some(&table[..])
        );
    }

    #[test]
    fn a_journal_belongs_to_one_sensor_and_one_store() {
        let dir = tempfile::tempdir().expect("dir");
        let journal = open(dir.path());
        let others = [("b", "file:///x"), ("a", "file:///y")];
        for (sensor, store) in others {
            let refused = Journal::read(dir.path(), sensor, store);
            assert!(matches!(refused, Err(JournalError::Foreign { .. })));
        }
        drop(journal);
        fs::write(dir.path().join(SUMS), "torn").expect("written");
        let refused = Journal::read(dir.path(), "a", "file:///x");
        assert!(matches!(refused, Err(JournalError::Unsound { .. })));
    }

    #[test]
    fn a_damaged_record_is_named_and_its_file_not_shipped() {
        let dir = tempfile::tempdir().expect("dir");
        let mut journal = open(dir.path());
        let names = ["a.pcap", "b.pcap", "c.pcap", "d.pcap"];
        for name in names {
            let record = record(name, 10, DeliveryState::Shipped);
            journal.set(record).expect("written");
        }
        let path = |name: &str| ContentKind::Packets.record(dir.path(), name);
        // A changed number, another file's record, and a sparse file.
        let text = fs::read_to_string(path("a.pcap")).expect("there");
        let changed = text.replace("\"frames\":10", "\"frames\":11");
        assert_ne!(changed, text);
        fs::write(path("a.pcap"), changed).expect("written");
        fs::copy(path("d.pcap"), path("b.pcap")).expect("copied");
        let sparse = fs::File::create(path("c.pcap")).expect("made");
        sparse.set_len(1 << 40).expect("sparse");
        drop(journal);
        let mut journal = open(dir.path());
        let left: Vec<_> = journal.records().map(|it| it.file.as_str()).collect();
        assert_eq!(left, ["d.pcap"]);
        let problems = journal.problems();
        assert_eq!(problems.len(), 3);
        for (problem, (name, part)) in problems.iter().zip([
            ("a.pcap", "checksum"),
            ("b.pcap", "another file"),
            ("c.pcap", "the limit"),
        ]) {
            assert!(
                problem.contains(name) && problem.contains(part),
                "{problem}"
            );
        }
        let again = record("a.pcap", 10, DeliveryState::Seen);
        journal.set(again).expect("written");
        assert_eq!(journal.problems().len(), 2);
    }

    #[test]
    fn a_ledger_that_does_not_add_up_is_a_problem() {
        let dir = tempfile::tempdir().expect("dir");
        let mut journal = open(dir.path());
        assert_eq!(journal.problems(), [""; 0]);
        let changed = journal.change_sums(|sums| sums.frames.captured = 1);
        changed.expect("written");
        drop(journal);
        let problems = open(dir.path()).problems();
        assert!(problems.len() == 1 && problems[0].contains("does not add up"));
    }
}
