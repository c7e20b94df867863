//! Storage of pins, which protect capture files from deletion: one JSON file per pin, in a hidden
//! folder.

use super::{
    Pin,
    lock::FolderLock,
    problem::{ENDING, MOST_PINS, PinProblem},
};
use crate::folder::path_text;
use crate::folder::{open::read_regular, sync_folder};
use jiff::Timestamp;
use rustix::{
    fs::{Dir, Mode, OFlags, open},
    io::Errno,
};
use serde::Serialize;
use std::{
    fs::{self, File, Permissions},
    io::{self, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{MetadataExt, PermissionsExt, fchown},
    },
    path::{Path, PathBuf},
};

/// Name of the folder of pins, inside the folder of capture files.
const FOLDER: &str = ".wqcap-pins";
/// Maximum length of a pin's file in bytes: two texts of 4096 bytes, with every character escaped,
/// and the other fields.
const MOST_BYTES: u64 = 64 << 10;

/// Error of an operation on pins, which protect capture files from deletion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The pin that the user gave is invalid, for this reason.
    #[error("invalid pin: {0}")]
    Unsound(PinProblem),
    /// The capture folder has the maximum number of pins.
    #[error(
        "{}: the directory has {} pins, which is the limit; remove pins with `wqcap pin release`",
        .0.display(), MOST_PINS
    )]
    TooMany(PathBuf),
    /// The capture folder has no pin with this ID.
    #[error("{}: the directory has no pin {id:?}; `wqcap pin list` prints all IDs", .dir.display())]
    Unknown {
        /// Folder of capture files in which the pin was searched.
        dir: PathBuf,
        /// Pin ID that the user passed.
        id: String,
    },
    /// The file system refuses access to the pin's file or folder.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Path of the file or folder on which the pin operation failed.
        path: PathBuf,
        /// Error of the system call in a pin operation.
        source: io::Error,
    },
}

/// File in the folder of pins that is not a valid pin, so that all capture files are protected from
/// deletion.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct UnsoundPin {
    /// Path of the invalid pin, or of the folder of pins.
    #[serde(serialize_with = "path_text::serialize")]
    pub path: PathBuf,
    /// Reason why the file in the folder of pins is not a valid pin.
    pub problem: PinProblem,
}

/// Pins of a capture folder, which protect files from deletion, at the time of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Valid pins of the capture folder with their IDs, sorted by ID.
    pub sound: Vec<(String, Pin)>,
    /// Invalid pins of the capture folder. If there is any, every capture file is protected.
    pub unsound: Vec<UnsoundPin>,
    /// Notes on other entries of the folder of pins, which were not opened, one line each.
    pub notes: Vec<String>,
}

/// Access to the pins of a folder of capture files, which protect its files from deletion.
#[derive(Clone, Copy, Debug)]
pub struct PinFolder<'a> {
    /// Folder of capture files to which the pins belong.
    pub dir: &'a Path,
}

/// Result of reading one entry of the folder of pins.
enum PinEntry {
    Sound(String, Pin),
    Unsound(PinProblem),
    /// Entry of the pin folder that is not a regular file and is not opened.
    Other,
    /// Entry of the pin folder that was removed after it was listed.
    Gone,
}

impl PinFolder<'_> {
    fn folder(&self) -> PathBuf {
        self.dir.join(FOLDER)
    }

    /// Reads all pins of the capture folder, which protect files from deletion.
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

    fn read_into(&self, folder: &Path, pins: &mut Pins) -> Result<(), PinProblem> {
        match fs::symlink_metadata(folder) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e.into()),
            Ok(it) if !it.is_dir() => return Err(PinProblem::NotAFolder),
            Ok(_) => {}
        }
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            // Temporary file of a pin that is being written.
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if pins.sound.len() + pins.unsound.len() >= MOST_PINS {
                return Err(PinProblem::TooMany);
            }
            match entry_of(&path) {
                PinEntry::Sound(id, pin) => pins.sound.push((id, pin)),
                PinEntry::Unsound(problem) => pins.unsound.push(UnsoundPin { path, problem }),
                PinEntry::Other => {
                    let note = format!(
                        "{:?} is not a regular file and is left out of the pins",
                        path.display()
                    );
                    pins.notes.push(note);
                }
                PinEntry::Gone => {}
            }
        }
        Ok(())
    }

    /// Writes a pin to the capture folder and returns its ID.
    ///
    /// # Errors
    /// The pin is invalid, the folder has the maximum number of pins, or it cannot be written to.
    pub fn add(&self, pin: &Pin) -> Result<String, PinError> {
        if let Some(problem) = pin.problem() {
            return Err(PinError::Unsound(problem));
        }
        let folder = self.folder();
        let io_error = |source| PinError::Io {
            path: folder.clone(),
            source,
        };
        let _lock = FolderLock::take(self.dir);
        self.make_folder(&folder).map_err(io_error)?;
        let there = self.read();
        if there.sound.len() + there.unsound.len() >= MOST_PINS {
            return Err(PinError::TooMany(self.dir.to_owned()));
        }
        let folder = OpenFolder::new(&folder)?;
        self.write(&folder.path(), pin).map_err(io_error)
    }

    /// Creates the folder of pins if it is missing, and returns its path.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn prepare(&self) -> io::Result<PathBuf> {
        let folder = self.folder();
        self.make_folder(&folder)?;
        Ok(folder)
    }

    /// Creates the folder of pins with the owner of the capture folder and mode 0755, regardless of
    /// the umask: the owner of the files can then release and read pins.
    fn make_folder(&self, folder: &Path) -> io::Result<()> {
        match fs::create_dir(folder) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            other => other?,
        }
        // A user who may write to the folder of capture files may have put another folder or a link in
        // its place since then. A folder that was just made is empty.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = File::from(open(folder, flags, Mode::empty())?);
        if !is_empty(&made)? {
            return Ok(());
        }
        let owner = fs::metadata(self.dir)?;
        // Fails without harm for a capture in its sandbox and for an ordinary user: both are the
        // owner already.
        let _ = made.set_permissions(Permissions::from_mode(0o755));
        let _ = fchown(&made, Some(owner.uid()), Some(owner.gid()));
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

    /// Returns the pin of the capture folder with this ID.
    ///
    /// # Errors
    /// The folder has no pin of this ID, or the pin is invalid.
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

    /// Removes a pin from the capture folder, also an invalid one, so that it protects no file.
    pub fn release(&self, id: &str) -> Result<(), PinError> {
        let unknown = || PinError::Unknown {
            dir: self.dir.to_owned(),
            id: id.to_owned(),
        };
        // An ID is a plain file name in the folder.
        if id.is_empty() || id.starts_with('.') || id.contains(['/', '\0']) {
            return Err(unknown());
        }
        let folder = self.folder();
        let name = format!("{id}{ENDING}");
        let open = match OpenFolder::new(&folder) {
            Err(PinError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Err(unknown());
            }
            other => other?,
        };
        match fs::remove_file(open.path().join(&name)) {
            Ok(()) => {
                sync_folder(&folder);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(unknown()),
            Err(source) => Err(PinError::Io {
                path: folder.join(name),
                source,
            }),
        }
    }
}

