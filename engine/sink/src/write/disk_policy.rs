//! Policy for a disk that is full, slow, broken or read-only: what follows from which error in which
//! state. The writer thread and [`super::disk`] carry out the decisions.
//!
//! | event | decision |
//! |---|---|
//! | a write or the creation of a file fails: ENOSPC, EDQUOT | the block waits, and the disk is tried again after 0.1 s, then after growing pauses up to 1 s; the log reports the beginning, a note the duration |
//! | the same, one second after the end of the run began, or writing was given up | as any other error |
//! | a write is short, or fails: EAGAIN, EBUSY, EINTR, ENOMEM | the rest is written once more, with a plain write |
//! | a write fails: EINVAL | the file leaves direct I/O, and the block is written once more |
//! | a write fails otherwise: EIO, EROFS, EFBIG, … | the block is lost, its file ends before it, the queue begins a new file, and the run ends with the failure |
//! | the creation of a file fails otherwise | the file's blocks are lost, the queue begins a new file, and the run ends with the failure |
//! | writing is given up | blocks that are not being written are lost, and their files end before them |
//! | io_uring_enter fails: EAGAIN, EBUSY, EINTR, ENOMEM | it is repeated after pauses of 1 ms, 2 ms and so on, at most eight times |
//! | io_uring_enter fails otherwise or more often | blocks are written one at a time, without the ring |
//! | a file cannot be opened in advance | it is created when it begins ([`super::preopen`]) |
//! | a complete file cannot be renamed: ENOSPC, EDQUOT | it waits, and is renamed every 0.2 s, until one second after the end of the run began ([`super::closer`]) |
//! | a file cannot be synced or truncated, or be renamed otherwise | its frames are lost, and it keeps its `.part` name ([`super::closer`]) |
//! | the disk is slow | no empty block returns to the sink, which waits or drops frames by `output.on_full` |
//!
//! This file makes no system calls. It gets error codes and times, so that its tests need no disk.

use std::{
    fmt, io, mem,
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
/// Longest sleep of the writer thread while the disk is full, so that it notices the run's end.
const NAP: Duration = Duration::from_millis(50);
/// Maximum number of consecutive transient failures of io_uring_enter. The pauses after them add up
/// to a quarter of a second.
const MOST_REFUSALS: u32 = 8;
/// Pause after the first transient failure of io_uring_enter. Each further pause is twice as long
/// as the previous one.
pub(super) const FIRST_RING_PAUSE: Duration = Duration::from_millis(1);

/// Class of an error of the disk: errors of one class have the same consequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskError {
    /// The disk or a quota is full, which may change.
    NoSpace,
    /// Temporary error: the call may succeed when it is repeated.
    Transient,
    /// The file system does not support direct I/O.
    NotDirect,
    /// Any other error: the call would fail again.
    Lasting,
}

impl From<&io::Error> for DiskError {
    fn from(e: &io::Error) -> Self {
        match e.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Self::NoSpace,
            Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOMEM) => Self::Transient,
            Some(libc::EINVAL) => Self::NotDirect,
            _ => Self::Lasting,
        }
    }
}

/// Decision of the policy after the first write of a block.
#[derive(Debug)]
pub(super) enum WriteDecision {
    /// The block is written again from byte `from`, with plain writes. With `leaves_direct` the file
    /// leaves direct I/O before.
    Repeat { from: usize, leaves_direct: bool },
    /// The block is not written again now; the value is the outcome of its write.
    End(WriteEnd),
}

/// Decision of the policy on a block at the end of its write.
#[derive(Debug)]
pub(super) enum WriteEnd {
    /// The block is on the disk. The notice is present if the disk had been full.
    Done(Option<DiskNotice>),
    /// The block is kept until the next attempt. The notice is present if the disk was not full
    /// before.
    Keep(io::Error, Option<DiskNotice>),
    /// The block is lost. Its file ends before the block, and its queue begins a new file.
    Lose(io::Error),
}

