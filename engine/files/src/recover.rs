//! Recovery of capture files that a crash or a power cut left open, with names that end in `.part`.
//!
//! May import: [`crate::read`], [`crate::name`], [`crate::folder`].
//!
//! Invariants: a file that a running capture writes is never changed. Its writer holds an advisory
//! lock (flock) on it until it has its final name, and recovery holds the same lock while it works.
//! Nothing is overwritten. A file is truncated only at the end of its last complete record, and only
//! where a crash explains what follows. Any other damaged file keeps its name and its content.

use crate::folder::path_text;
use crate::{
    extract::SLACK_NS,
    folder::{CaptureFolder, held::HeldFolder, open::try_lock, sync_folder},
    name::{FileName, PART},
    read::{Decompressor, FileEnd, LONGEST_TORN, PacketReader, ReadError, origin::is_capture},
};
use rustix::fs::FileType;
use serde::Serialize;
use std::{
    collections::BTreeSet,
    fs::{File, TryLockError},
    io::{self, Read, Seek},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

/// Result of the recovery of a `.part` file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryOutcome {
    /// The `.part` file was truncated, synced and renamed.
    Finished,
    /// The `.part` file had no complete record, and was removed.
    Removed,
    /// The `.part` file is being written by a capture or handled by another recovery; it is
    /// unchanged.
    InUse,
    /// Neither name nor header of the `.part` file is that of a capture; the file is unchanged.
    Foreign,
    /// The path of the `.part` file is a pipe, a device, a directory or a link; it is unchanged.
    Irregular,
    /// The recovery failed, and the `.part` file keeps its name; `problem` has the reason.
    Failed,
}

/// File whose name ends in `.part`, with the result of its recovery.
#[derive(Clone, Debug, Serialize)]
pub struct RecoveredFile {
    /// Path of the recovered file while it was open, ending in `.part`.
    #[serde(serialize_with = "path_text::serialize")]
    pub part: PathBuf,
    /// Final path of the recovered file, if it was renamed.
    #[serde(serialize_with = "path_text::serialize_optional")]
    pub path: Option<PathBuf>,
    /// Result of the recovery of the `.part` file.
    pub outcome: RecoveryOutcome,
    /// Number of complete records in the recovered file.
    pub records: u64,
    /// Number of bytes of the `.part` file that the recovery kept.
    pub kept: u64,
    /// Number of bytes of the `.part` file that the recovery cut off.
    pub cut: u64,
    /// Description of the bytes that the recovery cut off, or the error of the recovery.
    pub problem: Option<String>,
}

/// Reason why the recovery cannot finish a `.part` file.
#[derive(Debug, thiserror::Error)]
enum RecoveryError {
    /// A system call of the recovery fails.
    #[error("recovery cannot {step}: {source}; the .part file keeps its name")]
    Io {
        /// Step of the recovery that fails, such as `read the file`.
        step: &'static str,
        source: io::Error,
    },
    /// The `.part` file is damaged before its first complete record.
    #[error("recovery cannot read the file: {0}; the .part file keeps its name")]
    Content(#[from] ReadError),
    /// The last complete compressed frame of the `.part` file ends within a record.
    #[error(
        "recovery cannot read the file: the last complete compressed frame ends within a record; the .part file keeps its name"
    )]
    TornRecord,
    /// Records may follow a damaged record of the `.part` file, since too many bytes follow it.
    #[error(
        "{problem}; {rest} bytes follow, which no crash explains, so nothing is cut off: `wqcap merge -o OUT FILE` reads what is before the damage; the .part file keeps its name"
    )]
    Damaged {
        /// Description of the damaged record in the `.part` file.
        problem: String,
        /// Number of bytes in the `.part` file from the damaged record on.
        rest: u64,
    },
    /// Another file already has the final name of the `.part` file.
    #[error(
        "the file {} exists already and is not overwritten; move this file or the .part file elsewhere",
        .0.display()
    )]
    Exists(PathBuf),
}

/// Returns a function that converts a system error into the error of this step of a recovery.
fn failed(step: &'static str) -> impl Fn(io::Error) -> RecoveryError {
    move |source| RecoveryError::Io { step, source }
}

