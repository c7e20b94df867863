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

use super::open::{MOST_RECORD, read_regular};
use super::{FileStamp, expired::ListPosition};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Version of the delivery journal's layout.
pub const VERSION: u32 = 1;
/// File name of the delivery journal's totals.
pub const SUMS: &str = "ledger.json";
/// Suffix of a delivery record's file name, after the complete name of the file to be shipped.
pub const RECORD: &str = ".json";

/// Kind of a shipped file's content. Flow records, DNS and DHCP are shipped first: they are small,
/// and most investigations begin with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentKind {
    /// The file contains flow records.
    Flows,
    /// The file contains DNS messages.
    Dns,
    /// The file contains DHCP messages.
    Dhcp,
    /// The file contains captured frames.
    Packets,
}

impl ContentKind {
    /// All kinds of file content, in the order of shipping.
    pub const ALL: [Self; 4] = [Self::Flows, Self::Dns, Self::Dhcp, Self::Packets];

    /// Returns the name of the folder for this kind of content, in a delivery journal and in an
    /// object store.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::Dns => "dns",
            Self::Dhcp => "dhcp",
            Self::Packets => "packets",
        }
    }

    /// Returns the path of a file's delivery record in a journal.
    #[must_use]
    pub fn record(self, journal: &Path, file: &str) -> PathBuf {
        journal.join(self.folder()).join(format!("{file}{RECORD}"))
    }
}

/// Identifier of a file in a delivery journal: its kind of content and its name.
pub type FileId = (ContentKind, String);

/// Delivery state of a file that is shipped to an object store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum DeliveryState {
    /// No bytes of the file are in the object store.
    Seen,
    /// A multipart upload of the file has begun.
    Started {
        /// Identifier of the multipart upload in the object store.
        upload: String,
        /// Length in bytes of each part of the multipart upload except the last.
        part_bytes: u64,
        /// ETag of each part of the multipart upload that the object store has received.
        parts: Vec<Option<String>>,
    },
    /// The file's object is complete, according to the object store.
    Sent {
        /// ETag or generation of the file's object.
        etag: Option<String>,
    },
    /// The file's object was checked in the object store and equals what was sent.
    Verified,
    /// The file's object is listed in the object store and can be found.
    Shipped,
}

/// Delivery record of a file in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryRecord {
    /// Version of the delivery journal's layout.
    pub version: u32,
    /// Kind of the shipped file's content.
    pub kind: ContentKind,
    /// Name of the shipped file in its folder.
    pub file: String,
    /// Length and modification time of the shipped file when it was found.
    pub stamp: FileStamp,
    /// Start time of the shipped file, or time of its last write, in nanoseconds since 1970.
    pub ns: u64,
    /// Key of the file's object in the object store.
    pub key: String,
    /// Key of the object with the capture file's table of blocks. Parquet tables have none.
    pub blocks_key: Option<String>,
    /// Number of frames in the shipped file; 0 for a Parquet table.
    pub frames: u64,
    /// Set when the capture file's content is uploaded; otherwise only its table of blocks is
    /// published.
    pub selected: bool,
    /// Length and modification time of the anonymized copy that is sent instead of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<FileStamp>,
    /// Delivery state of the shipped file.
    pub state: DeliveryState,
}

impl DeliveryRecord {
    /// Returns the identifier of the delivery record's file.
    #[must_use]
    pub fn id(&self) -> FileId {
        (self.kind, self.file.clone())
    }

    /// Returns length and modification time of what is sent: the file, or its anonymized copy.
    #[must_use]
    pub fn sent(&self) -> FileStamp {
        self.copy.unwrap_or(self.stamp)
    }
}

/// Returns `true` if the delivery journal records that a finished capture file, in its present
/// state, has been shipped, or that everything selected of it has been sent.
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
/// damaged delivery journal yields the start.
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
