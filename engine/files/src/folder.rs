//! The capture files of a folder, by the endings of their names.

use crate::name::{FileName, PART};
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A folder's capture files, in name order.
#[derive(Debug, Default)]
pub struct CaptureFolder {
    /// Finished files and their lengths.
    pub finished: Vec<(PathBuf, u64)>,
    /// Files that are open, or were left open by a crash: everything whose name ends in `.part`.
    pub unfinished: Vec<PathBuf>,
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
    /// Lists a folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(dir: &Path) -> io::Result<Self> {
        let mut it = Self::default();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if name.ends_with(PART.as_bytes()) {
                it.unfinished.push(path);
            } else if FileName::has_capture_ending(&path) {
                match fs::metadata(&path) {
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

    /// A note for the user where only finished files are read; `None`: there are no others.
    #[must_use]
    pub fn unfinished_note(&self, dir: &Path) -> Option<String> {
        let n = self.unfinished.len();
        (n > 0).then(|| {
            format!(
                "{}: left out {n} .part files: still open, or left by a crash (wqcap recover)",
                dir.display()
            )
        })
    }
}
