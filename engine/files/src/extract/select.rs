//! Selects the parts of files that can hold the frames wanted.

use super::times::{Beginning, may_hold, reaches};
use crate::{
    index::{self, CaptureIndex, FlowTerms, IndexFolder},
    merge::{MergeError, in_folder},
    read::{FileEnd, FileRanges, ReadMeter},
};
use serde::Serialize;
use std::{fs, ops::Range, path::Path};

/// How indexes were used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IndexUse {
    /// Files whose index was used.
    pub files: u64,
    /// Those of them whose index was absent or stale, and was built.
    pub made: u64,
    /// Bytes of indexes read.
    pub bytes_read: u64,
    /// Bytes of the files that indexes were built of: each was read once for that.
    pub bytes_to_make: u64,
    /// An index can help with the filter.
    pub helps_filter: bool,
}

/// Which frames of which folder.
pub(super) struct Wanted<'a> {
    pub(super) dir: &'a Path,
    pub(super) indexes: Option<IndexFolder<'a>>,
    pub(super) times: &'a Range<u64>,
    pub(super) terms: FlowTerms,
}

impl Wanted<'_> {
    /// Frames of any time are.
    fn is_always(&self) -> bool {
        *self.times == (0..u64::MAX)
    }
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

/// A finished file of the folder.
struct Found {
    file: FileRanges,
    len: u64,
    index: Option<Indexed>,
    begins: Beginning,
}

/// What an index tells of a file.
struct Indexed {
    /// The parts to be read; none: the file holds nothing that is wanted.
    ranges: Vec<Range<u64>>,
    /// They can be read apart from the rest.
    apart: bool,
    end: FileEnd,
}

impl Indexed {
    fn new(index: &CaptureIndex, wanted: &Wanted<'_>) -> Self {
        Self {
            ranges: index.select(wanted.times, &wanted.terms),
            apart: index.apart,
            end: index.end,
        }
    }
}

/// Selects the parts of a folder's files that can hold what is wanted.
pub(super) fn select(
    wanted: &Wanted<'_>,
    meter: &ReadMeter,
    go_on: &impl Fn() -> bool,
) -> Result<FileSelection, MergeError> {
    let mut it = FileSelection::default();
    it.index.helps_filter = !wanted.terms.is_empty();
    let mut found = it.list(wanted.dir, meter)?;
    if let Some(IndexFolder { folder, .. }) = wanted.indexes {
        fs::create_dir_all(folder)
            .map_err(|e| MergeError::Refused(format!("{}: {e}", folder.display())))?;
    }
    for file in &mut found {
        it.look(file, wanted);
        let looked = file.index.is_some() || !wanted.is_always();
        if looked && !go_on() {
            return Err(MergeError::Stopped);
        }
    }
    let begins: Vec<_> = found.iter().map(|it| it.begins).collect();
    for (file, reach) in found.iter_mut().zip(reaches(&begins)) {
        if file.index.is_none() && !may_hold(&reach, wanted.times) {
            continue;
        }
        if let (None, Some(indexes)) = (&file.index, wanted.indexes) {
            let index = it.build_index(indexes, file, go_on);
            file.index = index.map(|index| Indexed::new(&index, wanted));
        }
        if !go_on() {
            return Err(MergeError::Stopped);
        }
        it.take(file);
    }
    if it.files.is_empty() {
        it.files.push(head_of(&found, wanted.dir)?);
    }
    Ok(it)
}

impl FileSelection {
    /// The finished capture files of a folder, in name order; at least one.
    fn list(&mut self, dir: &Path, meter: &ReadMeter) -> Result<Vec<Found>, MergeError> {
        let files = in_folder(dir, meter, &mut self.notes)?;
        let files = files.into_iter().filter(|(_, len)| *len > 0);
        let found: Vec<_> = files
            .map(|(file, len)| Found {
                file,
                len,
                index: None,
                begins: Beginning::default(),
            })
            .collect();
        if found.is_empty() {
            let shown = dir.display();
            return Err(MergeError::Refused(format!(
                "{shown}: has no finished .pcap or .pcapng files"
            )));
        }
        self.finished = found.len() as u64;
        self.finished_bytes = found.iter().map(|it| it.len).sum();
        Ok(found)
    }

    /// Finds out what a file holds by its index, or when it begins, if that matters.
    fn look(&mut self, found: &mut Found, wanted: &Wanted<'_>) {
        let indexes = wanted.indexes;
        if let Some((index, bytes)) = indexes.and_then(|it| it.load(&found.file.path)) {
            self.index.files += 1;
            self.index.bytes_read += bytes;
            found.index = Some(Indexed::new(&index, wanted));
        } else if !wanted.is_always() {
            // One that cannot be read may hold anything, and its turn tells why.
            found.begins = Beginning::read(&found.file).unwrap_or_default();
        }
    }

    /// Builds a file's index. A file that has none, since it cannot be read to its end, is read whole.
    fn build_index(
        &mut self,
        indexes: IndexFolder<'_>,
        found: &Found,
        go_on: &impl Fn() -> bool,
    ) -> Option<CaptureIndex> {
        let path = &found.file.path;
        match indexes.build(path, go_on) {
            Ok(index) => {
                if index.is_some() {
                    self.index.files += 1;
                    self.index.made += 1;
                    self.index.bytes_to_make += found.len;
                }
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

    /// Selects what is to be read of a file.
    fn take(&mut self, found: &Found) {
        let mut file = found.file.clone();
        if let Some(index) = &found.index
            && (index.ranges.is_empty() || index.apart)
        {
            // Who reads the file whole tells it himself.
            if let end @ FileEnd::Torn { .. } = index.end {
                self.losses.push(format!("{}: {end}", file.path.display()));
            }
            if index.ranges.is_empty() {
                return;
            }
            file = file.with_ranges(index.ranges.clone());
        }
        self.files.push(file);
    }
}

/// The part of a file before its first record: enough for an output without frames. The first of the files that is
/// still there.
fn head_of(files: &[Found], dir: &Path) -> Result<FileRanges, MergeError> {
    for Found { file, .. } in files {
        match index::head_len(file) {
            // A file without even that is read to be told why.
            Ok(0) => return Ok(file.clone()),
            Ok(head) => {
                let ranges = std::iter::once(0..head).collect();
                return Ok(file.clone().with_ranges(ranges));
            }
            Err(e) if e.is_not_found() => {}
            Err(e) => {
                let path = file.path.display();
                return Err(MergeError::Refused(format!("{path}: {e}")));
            }
        }
    }
    let dir = dir.display();
    Err(MergeError::Refused(format!(
        "{dir}: all its files were deleted before they could be read"
    )))
}
