//! Where objects go: a bucket, or a folder with the same layout.
//!
//! Whoever ships files asks for little, so that every store can do it: an object in parts or at once, and its length
//! afterwards. What is put again replaces what is there. A sensor's status is small, read before it is put, and put on
//! condition where the store can do that. Whoever reads lists keys, and gets objects or parts of them.
//!
//! Objects in buckets have the SHA-256 of their bytes in their metadata, named `sha256`, in hexadecimal. Folders have no
//! metadata, and the crate gives none to what is put in parts on Azure.

mod digest;
mod folder;
mod remote;
mod retries;

pub use digest::Digest;
pub use folder::Folder;
pub use remote::Remote;

use async_trait::async_trait;
use bytes::Bytes;
use remote::Cloud;
use std::{
    fmt::Debug,
    fs::{self, DirEntry},
    ops::Range,
    path::Path,
    sync::Arc,
};

/// Why a store did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It will not, however often it is asked: rights, credentials, no such bucket.
    #[error("{0}")]
    Refused(String),
    /// There is no such object, or no such upload.
    #[error("{0}")]
    NotFound(String),
    /// It may do it later.
    #[error("{0}")]
    Failed(String),
}

/// What a store says of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectFacts {
    /// Its length.
    pub bytes: u64,
    /// What changes when the object does.
    pub etag: Option<String>,
}

/// A small object, all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallObject {
    /// Its bytes.
    pub bytes: Bytes,
    /// What changes when the object does; `None`: the store does not tell.
    pub etag: Option<String>,
}

/// On which condition an object is put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutIf {
    /// There is none of its key.
    Absent,
    /// The one that is there has this ETag.
    Etag(String),
}

/// What has become of an object that was put on condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The store has it.
    Put,
    /// The condition does not hold: there is another one.
    Changed,
    /// The store knows no conditions, and has not taken it.
    Unsupported,
}

/// What is directly in a folder of keys, by the last parts of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Folders.
    pub folders: Vec<String>,
    /// Objects.
    pub objects: Vec<String>,
}

/// The longest object that is read at once.
pub(crate) const SMALL: u64 = 1 << 20;

/// Which part of an upload it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPlace {
    /// Its number, from 0.
    pub number: usize,
    /// Where in the object it begins.
    pub offset: u64,
}

/// A place for objects.
#[async_trait]
pub trait Store: Debug + Send + Sync {
    /// Begins an upload in parts, and names it. The object will be one of this digest.
    async fn begin(&self, key: &str, digest: &Digest) -> Result<String, StoreError>;

    /// Sends a part; what the store says of it is wanted when the upload is completed.
    async fn part(
        &self,
        key: &str,
        upload: &str,
        place: PartPlace,
        bytes: Bytes,
    ) -> Result<String, StoreError>;

    /// Makes the object of its parts; its ETag.
    async fn complete(
        &self,
        key: &str,
        upload: &str,
        parts: Vec<String>,
    ) -> Result<Option<String>, StoreError>;

    /// Gives an upload up. One that is not there is no error.
    async fn abort(&self, key: &str, upload: &str) -> Result<(), StoreError>;

    /// Puts a small object at once; its ETag.
    async fn put(&self, key: &str, bytes: Bytes) -> Result<Option<String>, StoreError>;

    /// Looks at an object.
    async fn head(&self, key: &str) -> Result<ObjectFacts, StoreError>;

    /// Reads an object of a megabyte at most.
    async fn read_small(&self, key: &str) -> Result<SmallObject, StoreError>;

    /// How many requests were sent again since the start.
    fn retries(&self) -> u64 {
        0
    }

    /// Puts a small object at once, if there is none or one that is known.
    async fn put_if(&self, key: &str, bytes: Bytes, only: PutIf) -> Result<PutOutcome, StoreError>;
}

/// A place that objects are read from. Keys are in folders, as their slashes make them.
#[async_trait]
pub trait ReadStore: Debug + Send + Sync {
    /// What is directly in a folder of keys, such as `dt=2026-11-21` in `blocks`. Nothing, if there is no such folder.
    async fn list(&self, folder: &str) -> Result<Listing, StoreError>;

    /// The keys of all objects below a folder of keys. None, if there is no such folder.
    async fn keys(&self, folder: &str) -> Result<Vec<String>, StoreError>;

    /// An object, or a part of it, and the length of the whole object.
    async fn read(&self, key: &str, part: Option<Range<u64>>) -> Result<(Bytes, u64), StoreError>;

    /// An object's length.
    async fn length(&self, key: &str) -> Result<u64, StoreError>;
}

/// How a store is named, in words for a user.
pub const FORMS: &str =
    "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY";

/// Whether a store can be named so; `Err`: what is wrong with it.
///
/// # Errors
/// It is none of the forms that are known.
pub fn check_url(url: &str) -> Result<(), String> {
    parse(url).map(drop)
}

