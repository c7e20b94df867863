//! Retention: deletes the oldest finished files by `output.keep`, `keep_files`, `keep_age` and
//! `keep_free`.
//!
//! A subdirectory that becomes empty is deleted too.
//!
//! Pinned files stay, whatever the limits. They count towards the limits, which describe the disk, so
//! that unpinned files are deleted earlier. Pins are read at each check; a lock prevents new pins
//! between that and the deletions.
//!
//! Files that `wqcap ship` has not shipped yet are deleted last: while there are files that are shipped
//! according to its journal, those are deleted first, oldest first. The limits still apply, because the
//! disk cannot wait for the network. Each file deleted unshipped is recorded for the delivery ledger,
//! with the number of frames that this run or the index counted ([`wqcap_files::folder::expired`]).
//!
//! Invariants: only regular files with the name of a capture file are deleted, never an open file (its
//! name ends in `.part`) and never a link. With `output.name`, foreign files may have matching names, so
//! only the files of [`OwnFiles`] are deleted. The directory is listed again at each check, because a
//! hook or a user may have removed files meanwhile, and then fewer must be deleted. Retention runs in a
//! separate thread, and no block and no sync waits for it.
//!
//! The order of deletion does not trust a file's time alone: the clock may have been ahead when the file
//! was written, and all newer files would be deleted before it. Files of this run are ordered by their
//! end, on the clock that counts from boot. Other files are ordered by the time in their names, or with
//! `output.name` by their last write; a time more than [`AHEAD`] in the future counts as older than all.
//!
//! The age of a file is never computed from a clock that was just set. For a file of this run it is the
//! time since the file's end by the clock that counts from boot ([`FinishTimes`]). For a file of an
//! earlier run it is the time since its last write if that is between the time in its name and now, else
//! since the time in its name; it is used only once the system clock has been steady for [`STEADY`]. When
//! the clock is set, no file is deleted by age until the clock has been steady for as long.
//!
//! If the disk becomes full before `output.keep` is reached, the oldest files are deleted too: with a
//! limit configured, new frames have priority over old ones. The newest file always stays, whatever the
//! limits of size and number. Only `keep_age` applies to the newest file too.

use crate::{
    OutputPlan, Retention,
    outlook::{DiskRoom, FinishedFile, outlook},
    post::{
        gauge::{PinnedFiles, RetentionGauge},
        own_files::{OwnFile, OwnFiles, written},
        pinned::Pinned,
        unshipped::{FrameCounts, ShippingState},
    },
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rustix::fs::statvfs;
use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime},
};
use wqcap_core::{
    error::ResourceError,
    settings::{Keep, Size},
    sync::{
        thread::spawn,
        wall_clock::{Moment, StepWatch, boot_time},
    },
};
use wqcap_files::{
    folder::{held::remove_below, remove_emptied},
    name::FileName,
    pin::FolderLock,
    sealed::SecretKey,
};

/// Minimum interval between two retention checks of the output directory. With thousands of files a
/// check takes milliseconds.
const PAUSE: Duration = Duration::from_millis(100);

/// Interval of retention checks if limits can be exceeded without a new file: by age, or by other
/// data on the disk.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Time that the system clock must be steady before retention uses it for the age of files.
const STEADY: Duration = Duration::from_secs(60);

/// Maximum time by which another run's file may be in the future: the clock of a NIC may count TAI,
/// which is 37 s ahead of UTC.
const AHEAD: Duration = Duration::from_secs(60);

/// Times since boot at which this run's capture files were finished.
#[derive(Clone, Debug, Default)]
pub struct FinishTimes(Arc<Mutex<HashMap<PathBuf, Duration>>>);

impl FinishTimes {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Duration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, path: &Path, at: Duration) {
        self.lock().insert(path.to_owned(), at);
    }

    /// Returns the time of the system clock at `now` minus the time since the file's end; `None`: this
    /// run did not finish the file.
    fn ended(&self, path: &Path, now: Moment) -> Option<SystemTime> {
        let at = *self.lock().get(path)?;
        now.wall.checked_sub(now.boot.saturating_sub(at))
    }

    /// Removes the finish times of files that are not in the listing `there`, made at time
    /// `listed`, if most entries are of such files.
    fn forget_gone(&self, listed: Duration, there: &[RetentionCandidate]) {
        let mut times = self.lock();
        if times.len() > 2 * there.len() + 1024 {
            let there: HashSet<_> = there.iter().map(|it| it.path.as_path()).collect();
            times.retain(|path, at| *at >= listed || there.contains(path.as_path()));
        }
    }
}

