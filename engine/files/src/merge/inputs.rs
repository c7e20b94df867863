//! Capture files of a folder, as inputs of `merge`, `extract` and `rss`.

use super::summary::MergeError;
use crate::{
    folder::CaptureFolder,
    read::{FileRanges, ReadMeter, origin::is_merged},
    sealed::SecretKey,
};
use std::path::Path;

/// Maximum number of file names in the note on files that a merge or extraction excludes.
const MOST_NAMES: usize = 3;

/// Lists the finished capture files of a folder and its subfolders with their lengths, in name
/// order. Files that `merge` or `extract` has written are excluded with a note, because their
/// frames would occur twice. They are listed if there are no other files. `key` opens sealed files.
///
/// # Errors
/// The folder cannot be read.
pub fn in_folder(
    dir: &Path,
    key: Option<&SecretKey>,
    meter: &ReadMeter,
    notes: &mut Vec<String>,
) -> Result<Vec<(FileRanges, u64)>, MergeError> {
    let shown = dir.display();
    let folder = CaptureFolder::list(dir);
    let folder = folder.map_err(|e| MergeError::Refused(format!("{shown}: {e}")))?;
    notes.extend(folder.notes(dir));
    let file = |path| FileRanges {
        found_in: Some(dir.to_owned()),
        meter: meter.for_another_file(),
        key: key.cloned(),
        ..FileRanges::whole(path)
    };
    let finished = folder.finished.into_iter();
    let files = finished.map(|(path, len)| (file(path), len));
    let (merged, captured): (Vec<_>, Vec<_>) =
        files.partition(|(file, _)| file.source().is_ok_and(is_merged));
    if captured.is_empty() {
        return Ok(merged);
    }
    if !merged.is_empty() {
        let name = |(file, _): &(FileRanges, u64)| file.path.display().to_string();
        let mut names: Vec<_> = merged.iter().take(MOST_NAMES).map(name).collect();
        match merged.len() - names.len() {
            0 => {}
            more => names.push(format!("{more} more")),
        }
        notes.push(format!(
            "{shown}: files that wqcap merge or extract has written are left out: {}",
            names.join(", ")
        ));
    }
    Ok(captured)
}
