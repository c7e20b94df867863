//! Waiting for descriptors, and wake-ups of the thread that owns a capture and sleeps until an
//! event.
//!
//! Invariant: a flag is set before the owner is woken, so an owner that checks the flag after
//! waking sees it.

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io,
};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Handle that wakes the thread that owns a capture, from any thread.
///
/// The default has no descriptor and wakes no thread: the owner notices events at its next check.
#[derive(Clone, Debug, Default)]
pub struct Wakeup(Option<Arc<OwnedFd>>);

impl Wakeup {
    /// Creates an eventfd on which the capture's owner waits.
    ///
    /// # Errors
    /// The process has no further descriptor (EMFILE, ENFILE) or memory.
    pub fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Some(Arc::new(fd))))
    }

    /// Wakes the capture's owner, or ends its next wait at once. Several wake-ups before a wait
    /// count as one.
    pub fn wake(&self) {
        if let Some(fd) = &self.0 {
            // The write fails when the counter is full. A wake-up is then pending already.
            let _ = io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Returns `true` if the capture's owner was woken since the last call.
    pub fn take(&self) -> bool {
        let mut count = [0; 8];
        (self.0.as_ref()).is_some_and(|fd| io::read(fd, &mut count).is_ok())
    }

    /// Waits until `fd` is readable or the capture's owner is woken. Returns `false` on a timeout
    /// or a signal.
    pub fn wait_readable(&self, fd: BorrowedFd<'_>, timeout: Duration) -> bool {
        let poll = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        match &self.0 {
            Some(own) => wait_for(&mut [poll(fd), poll(own.as_fd())], timeout),
            None => wait_readable(fd, timeout),
        }
    }

    /// Waits until the capture's owner is woken or one of `fds` is readable. Returns `false` on a
    /// timeout or a signal.
    pub fn wait<'f>(
        &'f self,
        fds: impl IntoIterator<Item = BorrowedFd<'f>>,
        timeout: Duration,
    ) -> bool {
        let own = self.0.as_ref().map(|own| own.as_fd());
        let mut fds: Vec<_> = fds
            .into_iter()
            .chain(own)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if fds.is_empty() {
            std::thread::sleep(timeout);
            return false;
        }
        wait_for(&mut fds, timeout)
    }
}

/// Waits until a file descriptor is readable. Returns `false` on a timeout or a signal.
pub fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    wait_for(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], timeout)
}

/// Polls file descriptors until one is ready. Returns `false` on a timeout or a signal.
fn wait_for(fds: &mut [PollFd<'_>], timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).ok();
    poll(fds, timeout.as_ref()).is_ok_and(|ready| ready > 0)
}

/// Alarm flag that wakes the capture's owner when it is set.
#[derive(Debug, Default)]
pub struct Alarm {
    /// `true` after the capture's alarm was raised.
    raised: AtomicBool,
    /// Wake-up of the capture's owner when the alarm is raised.
    owner: Wakeup,
}

impl Alarm {
    /// Creates an alarm that wakes the capture's owner through `owner`.
    pub fn new(owner: &Wakeup) -> Self {
        Self {
            raised: AtomicBool::new(false),
            owner: owner.clone(),
        }
    }

    /// Sets the alarm's flag and wakes the capture's owner.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.owner.wake();
    }

    /// Clears the alarm's flag. Returns `true` if the capture's alarm was raised.
    pub fn take(&self) -> bool {
        self.raised.swap(false, Ordering::AcqRel)
    }

    /// Returns `true` if the capture's alarm was raised.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Timeout that is not reached unless the test fails.
    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn an_alarm_ends_a_wait_and_wake_ups_are_one() {
        let owner = Wakeup::new().expect("a descriptor");
        let never = Wakeup::new().expect("a descriptor");
        let silent = never.0.as_ref().expect("an eventfd").as_fd();
        let alarm = Arc::new(Alarm::new(&owner));
        let began = Instant::now();
        let raising = std::thread::spawn({
            let alarm = Arc::clone(&alarm);
            move || alarm.raise()
        });
        assert!(owner.wait([silent], LONG), "not woken");
        assert!(began.elapsed() < LONG && alarm.is_raised());
        raising.join().expect("no panic");
        owner.wake();
        assert!(owner.take());
        assert!(!owner.take(), "two wake-ups are one");
        assert!(!owner.wait([silent], Duration::ZERO));
    }

    #[test]
    fn a_default_wakeup_still_waits_for_the_descriptor() {
        let none = Wakeup::default();
        none.wake();
        let event = Wakeup::new().expect("a descriptor");
        let fd = event.0.as_ref().expect("an eventfd").as_fd();
        assert!(!none.take() && !none.wait([fd], Duration::ZERO));
        event.wake();
        assert!(none.wait([fd], LONG));
    }
}
