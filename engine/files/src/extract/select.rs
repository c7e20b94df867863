//! Selects the parts of files that can hold the frames wanted.

use crate::{
    folder::CaptureFolder,
    index::{self, CaptureIndex, FlowTerms},
    merge::MergeError,
    name::FileName,
    read::{FileEnd, FileRanges},
};
use serde::Serialize;
use std::{
    collections::HashMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

/// How far a file's stamps may lie outside the times that its name, and that of the file after it, tell: a clock that
/// follows another may step back a little.
const SLACK_NS: u64 = 1_000_000_000;

/// How indexes were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IndexUse {
    /// Files whose index was used.
    pub files: u64,
    /// Those of them whose index was absent or stale, and was built.
    pub made: u64,
    /// Bytes of indexes read.
    pub bytes_read: u64,
    /// Bytes of files read to build indexes.
    pub bytes_to_make: u64,
    /// An index can help with the filter.
    pub helps_filter: bool,
}

/// What is to be read of a folder's files.
#[derive(Debug, Default)]
pub(super) struct FileSelection {
    pub(super) files: Vec<FileRanges>,
    /// Finished files in the folder, and their bytes.
    pub(super) finished: u64,
    pub(super) finished_bytes: u64,
    pub(super) index: IndexUse,
    pub(super) notes: Vec<String>,
    /// What is lost of files that are not read to their end.
    pub(super) losses: Vec<String>,
}

/// Selects the parts of a folder's files that can hold frames of `times` that fulfil `terms`.
pub(super) fn select(
    dir: &Path,
    indexes: Option<&Path>,
    times: &Range<u64>,
    terms: &FlowTerms,
    meter: &Arc<AtomicU64>,
    go_on: &impl Fn() -> bool,
) -> Result<FileSelection, MergeError> {
    let mut it = FileSelection::default();
    it.index.helps_filter = !terms.is_empty();
    let finished = it.list(dir)?;
    if let Some(folder) = indexes {
        fs::create_dir_all(folder)
            .map_err(|e| MergeError::Refused(format!("{}: {e}", folder.display())))?;
    }
    let after = followers(&finished);
    for (path, len) in &finished {
        it.finished += 1;
        it.finished_bytes += len;
        if !may_hold(path, after.get(path).copied(), times) {
            continue;
        }
        let index = indexes.and_then(|folder| it.index_of(folder, path, *len, go_on));
        if !go_on() {
            return Err(MergeError::Stopped);
        }
        let mut file = FileRanges::whole(path.clone());
        if let Some(index) = index {
            let ranges = index.select(times, terms);
            if ranges.is_empty() || index.apart {
                // Who reads the file whole tells it himself.
                if let end @ FileEnd::Torn { .. } = index.end {
                    it.losses.push(format!("{}: {end}", path.display()));
                }
                if ranges.is_empty() {
                    continue;
                }
                file = FileRanges::new(path.clone(), ranges);
            }
        }
        it.files.push(FileRanges {
            listed: true,
            meter: Arc::clone(meter),
            ..file
        });
    }
    if it.files.is_empty() {
        it.files.push(head_of(&finished, dir, meter)?);
    }
    Ok(it)
}

impl FileSelection {
    /// The finished capture files of a folder and their lengths, in name order; at least one.
    fn list(&mut self, dir: &Path) -> Result<Vec<(PathBuf, u64)>, MergeError> {
        let refused = |problem| MergeError::Refused(format!("{}: {problem}", dir.display()));
        let folder = CaptureFolder::list(dir).map_err(|e| refused(e.to_string()))?;
        self.notes.extend(folder.unfinished_note(dir));
        let mut finished = folder.finished;
        finished.retain(|(_, len)| *len > 0);
        if finished.is_empty() {
            return Err(refused("has no finished .pcap or .pcapng files".into()));
        }
        Ok(finished)
    }

    /// A file's index, built if need be. A file that has none, since it cannot be read to its end, is read whole.
    fn index_of(
        &mut self,
        folder: &Path,
        path: &Path,
        len: u64,
        go_on: &impl Fn() -> bool,
    ) -> Option<CaptureIndex> {
        if let Some((index, bytes)) = index::load(folder, path) {
            self.index.files += 1;
            self.index.bytes_read += bytes;
            return Some(index);
        }
        self.index.bytes_to_make += len;
        match index::build_into(folder, path, go_on) {
            Ok(index) => {
                let made = u64::from(index.is_some());
                self.index.files += made;
                self.index.made += made;
                index
            }
            // Its turn tells that it is gone.
            Err(e) if e.is_not_found() => None,
            Err(e) => {
                self.notes
                    .push(format!("{}: no index: {e}", path.display()));
                None
            }
        }
    }
}

/// For each file of a queue, when the next one of that queue begins.
fn followers(files: &[(PathBuf, u64)]) -> HashMap<PathBuf, u64> {
    let mut named: Vec<_> = files
        .iter()
        .filter_map(|(path, _)| {
            let name = FileName::parse(path)?;
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

/// Whether a file can reach into the times wanted, by its name and that of the next file.
fn may_hold(path: &Path, next: Option<u64>, times: &Range<u64>) -> bool {
    let begins = FileName::parse(path).map_or(0, |it| it.start_ns.saturating_sub(SLACK_NS));
    let ends = next.map_or(u64::MAX, |start| start.saturating_add(SLACK_NS));
    begins < times.end && ends >= times.start
}

/// The part of a file before its first record: enough for an output without frames. The first of the files that is
/// still there.
fn head_of(
    files: &[(PathBuf, u64)],
    dir: &Path,
    meter: &Arc<AtomicU64>,
) -> Result<FileRanges, MergeError> {
    for (path, _) in files {
        let mut file = FileRanges::whole(path.clone());
        file.meter = Arc::clone(meter);
        match index::head_len(&file) {
            // A file without even that is read to be told why.
            Ok(0) => return Ok(file),
            Ok(head) => {
                let ranges = std::iter::once(0..head).collect();
                return Ok(FileRanges {
                    meter: Arc::clone(meter),
                    ..FileRanges::new(path.clone(), ranges)
                });
            }
            Err(e) if e.is_not_found() => {}
            Err(e) => return Err(MergeError::Refused(format!("{}: {e}", path.display()))),
        }
    }
    let dir = dir.display();
    Err(MergeError::Refused(format!(
        "{dir}: all its files were deleted before they could be read"
    )))
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
        // A stamp near the time in a name may be before or after it.
        assert_eq!(held(201, 202), [true, true, false, true, true]);
        assert_eq!(held(0, 100), [true, false, false, false, true]);
    }
}
