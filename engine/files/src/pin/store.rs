//! Pins on the disk: a file of JSON each, in a hidden folder.

use super::{Pin, lock::FolderLock};
use crate::{folder::sync_folder, open::read_regular};
use jiff::Timestamp;
use serde::Serialize;
use std::{
    fs::{self, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, chown, fchown},
    path::{Path, PathBuf},
};

/// Pins of a folder, at most.
pub const MOST_PINS: usize = 1024;
/// The folder of pins, in that of the files.
const FOLDER: &str = ".wqcap-pins";
/// Ending of a pin's name, behind its ID.
const ENDING: &str = ".json";
/// Bytes of a pin's file, at most: its two texts with every character escaped, and the rest.
const MOST_BYTES: u64 = 64 << 10;

/// Why there is no such pin.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// It is no sound one.
    #[error("no pin: {0}")]
    Unsound(String),
    /// There is no room for another.
    #[error(
        "{}: has {} pins, the most a directory may have; `wqcap pin release` those that are not needed any more",
        .0.display(), MOST_PINS
    )]
    TooMany(PathBuf),
    /// Nobody has made it.
    #[error("{}: has no pin {id:?}; `wqcap pin list` shows those there are", .dir.display())]
    Unknown {
        /// Where it was looked for.
        dir: PathBuf,
        /// As it was named.
        id: String,
    },
    /// The file system.
    #[error("{}: {source}", .path.display())]
    Io {
        /// What it was about.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

/// A file that should be a pin and is none that can be told: it holds everything.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct UnsoundPin {
    /// The file, or the folder.
    pub path: PathBuf,
    /// Why.
    pub problem: String,
}

/// The pins of a folder as they are now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Pins by their IDs, in the order of those.
    pub sound: Vec<(String, Pin)>,
    /// Any of these: every file is held.
    pub unsound: Vec<UnsoundPin>,
    /// What is there beside them and was not opened, a line each.
    pub notes: Vec<String>,
}

/// The pins of a folder of capture files.
#[derive(Clone, Copy, Debug)]
pub struct PinFolder<'a> {
    /// The folder of capture files.
    pub dir: &'a Path,
}

/// What is behind a name.
enum Entry {
    Sound(String, Pin),
    Unsound(String),
    /// No file, which nobody opens.
    Other,
    /// Not any more.
    Gone,
}

