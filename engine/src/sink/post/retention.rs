//! `output.keep` and `output.keep_files`: the oldest finished files go first.
//!
//! Invariants: only regular files with a capture file's name go, never an open one (its name ends in `.part`) and
//! never a link. A name of `output.name`'s may be anybody's file: of those, only what this run has finished goes, and only
//! as long as it is the same file. What there is, is looked up anew before anything is deleted: a hook or a person may have taken files
//! away meanwhile, and others must not pay for them. A thread of its own: no block and no sync waits for it.
//!
//! A disk that is full before `output.keep` is reached makes the oldest files go too: whoever names a limit wants the
//! newest frames rather than the oldest.

use crate::{
    Error,
    config::{Keep, Size},
    name::FileName,
    plan::Retention,
    thread::spawn,
};
use crossbeam_channel::{Receiver, Sender};
use rustix::fs::statvfs;
use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Between two looks at the folder, at least: with thousands of files a look costs milliseconds.
const REST: Duration = Duration::from_millis(100);

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

/// Files of names that are not recognised, in the order in which this run has finished them.
#[derive(Default)]
struct OwnFiles(Mutex<Vec<OwnFile>>);

struct OwnFile {
    path: PathBuf,
    id: FileId,
}

/// Which file that is. An inode may be used again: the time of the last write tells the two apart.
#[derive(PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    written: (i64, i64),
}

