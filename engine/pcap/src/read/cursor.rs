//! Position and state of a capture file reader: the buffered bytes from the current record on, and
//! the interfaces and anomalies found so far. Independent of the file format.

use super::{
    budget::{FileMemory, MemoryUse},
    window::Window,
};
use crate::format::{
    DistinctTexts, FormatViolation, Interface, pcapng::TextBudget, secrets::Secrets,
};
use serde::{Deserialize, Serialize};
use std::{
    fmt,
    io::{self, Read},
    ops::Range,
};

/// Maximum length in bytes of a frame that the reader accepts; libpcap accepts a quarter of this.
pub const MAX_FRAME: u32 = 1 << 20;

/// Maximum number of interfaces in a capture file that the reader accepts.
pub const MOST_INTERFACES: usize = 1 << 16;

/// Kind of the end of a capture file: clean, torn within a record, or padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileEnd {
    /// Capture file that ends with a complete record.
    Clean,
    /// Capture file that ends within a record.
    Torn {
        /// Offset of the truncated record in the capture file.
        offset: u64,
        /// Number of bytes of the truncated record that are present.
        bytes: u64,
    },
    /// Capture file that ends with zeros, which direct I/O leaves as padding.
    Padding {
        /// Offset of the first zero of the padding in the capture file.
        offset: u64,
        /// Number of zeros in the padding.
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

/// Counts of contradictions in a capture file that did not stop the reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Anomalies {
    /// Number of records with a captured length above the frame's length on the wire.
    pub longer_than_frame: u64,
    /// Number of records that have more captured bytes than the snapshot length.
    pub above_snaplen: u64,
    /// Number of records with a timestamp fraction of one second or more; usually nanoseconds in a
    /// file declared with microseconds.
    pub fraction_above_second: u64,
    /// Number of records that have no timestamp.
    pub unstamped: u64,
    /// Number of pcapng blocks that the reader skipped: all but packets, interfaces, statistics,
    /// and secrets if those are collected.
    pub other_blocks: u64,
    /// Number of options of pcapng section headers: comments, hardware, operating system, program.
    pub section_options: u64,
    /// Number of names, comments and descriptions of interfaces beyond the limit
    /// [`MOST_TEXTS`](crate::format::pcapng::MOST_TEXTS), which were not kept.
    pub texts_left_out: u64,
    /// Number of options of interfaces that are unknown, malformed, or must not be copied.
    pub interface_options: u64,
}

/// Reason why a capture file cannot be read, or cannot be read further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system reports an I/O error while the capture file is read.
    #[error("at byte {offset}: {source}")]
    Io {
        /// Offset in the capture file at which the I/O error occurred.
        offset: u64,
        /// I/O error that the system reports.
        source: io::Error,
    },
    /// The capture file is empty: it has no bytes.
    #[error("the file is empty; a capture file has at least a header")]
    Empty,
    /// The capture file begins with these bytes, the magic number of no supported format.
    #[error("the file is not a pcap or pcapng file; it begins with the bytes {}", hex(.0))]
    Unknown(Vec<u8>),
    /// The capture file is compressed with an unsupported method; the field is the command that
    /// decompresses it.
    #[error("the file is compressed; decompress it first: {0}")]
    Compressed(&'static str),
    /// The capture file describes more than [`MOST_INTERFACES`] interfaces.
    #[error(
        "at byte {offset}: the file has more than {MOST_INTERFACES} interfaces; describe fewer, or split the file"
    )]
    TooManyInterfaces {
        /// Offset in the capture file of the first interface description beyond the limit.
        offset: u64,
    },
    /// The capture file violates the rules of its format.
    #[error("at byte {offset}: {violation}")]
    Damaged {
        /// Offset of the damaged record in the capture file.
        offset: u64,
        /// Rule of the format that the damaged record violates.
        violation: FormatViolation,
    },
}

/// Formats bytes as pairs of hex digits.
fn hex(bytes: &[u8]) -> String {
    let pairs: Vec<_> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    pairs.join(" ")
}

impl ReadError {
    /// Returns `true` if the capture file does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl From<io::Error> for ReadError {
    /// Wraps an error of opening a capture file or reading its first byte.
    fn from(source: io::Error) -> Self {
        Self::Io { offset: 0, source }
    }
}

