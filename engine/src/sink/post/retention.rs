//! `output.keep`, `keep_files`, `keep_age` and `keep_free`: the oldest finished files go first.
//!
//! A sub folder that was emptied so goes, too.
//!
//! Invariants: only regular files with a capture file's name go, never an open one (its name ends in `.part`) and
//! never a link. Of files that `output.name` names, whose names anybody's file may have, only those of [`OwnFiles`] do. What
//! there is, is looked up anew before anything is deleted: a hook or a person may have taken files away meanwhile, and others
//! must not pay for them. A thread of its own: no block and no sync waits for it.
//!
//! A disk that is full before `output.keep` is reached makes the oldest files go too: whoever names a limit wants the
//! newest frames rather than the oldest. The newest file stays, whatever the limits: a folder without a file tells nothing. But
//! `keep_age` is a promise, and holds for it too.

use crate::{
    Error,
    config::{Keep, Size},
    name::FileName,
    plan::Retention,
    sink::post::own_files::{OwnFile, OwnFiles, written},
    thread::spawn,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rustix::fs::statvfs;
use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime},
};
use wqcap_files::{folder::remove_emptied, template::NameTemplate};

/// Between two looks at the folder, at least: with thousands of files a look costs milliseconds.
const REST: Duration = Duration::from_millis(100);

/// Between two looks where time alone, or somebody else, can make a file one too many.
const LOOK: Duration = Duration::from_secs(10);

/// What was deleted.
#[derive(Debug, Default)]
pub(in crate::sink) struct DeletedFiles {
    pub(in crate::sink) files: HashSet<PathBuf>,
    pub(in crate::sink) bytes: u64,
}

/// Tells the keeper that there is something to do.
#[derive(Clone)]
pub(in crate::sink) struct RetentionTrigger {
    rings: Sender<()>,
    room: Arc<AtomicBool>,
    own: Option<Arc<OwnFiles>>,
}

impl RetentionTrigger {
    /// There is this file more.
    pub(in crate::sink) fn finished(&self, path: &Path) {
        if let Some(own) = &self.own {
            own.add(path);
        }
        self.ring();
    }

    fn ring(&self) {
        // Full: it is going to look anyway.
        let _ = self.rings.try_send(());
    }

    /// The disk is full.
    pub(in crate::sink) fn ask_for_room(&self) {
        self.room.store(true, Ordering::Release);
        self.ring();
    }
}

/// Starts a thread that looks at the folder at once, after each ring, now and then where that may matter, and a last time
/// when the trigger is gone; then it ends. `room` is what a full disk takes to go on.
pub(super) fn start(
    dir: &Path,
    keep: Retention,
    room: u64,
    name: &NameTemplate,
) -> Result<(JoinHandle<DeletedFiles>, RetentionTrigger), Error> {
    let (trigger, rings) = crossbeam_channel::bounded(1);
    let trigger = RetentionTrigger {
        rings: trigger,
        room: Arc::default(),
        own: (!name.is_default()).then(|| Arc::new(OwnFiles::new(name.clone()))),
    };
    let keeper = Keeper {
        dir: dir.to_owned(),
        keep,
        own: trigger.own.clone(),
    };
    let asked = Arc::clone(&trigger.room);
    let thread = spawn("wqcap-keeper", move || keeper.run(room, &rings, &asked))?;
    Ok((thread, trigger))
}

/// Whoever deletes old files.
struct Keeper {
    dir: PathBuf,
    keep: Retention,
    /// `None`: files are recognised by their names.
    own: Option<Arc<OwnFiles>>,
}

