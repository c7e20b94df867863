//! Folder as a store: NFS, a disk, or a first test without a server.
//!
//! An object is written under a hidden name next to its final one. The hidden name is derived from
//! the final one, so that the file of an interrupted write is removed by the next attempt. The file is
//! always one that this store has created: another user may write in the folders, too.

use super::{
    Digest, KeyFilter, KeyList, Listing, ObjectFacts, PartPosition, PutIf, PutOutcome, ReadStore,
    SmallObject, Store, StoreError, StoredKey, UnusableKeys,
};
use crate::{
    limits::{KEY, KEYS, SMALL},
    threads,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};
use wqcap_files::folder::{
    held::HeldFolder,
    open::{open_for_update, open_regular, read_regular},
    sync_folder, written_ns,
};

/// Object store in a folder of a file system.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Opens an existing folder as an object store.
    ///
    /// # Errors
    /// The folder does not exist or cannot be read.
    pub fn open(root: &Path) -> io::Result<Self> {
        fs::read_dir(root)?;
        let root = root.to_owned();
        Ok(Self { root })
    }

    fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    /// Returns a function that creates an object's hidden file and its parent folders. A former file
    /// of that name is removed, because another user may have placed it. The store's root is not
    /// created: it may be a mount point whose disk is missing.
    fn creating(&self) -> impl Fn(&Path) -> io::Result<File> + Send + 'static {
        let root = self.root.clone();
        move |path| {
            fs::read_dir(&root)?;
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            let part = part_of(path);
            let folder = HeldFolder::of(part.parent().unwrap_or(Path::new(".")), &part)?;
            let name = part.file_name().unwrap_or_default();
            match folder.remove(name) {
                Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
                _ => folder.create_new(name, 0o666),
            }
        }
    }
}

/// Returns the hidden path under which a folder store writes an object until it is complete.
fn part_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.part"))
}

/// Returns the identifier of the upload whose content is in this hidden file.
fn upload_of(file: &File) -> io::Result<String> {
    let it = file.metadata()?;
    Ok(format!("{}:{}", it.dev(), it.ino()))
}

/// Checks that a hidden file is the one of an upload. `NotFound`: another one is in its place.
fn check_upload(file: &File, upload: &str) -> io::Result<()> {
    match upload_of(file)? == upload {
        true => Ok(()),
        false => Err(ErrorKind::NotFound.into()),
    }
}

fn finish(path: &Path, file: &File) -> io::Result<()> {
    file.sync_all()?;
    fs::rename(part_of(path), path)?;
    sync_folder(path.parent().unwrap_or(Path::new(".")));
    Ok(())
}

/// Entry of a folder that a folder store lists.
enum Entry {
    Folder(PathBuf),
    /// File of any kind, including pipes: its kind is checked when it is opened.
    File(PathBuf),
}

/// Lister of the folders of a store, which counts the entries that it has listed.
struct Lister<'s> {
    root: &'s Path,
    /// Selection of the files that are listed, by their keys.
    keep: KeyFilter,
    listed: usize,
    unusable: UnusableKeys,
}

impl<'s> Lister<'s> {
    fn new(root: &'s Path, keep: KeyFilter) -> io::Result<Self> {
        // The root of the store must exist.
        fs::metadata(root)?;
        Ok(Self {
            root,
            keep,
            listed: 0,
            unusable: UnusableKeys::default(),
        })
    }

    /// Lists the entries of a folder of the store, except hidden ones and files that are not kept. A
    /// missing folder has no entries. A file where a folder is expected, and a folder that cannot be
    /// read, count as unusable keys.
    fn entries(&mut self, folder: &Path) -> io::Result<Vec<Entry>> {
        let listed = match fs::read_dir(folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            // The folders of other sensors may be readable.
            Err(e)
                if e.kind() == ErrorKind::NotADirectory
                    || e.kind() == ErrorKind::PermissionDenied && folder != self.root =>
            {
                self.leave_out(folder);
                return Ok(Vec::new());
            }
            listed => listed?,
        };
        let mut all = Vec::new();
        for entry in listed {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            self.listed += 1;
            if self.listed > KEYS {
                return Err(io::Error::new(
                    ErrorKind::FileTooLarge,
                    format!("the list has more than {KEYS} keys, which is the limit"),
                ));
            }
            let path = entry.path();
            match key_in(self.root, &path) {
                None => self.leave_out(&path),
                Some(_) if entry.file_type()?.is_dir() => all.push(Entry::Folder(path)),
                Some(key) if (self.keep)(&key) => all.push(Entry::File(path)),
                Some(_) => {}
            }
        }
        Ok(all)
    }