/// Decoded header of the record at the start of the reader's window.
#[derive(Default)]
pub(super) struct RecordHead {
    /// Index in the capture file of the record's interface.
    pub(super) interface: usize,
    /// Timestamp of the record in nanoseconds since 1970.
    pub(super) ns: u64,
    /// Length of the record's frame on the wire in bytes, as the file states it.
    pub(super) len: u32,
    /// Range of the record's frame in the reader's window.
    pub(super) data: Range<usize>,
    /// `true` if the record has a timestamp of its own.
    pub(super) stamped: bool,
    /// Range of the record's options in the reader's window.
    pub(super) options: Range<usize>,
    /// Length of the whole record in the capture file, in bytes.
    pub(super) total: usize,
}

/// Decryption secrets that a reader holds until they are taken.
#[derive(Default)]
pub(super) struct HeldSecrets {
    /// Decryption secrets in the order of the file.
    pub(super) list: Vec<Secrets>,
    /// Sum of the sizes of the held secrets in bytes.
    pub(super) bytes: usize,
}

/// Position and state of a reader in a capture file.
pub(super) struct Cursor<R> {
    /// Window with the buffered bytes of the capture file from the current record on.
    pub(super) window: Window<R>,
    /// Interfaces that the capture file has described so far.
    pub(super) interfaces: Vec<Interface>,
    /// Header of the reader's current record, decoded.
    pub(super) head: RecordHead,
    /// Counts of the anomalies found so far in the capture file.
    pub(super) anomalies: Anomalies,
    /// Remaining memory budget for texts that describe interfaces.
    pub(super) texts: TextBudget,
    /// Host name of the current pcapng section.
    pub(super) host: Option<String>,
    /// Comments of the pcapng sections so far, without the host names.
    pub(super) comments: DistinctTexts,
    /// Decryption secrets read since the last call of `take_secrets`; `None` if they are not
    /// collected.
    pub(super) secrets: Option<HeldSecrets>,
    /// Offset in the capture file of the end of the last complete record or block.
    pub(super) sound_end: u64,
    /// Memory of the interfaces and comments.
    descriptions: FileMemory,
}

impl<R: Read> Cursor<R> {
    pub(super) fn new(source: R, window: usize) -> Self {
        Self {
            window: Window::new(source, window),
            interfaces: Vec::new(),
            head: RecordHead::default(),
            anomalies: Anomalies::default(),
            texts: TextBudget::default(),
            host: None,
            comments: DistinctTexts::default(),
            secrets: None,
            sound_end: 0,
            descriptions: FileMemory::default(),
        }
    }

    /// Adds the present interfaces and comments to the memory of all open files.
    ///
    /// # Errors
    /// The process has no budget for them.
    pub(super) fn account_descriptions(&mut self) -> Result<(), ReadError> {
        // The list of interfaces may have room for as many again.
        let interfaces = self.interfaces.len() * 2 * size_of::<Interface>();
        let bytes = (interfaces + self.texts.taken()) as u64;
        let grown = self.descriptions.grow(MemoryUse::Descriptions, bytes);
        grown.map_err(|e| ReadError::Io {
            offset: self.window.offset(),
            source: e.into(),
        })
    }

    /// Reads until the reader's window has `n` bytes. Returns `false` if the capture file ends
    /// before.
    #[inline]
    pub(super) fn ensure(&mut self, n: usize) -> Result<bool, ReadError> {
        self.window.ensure(n).map_err(|source| ReadError::Io {
            offset: self.window.offset(),
            source,
        })
    }

    /// Returns the error that the record at the reader's current offset violates its format.
    #[cold]
    pub(super) fn damaged(&self, violation: FormatViolation) -> ReadError {
        ReadError::Damaged {
            offset: self.window.offset(),
            violation,
        }
    }

    /// Returns the kind of the capture file's end, from the bytes left in the window.
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

    /// Skips zeros in the place of a record. Returns the padding if only zeros follow up to the
    /// file's end, and an error otherwise.
    pub(super) fn zeros(&mut self) -> Result<FileEnd, ReadError> {
        let offset = self.window.offset();
        loop {
            let bytes = self.window.held();
            if let Some(n) = bytes.iter().position(|b| *b != 0) {
                let zeros = self.window.offset() + n as u64 - offset;
                return Err(ReadError::Damaged {
                    offset,
                    violation: FormatViolation::Zeros(zeros),
                });
            }
            let n = bytes.len();
            self.window.skip(n);
            if !self.ensure(1)? {
                return Ok(FileEnd::Padding {
                    offset,
                    bytes: self.window.offset() - offset,
                });
            }
        }
    }
}
