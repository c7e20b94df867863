//! Which parts of which files can hold what is sought.

use crate::{
    index::{self, Index, Terms},
    merge::MergeError,
    name::FileName,
    reader::Parts,
};
use std::{
    collections::HashMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

/// How far a file's stamps may be off what its name, and that of the file after it, tell: a clock that is held to
/// another may step back a little.
const SLACK_NS: u64 = 1_000_000_000;

/// A folder's files, and what is to be read of them.
#[derive(Debug, Default)]
pub(super) struct Selection {
    pub(super) parts: Vec<Parts>,
    /// Finished files in the folder, and their bytes.
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Files that an index spoke of, and those of them whose index had to be made.
    pub(super) indexed: u64,
    pub(super) made: u64,
    /// Bytes of indexes read, and of files read to make indexes.
    pub(super) index_bytes: u64,
    pub(super) making_bytes: u64,
    pub(super) notes: Vec<String>,
}

/// Looks through a folder.
pub(super) fn select(
    dir: &Path,
    indexes: Option<&Path>,
    times: &Range<u64>,
    terms: &Terms,
    meter: &Arc<AtomicU64>,
    go_on: &impl Fn() -> bool,
) -> Result<Selection, MergeError> {
    let mut it = Selection::default();
    let files = listed(dir, &mut it.notes)?;
    if let Some(folder) = indexes {
        fs::create_dir_all(folder)
            .map_err(|e| MergeError::Refused(format!("{}: {e}", folder.display())))?;
    }
    let after = followers(&files);
    for (path, len) in &files {
        it.files += 1;
        it.bytes += len;
        if !may_hold(path, after.get(path).copied(), times) {
            continue;
        }
        let index = indexes.and_then(|folder| it.index(folder, path, *len, go_on));
        if !go_on() {
            return Err(MergeError::Stopped);
        }
        let parts = match index {
            None => Parts::whole(path.clone()),
            Some(index) => {
                let ranges = index.select(times, terms);
                if ranges.is_empty() {
                    continue;
                }
                if index.apart {
                    Parts::of(path.clone(), ranges)
                } else {
                    Parts::whole(path.clone())
                }
            }
        };
        it.parts.push(parts.metered(Arc::clone(meter)));
    }
    if it.parts.is_empty() {
        it.parts.push(nothing_of(&files[0].0, meter)?);
    }
    Ok(it)
}

impl Selection {
    /// A file's index, made if need be. A file that has none, since it cannot be read to its end, is read whole.
    fn index(
        &mut self,
        folder: &Path,
        path: &Path,
        len: u64,
        go_on: &impl Fn() -> bool,
    ) -> Option<Index> {
        if let Some((index, bytes)) = index::fresh(folder, path) {
            self.indexed += 1;
            self.index_bytes += bytes;
            return Some(index);
        }
        self.making_bytes += len;
        match index::made(folder, path, go_on) {
            Ok(index) => {
                let made = u64::from(index.is_some());
                self.indexed += made;
                self.made += made;
                index
            }
            Err(e) => {
                self.notes
                    .push(format!("{}: no index: {e}", path.display()));
                None
            }
        }
    }
}

/// The finished capture files of a folder and their lengths, in name order.
fn listed(dir: &Path, notes: &mut Vec<String>) -> Result<Vec<(PathBuf, u64)>, MergeError> {
    let refused =
        |e: &dyn std::fmt::Display| MergeError::Refused(format!("{}: {e}", dir.display()));
    let (mut files, mut open) = (Vec::new(), 0);
    for entry in fs::read_dir(dir).map_err(|e| refused(&e))? {
        let path = entry.map_err(|e| refused(&e))?.path();
        if path.extension().is_some_and(|ending| ending == "part") {
            open += 1;
        }
        if !is_capture(&path) {
            continue;
        }
        match fs::metadata(&path) {
            Ok(it) if it.is_file() && it.len() > 0 => files.push((path, it.len())),
            Ok(_) => {}
            // Deleted just now, to make room.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(refused(&e)),
        }
    }
    if open > 0 {
        notes.push(format!(
            "{}: {open} files are open still, or were left so by a crash (wqcap recover); they are left out",
            dir.display()
        ));
    }
    if files.is_empty() {
        return Err(refused(&"has no finished .pcap or .pcapng files"));
    }
    files.sort();
    Ok(files)
}

/// A finished file by its ending, whoever named it.
fn is_capture(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let ends = |ending| name.is_some_and(|it| it.ends_with(&format!(".{ending}")));
    FileName::ENDINGS.into_iter().any(ends)
}

/// For each file of a queue, when the next one of that queue begins.
fn followers(files: &[(PathBuf, u64)]) -> HashMap<PathBuf, u64> {
    let mut named: Vec<_> = files
        .iter()
        .filter_map(|(path, _)| {
            let name = FileName::of(path)?;
            Some((name.queue, name.start_ns, path))
        })
        .collect();
    named.sort();
    named
        .windows(2)
        .filter(|pair| pair[0].0 == pair[1].0)
        .map(|pair| (pair[0].2.clone(), pair[1].1))
        .collect()
}

/// By the names alone: whether a file can reach into the time that is sought.
fn may_hold(path: &Path, next: Option<u64>, times: &Range<u64>) -> bool {
    let begins = FileName::of(path).map_or(0, |it| it.start_ns.saturating_sub(SLACK_NS));
    let ends = next.map_or(u64::MAX, |start| start.saturating_add(SLACK_NS));
    begins < times.end && ends >= times.start
}

/// What stands before a file's first record: enough to say what the frames would be, if there were any.
fn nothing_of(path: &Path, meter: &Arc<AtomicU64>) -> Result<Parts, MergeError> {
    let head = index::head(&Parts::whole(path.to_owned()).metered(Arc::clone(meter)))
        .map_err(|e| MergeError::Refused(format!("{}: {e}", path.display())))?;
    Ok(Parts::of(path.to_owned(), std::iter::once(0..head).collect()).metered(Arc::clone(meter)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn names_tell_what_need_not_be_opened() {
        let file = |queue: u16, second: u64| {
            let name = format!("wqcap-q{queue:02}-{}.pcap", second * SECOND);
            (PathBuf::from(name), 1)
        };
        let mut files = vec![file(0, 100), file(0, 200), file(0, 300), file(1, 150)];
        files.push(("other.pcap".into(), 1));
        let after = followers(&files);
        let held = |from: u64, to: u64| -> Vec<bool> {
            let times = from * SECOND..to * SECOND;
            files
                .iter()
                .map(|(path, _)| may_hold(path, after.get(path).copied(), &times))
                .collect()
        };
        assert_eq!(held(0, 50), [false, false, false, false, true]);
        assert_eq!(held(110, 120), [true, false, false, false, true]);
        assert_eq!(held(210, 220), [false, true, false, true, true]);
        assert_eq!(held(195, 205), [true, true, false, true, true]);
        assert_eq!(held(400, 500), [false, false, true, true, true]);
        // Stamps near a name's may lie on either side of it.
        assert_eq!(held(201, 202), [true, true, false, true, true]);
        assert_eq!(held(0, 100), [true, false, false, false, true]);
    }
}