/// Returns `true` if an open folder has no entries.
fn is_empty(folder: &File) -> io::Result<bool> {
    for entry in Dir::read_from(folder)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Open folder of pins. A link is not followed: a process that may write to the folder of capture
/// files could otherwise direct changes that root makes to another folder.
struct OpenFolder(OwnedFd);

impl OpenFolder {
    fn new(folder: &Path) -> Result<Self, PinError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match open(folder, flags, Mode::empty()) {
            Ok(it) => Ok(Self(it)),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(PinError::Unsound(PinProblem::NotAFolder)),
            Err(e) => Err(PinError::Io {
                path: folder.to_owned(),
                source: e.into(),
            }),
        }
    }

    /// Returns a path that stays that of this folder, whatever is renamed (proc_pid_fd(5)).
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// Reads one entry of the folder of pins. Pipes are not waited for, and links are not followed.
fn entry_of(path: &Path) -> PinEntry {
    let text = match read_regular(path, MOST_BYTES) {
        Ok(text) => text,
        Err(e) => {
            return match e.kind() {
                io::ErrorKind::InvalidInput => PinEntry::Other,
                io::ErrorKind::NotFound => PinEntry::Gone,
                io::ErrorKind::FileTooLarge => PinEntry::Unsound(PinProblem::FileLength),
                _ => PinEntry::Unsound(e.into()),
            };
        }
    };
    let name = path.file_name().and_then(|it| it.to_str());
    let Some(id) = name.and_then(|it| it.strip_suffix(ENDING)) else {
        return PinEntry::Unsound(PinProblem::FileName);
    };
    match serde_json::from_slice::<Pin>(&text) {
        Ok(pin) => match pin.problem() {
            None => PinEntry::Sound(id.to_owned(), pin),
            Some(problem) => PinEntry::Unsound(problem),
        },
        Err(e) => PinEntry::Unsound(PinProblem::Content(e.to_string())),
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
    fn a_link_in_the_place_of_the_pins_leads_nowhere() {
        let (dir, other) = (tempfile::tempdir(), tempfile::tempdir());
        let (dir, other) = (dir.expect("dir"), other.expect("dir"));
        let folder = PinFolder { dir: dir.path() };
        assert!(matches!(folder.release("a"), Err(PinError::Unknown { .. })));
        symlink(other.path(), dir.path().join(FOLDER)).expect("linked");
        fs::write(other.path().join("a.json"), "important").expect("written");
        for refused in [folder.add(&pin("alert")).map(drop), folder.release("a")] {
            assert!(matches!(
                refused,
                Err(PinError::Unsound(PinProblem::NotAFolder))
            ));
        }
        assert_eq!(fs::read_dir(other.path()).expect("listed").count(), 1);
    }

    #[test]
    fn written_pins_are_read_and_released() {
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
        assert_eq!(
            mode & 0o777,
            0o644,
            "readable for a capture of another user"
        );
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
    fn invalid_pins_are_not_written() {
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
                "the pin's filter has 4097",
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
    fn invalid_files_are_unsound_and_irregular_files_are_not_opened() {
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
    fn the_number_of_pins_is_limited() {
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
        folder.add(&pin("x")).expect("below the limit again");
    }
}
