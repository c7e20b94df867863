//! Selection of the parts of capture files that may hold the frames that an extraction searches
//! for.

use super::{
    SearchedFiles,
    times::{Beginning, may_hold, reaches},
};
use crate::{
    folder::FileStamp,
    index::{self, CaptureIndex, FlowTerms, IndexFolder, IndexSelection},
    merge::{FolderRemarks, MergeError, in_folder_or_file},
    read::{FileEnd, FileRanges, ReadError, ReadMeter},
    sealed::SecretKey,
};
use serde::Serialize;
use std::{fs, ops::Range, path::Path};

/// Use of capture file indexes during an extraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct IndexUse {
    /// Number of capture files whose index was used in the extraction.
    pub files: u64,
    /// Number of capture files whose index was used after it had been missing or stale and was
    /// built.
    pub made: u64,
    /// Number of bytes that the extraction read from indexes.
    pub bytes_read: u64,
    /// Length in bytes of the capture files that indexes were built for; each of these files was
    /// read once.
    pub bytes_to_make: u64,
    /// `true` if an index can narrow the packet filter's search.
    pub helps_filter: bool,
}

/// Query of a capture folder: times, and conditions on flows.
pub(super) struct SelectionQuery<'a> {
    pub(super) dir: &'a Path,
    pub(super) indexes: Option<IndexFolder<'a>>,
    /// Key that opens the folder's sealed files.
    pub(super) key: Option<&'a SecretKey>,
    /// Path of the extraction's output, which is not an input.
    pub(super) out: Option<&'a Path>,
    /// Capture files to search; `None`: all finished files of the folder.
    pub(super) files: Option<&'a SearchedFiles>,
    pub(super) times: &'a Range<u64>,
    pub(super) terms: FlowTerms,
}

impl SelectionQuery<'_> {
    /// Returns `true` if the query selects frames of all times.
    fn is_always(&self) -> bool {
        *self.times == (0..u64::MAX)
    }
}

/// Parts of a folder's capture files that an extraction reads, with what was lost.
#[derive(Debug, Default)]
pub(super) struct FileSelection {
    pub(super) files: Vec<FileRanges>,
    /// Number of finished capture files in the folder.
    pub(super) finished: u64,
    pub(super) finished_bytes: u64,
    pub(super) index: IndexUse,
    pub(super) notes: Vec<String>,
    /// Losses of frames in capture files that cannot be read to their end, one line each.
    pub(super) losses: Vec<String>,
}

/// Finished capture file that was found in the folder.
struct FoundFile {
    file: FileRanges,
    len: u64,
    index: Option<IndexSelection>,
    /// Stamp of the file before its index was read.
    stamp: Option<FileStamp>,
    begins: Beginning,
    /// `true` if the file cannot be read, and the loss has been reported.
    is_lost: bool,
}

/// Selects the parts of a folder's capture files that may hold matching frames.
pub(super) fn select(
    wanted: &SelectionQuery<'_>,
    meter: &ReadMeter,
    may_continue: &impl Fn() -> bool,
) -> Result<FileSelection, MergeError> {
    let mut it = FileSelection::default();
    it.index.helps_filter = !wanted.terms.is_empty();
    let mut found = it.list(wanted, meter)?;
    if let Some(IndexFolder { folder, .. }) = wanted.indexes
        && wanted.files.is_none()
    {
        fs::create_dir_all(folder)
            .map_err(|e| MergeError::Refused(format!("{}: {e}", folder.display())))?;
    }
    for file in &mut found {
        it.load_index_or_beginning(file, wanted);
        let was_read = file.index.is_some() || !wanted.is_always();
        if was_read && !may_continue() {
            return Err(MergeError::Stopped);
        }
    }
    let begins: Vec<_> = found.iter().map(|it| it.begins).collect();
    for (file, reach) in found.iter_mut().zip(reaches(&begins)) {
        if file.is_lost || file.index.is_none() && !may_hold(&reach, wanted.times) {
            continue;
        }
        if let (None, Some(indexes), None) = (&file.index, wanted.indexes, wanted.files) {
            let index = it.build_index(indexes, wanted.key, file, may_continue);
            file.index = index.map(|index| index.selection(wanted.times, &wanted.terms));
        }
        if !may_continue() {
            return Err(MergeError::Stopped);
        }
        it.take(file);
    }
    if it.files.is_empty() {
        match head_of(&found)? {
            Some(head) => it.files.push(head),
            // No frame of the listed files matches, and an output without inputs has no frames.
            None if wanted.files.is_some() => {}
            None => {
                let dir = wanted.dir.display();
                return Err(MergeError::Refused(format!(
                    "{dir}: all capture files of this directory were deleted before they could be read"
                )));
            }
        }
    }
    Ok(it)
}

impl FileSelection {
    /// Lists the finished capture files of a folder in the order of their names. Fails if there are
    /// none.
    fn list(
        &mut self,
        wanted: &SelectionQuery<'_>,
        meter: &ReadMeter,
    ) -> Result<Vec<FoundFile>, MergeError> {
        let files = match wanted.files {
            Some(files) => searched(files, wanted, meter),
            None => {
                let mut remarks = FolderRemarks::default();
                let files =
                    in_folder_or_file(wanted.dir, wanted.key, wanted.out, meter, &mut remarks)?;
                self.notes.extend(remarks.notes);
                self.losses.extend(remarks.losses);
                files
            }
        };
        let found: Vec<_> = files
            .into_iter()
            .map(|(file, len)| FoundFile {
                file,
                len,
                index: None,
                stamp: None,
                begins: Beginning::default(),
                is_lost: false,
            })
            .collect();
        if found.is_empty() {
            let shown = wanted.dir.display();
            return Err(MergeError::Refused(format!(
                "{shown}: the directory has no finished .pcap or .pcapng files"
            )));
        }
        self.finished = found.len() as u64;
        self.finished_bytes = found.iter().map(|it| it.len).sum();
        Ok(found)
    }

