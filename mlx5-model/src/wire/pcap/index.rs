//! Frames of a capture file: their bytes, lengths and due times.
//!
//! The file is read by the reader that wqcap's tools use, so that a wire plays what they read. A
//! damaged end ends the file with a note, not an error. A packet of another link type gets an
//! Ethernet header, if there is one for it.
//!
//! Invariants: every record lies within the data and is 14 bytes to 256 KiB long. A
//! [`FrameReader`] holds one record at a time, whatever the file.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read;

use wqcap_pcap::format::ETHERNET;
use wqcap_pcap::link::{EthernetFrames, has_ethernet_frames, link_type_name};
use wqcap_pcap::read::{Decompressor, FileEnd, PacketReader, ReadError};

use super::super::delivery::{MAX_FRAME, MIN_FRAME};

/// Place and due time of a frame of a capture file in a [`FrameChunk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PcapRecord {
    /// Offset of the frame in the bytes of its [`FrameChunk`].
    pub(super) at: usize,
    pub(super) len: u32,
    /// Due time of the frame in nanoseconds after the file's first frame, never less than that of
    /// the previous frame.
    pub(super) due: u64,
}

/// Frames in memory that a `pcap` wire delivers one after the other.
#[derive(Debug, Default)]
pub(super) struct FrameChunk {
    /// Bytes of the frames that were read from the capture file at once, one frame directly after
    /// the other.
    pub(super) data: Vec<u8>,
    pub(super) records: Vec<PcapRecord>,
}

impl FrameChunk {
    /// Returns the number of bytes of memory that the chunk's frames and their records take.
    pub(super) fn memory(&self) -> usize {
        self.data.len() + size_of_val(&self.records[..])
    }

    pub(super) fn clear(&mut self) {
        self.data.clear();
        self.records.clear();
    }

    /// Adds a frame to the chunk that is due `due` nanoseconds after the input's first frame.
    pub(super) fn push(&mut self, frame: &[u8], due: u64) {
        self.records.push(PcapRecord {
            at: self.data.len(),
            len: frame.len() as u32,
            due,
        });
        self.data.extend_from_slice(frame);
    }

    /// Divides the due times of the chunk's frames by `speed`, a multiple of the recorded pace.
    pub(super) fn divide_times(&mut self, speed: f64) {
        if speed != 1.0 {
            for record in &mut self.records {
                record.due = (record.due as f64 / speed) as u64;
            }
        }
    }
}

/// Number of skipped records of a capture file, and the notes on the file for the user.
#[derive(Debug, Default)]
pub(super) struct FileNotes {
    /// Number of records of the capture file that are not played: too short for Ethernet, too
    /// long, or of a link type without Ethernet frames.
    pub(super) skipped: u64,
    /// Notes on the capture file for the user, such as a truncated end.
    pub(super) notes: Vec<String>,
}

/// Reason why a capture file cannot be played.
#[derive(Debug, thiserror::Error)]
pub(super) enum IndexError {
    /// The file cannot be read, is not a capture file, or is damaged before it describes its first
    /// interface.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The capture file ends before it describes its first interface.
    #[error("{0}")]
    Torn(FileEnd),
    /// The capture file has only records of this link type, which has no Ethernet frames.
    #[error(
        "the capture file has the {} instead of Ethernet; use a file of Ethernet frames (link type 1)",
        link_type_name(*.0)
    )]
    LinkType(u32),
}

/// Numbers of a capture file's records that are skipped, or that get an Ethernet header.
#[derive(Default)]
struct OddRecords {
    /// Number of records that get an Ethernet header, by link type.
    converted: BTreeMap<u32, u64>,
    /// Number of records without an Ethernet frame, by link type.
    foreign: BTreeMap<u32, u64>,
    /// Number of records shorter than an Ethernet header.
    short: u64,
    /// Number of records longer than any frame of a wire, and the length of the longest one.
    long: (u64, usize),
}

/// Reader of the frames of a capture file, which may be compressed, in the order of the file.
pub(super) struct FrameReader<R: Read> {
    reader: PacketReader<Decompressor<R>>,
    ethernet: EthernetFrames,
    odd: OddRecords,
    clock: DueTimes,
    /// Read error that ended the capture file early.
    error: Option<ReadError>,
}

/// Due times of the frames of a capture file.
#[derive(Default)]
struct DueTimes {
    /// Time stamp of the capture file's first frame in nanoseconds.
    first: Option<u64>,
    /// Due time of the capture file's last frame so far, in nanoseconds after the first.
    last: u64,
}

impl<R: Read> FrameReader<R> {
    /// Opens a capture file, which may be compressed, and reads its first header.
    pub(super) fn new(source: R) -> Result<Self, IndexError> {
        let source = Decompressor::new(source).map_err(ReadError::from)?;
        Ok(Self {
            reader: PacketReader::new(source)?,
            ethernet: EthernetFrames::default(),
            odd: OddRecords::default(),
            clock: DueTimes::default(),
            error: None,
        })
    }

