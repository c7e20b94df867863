//! HTTP client of a bucket: never follows a redirect, and bounds every response.
//!
//! A redirect could send signed requests and tokens to any host. The responses to lists are cleaned
//! of keys that `object_store` cannot represent, because it would refuse the whole page.

use super::{lists, retries::Retries, transfer::TransferClient};
use crate::{
    limits::{CONTENT, ERROR_BODY, RESPONSE},
    threads,
};
use async_trait::async_trait;
use futures_util::StreamExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use object_store::{
    ClientConfigKey, ClientOptions, Error,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpResponseBody, HttpService,
    },
};
use reqwest::{
    Certificate, NoProxy, Proxy, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use std::{
    error::Error as StdError,
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

/// Name of the HTTP header with the target of a redirect.
const LOCATION: &str = "location";

/// Reason why a response of a store is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResponseError {
    /// The store redirects a request. The host is empty if the target of the redirect is not a URL.
    #[error(
        "the store redirects the request to {host:?} (status {status}), and redirects are not followed; name that host as the store's endpoint if it is the right one"
    )]
    Redirect { status: u16, host: String },
    #[error("the store's response has more than {0} bytes, which is the limit")]
    TooLong(usize),
    #[error(transparent)]
    List(#[from] lists::ListError),
}

impl ResponseError {
    /// Returns the response error that caused an error of `object_store`, if there is one.
    pub(super) fn cause_of(e: &Error) -> Option<&Self> {
        let mut cause = e.source();
        while let Some(it) = cause {
            if let Some(found) = it.downcast_ref() {
                return Some(found);
            }
            cause = it.source();
        }
        None
    }
}

impl From<ResponseError> for HttpError {
    fn from(e: ResponseError) -> Self {
        // Errors of unknown kind are not retried.
        Self::new(HttpErrorKind::Unknown, e)
    }
}

/// Connector that makes the HTTP client of a bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct Connector {
    /// Counter of the bucket's retried requests.
    pub(super) retries: Retries,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |source| Error::Generic {
            store: "HTTP client",
            source,
        };
        let limit = duration(options, ClientConfigKey::Timeout).map_err(|e| failed(e.into()))?;
        Ok(HttpClient::new(BoundedClient {
            client: TransferClient {
                client: build(options).map_err(failed)?,
                limit: limit.unwrap_or(Duration::MAX),
            },
            retries: self.retries.clone(),
        }))
    }
}

/// Returns an option of `object_store` that is a time; `None`: it is not set.
fn duration(
    options: &ClientOptions,
    key: ClientConfigKey,
) -> Result<Option<Duration>, humantime::DurationError> {
    let value = options.get_config_value(&key);
    value.map(|it| humantime::parse_duration(&it)).transpose()
}

/// Makes an HTTP client with the options of `object_store`. It follows no redirect, and looks up
/// host names on this crate's own threads.
fn build(options: &ClientOptions) -> Result<reqwest::Client, Box<dyn StdError + Send + Sync>> {
    let value = |key: ClientConfigKey| options.get_config_value(&key);
    let is_set = |key| value(key).is_some_and(|it| it == "true");
    let agent = value(ClientConfigKey::UserAgent);
    let agent = agent.unwrap_or_else(|| concat!("wqcap/", env!("CARGO_PKG_VERSION")).into());
    let mut builder = reqwest::Client::builder()
        .redirect(Policy::none())
        .dns_resolver(Arc::new(Resolver))
        .user_agent(agent)
        .https_only(!is_set(ClientConfigKey::AllowHttp))
        .danger_accept_invalid_certs(is_set(ClientConfigKey::AllowInvalidCertificates));
    if let Some(proxy) = value(ClientConfigKey::ProxyUrl) {
        let excluded = value(ClientConfigKey::ProxyExcludes);
        let excluded = excluded.and_then(|it| NoProxy::from_string(&it));
        builder = builder.proxy(Proxy::all(proxy)?.no_proxy(excluded));
    }
    if let Some(certificate) = value(ClientConfigKey::ProxyCaCertificate) {
        let certificate = Certificate::from_pem(certificate.as_bytes())?;
        builder = builder.tls_certs_merge([certificate]);
    }
    if let Some(timeout) = duration(options, ClientConfigKey::ConnectTimeout)? {
        builder = builder.connect_timeout(timeout);
    }
    if let Some(timeout) = duration(options, ClientConfigKey::ReadTimeout)? {
        builder = builder.read_timeout(timeout);
    }
    if let Some(timeout) = duration(options, ClientConfigKey::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(timeout);
    }
    if let Some(most) = value(ClientConfigKey::PoolMaxIdlePerHost) {
        builder = builder.pool_max_idle_per_host(most.parse()?);
    }
    Ok(builder.http1_only().build()?)
}