/// Decision of the policy after a file could not be created.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CreateDecision {
    /// The file's first block is kept until the next attempt. The notice is present if the disk was
    /// not full before.
    Keep(Option<DiskNotice>),
    /// The file's blocks are lost, and its queue begins a new file.
    Lose,
}

/// Decision of the policy after a call of io_uring_enter.
#[derive(Debug)]
pub(super) enum RingDecision {
    /// The call of io_uring_enter succeeded, and writing through the ring continues.
    Continue,
    /// The failed call of io_uring_enter is repeated after a pause.
    Repeat(io::Error, Duration),
    /// Blocks are written without io_uring from now on, because of this error.
    Leave(io::Error),
}

/// Notice for the user about a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskNotice {
    /// The disk has become full: writing pauses.
    Full,
    /// The disk was full for a time, and has room again or the run has ended.
    WasFull { lasted: Duration },
}

impl fmt::Display for DiskNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str(
                "the writer is waiting for room; frames fill the write buffers meanwhile, then output.on_full applies",
            ),
            Self::WasFull { lasted } => write!(
                f,
                "output.dir: there was no room for {:.1} s on the disk; frames without a free write buffer were \
                 counted as dropped_storage, or waited (output.on_full)",
                lasted.as_secs_f64()
            ),
        }
    }
}

/// State of the disk, as the results of writes show it.
#[derive(Clone, Copy, Debug, Default)]
enum DiskState {
    /// The last write did not fail because of a full disk.
    #[default]
    Ready,
    /// The disk is full since `since`. The next attempt to write begins at `next`, `pause` after the
    /// last one.
    Full {
        since: Instant,
        pause: Duration,
        next: Instant,
    },
    /// An attempt to write to the full disk is in progress.
    Trying { since: Instant, pause: Duration },
}

/// Policy of a writer thread, with the state of its disk.
#[derive(Debug)]
pub(super) struct DiskPolicy {
    disk: DiskState,
    deadline: Arc<ShutdownDeadline>,
}

impl DiskPolicy {
    /// Creates the policy for a disk that is not full, in a run that ends at `deadline`.
    pub(super) fn new(deadline: Arc<ShutdownDeadline>) -> Self {
        Self {
            disk: DiskState::Ready,
            deadline,
        }
    }

    /// Decides after the first write of a block of `want` bytes whether the block is finished,
    /// written again, kept or lost. `result` is the number of bytes written, or the error.
    pub(super) fn after_write(
        &mut self,
        result: io::Result<usize>,
        want: usize,
        now: Instant,
    ) -> WriteDecision {
        let (from, leaves_direct) = match result.as_ref().map_err(DiskError::from) {
            Ok(written) if *written == want => {
                return WriteDecision::End(self.after_repeat(Ok(()), now));
            }
            Ok(written) => (*written, false),
            Err(DiskError::Transient) => (0, false),
            Err(DiskError::NotDirect) => (0, true),
            Err(DiskError::NoSpace | DiskError::Lasting) => {
                return WriteDecision::End(self.after_repeat(result.map(|_| ()), now));
            }
        };
        WriteDecision::Repeat {
            from,
            leaves_direct,
        }
    }

    /// Decides after the second write of a block whether the block is finished, kept until the disk
    /// has room, or lost.
    pub(super) fn after_repeat(&mut self, result: io::Result<()>, now: Instant) -> WriteEnd {
        match result {
            Ok(()) => WriteEnd::Done(self.record_success(now)),
            Err(e) if self.waits_after((&e).into(), now) => {
                WriteEnd::Keep(e, self.record_full(now))
            }
            Err(e) => WriteEnd::Lose(e),
        }
    }

    /// Decides after a file could not be created whether its first block is kept until the disk has
    /// room, or its blocks are lost.
    pub(super) fn after_create(&mut self, error: DiskError, now: Instant) -> CreateDecision {
        match self.waits_after(error, now) {
            true => CreateDecision::Keep(self.record_full(now)),
            false => CreateDecision::Lose,
        }
    }

    /// Returns `true` if blocks are kept after an error until the disk has room.
    fn waits_after(&self, error: DiskError, now: Instant) -> bool {
        error == DiskError::NoSpace && !self.deadline.has_passed(now)
    }

