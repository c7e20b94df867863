//! How far each file is on its way: a small record a file, on the disk before the next step is taken.
//!
//! ```text
//! <journal>/ledger.json                  frames of files that are gone; the journal's instance
//! <journal>/dirs.json                    which directories the files are in
//! <journal>/packets/<file>.json          the record of a capture file that is there, or on its way
//! <journal>/packets/<file>.parquet       its blocks, until they are put
//! <journal>/flows/<file>.json            the record of a file of flow records
//! <journal>/dns/<file>.json              the record of a table of DNS
//! <journal>/dhcp/<file>.json             the record of a table of DHCP
//! ```
//!
//! A record goes with its file. Its frames are then in `ledger.json`, which names in the same write the record that they are
//! from: one that a crash left behind is not counted again. It also has the frames of files that the capture deleted before the
//! journal had a record of them, and how far the capture's lists of such files have been read.
//!
//! Invariants: a file of the journal is whole, and the old or the new. One process at a time writes a journal, and it is of one
//! sensor and one store.

mod dirs;
mod disk;
mod error;

pub(crate) use dirs::DirStamp;
pub use error::JournalError;
pub use wqcap_files::folder::delivery::{FileId, Kind, Record, State};

use crate::ledger::{DeliveryLedger, Fate};
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
    folder::{
        delivery::{SUMS, VERSION},
        expired::{ExpiredFile, ListPosition},
        sync_folder,
    },
    open::{MOST_TABLE, read_regular},
    pin::FolderLock,
};

/// What a file's blocks have behind its name.
const BLOCKS: &str = ".parquet";

/// What is left of files that are gone, and whose journal it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sums {
    version: u32,
    sensor: String,
    store: String,
    /// What tells it from all other journals.
    #[serde(default)]
    instance: String,
    /// Of files that are gone.
    frames: DeliveryLedger,
    /// Files that went before they were sent: of frames, and of flow records.
    expired_files: u64,
    expired_flow_files: u64,
    /// Files that went before anybody had counted their frames.
    #[serde(default)]
    expired_uncounted_files: u64,
    /// How far the capture's lists have been read.
    #[serde(default)]
    expired_read: ListPosition,
    /// The record that was added last, which may still be there.
    folded: Option<FileId>,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    sums: Sums,
    records: BTreeMap<FileId, Record>,
    _lock: Option<FolderLock>,
}

impl Journal {
    /// Opens a journal, or makes a new one.
    ///
    /// # Errors
    /// It cannot be read or written, is another's, or another process writes it.
    pub fn open(dir: &Path, sensor: &str, store: &str) -> Result<Self, JournalError> {
        for kind in Kind::ALL {
            let folder = dir.join(kind.folder());
            fs::create_dir_all(&folder).map_err(|source| JournalError::io(&folder, source))?;
        }
        let busy = || JournalError::Busy { dir: dir.into() };
        let lock = FolderLock::take(dir).ok_or_else(busy)?;
        let mut it = Self::read(dir, sensor, store)?;
        it._lock = Some(lock);
        // What was added to the sums and not yet removed.
        if let Some(id) = it.sums.folded.take()
            && it.records.remove(&id).is_some()
        {
            it.remove_files(&id)?;
        }
        if it.sums.instance.is_empty() {
            it.sums.instance = random_name()?;
        }
        it.write_sums()?;
        Ok(it)
    }

    /// Reads a journal as it is; where there is none, an empty one.
    ///
    /// # Errors
    /// It cannot be read, or is another's.
    pub fn read(dir: &Path, sensor: &str, store: &str) -> Result<Self, JournalError> {
        let path = dir.join(SUMS);
        let sums = read_json::<Sums>(&path)?.unwrap_or_else(|| Sums {
            version: VERSION,
            sensor: sensor.into(),
            store: store.into(),
            instance: String::new(),
            frames: DeliveryLedger::default(),
            expired_files: 0,
            expired_flow_files: 0,
            expired_uncounted_files: 0,
            expired_read: ListPosition::default(),
            folded: None,
        });
        check_version(&path, sums.version)?;
        if (sums.sensor.as_str(), sums.store.as_str()) != (sensor, store) {
            let named =
                |sensor: &str, store: &str| format!("sensor {sensor:?} and store {store:?}");
            return Err(JournalError::Foreign {
                dir: dir.into(),
                of: named(&sums.sensor, &sums.store),
                wanted: named(sensor, store),
            });
        }
        let mut records = BTreeMap::new();
        for kind in Kind::ALL {
            for record in read_folder(&dir.join(kind.folder()))? {
                records.insert(record.id(), record);
            }
        }
        Ok(Self {
            dir: dir.into(),
            sums,
            records,
            _lock: None,
        })
    }

