//! Reads capture files as they are found: pcap and pcapng, in any byte order and resolution, whoever wrote them.
//!
//! ```text
//! source -> window -> head of a record (pcap | pcapng) -> Packet, borrowed from the window
//! ```
//!
//! What the tools over finished files have in common: forecasting, merging, recovering. They need more than to get at
//! the frames: where in the file a record begins, where the last whole one ends, a record's options as they stand, and
//! files that contradict their own headers. Crate `pcap-file` stays the strict reader of the tests.
//!
//! May import: nothing of the engine. A compressed file is a source like any other: [`open`] finds out and puts
//! [`Unpacked`] in between, and places in it are those of what it unpacks to.
//!
//! Invariants: memory is bounded by the longest record ([`MAX_FRAME`], [`MAX_BLOCK`]). No input panics. What
//! is yielded is whole: a record that the file's end cuts off is never yielded, and [`Reader::end`] tells of it. A
//! packet's `len` is never below what is there of it.

mod fields;
mod parts;
mod pcap;
mod pcapng;
mod unpack;
mod window;

pub use fields::{Order, options};
pub use parts::Parts;
pub use unpack::{Seams, Unpacked, first_frame};

use pcap::PcapFile;
use pcapng::PcapngFile;
use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    ops::Range,
    path::Path,
};
use window::Window;

/// The longest frame that is believed; others stop at a quarter of this.
pub const MAX_FRAME: u32 = 1 << 20;
/// The longest block of a pcapng file that is believed.
pub const MAX_BLOCK: u32 = 16 << 20;
/// LINKTYPE_ETHERNET.
pub const ETHERNET: u32 = 1;
/// What a reader holds ready, unless a record is longer.
const WINDOW: usize = 256 << 10;
/// The same, when only the beginning is wanted.
const PEEK: usize = 4096;
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Index into [`Reader::interfaces`].
    pub interface: usize,
    /// Nanoseconds since 1970. A record without a stamp has that of the one before it.
    pub ns: u64,
    /// The frame's length on the wire.
    pub len: u32,
    /// What was kept of it.
    pub bytes: &'a [u8],
    /// The record's options as they stand, in the byte order `order`; none in pcap.
    pub options: &'a [u8],
    /// The byte order of this part of the file.
    pub order: Order,
    /// Where in the file the record begins.
    pub offset: u64,
}

/// Where frames came from, as the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// LINKTYPE.
    pub link_type: u32,
    /// The longest record, as the file says; 0: no limit.
    pub snaplen: u32,
    /// Bytes of frame check sequence at each frame's end, if the file tells.
    pub fcs_len: Option<u8>,
    /// Its name.
    pub name: Option<String>,
    /// All its options that are text, by code, its name not among them.
    pub texts: Vec<(u16, String)>,
    /// What the file's statistics say.
    pub statistics: Statistics,
    /// How its stamps become nanoseconds.
    pub(crate) clock: pcapng::Clock,
}

/// The last statistics that the file has of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames received.
    pub received: Option<u64>,
    /// Frames lost for want of room.
    pub dropped: Option<u64>,
    /// When the interface's capture began, in nanoseconds.
    pub start_ns: Option<u64>,
    /// When it ended.
    pub end_ns: Option<u64>,
}

/// How a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
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

/// What a file said that cannot be so, and was read on over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Oddities {
    /// Records that hold more bytes than the frame had, by their own account.
    pub longer_than_frame: u64,
    /// Records longer than the header's snapshot length.
    pub above_snaplen: u64,
    /// Records with a fraction of a second above one: nanoseconds in a file of microseconds, often.
    pub fraction_above_second: u64,
    /// Records that have no stamp of their own.
    pub unstamped: u64,
    /// pcapng blocks that are no frames, interfaces or statistics.
    pub other_blocks: u64,
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
    /// No byte in it.
    #[error("is empty: not even a header")]
    Empty,
    /// Another sort of file.
    #[error("is no pcap or pcapng file (it begins with {0})")]
    Unknown(String),
    /// A sort that must be unpacked first.
    #[error("is compressed; unpack it first: {0}")]
    Compressed(&'static str),
    /// The file contradicts its format.
    #[error("at byte {offset}: {problem}")]
    Damaged {
        /// Where the record begins.
        offset: u64,
        /// What cannot be.
        problem: String,
    },
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The classic one.
    Pcap,
    /// Blocks.
    Pcapng,
}

/// A file being read.
pub struct Reader<R> {
    window: Window<R>,
    file: FileState,
    interfaces: Vec<Interface>,
    head: Head,
    oddities: Oddities,
    /// Where the last whole record or block ends.
    sound_end: u64,
    /// Frames yielded so far.
    frames: u64,
    state: State,
}

