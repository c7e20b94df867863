//! Where objects go: a bucket, or a folder with the same layout.
//!
//! Whoever ships files asks for little, so that every store can do it: an object in parts or at once, and its length
//! afterwards. What is put again replaces what is there. A sensor's status is small, read before it is put, and put on
//! condition where the store can do that.

mod folder;
mod remote;

pub use folder::Folder;
pub use remote::Remote;

use async_trait::async_trait;
use bytes::Bytes;
use std::{fmt::Debug, path::Path, sync::Arc};

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

/// What is directly below a prefix, by the last parts of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Prefixes that end there.
    pub folders: Vec<String>,
    /// Objects.
    pub objects: Vec<String>,
}

/// The longest object that is read at once.
const SMALL: u64 = 1 << 20;

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
    /// Begins an upload in parts, and names it.
    async fn begin(&self, key: &str) -> Result<String, StoreError>;

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
    async fn read(&self, key: &str) -> Result<SmallObject, StoreError>;

    /// Puts a small object at once, if there is none or one that is known.
    async fn put_if(&self, key: &str, bytes: Bytes, only: PutIf) -> Result<PutOutcome, StoreError>;

    /// Lists what is directly below a prefix; nothing, if there is no such prefix.
    async fn list(&self, prefix: &str) -> Result<Listing, StoreError>;
}

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
    Bucket { name: &'a str, prefix: &'a str },
}

fn parse(url: &str) -> Result<Place<'_>, String> {
    let known = "write s3://BUCKET/PREFIX or file:///DIRECTORY";
    if let Some(path) = url.strip_prefix("file://") {
        let is_absolute = path.starts_with('/');
        let place = is_absolute.then(|| Place::Folder(Path::new(path)));
        return place.ok_or_else(|| format!("its path must be absolute; {known}"));
    }
    let Some(rest) = url.strip_prefix("s3://") else {
        return Err(format!("is not a store; {known}"));
    };
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_matches('/');
    if name.is_empty() || prefix.split('/').any(|it| it == "." || it == "..") {
        return Err(format!("names no bucket; {known}"));
    }
    Ok(Place::Bucket { name, prefix })
}

/// Opens a store. Nothing is asked of it yet.
///
/// # Errors
/// There is no such store, or its settings in the environment are wrong.
pub fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    open_as("ship.store", url)
}

/// The same for whoever has the URL from elsewhere than `ship.store`: `from` says in errors where.
pub(crate) fn open_as(from: &str, url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let refused = |e: String| StoreError::Refused(format!("{from} = {url:?}: {e}"));
    match parse(url).map_err(refused)? {
        Place::Folder(path) => Folder::open(path)
            .map(|it| Arc::new(it) as Arc<dyn Store>)
            .map_err(|e| refused(format!("{e}; the directory must exist"))),
        Place::Bucket { name, prefix } => remote::s3(name, prefix)
            .map(|it| Arc::new(it) as Arc<dyn Store>)
            .map_err(refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_buckets_and_folders() {
        for good in ["s3://b", "s3://b/", "s3://b/a/c", "file:///srv/store"] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "s3://",
            "s3:///a",
            "file://srv",
            "/srv",
            "gs://b",
            "s3://b/../a",
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
        assert_eq!(folder_of("file:///srv"), Some(Path::new("/srv")));
        assert_eq!(folder_of("s3://srv"), None);
        let refused = open("gs://b").expect_err("not yet");
        assert!(refused.to_string().contains("ship.store = \"gs://b\""));
    }
}