    /// Appends the capture file's next frame to `frames`. Returns `false` after the last one.
    pub(super) fn append_next(&mut self, frames: &mut FrameChunk) -> bool {
        loop {
            match self.reader.advance() {
                Ok(true) => {}
                Ok(false) => return false,
                Err(e) => {
                    self.error = Some(e);
                    return false;
                }
            }
            let Some(packet) = self.reader.packet() else {
                return false;
            };
            let interface = &self.reader.interfaces()[packet.interface];
            let (bytes, len) = packet.without_fcs(interface.fcs_len);
            let link_type = interface.link_type;
            let Some((frame, _)) = self.ethernet.convert(link_type, bytes, len) else {
                *self.odd.foreign.entry(link_type).or_default() += 1;
                continue;
            };
            if link_type != ETHERNET {
                *self.odd.converted.entry(link_type).or_default() += 1;
            }
            if self.odd.admit(frame.len()) {
                frames.push(frame, self.clock.due(packet.ns));
                return true;
            }
        }
    }

    /// Returns the time stamp of the capture file's first frame in nanoseconds; 0 if there is no
    /// frame.
    pub(super) fn first_stamp(&self) -> u64 {
        self.clock.first.unwrap_or(0)
    }

    /// Returns the notes on the capture file, after its last frame. Fails with an [`IndexError`] if
    /// the file cannot be played.
    pub(super) fn finish(self) -> Result<FileNotes, IndexError> {
        let (reader, odd) = (self.reader, self.odd);
        let first_foreign = reader.interfaces().iter().map(|it| it.link_type);
        let first_foreign = first_foreign
            .into_iter()
            .find(|it| !has_ethernet_frames(*it));
        let is_empty = self.clock.first.is_none() && odd.short == 0;
        let mut notes = FileNotes::default();
        match (self.error, reader.end()) {
            (Some(e), _) if reader.interfaces().is_empty() => return Err(e.into()),
            (_, Some(end @ FileEnd::Torn { .. })) if reader.interfaces().is_empty() => {
                return Err(IndexError::Torn(end));
            }
            _ if is_empty && let Some(link_type) = first_foreign => {
                return Err(IndexError::LinkType(link_type));
            }
            (Some(e), _) => notes.truncate(reader.packets(), e),
            (_, Some(end @ (FileEnd::Torn { .. } | FileEnd::Padding { .. }))) => {
                notes.truncate(reader.packets(), end);
            }
            _ => {}
        }
        notes.note(odd);
        Ok(notes)
    }
}

impl DueTimes {
    /// Returns the due time in nanoseconds of the capture file's next frame, stamped `stamp`
    /// nanoseconds.
    fn due(&mut self, stamp: u64) -> u64 {
        let first = *self.first.get_or_insert(stamp);
        self.last = stamp.saturating_sub(first).max(self.last);
        self.last
    }
}

impl OddRecords {
    /// Returns `true` if a wire can carry a frame of `len` bytes; otherwise counts the frame as too
    /// short or too long.
    fn admit(&mut self, len: usize) -> bool {
        match len {
            ..MIN_FRAME => self.short += 1,
            MIN_FRAME..=MAX_FRAME => return true,
            len => {
                self.long.0 += 1;
                self.long.1 = self.long.1.max(len);
            }
        }
        false
    }
}

impl FileNotes {
    /// Adds the note that the capture file is truncated after `records` records, with the reason.
    fn truncate(&mut self, records: u64, reason: impl Display) {
        self.notes.push(format!(
            "the capture file is truncated after {records} records, {reason}"
        ));
    }

    /// Adds the notes on the capture file's records that are skipped or get an Ethernet header, and
    /// counts the skipped ones.
    fn note(&mut self, odd: OddRecords) {
        for (link_type, n) in odd.converted {
            let name = link_type_name(link_type);
            self.notes.push(format!(
                "{n} records of {name} are sent with an Ethernet header"
            ));
        }
        for (link_type, n) in odd.foreign {
            let name = link_type_name(link_type);
            self.notes.push(format!(
                "{n} records are not sent, because they have the {name} and not Ethernet"
            ));
            self.skipped += n;
        }
        if odd.short > 0 {
            self.notes.push(format!(
                "{} records are not sent, because they are shorter than an Ethernet header",
                odd.short
            ));
        }
        let (long, len) = odd.long;
        if long > 0 {
            self.notes.push(format!(
                "{long} records of up to {len} bytes are not sent, because they are longer than any frame"
            ));
        }
        self.skipped += odd.short + long;
    }
}