enum FileState {
    Pcap(PcapFile),
    Pcapng(PcapngFile),
}

/// The record at the window's start.
#[derive(Default)]
struct Head {
    interface: usize,
    ns: u64,
    len: u32,
    data: Range<usize>,
    options: Range<usize>,
    /// Bytes of the whole record.
    total: usize,
}

#[derive(Clone, Copy)]
enum State {
    /// Before the first record.
    Begun,
    /// `head` is a packet.
    At,
    Ended(End),
    /// An error has been told.
    Broken,
}

/// Any source.
pub type Source = Box<dyn Read + Send>;

/// Opens a file; `-` is standard input.
///
/// # Errors
/// The system, or no capture file.
pub fn open(path: &Path) -> Result<Reader<Source>, ReadError> {
    open_with(path, WINDOW)
}

/// Opens a file of which only the beginning is wanted.
///
/// # Errors
/// As [`open`].
pub fn peek(path: &Path) -> Result<Reader<Source>, ReadError> {
    open_with(path, PEEK)
}

/// Opens a file, and tells where its compressed frames end; `None`: it is not compressed.
///
/// # Errors
/// As [`open`].
pub fn open_noting(path: &Path) -> Result<(Reader<Source>, Option<Seams>), ReadError> {
    let failed = |source| ReadError::Io { offset: 0, source };
    let file = File::open(path).map_err(failed)?;
    let seams = Seams::default();
    let (source, packed) = unpacked_noting(file, Some(&seams)).map_err(failed)?;
    Ok((
        Reader::with_window(source, WINDOW)?,
        packed.then_some(seams),
    ))
}

fn open_with(path: &Path, window: usize) -> Result<Reader<Source>, ReadError> {
    let failed = |source| ReadError::Io { offset: 0, source };
    let source: Source = if path.as_os_str() == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(failed)?)
    };
    Reader::with_window(unpacked(source).map_err(failed)?, window)
}

/// What is in a source, whether it is compressed or not.
///
/// # Errors
/// The source fails.
pub fn unpacked<R: Read + Send + 'static>(source: R) -> io::Result<Source> {
    unpacked_noting(source, None).map(|(source, _)| source)
}

