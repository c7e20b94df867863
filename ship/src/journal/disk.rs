//! Files of a journal. Each is replaced atomically, so that it has either the old or the new
//! content.

use super::{JournalError, JournalFileError};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs,
    io::{self, Write},
    path::Path,
};
use wqcap_files::{
    folder::open::{MOST_RECORD, create_or_empty, read_regular},
    folder::{
        delivery::{DeliveryRecord, RECORD, VERSION},
        sync_folder,
    },
};

pub(super) fn check_version(path: &Path, version: u32) -> Result<(), JournalError> {
    if version == VERSION {
        return Ok(());
    }
    Err(JournalError::Unsound {
        path: path.into(),
        problem: JournalFileError::Version(version),
    })
}

/// Reads the delivery records in a folder of the journal. A missing folder has none.
pub(super) fn read_folder(folder: &Path) -> Result<Vec<DeliveryRecord>, JournalError> {
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
        if !name.is_some_and(|it| it.ends_with(RECORD) && !it.starts_with('.')) {
            continue;
        }
        let Some(record) = read_json::<DeliveryRecord>(&path)? else {
            continue;
        };
        check_version(&path, record.version)?;
        records.push(record);
    }
    Ok(records)
}

pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, JournalError> {
    let text = match read_regular(path, MOST_RECORD) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(JournalError::io(path, e)),
    };
    let value = serde_json::from_slice(&text).map_err(|e| JournalError::Unsound {
        path: path.into(),
        problem: e.into(),
    })?;
    Ok(Some(value))
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), JournalError> {
    let text = serde_json::to_vec(value).map_err(|e| JournalError::io(path, e.into()))?;
    write_synced(path, &text)
}

/// Removes a journal file, if it exists.
pub(super) fn remove(path: &Path) -> Result<(), JournalError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(JournalError::io(path, e)),
        _ => Ok(()),
    }
}

/// Replaces a journal file atomically and syncs it.
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