/// Recovery step that reads the content of a `.part` file.
const READING: &str = "read the file";

/// Recovers the `.part` files of a folder and its subfolders, in name order.
///
/// # Errors
/// The folder cannot be read.
pub fn recover(dir: &Path) -> io::Result<Vec<RecoveredFile>> {
    let parts = CaptureFolder::list(dir)?.unfinished;
    Ok(finish(dir, &parts, || true))
}

/// Recovers these `.part` files below the folder `dir`, as listed in
/// [`CaptureFolder::unfinished`]. After `may_continue` returned `false`, the remaining files keep
/// their names and content.
pub fn finish(
    dir: &Path,
    parts: &[PathBuf],
    may_continue: impl Fn() -> bool,
) -> Vec<RecoveredFile> {
    let all: Vec<_> = parts
        .iter()
        .map(|part| finish_file(dir, part, &may_continue))
        .collect();
    let finished = all.iter().filter_map(|it| it.path.as_deref());
    let folders: BTreeSet<_> = finished.filter_map(Path::parent).collect();
    for folder in folders {
        sync_folder(folder);
    }
    all
}

fn finish_file(dir: &Path, part: &Path, may_continue: &dyn Fn() -> bool) -> RecoveredFile {
    let mut it = RecoveredFile {
        part: part.to_owned(),
        path: None,
        outcome: RecoveryOutcome::Failed,
        records: 0,
        kept: 0,
        cut: 0,
        problem: None,
    };
    match name_of(part) {
        None => it.outcome = RecoveryOutcome::Foreign,
        Some((path, has_name)) => {
            let done = attempt(dir, [part, &path], has_name, &mut it, may_continue);
            match done {
                Ok(outcome) => {
                    it.outcome = outcome;
                    it.path = (outcome == RecoveryOutcome::Finished).then_some(path);
                }
                Err(e) => it.problem = Some(e.to_string()),
            }
        }
    }
    it
}

/// Returns the final path of a `.part` file that may be a capture file, and `true` if its name is
/// one that captures use.
fn name_of(part: &Path) -> Option<(PathBuf, bool)> {
    let name = part.file_name()?.to_str()?.strip_suffix(PART)?;
    let path = part.with_file_name(name);
    let has_name = FileName::parse(&path).is_some();
    FileName::has_capture_ending(&path).then_some((path, has_name))
}

