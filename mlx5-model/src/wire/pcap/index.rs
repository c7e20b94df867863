//! Index of a capture file: offsets, lengths and due times of its frames.
//!
//! Reads pcap (microseconds and nanoseconds, both byte orders) and pcapng. A wire must play
//! everything that tcpdump reads. Of the crate `pcap-file` only the unchecked half is used, because
//! its checked readers refuse properties of real capture files: caplen above the header's snaplen,
//! stamps with more than a second of nanoseconds, the `if_tzone` option, any option that is not
//! UTF-8. So pcapng is parsed here, and a damaged end ends the file with a note, not an error.
//!
//! Invariant: every record lies within the file and is 14 bytes to 256 KiB long.

use pcap_file::pcap::PcapParser;
use pcap_file::{DataLink, PcapError};

use super::super::delivery::{MAX_FRAME, MIN_FRAME};

/// Frame in a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PcapRecord {
    /// Offset of the frame in the capture file.
    pub(super) at: usize,
    pub(super) len: u32,
    /// Due time of the frame in nanoseconds after the file's first frame, never less than that of
    /// the previous record.
    pub(super) due: u64,
}

/// Index of the frames of a capture file, with the notes on it.
#[derive(Debug, Default)]
pub(super) struct FileIndex {
    pub(super) records: Vec<PcapRecord>,
    /// Number of records of the capture file that are not frames: too short for Ethernet, or of
    /// another link type.
    pub(super) skipped: u64,
    /// Notes on the capture file for the user, such as a truncated end.
    pub(super) notes: Vec<String>,
    /// Stamp of the capture file's first frame in nanoseconds.
    first: Option<u64>,
    /// Number of records of the capture file with other link types than Ethernet.
    foreign: u64,
}

/// Reason why a capture file cannot be played, and its remedy.
#[derive(Debug)]
pub(super) struct IndexError {
    pub(super) what: String,
    pub(super) advice: String,
}

fn refuse<T>(what: impl Into<String>, advice: &str) -> Result<T, IndexError> {
    Err(IndexError {
        what: what.into(),
        advice: advice.to_owned(),
    })
}