impl FileId {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl RetentionTrigger {
    /// There is this file more.
    pub(in crate::sink) fn finished(&self, path: &Path) {
        if let Some(own) = &self.own
            && let Ok(metadata) = fs::symlink_metadata(path)
            && let Ok(mut files) = own.0.lock()
        {
            files.push(OwnFile {
                path: path.to_owned(),
                id: FileId::of(&metadata),
            });
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

/// Starts a thread that looks at the folder at once, after each ring, and a last time when the trigger is gone; then it
/// ends. `room` is what a full disk takes to go on. `recognised`: files have names that tell what they are.
pub(super) fn start(
    dir: &Path,
    keep: Retention,
    room: u64,
    recognised: bool,
) -> Result<(JoinHandle<DeletedFiles>, RetentionTrigger), Error> {
    let (trigger, rings) = crossbeam_channel::bounded(1);
    let trigger = RetentionTrigger {
        rings: trigger,
        room: Arc::default(),
        own: (!recognised).then(Arc::default),
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
            let asked = asked.swap(false, Ordering::AcqRel) && self.keep.keep != Keep::default();
            let room = if asked { room } else { 0 };
            match self.tidy(room, &mut deleted) {
                Ok(()) => last.clear(),
                // Told once, not at every look.
                Err(e) if e != last => {
                    tracing::warn!("output.keep: {e}; newer files stay until that works again");
                    last = e;
                }
                Err(_) => {}
            }
            if rings.recv().is_err() {
                return deleted;
            }
            std::thread::sleep(REST);
        }
    }

    fn finished(&self) -> io::Result<Vec<Old>> {
        match &self.own {
            None => finished(&self.dir),
            Some(own) => Ok(own.there()),
        }
    }
}

impl OwnFiles {
    /// Those that are still there.
    fn there(&self) -> Vec<Old> {
        let Ok(mut files) = self.0.lock() else {
            return Vec::new();
        };
        let mut old = Vec::new();
        files.retain(|file| {
            let Ok(metadata) = fs::symlink_metadata(&file.path) else {
                return false;
            };
            // Another file may have the name by now.
            let same = metadata.is_file() && FileId::of(&metadata) == file.id;
            if same {
                old.push(Old {
                    age: old.len() as u64,
                    len: metadata.len(),
                    path: file.path.clone(),
                });
            }
            same
        });
        old
    }
}

/// A finished file.
struct Old {
    /// When it began, or its number: the lowest goes first.
    age: u64,
    path: PathBuf,
    len: u64,
}

impl Keeper {
    /// Deletes the oldest files until what is left is within the limits, and `room` bytes more are free.
    fn tidy(&self, room: u64, deleted: &mut DeletedFiles) -> Result<(), String> {
        let (dir, keep) = (&self.dir, self.keep);
        let told = |e: io::Error| format!("cannot look at {}: {e}", dir.display());
        let mut old = self.finished().map_err(told)?;
        let most = match keep.keep {
            Keep::Size(Size(0)) => u64::MAX,
            Keep::Size(Size(n)) => n,
            Keep::Percent(n) => {
                let disk = statvfs(dir).map_err(|e| told(e.into()))?;
                disk.f_blocks.saturating_mul(disk.f_frsize) / 100 * u64::from(n)
            }
        };
        let most_files = match keep.files {
            0 => usize::MAX,
            n => usize::try_from(n).unwrap_or(usize::MAX),
        };
        old.sort_by(|a, b| (b.age, &b.path).cmp(&(a.age, &a.path)));
        let mut bytes: u64 = old.iter().map(|it| it.len).sum();
        let most = most.min(bytes.saturating_sub(room));
        while bytes > most || old.len() > most_files {
            let Some(it) = old.pop() else { break };
            match fs::remove_file(&it.path) {
                Ok(()) => {
                    tracing::debug!("deleted {} ({} bytes)", it.path.display(), it.len);
                    deleted.bytes += it.len;
                    deleted.files.insert(it.path);
                }
                // Somebody else was faster.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(format!("cannot delete {}: {e}", it.path.display())),
            }
            bytes -= it.len;
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
                age: start_ns,
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
        keeper.tidy(0, deleted).expect("tidies");
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
        let keep = |keep, files| Retention { keep, files };
        let newest = ["wqcap-q00-100.pcapng.zst", "wqcap-q00-20.pcap"];
        assert_eq!(left(&FILES, keep(Keep::Size(Size(250)), 0)), newest);
        assert_eq!(left(&FILES, keep(Keep::Size(Size(200)), 0)), newest);
        assert_eq!(left(&FILES, keep(Keep::default(), 2)), newest);
        assert_eq!(left(&FILES, keep(Keep::Size(Size(200)), 3)), newest);
        assert_eq!(left(&FILES, keep(Keep::Size(Size(400)), 4)).len(), 4);
        assert_eq!(left(&FILES, keep(Keep::Size(Size(99)), 0)).len(), 0);
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
        ]);
        let outside = folder(&[("wqcap-q00-3.pcap", 100)]);
        let target = outside.path().join("wqcap-q00-3.pcap");
        std::os::unix::fs::symlink(&target, dir.path().join("wqcap-q00-3.pcap")).expect("link");
        fs::create_dir(dir.path().join("wqcap-q00-4.pcap")).expect("folder");
        let mut deleted = DeletedFiles::default();
        let keep = Retention {
            keep: Keep::Size(Size(1)),
            files: 1,
        };
        tidy(dir.path(), keep, &mut deleted);
        assert_eq!(
            names(dir.path()),
            [
                "holiday.pcap",
                "wqcap-q00-1.pcap.gz",
                "wqcap-q00-1.pcap.part",
                "wqcap-q00-3.pcap",
                "wqcap-q00-4.pcap"
            ]
        );
        assert!(target.exists());
        assert_eq!((deleted.files.len(), deleted.bytes), (1, 100));
    }

    #[test]
    fn a_full_disk_takes_the_oldest_where_bytes_are_limited() {
        for (keep, want) in [(Keep::Size(Size(1 << 20)), 2), (Keep::default(), 4)] {
            let dir = folder(&FILES);
            let keep = Retention { keep, files: 9 };
            let (keeper, trigger) = start(dir.path(), keep, 150, true).expect("starts");
            trigger.ask_for_room();
            drop(trigger);
            let deleted = keeper.join().expect("ends");
            assert_eq!(names(dir.path()).len(), want);
            assert_eq!(deleted.files.len(), 4 - want);
        }
    }

    #[test]
    fn a_ring_is_answered_and_the_end_is_too() {
        let dir = folder(&FILES);
        let keep = Retention {
            keep: Keep::default(),
            files: 1,
        };
        let (keeper, trigger) = start(dir.path(), keep, 150, true).expect("starts");
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
    fn of_any_name_only_this_runs_own_files_go() {
        let dir = folder(&[
            ("b.pcap", 10),
            ("a.pcap", 10),
            ("stranger.pcap", 10),
            ("wqcap-q00-1.pcap", 10),
            ("replaced.pcap", 10),
        ]);
        let at = |name| dir.path().join(name);
        let keep = Retention {
            keep: Keep::default(),
            files: 1,
        };
        let own = Arc::<OwnFiles>::default();
        let (rings, _looks) = crossbeam_channel::bounded(1);
        let trigger = RetentionTrigger {
            rings,
            room: Arc::default(),
            own: Some(Arc::clone(&own)),
        };
        for name in ["replaced.pcap", "b.pcap", "a.pcap"] {
            trigger.finished(&at(name));
        }
        fs::write(at("new"), "somebody else's").expect("written");
        fs::rename(at("new"), at("replaced.pcap")).expect("renamed");
        let keeper = Keeper {
            dir: dir.path().to_owned(),
            keep,
            own: Some(own),
        };
        let mut deleted = DeletedFiles::default();
        keeper.tidy(0, &mut deleted).expect("tidies");
        let left = [
            "a.pcap",
            "replaced.pcap",
            "stranger.pcap",
            "wqcap-q00-1.pcap",
        ];
        assert_eq!(names(dir.path()), left);
        assert_eq!(deleted.files, HashSet::from([at("b.pcap")]));
    }
}
