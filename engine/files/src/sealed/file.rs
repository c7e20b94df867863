//! Encryption ("sealing") of a finished capture file.

use super::{
    chunks::{CHUNK, Chunks, TAG},
    key::SecretKey,
};
use crate::{
    folder::{
        FolderTree,
        held::{HeldFolder, remove_below},
        sync_folder,
    },
    name::SEALED,
};
use std::{
    ffi::OsString,
    fs::File,
    io::{self, ErrorKind, Read, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Prefix of the temporary names of files that are being sealed (encrypted).
const TEMPORARY: &str = ".wqcap-seal-";

/// Result of sealing (encrypting) a capture file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sealed {
    /// Path of the sealed (encrypted) file.
    pub path: PathBuf,
    /// Length of the sealed file's decrypted content in bytes.
    pub bytes: u64,
}

/// Returns the path that a capture file has after it is sealed (encrypted).
#[must_use]
pub fn sealed_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(SEALED);
    name.into()
}

/// Seals (encrypts) the finished capture file `path`, which is in the folder `dir` or below it. No
/// folder below `dir` may be a link. The sealed file has the suffix [`SEALED`] and keeps permissions
/// and modification time. The plain file is deleted after the sealed one is synced. `may_continue` is
/// called once per MiB. Returns `None` if `may_continue` returned `false`, and leaves the file
/// unchanged. Begins a second time if the start of another capture in this folder removes the
/// unfinished file ([`sweep`]).
///
/// # Errors
/// System error; `AlreadyExists`: there is a file of the new name; another program has replaced the
/// sealed file. The plain file is unchanged.
pub fn seal(
    dir: &Path,
    path: &Path,
    key: &SecretKey,
    may_continue: impl Fn() -> bool,
) -> io::Result<Option<Sealed>> {
    match seal_once(dir, path, key, &may_continue) {
        Err(e) if e.kind() == ErrorKind::NotFound && path.exists() => {
            seal_once(dir, path, key, &may_continue)
        }
        done => done,
    }
}

/// Does the work of [`seal`] once. `NotFound`: another process has removed the plain file or the
/// unfinished sealed file.
fn seal_once(
    dir: &Path,
    path: &Path,
    key: &SecretKey,
    may_continue: impl Fn() -> bool,
) -> io::Result<Option<Sealed>> {
    let folder = HeldFolder::of(dir, path)?;
    let name = |path: &Path| path.file_name().unwrap_or_default().to_owned();
    let mut plain = folder.open_regular(&name(path))?;
    let metadata = plain.metadata()?;
    let create = |path: &Path| folder.create_new(&name(path), metadata.mode() & 0o777);
    let parent = path.parent().unwrap_or(Path::new("."));
    let temporary = tempfile::Builder::new()
        .prefix(TEMPORARY)
        .make_in(parent, create)?;
    let chunks = Chunks::begin(key)?;
    let Some(bytes) = copy(&mut plain, &chunks, temporary.as_file(), may_continue)? else {
        return Ok(None);
    };
    if bytes != plain.metadata()?.len() {
        return Err(io::Error::other(
            "the file changed while it was being encrypted",
        ));
    }
    temporary.as_file().set_modified(metadata.modified()?)?;
    temporary.as_file().sync_all()?;
    let sealed = temporary.as_file().metadata()?;
    let to = sealed_name(path);
    folder.rename_new(&name(temporary.path()), &name(&to))?;
    // The temporary name is gone: nothing remains to be deleted.
    let _ = temporary.into_temp_path().keep();
    // Another user of the folder may have put a file in the place of the temporary one.
    let there = folder.stat(&name(&to))?;
    if (there.st_dev, there.st_ino) != (sealed.dev(), sealed.ino()) {
        return Err(io::Error::other(
            "another program has replaced the encrypted file",
        ));
    }
    sync_folder(parent);
    match folder.remove(&name(path)) {
        // Deleted by retention in the meantime.
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        other => other?,
    }
    Ok(Some(Sealed { path: to, bytes }))
}

/// Encrypts the content of a plain file into `to`; returns the number of bytes of content, or
/// `None` if `may_continue` returned `false`.
fn copy(
    plain: &mut File,
    chunks: &Chunks,
    mut to: &File,
    may_continue: impl Fn() -> bool,
) -> io::Result<Option<u64>> {
    to.write_all(&chunks.header)?;
    let [mut chunk, mut next] = [(); 2].map(|()| Vec::with_capacity(CHUNK + TAG));
    fill(plain, &mut chunk)?;
    let mut bytes = 0;
    for number in 0.. {
        if number % 16 == 0 && !may_continue() {
            return Ok(None);
        }
        // Whether a chunk is the last one depends on the next read.
        fill(plain, &mut next)?;
        bytes += chunk.len() as u64;
        chunks.seal(number, next.is_empty(), &mut chunk)?;
        to.write_all(&chunk)?;
        if next.is_empty() {
            break;
        }
        std::mem::swap(&mut chunk, &mut next);
    }
    Ok(Some(bytes))
}

