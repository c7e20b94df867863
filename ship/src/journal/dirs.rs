//! Identities of the directories that hold the files of a journal. They detect an unmounted file
//! system, which looks like a directory that was emptied.

use super::{
    JournalError,
    disk::{check_version, read_json},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};
use wqcap_files::folder::delivery::VERSION;

/// Name of the journal file that holds the identities of the source directories.
pub(super) const NAME: &str = "dirs.json";

/// Identity of a directory with files to ship: device, inode and time of birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DirStamp {
    dev: u64,
    ino: u64,
    /// Time of birth of the directory, in nanoseconds since 1970; `None`: the file system does not
    /// record it.
    born_ns: Option<u64>,
}

impl DirStamp {
    /// Reads the identity of a directory from the directory's metadata.
    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        let it = fs::metadata(dir)?;
        Ok(Self {
            dev: it.dev(),
            ino: it.ino(),
            born_ns: it.created().ok().and_then(ns),
        })
    }

    /// Returns `true` if both stamps identify one directory. The device number of a file system may
    /// change at a reboot.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let same = match (self.born_ns, other.born_ns) {
            (Some(one), Some(another)) => one == another,
            _ => self.dev == other.dev,
        };
        same && self.ino == other.ino
    }
}

fn ns(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

/// Identities of the source directories of a journal, by their configuration keys.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Dirs {
    version: u32,
    pub(super) dirs: BTreeMap<String, DirStamp>,
}

impl Dirs {
    /// Reads the journal file `dirs.json`. A missing file contains no directories.
    pub(super) fn read(path: &Path) -> Result<Self, JournalError> {
        let none = || Self {
            version: VERSION,
            dirs: BTreeMap::new(),
        };
        let it = read_json(path)?.unwrap_or_else(none);
        check_version(path, it.version)?;
        Ok(it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_identified_by_its_inode_and_its_birth() {
        let now = DirStamp {
            dev: 1,
            ino: 2,
            born_ns: Some(3),
        };
        assert!(now.is_of(&DirStamp { dev: 9, ..now }), "after a reboot");
        assert!(!now.is_of(&DirStamp { ino: 9, ..now }), "another one");
        let made_again = DirStamp {
            born_ns: Some(4),
            ..now
        };
        assert!(!now.is_of(&made_again));
        // File systems such as NFS record no time of birth.
        let unborn = DirStamp {
            born_ns: None,
            ..now
        };
        assert!(unborn.is_of(&unborn) && unborn.is_of(&now));
        assert!(!unborn.is_of(&DirStamp { dev: 9, ..unborn }));
    }
}
