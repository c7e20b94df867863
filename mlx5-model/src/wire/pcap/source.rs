//! Input of a `pcap` wire: a capture file, standard input, or all files of a folder in the order of
//! time.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::super::error::WireError;
use super::super::spec::WireSpec;
use super::index::{FileIndex, PcapRecord};
use super::unpack::unpack;

/// Endings of the names of capture files in a folder. Other files are left out, including those
/// that are still being written.
const ENDINGS: [&str; 6] = [
    ".pcap",
    ".pcapng",
    ".pcap.zst",
    ".pcapng.zst",
    ".pcap.lz4",
    ".pcapng.lz4",
];

/// Reads `file`, the input of a `pcap` wire. Returns its bytes, and the index of the frames in
/// them.
pub(super) fn read(wire: &WireSpec, file: &str) -> Result<(Vec<u8>, FileIndex), WireError> {
    if file == "-" {
        return read_file(wire, Path::new("/dev/stdin"), file);
    }
    let path = Path::new(file);
    if !path.is_dir() {
        return read_file(wire, path, file);
    }
    let paths = captures(path)
        .map_err(|e| WireError::new(wire, format!("cannot read {file}"), e, String::new()))?;
    let files: Result<Vec<_>, _> = paths
        .iter()
        .map(|it| read_file(wire, it, &it.display().to_string()))
        .collect();
    Ok(in_order_of_time(files?))
}

fn read_file(wire: &WireSpec, path: &Path, shown: &str) -> Result<(Vec<u8>, FileIndex), WireError> {
    let mut data = fs::read(path).map_err(|e| {
        let advice = match shown.rsplit_once(',') {
            Some((_, word)) if e.kind() == io::ErrorKind::NotFound => format!(
                "`,{word}` was read as part of the file's name: the options of a pcap wire are \
                 loop=N, pps=N, speed=X and lossy"
            ),
            _ => String::new(),
        };
        WireError::new(wire, format!("cannot read {shown}"), e, advice)
    })?;
    let note = unpack(&data).and_then(|(content, note)| {
        data = content;
        note
    });
    let mut index = FileIndex::parse(&data).map_err(|error| {
        let source = io::Error::new(io::ErrorKind::InvalidData, error.what);
        WireError::new(wire, format!("cannot parse {shown}"), source, error.advice)
    })?;
    index.notes.extend(note);
    for note in &mut index.notes {
        *note = format!("{shown}: {note}");
    }
    Ok((data, index))
}

/// Returns the paths of a folder's capture files, in the order of their names.
fn captures(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if ENDINGS.iter().any(|it| name.ends_with(it)) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the folder has no .pcap or .pcapng files",
        ));
    }
    Ok(paths)
}

/// Merges all capture files into one in the order of time. Frames with equal stamps stay in the
/// order of the files.
fn in_order_of_time(files: Vec<(Vec<u8>, FileIndex)>) -> (Vec<u8>, FileIndex) {
    let (mut data, mut all, mut stamped) = (Vec::new(), FileIndex::default(), Vec::new());
    for (bytes, index) in files {
        let first = index.first_stamp();
        let moved = |it: &PcapRecord| PcapRecord {
            at: it.at + data.len(),
            ..*it
        };
        stamped.extend(index.records.iter().map(|it| (first + it.due, moved(it))));
        data.extend(bytes);
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
    (data, all)
}
