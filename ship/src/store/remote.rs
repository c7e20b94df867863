//! Bucket as a store, through the crate `object_store`, which signs, checks and retries requests.

use super::{
    Digest, KeyFilter, KeyList, Listing, ObjectFacts, PartPosition, PutIf, PutOutcome, ReadStore,
    SmallObject, Store, StoreError, StoreOpenProblem, StoredKey, UnusableKeys,
    client::{Connector, ResponseError},
    lists::{ListError, listing},
    retries::{Retries, call},
};
use crate::{
    limits::{SMALL, TAG},
    threads,
};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{
    FutureExt, StreamExt, TryStreamExt,
    future::{self, BoxFuture},
};
use object_store::{
    Attribute, Attributes, ClientConfigKey, Error, GetOptions, GetRange, GetResult, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, RetryConfig, StaticCredentialProvider,
    UpdateVersion,
    aws::{AmazonS3Builder, AmazonS3ConfigKey},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    client::HttpError,
    gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey},
    multipart::{MultipartStore, PartId},
    path::Path,
};
use std::{
    env, error::Error as _, ffi::OsString, fmt::Debug, ops::Range, sync::Arc, time::Duration,
};

/// Maximum number of retries of a store request. After that the file waits for the next pass of
/// shipping.
const RETRIES: usize = 6;
/// Maximum time during which a store request is retried.
const RETRY_TIME: Duration = Duration::from_secs(60);
/// Beginnings of the statuses of a request that fails again without a change of the store's settings,
/// in the errors of `object_store` that have no kind for them. A list without permission is such an
/// error, and so is an object with a key of its client (SSE-C).
const REFUSALS: [&str; 3] = [
    "status code: 400 ",
    "status code: 401 ",
    "status code: 403 ",
];
/// Default time in which a store request must make progress, unless the environment sets one.
const REQUEST: &str = "300s";

/// Cloud service that hosts a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cloud {
    /// Amazon S3, or a service with the protocol of S3.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage, which calls a bucket a container.
    Azure,
}

impl Cloud {
    /// Prefixes of store URLs, with the cloud that each selects.
    pub(super) const SCHEMES: [(&str, Self); 3] = [
        ("s3://", Self::S3),
        ("gs://", Self::Google),
        ("az://", Self::Azure),
    ];

    /// Returns the environment variable that sets the timeout of a request to the cloud.
    const fn timeout(self) -> &'static str {
        match self {
            Self::S3 => "AWS_TIMEOUT",
            Self::Google => "GOOGLE_TIMEOUT",
            Self::Azure => "AZURE_TIMEOUT",
        }
    }

    /// Returns the prefix of the names of the cloud's environment variables.
    const fn prefix(self) -> &'static str {
        match self {
            Self::S3 => "AWS_",
            Self::Google => "GOOGLE_",
            Self::Azure => "AZURE_",
        }
    }

    /// Returns the environment variables that select credentials for the cloud, or that it needs none.
    /// If no variable is set, credentials of the machine's cloud are used.
    const fn credentials(self) -> &'static [&'static str] {
        match self {
            Self::S3 => &[
                "AWS_ACCESS_KEY_ID",
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            ],
            Self::Google => &[
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_BEARER_TOKEN",
                "GOOGLE_SERVICE_ACCOUNT",
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                "GOOGLE_SERVICE_ACCOUNT_PATH",
                "GOOGLE_SKIP_SIGNATURE",
            ],
            Self::Azure => &[
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_CLIENT_SECRET",
                "AZURE_CLIENT_SECRET",
                "AZURE_FEDERATED_TOKEN_FILE",
                "AZURE_STORAGE_SAS_KEY",
                "AZURE_STORAGE_TOKEN",
            ],
        }
    }
}

/// Operations that the `object_store` clients of all clouds support.
trait StoreClient: ObjectStore + MultipartStore {}

impl<T: ObjectStore + MultipartStore> StoreClient for T {}

/// Object store in a bucket, or below a prefix of its keys.
#[derive(Debug)]
pub struct Remote {
    client: Box<dyn StoreClient>,
    prefix: String,
    /// Set when versions of the bucket's objects are identified by generation instead of ETag.
    by_generation: bool,
    /// Set when multipart uploads to the bucket can have metadata, which `object_store` does not
    /// support on Azure.
    parts_have_metadata: bool,
    /// Counter of the bucket's retried requests.
    retries: Retries,
    /// Hint on missing credentials that is appended to errors of the bucket.
    hint: String,
}