    /// Records a write that failed because the disk is full. Several writes may fail in one attempt;
    /// the next pause begins with the first failure.
    fn record_full(&mut self, now: Instant) -> Option<DiskNotice> {
        let (since, pause, notice) = match self.disk {
            DiskState::Ready => (now, FIRST, Some(DiskNotice::Full)),
            DiskState::Trying { since, pause } => (since, (pause * 2).min(LONGEST), None),
            DiskState::Full { .. } => return None,
        };
        let next = now + pause;
        self.disk = DiskState::Full { since, pause, next };
        notice
    }

    /// Records a successful write. One that was begun before the disk became full changes nothing.
    fn record_success(&mut self, now: Instant) -> Option<DiskNotice> {
        match self.disk {
            DiskState::Trying { .. } => self.end_wait(now),
            DiskState::Ready | DiskState::Full { .. } => None,
        }
    }

    /// Ends the wait for a full disk, if there is one, because a write succeeded or the run has
    /// ended.
    pub(super) fn end_wait(&mut self, now: Instant) -> Option<DiskNotice> {
        match mem::take(&mut self.disk) {
            DiskState::Ready => None,
            DiskState::Full { since, .. } | DiskState::Trying { since, .. } => {
                let lasted = now.saturating_duration_since(since);
                Some(DiskNotice::WasFull { lasted })
            }
        }
    }

    /// Begins the next attempt to write to the full disk if it is due, or if the writer must not
    /// wait any more. Returns `true` if it begins: kept blocks are written then.
    pub(super) fn begin_attempt(&mut self, now: Instant) -> bool {
        match self.disk {
            DiskState::Full { since, pause, next }
                if next <= now || self.deadline.has_passed(now) =>
            {
                self.disk = DiskState::Trying { since, pause };
                true
            }
            _ => false,
        }
    }

    /// Returns `true` during the pause between two attempts to write to a full disk: no write is
    /// started then.
    pub(super) fn pauses(&self) -> bool {
        matches!(self.disk, DiskState::Full { .. })
    }

    /// Returns the time for which the writer thread sleeps when all write blocks that are left wait
    /// for room on a full disk. `None`: the disk is not full.
    pub(super) fn nap(&self, now: Instant) -> Option<Duration> {
        match self.disk {
            DiskState::Ready => None,
            DiskState::Trying { .. } => Some(Duration::ZERO),
            DiskState::Full { next, .. } => Some(next.saturating_duration_since(now).min(NAP)),
        }
    }

    /// Returns `true` if writing was given up: no further block is to be written.
    pub(super) fn has_given_up(&self) -> bool {
        self.deadline.has_given_up()
    }
}

/// Use of io_uring for writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingUse {
    /// Blocks of several queues are written by the ring, whose last calls of io_uring_enter failed
    /// `refusals` times.
    Used { refusals: u32 },
    /// The ring is only polled for the completions of writes that the kernel has taken.
    Left,
}

impl RingUse {
    /// Decides after a call of io_uring_enter whether writing continues, the call is repeated, or
    /// blocks are written without io_uring. The first of several pauses is `first_pause`.
    pub(super) fn after_enter(
        &mut self,
        result: io::Result<()>,
        first_pause: Duration,
    ) -> RingDecision {
        let refusals = match *self {
            Self::Used { refusals } => refusals,
            Self::Left => MOST_REFUSALS,
        };
        match result {
            Ok(()) => {
                if let Self::Used { refusals } = self {
                    *refusals = 0;
                }
                RingDecision::Continue
            }
            Err(e) if DiskError::from(&e) == DiskError::Transient && refusals < MOST_REFUSALS => {
                let refusals = refusals + 1;
                *self = Self::Used { refusals };
                RingDecision::Repeat(e, first_pause * (1 << (refusals - 1)))
            }
            Err(e) => {
                *self = Self::Left;
                RingDecision::Leave(e)
            }
        }
    }
}

