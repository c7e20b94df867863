//! Input of a `pcap` wire: a capture file, standard input, or all files of a folder in the order of
//! time.
//!
//! Invariant: memory is bounded, whatever the files hold. An input of more than
//! [`Limits::resident`] bytes is read again for each round, in chunks of [`Limits::chunk`] bytes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use wqcap_pcap::name::{natural_order, resembles_capture};
use wqcap_pcap::read::ReadError;

use super::super::error::WireError;
use super::super::spec::WireSpec;
use super::super::spec::pcap::PcapSpec;
use super::index::{FileNotes, FrameChunk, FrameReader, IndexError, PcapRecord};

/// Maximum number of names in the note on a folder's files that are not captures.
const MOST_NAMES: usize = 3;
/// Maximum number of files of a folder that are read at the same time, because the times of their
/// frames overlap. A capture has a file for each queue, and ports have at most this many queues. A
/// compressed file takes a few MiB of memory, and 128 MiB at most.
const MOST_OPEN: usize = 64;

/// Limits of the memory for the frames of a `pcap` wire, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum number of bytes of frames of an input that stays in memory. Playing it from there
    /// costs almost nothing.
    pub(super) resident: usize,
    /// Number of bytes of frames that are read at a time from a larger input.
    pub(super) chunk: usize,
}

impl Limits {
    /// Usual limits of a `pcap` wire's memory. A looped test capture fits, and so do the wires of
    /// several ports in a small machine.
    pub(super) const USUAL: Self = Self {
        resident: 256 << 20,
        chunk: 4 << 20,
    };
}

/// Input of a `pcap` wire; the frames that are played next are in a separate [`FrameChunk`].
pub(super) struct Source {
    limits: Limits,
    /// `true` if the input can be read only once, such as a pipe.
    is_stream: bool,
    rest: Rest,
    is_first_round: bool,
    skipped: u64,
    notes: Vec<String>,
}

/// Rest of a `pcap` wire's input: the files whose frames are not all in memory.
enum Rest {
    /// All frames of the `pcap` wire's input are in memory.
    Nothing,
    File(Box<FileStream>),
    Folder(Box<FolderStream>),
}

impl Source {
    /// Reads the input of a `pcap` wire from its start, and returns its first frames.
    pub(super) fn open(
        wire: &WireSpec,
        spec: &PcapSpec,
        limits: Limits,
    ) -> Result<(Self, FrameChunk), WireError> {
        let file = &spec.file[..];
        let path = match file {
            "-" => Path::new("/dev/stdin"),
            file => Path::new(file),
        };
        let result = if path.is_dir() {
            Self::open_folder(path, limits)
        } else {
            Self::open_file(path, file, limits, spec.rounds)
        };
        let with_kind = |(mut source, frames): (Self, FrameChunk)| {
            source.is_stream = !path.is_dir() && !path.is_file();
            (source, frames)
        };
        result.map(with_kind).map_err(
            |InputError {
                 shown,
                 source,
                 is_read,
             }| {
                let advice = match shown.rsplit_once(',') {
                    Some((_, word)) if source.kind() == io::ErrorKind::NotFound => format!(
                        "`,{word}` was read as part of the file's name: the options of a pcap wire are \
                     loop=N, pps=N, speed=X and lossy"
                    ),
                    _ => String::new(),
                };
                let action = if is_read { "parse" } else { "read" };
                WireError::new(wire, format!("cannot {action} {shown}"), source, advice)
            },
        )
    }

    /// Returns a `pcap` wire's input whose frames are all in memory, with the notes on it.
    fn resident(limits: Limits, noted: FileNotes) -> Self {
        Self {
            limits,
            is_stream: false,
            rest: Rest::Nothing,
            is_first_round: true,
            skipped: noted.skipped,
            notes: noted.notes,
        }
    }