impl FileIndex {
    /// Indexes the whole capture file in `data`.
    pub(super) fn parse(data: &[u8]) -> Result<FileIndex, IndexError> {
        let mut index = FileIndex::default();
        match data {
            [] => refuse(
                "the file is empty",
                "a pcap file has at least a header of 24 bytes",
            ),
            [0x1f, 0x8b, ..] => refuse(
                "the file is compressed with gzip",
                "decompress it first; zstd and LZ4 files are read directly",
            ),
            [0x0a, 0x0d, 0x0d, 0x0a, ..] => index.pcapng(data),
            _ => index.pcap(data),
        }?;
        if index.foreign > 0 {
            let foreign = index.foreign;
            index.notes.push(format!(
                "{foreign} records of other link types than Ethernet are skipped"
            ));
        }
        let short = index.skipped - index.foreign;
        if short > 0 {
            index.notes.push(format!(
                "{short} records shorter than an Ethernet header are skipped"
            ));
        }
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

    /// Adds a frame of `len` bytes at the offset `at` to the file's index, stamped `stamp`
    /// nanoseconds.
    fn push(&mut self, at: usize, len: usize, stamp: u64) {
        if len < MIN_FRAME {
            self.skipped += 1;
            return;
        }
        let first = *self.first.get_or_insert(stamp);
        let before = self.records.last().map_or(0, |it| it.due);
        let due = stamp.saturating_sub(first).max(before);
        self.records.push(PcapRecord {
            at,
            len: len as u32,
            due,
        });
    }

    /// Adds the note that the rest of the capture file is left out, with the reason.
    fn truncate(&mut self, at: usize, reason: impl std::fmt::Display) {
        let records = self.records.len() as u64 + self.skipped;
        self.notes.push(format!(
            "the file is truncated after {records} records, at byte {at}: {reason}"
        ));
    }

    /// Indexes a pcap file (draft-ietf-opsawg-pcap). The word of the link type has more fields: if
    /// bit 26 is set, the top four bits are the FCS length in 16-bit words.
    fn pcap(&mut self, data: &[u8]) -> Result<(), IndexError> {
        let (mut rest, parser) = match PcapParser::new(data) {
            Ok(it) => it,
            Err(PcapError::IncompleteBuffer) => {
                return refuse(
                    "the file ends within its header",
                    "a pcap header has 24 bytes",
                );
            }
            Err(_) => {
                let magic = data.first_chunk().map_or(0, |it| u32::from_be_bytes(*it));
                let what =
                    format!("the file begins with {magic:#010x} and is neither pcap nor pcapng");
                return refuse(what, "convert it with `editcap -F pcapng`");
            }
        };
        let header = parser.header();
        let link = u32::from(header.datalink);
        ethernet(DataLink::from(link & 0x03ff_ffff))?;
        let fcs = if link & 1 << 26 != 0 {
            (link >> 28) as usize * 2
        } else {
            0
        };
        let unit = match header.ts_resolution {
            pcap_file::TsResolution::MicroSecond => 1_000,
            pcap_file::TsResolution::NanoSecond => 1,
        };
        while !rest.is_empty() {
            let at = data.len() - rest.len();
            let (after, record) = match parser.next_raw_packet(rest) {
                Ok(it) => it,
                Err(e) => {
                    self.truncate(at, end_of_pcap(rest.len(), e));
                    break;
                }
            };
            let len = record.incl_len as usize;
            if len > MAX_FRAME {
                self.truncate(
                    at,
                    format_args!("a record of {len} bytes is longer than any frame"),
                );
                break;
            }
            let stamp = u64::from(record.ts_sec) * 1_000_000_000 + u64::from(record.ts_frac) * unit;
            self.push(at + 16, without_fcs(len, record.orig_len, fcs), stamp);
            rest = after;
        }
        Ok(())
    }

    /// Indexes a pcapng file (draft-ietf-opsawg-pcapng).
    fn pcapng(&mut self, data: &[u8]) -> Result<(), IndexError> {
        let mut section = PcapngSection::default();
        let (mut at, mut first_foreign) = (0, None);
        while at < data.len() {
            let block = match PcapngBlock::read(data, at, &mut section) {
                Ok(block) => block,
                Err(reason) if at == 0 => return refuse(reason, ""),
                Err(reason) => {
                    self.truncate(at, reason);
                    break;
                }
            };
            if block.kind == INTERFACE {
                let interface = PcapngInterface::read(&section, block.body);
                if interface
                    .as_ref()
                    .is_some_and(|it| it.link != DataLink::ETHERNET)
                {
                    first_foreign = first_foreign.or(interface.as_ref().map(|it| it.link));
                }
                section.interfaces.extend(interface);
            } else if let Err(reason) = self.packet(&section, &block, at + 8) {
                self.truncate(at, reason);
                break;
            }
            at = block.end;
        }
        match first_foreign {
            Some(link) if self.records.is_empty() => ethernet(link),
            _ => Ok(()),
        }
    }

    /// Indexes the frame of a pcapng packet block; other blocks are ignored. `body_at` is the
    /// offset of the block's body.
    fn packet(
        &mut self,
        section: &PcapngSection,
        block: &PcapngBlock<'_>,
        body_at: usize,
    ) -> Result<(), &'static str> {
        const DAMAGED: &str = "a pcapng packet block is shorter than its packet";
        let word = |i: usize| section.word(block.body, i * 4).ok_or(DAMAGED);
        let (data_at, interface, caplen, len, stamp) = match block.kind {
            // Section 4.3: interface, stamp (high, low), captured and original length, data.
            ENHANCED => (20, word(0)?, word(3)?, word(4)?, Some((word(1)?, word(2)?))),
            // Section 4.4: original length, data; the captured length follows from snaplen.
            SIMPLE => {
                let snaplen = section.interfaces.first().map_or(0, |it| it.snaplen);
                let len = word(0)?;
                let caplen = if snaplen == 0 { len } else { len.min(snaplen) };
                (4, 0, caplen, len, None)
            }
            // Appendix A (obsolete): as the enhanced block, but with a half word each for interface
            // and drops.
            OBSOLETE => {
                let interface = section.half(block.body, 0).ok_or(DAMAGED)?;
                (
                    20,
                    u32::from(interface),
                    word(3)?,
                    word(4)?,
                    Some((word(1)?, word(2)?)),
                )
            }
            _ => return Ok(()),
        };
        let caplen = caplen as usize;
        if caplen > MAX_FRAME {
            return Err("a pcapng packet block has a packet longer than any frame");
        }
        if caplen > block.body.len() - data_at {
            return Err(DAMAGED);
        }
        let interface = section
            .interfaces
            .get(interface as usize)
            .ok_or("a pcapng packet block has no interface block")?;
        if interface.link != DataLink::ETHERNET {
            self.skipped += 1;
            self.foreign += 1;
            return Ok(());
        }
        let stamp = match stamp {
            Some((high, low)) => interface.nanoseconds(u64::from(high) << 32 | u64::from(low)),
            // A frame without a stamp is due together with the previous frame.
            None => self.records.last().map_or(0, |it| it.due) + self.first.unwrap_or(0),
        };
        self.push(
            body_at + data_at,
            without_fcs(caplen, len, interface.fcs),
            stamp,
        );
        Ok(())
    }
}

/// Refuses a capture file of another link type than Ethernet.
fn ethernet(link: DataLink) -> Result<(), IndexError> {
    match link {
        DataLink::ETHERNET => Ok(()),
        other => refuse(
            format!(
                "the file has the link type {} ({other:?}) instead of Ethernet",
                u32::from(other)
            ),
            "use a file of Ethernet frames (link type 1)",
        ),
    }
}

/// Returns the reason why a pcap file ends early, with `left` bytes left in the file.
fn end_of_pcap(left: usize, error: PcapError) -> String {
    match error {
        PcapError::IncompleteBuffer if left < 16 => {
            format!("the last {left} bytes are too few for a record header")
        }
        PcapError::IncompleteBuffer => "the last record is incomplete".to_owned(),
        other => other.to_string(),
    }
}

