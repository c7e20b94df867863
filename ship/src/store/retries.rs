//! Counter of retried requests. The crate `object_store` retries requests itself and does not
//! report it.
//!
//! Each store call is a task-local scope that holds the last request: if the same request is sent
//! again, it is a retry.

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
    /// Method and URI of the last HTTP request of this store call.
    static LAST: RefCell<String>;
}

/// Runs a store call in its own scope, so that retries of its requests are recognised.
pub(super) async fn call<T>(work: impl Future<Output = T>) -> T {
    LAST.scope(RefCell::default(), work).await
}

/// Counter of the retried requests of a store.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries(Arc<AtomicU64>);

impl Retries {
    /// Returns the number of retried requests.
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

/// HTTP client that counts retried requests.
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
