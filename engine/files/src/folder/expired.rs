//! Files that a capture has deleted to make room before `wqcap ship` had shipped them: their frames belong in its delivery
//! ledger, also those of files that it never saw.
//!
//! ```text
//! <folder of capture files>/.wqcap-expired/<N>.jsonl     a line a file, in the order in which they went
//! capture: line -> the file's deletion        ship: lines from where it was on -> ledger
//! ```
//!
//! A list that is long is followed by another one, and goes when its reader is behind it.
//!
//! Invariants: a file's line is on the disk before the file goes, unless the disk is full, so what is gone has a line. Only the
//! last line may be of a file that is still there: a capture was killed in between. One process at a time writes the lists of a
//! folder.

use super::{FileStamp, sync_folder};
use crate::open::{open_for_append, open_for_update, open_regular};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// Where lists are, below the folder of capture files.
const FOLDER: &str = ".wqcap-expired";
/// Ending of a list's name, behind its number.
const LIST: &str = "jsonl";
/// A list that is longer is not written further, in bytes: some thousand files.
const LONG: u64 = 1 << 20;
/// Bytes of a list that are read at most.
const MOST_LIST: u64 = 2 * LONG;

/// A file that went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiredFile {
    /// Its name in its folder.
    pub file: String,
    /// The file as it was.
    pub stamp: FileStamp,
    /// Its frames; `None`: nobody had counted them.
    pub frames: Option<u64>,
}

/// How far lists have been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPosition {
    /// The list's number.
    pub list: u64,
    /// Its bytes in front of the next line.
    pub bytes: u64,
}

/// The lists of a folder, for the one who writes them.
#[derive(Debug)]
pub struct ExpiredList {
    dir: PathBuf,
    number: u64,
    /// The last line.
    last: Option<ExpiredFile>,
}

impl ExpiredList {
    /// Goes on with the lists of a folder. Those that `read` is behind are removed.
    ///
    /// # Errors
    /// They cannot be read or made.
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
        // A link or a pipe of that name is not a list.
        while fs::symlink_metadata(it.path()).is_ok_and(|there| !there.is_file()) {
            it.number += 1;
        }
        // Somebody has emptied the folder: the reader waits behind what is no longer there.
        if it.number == read.list && it.len() < read.bytes {
            it.number += 1;
        }
        let whole = it.cut()?;
        it.last = whole.last().map(|(file, _)| file.clone());
        Ok(it)
    }

    /// Notes a file and deletes it. A full disk takes no line before there is room: the file then goes first.
    ///
    /// # Errors
    /// The file cannot be deleted, as [`fs::remove_file`] says; or it is gone, and its line could not be written.
    pub fn remove(&mut self, file: &Path, expired: &ExpiredFile) -> io::Result<()> {
        // It could not be deleted when it was noted.
        let is_noted = self.last.as_ref() == Some(expired);
        let noted = if is_noted { Ok(()) } else { self.note(expired) };
        fs::remove_file(file)?;
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
            // Nothing of it stays, or the next line would be none.
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

    /// Bytes of the list; of one that is not there 0.
    fn len(&self) -> u64 {
        fs::metadata(self.path()).map_or(0, |it| it.len())
    }

    /// Takes away what a crash, or a full disk, has left of a line; gives those that are whole.
    fn cut(&self) -> io::Result<Vec<(ExpiredFile, u64)>> {
        let whole = lines(&self.path(), 0)?;
        if let Ok(list) = open_for_update(&self.path()) {
            list.set_len(whole.last().map_or(0, |(_, end)| *end))?;
        }
        Ok(whole)
    }
}

/// Reads on from a position: each file, and the position behind it. A folder without lists has none.
///
/// # Errors
/// A list cannot be read.
pub fn read(dir: &Path, from: ListPosition) -> io::Result<Vec<(ExpiredFile, ListPosition)>> {
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

/// Whole lines from a byte on, each with where it ends. What is no line of ours ends them.
fn lines(path: &Path, start: u64) -> io::Result<Vec<(ExpiredFile, u64)>> {
    let mut file = match open_regular(path) {
        Ok(file) => file,
        // Without a regular file there are 0 lines.
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
        let is_whole = line.last() == Some(&b'\n');
        let Some(file) = is_whole
            .then(|| serde_json::from_slice(&line).ok())
            .flatten()
        else {
            return Ok(all);
        };
        all.push((file, at));
    }
}

/// The numbers of a folder's lists, in order.
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
        all.map(|(it, _)| it.file).collect()
    }

    #[test]
    fn what_goes_is_read_once_and_in_its_order() {
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
            all.iter().map(|it| &it.0).collect::<Vec<_>>(),
            expected.iter().collect::<Vec<_>>()
        );
        assert_eq!(files(dir.path(), all[0].1), ["b"]);
        remove("c");
        assert_eq!(files(dir.path(), all[1].1), ["c"]);
    }

    #[test]
    fn what_was_noted_when_the_capture_was_killed_is_noted_once() {
        let dir = tempfile::tempdir().expect("dir");
        let start = ListPosition::default();
        let (path, expired) = file(dir.path(), "a");
        let open = || ExpiredList::open(dir.path(), start).expect("opens");
        open().note(&expired).expect("written");
        // In the middle of the next line.
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
        // Gone already: nobody notes it, and nobody is told that it was deleted.
        let gone = list.remove(&path, &expired).expect_err("gone");
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        assert_eq!(files(dir.path(), start), ["a", "b"]);
    }

    #[test]
    fn lists_that_were_read_go() {
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
        assert_eq!((last.file.as_str(), end.list), ("b", 1));
        ExpiredList::open(dir.path(), start).expect("opens");
        assert!(long.exists(), "nobody has read it");
        let mut list = ExpiredList::open(dir.path(), *end).expect("opens");
        assert!(!long.exists());
        remove(&mut list, "c");
        assert_eq!(files(dir.path(), *end), ["c"]);
        // Whoever empties the folder does not turn a reader's position into another one.
        fs::remove_dir_all(dir.path().join(FOLDER)).expect("there");
        let behind = ListPosition { list: 5, bytes: 9 };
        let mut list = ExpiredList::open(dir.path(), behind).expect("opens");
        remove(&mut list, "d");
        assert_eq!(files(dir.path(), behind), ["d"]);
    }
}