/// Deadline for writing at the end of a run, shared with the writer thread and the closer.
#[derive(Debug, Default)]
pub(super) struct ShutdownDeadline {
    /// Time at which the end of the run began.
    begun: OnceLock<Instant>,
    /// Flag that another thread sets when writing is given up.
    given_up: OnceLock<Arc<AtomicBool>>,
}

impl ShutdownDeadline {
    /// Records that the end of the run begins, unless it has begun already.
    pub(super) fn begin(&self, now: Instant) {
        let _ = self.begun.set(now);
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

    /// Returns the time at which the end of the run began; `None`: it has not begun.
    pub(super) fn begun(&self) -> Option<Instant> {
        self.begun.get().copied()
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

    const WANT: usize = 8192;
    const MS: Duration = Duration::from_millis(1);

    fn error(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }

    fn policy() -> DiskPolicy {
        DiskPolicy::new(Arc::default())
    }

    /// Returns the end of a write in short: what happens, and with which notice.
    fn end(end: &WriteEnd) -> &'static str {
        match end {
            WriteEnd::Done(None) => "done",
            WriteEnd::Done(Some(_)) => "done, note",
            WriteEnd::Keep(_, None) => "keep",
            WriteEnd::Keep(_, Some(_)) => "keep, log",
            WriteEnd::Lose(_) => "lose",
        }
    }

    /// Returns the decision after a write in short.
    fn short(decision: &WriteDecision) -> &'static str {
        match decision {
            WriteDecision::Repeat {
                from: 0,
                leaves_direct: true,
            } => "repeat without direct I/O",
            WriteDecision::Repeat { from: 0, .. } => "repeat",
            WriteDecision::Repeat { .. } => "repeat the rest",
            WriteDecision::End(it) => end(it),
        }
    }

    #[test]
    fn each_error_of_a_write_has_its_decision_in_each_phase_of_the_run() {
        // The result of the write; the decision during the run, and after the wait for a full disk.
        let table = [
            (Ok(WANT), "done", "done"),
            (Ok(0), "repeat", "repeat"),
            (Ok(5000), "repeat the rest", "repeat the rest"),
            (Err(libc::EAGAIN), "repeat", "repeat"),
            (Err(libc::EBUSY), "repeat", "repeat"),
            (Err(libc::EINTR), "repeat", "repeat"),
            (Err(libc::ENOMEM), "repeat", "repeat"),
            (
                Err(libc::EINVAL),
                "repeat without direct I/O",
                "repeat without direct I/O",
            ),
            (Err(libc::ENOSPC), "keep, log", "lose"),
            (Err(libc::EDQUOT), "keep, log", "lose"),
            (Err(libc::EIO), "lose", "lose"),
            (Err(libc::EROFS), "lose", "lose"),
            (Err(libc::EFBIG), "lose", "lose"),
        ];
        let now = Instant::now();
        let given_up = Arc::new(ShutdownDeadline::default());
        given_up.give_up_on(Arc::new(AtomicBool::new(true)));
        for (result, during, after) in table {
            let decide = |policy: &mut DiskPolicy, now| {
                short(&policy.after_write(result.map_err(error), WANT, now))
            };
            assert_eq!(decide(&mut policy(), now), during, "{result:?}");
            let mut ending = policy();
            ending.deadline.begin(now);
            assert_eq!(decide(&mut ending, now + PATIENCE - MS), during);
            let mut ended = policy();
            ended.deadline.begin(now);
            assert_eq!(decide(&mut ended, now + PATIENCE), after, "{result:?}");
            let mut policy = DiskPolicy::new(Arc::clone(&given_up));
            assert!(policy.has_given_up());
            assert_eq!(decide(&mut policy, now), after, "{result:?}");
        }
    }