    fn open_file(
        path: &Path,
        shown: &str,
        limits: Limits,
        rounds: u64,
    ) -> Result<(Self, FrameChunk), InputError> {
        let mut frames = FrameChunk::default();
        let mut file = FileStream::open(path, shown)?;
        let is_whole = file.read(&mut frames, limits.resident);
        if is_whole {
            let noted = file.finish()?;
            return Ok((Self::resident(limits, noted), frames));
        }
        if rounds != 1 && !path.is_file() {
            let e = io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!(
                    "it is not a regular file and has more than {} bytes of frames, so that it can be played only once; \
                     write it to a file first, or leave loop out",
                    limits.resident
                ),
            );
            return Err(InputError::unread(shown, e));
        }
        let mut it = Self::resident(limits, FileNotes::default());
        it.rest = Rest::File(Box::new(file));
        Ok((it, frames))
    }

    /// Reads the capture files of a folder, whatever their names are. A file that cannot be read is
    /// noted and does not prevent the others from being read.
    fn open_folder(folder: &Path, limits: Limits) -> Result<(Self, FrameChunk), InputError> {
        let shown = folder.display().to_string();
        let paths = files(folder).map_err(|e| InputError::unread(&shown, e))?;
        let (mut whole, mut left) = (Vec::new(), limits.resident);
        let noted = each_capture(&shown, &paths, |path, name| {
            let mut frames = FrameChunk::default();
            let mut file = FileStream::open(path, name)?;
            if !file.read(&mut frames, left) {
                return Ok(Flow::Stop);
            }
            left -= frames.memory().min(left);
            let first = file.first_stamp();
            let noted = file.finish()?;
            whole.push((first, frames));
            Ok(Flow::Read(noted))
        })?;
        if let Some(noted) = noted {
            return Ok((Self::resident(limits, noted), in_order_of_time(whole)));
        }
        drop(whole);
        let mut stream = FolderStream::default();
        let noted = each_capture(&shown, &paths, |path, name| stream.add(path, name))?;
        let mut it = Self::resident(limits, noted.unwrap_or_default());
        stream.begin();
        it.rest = Rest::Folder(Box::new(stream));
        let mut frames = FrameChunk::default();
        it.refill(&mut frames);
        Ok((it, frames))
    }

    /// Replaces `frames`, which have been played, by the next ones of the input. Returns `false` at
    /// the end of a round.
    pub(super) fn refill(&mut self, frames: &mut FrameChunk) -> bool {
        let most = self.limits.chunk;
        let room = match &self.rest {
            Rest::Nothing => return false,
            _ if frames.memory() > 2 * most => FrameChunk::default(),
            _ => std::mem::take(frames),
        };
        *frames = room;
        frames.clear();
        let noted = match &mut self.rest {
            Rest::Nothing => return false,
            Rest::File(file) => {
                file.read(frames, most);
                file.take_notes()
            }
            Rest::Folder(folder) => folder.read(frames, most),
        };
        if self.is_first_round {
            self.skipped += noted.skipped;
            self.notes.extend(noted.notes);
        }
        !frames.records.is_empty()
    }

    /// Returns `true` if all frames of the `pcap` wire's input are in memory.
    pub(super) fn is_resident(&self) -> bool {
        matches!(self.rest, Rest::Nothing)
    }

    /// Begins the next round of an input that is not in memory as a whole, and reads its first
    /// frames. Returns `false` if the input has no frames any more.
    pub(super) fn restart(&mut self, frames: &mut FrameChunk) -> bool {
        let reopened = match &mut self.rest {
            Rest::Nothing => return false,
            Rest::File(file) => file.reopen(),
            Rest::Folder(folder) => {
                folder.begin();
                Ok(())
            }
        };
        if let Err(e) = reopened {
            self.notes.push(format!("{}: {}", e.shown, e.source));
            return false;
        }
        self.is_first_round = false;
        self.refill(frames)
    }

    /// Returns `true` if the input of the `pcap` wire can be read only once, such as a pipe.
    pub(super) fn is_stream(&self) -> bool {
        self.is_stream
    }

    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Capture file that a `pcap` wire reads in chunks.
struct FileStream {
    path: PathBuf,
    /// Name of the capture file in messages.
    shown: String,
    /// Reader of the capture file; `None` after its end.
    reader: Option<FrameReader<File>>,
    /// Set when all frames of the capture file have been read.
    is_read: bool,
}

impl FileStream {
    fn open(path: &Path, shown: &str) -> Result<Self, InputError> {
        let mut it = Self {
            path: path.to_owned(),
            shown: shown.to_owned(),
            reader: None,
            is_read: false,
        };
        it.reopen()?;
        Ok(it)
    }

    /// Opens the capture file again, to read it from its first frame.
    fn reopen(&mut self) -> Result<(), InputError> {
        let file = File::open(&self.path).map_err(|e| InputError::unread(&self.shown, e))?;
        self.reader = Some(FrameReader::new(file).map_err(|e| self.unplayable(e))?);
        self.is_read = false;
        Ok(())
    }