    /// Lists the paths of the kept files below a folder of the store.
    fn files(&mut self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in self.entries(&folder)? {
                match entry {
                    Entry::Folder(path) => folders.push(path),
                    Entry::File(path) => files.push(path),
                }
            }
        }
        Ok(files)
    }

    fn leave_out(&mut self, path: &Path) {
        let key = path.strip_prefix(self.root).unwrap_or(path);
        self.unusable.add(&key.to_string_lossy());
    }
}

/// Returns the object key of a file in a folder store. `None`: the key is not UTF-8, or too long.
fn key_in(root: &Path, path: &Path) -> Option<String> {
    let key = path.strip_prefix(root).ok()?.to_str()?;
    (key.len() <= KEY).then(|| key.to_owned())
}

/// Runs file operations on an object's path, on a thread for work that blocks.
async fn on_disk<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    let shown = path.display().to_string();
    let store_error = |e: io::Error| {
        let text = format!("{shown}: {e}");
        match e.kind() {
            ErrorKind::NotFound => StoreError::NotFound(text),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                StoreError::Refused(text)
            }
            // Not a file, or longer than its kind may be.
            ErrorKind::InvalidInput
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::FileTooLarge => StoreError::Unusable(text),
            _ => StoreError::Failed(text),
        }
    };
    let done = threads::run(move || work(&path)).await;
    done.flatten().map_err(store_error)
}

#[async_trait]
impl Store for Folder {
    async fn begin(&self, key: &str, _digest: &Digest) -> Result<String, StoreError> {
        let create = self.creating();
        on_disk(self.path(key), move |path| upload_of(&create(path)?)).await
    }

    async fn part(
        &self,
        key: &str,
        upload: &str,
        place: PartPosition,
        bytes: Bytes,
    ) -> Result<String, StoreError> {
        let upload = upload.to_owned();
        let write = move |path: &Path| {
            let file = open_for_update(&part_of(path))?;
            check_upload(&file, &upload)?;
            file.write_all_at(&bytes, place.offset)?;
            file.sync_data()
        };
        on_disk(self.path(key), write).await?;
        Ok(String::new())
    }

    async fn complete(
        &self,
        key: &str,
        upload: &str,
        _parts: Vec<String>,
    ) -> Result<Option<String>, StoreError> {
        let upload = upload.to_owned();
        let complete = move |path: &Path| {
            let file = open_regular(&part_of(path))?;
            check_upload(&file, &upload)?;
            finish(path, &file)
        };
        on_disk(self.path(key), complete).await?;
        Ok(None)
    }

    async fn abort(&self, key: &str, _upload: &str) -> Result<(), StoreError> {
        let remove = |path: &Path| match fs::remove_file(part_of(path)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        };
        on_disk(self.path(key), remove).await
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Option<String>, StoreError> {
        let create = self.creating();
        let put = move |path: &Path| {
            let mut file = create(path)?;
            file.write_all(&bytes)?;
            finish(path, &file)
        };
        on_disk(self.path(key), put).await?;
        Ok(None)
    }

    async fn head(&self, key: &str) -> Result<ObjectFacts, StoreError> {
        let read_len = |path: &Path| fs::metadata(path).map(|it| it.len());
        let bytes = on_disk(self.path(key), read_len).await?;
        Ok(ObjectFacts { bytes, etag: None })
    }

    async fn read_small(&self, key: &str) -> Result<SmallObject, StoreError> {
        let read = |path: &Path| Ok((read_regular(path, SMALL)?, written_ns(path)));
        let (bytes, written_ns) = on_disk(self.path(key), read).await?;
        Ok(SmallObject {
            bytes: bytes.into(),
            etag: None,
            written_ns,
        })
    }

    async fn put_if(
        &self,
        _key: &str,
        _bytes: Bytes,
        _only: PutIf,
    ) -> Result<PutOutcome, StoreError> {
        // Not every file system supports it, for example NFS.
        Ok(PutOutcome::Unsupported)
    }
}

#[async_trait]
impl ReadStore for Folder {
    async fn list(&self, folder: &str) -> Result<Listing, StoreError> {
        let root = self.root.clone();
        let list = move |path: &Path| {
            let mut lister = Lister::new(&root, |_| true)?;
            let mut listing = Listing::default();
            let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
            for entry in lister.entries(path)? {
                match entry {
                    Entry::Folder(path) => listing.folders.extend(name(&path)),
                    Entry::File(path) => listing.objects.extend(name(&path)),
                }
            }
            listing.unusable = lister.unusable;
            Ok(listing)
        };
        on_disk(self.path(folder), list).await
    }