/// Checks the environment variables that `object_store` uses in requests to a cloud, because it
/// panics at values that no request can have.
fn check_environment(
    cloud: Cloud,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), StoreOpenProblem> {
    for (name, value) in variables {
        let name = name.to_string_lossy().into_owned();
        // A key of a Google service account is a JSON text with several lines.
        let is_used = name.starts_with(cloud.prefix())
            || cloud == Cloud::Azure && ["IDENTITY_ENDPOINT", "MSI_ENDPOINT"].contains(&&*name);
        if !is_used || name == "GOOGLE_SERVICE_ACCOUNT_KEY" {
            continue;
        }
        let text = value.to_str().unwrap_or("\u{fffd}");
        if !text.chars().all(|it| it.is_ascii_graphic() || it == ' ') {
            return Err(StoreOpenProblem::Characters(name));
        }
        if name.ends_with("RELATIVE_URI") && !text.starts_with('/') {
            return Err(StoreOpenProblem::Path(name));
        }
        let is_address = name.contains("ENDPOINT")
            || ["BASE_URL", "FULL_URI", "AUTHORITY_HOST"]
                .iter()
                .any(|it| name.ends_with(it));
        if is_address {
            let url = reqwest::Url::parse(text).ok();
            let usable = url.is_some_and(|it| it.scheme().starts_with("http") && it.has_host());
            if !usable {
                return Err(StoreOpenProblem::Endpoint(name));
            }
        }
    }
    Ok(())
}

/// Returns the builder of a bucket with the settings in the environment. The library heeds
/// `GOOGLE_SKIP_SIGNATURE` only when it reads; for writes it would request a token from the machine's
/// cloud, and send it to a server that requires no credentials.
fn google() -> GoogleCloudStorageBuilder {
    let builder = GoogleCloudStorageBuilder::from_env();
    let skips = builder.get_config_value(&GoogleConfigKey::SkipSignature);
    if skips.as_deref() != Some("true") {
        return builder;
    }
    let bearer = String::new();
    let none = StaticCredentialProvider::new(GcpCredential { bearer });
    builder.with_credentials(Arc::new(none))
}

/// Opens a bucket as an object store. Region, endpoint and credentials are read from the usual
/// environment variables of its cloud: `AWS_*`, `GOOGLE_*`, `AZURE_*`.
pub(super) fn open(cloud: Cloud, bucket: &str, prefix: &str) -> Result<Remote, StoreOpenProblem> {
    // Selects the TLS provider. For a second store of this process it is selected already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    check_environment(cloud, env::vars_os())?;
    let retry = RetryConfig {
        max_retries: RETRIES,
        retry_timeout: RETRY_TIME,
        ..RetryConfig::default()
    };
    let timeout = ClientConfigKey::Timeout;
    let limit = env::var(cloud.timeout()).unwrap_or_else(|_| REQUEST.into());
    if humantime::parse_duration(&limit).is_err() {
        return Err(StoreOpenProblem::Timeout(cloud.timeout(), limit));
    }
    let connector = Connector::default();
    // The builders have the same functions and no common trait.
    macro_rules! built {
        ($builder:expr, $key:ident) => {
            $builder
                .with_retry(retry)
                .with_http_connector(connector.clone())
                .with_config($key::Client(timeout), &limit)
                .build()
                .map(boxed)
        };
    }
    let client = match cloud {
        Cloud::S3 => built!(
            AmazonS3Builder::from_env().with_bucket_name(bucket),
            AmazonS3ConfigKey
        ),
        Cloud::Google => built!(google().with_bucket_name(bucket), GoogleConfigKey),
        Cloud::Azure => built!(
            MicrosoftAzureBuilder::from_env().with_container_name(bucket),
            AzureConfigKey
        ),
    };
    let names = cloud.credentials();
    let hint = match names.iter().any(|it| env::var_os(it).is_some()) {
        true => String::new(),
        false => format!(
            "; the environment variable {} is not set, so credentials are requested from the machine's cloud",
            names[0]
        ),
    };
    Ok(Remote {
        client: client?,
        prefix: prefix.into(),
        by_generation: cloud == Cloud::Google,
        parts_have_metadata: cloud != Cloud::Azure,
        retries: connector.retries,
        hint,
    })
}

fn boxed(client: impl StoreClient) -> Box<dyn StoreClient> {
    Box::new(client)
}

impl Remote {
    /// Returns the tag that identifies the version of a stored object: its generation or its ETag.
    fn tag(
        &self,
        etag: Option<String>,
        generation: Option<String>,
    ) -> Result<Option<String>, StoreError> {
        let tag = if self.by_generation { generation } else { etag };
        tag.map(|it| bounded("an ETag", it)).transpose()
    }