impl PinFolder<'_> {
    fn folder(&self) -> PathBuf {
        self.dir.join(FOLDER)
    }

    /// Reads all pins there are.
    #[must_use]
    pub fn read(&self) -> Pins {
        let mut pins = Pins::default();
        let folder = self.folder();
        if let Err(problem) = self.read_into(&folder, &mut pins) {
            pins.unsound.push(UnsoundPin {
                path: folder,
                problem,
            });
        }
        pins.sound.sort_by(|a, b| a.0.cmp(&b.0));
        pins.unsound.sort();
        pins.notes.sort();
        pins
    }

    fn read_into(&self, folder: &Path, pins: &mut Pins) -> Result<(), String> {
        match fs::symlink_metadata(folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e.to_string()),
            Ok(it) if !it.is_dir() => return Err("is not a directory".into()),
            Ok(_) => {}
        }
        for entry in fs::read_dir(folder).map_err(|e| e.to_string())? {
            let path = entry.map_err(|e| e.to_string())?.path();
            let name = path.file_name().unwrap_or_default();
            // One that is being written.
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if pins.sound.len() + pins.unsound.len() >= MOST_PINS {
                return Err(format!(
                    "has more than {MOST_PINS} pins; the others were not read"
                ));
            }
            match entry_of(&path) {
                Entry::Sound(id, pin) => pins.sound.push((id, pin)),
                Entry::Unsound(problem) => pins.unsound.push(UnsoundPin { path, problem }),
                Entry::Other => {
                    let note = format!("{:?}: left out: not a regular file", path.display());
                    pins.notes.push(note);
                }
                Entry::Gone => {}
            }
        }
        Ok(())
    }

    /// Writes a pin; its ID.
    ///
    /// # Errors
    /// It is not sound, there are too many, or the folder cannot be written to.
    pub fn add(&self, pin: &Pin) -> Result<String, PinError> {
        if let Some(problem) = pin.problem() {
            return Err(PinError::Unsound(problem));
        }
        let folder = self.folder();
        let told = |source| PinError::Io {
            path: folder.clone(),
            source,
        };
        let _lock = FolderLock::take(self.dir);
        self.make_folder(&folder).map_err(told)?;
        let there = self.read();
        if there.sound.len() + there.unsound.len() >= MOST_PINS {
            return Err(PinError::TooMany(self.dir.to_owned()));
        }
        self.write(&folder, pin).map_err(told)
    }

    /// Whoever owns the files may release what holds them, and reads it whatever the umask: it is as visible as the
    /// folder.
    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        match fs::create_dir(folder) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            other => other?,
        }
        let owner = fs::metadata(self.dir)?;
        // Neither a capture in its sandbox nor an ordinary user can, and neither must: they are the owner.
        let _ = fs::set_permissions(folder, Permissions::from_mode(0o755));
        let _ = chown(folder, Some(owner.uid()), Some(owner.gid()));
        sync_folder(self.dir);
        Ok(())
    }

    fn write(&self, folder: &Path, pin: &Pin) -> io::Result<String> {
        let mut temporary = tempfile::Builder::new()
            .prefix(".wqcap-pin-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(folder)?;
        let text = serde_json::to_string_pretty(pin).map_err(io::Error::other)?;
        temporary.write_all(text.as_bytes())?;
        temporary.write_all(b"\n")?;
        let owner = fs::metadata(folder)?;
        let file = temporary.as_file();
        let _ = file.set_permissions(Permissions::from_mode(0o644));
        let _ = fchown(file, Some(owner.uid()), Some(owner.gid()));
        file.sync_all()?;
        let made = i64::try_from(pin.made_ns / 1_000_000_000).map_err(io::Error::other)?;
        let made = Timestamp::from_second(made).map_err(io::Error::other)?;
        let made = made.strftime("%Y%m%dT%H%M%SZ").to_string();
        for number in 1..=MOST_PINS {
            let id = match number {
                1 => made.clone(),
                n => format!("{made}-{n}"),
            };
            match temporary.persist_noclobber(folder.join(format!("{id}{ENDING}"))) {
                Ok(_) => {
                    sync_folder(folder);
                    return Ok(id);
                }
                Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => temporary = e.file,
                Err(e) => return Err(e.error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The pin of this ID.
    ///
    /// # Errors
    /// There is none, or it is not sound.
    pub fn find(&self, id: &str) -> Result<Pin, PinError> {
        let pins = self.read();
        let found = pins.sound.into_iter().find(|(of, _)| of == id);
        let unsound = || {
            let name = format!("{id}{ENDING}");
            let mut unsound = pins.unsound.iter();
            let it = unsound.find(|it| it.path.ends_with(&name))?;
            Some(PinError::Unsound(it.problem.clone()))
        };
        match found {
            Some((_, pin)) => Ok(pin),
            None => Err(unsound().unwrap_or_else(|| PinError::Unknown {
                dir: self.dir.to_owned(),
                id: id.to_owned(),
            })),
        }
    }

    /// Removes a pin, also one that is not sound.
    ///
    /// # Errors
    /// There is none, or it cannot be removed.
    pub fn release(&self, id: &str) -> Result<(), PinError> {
        let unknown = || PinError::Unknown {
            dir: self.dir.to_owned(),
            id: id.to_owned(),
        };
        // A name in the folder, and nothing else.
        if id.is_empty() || id.starts_with('.') || id.contains(['/', '\0']) {
            return Err(unknown());
        }
        let folder = self.folder();
        let path = folder.join(format!("{id}{ENDING}"));
        match fs::remove_file(&path) {
            Ok(()) => {
                sync_folder(&folder);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(unknown()),
            Err(source) => Err(PinError::Io { path, source }),
        }
    }
}

/// Reads one file. A pipe is never waited for, and a link not followed.
fn entry_of(path: &Path) -> Entry {
    let text = match read_regular(path, MOST_BYTES) {
        Ok(text) => text,
        Err(e) => {
            return match e.kind() {
                io::ErrorKind::InvalidInput => Entry::Other,
                io::ErrorKind::NotFound => Entry::Gone,
                io::ErrorKind::FileTooLarge => Entry::Unsound("too long for a pin".into()),
                _ => Entry::Unsound(e.to_string()),
            };
        }
    };
    let name = path.file_name().and_then(|it| it.to_str());
    let Some(id) = name.and_then(|it| it.strip_suffix(ENDING)) else {
        return Entry::Unsound(format!("a pin's name is its ID and {ENDING}"));
    };
    match serde_json::from_slice::<Pin>(&text) {
        Ok(pin) => match pin.problem() {
            None => Entry::Sound(id.to_owned(), pin),
            Some(problem) => Entry::Unsound(problem),
        },
        Err(e) => Entry::Unsound(format!("not a pin: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::fs::symlink;

    fn pin(reason: &str) -> Pin {
        Pin {
            from_ns: 5,
            to_ns: 10,
            filter: "tcp port 443".into(),
            reason: reason.into(),
            made_ns: 1_772_366_400_000_000_007,
        }
    }

    #[test]
    fn what_is_written_is_read_and_released() {
        let dir = tempfile::tempdir().expect("dir");
        let folder = PinFolder { dir: dir.path() };
        assert_eq!(folder.read(), Pins::default());
        let ids = ["alert 1", "alert 2"].map(|it| folder.add(&pin(it)).expect("written"));
        assert_eq!(ids, ["20260301T120000Z", "20260301T120000Z-2"]);
        let both = folder.read();
        let [one, two] = ["alert 1", "alert 2"].map(pin);
        let [id1, id2] = ids;
        assert_eq!(both.sound, [(id1.clone(), one), (id2.clone(), two.clone())]);
        assert_eq!((both.unsound.len(), both.notes.len()), (0, 0));
        let file = folder.folder().join(format!("{id1}.json"));
        let mode = fs::metadata(file).expect("there").mode();
        assert_eq!(mode & 0o777, 0o644, "whoever captures may be another user");
        folder.release(&id1).expect("there");
        assert_eq!(folder.read().sound, [(id2, two)]);
        for id in [&id1, "", ".", "../x", "a/b", "\0"] {
            assert!(
                matches!(folder.release(id), Err(PinError::Unknown { .. })),
                "{id:?}"
            );
        }
    }

    #[test]
    fn what_is_no_pin_is_not_written() {
        let dir = tempfile::tempdir().expect("dir");
        let folder = PinFolder { dir: dir.path() };
        let long = "x".repeat(Pin::LONGEST + 1);
        for (wrong, part) in [
            (
                Pin {
                    to_ns: 5,
                    ..pin("x")
                },
                "before its end",
            ),
            (pin(" "), "have a reason"),
            (pin("a\nb"), "one line"),
            (pin("\x1b[2J"), "one line"),
            (pin(&long), "4097 bytes"),
            (
                Pin {
                    filter: long.clone(),
                    ..pin("x")
                },
                "its filter has 4097",
            ),
        ] {
            let problem = folder.add(&wrong).expect_err(part).to_string();
            assert!(problem.contains(part), "{problem}");
        }
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 0);
        let most = pin(&"\"".repeat(Pin::LONGEST));
        folder.add(&most).expect("written");
        assert_eq!(folder.read().sound[0].1, most, "the longest is read");
    }

    #[test]
    fn what_cannot_be_told_is_unsound_and_what_is_no_file_is_not_opened() {
        let dir = tempfile::tempdir().expect("dir");
        let folder = PinFolder { dir: dir.path() };
        let id = folder.add(&pin("good")).expect("written");
        let at = |name: &str| folder.folder().join(name);
        let sound = fs::read_to_string(at(&format!("{id}.json"))).expect("there");
        for (name, text) in [
            ("torn.json", &sound[..sound.len() / 2]),
            ("empty.json", ""),
            (
                "more.json",
                &sound.replace("\"from_ns\"", "\"x\": 1, \"from_ns\""),
            ),
            ("ends.json", &sound.replace("\"to_ns\": 10", "\"to_ns\": 1")),
            ("huge.json", &" ".repeat(MOST_BYTES as usize + 1)),
            ("notes.txt", &sound),
        ] {
            fs::write(at(name), text).expect("written");
            let pins = folder.read();
            assert_eq!(pins.sound.len(), 1, "{name}");
            assert_eq!(pins.unsound.len(), 1, "{name}");
            assert_eq!(pins.unsound[0].path, at(name));
            fs::remove_file(at(name)).expect("there");
        }
        fs::write(at(".wqcap-pin-x"), "half").expect("being written");
        fs::create_dir(at("d.json")).expect("made");
        symlink(at(&format!("{id}.json")), at("l.json")).expect("linked");
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, at("p.json"), FileType::Fifo, mode, 0).expect("made");
        let pins = folder.read();
        assert_eq!((pins.sound.len(), pins.unsound.len()), (1, 0));
        assert_eq!(pins.notes.len(), 3, "{:?}", pins.notes);

        let dir = tempfile::tempdir().expect("dir");
        let folder = PinFolder { dir: dir.path() };
        symlink("/", folder.folder()).expect("linked");
        assert_eq!(folder.read().unsound.len(), 1);
    }

    #[test]
    fn there_is_an_end_to_their_number() {
        let dir = tempfile::tempdir().expect("dir");
        let folder = PinFolder { dir: dir.path() };
        let first = folder.add(&pin("x")).expect("written");
        let sound = fs::read(folder.folder().join(format!("{first}.json"))).expect("there");
        for i in 1..MOST_PINS {
            fs::write(folder.folder().join(format!("{i}.json")), &sound).expect("written");
        }
        assert!(folder.read().unsound.is_empty());
        assert!(matches!(folder.add(&pin("x")), Err(PinError::TooMany(_))));
        fs::write(folder.folder().join("more.json"), &sound).expect("written");
        assert_eq!(folder.read().unsound.len(), 1);
        folder.release("1").expect("there");
        folder.release("2").expect("there");
        folder.add(&pin("x")).expect("room again");
    }
}
