//! Lists of the files that a capture deleted to make room before `wqcap ship` had shipped them.
//! Their frames belong in the delivery ledger of `wqcap ship`, including frames of files that it
//! never saw.
//!
//! ```text
//! <folder of capture files>/.wqcap-expired/<N>.jsonl     a line per file, in the order of deletion
//! capture: line -> deletion of the file        ship: lines from the last position -> ledger
//! ```
//!
//! A list that is full is followed by another one. It is deleted after its reader has read all of
//! it.
//!
//! Invariants: a file's line is on the disk before the file is deleted, unless the disk is full, so
//! that every deleted file has a line. Only the last line may describe a file that still exists:
//! the capture was killed between the two steps. One process at a time writes the lists of a
//! folder.

use super::held::remove_below;
use super::open::{open_for_append, open_for_update, open_regular};
use super::{FileStamp, sync_folder};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// Name of the folder with the lists of expired files, inside the folder of capture files.
const FOLDER: &str = ".wqcap-expired";
/// Extension of the name of a list file of expired files, after the list's number.
const LIST: &str = "jsonl";
/// Length in bytes of a list of expired files at which a new list begins; it holds some thousand
/// files.
const LONG: u64 = 1 << 20;
/// Maximum number of bytes that are read from one list of expired files.
const MOST_LIST: u64 = 2 * LONG;

/// Expired file: a capture file that was deleted before it was shipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiredFile {
    /// Name of the expired file in its folder.
    pub file: String,
    /// Length and modification time of the expired file.
    pub stamp: FileStamp,
    /// Number of frames in the expired file; `None`: they had not been counted.
    pub frames: Option<u64>,
}

/// Position of a reader in the lists of expired files (deleted before they were shipped) of a
/// capture folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPosition {
    /// Number of the list of expired files that is read.
    pub list: u64,
    /// Byte offset of the next line in the list of expired files.
    pub bytes: u64,
}

/// Writer of the lists of expired files of a capture folder.
#[derive(Debug)]
pub struct ExpiredList {
    dir: PathBuf,
    number: u64,
    /// Last line of the list of expired files; `None`: the list is empty.
    last: Option<ExpiredFile>,
}

impl ExpiredList {
    /// Opens a capture folder's lists of expired files to append to them. Lists before the position
    /// `read` are removed.
    ///
    /// # Errors
    /// The lists cannot be read or created.
    pub fn open(dir: &Path, read: ListPosition) -> io::Result<Self> {
        let folder = dir.join(FOLDER);
        if let Err(e) = fs::create_dir(&folder)
            && e.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(e);
        }
        let numbers = numbers(dir)?;
        for old in numbers.iter().filter(|it| **it < read.list) {
            fs::remove_file(path(dir, *old))?;
        }
        let mut it = Self {
            dir: dir.to_owned(),
            number: numbers.last().copied().unwrap_or(0).max(read.list),
            last: None,
        };
        // A link or a pipe of that name is not used as a list.
        while fs::symlink_metadata(it.path()).is_ok_and(|there| !there.is_file()) {
            it.number += 1;
        }
        // The folder was emptied by the user: the reader's position is after the end of the list.
        if it.number == read.list && it.len() < read.bytes {
            it.number += 1;
        }
        let whole = it.cut()?;
        it.last = whole.last().and_then(|(file, _)| file.clone());
        Ok(it)
    }

    /// Writes the line of an expired file and deletes the file. On a full disk the file is deleted
    /// before its line is written.
    ///
    /// # Errors
    /// The file cannot be deleted, with the error of [`remove_below`]; or it is deleted, and its
    /// line cannot be written.
    pub fn remove(&mut self, file: &Path, expired: &ExpiredFile) -> io::Result<()> {
        // The line was written before, when the file could not be deleted.
        let is_noted = self.last.as_ref() == Some(expired);
        let noted = if is_noted { Ok(()) } else { self.note(expired) };
        remove_below(&self.dir, file)?;
        noted.or_else(|_| self.note(expired))
    }

    fn note(&mut self, expired: &ExpiredFile) -> io::Result<()> {
        if self.len() >= LONG {
            self.number += 1;
        }
        let mut line = serde_json::to_vec(expired)?;
        line.push(b'\n');
        let is_new = self.len() == 0;
        let mut list = open_for_append(&self.path())?;
        let written = list.write_all(&line).and_then(|()| list.sync_data());
        if let Err(e) = written {
            // A part of the line is removed, or the next line would be invalid.
            self.cut()?;
            return Err(e);
        }
        if is_new {
            sync_folder(&self.dir.join(FOLDER));
        }
        self.last = Some(expired.clone());
        Ok(())
    }

    fn path(&self) -> PathBuf {
        path(&self.dir, self.number)
    }

    /// Returns the length in bytes of the list of expired files; 0 if it does not exist.
    fn len(&self) -> u64 {
        fs::metadata(self.path()).map_or(0, |it| it.len())
    }

    /// Removes an incomplete last line of the list of expired files, which a crash or a full disk
    /// left. Returns the complete lines with their end offsets.
    fn cut(&self) -> io::Result<Vec<(Option<ExpiredFile>, u64)>> {
        let whole = lines(&self.path(), 0)?;
        if let Ok(list) = open_for_update(&self.path()) {
            list.set_len(whole.last().map_or(0, |(_, end)| *end))?;
        }
        Ok(whole)
    }
}

