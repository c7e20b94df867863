//! Opening of capture files for reading, whole or in part, compressed or not.

use super::{Decompressor, PacketReader, ReadError};
use crate::{
    folder::{FileStamp, device_and_inode, open::is_locked},
    name::PART,
    sealed::{Content, SecretKey, sealed_name},
};
use std::{
    fmt::Debug,
    io::{self, Read, Seek, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    vec,
};
use wqcap_pcap::read::{BEGINNING, WHOLE_FILE};

/// Reader of the packets in a capture file, in selected ranges of it, or in standard input,
/// compressed or not.
pub type FileReader = PacketReader<Decompressor<Box<dyn Read + Send>>>;

/// Opens a capture file that is not sealed; `-` is standard input. [`FileRanges::with_key`] opens a
/// sealed one.
///
/// # Errors
/// The file cannot be read, or it is not a capture file.
pub fn open(path: &Path) -> Result<FileReader, ReadError> {
    FileRanges::named(path.to_owned()).open()
}

/// Capture file to read, whole or in part, given by its path and byte ranges.
#[derive(Clone, Debug)]
pub struct FileRanges {
    /// Path of the capture file.
    pub(crate) path: PathBuf,
    /// Byte ranges of the capture file to read, in order.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Folder in which the capture file was listed; `None` if the user named the file. Files of a
    /// folder may be deleted at any time, so a missing file is not an error.
    pub(crate) found_in: Option<PathBuf>,
    /// `true` if the user named the capture file, which may then be a pipe or a link.
    pub(crate) is_named: bool,
    /// Counter of the bytes that are read from the capture file.
    pub(crate) meter: ReadMeter,
    /// Key that opens the capture file if it is sealed (encrypted).
    pub(crate) key: Option<SecretKey>,
    /// Source of the capture file's content if it is not a local file.
    pub(crate) remote: Option<Arc<dyn RemoteContent>>,
    /// `true` if a capture may still write the file, which then has the name `path` with [`PART`].
    /// Its readable part ends with its last complete record.
    pub(crate) is_open: bool,
    /// `true` if frames are lost when the file is deleted before it is read; `false`: the deletion
    /// is noted only.
    pub(crate) must_exist: bool,
    /// Stamp of the local file for which the ranges were selected. A file with another stamp is
    /// read whole. `None`: the ranges hold for any file.
    pub(crate) stamp: Option<FileStamp>,
    /// Device and inode of the local file when it was selected. Another file that has its name later is
    /// not read, as if there were none. `None`: any file of the name is read.
    pub(crate) identity: Option<(u64, u64)>,
    /// Minimum number of packet records in the ranges; with fewer records, frames are lost. 0 if the
    /// number is unknown.
    pub(crate) least_frames: u64,
}

/// Effect of the deletion of a listed capture file on an output, with the text for the user.
pub(crate) enum Deletion {
    /// The output is complete: its capture deletes old files.
    Note(String),
    /// The output lacks the frames of the file.
    Loss(String),
}

/// Content of a capture file that is not local, such as an object of a store.
pub trait RemoteContent: Debug + Send + Sync {
    /// Returns the name of the remote capture file for messages.
    fn name(&self) -> String;

    /// Opens the remote content for reading its ranges in order; see [`FileRanges::new`].
    /// `beginning` is set if little more than the first record is needed.
    ///
    /// # Errors
    /// The content is missing or has changed.
    fn read(&self, beginning: bool) -> io::Result<Box<dyn Read + Send>>;
}

/// Counter of the bytes that are read from capture files. Each byte of a file is counted once, even
/// if it is read several times.
#[derive(Clone, Debug, Default)]
pub struct ReadMeter {
    /// Number of bytes read from all files that share this counter.
    total: Arc<AtomicU64>,
    /// Highest offset in this capture file up to which bytes were read. Bytes before it count as
    /// read, because a reader of a later part has read everything it needs before that part.
    read_to: Arc<AtomicU64>,
}

impl ReadMeter {
    /// Creates a read counter for another capture file, which adds to the same total.
    #[must_use]
    pub fn for_another_file(&self) -> Self {
        Self {
            total: Arc::clone(&self.total),
            read_to: Arc::default(),
        }
    }

    /// Returns the number of bytes read from all files that share this counter.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Counts a byte range of this capture file as read.
    fn count(&self, part: Range<u64>) {
        let read_to = self.read_to.fetch_max(part.end, Ordering::Relaxed);
        let new = part.end.saturating_sub(part.start.max(read_to));
        self.total.fetch_add(new, Ordering::Relaxed);
    }
}

impl FileRanges {
    /// Selects the whole of a capture file that the user named, for reading; `-` is standard input.
    #[must_use]
    pub fn named(path: PathBuf) -> Self {
        Self {
            is_named: true,
            ..Self::whole(path)
        }
    }

    /// Selects the whole capture file for reading; `-` is standard input.
    #[must_use]
    pub fn whole(path: PathBuf) -> Self {
        Self::new(path, std::iter::once(0..u64::MAX).collect())
    }

    /// Selects byte ranges of a capture file for reading, in order. The first range must begin with
    /// the header before the first record. Each range must contain complete records; in a
    /// compressed file, complete compressed frames of complete records.
    #[must_use]
    pub fn new(path: PathBuf, ranges: Vec<Range<u64>>) -> Self {
        Self {
            path,
            ranges,
            found_in: None,
            is_named: false,
            meter: ReadMeter::default(),
            key: None,
            remote: None,
            is_open: false,
            must_exist: false,
            stamp: None,
            identity: None,
            least_frames: 0,
        }
    }

    /// Adds the minimum number of packet records in the ranges, for example from a table. An output
    /// that was made from fewer records reports a loss.
    #[must_use]
    pub fn with_least_frames(self, least_frames: u64) -> Self {
        Self {
            least_frames,
            ..self
        }
    }

    /// Adds the key that opens the capture file if it is sealed (encrypted).
    #[must_use]
    pub fn with_key(self, key: Option<SecretKey>) -> Self {
        Self { key, ..self }
    }

    /// Selects byte ranges of remote content for reading. Ports and streams of a merge are derived
    /// as for a local file `name` in `folder`.
    #[must_use]
    pub fn from_remote(
        folder: &Path,
        name: &str,
        ranges: Vec<Range<u64>>,
        content: Arc<dyn RemoteContent>,
    ) -> Self {
        Self {
            found_in: Some(folder.to_owned()),
            remote: Some(content),
            ..Self::new(folder.join(name), ranges)
        }
    }

    /// Returns the path of the capture file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if the content of the capture file is not local.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// Returns `true` if the capture file was found in a folder or a store: if it cannot be read,
    /// other files are read without it.
    #[must_use]
    pub fn may_be_lost(&self) -> bool {
        self.found_in.is_some()
    }

    /// Calls `access` with the present path of the capture file. The name of an open file changes
    /// when its capture finishes it, and that of a plain file when its capture seals (encrypts) it.
    pub(crate) fn with_present_path<T>(
        &self,
        access: impl Fn(&Path) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.is_open {
            match access(&self.part()) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                result => return result,
            }
        }
        match access(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && self.key.is_some() => {
                access(&sealed_name(&self.path)).map_err(|_| e)
            }
            result => result,
        }
    }

    /// Returns `true` if the capture file is open and a capture may be writing it, so that it may end
    /// anywhere; `false` also if a crash left it. A file that has its final name meanwhile was being
    /// written when it was listed.
    pub(crate) fn is_being_written(&self) -> bool {
        self.is_open && is_locked(&self.part()).unwrap_or(true)
    }

    /// Returns the path that the capture file has while it is open.
    fn part(&self) -> PathBuf {
        let mut part = self.path.clone().into_os_string();
        part.push(PART);
        part.into()
    }

    /// Returns the name of the capture file for messages.
    pub(crate) fn shown(&self) -> String {
        match &self.remote {
            Some(content) => content.name(),
            None => self.path.display().to_string(),
        }
    }

    /// Restricts reading to the file that has the name of the capture file now.
    #[must_use]
    pub(crate) fn with_identity(self) -> Self {
        let missing = || io::ErrorKind::NotFound.into();
        let identity = self.with_present_path(|it| device_and_inode(it).ok_or_else(missing));
        Self {
            identity: identity.ok(),
            ..self
        }
    }

    /// Replaces the byte ranges to read of the capture file; see [`FileRanges::new`].
    #[must_use]
    pub(crate) fn with_ranges(self, ranges: Vec<Range<u64>>) -> Self {
        Self { ranges, ..self }
    }

    /// Returns the folder in which the capture file is.
    pub(crate) fn folder(&self) -> &Path {
        let own = || self.path.parent().unwrap_or(Path::new(""));
        self.found_in.as_deref().unwrap_or_else(own)
    }

    /// Returns the effect on the output if the capture file cannot be read (error `e`) because it
    /// was deleted after it was listed; `None`: the error has another cause.
    pub(crate) fn deletion(&self, e: &ReadError) -> Option<Deletion> {
        let was_listed = self.found_in.is_some() && !self.is_remote();
        (was_listed && e.is_not_found()).then(|| {
            if self.must_exist {
                return Deletion::Loss("the file was deleted before it could be read".into());
            }
            let shown = self.path.display();
            Deletion::Note(format!(
                "{shown}: the file was deleted before it could be read, and is left out"
            ))
        })
    }

    /// Returns the number of bytes in the selected ranges of a capture file of `len` bytes.
    #[must_use]
    pub fn bytes(&self, len: u64) -> u64 {
        let bytes = |r: &Range<u64>| r.end.min(len).saturating_sub(r.start);
        self.ranges.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Opens the byte ranges of the capture file for reading.
    ///
    /// # Errors
    /// The file cannot be read, or it is not a capture file.
    pub fn open(&self) -> Result<FileReader, ReadError> {
        self.open_with_window(WHOLE_FILE, false)
    }

    /// Opens the capture file with a small buffer, for callers that need only its beginning.
    ///
    /// # Errors
    /// See [`FileRanges::open`].
    pub fn peek(&self) -> Result<FileReader, ReadError> {
        self.open_with_window(BEGINNING, true)
    }

    fn open_with_window(&self, window: usize, beginning: bool) -> Result<FileReader, ReadError> {
        let source: Box<dyn Read + Send> = match &self.remote {
            Some(content) => content.read(beginning)?,
            None if self.path.as_os_str() == "-" => Box::new(io::stdin()),
            None => Box::new(self.source()?),
        };
        PacketReader::with_window(Decompressor::new(source)?, window)
    }

    /// Opens a local capture file, not standard input, for reading the raw bytes of its selected
    /// ranges.
    pub(crate) fn source(&self) -> io::Result<impl Read + use<>> {
        let key = self.key.as_ref();
        let open = |path: &Path| {
            let file = match &self.found_in {
                Some(dir) => Content::open_below(dir, path, key),
                None => Content::open(path, key),
            }?;
            // A file that was sealed meanwhile is another file of another name.
            let has_its_name = path == self.path || self.is_open && path == self.part();
            match self.identity {
                Some(it) if has_its_name && file.device_and_inode()? != it => {
                    Err(io::ErrorKind::NotFound.into())
                }
                _ => Ok(file),
            }
        };
        let file = match self.is_named {
            true => Content::open_named(&self.path, key)?,
            false => self.with_present_path(open)?,
        };
        let is_other = |it: FileStamp| FileStamp::read(&self.path).is_ok_and(|now| now != it);
        let ranges = match self.stamp.is_some_and(is_other) {
            false => self.ranges.clone(),
            // The file was replaced since: the ranges are those of another one.
            true => std::iter::once(0..u64::MAX).collect(),
        };
        // A capture cuts reserved space off the file that it finishes, and a named file can be one.
        let is_finished = self.found_in.is_some() && !self.is_open;
        let mut ranges = ranges.into_iter();
        Ok(RangeSource {
            least: if is_finished { file.len()? } else { 0 },
            file,
            here: 0,
            now: ranges.next().unwrap_or(0..0),
            rest: ranges,
            meter: self.meter.clone(),
        })
    }
}

/// Reader of the byte ranges of a capture file, in order.
struct RangeSource {
    /// Open capture file from which the ranges are read.
    file: Content,
    /// Minimum length in bytes of the open file; it is an error if the file ends before.
    least: u64,
    /// Current position of the range reader in the capture file.
    here: u64,
    /// Part of the current byte range that is not read yet.
    now: Range<u64>,
    /// Byte ranges of the capture file after the current one.
    rest: vec::IntoIter<Range<u64>>,
    /// Counter of the bytes read from the capture file.
    meter: ReadMeter,
}

impl Read for RangeSource {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() {
            match self.rest.next() {
                Some(next) => self.now = next,
                None => return Ok(0),
            }
        }
        if self.here != self.now.start {
            self.here = self.file.seek(SeekFrom::Start(self.now.start))?;
        }
        let left = usize::try_from(self.now.end - self.now.start).unwrap_or(usize::MAX);
        let want = into.len().min(left);
        let n = self.file.read(&mut into[..want])?;
        if n == 0 && want > 0 && self.here < self.least {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "the file became shorter while it was read: it ends before byte {} of {}",
                    self.here, self.least
                ),
            ));
        }
        let begun = self.here;
        self.here += n as u64;
        self.now.start += n as u64;
        self.meter.count(begun..self.here);
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sealed::seal;

    #[test]
    fn another_file_of_the_same_name_is_not_read() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("a.pcap.part"), [7; 100]).expect("written");
        let listed = FileRanges {
            is_open: true,
            ..FileRanges::whole(at("a.pcap"))
        };
        let listed = listed.with_identity();
        assert!(listed.source().is_ok());
        // Its capture finishes it and begins the next one.
        std::fs::rename(at("a.pcap.part"), at("a.pcap")).expect("renamed");
        std::fs::write(at("a.pcap.part"), [8; 100]).expect("written");
        let mut bytes = Vec::new();
        let mut source = listed.source().expect("renamed only");
        source.read_to_end(&mut bytes).expect("read");
        assert_eq!(bytes, [7; 100]);
        std::fs::rename(at("a.pcap.part"), at("a.pcap")).expect("replaced");
        let error = listed.source().err().expect("another file");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_that_is_sealed_after_it_was_listed_is_read() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("a.pcap");
        std::fs::write(&path, [7; 1000]).expect("written");
        let key = SecretKey::new(&[3; 32]);
        let file = FileRanges::whole(path.clone()).with_key(Some(key.clone()));
        let file = file.with_ranges(Vec::from([10..15, 15..20]));
        seal(dir.path(), &path, &key, || true).expect("sealed");
        assert!(!path.exists());
        let mut read = Vec::new();
        let mut source = file.source().expect("opens");
        source.read_to_end(&mut read).expect("reads");
        assert_eq!(read, [7; 10]);
        std::fs::remove_file(sealed_name(&path)).expect("removed");
        let e = file.source().err().expect("gone");
        assert_eq!(e.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_finished_file_that_is_cut_while_it_is_read_is_an_error() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("a.pcap");
        let file = |found_in: Option<&Path>, is_open| FileRanges {
            found_in: found_in.map(Path::to_owned),
            is_open,
            ..FileRanges::whole(path.clone())
        };
        let dir = Some(dir.path());
        for (file, is_error) in [
            (file(dir, false), true),
            (file(dir, true), false),
            (file(None, false), false),
        ] {
            std::fs::write(&path, [7; 1000]).expect("written");
            let mut source = file.source().expect("opens");
            source.read_exact(&mut [0; 100]).expect("reads");
            let whole = std::fs::File::options().write(true).open(&path);
            whole.and_then(|it| it.set_len(500)).expect("cut");
            let read = source.read_to_end(&mut Vec::new());
            match read {
                Ok(n) => assert!(n == 400 && !is_error),
                Err(e) => assert!(
                    is_error && e.to_string().contains("byte 500 of 1000"),
                    "{e}"
                ),
            }
        }
    }

    #[test]
    fn a_byte_that_is_read_twice_is_counted_once() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("a");
        std::fs::write(&path, [7; 1000]).expect("written");
        let file = FileRanges::whole(path.clone());
        let read = |file: &FileRanges, n: u64| {
            let source = file.source().expect("opens");
            io::copy(&mut source.take(n), &mut io::sink()).expect("reads")
        };
        assert_eq!((read(&file, 100), file.meter.bytes()), (100, 100));
        let parts = file.clone().with_ranges(vec![0..50, 200..300]);
        assert_eq!((read(&parts, 150), file.meter.bytes()), (150, 200));
        assert_eq!((read(&parts, 150), file.meter.bytes()), (150, 200));
        let other = FileRanges {
            meter: file.meter.for_another_file(),
            ..FileRanges::whole(path)
        };
        assert_eq!((read(&other, 2000), file.meter.bytes()), (1000, 1200));
    }

    #[test]
    fn a_folder_that_was_replaced_by_a_link_is_not_followed() {
        let dir = tempfile::tempdir().expect("dir");
        let [named, elsewhere] = ["named", "elsewhere"].map(|it| dir.path().join(it));
        for folder in [&named, &elsewhere] {
            std::fs::create_dir_all(folder.join("sub")).expect("made");
            std::fs::write(folder.join("sub/a.pcap"), "content").expect("written");
        }
        let file = FileRanges {
            found_in: Some(named.clone()),
            ..FileRanges::whole(named.join("sub/a.pcap"))
        };
        assert!(file.source().is_ok());
        std::fs::rename(named.join("sub"), named.join("old")).expect("renamed");
        std::os::unix::fs::symlink(elsewhere.join("sub"), named.join("sub")).expect("linked");
        assert!(file.source().is_err());
    }
}