/// Reads the content of the sealed file's next chunk from the plain file; the chunk may be shorter
/// at the end.
fn fill(plain: &mut File, chunk: &mut Vec<u8>) -> io::Result<()> {
    chunk.clear();
    plain.take(CHUNK as u64).read_to_end(chunk)?;
    Ok(())
}

/// Removes temporary files that a crash during sealing (encryption) left, in a folder and up to
/// `levels` levels below it. A process that is sealing a file there begins with it again.
///
/// # Errors
/// The folder cannot be read, or a file cannot be removed.
pub fn sweep(dir: &Path, levels: usize) -> io::Result<()> {
    for path in FolderTree::list(dir, levels)?.paths {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if name.starts_with(TEMPORARY.as_bytes()) {
            match remove_below(dir, &path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        cell::Cell,
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt, symlink},
    };

    #[test]
    fn a_file_that_cannot_be_sealed_is_unchanged() {
        let dir = tempfile::tempdir().expect("dir");
        let key = SecretKey::new(&[7; 32]);
        let plain = dir.path().join("wqcap-q00-5.pcap");
        fs::write(&plain, "content").expect("written");
        let only_the_plain = |others: usize| {
            let there = fs::read_dir(dir.path()).expect("there").count();
            assert_eq!(
                (there, fs::read(&plain).expect("there")),
                (1 + others, b"content".to_vec())
            );
        };
        assert_eq!(
            seal(dir.path(), &plain, &key, || false).expect("asked"),
            None
        );
        only_the_plain(0);
        fs::write(sealed_name(&plain), "another file").expect("written");
        let error = seal(dir.path(), &plain, &key, || true).expect_err("taken");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        only_the_plain(1);
        fs::remove_file(sealed_name(&plain)).expect("there");

        // `sweep` removes what a crash left, and nothing else.
        fs::write(dir.path().join(format!("{TEMPORARY}x")), "half").expect("written");
        sweep(dir.path(), 0).expect("swept");
        only_the_plain(0);
        fs::set_permissions(&plain, Permissions::from_mode(0o640)).expect("own");
        let sealed = seal(dir.path(), &plain, &key, || true)
            .expect("seals")
            .expect("not stopped");
        let mode = fs::metadata(&sealed.path).expect("there").mode();
        assert_eq!((mode & 0o777, sealed.bytes), (0o640, 7));
    }

    #[test]
    fn a_replaced_sealed_file_does_not_delete_the_plain_file() {
        let dir = tempfile::tempdir().expect("dir");
        let plain = dir.path().join("a.pcap");
        fs::write(&plain, "content").expect("written");
        let replace = || {
            for path in FolderTree::list(dir.path(), 0).expect("lists").paths {
                if path != plain {
                    fs::remove_file(&path).expect("removed");
                    fs::write(&path, "junk").expect("written");
                }
            }
            true
        };
        let key = SecretKey::new(&[7; 32]);
        let error = seal(dir.path(), &plain, &key, replace).expect_err("replaced");
        assert!(error.to_string().contains("replaced"), "{error}");
        assert_eq!(fs::read(&plain).expect("there"), b"content");
    }

    #[test]
    fn a_file_is_sealed_although_another_capture_removes_the_unfinished_file() {
        let dir = tempfile::tempdir().expect("dir");
        let plain = dir.path().join("a.pcap");
        fs::write(&plain, "content").expect("written");
        let sweeps = Cell::new(0);
        let sweep_once = || {
            if sweeps.replace(1) == 0 {
                sweep(dir.path(), 0).expect("swept");
            }
            true
        };
        let sealed = seal(dir.path(), &plain, &SecretKey::new(&[7; 32]), sweep_once);
        assert!(sealed.expect("seals").is_some() && !plain.exists());
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 1);
    }

    #[test]
    fn a_file_behind_a_link_is_neither_sealed_nor_deleted() {
        let dir = tempfile::tempdir().expect("dir");
        let [named, elsewhere] = ["named", "elsewhere"].map(|it| dir.path().join(it));
        fs::create_dir(&named).expect("made");
        fs::create_dir(&elsewhere).expect("made");
        fs::write(elsewhere.join("a.pcap"), "victim").expect("written");
        symlink(&elsewhere, named.join("tap")).expect("linked");
        let key = SecretKey::new(&[7; 32]);
        assert!(seal(&named, &named.join("tap/a.pcap"), &key, || true).is_err());
        assert_eq!(fs::read_dir(&elsewhere).expect("there").count(), 1);
        let own = elsewhere.join("a.pcap");
        let sealed = seal(&elsewhere, &own, &key, || true).expect("seals");
        assert!(sealed.is_some() && !own.exists());
    }
}