/// Reads the lists of expired files (deleted before they were shipped) from a position on: the file
/// of each line, and the position after it. `None` is the file of a damaged line. A folder without
/// lists yields nothing.
///
/// # Errors
/// A list cannot be read.
pub fn read(
    dir: &Path,
    from: ListPosition,
) -> io::Result<Vec<(Option<ExpiredFile>, ListPosition)>> {
    let mut all = Vec::new();
    for list in numbers(dir)? {
        if list < from.list {
            continue;
        }
        let start = if list == from.list { from.bytes } else { 0 };
        let lines = lines(&path(dir, list), start)?.into_iter();
        all.extend(lines.map(|(file, bytes)| (file, ListPosition { list, bytes })));
    }
    Ok(all)
}

/// Reads the complete lines of a list of expired files from byte `start` on, each with its end
/// offset. `None`: the line is damaged.
fn lines(path: &Path, start: u64) -> io::Result<Vec<(Option<ExpiredFile>, u64)>> {
    let mut file = match open_regular(path) {
        Ok(file) => file,
        // A missing or irregular file has 0 lines.
        Err(e) if [io::ErrorKind::NotFound, io::ErrorKind::InvalidInput].contains(&e.kind()) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(e),
    };
    file.seek(SeekFrom::Start(start))?;
    let (mut reader, mut at) = (BufReader::new(file.take(MOST_LIST)), start);
    let (mut all, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        at += reader.read_until(b'\n', &mut line)? as u64;
        if line.last() != Some(&b'\n') {
            return Ok(all);
        }
        all.push((serde_json::from_slice(&line).ok(), at));
    }
}

