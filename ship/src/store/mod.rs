//! Object stores: a bucket, or a folder with the same layout.
//!
//! Shipping needs only a few operations, so that every store supports them: write an object in one
//! request or in parts, and read its length. A write replaces an existing object. A sensor's status
//! is a small object that is read before it is written, with a precondition where the store
//! supports one. Queries list keys, and read objects or ranges of them.
//!
//! Objects in buckets have the SHA-256 of their content in their metadata, named `sha256`, in
//! hexadecimal. Folders have no metadata, and `object_store` does not support metadata for
//! multipart uploads on Azure.

mod client;
mod digest;
mod folder;
mod lists;
mod remote;
mod retries;
mod transfer;

pub(crate) use digest::Digest;
pub(crate) use folder::Folder;
#[cfg(test)]
pub(crate) use remote::Remote;

use crate::limits::{KEY, NAMED_KEYS};
use async_trait::async_trait;
use bytes::Bytes;
use remote::Cloud;
use std::{
    fmt::Debug,
    fs::{self, DirEntry},
    io,
    ops::Range,
    path::Path,
    sync::Arc,
};

/// Error of an object store operation: its kind, with the text of the error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Permanent error of the store: missing rights, wrong credentials, no such bucket.
    #[error("{0}")]
    Refused(String),
    /// The object or the upload does not exist in the store.
    #[error("{0}")]
    NotFound(String),
    /// Temporary error of the store; the operation may succeed later.
    #[error("{0}")]
    Failed(String),
    /// The object cannot be used, though others may be: it is not a file, or exceeds a limit.
    #[error("{0}")]
    Unusable(String),
}

impl StoreError {
    /// Returns `true` if the operation may succeed later.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    /// Returns the error for a stored object that is longer than objects of its kind may be.
    pub(crate) fn too_long(key: &str, has: u64, limit: u64) -> Self {
        Self::Unusable(format!(
            "{key}: the object has {has} bytes; the limit for objects of this kind is {limit} bytes"
        ))
    }
}

/// Length and version of an object in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectFacts {
    /// Length of the stored object in bytes.
    pub bytes: u64,
    /// ETag or generation of the stored object, which changes with its content. `None`: the store
    /// provides neither.
    pub etag: Option<String>,
}

/// Content and ETag of a small object that was read from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SmallObject {
    /// Content of the small object.
    pub bytes: Bytes,
    /// ETag or generation of the small object, which changes with its content. `None`: the store
    /// provides neither.
    pub etag: Option<String>,
    /// Time at which the store wrote the small object, by the clock of the store, in nanoseconds
    /// since 1970; `None`: unknown.
    pub written_ns: Option<u64>,
}

/// Precondition for writing an object to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PutIf {
    /// The object is written only if no object has its key.
    Absent,
    /// The object is written only if the existing object has this ETag or generation.
    Etag(String),
}

/// Result of writing an object to a store with a precondition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutOutcome {
    /// The precondition held, and the object was written.
    Put,
    /// The precondition did not hold: the object in the store has changed.
    Changed,
    /// The store does not support preconditions, and the object was not written.
    Unsupported,
}

/// Folders and objects directly in a folder of object keys, by the last components of their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// Names of the folders that are directly in the listed folder.
    pub folders: Vec<String>,
    /// Names of the objects that are directly in the listed folder.
    pub objects: Vec<String>,
    /// Keys in the listed folder that cannot be used.
    pub unusable: UnusableKeys,
}

/// Key of an object in the store, and the time when the object was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoredKey {
    /// Key under which the object is stored.
    pub key: String,
    /// Time at which the store wrote the object, in nanoseconds since 1970; `None`: unknown.
    pub written_ns: Option<u64>,
}

/// Function that returns `true` for the keys that a list keeps.
pub(crate) type KeyFilter = fn(&str) -> bool;

/// Keys of selected objects below a folder of object keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyList {
    /// Keys of the selected objects below the folder.
    pub keys: Vec<StoredKey>,
    /// Keys below the folder that cannot be used.
    pub unusable: UnusableKeys,
}

/// Keys of a store that cannot be used: too long, with an empty part, or not a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnusableKeys {
    /// Number of object keys in the store that cannot be used, such as keys with empty parts.
    pub count: u64,
    /// First of the object keys that cannot be used, each shortened to 1024 bytes.
    pub named: Vec<String>,
}

impl UnusableKeys {
    /// Counts an unusable key of the store, and keeps its text if few keys are kept yet.
    pub(crate) fn add(&mut self, key: &str) {
        self.count += 1;
        if self.named.len() < NAMED_KEYS {
            self.named.push(key[..key.floor_char_boundary(KEY)].into());
        }
    }