/// Resolver of host names that blocks a thread of [`threads`] and no thread of the runtime.
struct Resolver;

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let look_up = move || -> std::io::Result<Vec<SocketAddr>> {
                // The client replaces the port.
                let mut found: Vec<_> = (name.as_str(), 0).to_socket_addrs()?.collect();
                // A store has many addresses: each client begins with another one.
                let mut random = [0];
                let _ = getrandom::fill(&mut random);
                let first = usize::from(random[0]) % found.len().max(1);
                found.rotate_left(first);
                Ok(found)
            };
            let found = threads::run(look_up).await.flatten()?;
            let found: Addrs = Box::new(found.into_iter());
            Ok(found)
        })
    }
}

/// HTTP client of a bucket that counts retried requests, refuses redirects and limits the length of
/// responses.
#[derive(Debug)]
struct BoundedClient {
    client: TransferClient,
    retries: Retries,
}

#[async_trait]
impl HttpService for BoundedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.retries.note(&request);
        let is_list = lists::is_list(&request);
        let limit = match request.method().as_str() {
            "GET" if !is_list => CONTENT,
            _ => RESPONSE,
        };
        let is_head = request.method().as_str() == "HEAD";
        let response = self.client.call(request).await?;
        let status = response.status();
        let (parts, body) = response.into_parts();
        // A redirect without a target is an error of `object_store`, which names the likely cause.
        if status.is_redirection()
            && let Some(target) = parts.headers.get(LOCATION)
        {
            let target = target.to_str().ok().and_then(|it| Url::parse(it).ok());
            let host = target.as_ref().and_then(Url::host_str);
            return Err(ResponseError::Redirect {
                status: status.as_u16(),
                host: host.unwrap_or_default().into(),
            }
            .into());
        }
        let body = if is_head {
            body
        } else if !status.is_success() {
            beginning(body, ERROR_BODY).await?.into()
        } else if is_list {
            let page = limited(body, limit).bytes().await?;
            let page = lists::clean(&page).map_err(ResponseError::from)?;
            page.into()
        } else {
            limited(body, limit)
        };
        Ok(HttpResponse::from_parts(parts, body))
    }
}

/// Limits a store's response to `most` bytes; a longer response is an error.
fn limited(body: HttpResponseBody, most: usize) -> HttpResponseBody {
    let error = move |e: Box<dyn StdError + Send + Sync>| {
        if e.is::<LengthLimitError>() {
            return ResponseError::TooLong(most).into();
        }
        match e.downcast::<HttpError>() {
            Ok(e) => *e,
            Err(e) => HttpError::new_boxed(HttpErrorKind::Unknown, e),
        }
    };
    HttpResponseBody::new(Limited::new(body, most).map_err(error))
}

/// Returns the first `most` bytes of a store's error response as text; the rest is not received.
async fn beginning(body: HttpResponseBody, most: usize) -> Result<String, HttpError> {
    let mut body = body.bytes_stream();
    let mut bytes = Vec::new();
    while bytes.len() < most
        && let Some(more) = body.next().await
    {
        let more = more?;
        bytes.extend_from_slice(&more[..more.len().min(most - bytes.len())]);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
