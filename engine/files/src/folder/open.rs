//! Opens files in folders where other users may place files: capture folders, indexes, pins, journals, stores.
//!
//! May import: nothing of this crate. A lint (`clippy::disallowed_methods`, in `clippy.toml`)
//! requires product code to use this module. A plain open needs a stated reason: a path of the
//! program's own, a file of `/proc` or `/sys`, or a path that the user has named.
//!
//! Invariants: a symbolic link at the last component of a path is not followed; opening a pipe does
//! not wait for its other end; a file that is not regular is not opened. Functions that read a
//! whole file take a length limit.
//!
//! [`read_named`] is the exception: the user names the file, and it may be a link or a pipe.

use rustix::{
    fd::BorrowedFd,
    fs::{CWD, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{File, TryLockError},
    io::{self, ErrorKind, Read},
    path::Path,
};

/// Maximum length in bytes of a small JSON file, such as a delivery record or a status. A file name
/// in it has at most 255 bytes.
pub const MOST_RECORD: u64 = 64 << 10;
/// Maximum length in bytes of the table of blocks (Parquet) that a delivery journal keeps for a
/// capture file.
pub const MOST_TABLE: u64 = 256 << 20;
/// Maximum length in bytes of the index of a capture file.
pub const MOST_INDEX: u64 = 256 << 20;
/// Maximum length in bytes of a text file that the user names: a configuration, a filter, a
/// certificate.
pub const MOST_TEXT: u64 = 16 << 20;
/// Maximum length in bytes of a list file that the user names: ranges of frames, a TLS key log.
pub const MOST_LIST: u64 = 256 << 20;

/// Opens a regular file for reading; a link, pipe or device is an error.
///
/// # Errors
/// Errors of open(2). `InvalidInput`: the path is a link or not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    with(path, OFlags::RDONLY)
}

/// Opens a regular file for reading and writing; a link, pipe or device is an error.
///
/// # Errors
/// As [`open_regular`].
pub fn open_for_update(path: &Path) -> io::Result<File> {
    with(path, OFlags::RDWR)
}

/// Opens a regular file for writing at its end, and creates it if it is missing; a link is an
/// error.
///
/// # Errors
/// As [`open_regular`].
pub fn open_for_append(path: &Path) -> io::Result<File> {
    with(path, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)
}

/// Opens a regular file for writing and truncates it to 0 bytes; creates it if it is missing. A
/// link is an error.
///
/// # Errors
/// As [`open_regular`].
pub fn create_or_empty(path: &Path) -> io::Result<File> {
    // Truncated only after the check that the file is regular.
    let file = with(path, OFlags::WRONLY | OFlags::CREATE)?;
    file.set_len(0)?;
    Ok(file)
}

