//! Check of the paths for `output.hook`: only files that the capture has just finished are admitted.
//!
//! A capture parses foreign bytes, and a hook runs with more rights than a capture in its sandbox. The
//! hook process therefore does not trust the paths that it receives.
//!
//! Invariant: an admitted path is absolute and has no link below `output.dir`.

use crate::post::own_files::is_named;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, statat},
    io::Errno,
};
use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
    time::{Duration, SystemTime},
};
use wqcap_core::sync::wall_clock::{Moment, StepWatch};
use wqcap_files::name::NameTemplate;

/// Longest time between the last change of a finished file (its rename to its final name) and its
/// hook.
const RECENT: Duration = Duration::from_secs(600);

/// Reason of the hook process for not running `output.hook` for a path.
#[derive(Debug, thiserror::Error)]
pub(super) enum HookRefusal {
    #[error("the file is not in output.dir or a directory below it")]
    Outside,
    #[error("the path of the file has control characters or is not UTF-8")]
    Unprintable,
    #[error("the name of the file is not that of a finished capture file")]
    Name,
    #[error("the file cannot be reached without following a symbolic link: {0}")]
    Unreachable(Errno),
    #[error("the path is not that of a regular file")]
    Kind,
    #[error("the file was last changed {0} s ago; the hook is run only for files that were changed in the last {limit} s", limit = RECENT.as_secs())]
    Old(u64),
    #[error("the time of the file's last change is {0} s in the future")]
    Future(u64),
}

/// Gate of the hook process: decides for which paths `output.hook` runs.
#[derive(Debug)]
pub struct HookGate {
    /// Path of `output.dir` as the capture spells it.
    given: PathBuf,
    /// Path of `output.dir` without symbolic links.
    real: PathBuf,
    name: NameTemplate,
    clock: StepWatch,
    /// Time at which the gate last checked a path.
    last: Moment,
    /// Time at which the gate last checked a path before the clock's last step.
    before_step: Option<Moment>,
}

impl HookGate {
    /// Creates a hook gate that admits files of the directory `dir` named by the template `name`.
    ///
    /// # Errors
    /// The directory does not exist or is not accessible.
    pub fn new(dir: &Path, name: NameTemplate) -> io::Result<Self> {
        let now = Moment::now();
        Ok(Self {
            given: dir.to_owned(),
            real: dir.canonicalize()?,
            name,
            clock: StepWatch::new(now),
            last: now,
            before_step: None,
        })
    }

    /// Returns the absolute path to pass to the hook, or the reason for refusing `path`.
    pub(super) fn admit(&mut self, path: &[u8], now: Moment) -> Result<PathBuf, HookRefusal> {
        let last = std::mem::replace(&mut self.last, now);
        if self.clock.step(now).is_some() {
            self.before_step = Some(last);
        }
        let place = Path::new(OsStr::from_bytes(path));
        let place = place
            .strip_prefix(&self.given)
            .map_err(|_| HookRefusal::Outside)?;
        let text = place.to_str().ok_or(HookRefusal::Unprintable)?;
        if text.chars().any(char::is_control) {
            return Err(HookRefusal::Unprintable);
        }
        let names = place.components().map(|it| match it {
            Component::Normal(name) => Ok(name),
            _ => Err(HookRefusal::Outside),
        });
        let names = names.collect::<Result<Vec<_>, _>>()?;
        let (file, folders) = names.split_last().ok_or(HookRefusal::Outside)?;
        let place: PathBuf = names.iter().collect();
        if !is_named(&self.name, &place) {
            return Err(HookRefusal::Name);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut folder = openat(CWD, &self.real, flags, Mode::empty());
        for name in folders {
            folder = folder.and_then(|it| openat(&it, *name, flags, Mode::empty()));
        }
        let found = folder.and_then(|it| statat(&it, *file, AtFlags::SYMLINK_NOFOLLOW));
        let found = found.map_err(HookRefusal::Unreachable)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(HookRefusal::Kind);
        }
        let changed = SystemTime::UNIX_EPOCH
            + Duration::new(
                u64::try_from(found.st_ctime).unwrap_or(0),
                u32::try_from(found.st_ctime_nsec).unwrap_or(0),
            );
        self.require_recent(changed, now)?;
        Ok(self.real.join(place))
    }

    /// Refuses a finished file that was changed too long ago. After a step of the clock, a file
    /// that was changed before the step is compared with the clock as it was before.
    fn require_recent(&self, changed: SystemTime, now: Moment) -> Result<(), HookRefusal> {
        let refusal = match require_recent_by(changed, now.wall) {
            Err(refusal) if self.clock.steady_for(now) <= RECENT => refusal,
            judged => return judged,
        };
        let before = self.before_step.ok_or(refusal)?;
        require_recent_by(changed, before.wall + now.boot.saturating_sub(before.boot))
    }
}

