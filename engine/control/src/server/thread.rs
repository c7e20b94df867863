//! Thread of one server.

use super::{StartError, mailbox::Mailbox};
use rustix::event::{PollFd, Timespec, poll};
use std::{sync::Arc, thread::JoinHandle, time::Duration};

/// Thread of one transport of the control service, with the mailbox that wakes it. Dropping it ends
/// the thread.
pub struct ServerThread {
    mailbox: Arc<Mailbox>,
    handle: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Starts a transport's thread that calls `run`, which must return soon after `Mailbox::end`.
    ///
    /// # Errors
    /// The system cannot start the thread.
    pub fn start(
        name: &str,
        mailbox: Arc<Mailbox>,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<Self, StartError> {
        let handle = std::thread::Builder::new()
            .name(name.into())
            .spawn(run)
            .map_err(|source| StartError::System {
                what: format!("cannot start the thread {name}"),
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

/// Waits until one of the file descriptors `fds` is ready or `timeout` has passed. Also returns
/// after an interruption, and the caller then runs another round.
pub fn poll_for(fds: &mut [PollFd<'_>], timeout: Duration) {
    let timeout = Timespec::try_from(timeout).unwrap_or(Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    });
    let _ = poll(fds, Some(&timeout));
}
