//! Input of a `pcap` wire: a capture file, standard input, or all files of a folder in the order of
//! time.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use wqcap_pcap::name::{natural_order, resembles_capture};
use wqcap_pcap::read::ReadError;

use super::super::error::WireError;
use super::super::spec::WireSpec;
use super::index::{FileIndex, IndexError, PcapRecord};

/// Maximum number of names of other files in the note on a folder.
const MOST_NAMES: usize = 3;

/// Reads `file`, the input of a `pcap` wire. Returns the index of the frames in it.
pub(super) fn read(wire: &WireSpec, file: &str) -> Result<FileIndex, WireError> {
    let path = match file {
        "-" => Path::new("/dev/stdin"),
        file => Path::new(file),
    };
    let result = if path.is_dir() {
        read_folder(path)
    } else {
        read_file(path, file)
    };
    result.map_err(
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

/// Error of an input of a wire.
struct InputError {
    /// Name of the file or folder for messages.
    shown: String,
    source: io::Error,
    /// Set when the system has read the file, but it is not a capture file that can be played.
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

fn read_file(path: &Path, shown: &str) -> Result<FileIndex, InputError> {
    let file = File::open(path).map_err(|e| InputError::unread(shown, e))?;
    let mut index = FileIndex::read(file).map_err(|error| match error {
        IndexError::Read(ReadError::Io { source, .. }) if source.raw_os_error().is_some() => {
            InputError::unread(shown, source)
        }
        error => InputError {
            shown: shown.to_owned(),
            is_read: true,
            source: io::Error::new(io::ErrorKind::InvalidData, error),
        },
    })?;
    for note in &mut index.notes {
        *note = format!("{shown}: {note}");
    }
    Ok(index)
}

/// Reads the capture files of a folder, whatever their names are. A file that cannot be read does
/// not prevent the others from being read; it is noted.
fn read_folder(folder: &Path) -> Result<FileIndex, InputError> {
    let shown = folder.display().to_string();
    let paths = files(folder).map_err(|e| InputError::unread(&shown, e))?;
    let (mut read, mut notes, mut foreign, mut first) = (Vec::new(), Vec::new(), Vec::new(), None);
    for path in paths {
        let name = path.display().to_string();
        match read_file(&path, &name) {
            Ok(index) => read.push(index),
            Err(e) if e.is_read && !resembles_capture(&path) => foreign.push(name),
            Err(e) => {
                notes.push(format!("{name}: {}; the file is left out", e.source));
                first = first.or(Some(e));
            }
        }
    }
    if read.is_empty() {
        return Err(first.unwrap_or_else(|| {
            let none = "the folder has no .pcap or .pcapng files";
            InputError::unread(&shown, io::Error::new(io::ErrorKind::NotFound, none))
        }));
    }
    if !foreign.is_empty() {
        let count = foreign.len();
        foreign.truncate(MOST_NAMES);
        if count > MOST_NAMES {
            foreign.push(format!("{} more", count - MOST_NAMES));
        }
        notes.push(format!(
            "{shown}: files that are not captures are left out: {}",
            foreign.join(", ")
        ));
    }
    let mut all = in_order_of_time(read);
    all.notes.extend(notes);
    Ok(all)
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

/// Merges all capture files into one in the order of time. Frames with equal stamps stay in the
/// order of the files.
fn in_order_of_time(files: Vec<FileIndex>) -> FileIndex {
    let (mut all, mut stamped) = (FileIndex::default(), Vec::new());
    for index in files {
        let first = index.first_stamp();
        let moved = |it: &PcapRecord| PcapRecord {
            at: it.at + all.data.len(),
            ..*it
        };
        stamped.extend(index.records.iter().map(|it| (first + it.due, moved(it))));
        all.data.extend(index.data);
        all.skipped += index.skipped;
        all.notes.extend(index.notes);
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
