//! A disk without room: how long, and when it is worth another try. Frames go on into the write buffers meanwhile, as
//! with a disk that is slow.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The first pause between two tries; each is twice as long as the one before it, up to the longest.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(1);
/// How long the end of a run waits for room.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether an error says that there is no room, which may come back.
pub(super) fn is_no_space(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// A want of room that lasts.
#[derive(Debug)]
pub(super) struct DiskFull {
    began: Instant,
    /// When to try again; `None`: a try is under way.
    next: Option<Instant>,
    pause: Duration,
}

impl DiskFull {
    pub(super) fn begin(now: Instant) -> Self {
        Self {
            began: now,
            next: Some(now + FIRST),
            pause: FIRST,
        }
    }

    /// Whether everything waits; else something is tried.
    pub(super) fn waits(&self) -> bool {
        self.next.is_some()
    }

    /// How long to wait.
    pub(super) fn rest(&self, now: Instant) -> Duration {
        let next = self.next.unwrap_or(now);
        next.saturating_duration_since(now)
    }

    /// A try begins.
    pub(super) fn try_again(&mut self) {
        self.next = None;
    }

    /// What was tried has failed. Many may fail in one try: the pause begins with the first.
    pub(super) fn goes_on(&mut self, now: Instant) {
        if self.next.is_none() {
            self.pause = (self.pause * 2).min(LONGEST);
            self.next = Some(now + self.pause);
        }
    }

    pub(super) fn lasted(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }
}

/// Tells the writer that the run is at its end.
#[derive(Debug, Default)]
pub(super) struct ShutdownDeadline {
    begun: OnceLock<Instant>,
    given_up: OnceLock<Arc<AtomicBool>>,
}

impl ShutdownDeadline {
    pub(super) fn begin(&self) {
        let _ = self.begun.set(Instant::now());
    }

    pub(super) fn give_up_on(&self, flag: Arc<AtomicBool>) {
        let _ = self.given_up.set(flag);
    }

    /// Whether nothing more is to be written.
    pub(super) fn has_given_up(&self) -> bool {
        self.given_up
            .get()
            .is_some_and(|it| it.load(Ordering::Relaxed))
    }

    /// Whether room is not waited for any more.
    pub(super) fn has_passed(&self, now: Instant) -> bool {
        let begun = self.begun.get();
        self.has_given_up()
            || begun.is_some_and(|begun| now.saturating_duration_since(*begun) >= PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_second_and_a_try_counts_once() {
        let start = Instant::now();
        let mut disk_full = DiskFull::begin(start);
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..6 {
            assert!(disk_full.waits());
            pauses.push(disk_full.rest(now).as_millis());
            now += disk_full.rest(now);
            assert_eq!(disk_full.rest(now), Duration::ZERO);
            disk_full.try_again();
            assert!(!disk_full.waits());
            for _ in 0..16 {
                disk_full.goes_on(now);
            }
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(disk_full.lasted(now), Duration::from_millis(3500));
    }

    #[test]
    fn patience_ends_only_after_the_end_was_told() {
        let deadline = ShutdownDeadline::default();
        let now = Instant::now();
        assert!(!deadline.has_passed(now + 10 * PATIENCE));
        deadline.begin();
        assert!(!deadline.has_passed(now + PATIENCE / 2));
        assert!(deadline.has_passed(Instant::now() + PATIENCE));
        let (full, other) = (libc::ENOSPC, libc::EIO);
        assert!(is_no_space(&io::Error::from_raw_os_error(full)));
        assert!(!is_no_space(&io::Error::from_raw_os_error(other)));
    }
}