    /// Loads the index of a capture file. Without an index, reads the time of the first record of a
    /// file of a folder, if the query limits times. A file that the user named may be a pipe.
    fn load_index_or_beginning(&mut self, found: &mut FoundFile, wanted: &SelectionQuery<'_>) {
        // The index of an open file is built when the file is finished.
        let indexes = wanted.indexes.filter(|_| !found.file.is_open);
        found.stamp = indexes.and_then(|_| FileStamp::read(&found.file.path).ok());
        let select = |it: IndexFolder<'_>| it.select(&found.file.path, wanted.times, &wanted.terms);
        if let Some((selection, bytes)) = indexes.and_then(select) {
            self.index.files += 1;
            self.index.bytes_read += bytes;
            found.index = Some(selection);
        } else if !wanted.is_always() && found.file.may_be_lost() {
            match Beginning::read(&found.file) {
                Ok(begins) => found.begins = begins,
                // The merge notes that the file was deleted.
                Err(e) if e.is_not_found() => {}
                // The header of an open file is not on the disk yet.
                Err(e)
                    if found.file.is_being_written()
                        && !matches!(e, ReadError::TooManyInterfaces { .. }) =>
                {
                    found.is_lost = true;
                }
                Err(e) => {
                    let shown = found.file.path.display();
                    self.losses
                        .push(format!("{shown}: the path cannot be read: {e}"));
                    found.is_lost = true;
                }
            }
        }
    }

    /// Builds the index of a capture file. Returns `None` if it cannot be built: the file is then
    /// read as a whole.
    fn build_index(
        &mut self,
        indexes: IndexFolder<'_>,
        key: Option<&SecretKey>,
        found: &FoundFile,
        may_continue: &impl Fn() -> bool,
    ) -> Option<CaptureIndex> {
        let path = &found.file.path;
        match indexes.build(path, key, may_continue) {
            Ok(index) => {
                if index.is_some() {
                    self.index.files += 1;
                    self.index.made += 1;
                    self.index.bytes_to_make += found.len;
                }
                index
            }
            // The merge notes that the file was deleted.
            Err(e) if e.is_not_found() => None,
            Err(e) => {
                self.notes.push(format!(
                    "{}: cannot build the index of this capture file: {e}",
                    path.display()
                ));
                None
            }
        }
    }

    /// Adds the byte ranges of a capture file that an extraction reads to the selection.
    fn take(&mut self, found: &FoundFile) {
        let mut file = found.file.clone();
        if let Some(index) = &found.index
            && (index.ranges.is_empty() || index.apart)
        {
            // A file that is read whole is reported as torn by the merge.
            if let end @ FileEnd::Torn { .. } = index.end {
                self.losses.push(format!("{}: {end}", file.path.display()));
            }
            if index.ranges.is_empty() {
                return;
            }
            file = FileRanges {
                stamp: found.stamp,
                ..file.with_ranges(index.ranges.clone())
            };
        }
        self.files.push(file);
    }
}

/// Returns the listed files that a query searches, with their lengths. Open files are read up to
/// their present length.
fn searched(
    files: &SearchedFiles,
    wanted: &SelectionQuery<'_>,
    meter: &ReadMeter,
) -> Vec<(FileRanges, u64)> {
    let of = |path: &Path| FileRanges {
        found_in: Some(wanted.dir.to_owned()),
        meter: meter.for_another_file(),
        key: wanted.key.cloned(),
        // The caller has listed the file, so that an answer without its frames is incomplete.
        must_exist: true,
        ..FileRanges::whole(path.to_owned())
    };
    // A capture may give the name of a deleted file to a new one.
    let finished = (files.finished.iter()).map(|(path, len)| (of(path).with_identity(), *len));
    let open = files.open.iter().map(|(path, len)| {
        let file = FileRanges {
            is_open: true,
            ..of(path)
        };
        let ranges = std::iter::once(0..*len).collect();
        (file.with_identity().with_ranges(ranges), *len)
    });
    finished.chain(open).collect()
}

/// Returns the part before the first record of the first capture file that still exists; `None`:
/// all of them were deleted. That part is enough for an output without frames.
fn head_of(files: &[FoundFile]) -> Result<Option<FileRanges>, MergeError> {
    let mut problem = None;
    for FoundFile { file, .. } in files.iter().filter(|it| !it.is_lost) {
        match index::head_len(file) {
            // A file that describes no interface is read, so that the merge reports the reason.
            Ok(0) => return Ok(Some(file.clone())),
            Ok(head) => {
                let ranges = std::iter::once(0..head).collect();
                return Ok(Some(file.clone().with_ranges(ranges)));
            }
            Err(e) if e.is_not_found() => {}
            Err(e) => problem = Some(format!("{}: {e}", file.path.display())),
        }
    }
    if let Some(problem) = problem {
        return Err(MergeError::Refused(problem));
    }
    if let Some(lost) = files.iter().find(|it| it.is_lost) {
        let shown = lost.file.path.display();
        return Err(MergeError::Failed(format!(
            "{shown}: no capture file of this directory can be read"
        )));
    }
    Ok(None)
}
