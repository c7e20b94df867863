//! `output.keep`, `keep_files`, `keep_age` and `keep_free`: the oldest finished files go first.
//!
//! A sub folder that was emptied so goes, too.
//!
//! What pins hold stays, whatever the limits. It counts: limits are the disk's, so that what is not pinned goes earlier. Pins
//! are read at each look, and none is made between that and the deletions that follow it.
//!
//! What `wqcap ship` has not shipped yet goes last: as long as there are files that its journal says it has shipped, those go, the
//! oldest first. Limits hold all the same: a disk does not wait for a network. What went unshipped is noted for its ledger, with
//! the frames that this run, or the index, has counted ([`wqcap_files::folder::expired`]).
//!
//! Invariants: only regular files with a capture file's name go, never an open one (its name ends in `.part`) and
//! never a link. Of files that `output.name` names, whose names anybody's file may have, only those of [`OwnFiles`] do. What
//! there is, is looked up anew before anything is deleted: a hook or a person may have taken files away meanwhile, and others
//! must not pay for them. A thread of its own: no block and no sync waits for it.
//!
//! Age is never computed from a clock that was just set. A file of this run is as old as the time since its end by the clock that
//! counts from the machine's start ([`FinishTimes`]). A file of an earlier run is as old as its name says, or its last write where that
//! lies between the name and now, once the system's clock has been steady for [`STEADY`]. When the clock is set, nothing is
//! deleted by age until it has been steady for as long.
//!
//! A disk that is full before `output.keep` is reached makes the oldest files go too: whoever names a limit wants the
//! newest frames rather than the oldest. The newest file stays, whatever the limits: a folder without a file tells nothing. But
//! `keep_age` is a promise, and holds for it too.

use crate::{
    OutputPlan, Retention,
    outlook::{DiskRoom, FinishedFile, outlook},
    post::{
        gauge::{PinnedFiles, RetentionGauge},
        own_files::{OwnFile, OwnFiles, written},
        pinned::Pinned,
        unshipped::{Delivery, FrameCounts},
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
use wqcap_files::{folder::remove_emptied, name::FileName, pin::FolderLock};

/// Between two looks at the folder, at least: with thousands of files a look costs milliseconds.
const REST: Duration = Duration::from_millis(100);

/// Between two looks where time alone, or somebody else, can make a file one too many.
const LOOK: Duration = Duration::from_secs(10);

/// How long the system's clock must be steady before files age by it.
const STEADY: Duration = Duration::from_secs(60);

/// When this run's files were finished, as time since the machine's start.
#[derive(Clone, Debug, Default)]
pub struct FinishTimes(Arc<Mutex<HashMap<PathBuf, Duration>>>);

impl FinishTimes {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Duration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, path: &Path, at: Duration) {
        self.lock().insert(path.to_owned(), at);
    }

    /// Forgets the files that were gone at `listed`, when `there` were listed; but only when those are most of them.
    fn forget_gone(&self, listed: Duration, there: &[Old]) {
        let mut times = self.lock();
        if times.len() > 2 * there.len() + 1024 {
            let there: HashSet<_> = there.iter().map(|it| it.path.as_path()).collect();
            times.retain(|path, at| *at >= listed || there.contains(path.as_path()));
        }
    }
}

/// Run that a finished file belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FinishedBy {
    /// The running capture; the file's frames, if they are known.
    ThisRun { frames: Option<u64> },
    /// An earlier run, which left the file unencrypted.
    AnEarlierRun,
}

/// What was deleted.
#[derive(Debug, Default)]
pub(crate) struct DeletedFiles {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Files of those that were not shipped yet; without a journal none.
    pub(crate) unshipped: u64,
    /// Their frames, as far as they had been counted.
    pub(crate) unshipped_frames: u64,
    /// What pins hold, at the last look.
    pub(crate) pinned: PinnedFiles,
}

/// Tells the keeper that there is something to do.
#[derive(Clone)]
pub(crate) struct RetentionTrigger {
    rings: Sender<()>,
    room: Arc<AtomicBool>,
    own: Option<Arc<OwnFiles>>,
    /// `None`: nobody asks.
    counts: Option<FrameCounts>,
    /// `None`: `output.keep_age` is not set.
    times: Option<FinishTimes>,
}

impl RetentionTrigger {
    /// There is this file more.
    pub(crate) fn finished(&self, path: &Path, by: FinishedBy) {
        if let Some(own) = &self.own {
            own.add(path);
        }
        if let FinishedBy::ThisRun { frames } = by {
            if let Some(times) = &self.times {
                times.enter(path, boot_time());
            }
            if let (Some(counts), Some(frames)) = (&self.counts, frames) {
                counts.enter(path, frames);
            }
        }
        self.ring();
    }

