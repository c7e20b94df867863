//! Finishes the files that a crash or a power cut left open.
//!
//! May import: [`crate::read`], [`crate::name`], [`crate::folder`].
//!
//! Invariants: a file that a running capture writes is never touched: its writer holds an advisory lock (flock) on it
//! until it has its final name, and recovery holds the same lock while at work. Nothing is overwritten. A file is cut at
//! the end of its last whole record and nowhere else, and what cannot be read keeps its name and its bytes.

use crate::{
    folder::{CaptureFolder, rename_new, sync_folder},
    name::{FileName, PART},
    open::open_for_update,
    read::{Decompressor, FileEnd, PacketReader, ReadError, origin::is_capture},
};
use serde::Serialize;
use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    io::{self, Read, Seek},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryOutcome {
    /// Cut, synced and named.
    Finished,
    /// It had no whole record, and is gone.
    Removed,
    /// A capture is writing it, or another recovery is at work on it; left alone.
    InUse,
    /// Neither its name nor its header is that of a capture; left alone.
    Foreign,
    /// It is a pipe, a device, a directory or a link; left alone.
    Irregular,
    /// It keeps its name; `problem` says why.
    Failed,
}

/// One file whose name ends in `.part`.
#[derive(Clone, Debug, Serialize)]
pub struct RecoveredFile {
    /// Its name while it was open.
    pub part: PathBuf,
    /// Its final name, if it was given it.
    pub path: Option<PathBuf>,
    /// What became of it.
    pub outcome: RecoveryOutcome,
    /// Whole records in it.
    pub records: u64,
    /// Bytes that stay.
    pub kept: u64,
    /// Bytes cut off its end.
    pub cut: u64,
    /// What was cut, or what went wrong.
    pub problem: Option<String>,
}

/// Finishes the `.part` files of a folder and of those below it, in name order.
///
/// # Errors
/// The folder cannot be read.
pub fn recover(dir: &Path) -> io::Result<Vec<RecoveredFile>> {
    Ok(finish(&CaptureFolder::list(dir)?.unfinished, || true))
}

/// Finishes these `.part` files, those of [`CaptureFolder::unfinished`]. Once `go_on` says no, all that are left keep their
/// names and bytes.
pub fn finish(parts: &[PathBuf], go_on: impl Fn() -> bool) -> Vec<RecoveredFile> {
    let all: Vec<_> = parts.iter().map(|part| finish_file(part, &go_on)).collect();
    let finished = all.iter().filter_map(|it| it.path.as_deref());
    let folders: BTreeSet<_> = finished.filter_map(Path::parent).collect();
    for folder in folders {
        sync_folder(folder);
    }
    all
}

fn finish_file(part: &Path, go_on: &dyn Fn() -> bool) -> RecoveredFile {
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
        Some((path, tells)) => match attempt(part, &path, tells, &mut it, go_on) {
            Ok(outcome) => {
                it.outcome = outcome;
                it.path = (outcome == RecoveryOutcome::Finished).then_some(path);
            }
            Err(problem) => it.problem = Some(problem),
        },
    }
    it
}

/// The final name of what may be a capture file, and whether the name tells that it is one.
fn name_of(part: &Path) -> Option<(PathBuf, bool)> {
    let name = part.file_name()?.to_str()?.strip_suffix(PART)?;
    let path = part.with_file_name(name);
    let tells = FileName::parse(&path).is_some();
    FileName::has_capture_ending(&path).then_some((path, tells))
}