/// Run that wrote a finished capture file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FinishedBy {
    /// The running capture wrote the file, with the file's number of frames if it is known.
    ThisRun { frames: Option<u64> },
    /// An earlier run wrote the file and left it unencrypted.
    AnEarlierRun,
}

/// Number and size of the files that the retention thread deleted.
#[derive(Debug, Default)]
pub(crate) struct DeletedFiles {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Number of deleted files that were not shipped; 0 if `ship.journal` is not set.
    pub(crate) unshipped: u64,
    /// Number of frames in the deleted unshipped files, as far as they were counted.
    pub(crate) unshipped_frames: u64,
    /// Number and size of the capture files that pins protected at the last retention check.
    pub(crate) pinned: PinnedFiles,
}

/// Sender of events to the retention thread.
#[derive(Clone)]
pub(crate) struct RetentionTrigger {
    /// Channel that wakes the retention thread.
    wakes: Sender<()>,
    /// Set when the disk is full, so that the retention thread frees space.
    room: Arc<AtomicBool>,
    /// Recognition of capture files by [`OwnFiles`]; `None`: by their names.
    own: Option<Arc<OwnFiles>>,
    /// Frame counts of this run's finished files; `None`: files are not shipped.
    counts: Option<FrameCounts>,
    /// Finish times of this run's files.
    times: FinishTimes,
    /// Present retention limits, which can change while a capture runs.
    limits: RetentionLimits,
}

/// Present retention limits: the retention thread reads them at each check.
#[derive(Clone, Debug)]
struct RetentionLimits(Arc<Mutex<Retention>>);

impl RetentionLimits {
    fn lock(&self) -> MutexGuard<'_, Retention> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RetentionTrigger {
    /// Returns the present retention limits on capture files.
    pub(super) fn limits(&self) -> Retention {
        *self.limits.lock()
    }

    /// Replaces the retention limits on capture files, and wakes the retention thread.
    pub(super) fn set_limits(&self, limits: Retention) {
        *self.limits.lock() = limits;
        self.wake();
    }

    /// Records a finished capture file and wakes the retention thread. Without retention limits
    /// nothing is recorded, because nothing would be removed again; if limits are set later, the file
    /// counts as one of an earlier run.
    pub(crate) fn record_finished(&self, path: &Path, by: FinishedBy) {
        let limits = self.limits();
        if limits.is_everything() {
            return;
        }
        // A file of an earlier run is found by its content, and ordered by its time.
        if let FinishedBy::ThisRun { frames } = by {
            if let Some(own) = &self.own {
                own.add(path);
            }
            self.times.insert(path, boot_time());
            if let (Some(counts), Some(frames)) = (&self.counts, frames) {
                counts.insert(path, frames);
            }
        }
        self.wake();
    }

    fn wake(&self) {
        // If the channel is full, a check follows anyway.
        let _ = self.wakes.try_send(());
    }

    /// Requests that the retention thread deletes files because the disk is full.
    pub(crate) fn ask_for_room(&self) {
        self.room.store(true, Ordering::Release);
        self.wake();
    }
}

/// Handle of the retention thread, its trigger, and the gauge with the results of its checks.
type Keeper = (
    JoinHandle<Option<DeletedFiles>>,
    RetentionTrigger,
    RetentionGauge,
);

/// Starts the retention thread for directory `dir`. While retention limits are set, it checks the
/// directory at its start, after each wake, every [`CHECK_EVERY`] if the limits require that, and a
/// last time when the trigger is dropped; then it ends. The thread returns `None` if no limit was ever
/// set. `key` opens encrypted files.
pub(super) fn start(
    dir: &Path,
    output: &OutputPlan,
    times: &FinishTimes,
    key: Option<&SecretKey>,
) -> Result<Keeper, ResourceError> {
    let (trigger, wakes) = crossbeam_channel::bounded(1);
    let name = &output.name;
    let trigger = RetentionTrigger {
        wakes: trigger,
        room: Arc::default(),
        own: (!name.is_default()).then(|| Arc::new(OwnFiles::new(name.clone(), key.cloned()))),
        counts: output.journal.is_some().then(FrameCounts::default),
        times: times.clone(),
        limits: RetentionLimits(Arc::new(Mutex::new(output.retention))),
    };
    let delivery = output.journal.clone().zip(trigger.counts.clone());
    let mut keeper = RetentionThread {
        dir: dir.to_owned(),
        keep: output.retention,
        own: trigger.own.clone(),
        pinned: Pinned::new(output.index_dir.as_deref(), key.cloned()),
        delivery: delivery.map(|(journal, counts)| ShippingState {
            journal,
            index_dir: output.index_dir.clone(),
            counts,
            list: None,
        }),
        times: times.clone(),
        clock: StepWatch::new(Moment::now()),
        was_set: false,
    };
    let gauge = keeper.pinned.gauge();
    gauge.set_on(!output.retention.is_everything());
    let limits = trigger.limits.clone();
    let asked = Arc::clone(&trigger.room);
    // Bytes to free on a full disk.
    let room = output.buffer;
    let thread = spawn("wqcap-keeper", move || {
        keeper.run(&limits, room, &wakes, &asked)
    })?;
    Ok((thread, trigger, gauge))
}

