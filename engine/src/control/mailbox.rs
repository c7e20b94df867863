//! Where other threads leave answers for a server's thread, and wake it.

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

/// A client's number, never used twice by one server.
pub type Token = u64;

/// A server's letter box.
#[derive(Debug)]
pub struct Mailbox {
    mails: Mutex<Vec<(Token, String)>>,
    bell: OwnedFd,
    end: AtomicBool,
}

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// No descriptor can be had.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            mails: Mutex::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            end: AtomicBool::new(false),
        })
    }

    /// Leaves the text of an answer for a client. The number of answers that wait is bounded by what clients may have
    /// outstanding.
    pub fn put(&self, token: Token, text: String) {
        let mut mails = self.mails.lock().unwrap_or_else(PoisonError::into_inner);
        mails.push((token, text));
        drop(mails);
        self.ring();
    }

    /// All there is.
    pub fn take(&self) -> Vec<(Token, String)> {
        let mut count = [0; 8];
        // Nothing to read: nobody rang.
        let _ = io::read(&self.bell, &mut count);
        std::mem::take(&mut *self.mails.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells the server's thread to end.
    pub fn end(&self) {
        self.end.store(true, Ordering::Release);
        self.ring();
    }

    /// Whether the thread is to end.
    pub fn is_ending(&self) -> bool {
        self.end.load(Ordering::Acquire)
    }

    fn ring(&self) {
        // It can only fail when the counter is full: then the bell rings already.
        let _ = io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

impl AsFd for Mailbox {
    /// Readable when there is mail.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
