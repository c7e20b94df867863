//! Starts the named threads of the sinks.

use crate::Error;
use std::thread::JoinHandle;

/// Starts a thread.
///
/// # Errors
/// The system has no thread left.
pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(run)
        .map_err(|source| Error::System {
            what: format!("the thread {name}"),
            source,
        })
}
