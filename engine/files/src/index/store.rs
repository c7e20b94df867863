//! Storage of indexes in their folder.

use super::{
    build::build,
    layout::{CaptureIndex, IndexTimes, VERSION},
};
use crate::{
    folder::open::{MOST_INDEX, read_regular},
    folder::{FileStamp, FolderTree, remove_emptied},
    name::FileName,
    read::ReadError,
    sealed::SecretKey,
};
use ciborium::Value;
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::xxh3_64;

/// Suffix of an index's file name, after the complete name of its capture file.
pub const ENDING: &str = ".cbor";

/// Content of an index file: the encoded index, and its checksum (XXH3, 64 bits). The checksum
/// detects an index torn by a power cut, because indexes are not synced.
#[derive(Serialize, Deserialize)]
struct ChecksummedIndex {
    xxh3: u64,
    index: Value,
}

/// Folder of the indexes of a capture folder. An index has the same relative path as its capture
/// file.
#[derive(Clone, Copy, Debug)]
pub struct IndexFolder<'a> {
    /// Folder with the indexes of the capture files.
    pub folder: &'a Path,
    /// Folder with the indexed capture files.
    pub dir: &'a Path,
}

impl IndexFolder<'_> {
    /// Returns the path of a capture file's index.
    #[must_use]
    pub fn path_of(&self, file: &Path) -> PathBuf {
        let name = || file.file_name().map(Path::new).unwrap_or(file);
        let place = file.strip_prefix(self.dir).unwrap_or_else(|_| name());
        let mut path = OsString::from(self.folder.join(place));
        path.push(ENDING);
        path.into()
    }

    /// Loads the index of a capture file, and returns it with the number of bytes read. `None`: the
    /// index is missing, damaged, or does not match the present file.
    #[must_use]
    pub fn load(&self, file: &Path) -> Option<(CaptureIndex, u64)> {
        let bytes = read_regular(&self.path_of(file), MOST_INDEX).ok()?;
        let index = CaptureIndex::decode(&unsealed(&bytes)?)?;
        let fresh =
            index.version == VERSION && FileStamp::read(file).is_ok_and(|now| now == index.stamp);
        fresh.then_some((index, bytes.len() as u64))
    }

    /// Loads times and counts of the index of a capture file. `None`: as [`IndexFolder::load`].
    #[must_use]
    pub fn load_times(&self, file: &Path) -> Option<IndexTimes> {
        let bytes = read_regular(&self.path_of(file), MOST_INDEX).ok()?;
        let index: IndexTimes = ciborium::from_reader(&unsealed(&bytes)?[..]).ok()?;
        let fresh =
            index.version == VERSION && FileStamp::read(file).is_ok_and(|now| now == index.stamp);
        fresh.then_some(index)
    }

    /// Builds the index of a capture file, which `key` opens if it is sealed, and writes it into the
    /// folder with an atomic rename. `None`: `may_continue` returned `false`, or the file changed in
    /// the meantime.
    ///
    /// # Errors
    /// The file cannot be read to its end, or the index cannot be written.
    pub fn build(
        &self,
        file: &Path,
        key: Option<&SecretKey>,
        may_continue: impl Fn() -> bool,
    ) -> Result<Option<CaptureIndex>, ReadError> {
        let Some(index) = build(file, key, may_continue)? else {
            return Ok(None);
        };
        write(&self.path_of(file), &index).map_err(|e| match e.kind() {
            // `NotFound` means a missing capture file to the caller, so a missing index folder is
            // mapped to another kind.
            io::ErrorKind::NotFound => io::Error::other(e.to_string()),
            _ => e,
        })?;
        Ok(Some(index))
    }

    /// Removes the indexes whose capture files are gone.
    ///
    /// # Errors
    /// The folder cannot be read, or an index cannot be removed.
    pub fn sweep(&self) -> io::Result<()> {
        let tree = FolderTree::list(self.folder, usize::MAX)?;
        for path in tree.paths {
            let place = path.strip_prefix(self.folder).ok().and_then(Path::to_str);
            let Some(file) = place.and_then(|name| name.strip_suffix(ENDING)) else {
                continue;
            };
            let file = Path::new(file);
            if !FileName::has_capture_ending(file) || self.dir.join(file).exists() {
                continue;
            }
            // A name made by a template is not specific enough: the content must be that of an
            // index.
            let is_index =
                || read_regular(&path, MOST_INDEX).is_ok_and(|bytes| unsealed(&bytes).is_some());
            if FileName::parse(file).is_some() || is_index() {
                fs::remove_file(&path)?;
                remove_emptied(&path, self.folder);
            }
        }
        tree.unread
            .into_iter()
            .next()
            .map_or(Ok(()), |(_, e)| Err(e))
    }
}