    fn ring(&self) {
        // Full: it is going to look anyway.
        let _ = self.rings.try_send(());
    }

    /// The disk is full.
    pub(crate) fn ask_for_room(&self) {
        self.room.store(true, Ordering::Release);
        self.ring();
    }
}

/// Starts a thread that looks at the folder of these files at once, after each ring, now and then where that may matter, and
/// a last time when the trigger is gone; then it ends. The gauge tells what it has found pinned.
pub(super) fn start(
    dir: &Path,
    output: &OutputPlan,
    times: &FinishTimes,
) -> Result<(JoinHandle<DeletedFiles>, RetentionTrigger, RetentionGauge), ResourceError> {
    let (trigger, rings) = crossbeam_channel::bounded(1);
    let name = &output.name;
    let trigger = RetentionTrigger {
        rings: trigger,
        room: Arc::default(),
        own: (!name.is_default()).then(|| Arc::new(OwnFiles::new(name.clone()))),
        counts: output.journal.is_some().then(FrameCounts::default),
        times: (output.retention.age_ns > 0).then(|| times.clone()),
    };
    let delivery = output.journal.clone().zip(trigger.counts.clone());
    let mut keeper = Keeper {
        dir: dir.to_owned(),
        keep: output.retention,
        own: trigger.own.clone(),
        pinned: Pinned::new(output.index_dir.as_deref()),
        delivery: delivery.map(|(journal, counts)| Delivery {
            journal,
            index_dir: output.index_dir.clone(),
            counts,
            list: None,
        }),
        times: times.clone(),
        clock: StepWatch::new(Moment::now()),
        was_set: false,
    };
    if let Some(journal) = output.journal.as_ref().filter(|it| !it.is_dir()) {
        tracing::warn!(
            "ship.journal = {journal:?}: is not there, so no file counts as shipped until the capture's next start; start \
             `wqcap ship` first, which makes it"
        );
    }
    let gauge = keeper.pinned.gauge();
    let asked = Arc::clone(&trigger.room);
    // What a full disk takes to go on.
    let room = output.buffer;
    let thread = spawn("wqcap-keeper", move || keeper.run(room, &rings, &asked))?;
    Ok((thread, trigger, gauge))
}

/// Whoever deletes old files.
struct Keeper {
    dir: PathBuf,
    keep: Retention,
    /// `None`: files are recognised by their names.
    own: Option<Arc<OwnFiles>>,
    pinned: Pinned,
    /// `None`: nothing is shipped.
    delivery: Option<Delivery>,
    times: FinishTimes,
    clock: StepWatch,
    /// The system's clock was set, and has not been steady for long enough since.
    was_set: bool,
}

impl Keeper {
    fn run(&mut self, room: u64, rings: &Receiver<()>, asked: &AtomicBool) -> DeletedFiles {
        let mut deleted = DeletedFiles::default();
        let mut last = String::new();
        loop {
            // Files alone are no measure of a disk.
            let measured = self.keep.keep != Keep::default() || self.keep.free != Keep::default();
            let asked = asked.swap(false, Ordering::AcqRel) && measured;
            let room = if asked { room } else { 0 };
            match self.tidy(room, Moment::now(), &mut deleted) {
                Ok(()) => last.clear(),
                // Told once, not at every look.
                Err(e) if e != last => {
                    tracing::warn!("output.keep: {e}; newer files stay until that works again");
                    last = e;
                }
                Err(_) => {}
            }
            let watches = self.keep.age_ns > 0 || self.keep.free != Keep::default();
            let rung = if watches {
                rings.recv_timeout(LOOK)
            } else {
                rings.recv().map_err(Into::into)
            };
            match rung {
                Ok(()) => std::thread::sleep(REST),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    deleted.pinned = self.pinned.gauge().pinned();
                    return deleted;
                }
            }
        }
    }

    fn finished(&self) -> io::Result<Vec<Old>> {
        match &self.own {
            None => finished(&self.dir),
            Some(own) => Ok(own.list(&self.dir)?.into_iter().map(Old::from).collect()),
        }
    }
}

/// A finished file.
struct Old {
    /// The lowest goes first.
    age: (u64, u64),
    /// The time in its name, where the name has one.
    named: Option<SystemTime>,
    written: SystemTime,
    path: PathBuf,
    len: u64,
    /// It is pinned.
    held: bool,
}

impl From<OwnFile> for Old {
    fn from(file: OwnFile) -> Self {
        Self {
            age: file.age,
            named: None,
            written: file.written,
            path: file.path,
            len: file.len,
            held: false,
        }
    }
}

impl From<&Old> for FinishedFile {
    fn from(file: &Old) -> Self {
        Self {
            written: file.written,
            len: file.len,
        }
    }
}