    /// What tells it from all other journals: whoever goes on with it is the same instance of a sensor.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.sums.instance
    }

    /// All records.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// A file's record.
    #[must_use]
    pub fn get(&self, id: &FileId) -> Option<&Record> {
        self.records.get(id)
    }

    /// Where all captured frames are.
    #[must_use]
    pub fn ledger(&self) -> DeliveryLedger {
        let mut ledger = self.sums.frames;
        for record in self.records.values() {
            ledger.enter(Fate::of(record), record.frames);
        }
        ledger
    }

    /// Files that went before they were sent: of frames, and of flow records.
    #[must_use]
    pub fn expired_files(&self) -> (u64, u64) {
        (self.sums.expired_files, self.sums.expired_flow_files)
    }

    /// Of the former, files whose frames nobody had counted: they are not in the ledger.
    #[must_use]
    pub fn expired_uncounted_files(&self) -> u64 {
        self.sums.expired_uncounted_files
    }

    /// How far the capture's lists of files that went have been read.
    pub(crate) fn expired_read(&self) -> ListPosition {
        self.sums.expired_read
    }

    /// Files went that no record is of; with them the capture's lists have been read up to there.
    pub(crate) fn enter_expired<'a>(
        &mut self,
        files: impl Iterator<Item = &'a ExpiredFile>,
        read: ListPosition,
    ) -> Result<(), JournalError> {
        for file in files {
            self.sums.expired_files += 1;
            match file.frames {
                Some(frames) => self.sums.frames.enter(Fate::Expired, frames),
                None => self.sums.expired_uncounted_files += 1,
            }
        }
        self.sums.expired_read = read;
        self.write_sums()
    }

    /// Writes a record in place of an earlier one.
    pub(crate) fn set(&mut self, record: Record) -> Result<(), JournalError> {
        let id = record.id();
        // A file of the same name as one that is gone is another file.
        if self.sums.folded.as_ref() == Some(&id) {
            self.sums.folded = None;
            self.write_sums()?;
        }
        write_json(&self.record_path(&id), &record)?;
        self.records.insert(id, record);
        Ok(())
    }

    /// Writes how far a file is.
    pub(crate) fn set_state(&mut self, id: &FileId, state: State) -> Result<(), JournalError> {
        let Some(record) = self.records.get(id) else {
            return Ok(());
        };
        self.set(Record {
            state,
            ..record.clone()
        })
    }

    /// Writes a file's blocks.
    pub(crate) fn set_blocks(&self, id: &FileId, blocks: &[u8]) -> Result<(), JournalError> {
        write_synced(&self.blocks_path(id), blocks)
    }

    /// A file's blocks.
    pub(crate) fn blocks(&self, id: &FileId) -> Result<Bytes, JournalError> {
        let path = self.blocks_path(id);
        match read_regular(&path, MOST_TABLE) {
            Ok(blocks) => Ok(blocks.into()),
            Err(source) => Err(JournalError::io(&path, source)),
        }
    }

    /// Removes a file's blocks, which have been put.
    pub(crate) fn drop_blocks(&self, id: &FileId) -> Result<(), JournalError> {
        remove(&self.blocks_path(id))
    }

    /// Takes a file's record away, since the file is another one by now, which is counted anew.
    pub(crate) fn forget(&mut self, id: &FileId) -> Result<(), JournalError> {
        self.records.remove(id);
        self.remove_files(id)
    }

    /// Takes a file's record away, since the file is gone, and keeps its frames in the sums.
    pub(crate) fn fold(&mut self, id: &FileId) -> Result<(), JournalError> {
        let Some(record) = self.records.get(id) else {
            return Ok(());
        };
        let fate = match Fate::of(record) {
            Fate::Pending => Fate::Expired,
            fate => fate,
        };
        if record.state != State::Shipped {
            match record.kind {
                Kind::Packets => self.sums.expired_files += 1,
                Kind::Flows | Kind::Dns | Kind::Dhcp => self.sums.expired_flow_files += 1,
            }
        }
        self.sums.frames.enter(fate, record.frames);
        self.sums.folded = Some(id.clone());
        self.write_sums()?;
        self.records.remove(id);
        self.remove_files(id)
    }

    /// The directory of a key of the config, as it was when files were found in it. It is read each time: to remove its file is
    /// to say that another directory has taken its place.
    pub(crate) fn dir_of(&self, key: &str) -> Result<Option<DirStamp>, JournalError> {
        Ok(Dirs::read(&self.dirs_path())?.dirs.remove(key))
    }

    /// From now on it is this one.
    pub(crate) fn set_dir(&self, key: &str, stamp: DirStamp) -> Result<(), JournalError> {
        let path = self.dirs_path();
        let mut it = Dirs::read(&path)?;
        it.dirs.insert(key.into(), stamp);
        write_json(&path, &it)
    }

    /// Where the directories are noted.
    pub(crate) fn dirs_path(&self) -> PathBuf {
        self.dir.join(dirs::NAME)
    }

    fn write_sums(&self) -> Result<(), JournalError> {
        write_json(&self.dir.join(SUMS), &self.sums)
    }

    fn remove_files(&self, id: &FileId) -> Result<(), JournalError> {
        // The record last: without it nobody looks for the blocks.
        remove(&self.blocks_path(id))?;
        remove(&self.record_path(id))?;
        sync_folder(&self.dir.join(id.0.folder()));
        Ok(())
    }

    fn record_path(&self, (kind, file): &FileId) -> PathBuf {
        kind.record(&self.dir, file)
    }

    fn blocks_path(&self, (kind, file): &FileId) -> PathBuf {
        self.dir.join(kind.folder()).join(format!("{file}{BLOCKS}"))
    }
}

