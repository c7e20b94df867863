//! Handling of a full disk: its duration, and the times of further attempts. Meanwhile frames fill the
//! write buffers, as with a slow disk.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// First pause between two attempts to write to a full disk. Each pause is twice as long as the
/// previous one, up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(100);
/// Longest pause between two attempts to write to a full disk.
const LONGEST: Duration = Duration::from_secs(1);
/// Longest wait for a full disk at the end of a run.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns `true` if the write error means that the disk or a quota is full, which may change.
pub(super) fn is_no_space(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// State of the writer's wait while the disk stays full.
#[derive(Debug)]
pub(super) struct DiskFull {
    began: Instant,
    /// Time of the next attempt to write to the full disk; `None`: an attempt is in progress.
    next: Option<Instant>,
    /// Last pause between two attempts to write to the full disk.
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

    /// Returns `true` during a pause between attempts to write to the full disk, `false` during an
    /// attempt.
    pub(super) fn waits(&self) -> bool {
        self.next.is_some()
    }

    /// Returns the remaining time of the pause between two attempts to write to the full disk.
    pub(super) fn remaining(&self, now: Instant) -> Duration {
        let next = self.next.unwrap_or(now);
        next.saturating_duration_since(now)
    }

    /// Begins an attempt to write to the full disk.
    pub(super) fn begin_attempt(&mut self) {
        self.next = None;
    }

    /// Records a failed write to the full disk. Several writes may fail in one attempt; the next
    /// pause begins with the first failure.
    pub(super) fn record_failure(&mut self, now: Instant) {
        if self.next.is_none() {
            self.pause = (self.pause * 2).min(LONGEST);
            self.next = Some(now + self.pause);
        }
    }

    /// Returns the time since the disk became full.
    pub(super) fn lasted(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }
}

/// Deadline for writing at the end of a run, shared with the writer thread.
#[derive(Debug, Default)]
pub(super) struct ShutdownDeadline {
    /// Time at which the end of the run began.
    begun: OnceLock<Instant>,
    /// Flag that another thread sets when writing is given up.
    given_up: OnceLock<Arc<AtomicBool>>,
}

impl ShutdownDeadline {
    pub(super) fn begin(&self) {
        let _ = self.begun.set(Instant::now());
    }

    pub(super) fn give_up_on(&self, flag: Arc<AtomicBool>) {
        let _ = self.given_up.set(flag);
    }

    /// Returns `true` if no further write block is to be written.
    pub(super) fn has_given_up(&self) -> bool {
        self.given_up
            .get()
            .is_some_and(|it| it.load(Ordering::Relaxed))
    }

    /// Returns `true` if the writer must not wait for a full disk any more.
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
    fn pauses_grow_to_a_second_and_an_attempt_counts_once() {
        let start = Instant::now();
        let mut disk_full = DiskFull::begin(start);
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..6 {
            assert!(disk_full.waits());
            pauses.push(disk_full.remaining(now).as_millis());
            now += disk_full.remaining(now);
            assert_eq!(disk_full.remaining(now), Duration::ZERO);
            disk_full.begin_attempt();
            assert!(!disk_full.waits());
            for _ in 0..16 {
                disk_full.record_failure(now);
            }
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        assert_eq!(disk_full.lasted(now), Duration::from_millis(3500));
    }

    #[test]
    fn the_wait_for_a_full_disk_ends_only_after_the_end_of_the_run_began() {
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
