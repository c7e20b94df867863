//! Counter of retried requests. The crate `object_store` retries requests itself and does not
//! report it.
//!
//! Each store call is a task-local scope that holds the last request: if the same request is sent
//! again, it is a retry.

use object_store::client::HttpRequest;
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

/// Runs a store call in a separate scope, so that retries of its requests are recognised.
pub(super) async fn call<T>(work: impl Future<Output = T>) -> T {
    LAST.scope(RefCell::default(), work).await
}

/// Counter of the retried requests of a store.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries(Arc<AtomicU64>);

impl Retries {
    /// Returns the number of store requests that were retried.
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts a request if it repeats the last one of its store call.
    pub(super) fn note(&self, request: &HttpRequest) {
        let sent = format!("{} {}", request.method(), request.uri());
        let before = LAST.try_with(|last| last.replace(sent.clone()));
        if before.is_ok_and(|it| it == sent) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
