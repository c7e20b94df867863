//! The index of a capture file: where its frames are, and when they are due.
//!
//! Reads pcap (micro- and nanoseconds, both byte orders) and pcapng. Of the crate `pcap-file` only the unchecked half
//! is used: its checked readers refuse what real capture files contain (caplen above the header's snaplen, stamps
//! with more than a second of nanoseconds, the `if_tzone` option, any option that is not UTF-8), and a wire must play
//! everything that tcpdump reads. So pcapng is parsed here, and a damaged end ends the file with a note, not an
//! error.
//!
//! Invariant: every record lies within the file and is 14 bytes to 256 KiB long.

use pcap_file::pcap::PcapParser;
use pcap_file::{DataLink, PcapError};

use super::super::delivery::{MAX_FRAME, MIN_FRAME};

/// A frame in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PcapRecord {
    pub(super) at: usize,
    pub(super) len: u32,
    /// Nanoseconds after the first frame; never less than its predecessor's.
    pub(super) due: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FileIndex {
    pub(super) records: Vec<PcapRecord>,
    /// Records that are not frames: too short for Ethernet, or of another link type.
    pub(super) skipped: u64,
    pub(super) notes: Vec<String>,
    first: Option<u64>,
    foreign: u64,
}

/// Why a file cannot be played, and what to do.
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
    /// Reads the whole file in `data`.
    pub(super) fn build(data: &[u8]) -> Result<FileIndex, IndexError> {
        let mut index = FileIndex::default();
        match data {
            [] => refuse(
                "the file is empty",
                "a pcap file has at least its 24 bytes of header",
            ),
            [0x1f, 0x8b, ..] => refuse(
                "the file is compressed by gzip",
                "unpack it first; zstd and LZ4 are read as they are",
            ),
            [0x0a, 0x0d, 0x0d, 0x0a, ..] => index.pcapng(data),
            _ => index.pcap(data),
        }?;
        if index.foreign > 0 {
            let foreign = index.foreign;
            index.notes.push(format!(
                "{foreign} records of other link types than Ethernet skipped"
            ));
        }
        let short = index.skipped - index.foreign;
        if short > 0 {
            index.notes.push(format!(
                "{short} records shorter than an Ethernet header skipped"
            ));
        }
        Ok(index)
    }

    /// The stamp of the first frame; 0: there is none.
    pub(super) fn first_stamp(&self) -> u64 {
        self.first.unwrap_or(0)
    }

    /// Divides all times by `speed`.
    pub(super) fn divide_times(&mut self, speed: f64) {
        if speed != 1.0 {
            for record in &mut self.records {
                record.due = (record.due as f64 / speed) as u64;
            }
        }
    }

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

    /// Notes why the rest of the file is left out.
    fn truncate(&mut self, at: usize, why: impl std::fmt::Display) {
        let records = self.records.len() as u64 + self.skipped;
        self.notes.push(format!(
            "the file is truncated after {records} records, at byte {at}: {why}"
        ));
    }

    /// draft-ietf-opsawg-pcap. The link type word holds more than the link type: bit 26 says that the top four bits
    /// are the FCS length in 16-bit words.
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
                    format!("it begins with {magic:#010x}, so it is neither pcap nor pcapng");
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

    /// draft-ietf-opsawg-pcapng.
    fn pcapng(&mut self, data: &[u8]) -> Result<(), IndexError> {
        let mut section = PcapngSection::default();
        let (mut at, mut first_foreign) = (0, None);
        while at < data.len() {
            let block = match PcapngBlock::at(data, at, &mut section) {
                Ok(block) => block,
                Err(why) if at == 0 => return refuse(why, ""),
                Err(why) => {
                    self.truncate(at, why);
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
            } else if let Err(why) = self.packet(&section, &block, at + 8) {
                self.truncate(at, why);
                break;
            }
            at = block.end;
        }
        match first_foreign {
            Some(link) if self.records.is_empty() => ethernet(link),
            _ => Ok(()),
        }
    }

    /// Indexes the frame of a packet block, if it is one. `body_at` is the offset of its body.
    fn packet(
        &mut self,
        section: &PcapngSection,
        block: &PcapngBlock<'_>,
        body_at: usize,
    ) -> Result<(), &'static str> {
        const DAMAGED: &str = "a packet block is shorter than its packet";
        let word = |i: usize| section.word(block.body, i * 4).ok_or(DAMAGED);
        let (data_at, interface, caplen, len, stamp) = match block.kind {
            // Section 4.3: interface, stamp (high, low), captured and original length, data.
            ENHANCED => (20, word(0)?, word(3)?, word(4)?, Some((word(1)?, word(2)?))),
            // Section 4.4: original length, data; what was captured follows from snaplen.
            SIMPLE => {
                let snaplen = section.interfaces.first().map_or(0, |it| it.snaplen);
                let len = word(0)?;
                let caplen = if snaplen == 0 { len } else { len.min(snaplen) };
                (4, 0, caplen, len, None)
            }
            // Appendix A (obsolete): as the enhanced one, but half a word of interface and one of drops.
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
            return Err("a packet block holds more than any frame");
        }
        if caplen > block.body.len() - data_at {
            return Err(DAMAGED);
        }
        let interface = section
            .interfaces
            .get(interface as usize)
            .ok_or("a packet block has no interface block")?;
        if interface.link != DataLink::ETHERNET {
            self.skipped += 1;
            self.foreign += 1;
            return Ok(());
        }
        let stamp = match stamp {
            Some((high, low)) => interface.nanoseconds(u64::from(high) << 32 | u64::from(low)),
            // Without a stamp it is due together with the frame before.
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

fn ethernet(link: DataLink) -> Result<(), IndexError> {
    match link {
        DataLink::ETHERNET => Ok(()),
        other => refuse(
            format!("its link type is {} ({other:?})", u32::from(other)),
            "a NIC's wire carries Ethernet (link type 1) only",
        ),
    }
}

fn end_of_pcap(left: usize, error: PcapError) -> String {
    match error {
        PcapError::IncompleteBuffer if left < 16 => {
            format!("the {left} bytes left are too few for a record header")
        }
        PcapError::IncompleteBuffer => "its last record is incomplete".to_owned(),
        other => other.to_string(),
    }
}

/// The part of `caplen` bytes before the FCS, which is at the end of the frame's `len` bytes and may not have been
/// captured.
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

/// A pcapng section: its byte order, and its interfaces so far.
#[derive(Default)]
struct PcapngSection {
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

/// Section 3.1: type, total length, body, total length again.
struct PcapngBlock<'a> {
    kind: u32,
    body: &'a [u8],
    end: usize,
}

impl<'a> PcapngBlock<'a> {
    fn at(
        data: &'a [u8],
        at: usize,
        section: &mut PcapngSection,
    ) -> Result<PcapngBlock<'a>, &'static str> {
        const ENDS: &str = "its last block is incomplete";
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
            return Err("a block is shorter than 12 bytes");
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

/// Section 4.2, with its options.
struct PcapngInterface {
    link: DataLink,
    snaplen: u32,
    /// if_tsresol.
    resolution: u8,
    /// if_tsoffset, in seconds.
    offset: u64,
    fcs: usize,
}

impl PcapngInterface {
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
                // In bits by the draft; in bytes by an older draft's example and some writers.
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

    fn nanoseconds(&self, stamp: u64) -> u64 {
        let power = u32::from(self.resolution & 0x7f);
        let fine = u128::from(stamp) * 1_000_000_000;
        let nanoseconds = match self.resolution & 0x80 {
            0 => 10_u128.checked_pow(power).map_or(0, |it| fine / it),
            _ => fine.checked_shr(power).unwrap_or(0),
        };
        // Wrapping, as the offset may be negative.
        (nanoseconds as u64).wrapping_add(self.offset.wrapping_mul(1_000_000_000))
    }
}