/// Opens a folder, for example to sync or lock it.
///
/// # Errors
/// Errors of open(2), also if the path is not a folder.
pub fn open_folder(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Locks a file, or a folder, for this process alone (flock(2)), without waiting for the lock.
///
/// # Errors
/// `WouldBlock`: another process has locked it. Errors of flock(2).
pub fn try_lock(file: &File) -> Result<(), TryLockError> {
    loop {
        match file.try_lock() {
            // Network and FUSE file systems may be interrupted.
            Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Returns `true` if another process has locked a regular file for itself alone, as a capture does
/// while it writes the file; `false` if not. To find out, this function locks the file for a moment.
///
/// # Errors
/// As [`open_regular`]; errors of flock(2).
pub fn is_locked(path: &Path) -> io::Result<bool> {
    match open_regular(path)?.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Reads a whole regular file of at most `most` bytes.
///
/// # Errors
/// As [`open_regular`]. `FileTooLarge`: the file has more than `most` bytes.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let len = file.metadata()?.len();
    if len > most {
        return Err(too_long(most));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    read_within(file, most, &mut bytes)?;
    Ok(bytes)
}

/// Reads a whole file of at most `most` bytes that the user named. It may be a link, a pipe, or `-`
/// for standard input.
///
/// # Errors
/// Errors of open(2) and read(2). `FileTooLarge`: the file has more than `most` bytes.
#[expect(clippy::disallowed_methods, reason = "the user named the path")]
pub fn read_named(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match path.as_os_str() == "-" {
        true => read_within(io::stdin().lock(), most, &mut bytes)?,
        false => read_within(File::open(path)?, most, &mut bytes)?,
    }
    Ok(bytes)
}

/// Reads `source` to its end into `bytes`; fails if it has more than `most` bytes.
fn read_within(source: impl Read, most: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    let read = source.take(most.saturating_add(1)).read_to_end(bytes)?;
    match read as u64 > most {
        true => Err(too_long(most)),
        false => Ok(()),
    }
}

fn too_long(most: u64) -> io::Error {
    let problem =
        format!("the file has more than {most} bytes, which is the limit for files of this kind");
    io::Error::new(ErrorKind::FileTooLarge, problem)
}

fn with(path: &Path, flags: OFlags) -> io::Result<File> {
    with_at(CWD, path, flags)
}

/// Opens a regular file, whose path is relative to `folder`; a link, pipe or device is an error.
pub(super) fn with_at(folder: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<File> {
    let irregular = || {
        io::Error::new(
            ErrorKind::InvalidInput,
            "is a link or not a regular file, and is not opened; remove it",
        )
    };
    let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // The umask restricts the mode of a new file.
    let mode = Mode::from_raw_mode(0o666);
    let file = match rustix::fs::openat(folder, path, flags | careful, mode) {
        Ok(file) => File::from(file),
        // A link; a socket, or a pipe without a reader; a folder opened for writing.
        Err(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => return Err(irregular()),
        Err(e) => return Err(e.into()),
    };
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(irregular()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FileType, mknodat};
    use std::{fs, io::Write, os::unix::fs::symlink};

    #[test]
    fn irregular_files_are_refused_without_blocking() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "content").expect("written");
        mknodat(CWD, at("fifo"), FileType::Fifo, 0o600.into(), 0).expect("made");
        symlink(at("file"), at("link")).expect("linked");
        symlink("/dev/zero", at("zero")).expect("linked");
        fs::create_dir(at("folder")).expect("made");
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("bound");
        let ways = [
            open_regular,
            open_for_update,
            open_for_append,
            create_or_empty,
            |path: &Path| read_regular(path, 10).and_then(|_| open_regular(path)),
        ];
        for name in ["fifo", "link", "zero", "folder", "socket"] {
            for (i, way) in ways.iter().enumerate() {
                let refused = way(&at(name)).expect_err(name).kind();
                assert_eq!(refused, ErrorKind::InvalidInput, "{name} {i}");
            }
        }
        for way in ways {
            way(&at("file")).expect("opened");
        }
        assert_eq!(fs::read(at("file")).expect("there"), b"", "emptied");
        assert!(open_folder(dir.path()).is_ok() && open_folder(&at("file")).is_err());
        let missing = open_regular(&at("missing")).expect_err("missing");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_file_above_the_limit_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("file");
        let mut file = fs::File::create(&path).expect("made");
        file.write_all(b"0123456789").expect("written");
        assert_eq!(read_regular(&path, 10).expect("read"), b"0123456789");
        file.set_len(1 << 36).expect("sparse");
        let refused = read_regular(&path, 10).expect_err("too long");
        assert_eq!(refused.kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_named_file_may_be_a_link_and_has_a_limit() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "0123456789").expect("written");
        symlink(at("file"), at("link")).expect("linked");
        assert_eq!(read_named(&at("link"), 10).expect("read"), b"0123456789");
        for endless in [&at("link"), Path::new("/dev/zero")] {
            let refused = read_named(endless, 9).expect_err("too long");
            assert_eq!(refused.kind(), ErrorKind::FileTooLarge);
        }
    }
}