/// Recovers the `.part` file `part` below the folder `dir`, whose final path is `path`.
fn attempt(
    dir: &Path,
    [part, path]: [&Path; 2],
    has_name: bool,
    it: &mut RecoveredFile,
    may_continue: &dyn Fn() -> bool,
) -> Result<RecoveryOutcome, RecoveryError> {
    // The writer may have renamed the file in the meantime. Irregular files are not opened: that
    // could trigger a device, or wait for the other end of a pipe.
    let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
    let held = match HeldFolder::of(dir, part) {
        Ok(held) => held,
        Err(e) if gone(&e) => return Ok(RecoveryOutcome::InUse),
        Err(e) => return Err(failed("open the folder of the file")(e)),
    };
    let [part_name, name] = [part, path].map(|it| it.file_name().unwrap_or_default());
    match held.stat(part_name) {
        Ok(it) if FileType::from_raw_mode(it.st_mode).is_file() => {}
        Ok(_) => return Ok(RecoveryOutcome::Irregular),
        Err(e) if gone(&e) => return Ok(RecoveryOutcome::InUse),
        Err(e) => return Err(failed("read the file's metadata")(e)),
    }
    let file = match held.open_for_update(part_name) {
        Ok(file) => file,
        Err(e) if gone(&e) => return Ok(RecoveryOutcome::InUse),
        Err(e) => return Err(failed("open the file")(e)),
    };
    match try_lock(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(RecoveryOutcome::InUse),
        Err(TryLockError::Error(e)) => {
            return Err(failed("check whether a capture writes the file (flock)")(e));
        }
    }
    // The writer may have finished the file between opening and locking.
    let opened = file
        .metadata()
        .map_err(failed("read the file's metadata"))?;
    if !opened.is_file() {
        return Ok(RecoveryOutcome::Irregular);
    }
    match held.stat(part_name) {
        Ok(named) if (named.st_dev, named.st_ino) == (opened.dev(), opened.ino()) => {}
        Ok(_) => return Ok(RecoveryOutcome::InUse),
        Err(e) if gone(&e) => return Ok(RecoveryOutcome::InUse),
        Err(e) => return Err(failed("read the file's metadata")(e)),
    }
    if !has_name {
        let guarded = Guarded {
            file: &file,
            may_continue,
        };
        if !is_capture(guarded) {
            return Ok(RecoveryOutcome::Foreign);
        }
        guarded.rewind().map_err(failed(READING))?;
    }
    if held.stat(name).is_ok() {
        return Err(RecoveryError::Exists(path.to_owned()));
    }
    let len = opened.len();
    let Measured { sound, latest_ns } = measure(
        Guarded {
            file: &file,
            may_continue,
        },
        len,
        it,
    )?;
    it.cut = len.saturating_sub(sound);
    if it.records == 0 {
        it.cut = len;
        let removed = held.remove(part_name);
        removed.map_err(failed("remove the file, which has no record"))?;
        return Ok(RecoveryOutcome::Removed);
    }
    it.kept = sound;
    if sound < len {
        file.set_len(sound).map_err(failed("cut the file"))?;
    }
    // The time of the last write is that of the capture, by whose clock the frames are stamped, and
    // not before a time stamp, as in a file that the capture finished.
    let latest = UNIX_EPOCH + Duration::from_nanos(latest_ns);
    if let Ok(written) = opened.modified() {
        let is_ahead = latest > written + Duration::from_nanos(SLACK_NS);
        if is_ahead || sound < len {
            // Only the owner of the file may set it.
            let _ = file.set_modified(if is_ahead { latest } else { written });
        }
    }
    file.sync_all().map_err(failed("sync the file"))?;
    let renamed = held.rename_new(part_name, name);
    renamed.map_err(failed("rename the file"))?;
    Ok(RecoveryOutcome::Finished)
}

/// What a crash may leave behind the sound part of a `.part` file: a torn record or compressed frame,
/// and a hole for each page that was not written.
struct CrashTrace {
    /// Maximum length of the rest in bytes if it has no hole.
    most: u64,
    /// Number of bytes within which the first record or compressed frame of the rest ends; at most
    /// `most`.
    first: usize,
}

/// Trace of a crash in a file that is not compressed.
const OF_RECORDS: CrashTrace = CrashTrace {
    most: LONGEST_TORN,
    first: 512 << 10,
};
/// Trace of a crash in a compressed file. It is longer than the longest compressed frame of a
/// capture, which has the records of a write block of 4 MiB.
const OF_FRAMES: CrashTrace = CrashTrace {
    most: 8 << 20,
    first: 5 << 20,
};

/// Length in bytes of the beginning of a record, with its length.
const HEADER: usize = 16;

impl CrashTrace {
    /// Returns an error if no crash explains the damage `problem` at offset `sound` of a `.part` file
    /// of `len` bytes.
    fn explain(
        &self,
        file: &File,
        [sound, len]: [u64; 2],
        problem: &str,
    ) -> Result<(), RecoveryError> {
        let rest = len.saturating_sub(sound);
        if rest <= self.most || has_hole(file, sound, self.first).map_err(failed(READING))? {
            return Ok(());
        }
        let problem = problem.to_owned();
        Err(RecoveryError::Damaged { problem, rest })
    }
}

/// Returns `true` if a page of zeros is in the `first` bytes from offset `sound` of a `.part` file on,
/// which the file system did not write before a crash.
fn has_hole(file: &File, sound: u64, first: usize) -> io::Result<bool> {
    /// Length in bytes of the blocks in which file systems allocate.
    const PAGE: usize = 4096;
    let mut bytes = vec![0; first];
    file.read_exact_at(&mut bytes, sound)?;
    // The rest of the page in which the record begins.
    let rest = (sound.next_multiple_of(PAGE as u64) - sound) as usize;
    let (begin, pages) = bytes.split_at(rest);
    let is_hole = |it: &[u8]| it.iter().all(|byte| *byte == 0);
    Ok(rest >= HEADER && is_hole(begin) || pages.chunks_exact(PAGE).any(is_hole))
}