/// A name that nothing else has.
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

    fn record(name: &str, frames: u64, state: State) -> Record {
        // Any file's.
        let stamp = FileStamp::read(Path::new(env!("CARGO_MANIFEST_DIR")));
        Record {
            version: VERSION,
            kind: Kind::Packets,
            file: name.into(),
            stamp: stamp.expect("there"),
            ns: 5,
            key: format!("packets/{name}"),
            blocks_key: None,
            frames,
            selected: true,
            copy: None,
            state,
        }
    }

    fn open(dir: &Path) -> Journal {
        Journal::open(dir, "a", "file:///x").expect("opens")
    }

    #[test]
    fn what_is_written_is_there_again() {
        let dir = tempfile::tempdir().expect("dir");
        let started = State::Started {
            upload: "id".into(),
            part_bytes: 4,
            parts: vec![Some("e".into()), None],
        };
        let states = [
            State::Seen,
            started,
            State::Sent {
                etag: Some("\"e\"".into()),
            },
            State::Verified,
            State::Shipped,
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
        // A crash in the middle of a write.
        fs::write(dir.path().join("packets/.9.pcap.json"), "{").expect("written");
        let journal = open(dir.path());
        assert_eq!(journal.records, before);
        assert_eq!(journal.ledger(), ledger);
        assert_eq!(journal.instance(), instance);
        let other = tempfile::tempdir().expect("dir");
        assert_ne!(open(other.path()).instance(), instance);
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
    fn frames_of_files_that_are_gone_are_counted_once() {
        let dir = tempfile::tempdir().expect("dir");
        let mut journal = open(dir.path());
        let all = [
            record("a.pcap", 1, State::Shipped),
            record("b.pcap", 10, State::Seen),
            Record {
                selected: false,
                ..record("c.pcap", 100, State::Shipped)
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
            journal.fold(&record.id()).expect("written");
            assert!(!path.exists());
            // Killed before the record was removed.
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
        // The same name again is another file.
        journal.set(all[2].clone()).expect("written");
        journal.fold(&all[2].id()).expect("written");
        journal.set(all[2].clone()).expect("written");
        drop(journal);
        assert_eq!(open(dir.path()).ledger().not_selected, 300);
    }

    #[test]
    fn a_journal_is_of_one_sensor_one_store_and_one_process() {
        let dir = tempfile::tempdir().expect("dir");
        let journal = open(dir.path());
        let others = [("b", "file:///x"), ("a", "file:///y")];
        for (sensor, store) in others {
            let refused = Journal::read(dir.path(), sensor, store);
            assert!(matches!(refused, Err(JournalError::Foreign { .. })));
        }
        drop(journal);
        fs::write(dir.path().join("flows/x.json"), "torn").expect("written");
        let refused = Journal::read(dir.path(), "a", "file:///x");
        assert!(matches!(refused, Err(JournalError::Unsound { .. })));
    }
}
