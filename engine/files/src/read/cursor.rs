//! Where reading stands in a file: the bytes from there on, and what has been found so far. It knows neither format.

use super::window::Window;
use crate::format::{Interface, pcapng::TextBudget, secrets::Secrets};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    io::{self, Read},
    ops::Range,
};

/// The longest frame that is accepted; libpcap accepts a quarter of this.
pub const MAX_FRAME: u32 = 1 << 20;

/// The most interfaces that a file may describe.
pub const MOST_INTERFACES: usize = 1 << 16;

/// How a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileEnd {
    /// With a whole record.
    Clean,
    /// Within a record.
    Torn {
        /// Where that record begins.
        offset: u64,
        /// Bytes that are there of it.
        bytes: u64,
    },
    /// With zeros, as direct I/O leaves them.
    Padding {
        /// Where they begin.
        offset: u64,
        /// How many.
        bytes: u64,
    },
}

impl fmt::Display for FileEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Clean => f.write_str("a whole record"),
            Self::Torn { offset, bytes } => write!(
                f,
                "at byte {offset}: the last record is torn, {bytes} bytes are left of it"
            ),
            Self::Padding { offset, bytes } => {
                write!(f, "at byte {offset}: {bytes} zeros to the end of the file")
            }
        }
    }
}

/// Contradictions in a file that did not stop the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anomalies {
    /// Records that hold more bytes than the frame had, by their own account.
    pub longer_than_frame: u64,
    /// Records longer than the header's snapshot length.
    pub above_snaplen: u64,
    /// Records with a fraction of a second above one: nanoseconds in a file of microseconds, often.
    pub fraction_above_second: u64,
    /// Records that have no stamp of their own.
    pub unstamped: u64,
    /// pcapng blocks other than frames, interfaces, statistics, and secrets that are wanted.
    pub other_blocks: u64,
    /// Options of section headers: comments, hardware, operating system, program.
    pub section_options: u64,
    /// Names, comments and descriptions of interfaces that were not kept: [`MOST_TEXTS`](crate::format::pcapng::MOST_TEXTS).
    pub texts_left_out: u64,
}

/// Why a file cannot be read, or not further.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system.
    #[error("at byte {offset}: {source}")]
    Io {
        /// Where in the file.
        offset: u64,
        /// Why.
        source: io::Error,
    },
    /// There is not a byte in it.
    #[error("the file is empty, without even a header")]
    Empty,
    /// Another kind of file.
    #[error("not a pcap or pcapng file (it begins with {0})")]
    Unknown(String),
    /// A kind that must be decompressed first.
    #[error("the file is compressed; decompress it first: {0}")]
    Compressed(&'static str),
    /// More interfaces than describe anything.
    #[error(
        "at byte {offset}: more than {MOST_INTERFACES} interfaces; describe fewer, or split the file"
    )]
    TooManyInterfaces {
        /// Where the first of them is described that is too many.
        offset: u64,
    },
    /// The file contradicts its format.
    #[error("at byte {offset}: {problem}")]
    Damaged {
        /// Where the record begins.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
}

impl ReadError {
    /// Whether there is no such file.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl From<io::Error> for ReadError {
    /// For a file that could not be opened, or not be read from its first byte.
    fn from(source: io::Error) -> Self {
        Self::Io { offset: 0, source }
    }
}

/// The record at the window's start.
#[derive(Default)]
pub(super) struct Head {
    pub(super) interface: usize,
    pub(super) ns: u64,
    pub(super) len: u32,
    pub(super) data: Range<usize>,
    pub(super) options: Range<usize>,
    /// Bytes of the whole record.
    pub(super) total: usize,
}

pub(super) struct Cursor<R> {
    pub(super) window: Window<R>,
    pub(super) interfaces: Vec<Interface>,
    pub(super) head: Head,
    pub(super) anomalies: Anomalies,
    pub(super) texts: TextBudget,
    /// The machine that the section is of.
    pub(super) host: Option<String>,
    /// Those met since they were last taken; `None`: nobody wants them.
    pub(super) secrets: Option<Vec<Secrets>>,
    /// Where the last whole record or block ends.
    pub(super) sound_end: u64,
}

impl<R: Read> Cursor<R> {
    pub(super) fn new(source: R, window: usize) -> Self {
        Self {
            window: Window::new(source, window),
            interfaces: Vec::new(),
            head: Head::default(),
            anomalies: Anomalies::default(),
            texts: TextBudget::default(),
            host: None,
            secrets: None,
            sound_end: 0,
        }
    }

    /// Reads until `n` bytes are in the window; `false`: the source has ended before.
    #[inline]
    pub(super) fn want(&mut self, n: usize) -> Result<bool, ReadError> {
        self.window.want(n).map_err(|source| ReadError::Io {
            offset: self.window.offset(),
            source,
        })
    }

    pub(super) fn damaged(&self, problem: impl Into<String>) -> ReadError {
        ReadError::Damaged {
            offset: self.window.offset(),
            problem: problem.into(),
        }
    }

    /// The source has ended: with the last record, or within another.
    pub(super) fn ended(&self) -> FileEnd {
        let (offset, rest) = (self.window.offset(), self.window.held());
        let bytes = rest.len() as u64;
        if rest.is_empty() {
            FileEnd::Clean
        } else if rest.iter().all(|b| *b == 0) {
            FileEnd::Padding { offset, bytes }
        } else {
            FileEnd::Torn { offset, bytes }
        }
    }

    /// Zeros stand where a record should begin: fine, if nothing else follows.
    pub(super) fn zeros(&mut self) -> Result<FileEnd, ReadError> {
        let offset = self.window.offset();
        loop {
            let bytes = self.window.held();
            if let Some(n) = bytes.iter().position(|b| *b != 0) {
                let zeros = self.window.offset() + n as u64 - offset;
                return Err(ReadError::Damaged {
                    offset,
                    problem: format!(
                        "{zeros} zeros where a record should begin, and more data behind them"
                    ),
                });
            }
            let n = bytes.len();
            self.window.skip(n);
            if !self.want(1)? {
                return Ok(FileEnd::Padding {
                    offset,
                    bytes: self.window.offset() - offset,
                });
            }
        }
    }
}
