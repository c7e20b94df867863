//! Delivery state of finished files in an object store: the records of the journal that
//! `wqcap ship` writes.
//!
//! ```text
//! <journal>/ledger.json             sums of deleted files, and the read position in their lists
//! <journal>/packets/<file>.json     record of a capture file that exists or is being shipped
//! <journal>/flows/<file>.json       record of a file of flow records
//! <journal>/dns/<file>.json         record of a table of DNS
//! <journal>/dhcp/<file>.json        record of a table of DHCP
//! ```
//!
//! Invariant: a file counts as shipped only if its record states it.

use super::{FileStamp, expired::ListPosition};
use crate::open::{MOST_RECORD, read_regular};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Version of the journal's layout.
pub const VERSION: u32 = 1;
/// File name of the sums.
pub const SUMS: &str = "ledger.json";
/// Suffix of a record's file name, after the complete name of its file.
pub const RECORD: &str = ".json";

/// Kind of a file's content. Flow records, DNS and DHCP are shipped first: they are small, and most
/// investigations begin with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentKind {
    /// Flow records.
    Flows,
    /// Messages of DNS.
    Dns,
    /// Messages of DHCP.
    Dhcp,
    /// Frames.
    Packets,
}

impl ContentKind {
    /// All kinds, in the order of shipping.
    pub const ALL: [Self; 4] = [Self::Flows, Self::Dns, Self::Dhcp, Self::Packets];

    /// Returns the name of the kind's folder, in a journal and in a store.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::Dns => "dns",
            Self::Dhcp => "dhcp",
            Self::Packets => "packets",
        }
    }

    /// Returns the path of the record of a file in a journal.
    #[must_use]
    pub fn record(self, journal: &Path, file: &str) -> PathBuf {
        journal.join(self.folder()).join(format!("{file}{RECORD}"))
    }
}

/// Key of a file in a journal: its kind and name.
pub type FileId = (ContentKind, String);

/// Delivery state of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum DeliveryState {
    /// No bytes of the file are in the store.
    Seen,
    /// A multipart upload has begun.
    Started {
        /// Identifier of the upload in the store.
        upload: String,
        /// Length of each part except the last, in bytes.
        part_bytes: u64,
        /// ETag of each part that the store has received.
        parts: Vec<Option<String>>,
    },
    /// The object is complete, according to the store.
    Sent {
        /// ETag or generation of the object.
        etag: Option<String>,
    },
    /// The object was checked in the store and equals what was sent.
    Verified,
    /// The object is listed and can be found.
    Shipped,
}

/// Journal record of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryRecord {
    /// Version of the journal layout.
    pub version: u32,
    /// Kind of the file's content.
    pub kind: ContentKind,
    /// Name of the file in its folder.
    pub file: String,
    /// Length and modification time of the file when it was found.
    pub stamp: FileStamp,
    /// Start time of the file, or time of its last write, in nanoseconds since 1970.
    pub ns: u64,
    /// Key of the file's object in the store.
    pub key: String,
    /// Key of the object with the file's table of blocks. Tables have none.
    pub blocks_key: Option<String>,
    /// Number of frames in the file; 0 for a table.
    pub frames: u64,
    /// Set when the file's content is uploaded; otherwise only its blocks are published.
    pub selected: bool,
    /// Stamp of the anonymized copy that is sent instead of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<FileStamp>,
    /// Delivery state of the file.
    pub state: DeliveryState,
}

impl DeliveryRecord {
    /// Returns the key of the record's file.
    #[must_use]
    pub fn id(&self) -> FileId {
        (self.kind, self.file.clone())
    }

    /// Returns the stamp of what is sent: the file, or its copy.
    #[must_use]
    pub fn sent(&self) -> FileStamp {
        self.copy.unwrap_or(self.stamp)
    }
}

/// Returns `true` if the journal records that a finished capture file, in its present state, has
/// been shipped, or that everything selected of it has been sent.
#[must_use]
pub fn is_shipped(journal: &Path, file: &Path) -> bool {
    let name = file.file_name().and_then(|it| it.to_str());
    let record = name.map(|name| ContentKind::Packets.record(journal, name));
    let record = record.and_then(|path| read_regular(&path, MOST_RECORD).ok());
    let record = record.and_then(|it| serde_json::from_slice::<DeliveryRecord>(&it).ok());
    record.is_some_and(|it| {
        let same = FileStamp::read(file).is_ok_and(|now| now == it.stamp);
        it.version == VERSION && it.state == DeliveryState::Shipped && same
    })
}

/// Returns the read position in the lists of files that were deleted unshipped. A missing or
/// damaged journal yields the start.
#[must_use]
pub fn expired_read(journal: &Path) -> ListPosition {
    #[derive(Default, Deserialize)]
    struct DeliverySums {
        #[serde(default)]
        expired_read: ListPosition,
    }
    let sums = read_regular(&journal.join(SUMS), MOST_RECORD).ok();
    let sums = sums.and_then(|it| serde_json::from_slice::<DeliverySums>(&it).ok());
    sums.unwrap_or_default().expired_read
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_a_matching_shipped_record_counts() {
        let dir = tempfile::tempdir().expect("dir");
        let journal = dir.path().join("journal");
        let file = dir.path().join("wqcap-q00-5.pcap");
        fs::write(&file, "frames").expect("written");
        assert!(!is_shipped(&journal, &file), "without a journal");
        fs::create_dir_all(journal.join("packets")).expect("made");
        let path = ContentKind::Packets.record(&journal, "wqcap-q00-5.pcap");
        let record = DeliveryRecord {
            version: VERSION,
            kind: ContentKind::Packets,
            file: "wqcap-q00-5.pcap".into(),
            stamp: FileStamp::read(&file).expect("there"),
            ns: 5,
            key: "packets/5-q00.pcap".into(),
            blocks_key: None,
            frames: 1,
            selected: true,
            copy: None,
            state: DeliveryState::Verified,
        };
        let said = |record: &DeliveryRecord| {
            let text = serde_json::to_vec(record).expect("JSON");
            fs::write(&path, &text).expect("written");
            is_shipped(&journal, &file)
        };
        assert!(!said(&record));
        let shipped = DeliveryRecord {
            state: DeliveryState::Shipped,
            ..record
        };
        assert!(said(&shipped));
        let later = DeliveryRecord {
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
