//! Which directories the files of a journal are in: a file system that is not mounted looks like a directory that was emptied.

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

/// The file's name.
pub(super) const NAME: &str = "dirs.json";

/// How a directory is recognised as the one that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DirStamp {
    dev: u64,
    ino: u64,
    /// When it was made, in nanoseconds since 1970; not every file system tells.
    born_ns: Option<u64>,
}

impl DirStamp {
    /// Of a directory as it is now.
    pub(crate) fn read(dir: &Path) -> io::Result<Self> {
        let it = fs::metadata(dir)?;
        Ok(Self {
            dev: it.dev(),
            ino: it.ino(),
            born_ns: it.created().ok().and_then(ns),
        })
    }

    /// Whether both are of one directory. After a reboot a file system may have another device number.
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

/// The directories, by their keys in the config.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Dirs {
    version: u32,
    pub(super) dirs: BTreeMap<String, DirStamp>,
}

impl Dirs {
    /// None, if there is no such file.
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
    fn a_directory_is_known_by_its_inode_and_its_birth() {
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
        // NFS, say.
        let untold = DirStamp {
            born_ns: None,
            ..now
        };
        assert!(untold.is_of(&untold) && untold.is_of(&now));
        assert!(!untold.is_of(&DirStamp { dev: 9, ..untold }));
    }
}