    fn path(&self, key: &str) -> Result<Path, StoreError> {
        let path = Path::parse(format!("{}/{key}", self.prefix));
        path.map_err(|e| StoreError::Refused(e.to_string()))
    }

    /// Returns the key of a listed object: its path in the bucket without the store's prefix.
    /// `None`: the path is outside of the prefix.
    fn key_of(&self, path: &Path) -> Option<String> {
        let path = path.as_ref();
        let key = match self.prefix.as_str() {
            "" => path,
            prefix => path.strip_prefix(prefix)?.strip_prefix('/')?,
        };
        Some(key.to_owned())
    }

    /// Lists objects of the bucket, and repeats this if the response is interrupted. Also returns
    /// the keys that cannot be used.
    async fn list_retrying<'a, T>(
        &self,
        list: impl Fn() -> BoxFuture<'a, Result<T, Error>>,
    ) -> Result<(T, UnusableKeys), StoreError> {
        let mut left = RETRIES;
        loop {
            match listing(list()).await {
                (Err(e), _) if left > 0 && broke_off(&e) => left -= 1,
                (listed, unusable) => {
                    let listed = listed.map_err(|e| self.put_error(e))?;
                    return Ok((listed, unusable));
                }
            }
        }
    }

    /// Receives the content of a stored object, or of a range of it, of at most `most` bytes.
    async fn content(&self, key: &str, found: GetResult, most: u64) -> Result<Bytes, StoreError> {
        let mut stream = found.into_stream();
        let mut bytes = BytesMut::new();
        while let Some(more) = stream.next().await {
            let more = more.map_err(|e| self.store_error(e))?;
            if (bytes.len() + more.len()) as u64 > most {
                return Err(StoreError::Unusable(format!(
                    "{key}: the store sends more than the {most} bytes that were requested"
                )));
            }
            bytes.extend_from_slice(&more);
        }
        Ok(bytes.freeze())
    }

    /// Maps an error of a write or of a listing to a store error. `NotFound` then means that the
    /// bucket does not exist.
    fn put_error(&self, e: Error) -> StoreError {
        match self.store_error(e) {
            StoreError::NotFound(text) => StoreError::Refused(text),
            other => other,
        }
    }

    fn store_error(&self, e: Error) -> StoreError {
        // The text of `object_store` does not contain all causes.
        let text = match ResponseError::cause_of(&e) {
            Some(cause) => cause.to_string(),
            None => format!("{}{}", one_line(&e.to_string()), self.hint),
        };
        match e {
            // Error codes of Azure and of S3 for parts of an upload that no longer exist.
            Error::Generic { .. }
                if ["InvalidBlockList", "InvalidPart"]
                    .iter()
                    .any(|code| text.contains(code)) =>
            {
                StoreError::NotFound(text)
            }
            Error::NotFound { .. } => StoreError::NotFound(text),
            _ if matches!(
                ResponseError::cause_of(&e),
                Some(ResponseError::Redirect { .. })
            ) =>
            {
                StoreError::Refused(text)
            }
            _ if matches!(
                ResponseError::cause_of(&e),
                Some(ResponseError::List(ListError::Keys | ListError::Pages))
            ) =>
            {
                StoreError::Unusable(text)
            }
            Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::AlreadyExists { .. }
            | Error::Precondition { .. } => StoreError::Refused(text),
            Error::Generic { .. } if REFUSALS.iter().any(|it| text.contains(it)) => {
                StoreError::Refused(text)
            }
            _ => StoreError::Failed(text),
        }
    }
}

/// Returns the time at which the bucket wrote an object, in nanoseconds since 1970; `None`: unknown.
fn written_ns(meta: &ObjectMeta) -> Option<u64> {
    let ns = u64::try_from(meta.last_modified.timestamp_nanos_opt()?).ok()?;
    // `object_store` has this time for a response without one.
    (ns > 0).then_some(ns)
}

/// Returns the metadata with which an object is written to the store: the SHA-256 of its content.
fn metadata(digest: &Digest) -> Attributes {
    let named = Attribute::Metadata("sha256".into());
    [(named, digest.to_string())].into_iter().collect()
}

/// Returns `true` if the error means that a store does not support conditional writes. S3 has an
/// error code for headers that are not implemented.
fn is_unsupported(e: &Error) -> bool {
    match e {
        Error::NotImplemented { .. } | Error::NotSupported { .. } => true,
        Error::Generic { .. } => {
            let text = e.to_string();
            text.contains("NotImplemented") || text.contains("501 Not Implemented")
        }
        _ => false,
    }
}