    /// Adds frames of the capture file to `frames` until they take `most` bytes. Returns `true` if
    /// the file has no further frames.
    fn read(&mut self, frames: &mut FrameChunk, most: usize) -> bool {
        let Some(reader) = &mut self.reader else {
            return true;
        };
        while !self.is_read && frames.memory() < most {
            self.is_read = !reader.append_next(frames);
        }
        self.is_read
    }

    fn first_stamp(&self) -> u64 {
        self.reader.as_ref().map_or(0, FrameReader::first_stamp)
    }

    /// Closes the capture file after its last frame, and returns the notes on it.
    fn finish(&mut self) -> Result<FileNotes, InputError> {
        let Some(reader) = self.reader.take() else {
            return Ok(FileNotes::default());
        };
        let mut noted = reader.finish().map_err(|e| self.unplayable(e))?;
        for note in &mut noted.notes {
            *note = format!("{}: {note}", self.shown);
        }
        Ok(noted)
    }

    /// Closes the capture file and returns the notes on it if all of its frames have been read;
    /// otherwise returns no notes.
    fn take_notes(&mut self) -> FileNotes {
        if !self.is_read {
            return FileNotes::default();
        }
        self.finish().unwrap_or_else(|e| FileNotes {
            skipped: 0,
            notes: vec![format!("{}: {}", e.shown, e.source)],
        })
    }

    fn unplayable(&self, error: IndexError) -> InputError {
        match error {
            IndexError::Read(ReadError::Io { source, .. }) if source.raw_os_error().is_some() => {
                InputError::unread(&self.shown, source)
            }
            error => InputError {
                shown: self.shown.clone(),
                is_read: true,
                source: io::Error::new(io::ErrorKind::InvalidData, error),
            },
        }
    }
}

/// Capture files of a folder that are read in chunks, with their frames merged by time. A file is
/// open only while frames of it are due.
#[derive(Default)]
struct FolderStream {
    files: Vec<FolderFile>,
    /// Time stamp of each file's next frame, with the file's index. The earliest one is on top.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    /// Number of the folder's capture files that are open.
    open: usize,
}

/// Capture file of a folder; its frames are merged with those of the other files.
struct FolderFile {
    path: PathBuf,
    shown: String,
    /// Time stamp of the capture file's first frame in nanoseconds.
    first: u64,
    /// Open capture file, while frames of it are due.
    stream: Option<FileStream>,
    /// Next frame of the open capture file.
    head: FrameChunk,
}

impl FolderStream {
    /// Adds a capture file of the folder; only the file's first frame is read.
    fn add(&mut self, path: &Path, name: &str) -> Result<Flow, InputError> {
        let mut stream = FileStream::open(path, name)?;
        let mut head = FrameChunk::default();
        if stream.read(&mut head, 1) {
            return Ok(Flow::Read(stream.finish()?));
        }
        self.files.push(FolderFile {
            path: path.to_owned(),
            shown: name.to_owned(),
            first: stream.first_stamp(),
            stream: None,
            head: FrameChunk::default(),
        });
        Ok(Flow::Read(FileNotes::default()))
    }

    /// Begins a round at the first frame of all files of the folder.
    fn begin(&mut self) {
        self.open = 0;
        for file in &mut self.files {
            file.stream = None;
        }
        let firsts = self.files.iter().map(|it| it.first);
        self.next = firsts.zip(0..).map(Reverse).collect();
    }

    /// Adds merged frames of the folder to `frames` until they take `most` bytes. Returns the notes
    /// on the files that ended.
    fn read(&mut self, frames: &mut FrameChunk, most: usize) -> FileNotes {
        let start = self.files.iter().map(|it| it.first).min().unwrap_or(0);
        let mut noted = FileNotes::default();
        while frames.memory() < most {
            let Some(Reverse((stamp, index))) = self.next.pop() else {
                break;
            };
            let file = &mut self.files[index];
            if file.stream.is_none() {
                match file.open(self.open) {
                    Ok(()) => self.open += 1,
                    Err(e) => {
                        let note = format!(
                            "{}: {}; the frames of this file are not sent",
                            e.shown, e.source
                        );
                        noted.notes.push(note);
                        continue;
                    }
                }
            }
            frames.push(&file.head.data, stamp - start);
            let Some(stream) = &mut file.stream else {
                continue;
            };
            file.head.clear();
            if stream.read(&mut file.head, 1) {
                let ended = stream.take_notes();
                noted.skipped += ended.skipped;
                noted.notes.extend(ended.notes);
                (file.stream, file.head) = (None, FrameChunk::default());
                self.open -= 1;
            } else {
                let due = file.head.records.first().map_or(0, |it| it.due);
                self.next.push(Reverse((file.first + due, index)));
            }
        }
        noted
    }
}

