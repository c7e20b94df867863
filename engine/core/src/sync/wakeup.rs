//! Waiting for descriptors, and what wakes the owner of a capture, who sleeps until something concerns it.
//!
//! Invariant: a flag is set before its owner is woken, so an owner that looks after waking sees it.

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

/// Wakes a capture's owner from any thread. The default wakes nobody: what happens is noticed at the owner's next check.
#[derive(Clone, Debug, Default)]
pub struct Wakeup(Option<Arc<OwnedFd>>);

impl Wakeup {
    /// With an eventfd, which the owner waits for.
    ///
    /// # Errors
    /// The process has no further descriptor (EMFILE, ENFILE) or memory.
    pub fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Some(Arc::new(fd))))
    }

    /// Wakes the owner, now or when it next waits. Wake-ups that come before that are one.
    pub fn wake(&self) {
        if let Some(fd) = &self.0 {
            // It fails when the counter is full: then the owner is awake, or about to be.
            let _ = io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Whether the owner was woken since the last time.
    pub fn take(&self) -> bool {
        let mut count = [0; 8];
        (self.0.as_ref()).is_some_and(|fd| io::read(fd, &mut count).is_ok())
    }

    /// Waits until it is woken, or `fd` is readable; false when the time is over, or a signal has come.
    pub fn wait(&self, fd: BorrowedFd<'_>, timeout: Duration) -> bool {
        // Without one of its own, the same descriptor twice.
        let own = self.0.as_ref().map_or(fd, |own| own.as_fd());
        let fds = [fd, own].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        wait_for(fds, timeout)
    }
}

/// Waits until a descriptor is readable; false when the time is over, or a signal has come.
pub fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    wait_for([PollFd::from_borrowed_fd(fd, PollFlags::IN)], timeout)
}

fn wait_for<const N: usize>(mut fds: [PollFd<'_>; N], timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).ok();
    poll(&mut fds, timeout.as_ref()).is_ok_and(|ready| ready > 0)
}

/// A flag, set once, that the capture's owner is to see at once.
#[derive(Debug, Default)]
pub struct Alarm {
    raised: AtomicBool,
    owner: Wakeup,
}

impl Alarm {
    /// One that wakes `owner`.
    pub fn of(owner: &Wakeup) -> Self {
        Self {
            raised: AtomicBool::new(false),
            owner: owner.clone(),
        }
    }

    /// Sets the flag and wakes the owner of the capture.
    pub fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.owner.wake();
    }

    /// `true` once [`Alarm::raise`] was called.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn an_alarm_ends_a_wait_and_wake_ups_are_one() {
        let owner = Wakeup::new().expect("a descriptor");
        let never = Wakeup::new().expect("a descriptor");
        let silent = never.0.as_ref().expect("there").as_fd();
        let alarm = Arc::new(Alarm::of(&owner));
        let began = Instant::now();
        let raising = std::thread::spawn({
            let alarm = Arc::clone(&alarm);
            move || alarm.raise()
        });
        assert!(owner.wait(silent, LONG), "not woken");
        assert!(began.elapsed() < LONG && alarm.is_raised());
        raising.join().expect("no panic");
        owner.wake();
        assert!(owner.take());
        assert!(!owner.take(), "two wake-ups are one");
        assert!(!owner.wait(silent, Duration::ZERO));
    }

    #[test]
    fn whoever_wakes_nobody_still_waits_for_the_descriptor() {
        let nobody = Wakeup::default();
        nobody.wake();
        let event = Wakeup::new().expect("a descriptor");
        let fd = event.0.as_ref().expect("there").as_fd();
        assert!(!nobody.take() && !nobody.wait(fd, Duration::ZERO));
        event.wake();
        assert!(nobody.wait(fd, LONG));
    }
}
