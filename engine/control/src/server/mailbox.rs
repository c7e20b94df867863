//! Queue of answers from other threads to a server's thread, which it wakes.

use rustix::{
    event::{EventfdFlags, eventfd},
    io,
};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Number that identifies a client of the control service; a server never reuses a number.
pub type ClientId = u64;

/// Mailbox of answers from other threads, which a server's thread sends to its clients.
#[derive(Debug)]
pub struct Mailbox {
    answers: Mutex<Vec<(ClientId, String)>>,
    event: OwnedFd,
    ending: AtomicBool,
}

impl Mailbox {
    /// Creates an empty mailbox of answers.
    ///
    /// # Errors
    /// No file descriptor is available for the mailbox.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            answers: Mutex::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            ending: AtomicBool::new(false),
        })
    }

    /// Adds an answer for a client to the mailbox, and wakes the server's thread. The number of
    /// queued answers is limited by the changes that clients may have pending.
    pub fn push(&self, client: ClientId, text: String) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push((client, text));
        drop(answers);
        self.wake();
    }

    /// Takes all queued answers to clients out of the mailbox.
    pub fn take(&self) -> Vec<(ClientId, String)> {
        let mut count = [0; 8];
        // An error means that no event was pending.
        let _ = io::read(&self.event, &mut count);
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Requests the end of the server's thread, and wakes it.
    pub fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.wake();
    }

    /// Returns `true` if the end of the server's thread was requested.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    fn wake(&self) {
        // The write fails only if the counter is full; the descriptor is then already readable.
        let _ = io::write(&self.event, &1u64.to_ne_bytes());
    }
}

impl AsFd for Mailbox {
    /// Returns a file descriptor that is readable if the mailbox has an answer, or if the server's
    /// thread is to end.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
