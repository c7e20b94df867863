//! The reader: one packet after the other, each borrowed.

use super::{
    cursor::{Anomalies, Cursor, FileEnd, ReadError},
    pcap,
    pcapng::{self, Section},
    window,
};
use crate::format::{
    ByteOrder, FileFormat, Interface,
    pcap::{HEADER_LEN, RecordLayout},
    pcapng::SECTION_HEADER,
    secrets::Secrets,
};
use std::{io::Read, mem};

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Index into [`PacketReader::interfaces`].
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
    pub order: ByteOrder,
    /// Where in the file the record begins.
    pub offset: u64,
}

/// A capture file being read.
pub struct PacketReader<R> {
    cursor: Cursor<R>,
    layout: Layout,
    /// Packets yielded so far.
    packets: u64,
    state: State,
}

enum Layout {
    Pcap(RecordLayout),
    /// `None`: before the first section header.
    Pcapng(Option<Section>),
}

#[derive(Clone, Copy)]
enum State {
    /// Before the first record.
    Begun,
    /// The cursor's head is a packet.
    At,
    Ended(FileEnd),
    /// An error has been returned.
    Broken,
}

impl<R: Read> PacketReader<R> {
    /// Reads the header. A source that may be compressed goes through a [`super::Decompressor`] first.
    ///
    /// # Errors
    /// The source fails, or is not a capture file.
    pub fn new(source: R) -> Result<Self, ReadError> {
        Self::with_window(source, window::WHOLE_FILE)
    }

    /// The same, with a window that holds so many bytes, unless a record is longer.
    pub(super) fn with_window(source: R, window: usize) -> Result<Self, ReadError> {
        let mut cursor = Cursor::new(source, window);
        let enough = cursor.want(4)?;
        let start = cursor.window.held();
        if start.is_empty() {
            return Err(ReadError::Empty);
        }
        if !enough {
            return Err(unknown(start));
        }
        let layout = if start.starts_with(&SECTION_HEADER.to_ne_bytes()) {
            // The section header is a block like others.
            Layout::Pcapng(None)
        } else {
            let layout = RecordLayout::from_magic(start).ok_or_else(|| unknown(start))?;
            if !cursor.want(HEADER_LEN)? {
                return Err(cursor.damaged("the file ends within its header"));
            }
            let interface = layout
                .interface(cursor.window.held())
                .map_err(|problem| cursor.damaged(problem))?;
            cursor.interfaces.push(interface);
            cursor.window.skip(HEADER_LEN);
            cursor.sound_end = HEADER_LEN as u64;
            Layout::Pcap(layout)
        };
        Ok(Self {
            cursor,
            layout,
            packets: 0,
            state: State::Begun,
        })
    }

    /// The file's format.
    #[must_use]
    pub fn format(&self) -> FileFormat {
        match self.layout {
            Layout::Pcap(_) => FileFormat::Pcap,
            Layout::Pcapng(_) => FileFormat::Pcapng,
        }
    }

    /// The interfaces met so far. A pcapng file may go on to describe more.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.cursor.interfaces
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

    /// Goes on to the next record, which [`PacketReader::packet`] then lends; `false`: there is none.
    ///
    /// # Errors
    /// As [`PacketReader::next`].
    #[inline]
    pub fn advance(&mut self) -> Result<bool, ReadError> {
        match self.state {
            State::Begun => {}
            State::At => self.cursor.window.skip(self.cursor.head.total),
            State::Ended(_) | State::Broken => return Ok(false),
        }
        self.state = State::Broken;
        let end = match &mut self.layout {
            Layout::Pcap(layout) => pcap::next_record(&mut self.cursor, *layout)?,
            Layout::Pcapng(section) => pcapng::next_packet(&mut self.cursor, section)?,
        };
        match end {
            None => {
                self.packets += 1;
                self.state = State::At;
                Ok(true)
            }
            Some(end) => {
                self.state = State::Ended(end);
                Ok(false)
            }
        }
    }

    /// The record that [`PacketReader::advance`] went on to.
    #[inline]
    #[must_use]
    pub fn packet(&self) -> Option<Packet<'_>> {
        if !matches!(self.state, State::At) {
            return None;
        }
        let bytes = self.cursor.window.held();
        let head = &self.cursor.head;
        Some(Packet {
            interface: head.interface,
            ns: head.ns,
            len: head.len,
            bytes: bytes.get(head.data.clone())?,
            options: bytes.get(head.options.clone())?,
            order: match &self.layout {
                Layout::Pcap(layout) => layout.order,
                Layout::Pcapng(section) => section.map_or(ByteOrder::NATIVE, |it| it.order),
            },
            offset: self.cursor.window.offset(),
        })
    }

    /// From now on, keeps the decryption secrets that it meets for [`PacketReader::take_secrets`].
    #[must_use]
    pub(crate) fn with_secrets(mut self) -> Self {
        self.cursor.secrets.get_or_insert_default();
        self
    }

    /// The decryption secrets that stand before the record gone on to, and have not been taken.
    #[inline]
    pub(crate) fn take_secrets(&mut self) -> Vec<Secrets> {
        self.cursor
            .secrets
            .as_mut()
            .map(mem::take)
            .unwrap_or_default()
    }

    /// How the file ended; `None`: it has not yet, or it is damaged.
    #[must_use]
    pub fn end(&self) -> Option<FileEnd> {
        match self.state {
            State::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Where the last whole record or block ends, of those read so far.
    #[must_use]
    pub fn sound_end(&self) -> u64 {
        match self.state {
            State::At => self.offset() + self.cursor.head.total as u64,
            _ => self.cursor.sound_end,
        }
    }

    /// Where reading is now.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.cursor.window.offset()
    }

    /// What is read from.
    pub(crate) fn source_mut(&mut self) -> &mut R {
        &mut self.cursor.window.source
    }

    /// Packets yielded so far.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The contradictions found so far.
    #[must_use]
    pub fn anomalies(&self) -> Anomalies {
        self.cursor.anomalies
    }
}

/// Names what some bytes are, if they are known.
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
        None => {
            let hex: Vec<_> = start.iter().take(4).map(|b| format!("{b:02x}")).collect();
            ReadError::Unknown(hex.join(" "))
        }
    }
}