    async fn keys(&self, folder: &str, keep: KeyFilter) -> Result<KeyList, StoreError> {
        let root = self.root.clone();
        let list = move |path: &Path| {
            let mut lister = Lister::new(&root, keep)?;
            let files = lister.files(path)?;
            let keys = files.iter().filter_map(|it| {
                Some(StoredKey {
                    key: key_in(&root, it)?,
                    written_ns: written_ns(it),
                })
            });
            Ok(KeyList {
                keys: keys.collect(),
                unusable: lister.unusable,
            })
        };
        on_disk(self.path(folder), list).await
    }

    async fn read(&self, key: &str, part: Range<u64>) -> Result<(Bytes, u64), StoreError> {
        let read = move |path: &Path| {
            let file = open_regular(path)?;
            let len = file.metadata()?.len();
            // Ranges are bounded by their callers, whatever length the file has.
            let wanted = part.end.min(len).saturating_sub(part.start);
            let mut bytes = vec![0; usize::try_from(wanted).map_err(io::Error::other)?];
            file.read_exact_at(&mut bytes, part.start)?;
            Ok((Bytes::from(bytes), len))
        };
        on_disk(self.path(key), read).await
    }

    async fn length(&self, key: &str) -> Result<u64, StoreError> {
        self.head(key).await.map(|it| it.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;

    #[test]
    fn objects_are_complete_or_absent() {
        let dir = tempfile::tempdir().expect("dir");
        let store = Folder::open(dir.path()).expect("there");
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let key = "packets/dt=2026-01-01/x.pcap";
        let place = |number, offset| PartPosition { number, offset };
        let digest = Digest::from_bytes(b"abcdef");
        runtime.block_on(async {
            let upload = store.begin(key, &digest).await.expect("begun");
            // Parts in any order.
            for (at, bytes) in [(place(1, 3), "def"), (place(0, 0), "abc")] {
                let part = store.part(key, &upload, at, bytes.into()).await;
                assert_eq!(part, Ok(String::new()));
            }
            assert!(matches!(
                store.head(key).await,
                Err(StoreError::NotFound(_))
            ));
            let done = store.complete(key, &upload, vec![String::new(); 2]).await;
            assert_eq!(done, Ok(None));
            let facts = store.head(key).await.expect("there");
            assert_eq!(facts.bytes, 6);
            // The upload is over.
            let again = store.complete(key, &upload, Vec::new()).await;
            assert!(matches!(again, Err(StoreError::NotFound(_))));
            let again = store.part(key, &upload, place(0, 0), "x".into()).await;
            assert!(matches!(again, Err(StoreError::NotFound(_))));

            let _ = store.begin(key, &digest).await.expect("begun");
            store.abort(key, &upload).await.expect("gone");
            store.abort(key, &upload).await.expect("already gone");
            let put = store.put("flows/y.parquet", "abc".into()).await;
            assert_eq!(put, Ok(None));
            let read = store.read_small("flows/y.parquet").await.expect("there");
            assert_eq!(read.bytes, "abc");
            assert!(matches!(
                store.read_small("flows/z.parquet").await,
                Err(StoreError::NotFound(_))
            ));
            let only = PutIf::Absent;
            let put = store.put_if("flows/y.parquet", "x".into(), only).await;
            assert_eq!(put, Ok(PutOutcome::Unsupported));
        });
        let path = dir.path().join(key);
        assert_eq!(fs::read_to_string(&path).expect("there"), "abcdef");
        let folder = fs::read_dir(path.parent().expect("a folder"));
        assert_eq!(folder.expect("lists").count(), 1, "nothing else");
        assert!(Folder::open(&dir.path().join("absent")).is_err());
    }

    #[test]
    fn a_file_that_another_user_placed_gets_no_content() {
        let dir = tempfile::tempdir().expect("dir");
        let store = Folder::open(dir.path()).expect("there");
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let (placed, part) = (dir.path().join("placed"), dir.path().join(".x.pcap.part"));
        fs::write(&placed, "placed").expect("written");
        let place = || {
            let _ = fs::remove_file(&part);
            fs::hard_link(&placed, &part).expect("linked");
        };
        let digest = Digest::from_bytes(b"abc");
        let first = PartPosition {
            number: 0,
            offset: 0,
        };
        runtime.block_on(async {
            place();
            store.put("x.pcap", "abc".into()).await.expect("put");
            place();
            let upload = store.begin("x.pcap", &digest).await.expect("begun");
            place();
            let refused = store.part("x.pcap", &upload, first, "abc".into()).await;
            assert!(matches!(refused, Err(StoreError::NotFound(_))));
            let refused = store.complete("x.pcap", &upload, Vec::new()).await;
            assert!(matches!(refused, Err(StoreError::NotFound(_))));
        });
        assert_eq!(fs::read(&placed).expect("there"), b"placed");
        assert_eq!(fs::read(dir.path().join("x.pcap")).expect("there"), b"abc");
    }

    #[test]
    fn objects_are_listed_and_read_in_parts() {
        let dir = tempfile::tempdir().expect("dir");
        let store = Folder::open(dir.path()).expect("there");
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            for key in ["blocks/dt=1/hour=02/a", "blocks/dt=1/b", "blocks/dt=3/c"] {
                store.put(key, "abcdef".into()).await.expect("put");
            }
            let digest = Digest::from_bytes(b"");
            let _ = store.begin("blocks/dt=1/open", &digest).await;
            let sorted = |names: Result<Vec<String>, StoreError>| {
                let mut names = names.expect("listed");
                names.sort();
                names
            };
            let keys = |listed: Result<KeyList, StoreError>| {
                let names = |it: KeyList| it.keys.into_iter().map(|it| it.key).collect();
                sorted(listed.map(names))
            };
            let days = store.list("blocks").await.map(|it| it.folders);
            assert_eq!(sorted(days), ["dt=1", "dt=3"]);
            let listed = Listing {
                folders: vec!["hour=02".into()],
                objects: vec!["b".into()],
                unusable: UnusableKeys::default(),
            };
            assert_eq!(store.list("blocks/dt=1").await, Ok(listed));
            assert_eq!(
                keys(store.keys("blocks/dt=1", |_| true).await),
                ["blocks/dt=1/b", "blocks/dt=1/hour=02/a"]
            );
            assert_eq!(keys(store.keys("absent", |_| true).await), [""; 0]);
            assert_eq!(store.list("absent").await, Ok(Listing::default()));
            let key = "blocks/dt=1/b";
            let part = store.read(key, 2..4).await;
            assert_eq!(part, Ok(("cd".into(), 6)));
            let beyond = store.read(key, 4..9).await;
            assert_eq!(beyond, Ok(("ef".into(), 6)));
            let whole = store.read(key, 0..1 << 50).await;
            assert_eq!(whole, Ok(("abcdef".into(), 6)));
            assert_eq!(store.length(key).await, Ok(6));
            let absent = store.read("blocks/absent", 0..1).await;
            assert!(matches!(absent, Err(StoreError::NotFound(_))));
            drop(dir);
            assert!(store.list("absent").await.is_err(), "the store is gone");
        });
    }
}