    /// Adds the unusable keys of another list to this one.
    pub(crate) fn append(&mut self, other: Self) {
        let unnamed = other.count - other.named.len() as u64;
        other.named.iter().for_each(|key| self.add(key));
        self.count += unnamed;
    }

    /// Returns the texts on unusable keys for the user: a line per named key, and a line with the
    /// number of the others.
    pub(crate) fn lines(&self) -> Vec<String> {
        let unusable = "the key cannot be used, and its object is left out";
        let named = self.named.iter().map(|it| format!("{it:?}: {unusable}"));
        let others = self.count - self.named.len() as u64;
        let others =
            (others > 0).then(|| format!("{others} more keys of the store cannot be used"));
        named.chain(others).collect()
    }
}

/// Position of a part in the multipart upload of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartPosition {
    /// Number of the upload part, from 0.
    pub number: usize,
    /// Byte offset of the upload part in the object.
    pub offset: u64,
}

/// Object store to which files are shipped.
#[async_trait]
pub(crate) trait Store: Debug + Send + Sync {
    /// Begins a multipart upload of an object with this digest. Returns the upload's identifier.
    async fn begin(&self, key: &str, digest: &Digest) -> Result<String, StoreError>;

    /// Uploads a part of a multipart upload. Returns the part's ETag, which is needed to complete
    /// the upload.
    async fn part(
        &self,
        key: &str,
        upload: &str,
        place: PartPosition,
        bytes: Bytes,
    ) -> Result<String, StoreError>;

    /// Completes a multipart upload. Returns the object's ETag or generation.
    async fn complete(
        &self,
        key: &str,
        upload: &str,
        parts: Vec<String>,
    ) -> Result<Option<String>, StoreError>;

    /// Aborts a multipart upload. A missing upload is not an error.
    async fn abort(&self, key: &str, upload: &str) -> Result<(), StoreError>;

    /// Writes a small object to the store in one request. Returns the object's ETag or generation.
    async fn put(&self, key: &str, bytes: Bytes) -> Result<Option<String>, StoreError>;

    /// Returns the length and the ETag or generation of an object in the store.
    async fn head(&self, key: &str) -> Result<ObjectFacts, StoreError>;

    /// Reads an object of at most 1 MiB from the store.
    async fn read_small(&self, key: &str) -> Result<SmallObject, StoreError>;

    /// Returns the number of requests to this store that were retried since the start.
    fn retries(&self) -> u64 {
        0
    }

    /// Writes a small object to the store in one request, if a precondition holds.
    async fn put_if(&self, key: &str, bytes: Bytes, only: PutIf) -> Result<PutOutcome, StoreError>;
}

/// Object store from which queries read. Slashes divide keys into folders.
#[async_trait]
pub(crate) trait ReadStore: Debug + Send + Sync {
    /// Lists the direct content of a folder of object keys, such as `dt=2026-11-21` in `blocks`. A
    /// missing folder is empty.
    async fn list(&self, folder: &str) -> Result<Listing, StoreError>;

    /// Lists the keys of all objects below a folder of object keys for which `keep` returns `true`.
    /// A missing folder is empty. A folder with more keys than a list may have is `Unusable`.
    async fn keys(&self, folder: &str, keep: KeyFilter) -> Result<KeyList, StoreError>;

    /// Reads a range of a stored object. Returns the bytes, which are fewer if the object ends
    /// within the range, and the length of the whole object.
    async fn read(&self, key: &str, part: Range<u64>) -> Result<(Bytes, u64), StoreError>;

    /// Returns the length of a stored object in bytes.
    async fn length(&self, key: &str) -> Result<u64, StoreError>;
}

/// Accepted forms of a store URL, for error messages.
pub const FORMS: &str =
    "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY";

/// Reason why a text is not the URL of a store. The reason does not contain the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreUrlError {
    /// The path in a `file://` URL is relative.
    #[error("the path of a file:// URL must be absolute; write {FORMS}")]
    RelativePath,
    /// The scheme of the URL is not one of an object store.
    #[error("the URL is not a store; write {FORMS}")]
    Scheme,
    /// The URL has no valid bucket, or an invalid prefix.
    #[error("the URL names no valid bucket, or its prefix has . or ..; write {FORMS}")]
    Bucket,
}

/// Error of opening an object store; its text begins with the key or option that holds the URL.
#[derive(Debug, thiserror::Error)]
#[error("{named}: {problem}")]
pub struct StoreOpenError {
    named: String,
    #[source]
    problem: StoreOpenProblem,
}