/// The same, and whether it is compressed.
fn unpacked_noting<R: Read + Send + 'static>(
    mut source: R,
    seams: Option<&Seams>,
) -> io::Result<(Source, bool)> {
    let mut start = Vec::new();
    (&mut source).take(4).read_to_end(&mut start)?;
    let packed = unpack::is_packed(&start);
    let whole = io::Cursor::new(start).chain(source);
    if !packed {
        return Ok((Box::new(whole), false));
    }
    let unpacked = Unpacked::of(whole).ok_or(ErrorKind::OutOfMemory)?;
    Ok(match seams {
        None => (Box::new(unpacked), true),
        Some(seams) => (Box::new(unpacked.noting(seams.clone())), true),
    })
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// The source fails, or is no capture file.
    pub fn new(source: R) -> Result<Self, ReadError> {
        Self::with_window(source, WINDOW)
    }

    fn with_window(source: R, window: usize) -> Result<Self, ReadError> {
        let mut reader = Self {
            window: Window::new(source, window),
            file: FileState::Pcapng(PcapngFile::default()),
            interfaces: Vec::new(),
            head: Head::default(),
            oddities: Oddities::default(),
            sound_end: 0,
            frames: 0,
            state: State::Begun,
        };
        let enough = reader.want(4)?;
        let start = reader.window.bytes();
        if start.is_empty() {
            return Err(ReadError::Empty);
        }
        if !enough {
            return Err(unknown(start));
        }
        if start.starts_with(&pcapng::MAGIC) {
            // Its section header is a block like others.
            return Ok(reader);
        }
        let Some(layout) = pcap::layout(start) else {
            return Err(unknown(start));
        };
        if !reader.want(pcap::HEADER)? {
            return Err(reader.damaged("the file ends within its header"));
        }
        let (file, interface) =
            pcap::header(layout, reader.window.bytes()).map_err(|e| reader.damaged(e))?;
        reader.file = FileState::Pcap(file);
        reader.interfaces.push(interface);
        reader.window.skip(pcap::HEADER);
        reader.sound_end = pcap::HEADER as u64;
        Ok(reader)
    }

    /// The file's format.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self.file {
            FileState::Pcap(_) => Kind::Pcap,
            FileState::Pcapng(_) => Kind::Pcapng,
        }
    }

    /// The interfaces met so far. A pcapng file may go on to describe more.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// Goes on to the next record.
    ///
    /// # Errors
    /// The source fails, or the file contradicts its format. There is nothing to read after that.
    #[expect(
        clippy::should_implement_trait,
        reason = "a packet is borrowed from the reader, which no iterator can lend"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Packet<'_>>, ReadError> {
        self.advance()?;
        Ok(self.packet())
    }

    /// Goes on to the next record, which [`Reader::packet`] then lends; `false`: there is none.
    ///
    /// # Errors
    /// As [`Reader::next`].
    #[inline]
    pub fn advance(&mut self) -> Result<bool, ReadError> {
        match self.state {
            State::Begun => {}
            State::At => self.window.skip(self.head.total),
            State::Ended(_) | State::Broken => return Ok(false),
        }
        self.state = State::Broken;
        let end = match self.file {
            FileState::Pcap(file) => self.next_record(file)?,
            FileState::Pcapng(_) => self.next_block()?,
        };
        match end {
            None => {
                self.frames += 1;
                self.state = State::At;
                Ok(true)
            }
            Some(end) => {
                self.state = State::Ended(end);
                Ok(false)
            }
        }
    }

    /// The record that [`Reader::advance`] went on to.
    #[inline]
    #[must_use]
    pub fn packet(&self) -> Option<Packet<'_>> {
        if !matches!(self.state, State::At) {
            return None;
        }
        let bytes = self.window.bytes();
        let head = &self.head;
        Some(Packet {
            interface: head.interface,
            ns: head.ns,
            len: head.len,
            bytes: bytes.get(head.data.clone())?,
            options: bytes.get(head.options.clone())?,
            order: match &self.file {
                FileState::Pcap(file) => file.order(),
                FileState::Pcapng(file) => file.order(),
            },
            offset: self.window.offset(),
        })
    }

    /// How the file ended; `None`: it has not yet, or it broke.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        match self.state {
            State::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Where the last whole record or block ends, of those read so far.
    #[must_use]
    pub fn sound_end(&self) -> u64 {
        match self.state {
            State::At => self.window.offset() + self.head.total as u64,
            _ => self.sound_end,
        }
    }

    /// Where reading is now.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.window.offset()
    }

    /// Frames yielded so far.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// What was odd so far.
    #[must_use]
    pub fn oddities(&self) -> Oddities {
        self.oddities
    }

    fn want(&mut self, n: usize) -> Result<bool, ReadError> {
        self.window.want(n).map_err(|source| ReadError::Io {
            offset: self.window.offset(),
            source,
        })
    }

    fn damaged(&self, problem: impl Into<String>) -> ReadError {
        ReadError::Damaged {
            offset: self.window.offset(),
            problem: problem.into(),
        }
    }

    /// The source has ended: with the last record, or within another.
    fn ended(&self) -> End {
        match self.window.bytes() {
            [] => End::Clean,
            rest if rest.iter().all(|b| *b == 0) => End::Padding {
                offset: self.window.offset(),
                bytes: rest.len() as u64,
            },
            rest => End::Torn {
                offset: self.window.offset(),
                bytes: rest.len() as u64,
            },
        }
    }

    /// Zeros stand where a record should begin: fine, if nothing else follows.
    fn zeros(&mut self) -> Result<End, ReadError> {
        let offset = self.window.offset();
        loop {
            let bytes = self.window.bytes();
            if let Some(n) = bytes.iter().position(|b| *b != 0) {
                let zeros = self.window.offset() + n as u64 - offset;
                return Err(ReadError::Damaged {
                    offset,
                    problem: format!(
                        "{zeros} zeros where a record should begin, and more behind them"
                    ),
                });
            }
            let n = bytes.len();
            self.window.skip(n);
            if !self.want(1)? {
                return Ok(End::Padding {
                    offset,
                    bytes: self.window.offset() - offset,
                });
            }
        }
    }
}

/// Names what some bytes are, if they are known.
fn unknown(start: &[u8]) -> ReadError {
    const PACKED: [(&[u8], &str); 5] = [
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd -dc FILE"),
        (&[0x04, 0x22, 0x4d, 0x18], "lz4 -dc FILE"),
        (&[0x1f, 0x8b], "gzip -dc FILE"),
        (&[0xfd, b'7', b'z', b'X'], "xz -dc FILE"),
        (b"BZh", "bzip2 -dc FILE"),
    ];
    match PACKED.iter().find(|(magic, _)| start.starts_with(magic)) {
        Some((_, how)) => ReadError::Compressed(how),
        None => {
            let hex: Vec<_> = start.iter().take(4).map(|b| format!("{b:02x}")).collect();
            ReadError::Unknown(hex.join(" "))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
