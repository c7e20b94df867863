//! The capture files of a folder and of those below it, by the endings of their names; how a file is known again.

pub mod delivery;
pub mod expired;

use crate::{
    name::{FileName, PART},
    open::open_folder,
};
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// The capture files of a folder and of those below it, in name order.
#[derive(Debug, Default)]
pub struct CaptureFolder {
    /// Finished files and their lengths.
    pub finished: Vec<(PathBuf, u64)>,
    /// Files that are open, or were left open by a crash: everything whose name ends in `.part`.
    pub unfinished: Vec<PathBuf>,
    /// Folders below that cannot be read, and why.
    pub unread: Vec<(PathBuf, io::Error)>,
}

/// How a file is recognised as the one that it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// Its length.
    pub len: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl FileStamp {
    /// Of a file as it is now.
    ///
    /// # Errors
    /// There is none, or nobody may look at it.
    pub fn read(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|it| Self::of(&it))
    }

    /// The same by what the system says of it.
    #[must_use]
    pub fn of(file: &Metadata) -> Self {
        Self {
            len: file.len(),
            modified_s: file.mtime(),
            modified_ns: file.mtime_nsec(),
        }
    }

    /// When it was written last; 1970, if that was before.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        let seconds = u64::try_from(self.modified_s).unwrap_or_default();
        let ns = u32::try_from(self.modified_ns).unwrap_or_default();
        SystemTime::UNIX_EPOCH + Duration::new(seconds, ns)
    }
}

/// What is in a folder and in those below it.
#[derive(Debug, Default)]
pub struct FolderTree {
    /// All there is, folders as well.
    pub paths: Vec<PathBuf>,
    /// Folders below that cannot be read, and why.
    pub unread: Vec<(PathBuf, io::Error)>,
}

impl FolderTree {
    /// Lists a folder, and those below it down to so many levels. What is in hidden ones is left out, and links are not
    /// followed.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(dir: &Path, levels: usize) -> io::Result<Self> {
        let mut it = Self::default();
        it.enter(dir, levels)?;
        Ok(it)
    }

    fn enter(&mut self, folder: &Path, levels: usize) -> io::Result<()> {
        let mut below = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if levels > 0 && !is_hidden && entry.file_type().is_ok_and(|it| it.is_dir()) {
                below.push(entry.path());
            }
            self.paths.push(entry.path());
        }
        for folder in below {
            match self.enter(&folder, levels - 1) {
                Ok(()) => {}
                // Emptied and deleted just now.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => self.unread.push((folder, e)),
            }
        }
        Ok(())
    }
}

/// Deletes the folders that a file was in up to `dir`, as far as they are empty.
pub fn remove_emptied(file: &Path, dir: &Path) {
    let folders = file.ancestors().skip(1);
    for folder in folders.take_while(|it| *it != dir && it.starts_with(dir)) {
        if fs::remove_dir(folder).is_err() {
            break;
        }
    }
}

/// Has the names in a folder last. Not every file system can do that, and then they last when it says so itself.
pub fn sync_folder(folder: &Path) {
    let _ = open_folder(folder).and_then(|it| it.sync_all());
}

/// Renames a file; nothing is overwritten.
///
/// # Errors
/// `AlreadyExists`: there is something of the new name. Any other: as rename(2).
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can check and rename in one step; most of those have hard links.
        Err(Errno::INVAL | Errno::NOSYS) => match fs::hard_link(from, to) {
            Ok(()) => fs::remove_file(from),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(e),
            Err(_) if fs::symlink_metadata(to).is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => fs::rename(from, to),
        },
        other => other.map_err(io::Error::from),
    }
}

impl CaptureFolder {
    /// Lists a folder with all below it.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(dir: &Path) -> io::Result<Self> {
        Self::list_to(dir, usize::MAX)
    }

    /// The same down to so many levels of folders.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list_to(dir: &Path, levels: usize) -> io::Result<Self> {
        let tree = FolderTree::list(dir, levels)?;
        let mut it = Self {
            unread: tree.unread,
            ..Self::default()
        };
        for path in tree.paths {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if name.ends_with(PART.as_bytes()) {
                it.unfinished.push(path);
            } else if FileName::has_capture_ending(&path) {
                // Links are left out: their targets belong to other folders.
                match fs::symlink_metadata(&path) {
                    Ok(file) if file.is_file() => it.finished.push((path, file.len())),
                    Ok(_) => {}
                    // Deleted just now, to make room.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
        }
        it.finished.sort();
        it.unfinished.sort();
        Ok(it)
    }

    /// Notes for the user where only finished files are read.
    #[must_use]
    pub fn notes(&self, dir: &Path) -> Vec<String> {
        let n = self.unfinished.len();
        let unfinished = (n > 0).then(|| {
            format!(
                "{}: left out {n} .part files: still open, or left by a crash (wqcap recover)",
                dir.display()
            )
        });
        unfinished.into_iter().chain(self.unread_notes()).collect()
    }

    /// A note for each folder that cannot be read.
    pub fn unread_notes(&self) -> impl Iterator<Item = String> {
        let unread = self.unread.iter();
        unread.map(|(folder, e)| format!("{}: left out: {e}", folder.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_below_are_listed_and_emptied_ones_removed() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        for folder in ["a/b", ".hidden", "c.pcap", "d.part"] {
            fs::create_dir_all(at(folder)).expect("made");
        }
        let files = ["1.pcap", "a/2.pcap", "a/b/3.pcapng.zst", "a/b/4.pcap.part"];
        for file in files.into_iter().chain([".hidden/5.pcap", "a/6.txt"]) {
            fs::write(at(file), file).expect("written");
        }
        std::os::unix::fs::symlink(at("a"), at("link")).expect("linked");
        let listed = |levels| {
            let it = CaptureFolder::list_to(dir.path(), levels).expect("lists");
            assert!(it.unread.is_empty());
            let finished: Vec<_> = it.finished.into_iter().map(|(path, _)| path).collect();
            (finished, it.unfinished)
        };
        let all = files.map(at);
        assert_eq!(
            listed(usize::MAX),
            (all[..3].to_vec(), vec![at("a/b/4.pcap.part"), at("d.part")])
        );
        assert_eq!(listed(1), (all[..2].to_vec(), vec![at("d.part")]));
        assert_eq!(listed(0), (all[..1].to_vec(), vec![at("d.part")]));

        for file in ["a/b/3.pcapng.zst", "a/b/4.pcap.part"] {
            assert!(at("a/b").exists());
            fs::remove_file(at(file)).expect("there");
            remove_emptied(&at(file), dir.path());
        }
        assert!(!at("a/b").exists() && at("a").exists(), "a holds files");
        for file in ["a/2.pcap", "a/6.txt", "1.pcap"] {
            fs::remove_file(at(file)).expect("there");
            remove_emptied(&at(file), dir.path());
        }
        assert!(!at("a").exists() && at("c.pcap").exists());
    }
}
