//! How far each finished file is on its way to an object store: the records of the journal that `wqcap ship` writes.
//!
//! ```text
//! <journal>/ledger.json             sums of files that are gone, and how far their lists have been read
//! <journal>/packets/<file>.json     the record of a capture file that is there, or on its way
//! <journal>/flows/<file>.json       the record of a file of flow records
//! <journal>/dns/<file>.json         the record of a table of DNS
//! <journal>/dhcp/<file>.json        the record of a table of DHCP
//! ```
//!
//! Invariant: what is not known to be shipped is not.

use super::{FileStamp, expired::ListPosition};
use crate::open::{MOST_RECORD, read_regular};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The layout's number.
pub const VERSION: u32 = 1;
/// Name of the sums.
pub const SUMS: &str = "ledger.json";
/// Ending of a record's name, behind the whole name of its file.
pub const RECORD: &str = ".json";

/// What a file holds. Flow records, DNS and DHCP come first: they are small, and most questions begin with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Flow records.
    Flows,
    /// Messages of DNS.
    Dns,
    /// Messages of DHCP.
    Dhcp,
    /// Frames.
    Packets,
}

impl Kind {
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::Flows, Self::Dns, Self::Dhcp, Self::Packets];

    /// The folder of its records in a journal, and of its objects in a store.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::Dns => "dns",
            Self::Dhcp => "dhcp",
            Self::Packets => "packets",
        }
    }

    /// Where the record of a file is, by its name.
    #[must_use]
    pub fn record(self, journal: &Path, file: &str) -> PathBuf {
        journal.join(self.folder()).join(format!("{file}{RECORD}"))
    }
}

/// A file among all of a journal.
pub type FileId = (Kind, String);

/// How far a file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum State {
    /// Nothing of it is in the store.
    Seen,
    /// An upload in parts has begun.
    Started {
        /// The store's name of it.
        upload: String,
        /// Bytes of each part but the last.
        part_bytes: u64,
        /// What the store said of each part that it has.
        parts: Vec<Option<String>>,
    },
    /// The object is whole, as the store says.
    Sent {
        /// What the store said of it.
        etag: Option<String>,
    },
    /// It has been asked for again, and is what was sent.
    Verified,
    /// It can be found.
    Shipped,
}

/// What the journal has of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The layout's number.
    pub version: u32,
    /// What it holds.
    pub kind: Kind,
    /// Its name in its folder.
    pub file: String,
    /// The file as it was when it was found.
    pub stamp: FileStamp,
    /// When it begins, or was written, in nanoseconds since 1970.
    pub ns: u64,
    /// Its object.
    pub key: String,
    /// The object of its blocks; a table has none.
    pub blocks_key: Option<String>,
    /// Its frames; of a table 0.
    pub frames: u64,
    /// Whether it is sent, and not only told of.
    pub selected: bool,
    /// The anonymized copy that is sent in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<FileStamp>,
    /// How far it is.
    pub state: State,
}

impl Record {
    /// Which file it is of.
    #[must_use]
    pub fn id(&self) -> FileId {
        (self.kind, self.file.clone())
    }

    /// What is sent: the file, or its copy.
    #[must_use]
    pub fn sent(&self) -> FileStamp {
        self.copy.unwrap_or(self.stamp)
    }
}

/// Whether the journal says that a finished capture file, as it is now, has been shipped, or that all has been sent that is to
/// be.
#[must_use]
pub fn is_shipped(journal: &Path, file: &Path) -> bool {
    let name = file.file_name().and_then(|it| it.to_str());
    let record = name.map(|name| Kind::Packets.record(journal, name));
    let record = record.and_then(|path| read_regular(&path, MOST_RECORD).ok());
    let record = record.and_then(|it| serde_json::from_slice::<Record>(&it).ok());
    record.is_some_and(|it| {
        let same = FileStamp::read(file).is_ok_and(|now| now == it.stamp);
        it.version == VERSION && it.state == State::Shipped && same
    })
}

/// How far the lists of files that went unshipped have been read; what cannot be told has not been.
#[must_use]
pub fn expired_read(journal: &Path) -> ListPosition {
    #[derive(Default, Deserialize)]
    struct Sums {
        #[serde(default)]
        expired_read: ListPosition,
    }
    let sums = read_regular(&journal.join(SUMS), MOST_RECORD).ok();
    let sums = sums.and_then(|it| serde_json::from_slice::<Sums>(&it).ok());
    sums.unwrap_or_default().expired_read
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_what_the_journal_says_is_shipped() {
        let dir = tempfile::tempdir().expect("dir");
        let journal = dir.path().join("journal");
        let file = dir.path().join("wqcap-q00-5.pcap");
        fs::write(&file, "frames").expect("written");
        assert!(!is_shipped(&journal, &file), "there is no journal");
        fs::create_dir_all(journal.join("packets")).expect("made");
        let path = Kind::Packets.record(&journal, "wqcap-q00-5.pcap");
        let record = Record {
            version: VERSION,
            kind: Kind::Packets,
            file: "wqcap-q00-5.pcap".into(),
            stamp: FileStamp::read(&file).expect("there"),
            ns: 5,
            key: "packets/5-q00.pcap".into(),
            blocks_key: None,
            frames: 1,
            selected: true,
            copy: None,
            state: State::Verified,
        };
        let said = |record: &Record| {
            let text = serde_json::to_vec(record).expect("JSON");
            fs::write(&path, &text).expect("written");
            is_shipped(&journal, &file)
        };
        assert!(!said(&record));
        let shipped = Record {
            state: State::Shipped,
            ..record
        };
        assert!(said(&shipped));
        let later = Record {
            version: VERSION + 1,
            ..shipped.clone()
        };
        assert!(!said(&later));
        assert!(said(&shipped));
        fs::write(&file, "other frames").expect("written");
        assert!(!said(&shipped), "another file by now");
        fs::write(&path, "{").expect("written");
        assert!(!is_shipped(&journal, &file), "torn");
    }
}