/// Returns `true` if the error means that the store's response was interrupted. `object_store`
/// retries requests, but reads a response only once, unless it is an object's content. If a request
/// failed after retries, the source chain also contains the number of attempts.
fn broke_off(e: &Error) -> bool {
    let cause = e.source().and_then(|it| it.source());
    cause.is_some_and(|it| it.is::<HttpError>()) && ResponseError::cause_of(e).is_none()
}

/// Checks that a store's ETag, generation or upload identifier is short enough for the journal,
/// which keeps it.
fn bounded(what: &str, text: String) -> Result<String, StoreError> {
    match text.len() {
        0..=TAG => Ok(text),
        has => Err(StoreError::Failed(format!(
            "the store sends {what} with {has} bytes; the limit is {TAG} bytes"
        ))),
    }
}

/// Joins the lines of a store's error response into one, because servers return pages of XML.
fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ")
}

#[async_trait]
impl Store for Remote {
    async fn begin(&self, key: &str, digest: &Digest) -> Result<String, StoreError> {
        let path = self.path(key)?;
        let mut options = PutMultipartOptions::default();
        if self.parts_have_metadata {
            options.attributes = metadata(digest);
        }
        let begun = call(self.client.create_multipart_opts(&path, options)).await;
        let begun = begun.map_err(|e| self.put_error(e))?;
        bounded("an upload's identifier", begun)
    }

    async fn part(
        &self,
        key: &str,
        upload: &str,
        place: PartPosition,
        bytes: Bytes,
    ) -> Result<String, StoreError> {
        let (path, upload) = (self.path(key)?, upload.to_owned());
        let put = self
            .client
            .put_part(&path, &upload, place.number, bytes.into());
        let part = call(put).await;
        let part = part.map_err(|e| self.store_error(e))?;
        bounded("an ETag", part.content_id)
    }

    async fn complete(
        &self,
        key: &str,
        upload: &str,
        parts: Vec<String>,
    ) -> Result<Option<String>, StoreError> {
        let (path, upload) = (self.path(key)?, upload.to_owned());
        let parts = parts.into_iter().map(|content_id| PartId { content_id });
        let parts = parts.collect();
        let done = call(self.client.complete_multipart(&path, &upload, parts)).await;
        let done = done.map_err(|e| self.store_error(e))?;
        self.tag(done.e_tag, done.version)
    }

    async fn abort(&self, key: &str, upload: &str) -> Result<(), StoreError> {
        let (path, upload) = (self.path(key)?, upload.to_owned());
        let done = call(self.client.abort_multipart(&path, &upload)).await;
        match done.map_err(|e| self.store_error(e)) {
            Err(StoreError::NotFound(_)) => Ok(()),
            other => other,
        }
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Option<String>, StoreError> {
        let path = self.path(key)?;
        let hashed = bytes.clone();
        let digest = threads::run(move || Digest::from_bytes(&hashed)).await;
        let digest = digest.map_err(|e| StoreError::Failed(e.to_string()))?;
        let options = PutOptions {
            attributes: metadata(&digest),
            ..PutOptions::default()
        };
        let done = call(self.client.put_opts(&path, bytes.into(), options)).await;
        let done = done.map_err(|e| self.put_error(e))?;
        self.tag(done.e_tag, done.version)
    }

    async fn head(&self, key: &str) -> Result<ObjectFacts, StoreError> {
        let path = self.path(key)?;
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let found = call(self.client.get_opts(&path, options)).await;
        let meta = found.map_err(|e| self.store_error(e))?.meta;
        Ok(ObjectFacts {
            bytes: meta.size,
            etag: self.tag(meta.e_tag, meta.version)?,
        })
    }

    async fn read_small(&self, key: &str) -> Result<SmallObject, StoreError> {
        let path = self.path(key)?;
        let found = call(self.client.get_opts(&path, GetOptions::default())).await;
        let found = found.map_err(|e| self.store_error(e))?;
        let len = found.meta.size;
        let etag = self.tag(found.meta.e_tag.clone(), found.meta.version.clone())?;
        if len > SMALL {
            return Err(StoreError::too_long(key, len, SMALL));
        }
        let written_ns = written_ns(&found.meta);
        let bytes = self.content(key, found, len).await?;
        Ok(SmallObject {
            bytes,
            etag,
            written_ns,
        })
    }

    fn retries(&self) -> u64 {
        self.retries.count()
    }

    async fn put_if(&self, key: &str, bytes: Bytes, only: PutIf) -> Result<PutOutcome, StoreError> {
        let path = self.path(key)?;
        let mode = match only {
            PutIf::Absent => PutMode::Create,
            PutIf::Etag(tag) => PutMode::Update(UpdateVersion {
                version: self.by_generation.then(|| tag.clone()),
                e_tag: Some(tag),
            }),
        };
        let options = PutOptions {
            mode,
            // A status is small, so that hashing it here takes no time.
            attributes: metadata(&Digest::from_bytes(&bytes)),
            ..PutOptions::default()
        };
        let done = call(self.client.put_opts(&path, bytes.into(), options)).await;
        match done {
            Ok(_) => Ok(PutOutcome::Put),
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {
                Ok(PutOutcome::Changed)
            }
            Err(e) if is_unsupported(&e) => Ok(PutOutcome::Unsupported),
            Err(e) => Err(self.put_error(e)),
        }
    }
}

#[async_trait]
impl ReadStore for Remote {
    async fn list(&self, folder: &str) -> Result<Listing, StoreError> {
        let path = self.path(folder)?;
        let list = || self.client.list_with_delimiter(Some(&path));
        let (listed, unusable) = self.list_retrying(list).await?;
        let name = |path: &Path| path.filename().map(str::to_owned);
        Ok(Listing {
            folders: listed.common_prefixes.iter().filter_map(name).collect(),
            objects: listed
                .objects
                .iter()
                .filter_map(|it| name(&it.location))
                .collect(),
            unusable,
        })
    }

