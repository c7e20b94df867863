//! Requests that are sent again, which crate `object_store` does by itself and tells nobody.
//!
//! A call of a store is a scope of its own, which knows the request that was sent last: the same one once more is another try.

use async_trait::async_trait;
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
        ReqwestConnector,
    },
};
use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

tokio::task_local! {
    /// Method and URI of what this call has sent last.
    static LAST: RefCell<String>;
}

/// A call of a store, whose requests are told apart.
pub(super) async fn call<T>(work: impl Future<Output = T>) -> T {
    LAST.scope(RefCell::default(), work).await
}

/// Counts requests that are sent again.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries(Arc<AtomicU64>);

impl Retries {
    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn note(&self, request: &HttpRequest) {
        let sent = format!("{} {}", request.method(), request.uri());
        let before = LAST.try_with(|last| last.replace(sent.clone()));
        if before.is_ok_and(|it| it == sent) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl HttpConnector for Retries {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Counted {
            client: ReqwestConnector::default().connect(options)?,
            retries: self.clone(),
        }))
    }
}

/// A client whose requests are looked at.
#[derive(Debug)]
struct Counted {
    client: HttpClient,
    retries: Retries,
}

#[async_trait]
impl HttpService for Counted {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.retries.note(&request);
        self.client.execute(request).await
    }
}