/// Returns the encoded index of an index file, if its checksum is correct.
fn unsealed(bytes: &[u8]) -> Option<Vec<u8>> {
    let sealed: ChecksummedIndex = ciborium::from_reader(bytes).ok()?;
    let body = sealed.index.into_bytes().ok()?;
    (xxh3_64(&body) == sealed.xxh3).then_some(body)
}

fn write(path: &Path, index: &CaptureIndex) -> io::Result<()> {
    let mut body = Vec::new();
    ciborium::into_writer(index, &mut body).map_err(io::Error::other)?;
    let sealed = ChecksummedIndex {
        xxh3: xxh3_64(&body),
        index: Value::Bytes(body),
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Indexes get the mode of any new file, like capture files.
    let temporary = tempfile::Builder::new()
        .prefix(".wqcap-index-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    let mut out = io::BufWriter::new(&temporary);
    ciborium::into_writer(&sealed, &mut out).map_err(io::Error::other)?;
    io::Write::flush(&mut out)?;
    drop(out);
    temporary.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures::written, format::FileFormat, index::FlowTerms};

    #[test]
    fn an_index_is_valid_while_its_file_is_unchanged() {
        let dir = tempfile::tempdir().expect("dir");
        let indexes = tempfile::tempdir().expect("dir");
        let folder = IndexFolder {
            folder: indexes.path(),
            dir: dir.path(),
        };
        let (bytes, starts) = written(FileFormat::Pcapng, 3);
        let file = dir.path().join("wqcap-q00-1.pcapng");
        fs::write(&file, &bytes).expect("written");
        assert!(folder.load(&file).is_none());
        let index = folder
            .build(&file, None, || true)
            .expect("reads")
            .expect("made");
        assert_eq!((index.frames, index.head), (3, starts[0] as u64));
        let (again, size) = folder.load(&file).expect("there");
        assert_eq!(again, index);
        let path = folder.path_of(&file);
        assert_eq!(size, fs::metadata(&path).expect("there").len());
        let mode = |path| fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode(&path), mode(&file), "the mode of a new file");
        let parts = again.select(&(0..u64::MAX), &FlowTerms::default());
        let head = 0..starts[0] as u64;
        let all = starts[0] as u64..*starts.last().expect("some") as u64;
        assert_eq!(parts, [head, all]);
        assert!(again.select(&(0..0), &FlowTerms::default()).is_empty());

        // Flip one bit, or tear the end.
        let sound = fs::read(&path).expect("there");
        for at in [sound.len() / 2, sound.len() - 1] {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).expect("written");
            assert!(folder.load(&file).is_none());
            fs::write(&path, &sound[..at]).expect("written");
            assert!(folder.load(&file).is_none());
        }
        fs::write(&path, &sound).expect("written");
        assert!(folder.load(&file).is_some());
        fs::write(&file, &bytes[..starts[2]]).expect("written");
        assert!(folder.load(&file).is_none());
        folder.sweep().expect("swept");
        assert!(path.exists());
        fs::write(indexes.path().join("mine.cbor"), "mine").expect("written");
        fs::rename(&file, dir.path().join("elsewhere.pcapng")).expect("moved");
        folder.sweep().expect("swept");
        assert!(!path.exists() && indexes.path().join("mine.cbor").exists());
        fs::rename(dir.path().join("elsewhere.pcapng"), &file).expect("moved");

        // An index of a file with another name is recognised by its content.
        let tap = dir.path().join("tap-1.pcapng");
        fs::rename(&file, &tap).expect("moved");
        let made = folder.build(&tap, None, || true);
        assert!(made.expect("reads").is_some());
        let mine = indexes.path().join("mine.pcapng.cbor");
        fs::write(&mine, "mine").expect("written");
        folder.sweep().expect("swept");
        assert!(folder.path_of(&tap).exists());
        fs::rename(&tap, &file).expect("moved");
        folder.sweep().expect("swept");
        assert!(mine.exists() && !folder.path_of(&tap).exists());
        assert!(
            folder
                .build(&file, None, || false)
                .expect("reads")
                .is_none()
        );

        // In a subfolder an index has the relative path of its file.
        let deep = dir.path().join("20261122/15/tap.pcapng");
        fs::create_dir_all(deep.parent().expect("inside")).expect("made");
        fs::rename(&file, &deep).expect("moved");
        let made = folder.build(&deep, None, || true);
        assert!(made.expect("reads").is_some());
        assert_eq!(
            folder.path_of(&deep),
            indexes.path().join("20261122/15/tap.pcapng.cbor")
        );
        assert!(folder.load(&deep).is_some());
        folder.sweep().expect("swept");
        assert!(folder.load(&deep).is_some());
        fs::rename(&deep, &file).expect("moved");
        folder.sweep().expect("swept");
        assert!(!indexes.path().join("20261122").exists());
    }
}