/// Counts the complete records of a `.part` file and returns the offset of the end of the last one.
/// A file that is damaged before its first complete record is an error, so that it is not removed.
/// Damage that no crash explains is an error too. The file has `len` bytes.
fn measure(file: Guarded<'_>, len: u64, it: &mut RecoveredFile) -> Result<Measured, RecoveryError> {
    let mut source = Decompressor::new(file).map_err(failed(READING))?;
    if source.is_compressed() {
        return measure_compressed(file, len, &mut source, it);
    }
    file.rewind().map_err(failed(READING))?;
    let mut reader = match PacketReader::new(file) {
        Ok(reader) => reader,
        Err(ReadError::Empty) => return Ok(Measured::default()),
        Err(e) => return Err(e.into()),
    };
    let mut latest_ns = 0;
    let broken = loop {
        match reader.advance() {
            Ok(true) => latest_ns = reader.packet().map_or(0, |it| it.ns).max(latest_ns),
            Ok(false) => break None,
            Err(e @ ReadError::Io { .. }) => return Err(e.into()),
            Err(e) if reader.packets() == 0 => return Err(e.into()),
            Err(e) => break Some(e.to_string()),
        }
    };
    it.records = reader.packets();
    it.problem = match reader.end() {
        Some(end) if end != FileEnd::Clean => Some(end.to_string()),
        _ => broken,
    };
    let sound = reader.sound_end();
    if let Some(problem) = &it.problem {
        OF_RECORDS.explain(file.file, [sound, len], problem)?;
    }
    Ok(Measured { sound, latest_ns })
}

/// Sound part of a `.part` file.
#[derive(Default)]
struct Measured {
    /// Number of bytes up to the end of the last complete record, or compressed frame.
    sound: u64,
    /// Latest time stamp of the complete records in nanoseconds since 1970.
    latest_ns: u64,
}

/// Counts the complete records of a compressed `.part` file and returns the offset of the end of
/// the last complete compressed frame. Compressed frames hold complete records.
fn measure_compressed(
    file: Guarded<'_>,
    file_len: u64,
    frames: &mut Decompressor<Guarded<'_>>,
    it: &mut RecoveredFile,
) -> Result<Measured, RecoveryError> {
    let damage = match io::copy(frames, &mut io::sink()) {
        Err(e) if e.raw_os_error().is_some() => return Err(failed(READING)(e)),
        copied => copied.err(),
    };
    let (end, len) = frames.sound_end();
    file.rewind().map_err(failed(READING))?;
    let whole = Decompressor::new(file.take(end)).map_err(failed(READING))?;
    if !whole.is_compressed() {
        // The file is torn within its first compressed frame, so that its content is unknown.
        let nothing = Ok(Measured::default());
        return damage.map_or(nothing, |damage| Err(failed(READING)(damage)));
    }
    let mut reader = PacketReader::new(whole)?;
    let mut latest_ns = 0;
    while reader.advance()? {
        latest_ns = reader.packet().map_or(0, |it| it.ns).max(latest_ns);
    }
    if reader.sound_end() != len {
        return Err(RecoveryError::TornRecord);
    }
    it.records = reader.packets();
    it.problem = damage.map(|e| e.to_string());
    if let Some(problem) = &it.problem {
        OF_FRAMES.explain(file.file, [end, file_len], problem)?;
    }
    Ok(Measured {
        sound: end,
        latest_ns,
    })
}

/// Reader of a `.part` file that fails once the recovery should stop. Sparse files may be too long
/// to be read to their end.
#[derive(Clone, Copy)]
struct Guarded<'a> {
    file: &'a File,
    may_continue: &'a dyn Fn() -> bool,
}

impl Guarded<'_> {
    fn rewind(mut self) -> io::Result<()> {
        self.file.seek(io::SeekFrom::Start(0)).map(drop)
    }
}

