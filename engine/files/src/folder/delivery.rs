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
//! Each file is a JSON object whose last member is a checksum of the bytes before it. Earlier
//! versions wrote no checksum.
//!
//! Invariant: a file counts as shipped only if its record states it and its checksum is right.

use super::open::{MOST_RECORD, read_regular};
use super::{FileStamp, expired::ListPosition};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// Version of the layout of the delivery journal, in which `wqcap ship` records sent files.
pub const VERSION: u32 = 1;
/// File name of the delivery journal's totals, the sums of deleted files.
pub const SUMS: &str = "ledger.json";
/// Suffix of a delivery record's file name, after the complete name of the file to be shipped.
pub const RECORD: &str = ".json";

/// Kind of a shipped file's content. Flow records, DNS and DHCP are shipped first: they are small,
/// and most investigations begin with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentKind {
    /// Content of a file of flow records.
    Flows,
    /// Content of a file of DNS messages.
    Dns,
    /// Content of a file of DHCP messages.
    Dhcp,
    /// Content of a capture file: captured frames.
    Packets,
}

impl ContentKind {
    /// All kinds of file content, in the order in which they are shipped.
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
    /// State of a file that has no bytes in the object store yet.
    Seen,
    /// State of a file whose multipart upload has begun.
    Started {
        /// Identifier of the multipart upload in the object store.
        upload: String,
        /// Length in bytes of each part of the multipart upload except the last.
        part_bytes: u64,
        /// ETag of each part of the multipart upload that the object store has received.
        parts: Vec<Option<String>>,
    },
    /// State of a file whose object is complete, according to the object store.
    Sent {
        /// ETag or generation of the file's object in the object store.
        etag: Option<String>,
    },
    /// State of a file whose object was checked in the object store and equals what was sent.
    Verified,
    /// State of a file whose object is listed in the object store and can be found by queries.
    Shipped,
}

/// Delivery record of a file in the journal of `wqcap ship`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryRecord {
    /// Version of the delivery journal's layout, in which the record is written.
    pub version: u32,
    /// Kind of the shipped file's content, such as packets or flow records.
    pub kind: ContentKind,
    /// Name of the shipped file in its folder.
    pub file: String,
    /// Length and modification time of the shipped file when it was found.
    pub stamp: FileStamp,
    /// Start time of the shipped capture file, or time of the file's last write, in nanoseconds
    /// since 1970.
    pub ns: u64,
    /// Key (path) of the file's object in the object store.
    pub key: String,
    /// Key of the object with the capture file's table of blocks (Parquet, for queries). Other
    /// files have none.
    pub blocks_key: Option<String>,
    /// Number of frames in the shipped capture file; 0 for other files.
    pub frames: u64,
    /// `true` if the capture file's content is uploaded; otherwise only its table of blocks is
    /// published.
    pub selected: bool,
    /// Length and modification time of the anonymized copy that is sent instead of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<FileStamp>,
    /// Fingerprint of the parameters with which the anonymized copy was made. `None`: unknown, or
    /// there is no copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_params: Option<String>,
    /// Delivery state of the shipped file.
    pub state: DeliveryState,
}

impl DeliveryRecord {
    /// Returns the identifier of the delivery record's file.
    #[must_use]
    pub fn id(&self) -> FileId {
        (self.kind, self.file.clone())
    }

    /// Returns length and modification time of the file that is sent: the original, or its
    /// anonymized copy.
    #[must_use]
    pub fn sent(&self) -> FileStamp {
        self.copy.unwrap_or(self.stamp)
    }
}

/// Name of the last member of a journal file's JSON object: its checksum (XXH3, 64 bits), as 16
/// hexadecimal digits.
const CHECKSUM: &str = "\"xxh3\"";

/// Reason why a file of a delivery journal cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes of the journal file are not those that were written.
    #[error(
        "the checksum of the file is wrong, so that its content has changed since it was written"
    )]
    Checksum,
    /// The journal file is not JSON, or lacks values that a record must have.
    #[error("the file is not a record of this journal ({0})")]
    Json(#[from] serde_json::Error),
}

/// Returns the last member of a journal file, with which the file ends after `content`.
fn checksum_member(content: &[u8]) -> String {
    format!(",{CHECKSUM}:\"{:016x}\"}}", xxh3_64(content))
}

/// Encodes the content of a journal file as a JSON object with a checksum. `value` must be a struct
/// with members.
///
/// # Errors
/// The value cannot be written as JSON.
pub fn encode_checked(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value)?;
    // The checksum is added before the brace that ends the object.
    text.pop();
    let checksum = checksum_member(&text);
    text.extend_from_slice(checksum.as_bytes());
    Ok(text)
}

/// Decodes the content of a journal file. A file without a checksum is of an earlier version.
///
/// # Errors
/// The checksum is wrong, or the text is not the JSON of a `T`.
pub fn decode_checked<T: DeserializeOwned>(text: &[u8]) -> Result<T, DecodeError> {
    let len = checksum_member(b"").len();
    let parts = text.len().checked_sub(len).map(|at| text.split_at(at));
    let is_right = parts.is_some_and(|(content, end)| end == checksum_member(content).as_bytes());
    let name = CHECKSUM.as_bytes();
    if !is_right && text.windows(name.len()).any(|it| it == name) {
        return Err(DecodeError::Checksum);
    }
    Ok(serde_json::from_slice(text)?)
}

/// Returns `true` if the delivery journal records that a finished capture file, in its present
/// state, has been shipped, or that everything selected of it has been sent.
#[must_use]
pub fn is_shipped(journal: &Path, file: &Path) -> bool {
    let name = file.file_name().and_then(|it| it.to_str());
    let record = name.map(|name| ContentKind::Packets.record(journal, name));
    let record = record.and_then(|path| read_regular(&path, MOST_RECORD).ok());
    let record = record.and_then(|it| decode_checked::<DeliveryRecord>(&it).ok());
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
    let sums = sums.and_then(|it| decode_checked::<DeliverySums>(&it).ok());
    sums.unwrap_or_default().expired_read
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_changed_bit_makes_the_checksum_wrong() {
        let content = FileStamp::read(Path::new(env!("CARGO_MANIFEST_DIR"))).expect("there");
        let text = encode_checked(&content).expect("JSON");
        let decode = decode_checked::<FileStamp>;
        assert_eq!(decode(&text).expect("decodes"), content);
        let earlier = serde_json::to_vec(&content).expect("JSON");
        assert_eq!(decode(&earlier).expect("decodes"), content);
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut changed = text.clone();
                changed[at] ^= 1 << bit;
                // A change of the checksum's name leaves the content as it was.
                assert!(
                    decode(&changed).map_or(true, |it| it == content),
                    "{at} {bit}"
                );
            }
            assert!(decode(&text[..at]).is_err(), "{at}");
        }
        let digit = text.iter().position(u8::is_ascii_digit).expect("a number");
        let mut changed = text;
        changed[digit] ^= 1;
        assert!(matches!(decode(&changed), Err(DecodeError::Checksum)));
    }

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
            copy_params: None,
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
