//! Listing of the capture files of a folder and its subfolders, by file extension, and of files that
//! may be captures of other programs; identity of files.

pub mod delivery;
pub mod expired;
pub mod file_list;
pub mod held;
pub mod open;
pub mod path_text;

use crate::name::{FileName, PART, is_sealed, unsealed};
use open::open_folder;
use rustix::fs::CWD;
use serde::{Deserialize, Serialize};
use std::{
    collections::HashSet,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};
use wqcap_pcap::name::natural_order;

/// Capture files of a folder and its subfolders, in the natural order of their names.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CaptureFolder {
    /// Paths of finished capture files, with their lengths in bytes.
    pub finished: Vec<(PathBuf, u64)>,
    /// Regular files with other names, which may be captures of other programs, and their lengths in
    /// bytes. Hidden files are left out. Only [`CaptureFolder::search`] lists them.
    pub others: Vec<(PathBuf, u64)>,
    /// Paths of capture files that are open, or were left open by a crash: all names that end in
    /// `.part`.
    pub unfinished: Vec<PathBuf>,
    /// Subfolders of the capture folder that cannot be read, with the error of each.
    pub unread: Vec<(PathBuf, io::Error)>,
    /// Number of links with the name of a capture file. They are not followed.
    pub links: usize,
}

/// Returns the time of the last write to a file, in nanoseconds since 1970; `None`: unknown.
#[must_use]
pub fn written_ns(path: &Path) -> Option<u64> {
    let written = path.metadata().ok()?.modified().ok()?;
    let since = written.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

/// Returns the device and the inode of the file or folder at `path`, behind links; `None`: it cannot
/// be read.
#[must_use]
pub fn device_and_inode(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|it| (it.dev(), it.ino()))
}

/// Identity of a file: its length and the time of its last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// Length of the file in bytes.
    pub len: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl FileStamp {
    /// Reads the present length and modification time of a file.
    ///
    /// # Errors
    /// The file does not exist or is not accessible.
    pub fn read(path: &Path) -> io::Result<Self> {
        fs::metadata(path).map(|it| Self::from_metadata(&it))
    }

    /// Takes length and modification time from a file's metadata.
    #[must_use]
    pub fn from_metadata(file: &Metadata) -> Self {
        Self {
            len: file.len(),
            modified_s: file.mtime(),
            modified_ns: file.mtime_nsec(),
        }
    }

    /// Returns the time of the file's last write as a `SystemTime`; 1970 if it is earlier.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        let seconds = u64::try_from(self.modified_s).unwrap_or_default();
        let ns = u32::try_from(self.modified_ns).unwrap_or_default();
        SystemTime::UNIX_EPOCH + Duration::new(seconds, ns)
    }
}

/// Paths of the entries of a folder and its subfolders.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct FolderTree {
    /// Paths of all entries of the folder, including subfolders.
    pub paths: Vec<PathBuf>,
    /// Subfolders of the folder that cannot be read, with the error of each.
    pub unread: Vec<(PathBuf, io::Error)>,
}

impl FolderTree {
    /// Lists a folder, and its subfolders down to `levels` levels. The content of hidden folders is
    /// left out. Links are not followed.
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
                // Emptied and deleted in the meantime.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => self.unread.push((folder, e)),
            }
        }
        Ok(())
    }
}

/// Deletes the empty folders between a deleted file and `dir`, except `dir`.
pub fn remove_emptied(file: &Path, dir: &Path) {
    let folders = file.ancestors().skip(1);
    for folder in folders.take_while(|it| *it != dir && it.starts_with(dir)) {
        if fs::remove_dir(folder).is_err() {
            break;
        }
    }
}

/// Syncs the file names in a folder to the disk. Errors are ignored: not every file system can sync
/// a folder.
pub fn sync_folder(folder: &Path) {
    let _ = open_folder(folder).and_then(|it| it.sync_all());
}

/// Renames a file without overwriting an existing one.
///
/// # Errors
/// `AlreadyExists`: there is a file of the new name. Otherwise errors of rename(2).
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    held::rename_in(CWD, from, to)
}

