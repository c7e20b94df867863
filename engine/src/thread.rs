//! Starts the engine's named threads.

use crate::Error;
use std::thread::{Builder, JoinHandle};

/// Starts a thread.
///
/// # Errors
/// The system has no thread left.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let thread = Builder::new().name(name.into()).spawn(run);
    thread.map_err(|source| Error::System {
        what: format!("the thread {name}"),
        source,
    })
}