impl FolderFile {
    /// Opens the capture file and reads its first frame. `open` is the number of other open files;
    /// fails at the limit [`MOST_OPEN`].
    fn open(&mut self, open: usize) -> Result<(), InputError> {
        if open == MOST_OPEN {
            let e = io::Error::new(
                io::ErrorKind::QuotaExceeded,
                format!(
                    "the times of its frames overlap with those of {MOST_OPEN} other files, which is the limit; \
                     merge the files first (wqcap merge)"
                ),
            );
            return Err(InputError::unread(&self.shown, e));
        }
        let mut stream = FileStream::open(&self.path, &self.shown)?;
        self.head.clear();
        if stream.read(&mut self.head, 1) {
            let changed = io::Error::other("the file has changed and has no frames any more");
            return Err(InputError::unread(&self.shown, changed));
        }
        self.stream = Some(stream);
        Ok(())
    }
}

/// Decision after one capture file of a folder was read.
enum Flow {
    /// Continue with the next capture file of the folder; the notes are on this one.
    Read(FileNotes),
    /// Do not read the other capture files of the folder.
    Stop,
}

/// Passes the files of a folder to `read`, and returns the notes on the folder and its files;
/// `None` if `read` stopped. Fails if no file is a readable capture.
fn each_capture(
    shown: &str,
    paths: &[PathBuf],
    mut read: impl FnMut(&Path, &str) -> Result<Flow, InputError>,
) -> Result<Option<FileNotes>, InputError> {
    let (mut all, mut notes) = (FileNotes::default(), Vec::new());
    let (mut count, mut foreign, mut first) = (0, Vec::new(), None);
    for path in paths {
        let name = path.display().to_string();
        match read(path, &name) {
            Ok(Flow::Read(noted)) => {
                count += 1;
                all.skipped += noted.skipped;
                all.notes.extend(noted.notes);
            }
            Ok(Flow::Stop) => return Ok(None),
            Err(e) if e.is_read && !resembles_capture(path) => foreign.push(name),
            Err(e) => {
                notes.push(format!(
                    "{name}: {}; the frames of this file are not sent",
                    e.source
                ));
                first = first.or(Some(e));
            }
        }
    }
    if count == 0 {
        return Err(first.unwrap_or_else(|| {
            let none = "the folder has no .pcap or .pcapng files";
            InputError::unread(shown, io::Error::new(io::ErrorKind::NotFound, none))
        }));
    }
    if !foreign.is_empty() {
        let count = foreign.len();
        foreign.truncate(MOST_NAMES);
        if count > MOST_NAMES {
            foreign.push(format!("{} more", count - MOST_NAMES));
        }
        notes.push(format!(
            "{shown}: these files are left out, because they are not capture files: {}",
            foreign.join(", ")
        ));
    }
    all.notes.extend(notes);
    Ok(Some(all))
}

/// Error of reading the input of a `pcap` wire.
struct InputError {
    /// Name of the input's file or folder in messages.
    shown: String,
    source: io::Error,
    /// Set when the input's file was read, but it is not a capture file that can be played.
    is_read: bool,
}

impl InputError {
    fn unread(shown: &str, source: io::Error) -> InputError {
        InputError {
            shown: shown.to_owned(),
            source,
            is_read: false,
        }
    }
}

/// Returns the paths of a folder's regular files, in the natural order of their names. Hidden files,
/// and files that are still being written, are left out.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if !name.starts_with(b".") && !name.ends_with(b".part") && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort_by(|a, b| natural_order(a, b));
    Ok(paths)
}

/// Merges the frames of all capture files, each with the stamp of its first frame, in the order of
/// time. Frames with equal stamps stay in the order of the files.
fn in_order_of_time(files: Vec<(u64, FrameChunk)>) -> FrameChunk {
    let (mut all, mut stamped) = (FrameChunk::default(), Vec::new());
    for (first, frames) in files {
        let moved = |it: &PcapRecord| PcapRecord {
            at: it.at + all.data.len(),
            ..*it
        };
        stamped.extend(frames.records.iter().map(|it| (first + it.due, moved(it))));
        all.data.extend(frames.data);
    }
    stamped.sort_by_key(|(stamp, _)| *stamp);
    let first = stamped.first().map_or(0, |(stamp, _)| *stamp);
    let records = stamped.into_iter().map(|(stamp, it)| PcapRecord {
        due: stamp - first,
        ..it
    });
    all.records = records.collect();
    all
}
