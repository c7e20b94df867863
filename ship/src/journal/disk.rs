//! Files of a journal. Each is replaced atomically, so that it has either the old or the new
//! content.

use super::{JournalError, JournalFileError};
use crate::limits::JOURNAL_FILE;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};
use wqcap_files::{
    folder::open::{create_or_empty, read_regular},
    folder::{
        delivery::{DeliveryRecord, RECORD, VERSION, decode_checked, encode_checked},
        sync_folder,
    },
};

pub(super) fn check_version(path: &Path, version: u32) -> Result<(), JournalError> {
    if version == VERSION {
        return Ok(());
    }
    Err(unsound(path, JournalFileError::Version(version)))
}

/// Reads the delivery records in a folder of the journal. A missing folder has none. Errors of
/// records that cannot be used are added to `unsound`.
pub(super) fn read_folder(
    folder: &Path,
    unsound: &mut BTreeMap<PathBuf, JournalError>,
) -> Result<Vec<DeliveryRecord>, JournalError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(JournalError::io(folder, e)),
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| JournalError::io(folder, e))?.path();
        let name = path.file_name().and_then(|it| it.to_str());
        // Temporary files left by a crash have hidden names.
        let Some(name) = name.filter(|it| it.ends_with(RECORD) && !it.starts_with('.')) else {
            continue;
        };
        match read_record(&path, name) {
            Ok(record) => records.extend(record),
            Err(e @ JournalError::Unsound { .. }) => {
                unsound.insert(path, e);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(records)
}

/// Reads a delivery record from the journal file `path`. It is an error if the record describes
/// another file than `name`.
fn read_record(path: &Path, name: &str) -> Result<Option<DeliveryRecord>, JournalError> {
    let Some(record) = read_json::<DeliveryRecord>(path)? else {
        return Ok(None);
    };
    check_version(path, record.version)?;
    let folder = path.parent().and_then(Path::file_name);
    let is_here = folder.is_some_and(|it| it == record.kind.folder());
    match is_here && name.strip_suffix(RECORD) == Some(&record.file) {
        true => Ok(Some(record)),
        false => Err(unsound(path, JournalFileError::OtherFile)),
    }
}

fn unsound(path: &Path, problem: JournalFileError) -> JournalError {
    JournalError::Unsound {
        path: path.into(),
        problem,
    }
}

pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, JournalError> {
    let text = match read_regular(path, JOURNAL_FILE) {
        Ok(text) => text,
        Err(e) => {
            return match e.kind() {
                io::ErrorKind::NotFound => Ok(None),
                // A link or a pipe, or a file above the limit.
                io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge => {
                    Err(unsound(path, JournalFileError::Unreadable(e)))
                }
                _ => Err(JournalError::io(path, e)),
            };
        }
    };
    let value = decode_checked(&text).map_err(|e| unsound(path, e.into()))?;
    Ok(Some(value))
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), JournalError> {
    let text = encode_checked(value).map_err(|e| JournalError::io(path, e.into()))?;
    if text.len() as u64 > JOURNAL_FILE {
        return Err(unsound(path, JournalFileError::TooLong(text.len())));
    }
    write_synced(path, &text)
}

/// Removes a file of the delivery journal, if it exists.
pub(super) fn remove(path: &Path) -> Result<(), JournalError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(JournalError::io(path, e)),
        _ => Ok(()),
    }
}

/// Replaces a file of the delivery journal atomically, and syncs it to the disk.
pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), JournalError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = folder.join(format!(".{name}"));
    let write = || {
        let mut file = create_or_empty(&part)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    write().map_err(|source| JournalError::io(path, source))?;
    sync_folder(folder);
    Ok(())
}