/// Failure of a retention check, which then deletes no further file.
#[derive(Debug, thiserror::Error)]
enum TidyFailure {
    #[error("cannot check the capture files in {}: {source}", dir.display())]
    Check { dir: PathBuf, source: io::Error },
    #[error("cannot delete {}: {source}", path.display())]
    Delete { path: PathBuf, source: io::Error },
}

/// State of the thread that deletes capture files by the retention limits.
struct RetentionThread {
    dir: PathBuf,
    keep: Retention,
    /// Recognition of capture files by [`OwnFiles`]; `None`: by their names.
    own: Option<Arc<OwnFiles>>,
    pinned: Pinned,
    /// State of shipping the capture files; `None`: files are not shipped.
    delivery: Option<ShippingState>,
    times: FinishTimes,
    clock: StepWatch,
    /// Set after a step of the system clock until the clock has been steady for [`STEADY`].
    was_set: bool,
}

impl RetentionThread {
    fn run(
        &mut self,
        limits: &RetentionLimits,
        room: u64,
        wakes: &Receiver<()>,
        asked: &AtomicBool,
    ) -> Option<DeletedFiles> {
        let mut deleted = None;
        let mut last = String::new();
        loop {
            self.keep = *limits.lock();
            let is_on = !self.keep.is_everything();
            self.pinned.gauge().set_on(is_on);
            if is_on {
                if deleted.is_none() {
                    self.warn_without_journal();
                }
                self.check(room, asked, deleted.get_or_insert_default(), &mut last);
            }
            let watches = self.keep.age_ns > 0 || self.keep.free != Keep::default();
            let woken = if watches {
                wakes.recv_timeout(CHECK_EVERY)
            } else {
                wakes.recv().map_err(Into::into)
            };
            match woken {
                Ok(()) => std::thread::sleep(PAUSE),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    if let Some(deleted) = &mut deleted {
                        deleted.pinned = self.pinned.gauge().pinned();
                    }
                    return deleted;
                }
            }
        }
    }

    /// Warns if the journal of `wqcap ship` does not exist.
    fn warn_without_journal(&self) {
        let journal = self.delivery.as_ref().map(|it| &it.journal);
        if let Some(journal) = journal.filter(|it| !it.is_dir()) {
            tracing::warn!(
                "ship.journal = {journal:?} does not exist: no file counts as shipped until the capture's next start; \
                 start `wqcap ship` first, which creates it"
            );
        }
    }

    /// Checks the output directory once. `last` is the text of the last failure, which is logged
    /// once.
    fn check(
        &mut self,
        room: u64,
        asked: &AtomicBool,
        deleted: &mut DeletedFiles,
        last: &mut String,
    ) {
        // Limits on number and age do not limit bytes, so a full disk deletes no files with them alone.
        let measured = self.keep.keep != Keep::default() || self.keep.free != Keep::default();
        let asked = asked.swap(false, Ordering::AcqRel) && measured;
        let room = if asked { room } else { 0 };
        match self.tidy(room, Moment::now(), deleted) {
            Ok(()) => last.clear(),
            Err(e) => {
                let text = e.to_string();
                // Logged once, not at every check.
                if text != *last {
                    tracing::warn!(
                        "output.keep: {text}; wqcap deletes no newer capture file until this one is deleted"
                    );
                }
                *last = text;
            }
        }
    }

    fn finished(&self, now: Moment) -> io::Result<Vec<RetentionCandidate>> {
        match &self.own {
            None => finished(&self.dir, now, &self.times),
            Some(own) => Ok(own
                .list(&self.dir)?
                .into_iter()
                .map(|it| RetentionCandidate::of_own(it, now, &self.times))
                .collect()),
        }
    }
}