impl StoreOpenError {
    /// Returns `true` if the store is a directory that cannot be read now, such as one that is not
    /// mounted yet.
    pub(crate) fn is_of_folder(&self) -> bool {
        matches!(self.problem, StoreOpenProblem::Folder(_))
    }
}

/// Reason why an object store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreOpenProblem {
    #[error(transparent)]
    Url(#[from] StoreUrlError),
    #[error("cannot use the directory of the store: {0}; the directory must exist")]
    Folder(#[source] io::Error),
    #[error(
        "{0} = {1:?}: the value of this environment variable is not a duration; write for example \"60s\""
    )]
    Timeout(&'static str, String),
    #[error(
        "{0}: the value of this environment variable is not an address such as https://store.example:9000"
    )]
    Endpoint(String),
    #[error("{0}: the value of this environment variable is not a path that begins with /")]
    Path(String),
    #[error(
        "{0}: the value of this environment variable has a control character, such as a line end, or is not ASCII"
    )]
    Characters(String),
    #[error(transparent)]
    Client(#[from] object_store::Error),
}

/// Checks that a text has the form of a store URL.
///
/// # Errors
/// The URL has none of the accepted forms.
pub fn check_url(url: &str) -> Result<(), StoreUrlError> {
    parse(url).map(drop)
}

/// Returns the folder of a `file://` store URL. `None`: the URL is invalid, or names a bucket.
#[must_use]
pub fn folder_of(url: &str) -> Option<&Path> {
    match parse(url) {
        Ok(StoreLocation::Folder(path)) => Some(path),
        _ => None,
    }
}

enum StoreLocation<'a> {
    Folder(&'a Path),
    Bucket {
        cloud: Cloud,
        name: &'a str,
        prefix: &'a str,
    },
}

fn parse(url: &str) -> Result<StoreLocation<'_>, StoreUrlError> {
    if let Some(path) = url.strip_prefix("file://") {
        let is_absolute = path.starts_with('/');
        let place = is_absolute.then(|| StoreLocation::Folder(Path::new(path)));
        return place.ok_or(StoreUrlError::RelativePath);
    }
    let of = |(scheme, cloud)| url.strip_prefix(scheme).map(|rest| (cloud, rest));
    let Some((cloud, rest)) = Cloud::SCHEMES.into_iter().find_map(of) else {
        return Err(StoreUrlError::Scheme);
    };
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_matches('/');
    // Other characters are in no bucket's name, and `object_store` panics at some of them.
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b".-_".contains(&it);
    if name.is_empty()
        || !name.bytes().all(is_plain)
        || prefix.split('/').any(|it| it == "." || it == "..")
    {
        return Err(StoreUrlError::Bucket);
    }
    Ok(StoreLocation::Bucket {
        cloud,
        name,
        prefix,
    })
}

/// Returns the URL of a store that a user named by its URL or by a folder with the layout of a
/// store. `None`: the folder has another layout.
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

/// Opens the object store of `ship.store` for shipping. No request is sent yet.
///
/// # Errors
/// The URL is invalid, or settings of the store in the environment are invalid.
pub(crate) fn open(url: &str) -> Result<Arc<dyn Store>, StoreOpenError> {
    Ok(open_as(format!("ship.store = {url:?}"), url)?)
}

/// Opens an object store for reading. Errors begin with the text `named`. No request is sent yet.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_to_read(
    named: impl Into<String>,
    url: &str,
) -> Result<Arc<dyn ReadStore>, StoreOpenError> {
    Ok(open_as(named.into(), url)?)
}

/// Object store that can be written and read.
trait AnyStore: Store + ReadStore {}

impl<T: Store + ReadStore> AnyStore for T {}

fn open_as(named: String, url: &str) -> Result<Arc<dyn AnyStore>, StoreOpenError> {
    let opened = || -> Result<Arc<dyn AnyStore>, StoreOpenProblem> {
        match parse(url)? {
            StoreLocation::Folder(path) => {
                let folder = Folder::open(path).map_err(StoreOpenProblem::Folder);
                Ok(Arc::new(folder?))
            }
            StoreLocation::Bucket {
                cloud,
                name,
                prefix,
            } => Ok(Arc::new(remote::open(cloud, name, prefix)?)),
        }
    };
    opened().map_err(|problem| StoreOpenError { named, problem })
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
        assert!(
            refused
                .to_string()
                .starts_with("swift://b: the URL is not a store")
        );
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
