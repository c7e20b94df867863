//! Capture files of a folder, as inputs of `merge`, `extract`, `rss` and `flows`.

use super::summary::MergeError;
use crate::{
    folder::{CaptureFolder, device_and_inode},
    index::ENDING,
    name::{FileName, natural_order, resembles_capture},
    read::{
        FileRanges, ReadMeter,
        origin::{FileKind, is_merged, kind_of},
    },
    sealed::SecretKey,
};
use std::path::{Path, PathBuf};

/// Maximum number of file names in a note on files that a command excludes.
const MOST_NAMES: usize = 3;

/// Notes and losses of the listing of a capture folder: the files and folders that are left out.
#[derive(Debug, Default)]
pub struct FolderRemarks {
    /// Notes for the user on files of the folder that are no input.
    pub notes: Vec<String>,
    /// Message for each subfolder that may have capture files and cannot be read.
    pub losses: Vec<String>,
}

/// Returns the capture files that a user names: those of a folder and its subfolders as
/// [`files_and_folders`] lists them, or the file itself.
///
/// # Errors
/// The folder cannot be read.
pub fn in_folder_or_file(
    path: &Path,
    key: Option<&SecretKey>,
    out: Option<&Path>,
    meter: &ReadMeter,
    remarks: &mut FolderRemarks,
) -> Result<Vec<(FileRanges, u64)>, MergeError> {
    match path.metadata() {
        Ok(file) if !file.is_dir() => {
            let ranges = FileRanges {
                meter: meter.for_another_file(),
                key: key.cloned(),
                ..FileRanges::named(path.to_owned())
            };
            Ok(vec![(ranges, file.len())])
        }
        _ => in_folder(path, key, out, meter, remarks),
    }
}

/// Returns the files that a user names, and the capture files of the folders among them
/// and of their subfolders.
///
/// # Errors
/// A folder cannot be read, or has no capture files.
pub fn files_and_folders(
    inputs: &[PathBuf],
    key: Option<&SecretKey>,
    out: Option<&Path>,
    remarks: &mut FolderRemarks,
) -> Result<Vec<FileRanges>, MergeError> {
    let mut files = Vec::new();
    for path in inputs {
        if !path.is_dir() {
            files.push(FileRanges::named(path.clone()).with_key(key.cloned()));
            continue;
        }
        let found = in_folder(path, key, out, &ReadMeter::default(), remarks)?;
        if found.is_empty() {
            let shown = path.display();
            return Err(MergeError::Refused(format!(
                "{shown}: the directory has no .pcap or .pcapng files; name a file or another directory"
            )));
        }
        files.extend(found.into_iter().map(|(file, _)| file));
    }
    Ok(files)
}

/// Lists the finished capture files of a folder and its subfolders, the inputs of a command, with
/// their lengths, in the natural order of their names. Files with the extension of a capture file
/// are captures; other files are captures if their content begins like one. Files that `merge` or
/// `extract` has written are excluded with a note, because their frames would occur twice. They are
/// listed if there are no other files. So is the output `out` of an earlier run, if only its
/// content shows it to be a capture file. `key` opens sealed files.
///
/// # Errors
/// The folder cannot be read.
pub(super) fn in_folder(
    dir: &Path,
    key: Option<&SecretKey>,
    out: Option<&Path>,
    meter: &ReadMeter,
    remarks: &mut FolderRemarks,
) -> Result<Vec<(FileRanges, u64)>, MergeError> {
    let shown = dir.display();
    let folder = CaptureFolder::search(dir);
    let folder = folder.map_err(|e| MergeError::Refused(format!("{shown}: {e}")))?;
    let FolderRemarks { notes, losses } = remarks;
    notes.extend(folder.notes(dir));
    losses.extend(folder.losses());
    let (mut merged, mut captured, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
    let replaced = out.and_then(device_and_inode);
    let others = folder.others.into_iter().filter(|(path, _)| {
        let is_replaced = replaced.is_some() && device_and_inode(path) == replaced;
        if is_replaced {
            notes.push(format!(
                "{}: the file is left out, because the output replaces it",
                path.display()
            ));
        }
        !is_replaced
    });
    let others: Vec<_> = others.collect();
    for (path, len) in folder.finished.into_iter().chain(others) {
        let file = FileRanges {
            found_in: Some(dir.to_owned()),
            meter: meter.for_another_file(),
            key: key.cloned(),
            ..FileRanges::whole(path)
        };
        match kind_in_folder(&file) {
            FileKind::Capture => captured.push((file, len)),
            FileKind::Merged => merged.push((file, len)),
            FileKind::Foreign => foreign.push(file),
        }
    }
    for files in [&mut merged, &mut captured] {
        files.sort_by(|(a, _), (b, _)| natural_order(&a.path, &b.path));
    }
    if !foreign.is_empty() {
        let are = if foreign.len() == 1 {
            "file is"
        } else {
            "files are"
        };
        notes.push(format!(
            "{shown}: {} {are} left out, because the content is not that of a capture file: {}",
            foreign.len(),
            names(foreign.iter())
        ));
    }
    if captured.is_empty() {
        return Ok(merged);
    }
    if !merged.is_empty() {
        notes.push(format!(
            "{shown}: files that wqcap merge or extract has written are left out: {}",
            names(merged.iter().map(|(file, _)| file))
        ));
    }
    Ok(captured)
}

/// Returns the note that a file, which messages show as `shown`, is read only once although a folder
/// has two names of it.
#[must_use]
pub fn linked_twice(shown: &str) -> String {
    format!("{shown}: this file was found under two names (hard link) and is read only once")
}

/// Returns the kind of a file in a folder. A file with the name of a capture file is never foreign:
/// if it is not a capture, the command that reads it reports that. An index is foreign, although its
/// name contains that of its capture file.
#[must_use]
pub fn kind_in_folder(file: &FileRanges) -> FileKind {
    // The bytes are counted when the file is read.
    let source = FileRanges {
        meter: ReadMeter::default(),
        ..file.clone()
    };
    let Ok(source) = source.source() else {
        return FileKind::Capture;
    };
    if FileName::has_capture_ending(&file.path) {
        return match is_merged(source) {
            true => FileKind::Merged,
            false => FileKind::Capture,
        };
    }
    let name = file.path.as_os_str().as_encoded_bytes();
    let is_index = name.ends_with(ENDING.as_bytes());
    match kind_of(source) {
        FileKind::Foreign if resembles_capture(&file.path) && !is_index => FileKind::Capture,
        kind => kind,
    }
}

/// Returns the first names of `files` for a note, and the number of the others.
fn names<'a>(files: impl ExactSizeIterator<Item = &'a FileRanges>) -> String {
    let more = files.len().saturating_sub(MOST_NAMES);
    let name = |file: &FileRanges| file.path.display().to_string();
    let mut names: Vec<_> = files.take(MOST_NAMES).map(name).collect();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}
