//! Reader of capture files: returns borrowed packets one after the other.

use super::{
    cursor::{Anomalies, Cursor, FileEnd, ReadError},
    pcap,
    pcapng::{self, CurrentSection},
    window,
};
use crate::format::{
    ByteOrder, FileFormat, FormatViolation, Interface,
    pcap::{HEADER_LEN, RecordLayout},
    pcapng::{Options, SECTION_HEADER, code::EPB_FLAGS},
    secrets::Secrets,
};
use std::{io::Read, mem};

/// Packet record of a capture file: a frame with its time, lengths and options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet<'a> {
    /// Index of the packet's interface in [`PacketReader::interfaces`].
    pub interface: usize,
    /// Timestamp of the packet in nanoseconds since 1970. A record without a timestamp has that of
    /// the previous record.
    pub ns: u64,
    /// Length of the packet's frame on the wire in bytes, as the file states it.
    pub len: u32,
    /// Captured bytes of the packet's frame.
    pub bytes: &'a [u8],
    /// `true` if the packet record has a timestamp of its own.
    pub stamped: bool,
    /// Raw options of the packet record in the byte order `order`; empty in pcap.
    pub options: &'a [u8],
    /// Byte order of the file section that holds the packet.
    pub order: ByteOrder,
    /// Offset of the packet record in the capture file.
    pub offset: u64,
}

impl<'a> Packet<'a> {
    /// Returns the packet with other captured bytes of its frame.
    #[must_use]
    pub fn with_bytes(self, bytes: &'a [u8]) -> Self {
        Self { bytes, ..self }
    }

    /// Returns the packet's bytes and its length on the wire without the frame check sequence, of
    /// which `fcs_len` bytes are declared for the packet's interface. The flags of a pcapng packet
    /// may declare another length.
    #[inline]
    #[must_use]
    pub fn without_fcs(&self, fcs_len: Option<u8>) -> (&'a [u8], u32) {
        let fcs_len = match self.options {
            [] => fcs_len,
            options => fcs_in_flags(options, self.order).or(fcs_len),
        };
        let len = self.len.saturating_sub(fcs_len.unwrap_or(0).into());
        let kept = self.bytes.len().min(len as usize);
        (&self.bytes[..kept], len)
    }
}

/// Returns the length of the frame check sequence in the flags of a pcapng packet, if they have it.
fn fcs_in_flags(options: &[u8], order: ByteOrder) -> Option<u8> {
    let mut options = Options::new(options, order);
    let (_, flags) = options.find(|(code, value)| *code == EPB_FLAGS && value.len() == 4)?;
    let len = (order.u32(flags, 0) >> 5 & 0xf) as u8;
    (len > 0).then_some(len)
}

/// Reader of the packets of a capture file.
pub struct PacketReader<R> {
    /// Position and state of the packet reader in the capture file.
    cursor: Cursor<R>,
    /// Format of the capture file, with the state that its decoder needs.
    layout: FileLayout,
    /// Number of packets that the reader has returned so far.
    packets: u64,
    /// State of the reader's iteration over the packets of the capture file.
    state: ReaderState,
}

/// Format of a capture file, with the state that its decoder needs.
enum FileLayout {
    /// pcap format, with this layout of its records.
    Pcap(RecordLayout),
    /// pcapng format, with the current section; `None` before the first section header.
    Pcapng(Option<CurrentSection>),
}

/// State of a packet reader's iteration over the capture file.
#[derive(Clone, Copy)]
enum ReaderState {
    /// No record has been read yet.
    Begun,
    /// The cursor's head is the current packet record.
    At,
    /// The capture file has ended, in this way.
    Ended(FileEnd),
    /// The reader has returned an error, and returns no further packets.
    Broken,
}

impl<R: Read> PacketReader<R> {
    /// Opens a capture file and reads its header. Wrap a source that may be compressed in a
    /// [`super::Decompressor`].
    ///
    /// # Errors
    /// The source fails, or it is not a capture file.
    pub fn new(source: R) -> Result<Self, ReadError> {
        Self::with_window(source, window::WHOLE_FILE)
    }

    /// Opens a capture file with a reader window of initially `window` bytes.
    pub fn with_window(source: R, window: usize) -> Result<Self, ReadError> {
        let mut cursor = Cursor::new(source, window);
        let enough = cursor.ensure(4)?;
        let start = cursor.window.held();
        if start.is_empty() {
            return Err(ReadError::Empty);
        }
        if !enough {
            return Err(unknown(start));
        }
        let layout = if start.starts_with(&SECTION_HEADER.to_ne_bytes()) {
            // The section header is decoded like other blocks.
            FileLayout::Pcapng(None)
        } else {
            let mut layout = RecordLayout::from_magic(start).ok_or_else(|| unknown(start))?;
            if !cursor.ensure(HEADER_LEN)? {
                return Err(cursor.damaged(FormatViolation::TornHeader));
            }
            let interface = layout
                .interface(cursor.window.held())
                .map_err(|violation| cursor.damaged(violation))?;
            cursor.interfaces.push(interface);
            cursor.window.skip(HEADER_LEN);
            cursor.sound_end = HEADER_LEN as u64;
            FileLayout::Pcap(layout)
        };
        Ok(Self {
            cursor,
            layout,
            packets: 0,
            state: ReaderState::Begun,
        })
    }