fn require_recent_by(changed: SystemTime, now: SystemTime) -> Result<(), HookRefusal> {
    match now.duration_since(changed) {
        Ok(age) if age > RECENT => Err(HookRefusal::Old(age.as_secs())),
        Err(e) if e.duration() > RECENT => Err(HookRefusal::Future(e.duration().as_secs())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    fn refusal(gate: &mut HookGate, path: impl AsRef<OsStr>) -> String {
        let refused = gate.admit(path.as_ref().as_bytes(), Moment::now());
        refused.expect_err("refused").to_string()
    }

    #[test]
    fn only_finished_files_of_the_folder_are_admitted() {
        let place = tempfile::tempdir().expect("dir");
        let place = place.path().canonicalize().expect("there");
        let (dir, other) = (place.join("out"), place.join("other"));
        fs::create_dir_all(dir.join("20261126")).expect("made");
        fs::create_dir(&other).expect("made");
        let own = ["wqcap-q00-1.pcapng", "wqcap-q01-2.pcap.zst.enc"];
        for path in own.map(|it| dir.join(it)) {
            fs::write(path, "frames").expect("written");
        }
        symlink(&dir, place.join("link")).expect("made");
        // The path of the directory itself may have links, because the operator chose it.
        for given in [&dir, &place.join("link")] {
            let mut gate = HookGate::new(given, NameTemplate::default()).expect("there");
            for name in own {
                let path = given.join(name);
                let admitted = gate.admit(path.as_os_str().as_bytes(), Moment::now());
                assert_eq!(admitted.expect("admitted"), dir.join(name));
            }
        }

        let mut gate = HookGate::new(&dir, NameTemplate::default()).expect("there");
        fs::write(other.join("wqcap-q00-1.pcapng"), "theirs").expect("written");
        symlink(
            other.join("wqcap-q00-1.pcapng"),
            dir.join("wqcap-q00-3.pcap"),
        )
        .expect("made");
        symlink(&other, dir.join("way")).expect("made");
        fs::create_dir(dir.join("wqcap-q00-4.pcap")).expect("made");
        let fifo = dir.join("wqcap-q00-5.pcap");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, 0o600.into(), 0).expect("made");
        fs::write(dir.join("wqcap-q00-6.pcap.part"), "open").expect("written");
        fs::write(dir.join("wqcap-q00-7\n.pcap"), "x").expect("written");
        let at = |name: &str| dir.join(name).into_os_string();
        for (path, reason) in [
            ("/etc/hostname".into(), "not in output.dir"),
            ("--help".into(), "not in output.dir"),
            ("a\nb\u{1b}[31m; touch pwn".into(), "not in output.dir"),
            (dir.clone().into_os_string(), "not in output.dir"),
            (at("../other/wqcap-q00-1.pcapng"), "not in output.dir"),
            (at("wqcap-q00-7\n.pcap"), "control characters"),
            (at("way/wqcap-q00-1.pcapng"), "that of a finished"),
            (at("wqcap-q00-6.pcap.part"), "that of a finished"),
            (at("holiday.pcap"), "that of a finished"),
            (at("wqcap-q00-3.pcap"), "not that of a regular file"),
            (at("wqcap-q00-4.pcap"), "not that of a regular file"),
            (at("wqcap-q00-5.pcap"), "not that of a regular file"),
            (at("wqcap-q00-8.pcap"), "cannot be reached"),
        ] {
            let refusal = refusal(&mut gate, &path);
            assert!(refusal.contains(reason), "{path:?}: {refusal}");
        }
        // Links among the subdirectories of a template are refused too.
        let template: NameTemplate = "%Y/q{queue}".parse().expect("reads");
        let mut gate = HookGate::new(&dir, template).expect("there");
        fs::write(other.join("q00.pcap"), "theirs").expect("written");
        symlink(&other, dir.join("2026")).expect("made");
        assert!(refusal(&mut gate, at("2026/q00.pcap")).contains("cannot be reached"));
        fs::create_dir(dir.join("2027")).expect("made");
        fs::write(dir.join("2027/q00.pcap"), "frames").expect("written");
        let path = at("2027/q00.pcap");
        assert!(gate.admit(path.as_bytes(), Moment::now()).is_ok());
    }

    #[test]
    fn old_files_are_refused_and_a_step_of_the_clock_makes_none_old() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("wqcap-q00-1.pcapng");
        fs::write(&path, "frames").expect("written");
        let path = path.as_os_str().as_bytes();
        let mut gate = HookGate::new(dir.path(), NameTemplate::default()).expect("there");
        let start = Moment::now();
        let later = |wall: u64, boot: u64| Moment {
            wall: start.wall + Duration::from_secs(wall),
            boot: start.boot + Duration::from_secs(boot),
        };
        assert!(gate.admit(path, later(590, 590)).is_ok());
        let refusal = gate.admit(path, later(660, 660)).expect_err("old");
        assert!(matches!(refusal, HookRefusal::Old(600..=661)), "{refusal}");
        // The clock is set forward by an hour: the file was changed before that.
        let mut gate = HookGate::new(dir.path(), NameTemplate::default()).expect("there");
        assert!(gate.admit(path, later(3605, 5)).is_ok());
        assert!(gate.admit(path, later(3606, 6)).is_ok());
        // The clock is set back.
        assert!(gate.admit(path, later(7, 7)).is_ok());
        assert!(gate.admit(path, later(700, 700)).is_err());
    }
}