/// Finished capture file that retention may delete.
struct RetentionCandidate {
    /// Sort key of a finished file by age; the file with the lowest key is deleted first.
    age: (u64, u64),
    /// Time in the finished file's name, if the name has one.
    named: Option<SystemTime>,
    /// Time of the finished file's last write.
    written: SystemTime,
    path: PathBuf,
    len: u64,
    /// `true` if a pin protects the finished file from deletion.
    held: bool,
}

impl RetentionCandidate {
    fn of_own(file: OwnFile, now: Moment, times: &FinishTimes) -> Self {
        let place = match (times.ended(&file.path, now), file.number) {
            (Some(ended), _) => nanoseconds(ended),
            (None, 0) => place_of_other(Some(file.written), now),
            // A file of this run that was finished while no limit was set.
            (None, _) => nanoseconds(now.wall),
        };
        Self {
            age: (place, file.number),
            named: None,
            written: file.written,
            path: file.path,
            len: file.len,
            held: false,
        }
    }
}

impl From<&RetentionCandidate> for FinishedFile {
    fn from(file: &RetentionCandidate) -> Self {
        Self {
            written: file.written,
            len: file.len,
        }
    }
}

impl RetentionThread {
    /// Deletes the capture files that are too old at `now`, then the oldest files until the
    /// retention limits are kept and at least `room` bytes of files are deleted.
    fn tidy(
        &mut self,
        room: u64,
        now: Moment,
        deleted: &mut DeletedFiles,
    ) -> Result<(), TidyFailure> {
        let (dir, keep) = (&self.dir.clone(), self.keep);
        let failure = |source: io::Error| TidyFailure::Check {
            dir: dir.clone(),
            source,
        };
        // While the lock is held, no other process adds a pin.
        let _lock = FolderLock::take(dir);
        let mut old = self.finished(now).map_err(failure)?;
        let disk = || match statvfs(dir) {
            // Such as ramfs: every file would be beyond the limit.
            Ok(disk) if disk.f_blocks == 0 => Err(failure(io::Error::other(
                "the file system does not state its size; limit output.keep as a size, and not output.keep_free",
            ))),
            disk => disk.map_err(|e| failure(e.into())),
        };
        let bytes_of = |keep| -> Result<u64, TidyFailure> {
            let percent = match keep {
                Keep::Size(Size(n)) => return Ok(n),
                Keep::Percent(n) => u64::from(n),
            };
            let disk = disk()?;
            Ok(disk.f_blocks.saturating_mul(disk.f_frsize) / 100 * percent)
        };
        let most = match keep.keep {
            Keep::Size(Size(0)) => u64::MAX,
            keep => bytes_of(keep)?,
        };
        let most_files = match keep.files {
            0 => usize::MAX,
            n => usize::try_from(n).unwrap_or(usize::MAX),
        };
        if let Some(delivery) = &self.delivery {
            delivery.counts.forget_gone(old.len());
        }
        self.times.forget_gone(now.boot, &old);
        old.sort_by(|a, b| (b.age, &b.path).cmp(&(a.age, &a.path)));
        let files: Vec<_> = old.iter().map(|it| (it.path.as_path(), it.len)).collect();
        let held = self.pinned.held(dir, &files);
        for (it, held) in old.iter_mut().zip(held) {
            it.held = held;
        }
        if keep.age_ns > 0 && self.may_judge_age(now) {
            let most = Duration::from_nanos(keep.age_ns);
            let expired = |it: &mut RetentionCandidate| {
                !it.held && self.age(it, now).is_some_and(|age| age > most)
            };
            let expired: Vec<_> = old.extract_if(.., expired).collect();
            expired
                .into_iter()
                .rev()
                .try_for_each(|it| self.delete(it, deleted))?;
        }
        // Measured after the expired files are deleted.
        let missing = match keep.free {
            Keep::Size(Size(0)) => 0,
            free => {
                let disk = disk()?;
                bytes_of(free)?.saturating_sub(disk.f_bavail.saturating_mul(disk.f_frsize))
            }
        };
        let mut bytes: u64 = old.iter().map(|it| it.len).sum();
        let most = most.min(bytes.saturating_sub(room.max(missing)));
        if bytes > most || old.len() > most_files {
            // Unshipped files move to the front, to be deleted last. The sort is stable.
            old.sort_by_cached_key(|it| self.is_unshipped(&it.path) == Some(false));
        }
        let (mut left, mut at) = (old.len(), old.len());
        while at > 1 && (bytes > most || left > most_files) {
            at -= 1;
            if !old[at].held {
                let it = old.remove(at);
                left -= 1;
                bytes -= it.len;
                self.delete(it, deleted)?;
            }
        }
        let too_much = bytes > most || left > most_files;
        self.pinned.log_over_limit(dir, too_much);
        let left: Vec<_> = old.iter().map(FinishedFile::from).collect();
        let expected = DiskRoom::read(dir).and_then(|disk| outlook(&left, disk, &keep));
        self.pinned.gauge().set_outlook(expected);
        Ok(())
    }

