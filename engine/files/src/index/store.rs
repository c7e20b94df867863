//! Indexes in their folder.

use super::{
    build::build,
    layout::{CaptureIndex, FileStamp, VERSION},
};
use crate::{name::FileName, read::ReadError};
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

/// Ending of an index's name, behind the whole name of its file.
const ENDING: &str = ".cbor";

/// What is on the disk: the index as bytes, and their checksum (XXH3, 64 bits), which finds an index that a power cut
/// tore: nobody syncs it.
#[derive(Serialize, Deserialize)]
struct Sealed {
    xxh3: u64,
    index: Value,
}

/// Where a file's index is.
#[must_use]
pub fn path_of(folder: &Path, file: &Path) -> PathBuf {
    let mut name = OsString::from(file.file_name().unwrap_or_default());
    name.push(ENDING);
    folder.join(name)
}

/// A file's index, if there is one that is whole and of the file as it is now, and the bytes it took to read.
#[must_use]
pub fn load(folder: &Path, file: &Path) -> Option<(CaptureIndex, u64)> {
    let bytes = fs::read(path_of(folder, file)).ok()?;
    let index = CaptureIndex::decode(&unsealed(&bytes)?)?;
    let fresh =
        index.version == VERSION && FileStamp::read(file).is_ok_and(|now| now == index.stamp);
    fresh.then_some((index, bytes.len() as u64))
}

/// The index in a file's bytes, if they are whole.
fn unsealed(bytes: &[u8]) -> Option<Vec<u8>> {
    let sealed: Sealed = ciborium::from_reader(bytes).ok()?;
    let body = sealed.index.into_bytes().ok()?;
    (xxh3_64(&body) == sealed.xxh3).then_some(body)
}

/// Builds a file's index and writes it into the folder, under its name in one step. `None`: `go_on` said no, or the file
/// has changed meanwhile.
///
/// # Errors
/// The file cannot be read to its end, or the index cannot be written.
pub fn build_into(
    folder: &Path,
    file: &Path,
    go_on: impl Fn() -> bool,
) -> Result<Option<CaptureIndex>, ReadError> {
    let Some(index) = build(file, go_on)? else {
        return Ok(None);
    };
    write(folder, file, &index)?;
    Ok(Some(index))
}

/// Removes the indexes in `folder` whose capture files are gone from `dir`.
///
/// # Errors
/// The folder cannot be read, or an index not be removed.
pub fn sweep(folder: &Path, dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(file) = name.and_then(|name| name.strip_suffix(ENDING)) else {
            continue;
        };
        let file = Path::new(file);
        if !FileName::has_capture_ending(file) || dir.join(file).exists() {
            continue;
        }
        // One of a template's name, which anybody's file may have, says itself that it is an index.
        let is_index = || fs::read(&path).is_ok_and(|bytes| unsealed(&bytes).is_some());
        if FileName::parse(file).is_some() || is_index() {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn write(folder: &Path, file: &Path, index: &CaptureIndex) -> io::Result<()> {
    let mut body = Vec::new();
    ciborium::into_writer(index, &mut body).map_err(io::Error::other)?;
    let sealed = Sealed {
        xxh3: xxh3_64(&body),
        index: Value::Bytes(body),
    };
    // Whoever may read captures may read their indexes.
    let temporary = tempfile::Builder::new()
        .prefix(".wqcap-index-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    let mut out = io::BufWriter::new(&temporary);
    ciborium::into_writer(&sealed, &mut out).map_err(io::Error::other)?;
    io::Write::flush(&mut out)?;
    drop(out);
    temporary.persist(path_of(folder, file))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures::written, format::FileFormat, index::FlowTerms};

    #[test]
    fn an_index_is_found_again_while_its_file_is_the_same() {
        let dir = tempfile::tempdir().expect("dir");
        let indexes = tempfile::tempdir().expect("dir");
        let (bytes, starts) = written(FileFormat::Pcapng, 3);
        let file = dir.path().join("wqcap-q00-1.pcapng");
        fs::write(&file, &bytes).expect("written");
        assert!(load(indexes.path(), &file).is_none());
        let index = build_into(indexes.path(), &file, || true)
            .expect("reads")
            .expect("made");
        assert_eq!((index.frames, index.head), (3, starts[0] as u64));
        let (again, size) = load(indexes.path(), &file).expect("there");
        assert_eq!(again, index);
        let path = path_of(indexes.path(), &file);
        assert_eq!(size, fs::metadata(&path).expect("there").len());
        let mode = |path| fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode(&path), mode(&file), "as every new file");
        let parts = again.select(&(0..u64::MAX), &FlowTerms::default());
        let head = 0..starts[0] as u64;
        let all = starts[0] as u64..*starts.last().expect("some") as u64;
        assert_eq!(parts, [head, all]);
        assert!(again.select(&(0..0), &FlowTerms::default()).is_empty());

        // One bit turned, or a torn end.
        let sound = fs::read(&path).expect("there");
        for at in [sound.len() / 2, sound.len() - 1] {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).expect("written");
            assert!(load(indexes.path(), &file).is_none());
            fs::write(&path, &sound[..at]).expect("written");
            assert!(load(indexes.path(), &file).is_none());
        }
        fs::write(&path, &sound).expect("written");
        assert!(load(indexes.path(), &file).is_some());
        fs::write(&file, &bytes[..starts[2]]).expect("written");
        assert!(load(indexes.path(), &file).is_none());
        sweep(indexes.path(), dir.path()).expect("swept");
        assert!(path.exists());
        fs::write(indexes.path().join("mine.cbor"), "mine").expect("written");
        fs::rename(&file, dir.path().join("elsewhere.pcapng")).expect("moved");
        sweep(indexes.path(), dir.path()).expect("swept");
        assert!(!path.exists() && indexes.path().join("mine.cbor").exists());
        fs::rename(dir.path().join("elsewhere.pcapng"), &file).expect("moved");

        // One of another name is known by what is in it.
        let tap = dir.path().join("tap-1.pcapng");
        fs::rename(&file, &tap).expect("moved");
        let made = build_into(indexes.path(), &tap, || true);
        assert!(made.expect("reads").is_some());
        let mine = indexes.path().join("mine.pcapng.cbor");
        fs::write(&mine, "mine").expect("written");
        sweep(indexes.path(), dir.path()).expect("swept");
        assert!(path_of(indexes.path(), &tap).exists());
        fs::rename(&tap, &file).expect("moved");
        sweep(indexes.path(), dir.path()).expect("swept");
        assert!(mine.exists() && !path_of(indexes.path(), &tap).exists());
        assert!(
            build_into(indexes.path(), &file, || false)
                .expect("reads")
                .is_none()
        );
    }
}