/// Returns the number of captured bytes of a frame before the FCS. The FCS is at the end of the
/// frame's `len` bytes, and may not have been captured.
fn without_fcs(caplen: usize, len: u32, fcs: usize) -> usize {
    match fcs {
        0 => caplen,
        _ => caplen.min((len as usize).saturating_sub(fcs)),
    }
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OBSOLETE: u32 = 2;
const SIMPLE: u32 = 3;
const ENHANCED: u32 = 6;

/// Section of a pcapng file: its byte order, and its interfaces so far.
#[derive(Default)]
struct PcapngSection {
    /// Set when the byte order of the pcapng section is big-endian.
    big: bool,
    interfaces: Vec<PcapngInterface>,
}

impl PcapngSection {
    fn word(&self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self.big {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_le_bytes(bytes)
        })
    }

    fn half(&self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self.big {
            u16::from_be_bytes(bytes)
        } else {
            u16::from_le_bytes(bytes)
        })
    }
}

/// Block of a pcapng file (section 3.1): type, total length, body, total length again.
struct PcapngBlock<'a> {
    kind: u32,
    body: &'a [u8],
    /// Offset of the next pcapng block in the file.
    end: usize,
}

impl<'a> PcapngBlock<'a> {
    /// Reads the pcapng block at the offset `at`. A section header replaces `section`.
    fn read(
        data: &'a [u8],
        at: usize,
        section: &mut PcapngSection,
    ) -> Result<PcapngBlock<'a>, &'static str> {
        const ENDS: &str = "the last block is incomplete";
        let rest = &data[at..];
        if rest.starts_with(&SECTION.to_be_bytes()) {
            // Section 4.1: the byte-order magic follows the length whose order it defines.
            let big = match rest.get(8..12) {
                Some([0x1a, 0x2b, 0x3c, 0x4d]) => true,
                Some([0x4d, 0x3c, 0x2b, 0x1a]) => false,
                Some(_) => return Err("a section header has no byte-order magic"),
                None => return Err(ENDS),
            };
            *section = PcapngSection {
                big,
                interfaces: Vec::new(),
            };
        }
        let kind = section.word(rest, 0).ok_or(ENDS)?;
        let total = section.word(rest, 4).ok_or(ENDS)? as usize;
        if total < 12 {
            return Err("a pcapng block is shorter than 12 bytes");
        }
        let body = rest.get(8..total - 4).ok_or(ENDS)?;
        // Lengths should be multiples of four; readers round up others.
        let end = at + total.next_multiple_of(4);
        if end > data.len() {
            return Err(ENDS);
        }
        Ok(PcapngBlock { kind, body, end })
    }
}

/// Interface of a pcapng section (section 4.2), with its options.
struct PcapngInterface {
    link: DataLink,
    snaplen: u32,
    /// Resolution of the time stamps of a pcapng interface, option if_tsresol.
    resolution: u8,
    /// Offset of the time stamps of a pcapng interface in seconds, option if_tsoffset.
    offset: u64,
    /// FCS length of a pcapng interface's frames in bytes.
    fcs: usize,
}

impl PcapngInterface {
    /// Reads the body of a pcapng interface description block. `None` if the body is too short.
    fn read(section: &PcapngSection, body: &[u8]) -> Option<PcapngInterface> {
        let mut interface = PcapngInterface {
            link: DataLink::from(u32::from(section.half(body, 0)?)),
            snaplen: section.word(body, 4)?,
            resolution: 6,
            offset: 0,
            fcs: 0,
        };
        let mut at = 8;
        while let (Some(code), Some(len)) = (section.half(body, at), section.half(body, at + 2)) {
            let Some(value) = body.get(at + 4..at + 4 + usize::from(len)) else {
                break;
            };
            match (code, value) {
                (0, _) => break,
                (9, [resolution, ..]) => interface.resolution = *resolution,
                // The draft counts in bits; an older draft's example and some writers count in
                // bytes.
                (13, [bits, ..]) if *bits >= 16 => interface.fcs = usize::from(bits / 8),
                (13, [bytes, ..]) => interface.fcs = usize::from(*bytes),
                (14, [_, _, _, _, _, _, _, _]) => {
                    let (a, b) = (section.word(value, 0)?, section.word(value, 4)?);
                    let (high, low) = if section.big { (a, b) } else { (b, a) };
                    interface.offset = u64::from(high) << 32 | u64::from(low);
                }
                _ => {}
            }
            at += 4 + usize::from(len).next_multiple_of(4);
        }
        Some(interface)
    }

    /// Converts a time stamp of the pcapng interface to nanoseconds.
    fn nanoseconds(&self, stamp: u64) -> u64 {
        let power = u32::from(self.resolution & 0x7f);
        let fine = u128::from(stamp) * 1_000_000_000;
        let nanoseconds = match self.resolution & 0x80 {
            0 => 10_u128.checked_pow(power).map_or(0, |it| fine / it),
            _ => fine.checked_shr(power).unwrap_or(0),
        };
        // The arithmetic wraps because the offset may be negative.
        (nanoseconds as u64).wrapping_add(self.offset.wrapping_mul(1_000_000_000))
    }
}