    /// Returns `true` if retention may delete files by age. Logs steps of the system clock.
    fn may_judge_age(&mut self, now: Moment) -> bool {
        if let Some(step) = self.clock.step(now) {
            if !self.was_set {
                let direction = if step > 0.0 { "forward" } else { "back" };
                tracing::warn!(
                    "the system's clock was set {direction} by {:.0} s: output.keep_age deletes nothing until the \
                     clock has been steady for {} s; configure NTP or PTP to slew the clock",
                    step.abs(),
                    STEADY.as_secs()
                );
            }
            self.was_set = true;
        }
        if self.was_set && self.clock.steady_for(now) >= STEADY {
            tracing::info!(
                "the system's clock no longer jumps: output.keep_age deletes files again"
            );
            self.was_set = false;
        }
        !self.was_set
    }

    /// Returns the age of a finished file; `None`: it is unknown until the system clock has been
    /// steady.
    fn age(&self, it: &RetentionCandidate, now: Moment) -> Option<Duration> {
        if let Some(finished) = self.times.lock().get(&it.path) {
            return Some(now.boot.saturating_sub(*finished));
        }
        if self.clock.steady_for(now) < STEADY {
            return None;
        }
        let since = match it.named {
            Some(named) if !(named..=now.wall).contains(&it.written) => named,
            _ => it.written,
        };
        now.wall.duration_since(since).ok()
    }

    /// Returns `true` if `wqcap ship` has not shipped the finished file yet; `None`: files are not
    /// shipped.
    fn is_unshipped(&self, path: &Path) -> Option<bool> {
        let delivery = self.delivery.as_ref()?;
        Some(delivery.is_unshipped(path))
    }

    fn delete(
        &mut self,
        it: RetentionCandidate,
        deleted: &mut DeletedFiles,
    ) -> Result<(), TidyFailure> {
        let unshipped = self.is_unshipped(&it.path) == Some(true);
        let removed = match &mut self.delivery {
            Some(delivery) if unshipped => delivery.remove_unshipped(&self.dir, &it.path),
            _ => remove_below(&self.dir, &it.path).map(|()| None),
        };
        match removed {
            Ok(frames) => {
                tracing::debug!("deleted {} ({} bytes)", it.path.display(), it.len);
                remove_emptied(&it.path, &self.dir);
                if unshipped {
                    tracing::warn!(
                        "retention deleted the capture file {} before it was shipped",
                        it.path.display()
                    );
                    deleted.unshipped += 1;
                    deleted.unshipped_frames += frames.unwrap_or(0);
                }
                deleted.bytes += it.len;
                deleted.files += 1;
            }
            // Another process has deleted the file already.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                let path = it.path;
                return Err(TidyFailure::Delete { path, source });
            }
        }
        Ok(())
    }
}

/// Returns the finished capture files of a directory, recognized by their names. `times` has the
/// finish times of this run's files.
fn finished(dir: &Path, now: Moment, times: &FinishTimes) -> io::Result<Vec<RetentionCandidate>> {
    let mut old = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let Some(start_ns) = FileName::parse(&path).map(|name| name.start_ns) else {
            continue;
        };
        // The file may have been deleted meanwhile, and the target of a link is foreign.
        if let Ok(metadata) = fs::symlink_metadata(&path)
            && metadata.is_file()
        {
            let start = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(start_ns));
            let ended = times.ended(&path, now).map(nanoseconds);
            let place = ended.unwrap_or_else(|| place_of_other(start, now));
            old.push(RetentionCandidate {
                age: (place, start_ns),
                named: start,
                written: written(&metadata),
                len: metadata.len(),
                path,
                held: false,
            });
        }
    }
    Ok(old)
}

/// Returns the place in the order of deletion, in nanoseconds since 1970, of a file that another run
/// wrote at this time; `None`: the time is unknown.
fn place_of_other(time: Option<SystemTime>, now: Moment) -> u64 {
    let past = time.filter(|it| *it <= now.wall + AHEAD);
    past.map_or(0, nanoseconds)
}

/// Returns a time in nanoseconds since 1970; 0 for times before.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