/// The folder of a store that is one.
#[must_use]
pub fn folder_of(url: &str) -> Option<&Path> {
    match parse(url) {
        Ok(Place::Folder(path)) => Some(path),
        _ => None,
    }
}

enum Place<'a> {
    Folder(&'a Path),
    Bucket {
        cloud: Cloud,
        name: &'a str,
        prefix: &'a str,
    },
}

fn parse(url: &str) -> Result<Place<'_>, String> {
    let known = format!("write {FORMS}");
    if let Some(path) = url.strip_prefix("file://") {
        let is_absolute = path.starts_with('/');
        let place = is_absolute.then(|| Place::Folder(Path::new(path)));
        return place.ok_or_else(|| format!("its path must be absolute; {known}"));
    }
    let of = |(scheme, cloud)| url.strip_prefix(scheme).map(|rest| (cloud, rest));
    let Some((cloud, rest)) = Cloud::SCHEMES.into_iter().find_map(of) else {
        return Err(format!("is not a store; {known}"));
    };
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_matches('/');
    if name.is_empty() || prefix.split('/').any(|it| it == "." || it == "..") {
        return Err(format!("names no bucket; {known}"));
    }
    Ok(Place::Bucket {
        cloud,
        name,
        prefix,
    })
}

/// The URL of the store that a user has named by it, or by a folder with its layout; `None`: it is another folder.
#[must_use]
pub fn url_of(named: &Path) -> Option<String> {
    let text = named.to_str()?;
    if text.contains("://") {
        return Some(text.to_owned());
    }
    let is_day = |it: DirEntry| it.file_name().as_encoded_bytes().starts_with(b"dt=");
    let mut blocks = fs::read_dir(named.join("blocks")).ok()?.flatten();
    let path = fs::canonicalize(named).ok()?;
    let url = format!("file://{}", path.to_str()?);
    blocks.any(is_day).then_some(url)
}

/// Opens a store. Nothing is asked of it yet.
///
/// # Errors
/// There is no such store, or its settings in the environment are wrong.
pub fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let named = format!("ship.store = {url:?}");
    match open_as(&named, url)? {
        Opened::Folder(it) => Ok(Arc::new(it)),
        Opened::Bucket(it) => Ok(Arc::new(it)),
    }
}

/// Opens a store to read from it, which is `named` so in errors. Nothing is asked of it yet.
///
/// # Errors
/// As of [`open`].
pub fn open_to_read(named: &str, url: &str) -> Result<Arc<dyn ReadStore>, StoreError> {
    match open_as(named, url)? {
        Opened::Folder(it) => Ok(Arc::new(it)),
        Opened::Bucket(it) => Ok(Arc::new(it)),
    }
}

enum Opened {
    Folder(Folder),
    Bucket(Remote),
}

fn open_as(named: &str, url: &str) -> Result<Opened, StoreError> {
    let refused = |e: String| StoreError::Refused(format!("{named}: {e}"));
    match parse(url).map_err(refused)? {
        Place::Folder(path) => Folder::open(path)
            .map(Opened::Folder)
            .map_err(|e| refused(format!("{e}; the directory must exist"))),
        Place::Bucket {
            cloud,
            name,
            prefix,
        } => remote::open(cloud, name, prefix)
            .map(Opened::Bucket)
            .map_err(refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_buckets_and_folders() {
        for good in [
            "s3://b",
            "s3://b/",
            "s3://b/a/c",
            "gs://b/a",
            "az://c",
            "file:///srv/store",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "s3://",
            "s3:///a",
            "file://srv",
            "/srv",
            "http://b",
            "gs://",
            "az:///a",
            "s3://b/../a",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
        assert_eq!(folder_of("file:///srv"), Some(Path::new("/srv")));
        assert_eq!(folder_of("s3://srv"), None);
        let refused = open("swift://b").expect_err("unknown");
        assert!(refused.to_string().contains("ship.store = \"swift://b\""));
        let refused = open_to_read("swift://b", "swift://b").expect_err("unknown");
        assert!(refused.to_string().starts_with("swift://b: is not a store"));
    }

    #[test]
    fn a_folder_with_the_layout_is_a_store() {
        let dir = tempfile::tempdir().expect("dir");
        assert_eq!(url_of(Path::new("s3://b/p")).as_deref(), Some("s3://b/p"));
        assert_eq!(url_of(dir.path()), None);
        fs::create_dir(dir.path().join("blocks")).expect("made");
        assert_eq!(url_of(dir.path()), None);
        fs::create_dir(dir.path().join("blocks/dt=2026-11-21")).expect("made");
        let url = url_of(dir.path()).expect("a store");
        assert!(folder_of(&url).is_some_and(Path::is_dir), "{url}");
    }
}
