//! Index of a capture file: offsets, lengths and due times of its frames.
//!
//! The file is read by the reader that wqcap's tools use, so that a wire plays what they read. A
//! damaged end ends the file with a note, not an error. A packet of another link type gets an
//! Ethernet header, if there is one for it.
//!
//! Invariant: every record lies within the data and is 14 bytes to 256 KiB long.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read;

use wqcap_pcap::format::ETHERNET;
use wqcap_pcap::link::{EthernetFrames, has_ethernet_frames, link_type_name};
use wqcap_pcap::read::{Decompressor, FileEnd, PacketReader, ReadError};

use super::super::delivery::{MAX_FRAME, MIN_FRAME};

/// Frame in a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PcapRecord {
    /// Offset of the frame in the data of its index.
    pub(super) at: usize,
    pub(super) len: u32,
    /// Due time of the frame in nanoseconds after the file's first frame, never less than that of
    /// the previous record.
    pub(super) due: u64,
}

/// Index of the frames of a capture file, with their bytes and the notes on the file.
#[derive(Debug, Default)]
pub(super) struct FileIndex {
    /// Bytes of all frames.
    pub(super) data: Vec<u8>,
    pub(super) records: Vec<PcapRecord>,
    /// Number of records of the capture file that are not played: too short for Ethernet, too
    /// long, or of a link type without Ethernet frames.
    pub(super) skipped: u64,
    /// Notes on the capture file for the user, such as a truncated end.
    pub(super) notes: Vec<String>,
    /// Stamp of the capture file's first frame in nanoseconds.
    first: Option<u64>,
}

/// Reason why a capture file cannot be played.
#[derive(Debug, thiserror::Error)]
pub(super) enum IndexError {
    /// The file is not a capture file, or it is damaged before its first record.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file ends before its first record or interface.
    #[error("{0}")]
    Torn(FileEnd),
    /// The file has only frames of this link type, which has no Ethernet frames.
    #[error(
        "the file has the {} instead of Ethernet; use a file of Ethernet frames (link type 1)",
        link_type_name(*.0)
    )]
    LinkType(u32),
}

/// Numbers of a capture file's records that are not played as they are.
#[derive(Default)]
struct OddRecords {
    /// Number of records that get an Ethernet header, by link type.
    converted: BTreeMap<u32, u64>,
    /// Number of records without an Ethernet frame, by link type.
    foreign: BTreeMap<u32, u64>,
    /// Number of records shorter than an Ethernet header.
    short: u64,
    /// Number of records longer than any frame, and the length of the first one.
    long: (u64, usize),
}

impl FileIndex {
    /// Indexes a whole capture file, which may be compressed.
    pub(super) fn read(source: impl Read) -> Result<FileIndex, IndexError> {
        let source = Decompressor::new(source).map_err(ReadError::from)?;
        let mut reader = PacketReader::new(source)?;
        let (mut index, mut odd) = (FileIndex::default(), OddRecords::default());
        let mut ethernet = EthernetFrames::default();
        let error = loop {
            match reader.advance() {
                Ok(true) => {}
                Ok(false) => break None,
                Err(e) => break Some(e),
            }
            let Some(packet) = reader.packet() else {
                break None;
            };
            let interface = &reader.interfaces()[packet.interface];
            let (bytes, len) = packet.without_fcs(interface.fcs_len);
            let link_type = interface.link_type;
            match ethernet.convert(link_type, bytes, len) {
                Some((frame, _)) => {
                    if link_type != ETHERNET {
                        *odd.converted.entry(link_type).or_default() += 1;
                    }
                    index.push(frame, packet.ns, &mut odd);
                }
                None => *odd.foreign.entry(link_type).or_default() += 1,
            }
        };
        let first_foreign = reader.interfaces().iter().map(|it| it.link_type);
        let first_foreign = first_foreign
            .into_iter()
            .find(|it| !has_ethernet_frames(*it));
        let is_empty = index.records.is_empty() && odd.short == 0;
        match (error, reader.end()) {
            (Some(e), _) if reader.interfaces().is_empty() => return Err(e.into()),
            (_, Some(end @ FileEnd::Torn { .. })) if reader.interfaces().is_empty() => {
                return Err(IndexError::Torn(end));
            }
            _ if is_empty && let Some(link_type) = first_foreign => {
                return Err(IndexError::LinkType(link_type));
            }
            (Some(e), _) => index.truncate(reader.packets(), e),
            (_, Some(end @ (FileEnd::Torn { .. } | FileEnd::Padding { .. }))) => {
                index.truncate(reader.packets(), end);
            }
            _ => {}
        }
        index.note(odd);
        Ok(index)
    }

    /// Returns the stamp of the capture file's first frame in nanoseconds; 0 if there is no frame.
    pub(super) fn first_stamp(&self) -> u64 {
        self.first.unwrap_or(0)
    }

    /// Divides the due times of all frames of the capture file by `speed`.
    pub(super) fn divide_times(&mut self, speed: f64) {
        if speed != 1.0 {
            for record in &mut self.records {
                record.due = (record.due as f64 / speed) as u64;
            }
        }
    }

    /// Adds a frame to the file's index, stamped `stamp` nanoseconds.
    fn push(&mut self, frame: &[u8], stamp: u64, odd: &mut OddRecords) {
        match frame.len() {
            ..MIN_FRAME => odd.short += 1,
            MIN_FRAME..=MAX_FRAME => {
                let first = *self.first.get_or_insert(stamp);
                let before = self.records.last().map_or(0, |it| it.due);
                self.records.push(PcapRecord {
                    at: self.data.len(),
                    len: frame.len() as u32,
                    due: stamp.saturating_sub(first).max(before),
                });
                self.data.extend_from_slice(frame);
            }
            len => {
                odd.long.0 += 1;
                odd.long.1 = odd.long.1.max(len);
            }
        }
    }

    /// Adds the note that the rest of the capture file is left out, with the reason.
    fn truncate(&mut self, records: u64, reason: impl Display) {
        self.notes.push(format!(
            "the file is truncated after {records} records, {reason}"
        ));
    }

    /// Adds the notes on records that are not played as they are.
    fn note(&mut self, odd: OddRecords) {
        for (link_type, n) in odd.converted {
            let name = link_type_name(link_type);
            self.notes
                .push(format!("{n} records of {name} get an Ethernet header"));
        }
        for (link_type, n) in odd.foreign {
            let name = link_type_name(link_type);
            self.notes.push(format!(
                "{n} records of {name} instead of Ethernet are skipped"
            ));
            self.skipped += n;
        }
        if odd.short > 0 {
            self.notes.push(format!(
                "{} records shorter than an Ethernet header are skipped",
                odd.short
            ));
        }
        let (long, len) = odd.long;
        if long > 0 {
            self.notes.push(format!(
                "{long} records of up to {len} bytes are longer than any frame and are skipped"
            ));
        }
        self.skipped += odd.short + long;
    }
}
