//! How far each finished file is on its way to an object store: the records of the journal that `wqcap ship` writes.
//!
//! ```text
//! <journal>/packets/<file>.json     the record of a capture file that is there, or on its way
//! <journal>/flows/<file>.json       the record of a file of flow records
//! ```
//!
//! May import: [`crate::folder`].
//!
//! Invariant: what is not known to be shipped is not.

use crate::folder::FileStamp;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The layout's number.
pub const VERSION: u32 = 1;
/// Ending of a record's name, behind the whole name of its file.
pub const RECORD: &str = ".json";

/// What a file holds. Flow records come first: they are small, and most questions begin with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Flow records.
    Flows,
    /// Frames.
    Packets,
}

impl Kind {
    /// The folder of its records in a journal, and of its objects in a store.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Flows => "flows",
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
    /// The object of its blocks; flow records have none.
    pub blocks_key: Option<String>,
    /// Its frames; of flow records 0.
    pub frames: u64,
    /// Whether it is sent, and not only told of.
    pub selected: bool,
    /// How far it is.
    pub state: State,
}

impl Record {
    /// Which file it is of.
    #[must_use]
    pub fn id(&self) -> FileId {
        (self.kind, self.file.clone())
    }
}