    #[test]
    fn a_repeated_write_is_not_repeated_again() {
        let now = Instant::now();
        for (result, decision) in [
            (Ok(()), "done"),
            (Err(libc::EAGAIN), "lose"),
            (Err(libc::EINVAL), "lose"),
            (Err(libc::EIO), "lose"),
            (Err(libc::ENOSPC), "keep, log"),
        ] {
            let decided = policy().after_repeat(result.map_err(error), now);
            assert_eq!(end(&decided), decision, "{result:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_created_waits_for_room_only() {
        let now = Instant::now();
        let mut disk = policy();
        for other in [
            DiskError::Transient,
            DiskError::NotDirect,
            DiskError::Lasting,
        ] {
            assert_eq!(disk.after_create(other, now), CreateDecision::Lose);
        }
        let first = disk.after_create(DiskError::NoSpace, now);
        assert_eq!(first, CreateDecision::Keep(Some(DiskNotice::Full)));
        let next = disk.after_create(DiskError::NoSpace, now);
        assert_eq!(next, CreateDecision::Keep(None), "reported once");
        disk.deadline.begin(now);
        let late = disk.after_create(DiskError::NoSpace, now + PATIENCE);
        assert_eq!(late, CreateDecision::Lose);
    }

    #[test]
    fn pauses_grow_to_a_second_and_an_attempt_counts_once() {
        let start = Instant::now();
        let mut disk = policy();
        assert_eq!(disk.nap(start), None);
        let write = |disk: &mut DiskPolicy, result: Result<usize, i32>, now| {
            short(&disk.after_write(result.map_err(error), WANT, now))
        };
        assert_eq!(write(&mut disk, Err(libc::ENOSPC), start), "keep, log");
        let mut now = start;
        for pause in [100, 200, 400, 800, 1000, 1000].map(|it| it * MS) {
            assert!(disk.pauses());
            assert_eq!(disk.nap(now), Some(NAP));
            assert_eq!(write(&mut disk, Ok(WANT), now), "done", "begun before");
            now += pause - MS;
            assert!(!disk.begin_attempt(now));
            assert_eq!(disk.nap(now), Some(MS));
            now += MS;
            assert!(disk.begin_attempt(now) && !disk.begin_attempt(now));
            assert!(!disk.pauses());
            assert_eq!(disk.nap(now), Some(Duration::ZERO));
            for _ in 0..16 {
                assert_eq!(write(&mut disk, Err(libc::ENOSPC), now), "keep");
            }
        }
        // The end of the run's wait begins an attempt before its time.
        disk.deadline.begin(now - PATIENCE);
        assert!(disk.begin_attempt(now));
        let WriteEnd::Done(notice) = disk.after_repeat(Ok(()), now) else {
            panic!("the write succeeded");
        };
        let lasted = 3500 * MS;
        assert_eq!(notice, Some(DiskNotice::WasFull { lasted }));
        assert_eq!(disk.end_wait(now), None);
    }

    #[test]
    fn the_ring_is_left_after_a_lasting_error_or_too_many_transient_ones() {
        let mut ring = RingUse::Used { refusals: 0 };
        let mut pause = |result: Result<(), i32>| match ring.after_enter(result.map_err(error), MS)
        {
            RingDecision::Continue => Some(Duration::ZERO),
            RingDecision::Repeat(_, pause) => Some(pause),
            RingDecision::Leave(_) => None,
        };
        for code in [libc::EAGAIN, libc::EBUSY, libc::EINTR, libc::ENOMEM] {
            let pauses: Vec<_> = (0..MOST_REFUSALS).map(|_| pause(Err(code))).collect();
            let want = [1, 2, 4, 8, 16, 32, 64, 128].map(|it| Some(it * MS));
            assert_eq!(pauses, want);
            assert_eq!(pause(Ok(())), Some(Duration::ZERO));
        }
        for _ in 0..MOST_REFUSALS {
            assert!(pause(Err(libc::EBUSY)).is_some());
        }
        assert_eq!(pause(Err(libc::EBUSY)), None);
        assert_eq!(ring, RingUse::Left);
        for code in [libc::EPERM, libc::ENOSPC, libc::EINVAL] {
            let mut ring = RingUse::Used { refusals: 0 };
            let left = ring.after_enter(Err(error(code)), MS);
            assert!(matches!(left, RingDecision::Leave(_)), "{code}");
            assert_eq!(ring, RingUse::Left);
        }
    }
}