fn attempt(
    part: &Path,
    path: &Path,
    name_tells: bool,
    it: &mut RecoveredFile,
    go_on: &dyn Fn() -> bool,
) -> Result<RecoveryOutcome, String> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |e: io::Error| format!("cannot {what}: {e}; it keeps that name")
    };
    // Its writer may have given it its name by now. What is no file is not even opened: that may do something to a
    // device, or wait for the other end of a pipe.
    let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
    match fs::symlink_metadata(part) {
        Ok(it) if it.is_file() => {}
        Ok(_) => return Ok(RecoveryOutcome::Irregular),
        Err(e) if gone(&e) => return Ok(RecoveryOutcome::InUse),
        Err(e) => return Err(failed("read its metadata")(e)),
    }
    let file = match open_for_update(part) {
        Ok(file) => file,
        Err(e) if gone(&e) => return Ok(RecoveryOutcome::InUse),
        Err(e) => return Err(failed("open it")(e)),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(RecoveryOutcome::InUse),
        Err(TryLockError::Error(e)) => {
            return Err(failed("tell whether a capture writes it (flock)")(e));
        }
    }
    // Between opening and locking its writer may have finished it.
    let opened = file.metadata().map_err(failed("read its metadata"))?;
    if !opened.is_file() {
        return Ok(RecoveryOutcome::Irregular);
    }
    match fs::symlink_metadata(part) {
        Ok(named) if (named.dev(), named.ino()) == (opened.dev(), opened.ino()) => {}
        Ok(_) => return Ok(RecoveryOutcome::InUse),
        Err(e) if gone(&e) => return Ok(RecoveryOutcome::InUse),
        Err(e) => return Err(failed("read its metadata")(e)),
    }
    if !name_tells {
        let guarded = Guarded { file: &file, go_on };
        if !is_capture(guarded) {
            return Ok(RecoveryOutcome::Foreign);
        }
        guarded.rewind().map_err(failed("read it"))?;
    }
    if fs::symlink_metadata(path).is_ok() {
        return Err(format!(
            "{} is there already and is not overwritten; move one of the two away",
            path.display()
        ));
    }
    let len = opened.len();
    let sound = measure(Guarded { file: &file, go_on }, it)?;
    it.cut = len.saturating_sub(sound);
    if it.records == 0 {
        it.cut = len;
        fs::remove_file(part).map_err(failed("remove it, though it has no record"))?;
        return Ok(RecoveryOutcome::Removed);
    }
    it.kept = sound;
    if sound < len {
        file.set_len(sound).map_err(failed("cut it"))?;
    }
    file.sync_all().map_err(failed("sync it"))?;
    rename_new(part, path).map_err(failed("rename it"))?;
    Ok(RecoveryOutcome::Finished)
}

/// Counts whole records and gives the end of the last one. Damage with nothing sound before it is no reason to remove
/// anything.
fn measure(file: Guarded<'_>, it: &mut RecoveredFile) -> Result<u64, String> {
    let keeps = |e: &dyn std::fmt::Display| format!("{e}; it keeps that name");
    let mut source = Decompressor::new(file).map_err(|e| keeps(&e))?;
    if source.is_compressed() {
        return measure_compressed(file, &mut source, it);
    }
    file.rewind().map_err(|e| keeps(&e))?;
    let mut reader = match PacketReader::new(file) {
        Ok(reader) => reader,
        Err(ReadError::Empty) => return Ok(0),
        Err(e) => return Err(keeps(&e)),
    };
    let broken = loop {
        match reader.advance() {
            Ok(true) => {}
            Ok(false) => break None,
            Err(e @ ReadError::Io { .. }) => return Err(keeps(&e)),
            Err(e) if reader.packets() == 0 => return Err(keeps(&e)),
            Err(e) => break Some(e.to_string()),
        }
    };
    it.records = reader.packets();
    it.problem = match reader.end() {
        Some(end) if end != FileEnd::Clean => Some(end.to_string()),
        _ => broken,
    };
    Ok(reader.sound_end())
}