impl Keeper {
    fn run(&self, room: u64, rings: &Receiver<()>, asked: &AtomicBool) -> DeletedFiles {
        let mut deleted = DeletedFiles::default();
        let mut last = String::new();
        loop {
            // Files alone are no measure of a disk.
            let measured = self.keep.keep != Keep::default() || self.keep.free != Keep::default();
            let asked = asked.swap(false, Ordering::AcqRel) && measured;
            let room = if asked { room } else { 0 };
            match self.tidy(room, SystemTime::now(), &mut deleted) {
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
                Err(RecvTimeoutError::Disconnected) => return deleted,
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
    written: SystemTime,
    path: PathBuf,
    len: u64,
}

impl From<OwnFile> for Old {
    fn from(file: OwnFile) -> Self {
        Self {
            age: file.age,
            written: file.written,
            path: file.path,
            len: file.len,
        }
    }
}

impl Keeper {
    /// Deletes the files that are too old at `now`, and the oldest until what is left is within the limits, and `room` bytes
    /// more are free.
    fn tidy(&self, room: u64, now: SystemTime, deleted: &mut DeletedFiles) -> Result<(), String> {
        let (dir, keep) = (&self.dir, self.keep);
        let told = |e: io::Error| format!("cannot look at {}: {e}", dir.display());
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
        old.sort_by(|a, b| (b.age, &b.path).cmp(&(a.age, &a.path)));
        if keep.age_ns > 0 {
            let age = Duration::from_nanos(keep.age_ns);
            let expired = |it: &mut Old| now.duration_since(it.written).is_ok_and(|it| it > age);
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
        while old.len() > 1 && (bytes > most || old.len() > most_files) {
            let Some(it) = old.pop() else { break };
            bytes -= it.len;
            self.delete(it, deleted)?;
        }
        Ok(())
    }

    fn delete(&self, it: Old, deleted: &mut DeletedFiles) -> Result<(), String> {
        match fs::remove_file(&it.path) {
            Ok(()) => {
                tracing::debug!("deleted {} ({} bytes)", it.path.display(), it.len);
                remove_emptied(&it.path, &self.dir);
                deleted.bytes += it.len;
                deleted.files.insert(it.path);
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
                written: written(&metadata),
                len: metadata.len(),
                path,
            });
        }
    }
    Ok(old)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::{Encoder, PcapngEncoder};

    fn folder(files: &[(&str, usize)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("dir");
        for (name, len) in files {
            fs::write(dir.path().join(name), vec![0; *len]).expect("written");
        }
        dir
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .expect("lists")
            .map(|e| e.expect("entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }

    fn tidy(dir: &Path, keep: Retention, deleted: &mut DeletedFiles) {
        let keeper = Keeper {
            dir: dir.to_owned(),
            keep,
            own: None,
        };
        keeper.tidy(0, SystemTime::now(), deleted).expect("tidies");
    }

    fn left(files: &[(&str, usize)], keep: Retention) -> Vec<String> {
        let dir = folder(files);
        tidy(dir.path(), keep, &mut DeletedFiles::default());
        names(dir.path())
    }

    const FILES: [(&str, usize); 4] = [
        ("wqcap-q01-10.pcap", 100),
        ("wqcap-q00-9.pcap", 100),
        ("wqcap-q00-100.pcapng.zst", 100),
        ("wqcap-q00-20.pcap", 100),
    ];

    #[test]
    fn the_oldest_go_first_by_bytes_and_by_number() {
        let keep = |keep, files| Retention {
            keep,
            files,
            ..Retention::default()
        };
        let newest = ["wqcap-q00-100.pcapng.zst", "wqcap-q00-20.pcap"];
        assert_eq!(left(&FILES, keep(Keep::Size(Size(250)), 0)), newest);
        assert_eq!(left(&FILES, keep(Keep::Size(Size(200)), 0)), newest);
        assert_eq!(left(&FILES, keep(Keep::default(), 2)), newest);
        assert_eq!(left(&FILES, keep(Keep::Size(Size(200)), 3)), newest);
        assert_eq!(left(&FILES, keep(Keep::Size(Size(400)), 4)).len(), 4);
        // The newest stays.
        let newest = [newest[0]];
        assert_eq!(left(&FILES, keep(Keep::Size(Size(99)), 0)), newest);
        // A hundredth of a disk is far more than these.
        assert_eq!(left(&FILES, keep(Keep::Percent(1), 0)).len(), 4);
    }

    #[test]
    fn open_files_and_strangers_stay() {
        let dir = folder(&[
            ("wqcap-q00-1.pcap.part", 100),
            ("wqcap-q00-1.pcap.gz", 100),
            ("holiday.pcap", 100),
            ("wqcap-q00-2.pcap", 100),
            ("wqcap-q00-5.pcap", 100),
        ]);
        let outside = folder(&[("wqcap-q00-3.pcap", 100)]);
        let target = outside.path().join("wqcap-q00-3.pcap");
        std::os::unix::fs::symlink(&target, dir.path().join("wqcap-q00-3.pcap")).expect("link");
        fs::create_dir(dir.path().join("wqcap-q00-4.pcap")).expect("folder");
        let mut deleted = DeletedFiles::default();
        let keep = Retention {
            keep: Keep::Size(Size(1)),
            files: 1,
            ..Retention::default()
        };
        tidy(dir.path(), keep, &mut deleted);
        assert_eq!(
            names(dir.path()),
            [
                "holiday.pcap",
                "wqcap-q00-1.pcap.gz",
                "wqcap-q00-1.pcap.part",
                "wqcap-q00-3.pcap",
                "wqcap-q00-4.pcap",
                "wqcap-q00-5.pcap"
            ]
        );
        assert!(target.exists());
        assert_eq!((deleted.files.len(), deleted.bytes), (1, 100));
    }

    #[test]
    fn a_full_disk_takes_the_oldest_where_bytes_are_limited() {
        for (keep, want) in [(Keep::Size(Size(1 << 20)), 2), (Keep::default(), 4)] {
            let dir = folder(&FILES);
            let keep = Retention {
                keep,
                files: 9,
                ..Retention::default()
            };
            let (keeper, trigger) =
                start(dir.path(), keep, 150, &NameTemplate::default()).expect("starts");
            trigger.ask_for_room();
            drop(trigger);
            let deleted = keeper.join().expect("ends");
            assert_eq!(names(dir.path()).len(), want);
            assert_eq!(deleted.files.len(), 4 - want);
        }
    }

    #[test]
    fn files_that_are_too_old_go_wherever_they_stand_and_be_it_the_last() {
        let dir = folder(&FILES);
        let now = SystemTime::now();
        let aged = |name: &str, seconds| {
            let file = fs::File::options().append(true).open(dir.path().join(name));
            let written = now - Duration::from_secs(seconds);
            file.and_then(|it| it.set_modified(written)).expect("aged");
        };
        aged("wqcap-q00-9.pcap", 3000);
        aged("wqcap-q01-10.pcap", 3601);
        aged("wqcap-q00-20.pcap", 5000);
        aged("wqcap-q00-100.pcapng.zst", 3600);
        let keeper = Keeper {
            dir: dir.path().to_owned(),
            keep: Retention {
                age_ns: 3_600_000_000_000,
                ..Retention::default()
            },
            own: None,
        };
        let mut deleted = DeletedFiles::default();
        keeper.tidy(0, now, &mut deleted).expect("tidies");
        let young = ["wqcap-q00-100.pcapng.zst", "wqcap-q00-9.pcap"];
        assert_eq!(names(dir.path()), young);
        // A clock that was set back makes nothing old.
        keeper
            .tidy(0, now - Duration::from_secs(9999), &mut deleted)
            .expect("tidies");
        assert_eq!(names(dir.path()), young);
        keeper
            .tidy(0, now + Duration::from_secs(9999), &mut deleted)
            .expect("tidies");
        assert_eq!(names(dir.path()).len(), 0);
        assert_eq!((deleted.files.len(), deleted.bytes), (4, 400));
    }

    #[test]
    fn the_oldest_go_until_enough_is_free_whoever_took_it_and_the_newest_stays() {
        let dir = folder(&FILES);
        let keeper = |free| Keeper {
            dir: dir.path().to_owned(),
            keep: Retention {
                free,
                ..Retention::default()
            },
            own: None,
        };
        let mut deleted = DeletedFiles::default();
        let mut tidied = |free| {
            let now = SystemTime::now();
            keeper(free).tidy(0, now, &mut deleted).expect("tidies");
            names(dir.path()).len()
        };
        assert_eq!(tidied(Keep::Size(Size(1))), 4);
        // More than there is.
        assert_eq!(tidied(Keep::Percent(100)), 1);
        assert_eq!(names(dir.path()), ["wqcap-q00-100.pcapng.zst"]);
        assert_eq!(tidied(Keep::Size(Size(u64::MAX))), 1);
        assert_eq!(deleted.files.len(), 3);
    }

    #[test]
    fn a_ring_is_answered_and_the_end_is_too() {
        let dir = folder(&FILES);
        let keep = Retention {
            files: 1,
            ..Retention::default()
        };
        let (keeper, trigger) =
            start(dir.path(), keep, 150, &NameTemplate::default()).expect("starts");
        for i in 200..220 {
            fs::write(dir.path().join(format!("wqcap-q00-{i}.pcap")), b"x").expect("written");
            trigger.ring();
        }
        drop(trigger);
        let deleted = keeper.join().expect("ends");
        assert_eq!(names(dir.path()), ["wqcap-q00-219.pcap"]);
        assert_eq!(deleted.files.len(), 23);
    }

    #[test]
    fn sub_folders_are_looked_into_and_go_when_they_are_empty() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        let own = Arc::new(OwnFiles::new("%Y%m%d/%H/q{queue}".parse().expect("reads")));
        let capture = PcapngEncoder::default().header(Some(0), 0);
        for folder in ["20261121/09", "20261121/10", "20261122/00/deep", "notes"] {
            fs::create_dir_all(at(folder)).expect("made");
        }
        let ours = ["20261121/09/q00", "20261121/10/q00", "20261122/00/q00"];
        let others = ["q00", "20261122/q00", "20261122/00/deep/q00", "notes/q00"];
        for name in ours.into_iter().chain(others) {
            let path = at(&format!("{name}.pcapng"));
            fs::write(&path, &capture).expect("written");
            if ours.contains(&name) {
                own.add(&path);
            }
        }
        fs::write(at("20261121/09/notes.txt"), "mine").expect("written");
        let keeper = |files| Keeper {
            dir: dir.path().to_owned(),
            keep: Retention {
                files,
                ..Retention::default()
            },
            own: Some(Arc::clone(&own)),
        };
        let mut deleted = DeletedFiles::default();
        keeper(1)
            .tidy(0, SystemTime::now(), &mut deleted)
            .expect("tidies");
        assert_eq!(deleted.files.len(), 2);
        assert!(!at("20261121/10").exists(), "it was emptied");
        assert_eq!(names(&at("20261121/09")), ["notes.txt"], "somebody else's");
        assert!(at("20261122/00/q00.pcapng").exists());
        assert!(
            others
                .iter()
                .all(|name| at(&format!("{name}.pcapng")).exists())
        );
    }

    #[test]
    fn of_any_name_only_captures_go_those_of_earlier_runs_first() {
        let dir = folder(&[
            ("tap-3.pcap", 10),
            ("tap-1.pcap", 10),
            ("tap-2.pcap", 10),
            ("tap-4.pcap", 10),
            ("tap-5.pcapng", 10),
            ("tap-5.pcapng.part", 10),
            ("tap-copy.pcapng", 0),
            ("wqcap-q00-1.pcap", 10),
        ]);
        let at = |name| dir.path().join(name);
        // As an earlier run has left it, under a name of the template and under another.
        let mut earlier = PcapngEncoder::default().header(Some(0), 0);
        fs::write(at("tap-9.pcapng"), &earlier).expect("written");
        fs::write(at("tap-copy.pcapng"), &earlier).expect("written");
        // What was merged of it is not a capture.
        let program = earlier.windows(6).position(|it| it == b"wqcap ");
        earlier[program.expect("there")] = b'W';
        fs::write(at("tap-8.pcapng"), &earlier).expect("written");

        let own = Arc::new(OwnFiles::new("tap-%j".parse().expect("reads")));
        let (rings, _looks) = crossbeam_channel::bounded(1);
        let trigger = RetentionTrigger {
            rings,
            room: Arc::default(),
            own: Some(Arc::clone(&own)),
        };
        for name in ["tap-4.pcap", "tap-3.pcap", "tap-2.pcap", "tap-1.pcap"] {
            trigger.finished(&at(name));
        }
        fs::write(at("new"), "somebody else's").expect("written");
        fs::rename(at("new"), at("tap-4.pcap")).expect("renamed");
        let tidied = |files| {
            let keeper = Keeper {
                dir: dir.path().to_owned(),
                keep: Retention {
                    files,
                    ..Retention::default()
                },
                own: Some(Arc::clone(&own)),
            };
            let mut deleted = DeletedFiles::default();
            keeper
                .tidy(0, SystemTime::now(), &mut deleted)
                .expect("tidies");
            deleted.files
        };
        assert_eq!(tidied(3), HashSet::from([at("tap-9.pcapng")]));
        assert_eq!(tidied(2), HashSet::from([at("tap-3.pcap")]));
        assert_eq!(tidied(2), HashSet::new());
        let left = [
            "tap-1.pcap",
            "tap-2.pcap",
            "tap-4.pcap",
            "tap-5.pcapng",
            "tap-5.pcapng.part",
            "tap-8.pcapng",
            "tap-copy.pcapng",
            "wqcap-q00-1.pcap",
        ];
        assert_eq!(names(dir.path()), left);
    }
}
