//! Folders that are held open while files in them are renamed and deleted, so that another user who
//! may rename the folders of a path cannot direct these steps to a file elsewhere.
//!
//! Invariant: of the folders below the named one, none is a link.

use super::open::with_at;
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{
        AtFlags, CWD, Mode, OFlags, RenameFlags, Stat, linkat, openat, renameat, renameat_with,
        statat, unlinkat,
    },
    io::Errno,
};
use std::{
    ffi::OsStr,
    fs::File,
    io,
    path::{Component, Path},
};

/// Folder that is held open, whatever happens to its path.
#[derive(Debug)]
pub struct HeldFolder(OwnedFd);

impl HeldFolder {
    /// Opens the folder of the file `path`. If the path begins with the folder `dir`, `dir` may be a
    /// link, and the folders below it may not.
    ///
    /// # Errors
    /// Errors of open(2). `InvalidInput`: the path leads out of `dir`.
    pub fn of(dir: &Path, path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = path.parent().unwrap_or(Path::new(""));
        let (dir, below) = match folder.strip_prefix(dir) {
            Ok(below) => (dir, below),
            Err(_) => (folder, Path::new("")),
        };
        // The path of a file in the working directory has no folder.
        let dir = match dir.as_os_str().is_empty() {
            true => Path::new("."),
            false => dir,
        };
        let mut held = openat(CWD, dir, flags, Mode::empty())?;
        for component in below.components() {
            held = match component {
                Component::Normal(name) => {
                    openat(&held, name, flags | OFlags::NOFOLLOW, Mode::empty())?
                }
                Component::CurDir => held,
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            };
        }
        Ok(Self(held))
    }

    /// Reads the metadata of a file in the folder; a link is not followed.
    ///
    /// # Errors
    /// Errors of stat(2).
    pub fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Opens a regular file in the folder for reading; a link, pipe or device is an error.
    ///
    /// # Errors
    /// As [`open_regular`](super::open::open_regular).
    pub fn open_regular(&self, name: &OsStr) -> io::Result<File> {
        with_at(self.0.as_fd(), name.as_ref(), OFlags::RDONLY)
    }

    /// Opens a regular file in the folder for reading and writing; a link, pipe or device is an
    /// error.
    ///
    /// # Errors
    /// As [`open_regular`](super::open::open_regular).
    pub fn open_for_update(&self, name: &OsStr) -> io::Result<File> {
        with_at(self.0.as_fd(), name.as_ref(), OFlags::RDWR)
    }

    /// Creates a file in the folder for writing; the umask restricts its `mode`.
    ///
    /// # Errors
    /// Errors of open(2). `AlreadyExists`: there is a file or link of this name.
    pub fn create_new(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Deletes a file in the folder.
    ///
    /// # Errors
    /// Errors of unlink(2).
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Renames a file in the folder without overwriting an existing one.
    ///
    /// # Errors
    /// `AlreadyExists`: there is a file of the new name. Otherwise errors of rename(2).
    pub fn rename_new(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        rename_in(self.0.as_fd(), from.as_ref(), to.as_ref())
    }
}

/// Renames a file without overwriting an existing one; paths are relative to `folder`.
pub(super) fn rename_in(folder: BorrowedFd<'_>, from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
        // Not every file system supports RENAME_NOREPLACE; most of those have hard links.
        Err(Errno::INVAL | Errno::NOSYS) => {}
        other => return Ok(other?),
    }
    match linkat(folder, from, folder, to, AtFlags::empty()) {
        Ok(()) => Ok(unlinkat(folder, from, AtFlags::empty())?),
        Err(Errno::EXIST) => Err(Errno::EXIST.into()),
        Err(_) if statat(folder, to, AtFlags::SYMLINK_NOFOLLOW).is_ok() => Err(Errno::EXIST.into()),
        Err(_) => Ok(renameat(folder, from, folder, to)?),
    }
}

/// Deletes the file `path`, which is below the folder `dir`. No folder below `dir` may be a link.
///
/// # Errors
/// As [`HeldFolder::of`] and [`HeldFolder::remove`].
pub fn remove_below(dir: &Path, path: &Path) -> io::Result<()> {
    HeldFolder::of(dir, path)?.remove(path.file_name().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn nothing_is_changed_behind_a_link() {
        let dir = tempfile::tempdir().expect("dir");
        let [named, elsewhere] = ["named", "elsewhere"].map(|it| dir.path().join(it));
        fs::create_dir_all(named.join("deep/sub")).expect("made");
        fs::create_dir_all(elsewhere.join("sub")).expect("made");
        let victim = elsewhere.join("sub/a");
        fs::write(&victim, "victim").expect("written");
        let a = named.join("deep/sub/a");
        fs::write(&a, "a").expect("written");
        let held = HeldFolder::of(&named, &a).expect("opens");
        fs::rename(named.join("deep"), named.join("old")).expect("renamed");
        symlink(&elsewhere, named.join("deep")).expect("linked");
        assert!(remove_below(&named, &a).is_err());
        held.rename_new("a".as_ref(), "b".as_ref())
            .expect("renamed");
        assert!(named.join("old/sub/b").exists() && victim.exists());
        // The named folder itself may be a link.
        let link = dir.path().join("link");
        symlink(&elsewhere, &link).expect("linked");
        remove_below(&link, &link.join("sub/a")).expect("removed");
        assert!(!victim.exists());
        assert!(remove_below(&named, &named.join("../elsewhere/sub")).is_err());
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("a"), "a").expect("written");
        fs::write(at("b"), "b").expect("written");
        let held = HeldFolder::of(dir.path(), &at("a")).expect("opens");
        let kept = held
            .rename_new("a".as_ref(), "b".as_ref())
            .expect_err("b is there");
        assert_eq!(kept.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(at("b")).expect("there"), b"b");
    }
}
