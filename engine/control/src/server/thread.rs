//! The thread of one server.

use super::{StartError, mailbox::Mailbox};
use std::{sync::Arc, thread::JoinHandle};

/// A server's thread and the mailbox that wakes it. The thread ends when this is dropped.
pub struct ServerThread {
    mailbox: Arc<Mailbox>,
    handle: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Starts a thread that calls `run`, which returns soon after the mailbox is asked to end.
    ///
    /// # Errors
    /// The system refuses the thread.
    pub fn start(
        name: &str,
        mailbox: Arc<Mailbox>,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<Self, StartError> {
        let handle = std::thread::Builder::new()
            .name(name.into())
            .spawn(run)
            .map_err(|source| StartError::System {
                what: format!("the thread {name}"),
                source,
            })?;
        Ok(Self {
            mailbox,
            handle: Some(handle),
        })
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.mailbox.end();
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}