impl Read for Guarded<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !(self.may_continue)() {
            // Reported as a system error, so that readers do not take it for damaged content.
            return Err(rustix::io::Errno::CANCELED.into());
        }
        self.file.read(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::{pcap_file, written},
        format::{
            ByteOrder, FileFormat, pcap,
            pcapng::{code, option, section_header},
        },
        read::origin::PROGRAM,
    };
    use std::{fs, ops::Range};

    fn only(dir: &Path) -> RecoveredFile {
        let mut all = recover(dir).expect("reads");
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    fn lz4(bytes: &[u8]) -> Vec<u8> {
        let mut to = lz4_flex::frame::FrameEncoder::new(Vec::new());
        io::Write::write_all(&mut to, bytes).expect("packs");
        to.finish().expect("packs")
    }

    /// Writes `bytes` to the file `at`, with a range of them overwritten by `value`, and recovers it.
    /// Returns the result and the bytes that were written.
    fn recovered_with(
        at: &Path,
        bytes: &[u8],
        range: Range<usize>,
        value: u8,
    ) -> (RecoveredFile, Vec<u8>) {
        let mut damaged = bytes.to_vec();
        damaged[range].fill(value);
        fs::write(at, &damaged).expect("written");
        (only(at.parent().expect("a folder")), damaged)
    }

    /// Returns a temporary folder, in memory where possible: each of hundreds of files in it is
    /// synced.
    fn scratch() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .expect("dir")
    }

    fn every_cut(format: FileFormat) {
        let (file, starts) = written(format, 3);
        let name = format!("wqcap-q01-7.{}", format.name());
        for cut in 0..=file.len() {
            for zeros in [0, 4096] {
                let whole = starts
                    .iter()
                    .filter(|at| **at <= cut)
                    .count()
                    .saturating_sub(1);
                // The engine pads only after complete records.
                if zeros > 0 && starts.get(whole) != Some(&cut) {
                    continue;
                }
                let dir = scratch();
                let part = dir.path().join(format!("{name}{PART}"));
                let torn = [&file[..cut], &vec![0; zeros]].concat();
                fs::write(&part, &torn).expect("written");
                let it = only(dir.path());
                let path = dir.path().join(&name);
                if whole > 0 {
                    assert_eq!(it.outcome, RecoveryOutcome::Finished, "{it:?}");
                    assert_eq!((it.records, it.kept), (whole as u64, starts[whole] as u64));
                    assert_eq!(it.kept + it.cut, torn.len() as u64);
                    assert_eq!(it.problem.is_some(), it.cut > 0);
                    assert_eq!(fs::read(&path).expect("named"), file[..starts[whole]]);
                    assert!(!part.exists());
                } else {
                    // Without a complete record the file is removed, or kept if its header is torn.
                    assert!(
                        matches!(
                            it.outcome,
                            RecoveryOutcome::Removed | RecoveryOutcome::Failed
                        ),
                        "{cut}: {it:?}"
                    );
                    assert_eq!(part.exists(), it.outcome == RecoveryOutcome::Failed);
                    assert!(!path.exists());
                    let in_header = cut > 0 && cut < starts[0];
                    assert!(
                        it.outcome == RecoveryOutcome::Removed || in_header,
                        "{cut}: {it:?}"
                    );
                }
                assert!(recover(dir.path()).expect("reads").len() <= 1);
            }
        }
    }

    #[test]
    fn a_damaged_record_in_the_middle_cuts_nothing_off() {
        let dir = scratch();
        let (mut bytes, starts) = written(FileFormat::Pcapng, 3);
        let records = bytes[starts[0]..].to_vec();
        let end = bytes.len();
        while bytes.len() < end + 2 * OF_RECORDS.most as usize {
            bytes.extend(&records);
        }
        let at = dir.path().join("wqcap-q00-5.pcapng.part");
        let with = |from: usize, value: u8, count: usize| {
            recovered_with(&at, &bytes, from..from + count, value)
        };
        // A wrong length.
        let (it, damaged) = with(end + 4, 0xff, 2);
        assert_eq!((it.outcome, it.cut), (RecoveryOutcome::Failed, 0), "{it:?}");
        let problem = it.problem.expect("a problem");
        assert!(problem.contains("bytes follow"), "{problem}");
        assert_eq!(fs::read(&at).expect("kept"), damaged);
        // A wrong length of the first record.
        let (it, _) = with(starts[0] + 4, 0x7f, 3);
        assert_eq!((it.outcome, it.cut), (RecoveryOutcome::Failed, 0), "{it:?}");
        // A page that was not written, and a wrong length near the end.
        let (it, _) = with(end.next_multiple_of(4096), 0, 4096);
        assert_eq!(it.outcome, RecoveryOutcome::Finished, "{it:?}");
        fs::remove_file(it.path.expect("finished")).expect("removed");
        let (it, _) = with(bytes.len() - records.len() + 4, 0xff, 2);
        assert_eq!(it.outcome, RecoveryOutcome::Finished, "{it:?}");
    }

    #[test]
    fn a_damaged_compressed_frame_in_the_middle_cuts_nothing_off() {
        let dir = scratch();
        let (file, starts) = written(FileFormat::Pcapng, 3);
        let records = lz4(&file[starts[0]..]);
        let mut bytes = lz4(&file);
        let first = bytes.len();
        while bytes.len() < first + OF_FRAMES.most as usize + 2 * records.len() {
            bytes.extend(&records);
        }
        let at = dir.path().join("wqcap-q00-5.pcapng.lz4.part");
        let with = |from: usize, value: u8, count: usize| {
            recovered_with(&at, &bytes, from..from + count, value)
        };
        let (it, damaged) = with(first + 10, 0xff, 2);
        assert_eq!((it.outcome, it.cut), (RecoveryOutcome::Failed, 0), "{it:?}");
        let problem = it.problem.expect("a problem");
        assert!(problem.contains("bytes follow"), "{problem}");
        assert_eq!(fs::read(&at).expect("kept"), damaged);
        // A page that was not written, and damage near the end.
        for (from, value, count) in [
            (first.next_multiple_of(4096), 0, 4096),
            (bytes.len() - records.len() + 10, 0xff, 2),
        ] {
            let (it, _) = with(from, value, count);
            assert_eq!(it.outcome, RecoveryOutcome::Finished, "{it:?}");
            assert!(it.cut > 0);
            fs::remove_file(it.path.expect("finished")).expect("removed");
        }
    }

    #[test]
    fn a_file_cut_at_any_byte_keeps_its_whole_records() {
        every_cut(FileFormat::Pcap);
        every_cut(FileFormat::Pcapng);
    }

    #[test]
    fn files_in_folders_below_are_finished() {
        let dir = tempfile::tempdir().expect("dir");
        let folder = dir.path().join("20261122/15");
        fs::create_dir_all(&folder).expect("made");
        let bytes = [&written(FileFormat::Pcap, 3).0[..], &[0; 100]].concat();
        let part = folder.join("wqcap-q00-1.pcap.part");
        fs::write(&part, bytes).expect("written");
        let written = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let file = File::options().write(true).open(&part).expect("opens");
        file.set_modified(written).expect("the time is set");
        let it = only(dir.path());
        let path = folder.join("wqcap-q00-1.pcap");
        let modified = fs::metadata(&path).expect("there").modified();
        assert_eq!(modified.expect("a time"), written);
        assert_eq!(it.path, Some(path));
        assert_eq!((it.outcome, it.cut), (RecoveryOutcome::Finished, 100));
    }

    #[test]
    fn the_time_of_a_file_is_not_before_its_time_stamps() {
        let dir = tempfile::tempdir().expect("dir");
        let part = dir.path().join("wqcap-q00-1.pcap.part");
        fs::write(&part, written(FileFormat::Pcap, 3).0).expect("written");
        let file = File::options().write(true).open(&part).expect("opens");
        let before = UNIX_EPOCH - Duration::from_secs(100);
        file.set_modified(before).expect("the time is set");
        let path = only(dir.path()).path.expect("finished");
        let mut reader = crate::read::open(&path).expect("opens");
        let mut latest_ns = 0;
        while let Some(packet) = reader.next().expect("reads") {
            latest_ns = packet.ns.max(latest_ns);
        }
        let modified = fs::metadata(&path).expect("there").modified();
        let latest = UNIX_EPOCH + Duration::from_nanos(latest_ns);
        assert_eq!(modified.expect("a time"), latest);
    }

    #[test]
    fn locked_files_are_left_unchanged() {
        let dir = tempfile::tempdir().expect("dir");
        let part = dir.path().join("wqcap-q00-1.pcap.part");
        let bytes = [&written(FileFormat::Pcap, 3).0[..], &[0; 100]].concat();
        fs::write(&part, &bytes).expect("written");
        let writer = fs::OpenOptions::new()
            .write(true)
            .open(&part)
            .expect("opens");
        writer.lock().expect("locks");
        assert_eq!(only(dir.path()).outcome, RecoveryOutcome::InUse);
        assert_eq!(fs::read(&part).expect("there"), bytes);
        drop(writer);
        assert_eq!(only(dir.path()).outcome, RecoveryOutcome::Finished);
    }

    #[test]
    fn nothing_is_overwritten_and_nothing_foreign_touched() {
        let dir = tempfile::tempdir().expect("dir");
        let bytes = [&written(FileFormat::Pcap, 3).0[..], &[0; 100]].concat();
        let part = dir.path().join("wqcap-q00-1.pcap.part");
        let path = dir.path().join("wqcap-q00-1.pcap");
        fs::write(&part, &bytes).expect("written");
        fs::write(&path, "mine").expect("written");
        let it = only(dir.path());
        assert_eq!(it.outcome, RecoveryOutcome::Failed);
        assert!(it.problem.expect("a problem").contains("already"));
        assert_eq!(fs::read(&path).expect("there"), b"mine");
        assert_eq!(fs::read(&part).expect("there"), bytes);

        fs::remove_file(&path).expect("there");
        let download = dir.path().join("big.pcap.part");
        fs::rename(&part, &download).expect("moved");
        assert_eq!(only(dir.path()).outcome, RecoveryOutcome::Foreign);
        assert_eq!(fs::read(&download).expect("there"), bytes);
    }

    #[test]
    fn a_file_of_any_name_is_recognised_by_its_section_header() {
        let dir = tempfile::tempdir().expect("dir");
        let mut header = Vec::new();
        section_header(&mut header, |out| {
            option(out, code::SHB_USERAPPL, PROGRAM.as_bytes());
        });
        let (file, _) = written(FileFormat::Pcapng, 3);
        let theirs = dir.path().join("tap-7.pcapng.part");
        fs::write(&theirs, [&file[..], &[0; 100]].concat()).expect("written");
        assert_eq!(only(dir.path()).outcome, RecoveryOutcome::Foreign);
        // The section of the capture is in front of the other one.
        fs::write(&theirs, [&header[..], &file[..], &[0; 100]].concat()).expect("written");
        let it = only(dir.path());
        assert_eq!((it.outcome, it.records), (RecoveryOutcome::Finished, 3));
        assert!(dir.path().join("tap-7.pcapng").exists() && !theirs.exists());
    }

    /// The capture mark in a pcap header counts for any file name and any compression.
    #[test]
    fn a_pcap_file_of_any_name_is_recognised_by_the_mark_in_its_header() {
        let (file, starts) = written(FileFormat::Pcap, 3);
        let (header, records) = file.split_first_chunk().expect("a header");
        let marked = [&pcap::marked_as_capture(*header)[..], records].concat();
        let zstd = |bytes: &[u8]| {
            let mut packed = vec![0; zstd_safe::compress_bound(bytes.len())];
            let len = zstd_safe::compress(&mut packed[..], bytes, 3).expect("packs");
            packed.truncate(len);
            packed
        };
        // The last compressed frame is torn.
        let framed = |pack: &dyn Fn(&[u8]) -> Vec<u8>, bytes: &[u8]| {
            let [first, last] = [&bytes[..starts[2]], &bytes[starts[2]..]].map(pack);
            [&first[..], &last[..last.len() / 2]].concat()
        };
        for (ending, whole, pack) in [
            (
                "pcap",
                3,
                &(|it: &[u8]| it.to_vec()) as &dyn Fn(&[u8]) -> Vec<u8>,
            ),
            ("pcap.zst", 2, &|it: &[u8]| framed(&zstd, it)),
            ("pcap.lz4", 2, &|it: &[u8]| framed(&lz4, it)),
        ] {
            let dir = tempfile::tempdir().expect("dir");
            let part = dir.path().join(format!("tap-7.{ending}.part"));
            fs::write(&part, pack(&file)).expect("written");
            assert_eq!(
                only(dir.path()).outcome,
                RecoveryOutcome::Foreign,
                "{ending}"
            );
            fs::write(&part, [pack(&marked), vec![0; 100]].concat()).expect("written");
            let it = only(dir.path());
            let expected = (RecoveryOutcome::Finished, whole);
            assert_eq!((it.outcome, it.records), expected, "{ending}: {it:?}");
            assert!(dir.path().join(format!("tap-7.{ending}")).exists() && !part.exists());
        }
    }

    #[test]
    fn a_hole_ends_the_file_and_a_damaged_start_keeps_it() {
        let (file, starts) = written(FileFormat::Pcap, 4);
        let dir = tempfile::tempdir().expect("dir");
        let part = dir.path().join("wqcap-q00-1.pcap.part");
        let holed = [&file[..starts[2]], &[0; 4096], &file[starts[2]..]].concat();
        fs::write(&part, &holed).expect("written");
        let it = only(dir.path());
        assert_eq!((it.outcome, it.records), (RecoveryOutcome::Finished, 2));
        assert!(it.problem.expect("a problem").contains("4096 zero bytes"));
        fs::remove_file(dir.path().join("wqcap-q00-1.pcap")).expect("named");

        let mut damaged = file;
        damaged[starts[0] + 8..starts[0] + 12].copy_from_slice(&[0xff; 4]);
        for bytes in [&damaged[..], b"no header at all"] {
            fs::write(&part, bytes).expect("written");
            let it = only(dir.path());
            assert_eq!(it.outcome, RecoveryOutcome::Failed, "{it:?}");
            assert_eq!(fs::read(&part).expect("there"), bytes);
            fs::remove_file(&part).expect("there");
        }
        // A file with a header only.
        let empty = pcap_file(ByteOrder::NATIVE, 0xa1b2_3c4d, &[]);
        fs::write(&part, empty).expect("written");
        assert_eq!(only(dir.path()).outcome, RecoveryOutcome::Removed);
        assert!(!part.exists());
    }

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().expect("dir");
        let elsewhere = tempfile::tempdir().expect("dir");
        let target = elsewhere.path().join("target");
        let bytes = [&written(FileFormat::Pcap, 3).0[..], &[0; 100]].concat();
        fs::write(&target, &bytes).expect("written");
        let part = |n: u8| dir.path().join(format!("wqcap-q00-{n}.pcap.part"));
        std::os::unix::fs::symlink(&target, part(1)).expect("linked");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkfifoat(rustix::fs::CWD, part(2), mode).expect("a pipe");
        let _socket = std::os::unix::net::UnixListener::bind(part(3)).expect("bound");
        fs::create_dir(part(4)).expect("made");
        let all = recover(dir.path()).expect("reads");
        assert_eq!(all.len(), 4);
        for it in &all {
            assert_eq!(it.outcome, RecoveryOutcome::Irregular, "{it:?}");
            assert!(it.part.symlink_metadata().is_ok());
        }
        assert_eq!(fs::read(&target).expect("there"), bytes);
    }

    #[test]
    fn a_stopped_recovery_leaves_files_unchanged() {
        for format in [FileFormat::Pcap, FileFormat::Pcapng] {
            let dir = tempfile::tempdir().expect("dir");
            let name = format!("wqcap-q01-7.{}{PART}", format.name());
            let part = dir.path().join(name);
            fs::write(&part, written(format, 3).0).expect("written");
            // A sparse file of 4 TiB, too long to be read to its end.
            let file = fs::OpenOptions::new()
                .write(true)
                .open(&part)
                .expect("opens");
            file.set_len(1 << 42).expect("sparse");
            drop(file);
            let reads = std::cell::Cell::new(0);
            let may_continue = || {
                reads.set(reads.get() + 1);
                reads.get() < 20
            };
            let all = finish(dir.path(), std::slice::from_ref(&part), may_continue);
            assert_eq!(all[0].outcome, RecoveryOutcome::Failed);
            let problem = all[0].problem.as_deref().unwrap_or_default();
            assert!(problem.contains("canceled"), "{problem}");
            assert_eq!(fs::metadata(&part).expect("there").len(), 1 << 42);
        }
    }
}
