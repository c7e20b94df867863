//! The thread of one server.

use super::{StartError, mailbox::Mailbox};
use rustix::event::{PollFd, Timespec, poll};
use std::{sync::Arc, thread::JoinHandle, time::Duration};

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

/// Sleeps until one of these is ready, or `rest` has passed; after an interruption the caller goes round once more.
pub fn poll_for(fds: &mut [PollFd<'_>], rest: Duration) {
    let rest = Timespec::try_from(rest).unwrap_or(Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    });
    let _ = poll(fds, Some(&rest));
}
