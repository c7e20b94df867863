//! Opens files: whole or in part, compressed or not.

use super::{
    cursor::ReadError,
    decompress::Decompressor,
    reader::PacketReader,
    window::{BEGINNING, WHOLE_FILE},
};
use crate::sealed::Content;
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

/// Reads a file, a selection of its ranges, or standard input, compressed or not.
pub type FileReader = PacketReader<Decompressor<Box<dyn Read + Send>>>;

/// Opens a file; `-` is standard input.
///
/// # Errors
/// The system, or it is not a capture file.
pub fn open(path: &Path) -> Result<FileReader, ReadError> {
    FileRanges::named(path.to_owned()).open()
}

/// A file to be read, as a whole or in part.
#[derive(Clone, Debug)]
pub struct FileRanges {
    /// The file.
    pub path: PathBuf,
    pub(crate) ranges: Vec<Range<u64>>,
    /// The folder in whose list it was found, where files may be deleted at any time: that it is gone is no loss. `None`:
    /// it was named.
    pub found_in: Option<PathBuf>,
    /// The user has named it: it may be a pipe, or a link.
    pub(crate) is_named: bool,
    /// Counts what is read of it.
    pub meter: ReadMeter,
    /// Where its bytes are, if not in a file of this machine.
    pub(crate) remote: Option<Arc<dyn RemoteContent>>,
}

/// Ranges of what is not in a file of this machine, such as an object of a store.
pub trait RemoteContent: Debug + Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> String;

    /// Reads the ranges one after the other, as [`FileRanges::new`] takes them. `beginning`: hardly more than the first record
    /// is wanted.
    ///
    /// # Errors
    /// It is not there, or is another than it was.
    fn read(&self, beginning: bool) -> io::Result<Box<dyn Read + Send>>;
}

/// Counts the bytes that are read of files, each byte of a file once, however often it is read.
#[derive(Clone, Debug, Default)]
pub struct ReadMeter {
    /// Of all files that are counted together.
    total: Arc<AtomicU64>,
    /// How far this file has been read. Whoever reads a part of it reads what he needs of all that is before.
    read_to: Arc<AtomicU64>,
}

impl ReadMeter {
    /// For another file, counted together with this one.
    #[must_use]
    pub fn of_another(&self) -> Self {
        Self {
            total: Arc::clone(&self.total),
            read_to: Arc::default(),
        }
    }

    /// Bytes read of all files that are counted together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    fn count(&self, part: Range<u64>) {
        let read_to = self.read_to.fetch_max(part.end, Ordering::Relaxed);
        let new = part.end.saturating_sub(part.start.max(read_to));
        self.total.fetch_add(new, Ordering::Relaxed);
    }
}

impl FileRanges {
    /// The whole file that the user has named; `-` is standard input.
    #[must_use]
    pub fn named(path: PathBuf) -> Self {
        Self {
            is_named: true,
            ..Self::whole(path)
        }
    }

    /// The whole file; `-` is standard input.
    #[must_use]
    pub fn whole(path: PathBuf) -> Self {
        Self::new(path, std::iter::once(0..u64::MAX).collect())
    }

    /// These byte ranges of it, one after the other. The first must begin with what stands before the first record, and
    /// each must hold whole records, or in a compressed file whole frames of whole records.
    #[must_use]
    pub fn new(path: PathBuf, ranges: Vec<Range<u64>>) -> Self {
        Self {
            path,
            ranges,
            found_in: None,
            is_named: false,
            meter: ReadMeter::default(),
            remote: None,
        }
    }

    /// Ranges of what is elsewhere. Ports and streams are told as if they were of the file `name` in the folder `folder`.
    #[must_use]
    pub fn of_remote(
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

    /// Whether it is no file of this machine.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    /// What it is called in messages.
    pub(crate) fn shown(&self) -> String {
        match &self.remote {
            Some(content) => content.name(),
            None => self.path.display().to_string(),
        }
    }

    /// The same file with only these ranges of it, as [`FileRanges::new`] takes them.
    #[must_use]
    pub(crate) fn with_ranges(self, ranges: Vec<Range<u64>>) -> Self {
        Self { ranges, ..self }
    }

    /// The folder that it is one of the files of.
    pub(crate) fn folder(&self) -> &Path {
        let own = || self.path.parent().unwrap_or(Path::new(""));
        self.found_in.as_deref().unwrap_or_else(own)
    }

    /// A note if the reason that it cannot be read is that it was deleted since it was listed.
    pub(crate) fn note_if_deleted(&self, e: &ReadError) -> Option<String> {
        let was_listed = self.found_in.is_some() && !self.is_remote();
        (was_listed && e.is_not_found()).then(|| {
            let shown = self.path.display();
            format!("{shown}: was deleted before it could be read, and is left out")
        })
    }

    /// Bytes to be read of a file of this length.
    #[must_use]
    pub fn bytes(&self, len: u64) -> u64 {
        let bytes = |r: &Range<u64>| r.end.min(len).saturating_sub(r.start);
        self.ranges.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Opens it.
    ///
    /// # Errors
    /// The system, or it is not a capture file.
    pub fn open(&self) -> Result<FileReader, ReadError> {
        self.open_with_window(WHOLE_FILE, false)
    }

    /// Opens it when only the beginning is wanted.
    ///
    /// # Errors
    /// As [`FileRanges::open`].
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

    /// Opens a file of this machine for its bytes as they stand; not standard input.
    pub(crate) fn source(&self) -> io::Result<impl Read + use<>> {
        let mut ranges = self.ranges.clone().into_iter();
        let file = match self.is_named {
            true => Content::open_named(&self.path)?,
            false => Content::open(&self.path)?,
        };
        Ok(RangeSource {
            file,
            here: 0,
            now: ranges.next().unwrap_or(0..0),
            rest: ranges,
            meter: self.meter.clone(),
        })
    }
}

/// Reads the ranges of a file one after the other.
struct RangeSource {
    file: Content,
    /// Where the file is.
    here: u64,
    /// What is still to be read of this range.
    now: Range<u64>,
    rest: vec::IntoIter<Range<u64>>,
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

    #[test]
    fn a_byte_that_is_read_again_is_counted_once() {
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
            meter: file.meter.of_another(),
            ..FileRanges::whole(path)
        };
        assert_eq!((read(&other, 2000), file.meter.bytes()), (1000, 1200));
    }
}