impl CaptureFolder {
    /// Lists the capture files of a folder and all its subfolders.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(dir: &Path) -> io::Result<Self> {
        Self::list_to(dir, usize::MAX)
    }

    /// Lists the capture files of a folder and its subfolders down to `levels` levels.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list_to(dir: &Path, levels: usize) -> io::Result<Self> {
        Self::list_named(dir, levels, FileName::has_capture_ending)
    }

    /// Lists the capture files of a folder and all its subfolders, and the other regular files in
    /// them.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn search(dir: &Path) -> io::Result<Self> {
        let is_shown = |path: &Path| {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            !name.starts_with(b".") || FileName::has_capture_ending(path)
        };
        let mut it = Self::list_named(dir, usize::MAX, is_shown)?;
        let files = it.finished.into_iter();
        (it.finished, it.others) = files.partition(|(path, _)| FileName::has_capture_ending(path));
        Ok(it)
    }

    /// Lists the files of a folder: as unfinished those that end in `.part`, and as finished the
    /// other regular files for which `is_wanted` returns `true`.
    fn list_named(
        dir: &Path,
        levels: usize,
        is_wanted: impl Fn(&Path) -> bool,
    ) -> io::Result<Self> {
        let tree = FolderTree::list(dir, levels)?;
        let mut it = Self {
            unread: tree.unread,
            ..Self::default()
        };
        for path in tree.paths {
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if name.ends_with(PART.as_bytes()) {
                it.unfinished.push(path);
            } else if is_wanted(&path) {
                // Links are left out: their targets belong to other folders.
                match fs::symlink_metadata(&path) {
                    Ok(file) if file.is_file() => it.finished.push((path, file.len())),
                    Ok(file) => {
                        it.links +=
                            usize::from(file.is_symlink() && FileName::has_capture_ending(&path));
                    }
                    // Deleted by retention in the meantime.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    // The path is too long, so that no file of a capture is there; or the subfolder may
                    // be listed and not be entered.
                    Err(e)
                        if e.kind() == io::ErrorKind::InvalidFilename
                            || path.parent() != Some(dir) =>
                    {
                        it.unread.push((path, e));
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        leave_out_sealed_twins(&mut it.finished);
        it.finished.sort_by(|a, b| natural_order(&a.0, &b.0));
        it.unfinished.sort_by(|a, b| natural_order(a, b));
        Ok(it)
    }

    /// Returns notes for the user on files and folders that a listing leaves out because only
    /// finished capture files are read.
    #[must_use]
    pub fn notes(&self, dir: &Path) -> Vec<String> {
        let n = self.unfinished.len();
        let unfinished = (n > 0).then(|| {
            format!(
                "{}: {n} .part files are left out, because a capture still writes them or a crash left them; `wqcap recover` finishes those that a crash left",
                dir.display()
            )
        });
        let links = match self.links {
            0 => None,
            1 => Some("1 link is".to_owned()),
            n => Some(format!("{n} links are")),
        };
        let links = links.map(|it| {
            format!(
                "{}: {it} left out, because links are not followed; name the files themselves",
                dir.display()
            )
        });
        let notes = unfinished.into_iter().chain(links);
        notes.chain(self.unread_notes()).collect()
    }

    /// Returns a note for each of the first hundred subfolders and files that cannot be read and
    /// have no capture files, and one note for the rest.
    pub fn unread_notes(&self) -> impl Iterator<Item = String> {
        self.unread_lines(false)
    }

    /// Returns a message for each of the first hundred subfolders that may have capture files and
    /// cannot be read, and one for the rest.
    pub fn losses(&self) -> impl Iterator<Item = String> {
        self.unread_lines(true)
    }

    /// Returns messages on subfolders and files that cannot be read. `is_loss` selects those that
    /// may have capture files: not the folder of fsck, which is root's, and no path that is too
    /// long for a capture.
    fn unread_lines(&self, is_loss: bool) -> impl Iterator<Item = String> {
        /// Maximum number of messages on unreadable subfolders and files.
        const MOST: usize = 100;
        let may_have_captures = |path: &Path, e: &io::Error| {
            e.kind() != io::ErrorKind::InvalidFilename && !path.ends_with("lost+found")
        };
        let unread = self.unread.iter();
        let unread = unread.filter(move |(path, e)| may_have_captures(path, e) == is_loss);
        let more = unread.clone().count().saturating_sub(MOST);
        unread
            .take(MOST)
            .map(|(path, e)| {
                format!(
                    "{}: this path is left out, because it cannot be read: {e}",
                    path.display()
                )
            })
            .chain((more > 0).then(|| format!("{more} more directories and files cannot be read")))
    }
}

/// Leaves out the sealed files whose plain files are listed too: a crash in the middle of the
/// encryption left both, with the same frames. Sealing keeps the time of the last write.
fn leave_out_sealed_twins(files: &mut Vec<(PathBuf, u64)>) {
    if !files.iter().any(|(path, _)| is_sealed(path)) {
        return;
    }
    let plain = files.iter().filter(|(path, _)| !is_sealed(path));
    let plain: HashSet<PathBuf> = plain.map(|(path, _)| path.clone()).collect();
    let modified = |path: &Path| fs::symlink_metadata(path)?.modified();
    files.retain(|(path, _)| {
        let name = path.file_name().and_then(|it| it.to_str());
        let twin = name.map(|it| path.with_file_name(unsealed(it)));
        let twin = twin.filter(|it| it != path && plain.contains(it));
        !twin.is_some_and(|it| {
            let times = modified(&it).ok().zip(modified(path).ok());
            times.is_some_and(|(plain, sealed)| plain == sealed)
        })
    });
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

    #[test]
    fn a_sealed_file_is_left_out_while_its_plain_file_is_there() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        let written = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        for name in ["a.pcap", "a.pcap.enc", "b.pcap", "b.pcap.enc", "c.pcap.enc"] {
            let file = fs::File::create(at(name)).expect("made");
            // Another file under the name of the sealed one.
            let later = Duration::from_secs(u64::from(name == "b.pcap.enc"));
            file.set_modified(written + later).expect("set");
        }
        for list in [CaptureFolder::list, CaptureFolder::search] {
            let listed = list(dir.path()).expect("lists").finished;
            let names = ["a.pcap", "b.pcap", "b.pcap.enc", "c.pcap.enc"].map(at);
            assert_eq!(listed.into_iter().map(|it| it.0).collect::<Vec<_>>(), names);
        }
    }
}
