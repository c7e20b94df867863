//! A file, or a selection of its byte ranges that reads as one file, and how many bytes were read.

use super::{
    cursor::ReadError,
    open::{decompressed, open_with_window},
    reader::{FileReader, PacketReader},
    window,
};
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    vec,
};

/// A file to be read, as a whole or in part.
#[derive(Clone, Debug)]
pub struct FileRanges {
    path: PathBuf,
    /// `None`: all of it.
    ranges: Option<Vec<Range<u64>>>,
    /// Bytes read so far; shared by all that are to be counted together.
    meter: Option<Arc<AtomicU64>>,
}

impl FileRanges {
    /// The whole file; `-` is standard input.
    #[must_use]
    pub fn whole(path: PathBuf) -> Self {
        Self {
            path,
            ranges: None,
            meter: None,
        }
    }

    /// These byte ranges of it, one after the other. The first must begin with what stands before the first record, and
    /// each must hold whole records, or in a compressed file whole frames of whole records.
    #[must_use]
    pub fn new(path: PathBuf, ranges: Vec<Range<u64>>) -> Self {
        Self {
            path,
            ranges: Some(ranges),
            meter: None,
        }
    }

    /// Counts what is read into `meter`.
    #[must_use]
    pub fn metered(self, meter: Arc<AtomicU64>) -> Self {
        Self {
            meter: Some(meter),
            ..self
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes to be read of a file of this length.
    #[must_use]
    pub fn bytes(&self, len: u64) -> u64 {
        match &self.ranges {
            None => len,
            Some(ranges) => ranges.iter().map(|r| r.end - r.start).sum(),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// The system, or it is not a capture file.
    pub fn open(&self) -> Result<FileReader, ReadError> {
        self.open_with_window(window::WHOLE_FILE)
    }

    /// Opens it when only the beginning is wanted.
    ///
    /// # Errors
    /// As [`FileRanges::open`].
    pub fn peek(&self) -> Result<FileReader, ReadError> {
        self.open_with_window(window::BEGINNING)
    }

    fn open_with_window(&self, window: usize) -> Result<FileReader, ReadError> {
        if self.ranges.is_none() && self.meter.is_none() {
            return open_with_window(&self.path, window);
        }
        let file = File::open(&self.path)?;
        let whole = 0..u64::MAX;
        let mut ranges = self.ranges.clone().unwrap_or(vec![whole]).into_iter();
        let source = decompressed(RangeSource {
            file,
            // A file is open at its beginning.
            here: 0,
            now: ranges.next().unwrap_or(0..0),
            rest: ranges,
            meter: self.meter.clone().unwrap_or_default(),
        })?;
        PacketReader::with_window(source, window)
    }
}

/// Reads the ranges of a file one after the other.
struct RangeSource {
    file: File,
    /// Where the file is.
    here: u64,
    /// What is still to be read of this range.
    now: Range<u64>,
    rest: vec::IntoIter<Range<u64>>,
    meter: Arc<AtomicU64>,
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
        self.here += n as u64;
        self.now.start += n as u64;
        self.meter.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}