impl Keeper {
    /// Deletes the files that are too old at `now`, and the oldest until what is left is within the limits, and `room` bytes
    /// more are free.
    fn tidy(&mut self, room: u64, now: Moment, deleted: &mut DeletedFiles) -> Result<(), String> {
        let (dir, keep) = (&self.dir.clone(), self.keep);
        let told = |e: io::Error| format!("cannot look at {}: {e}", dir.display());
        // Who pins files finds all of them there until that is done.
        let _lock = FolderLock::take(dir);
        let mut old = self.finished().map_err(told)?;
        let disk = || statvfs(dir).map_err(|e| told(e.into()));
        let bytes_of = |keep| -> Result<u64, String> {
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
        old.sort_by(|a, b| (b.age, &b.path).cmp(&(a.age, &a.path)));
        let files: Vec<_> = old.iter().map(|it| (it.path.as_path(), it.len)).collect();
        let held = self.pinned.held(dir, &files);
        for (it, held) in old.iter_mut().zip(held) {
            it.held = held;
        }
        if keep.age_ns > 0 && self.may_judge_age(now) {
            self.times.forget_gone(now.boot, &old);
            let most = Duration::from_nanos(keep.age_ns);
            let expired =
                |it: &mut Old| !it.held && self.age(it, now).is_some_and(|age| age > most);
            let expired: Vec<_> = old.extract_if(.., expired).collect();
            expired
                .into_iter()
                .rev()
                .try_for_each(|it| self.delete(it, deleted))?;
        }
        // As it is without those.
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
            // In front, where it goes last; both parts stay in their order.
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
        self.pinned.tell_in_the_way(dir, too_much);
        let left: Vec<_> = old.iter().map(FinishedFile::from).collect();
        let expected = DiskRoom::of(dir).and_then(|disk| outlook(&left, disk, &keep));
        self.pinned.gauge().set_outlook(expected);
        Ok(())
    }

    /// Whether files may be deleted by age. Reports steps of the system's clock.
    fn may_judge_age(&mut self, now: Moment) -> bool {
        if let Some(step) = self.clock.step(now) {
            if !self.was_set {
                let direction = if step > 0.0 { "forward" } else { "back" };
                tracing::warn!(
                    "the system's clock was set {direction} by {:.0} s: output.keep_age deletes nothing until the clock has been \
                     steady for {} s; let NTP or PTP slew the clock",
                    step.abs(),
                    STEADY.as_secs()
                );
            }
            self.was_set = true;
        }
        if self.was_set && self.clock.steady_for(now) >= STEADY {
            tracing::info!("the system's clock is steady: output.keep_age deletes files again");
            self.was_set = false;
        }
        !self.was_set
    }

    /// Age of a file; `None`: it is unknown until the clock has been steady.
    fn age(&self, it: &Old, now: Moment) -> Option<Duration> {
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

    /// Whether a file is still to be shipped; `None`: nothing is.
    fn is_unshipped(&self, path: &Path) -> Option<bool> {
        let delivery = self.delivery.as_ref()?;
        Some(delivery.is_unshipped(path))
    }

    fn delete(&mut self, it: Old, deleted: &mut DeletedFiles) -> Result<(), String> {
        let unshipped = self.is_unshipped(&it.path) == Some(true);
        let removed = match &mut self.delivery {
            Some(delivery) if unshipped => delivery.remove_unshipped(&self.dir, &it.path),
            _ => fs::remove_file(&it.path).map(|()| None),
        };
        match removed {
            Ok(frames) => {
                tracing::debug!("deleted {} ({} bytes)", it.path.display(), it.len);
                remove_emptied(&it.path, &self.dir);
                if unshipped {
                    tracing::warn!("deleted {} before it was shipped", it.path.display());
                    deleted.unshipped += 1;
                    deleted.unshipped_frames += frames.unwrap_or(0);
                }
                deleted.bytes += it.len;
                deleted.files += 1;
            }
            // Somebody else was faster.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(format!("cannot delete {}: {e}", it.path.display())),
        }
        Ok(())
    }
}

/// The finished capture files of a folder.
fn finished(dir: &Path) -> io::Result<Vec<Old>> {
    let mut old = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let Some(start_ns) = FileName::parse(&path).map(|name| name.start_ns) else {
            continue;
        };
        // It may be gone by now, and a link's target is somebody else's.
        if let Ok(metadata) = fs::symlink_metadata(&path)
            && metadata.is_file()
        {
            old.push(Old {
                age: (0, start_ns),
                named: SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(start_ns)),
                written: written(&metadata),
                len: metadata.len(),
                path,
                held: false,
            });
        }
    }
    Ok(old)
}

#[cfg(test)]
mod tests;