/// The same for a compressed file: frames hold whole records, so that it is cut at the end of the last whole frame.
fn measure_compressed(
    file: Guarded<'_>,
    frames: &mut Decompressor<Guarded<'_>>,
    it: &mut RecoveredFile,
) -> Result<u64, String> {
    let keeps = |e: &dyn std::fmt::Display| format!("{e}; it keeps that name");
    let damage = match io::copy(frames, &mut io::sink()) {
        Ok(_) => None,
        Err(e) if e.raw_os_error().is_some() => return Err(keeps(&e)),
        Err(e) => Some(e.to_string()),
    };
    let (end, len) = frames.sound_end();
    file.rewind().map_err(|e| keeps(&e))?;
    let whole = Decompressor::new(file.take(end)).map_err(|e| keeps(&e))?;
    if !whole.is_compressed() {
        // Torn within its first frame: nothing of it can be judged.
        return damage.map_or(Ok(0), |damage| Err(keeps(&damage)));
    }
    let mut reader = PacketReader::new(whole).map_err(|e| keeps(&e))?;
    while reader.advance().map_err(|e| keeps(&e))? {}
    if reader.sound_end() != len {
        return Err(keeps(&"its last whole frame ends within a record"));
    }
    it.records = reader.packets();
    it.problem = damage;
    Ok(end)
}

/// A file whose reading ends when the recovery is to end: it may have more bytes than can be read in a lifetime.
#[derive(Clone, Copy)]
struct Guarded<'a> {
    file: &'a File,
    go_on: &'a dyn Fn() -> bool,
}

impl Guarded<'_> {
    fn rewind(mut self) -> io::Result<()> {
        self.file.seek(io::SeekFrom::Start(0)).map(drop)
    }
}

impl Read for Guarded<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if !(self.go_on)() {
            // An error of the system, as far as readers go: it says nothing about the content.
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

    fn only(dir: &Path) -> RecoveredFile {
        let mut all = recover(dir).expect("reads");
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    /// In memory where there is such a folder: each of hundreds of files is synced.
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
                // The engine pads behind whole records alone.
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
                    // Not even a header, or nothing behind it: there is nothing to keep, or nothing to judge by.
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
        fs::write(folder.join("wqcap-q00-1.pcap.part"), bytes).expect("written");
        let it = only(dir.path());
        assert_eq!(it.path, Some(folder.join("wqcap-q00-1.pcap")));
        assert_eq!((it.outcome, it.cut), (RecoveryOutcome::Finished, 100));
    }

    #[test]
    fn what_somebody_holds_is_left_alone() {
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
        assert!(it.problem.expect("told").contains("already"));
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
        // The section of the capture stands in front of the other one.
        fs::write(&theirs, [&header[..], &file[..], &[0; 100]].concat()).expect("written");
        let it = only(dir.path());
        assert_eq!((it.outcome, it.records), (RecoveryOutcome::Finished, 3));
        assert!(dir.path().join("tap-7.pcapng").exists() && !theirs.exists());
    }

    /// Whatever a capture named it, and however it is compressed.
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
        let lz4 = |bytes: &[u8]| {
            let mut to = lz4_flex::frame::FrameEncoder::new(Vec::new());
            io::Write::write_all(&mut to, bytes).expect("packs");
            to.finish().expect("packs")
        };
        // The last frame is cut within.
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
        assert!(it.problem.expect("told").contains("4096 zeros"));
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
        // A header and nothing else.
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
    fn a_recovery_that_is_to_end_leaves_files_as_they_are() {
        for format in [FileFormat::Pcap, FileFormat::Pcapng] {
            let dir = tempfile::tempdir().expect("dir");
            let name = format!("wqcap-q01-7.{}{PART}", format.name());
            let part = dir.path().join(name);
            fs::write(&part, written(format, 3).0).expect("written");
            // Zeros without end, for all that anybody will wait.
            let file = fs::OpenOptions::new()
                .write(true)
                .open(&part)
                .expect("opens");
            file.set_len(1 << 42).expect("sparse");
            drop(file);
            let reads = std::cell::Cell::new(0);
            let go_on = || {
                reads.set(reads.get() + 1);
                reads.get() < 20
            };
            let all = finish(std::slice::from_ref(&part), go_on);
            assert_eq!(all[0].outcome, RecoveryOutcome::Failed);
            let problem = all[0].problem.as_deref().unwrap_or_default();
            assert!(problem.contains("canceled"), "{problem}");
            assert_eq!(fs::metadata(&part).expect("there").len(), 1 << 42);
        }
    }
}