/// Returns the numbers of a folder's lists of expired files in ascending order.
fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(dir.join(FOLDER)) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|it| it.to_str());
        if path.extension().is_some_and(|it| it == LIST) {
            numbers.extend(stem.and_then(|it| it.parse::<u64>().ok()));
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(FOLDER).join(format!("{number}.{LIST}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    fn file(dir: &Path, name: &str) -> (PathBuf, ExpiredFile) {
        let path = dir.join(name);
        fs::write(&path, name).expect("written");
        let expired = ExpiredFile {
            file: name.into(),
            stamp: FileStamp::read(&path).expect("there"),
            frames: Some(7),
        };
        (path, expired)
    }

    fn files(dir: &Path, from: ListPosition) -> Vec<String> {
        let all = read(dir, from).expect("reads").into_iter();
        all.map(|(it, _)| it.map_or("damaged".into(), |it| it.file))
            .collect()
    }

    #[test]
    fn deleted_files_are_read_once_and_in_order() {
        let dir = tempfile::tempdir().expect("dir");
        let start = ListPosition::default();
        assert_eq!(read(dir.path(), start).expect("reads"), []);
        let mut list = ExpiredList::open(dir.path(), start).expect("opens");
        let mut remove = |name: &str| {
            let (path, expired) = file(dir.path(), name);
            list.remove(&path, &expired).expect("removed");
            assert!(!path.exists());
            expired
        };
        let expected = [remove("a"), remove("b")];
        let all = read(dir.path(), start).expect("reads");
        assert_eq!(
            all.iter()
                .filter_map(|it| it.0.as_ref())
                .collect::<Vec<_>>(),
            expected.iter().collect::<Vec<_>>()
        );
        assert_eq!(files(dir.path(), all[0].1), ["b"]);
        remove("c");
        assert_eq!(files(dir.path(), all[1].1), ["c"]);
    }

    #[test]
    fn a_line_written_before_a_kill_is_not_repeated() {
        let dir = tempfile::tempdir().expect("dir");
        let start = ListPosition::default();
        let (path, expired) = file(dir.path(), "a");
        let open = || ExpiredList::open(dir.path(), start).expect("opens");
        open().note(&expired).expect("written");
        // Killed while the next line was written.
        let at = super::path(dir.path(), 0);
        let mut list = OpenOptions::new().append(true).open(at).expect("there");
        list.write_all(b"{\"file\":\"b").expect("written");
        assert_eq!(files(dir.path(), start), ["a"]);
        let mut list = open();
        list.remove(&path, &expired).expect("removed");
        assert!(!path.exists());
        let (path, expired) = file(dir.path(), "b");
        list.remove(&path, &expired).expect("removed");
        assert_eq!(files(dir.path(), start), ["a", "b"]);
        // The file is gone already: no line is written, and an error is returned.
        let gone = list.remove(&path, &expired).expect_err("gone");
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        assert_eq!(files(dir.path(), start), ["a", "b"]);
    }

    #[test]
    fn lines_behind_a_damaged_one_are_read_and_kept() {
        let dir = tempfile::tempdir().expect("dir");
        let start = ListPosition::default();
        let open = || ExpiredList::open(dir.path(), start).expect("opens");
        let at = super::path(dir.path(), 0);
        for (name, seen) in [("a", &["a"][..]), ("b", &["a", "damaged", "b"])] {
            let (path, expired) = file(dir.path(), name);
            open().remove(&path, &expired).expect("removed");
            assert_eq!(files(dir.path(), start), seen);
            let mut list = OpenOptions::new().append(true).open(&at).expect("there");
            list.write_all(b"{\"fil\xff\n").expect("written");
        }
        assert_eq!(files(dir.path(), start), ["a", "damaged", "b", "damaged"]);
    }

    #[test]
    fn lists_are_removed_after_they_were_read() {
        let dir = tempfile::tempdir().expect("dir");
        let start = ListPosition::default();
        let mut list = ExpiredList::open(dir.path(), start).expect("opens");
        let remove = |list: &mut ExpiredList, name: &str| {
            let (path, expired) = file(dir.path(), name);
            list.remove(&path, &expired).expect("removed");
        };
        remove(&mut list, "a");
        let long = super::path(dir.path(), 0);
        let filled = OpenOptions::new().append(true).open(&long).expect("there");
        let line = fs::read(&long).expect("there");
        (&filled)
            .write_all(&line.repeat(LONG as usize / line.len() + 1))
            .expect("written");
        remove(&mut list, "b");
        let all = read(dir.path(), start).expect("reads");
        let (last, end) = all.last().expect("some");
        let last = last.as_ref().expect("sound");
        assert_eq!((last.file.as_str(), end.list), ("b", 1));
        ExpiredList::open(dir.path(), start).expect("opens");
        assert!(long.exists(), "not read yet");
        let mut list = ExpiredList::open(dir.path(), *end).expect("opens");
        assert!(!long.exists());
        remove(&mut list, "c");
        assert_eq!(files(dir.path(), *end), ["c"]);
        // An emptied folder does not make a reader skip new lines.
        fs::remove_dir_all(dir.path().join(FOLDER)).expect("there");
        let behind = ListPosition { list: 5, bytes: 9 };
        let mut list = ExpiredList::open(dir.path(), behind).expect("opens");
        remove(&mut list, "d");
        assert_eq!(files(dir.path(), behind), ["d"]);
    }
}