    /// Returns the format of the capture file.
    #[must_use]
    pub fn format(&self) -> FileFormat {
        match self.layout {
            FileLayout::Pcap(_) => FileFormat::Pcap,
            FileLayout::Pcapng(_) => FileFormat::Pcapng,
        }
    }

    /// Returns the interfaces that the capture file has described so far. A pcapng file may
    /// describe more interfaces later.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.cursor.interfaces
    }

    /// Returns the comments of the file's pcapng sections so far, each once, without host names.
    #[must_use]
    pub fn section_comments(&self) -> &[String] {
        &self.cursor.comments
    }

    /// Returns the next packet record; `None` at the end of the capture file.
    ///
    /// # Errors
    /// The source fails, or the file violates its format. Later calls return `None`.
    #[expect(
        clippy::should_implement_trait,
        reason = "a packet borrows from the reader, which `Iterator` does not allow"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Packet<'_>>, ReadError> {
        self.advance()?;
        Ok(self.packet())
    }

    /// Advances to the next packet record, which [`PacketReader::packet`] then returns. Returns
    /// `false` at the end of the file.
    ///
    /// # Errors
    /// See [`PacketReader::next`].
    #[inline]
    pub fn advance(&mut self) -> Result<bool, ReadError> {
        match self.state {
            ReaderState::Begun => {}
            ReaderState::At => self.cursor.window.skip(self.cursor.head.total),
            ReaderState::Ended(_) | ReaderState::Broken => return Ok(false),
        }
        self.state = ReaderState::Broken;
        let end = match &mut self.layout {
            FileLayout::Pcap(layout) => pcap::next_record(&mut self.cursor, *layout)?,
            FileLayout::Pcapng(section) => pcapng::next_packet(&mut self.cursor, section)?,
        };
        match end {
            None => {
                self.packets += 1;
                self.state = ReaderState::At;
                Ok(true)
            }
            Some(end) => {
                self.state = ReaderState::Ended(end);
                Ok(false)
            }
        }
    }

    /// Returns the current packet record; `None` before the first call of [`PacketReader::advance`]
    /// and after the last record.
    #[inline]
    #[must_use]
    pub fn packet(&self) -> Option<Packet<'_>> {
        if !matches!(self.state, ReaderState::At) {
            return None;
        }
        let bytes = self.cursor.window.held();
        let head = &self.cursor.head;
        Some(Packet {
            interface: head.interface,
            ns: head.ns,
            len: head.len,
            bytes: bytes.get(head.data.clone())?,
            stamped: head.stamped,
            options: bytes.get(head.options.clone())?,
            order: match &self.layout {
                FileLayout::Pcap(layout) => layout.order,
                FileLayout::Pcapng(section) => section.map_or(ByteOrder::NATIVE, |it| it.order),
            },
            offset: self.cursor.window.offset(),
        })
    }

    /// Enables the collection of decryption secrets for [`PacketReader::take_secrets`].
    #[must_use]
    pub fn with_secrets(mut self) -> Self {
        self.cursor.secrets.get_or_insert_default();
        self
    }

    /// Takes the collected decryption secrets that precede the current record.
    #[inline]
    pub fn take_secrets(&mut self) -> Vec<Secrets> {
        self.cursor
            .secrets
            .as_mut()
            .map(mem::take)
            .unwrap_or_default()
            .list
    }

    /// Returns the kind of the capture file's end; `None` before the end, or after an error.
    #[must_use]
    pub fn end(&self) -> Option<FileEnd> {
        match self.state {
            ReaderState::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Returns the end offset of the last complete record or block that the reader has read so far.
    #[must_use]
    pub fn sound_end(&self) -> u64 {
        match self.state {
            ReaderState::At => self.offset() + self.cursor.head.total as u64,
            _ => self.cursor.sound_end,
        }
    }

    /// Returns the offset in the capture file at which the reader is.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.cursor.window.offset()
    }

    /// Returns the source from which the packet reader reads, for changes.
    pub fn source_mut(&mut self) -> &mut R {
        &mut self.cursor.window.source
    }

    /// Returns the number of packets that the reader has returned so far.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the counts of anomalies found in the capture file so far.
    #[must_use]
    pub fn anomalies(&self) -> Anomalies {
        self.cursor.anomalies
    }
}

/// Returns `true` if the content of a file begins with the magic number of a supported format.
#[must_use]
pub fn is_capture_start(start: &[u8]) -> bool {
    start.starts_with(&SECTION_HEADER.to_ne_bytes()) || RecordLayout::from_magic(start).is_some()
}

/// Returns the error for a file with an unsupported magic number. The error for a known compression
/// format names the command that decompresses it.
fn unknown(start: &[u8]) -> ReadError {
    const COMPRESSED: [(&[u8], &str); 5] = [
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd -dc FILE"),
        (&[0x04, 0x22, 0x4d, 0x18], "lz4 -dc FILE"),
        (&[0x1f, 0x8b], "gzip -dc FILE"),
        (&[0xfd, b'7', b'z', b'X'], "xz -dc FILE"),
        (b"BZh", "bzip2 -dc FILE"),
    ];
    match COMPRESSED
        .iter()
        .find(|(magic, _)| start.starts_with(magic))
    {
        Some((_, how)) => ReadError::Compressed(how),
        None => ReadError::Unknown(start.iter().take(4).copied().collect()),
    }
}