    async fn keys(&self, folder: &str, keep: KeyFilter) -> Result<KeyList, StoreError> {
        let path = self.path(folder)?;
        let list = || {
            let keys = self.client.list(Some(&path));
            let keys = keys.try_filter_map(|it| {
                let key = self.key_of(&it.location).filter(|key| keep(key));
                let written_ns = written_ns(&it);
                future::ok(key.map(|key| StoredKey { key, written_ns }))
            });
            keys.try_collect::<Vec<_>>().boxed()
        };
        let (keys, unusable) = self.list_retrying(list).await?;
        Ok(KeyList { keys, unusable })
    }

    async fn read(&self, key: &str, part: Range<u64>) -> Result<(Bytes, u64), StoreError> {
        let path = self.path(key)?;
        let most = part.end.saturating_sub(part.start);
        let options = GetOptions {
            range: Some(GetRange::Bounded(part)),
            ..GetOptions::default()
        };
        let got = self.client.get_opts(&path, options).await;
        let got = got.map_err(|e| self.store_error(e))?;
        let len = got.meta.size;
        let bytes = self.content(key, got, most).await?;
        Ok((bytes, len))
    }

    async fn length(&self, key: &str) -> Result<u64, StoreError> {
        self.head(key).await.map(|it| it.bytes)
    }
}

#[cfg(test)]
impl Remote {
    /// Makes a bucket store from any other store of the crate `object_store`.
    pub(crate) fn with_client(client: impl ObjectStore + MultipartStore) -> Self {
        Self {
            client: boxed(client),
            prefix: "some/where".into(),
            by_generation: false,
            parts_have_metadata: true,
            retries: Retries::default(),
            hint: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_no_request_can_have_are_refused() {
        let check = |name: &str, value: &str| {
            let variable = || [(name.into(), value.into())];
            check_environment(Cloud::S3, variable())?;
            check_environment(Cloud::Google, variable())?;
            check_environment(Cloud::Azure, variable())
        };
        for (name, value) in [
            ("AWS_REGION", "eu-central-1"),
            ("AWS_ENDPOINT_URL", "http://[::1]:9000"),
            (
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "/v2/credentials/1",
            ),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", "{\n}"),
            ("HOME", "a\nb"),
        ] {
            check(name, value).expect(value);
        }
        for value in [
            "http://[::1",
            "file:///etc",
            "http://127.0.0.1:99999",
            "store:9000",
            "",
        ] {
            for name in [
                "IDENTITY_ENDPOINT",
                "AWS_ENDPOINT_URL",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                "GOOGLE_BASE_URL",
                "AZURE_STORAGE_ENDPOINT",
                "AZURE_AUTHORITY_HOST",
            ] {
                let problem = check(name, value).expect_err(value);
                assert!(
                    matches!(problem, StoreOpenProblem::Endpoint(_)),
                    "{name} = {value}"
                );
            }
        }
        for (name, value) in [
            ("AWS_SESSION_TOKEN", "a\nb"),
            ("AWS_REGION", "\u{1b}[31m"),
            ("GOOGLE_BUCKET", "\u{202e}"),
            ("AZURE_CLIENT_ID", "a\nb"),
        ] {
            let problem = check(name, value).expect_err(value);
            assert!(
                matches!(problem, StoreOpenProblem::Characters(_)),
                "{value}"
            );
        }
    }
}
