//! pcapng: sections, interfaces and enhanced packet blocks.
//!
//! Source: draft-ietf-opsawg-pcapng. Fields are in this machine's byte order; readers tell by the byte-order magic.

use crate::sink::{Encoder, Origin, Record, Totals};
use crate::{
    device::clock::ClockReport,
    frame::FCS_LEN,
    stats::outage::{OutageLog, Teller},
};
use std::sync::{Arc, Mutex};

/// Section header block.
const SHB: u32 = 0x0a0d_0d0a;
/// Interface description block.
const IDB: u32 = 1;
/// Enhanced packet block.
const EPB: u32 = 6;
/// Interface statistics block.
const ISB: u32 = 5;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;
/// Block type, total length, interface, timestamp (two words), captured length, original length; the total length
/// again closes the block.
const EPB_HEADER: usize = 28;
const EPB_TRAILER: usize = 4;
/// Flags and queue, eight bytes each, and the end of options.
const OPTIONS_LEN: usize = 20;
/// The count of frames lost before, where there were any.
const DROPCOUNT_LEN: usize = 12;
/// epb_flags: direction inbound.
const INBOUND: u32 = 1;
/// epb_flags: link-layer error, the CRC.
const CRC_ERROR: u32 = 1 << 24;

/// Option codes.
const END: u16 = 0;
const EPB_FLAGS: u16 = 2;
const EPB_DROPCOUNT: u16 = 4;
const EPB_QUEUE: u16 = 6;
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;
const COMMENT: u16 = 1;
const SHB_HARDWARE: u16 = 2;
const SHB_OS: u16 = 3;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const IF_SPEED: u16 = 8;
const IF_TSRESOL: u16 = 9;
const IF_FILTER: u16 = 11;
const IF_OS: u16 = 12;
const IF_FCSLEN: u16 = 13;
const IF_HARDWARE: u16 = 15;
/// First byte of if_filter: a filter string of libpcap.
const LIBPCAP_STRING: u8 = 0;
/// The longest filter and the longest note that are written, in bytes: they must not make a header or a record outgrow
/// a block.
const MOST_TEXT: usize = 1000;

/// Writes pcapng.
#[derive(Clone, Debug)]
pub struct PcapngEncoder {
    snaplen: u32,
    interface: String,
    fcs: bool,
    origin: Origin,
    clock: Option<Arc<Mutex<Option<ClockReport>>>>,
    outages: Teller,
}

impl PcapngEncoder {
    /// For records of at most `snaplen` bytes (0: whole frames), received on an interface of this name.
    #[must_use]
    pub fn new(snaplen: u32, interface: String) -> Self {
        Self {
            snaplen,
            interface,
            fcs: false,
            origin: Origin::default(),
            clock: None,
            outages: Teller::default(),
        }
    }

    /// Declares that each frame ends with its FCS.
    #[must_use]
    pub fn with_fcs(self, fcs: bool) -> Self {
        Self { fcs, ..self }
    }

    /// Tells at each file's end how the NIC's clock goes, as known then.
    #[must_use]
    pub fn with_clock(self, clock: Option<Arc<Mutex<Option<ClockReport>>>>) -> Self {
        Self { clock, ..self }
    }

    /// Tells at each file's beginning which outages there were since the one before.
    #[must_use]
    pub fn with_outages(self, log: OutageLog) -> Self {
        Self {
            outages: Teller::of(log),
            ..self
        }
    }

    /// Tells where the file comes from.
    #[must_use]
    pub fn from_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }
}

/// The most of a text that is written.
fn bounded(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_TEXT)]
}

/// Appends a text as an option, if there is one.
fn text(out: &mut Vec<u8>, code: u16, value: &str) {
    if !value.is_empty() {
        option(out, code, bounded(value).as_bytes());
    }
}

/// Appends one option, padded to 32 bits.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let Ok(len) = u16::try_from(value.len()) else {
        return;
    };
    out.extend(code.to_ne_bytes());
    out.extend(len.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Appends a block with its two lengths.
fn block(out: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let total = u32::try_from(body.len() + 12).unwrap_or(u32::MAX);
    out.extend(kind.to_ne_bytes());
    out.extend(total.to_ne_bytes());
    out.extend(body);
    out.extend(total.to_ne_bytes());
}

impl Encoder for PcapngEncoder {
    fn extension(&self) -> &'static str {
        "pcapng"
    }

    fn header(&mut self, queue: Option<u16>) -> Vec<u8> {
        let mut out = Vec::new();
        let mut section = Vec::new();
        section.extend(BYTE_ORDER.to_ne_bytes());
        section.extend(1u16.to_ne_bytes());
        section.extend(0u16.to_ne_bytes());
        // The section's length is not known in advance.
        section.extend((-1i64).to_ne_bytes());
        text(&mut section, COMMENT, &self.origin.comment);
        text(&mut section, COMMENT, &self.outages.tell());
        text(&mut section, SHB_HARDWARE, &self.origin.machine);
        text(&mut section, SHB_OS, &self.origin.os);
        option(
            &mut section,
            SHB_USERAPPL,
            concat!("wqcap ", env!("CARGO_PKG_VERSION")).as_bytes(),
        );
        option(&mut section, END, &[]);
        block(&mut out, SHB, &section);

        let mut interface = Vec::new();
        interface.extend(ETHERNET.to_ne_bytes());
        interface.extend(0u16.to_ne_bytes());
        interface.extend(self.snaplen.to_ne_bytes());
        let name = match queue {
            Some(queue) => format!("{} queue {queue}", self.interface),
            None => self.interface.clone(),
        };
        option(&mut interface, IF_NAME, name.as_bytes());
        text(&mut interface, IF_DESCRIPTION, &self.origin.description);
        if self.origin.speed > 0 {
            option(&mut interface, IF_SPEED, &self.origin.speed.to_ne_bytes());
        }
        // A filter cut short would be another one.
        if !self.origin.filter.is_empty() && self.origin.filter.len() <= MOST_TEXT {
            let filter = [&[LIBPCAP_STRING], self.origin.filter.as_bytes()].concat();
            option(&mut interface, IF_FILTER, &filter);
        }
        // 10^-9 seconds.
        option(&mut interface, IF_TSRESOL, &[9]);
        if self.fcs {
            option(&mut interface, IF_FCSLEN, &[FCS_LEN as u8]);
        }
        text(&mut interface, IF_OS, &self.origin.os);
        text(&mut interface, IF_HARDWARE, &self.origin.device);
        option(&mut interface, END, &[]);
        block(&mut out, IDB, &interface);
        out
    }

    #[inline]
    fn record_len(&self, record: &Record<'_>) -> usize {
        let lost = if record.lost_before == 0 {
            0
        } else {
            DROPCOUNT_LEN
        };
        EPB_HEADER + record.caplen().next_multiple_of(4) + OPTIONS_LEN + lost + EPB_TRAILER
    }

    #[inline]
    fn record(&self, out: &mut [u8], queue: u16, record: &Record<'_>) {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a block is far below 4 GiB"
        )]
        let total = out.len() as u32;
        let (header, rest) = out.split_at_mut(EPB_HEADER);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the stamp is two words, high first; lengths are words"
        )]
        let words = [
            EPB,
            total,
            0,
            (record.ns >> 32) as u32,
            record.ns as u32,
            record.caplen() as u32,
            record.wire_len(),
        ];
        words_into(header, &words);
        let (data, rest) = rest.split_at_mut(record.caplen());
        record.copy_to(data);
        let (padding, options) = rest.split_at_mut(data.len().next_multiple_of(4) - data.len());
        padding.fill(0);
        let queue = [
            option_head(EPB_FLAGS, 4),
            INBOUND | if record.bad_fcs { CRC_ERROR } else { 0 },
            option_head(EPB_QUEUE, 4),
            u32::from(queue),
        ];
        let (fixed, options) = options.split_at_mut(16);
        words_into(fixed, &queue);
        let end = if record.lost_before == 0 {
            options
        } else {
            let (lost, end) = options.split_at_mut(DROPCOUNT_LEN);
            lost[..4].copy_from_slice(&option_head(EPB_DROPCOUNT, 8).to_ne_bytes());
            lost[4..].copy_from_slice(&record.lost_before.to_ne_bytes());
            end
        };
        words_into(end, &[option_head(END, 0), total]);
    }

    fn filtered(&mut self, filter: &str) -> bool {
        filter.clone_into(&mut self.origin.filter);
        true
    }

    fn annotated(&self, queue: u16, record: &Record<'_>, filter: &str) -> Vec<u8> {
        let what = if filter.is_empty() { "none" } else { filter };
        let note = format!("filter from here on: {what}");
        let mut out = vec![0; self.record_len(record)];
        self.record(&mut out, queue, record);
        // Before the end of options and the closing length.
        let end = out.split_off(out.len() - 4 - EPB_TRAILER);
        text(&mut out, COMMENT, &note);
        out.extend(end);
        let total = u32::try_from(out.len()).unwrap_or(u32::MAX).to_ne_bytes();
        let close = out.len() - EPB_TRAILER;
        out[4..8].copy_from_slice(&total);
        out[close..].copy_from_slice(&total);
        out
    }

    fn trailer(&self, totals: &Totals) -> Vec<u8> {
        let halves = |v: u64| {
            let mut out = Vec::with_capacity(8);
            #[allow(clippy::cast_possible_truncation, reason = "two words, high first")]
            for word in [(v >> 32) as u32, v as u32] {
                out.extend(word.to_ne_bytes());
            }
            out
        };
        let mut body = Vec::new();
        body.extend(0u32.to_ne_bytes());
        body.extend(halves(totals.last_ns));
        if let Some(clock) = &self.clock {
            let report = clock.lock().map_or(None, |it| *it).unwrap_or_default();
            text(&mut body, COMMENT, &report.line());
        }
        option(&mut body, ISB_STARTTIME, &halves(totals.first_ns));
        option(&mut body, ISB_ENDTIME, &halves(totals.last_ns));
        option(&mut body, ISB_IFRECV, &totals.received.to_ne_bytes());
        option(&mut body, ISB_IFDROP, &totals.dropped.to_ne_bytes());
        option(&mut body, END, &[]);
        let mut out = Vec::new();
        block(&mut out, ISB, &body);
        out
    }
}

/// Code and length of an option as one word in this machine's byte order.
#[inline]
fn option_head(code: u16, len: u16) -> u32 {
    let ([a, b], [c, d]) = (code.to_ne_bytes(), len.to_ne_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

#[inline]
fn words_into(out: &mut [u8], words: &[u32]) {
    for (to, word) in out.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{
        Block, PcapNgReader,
        blocks::{
            enhanced_packet::EnhancedPacketOption as Epb,
            interface_statistics::InterfaceStatisticsOption as Isb,
        },
    };
    use std::time::Duration;

    #[test]
    fn reads_back_byte_for_byte_and_to_the_nanosecond() {
        let mut encoder = PcapngEncoder::new(0, "mlx5_0".into());
        let mut file = encoder.header(Some(3));
        for len in [14usize, 15, 16, 17, 60] {
            let frame = vec![len as u8; len];
            let record = Record {
                ns: 1_700_000_000_123_456_789,
                bytes: &frame,
                len: 1500,
                fcs: &[],
                fcs_len: 0,
                bad_fcs: false,
                lost_before: u64::from(len == 16) * 7,
            };
            let mut out = vec![0xff; encoder.record_len(&record)];
            encoder.record(&mut out, 3, &record);
            file.extend(out);
        }
        file.extend(encoder.trailer(&Totals {
            first_ns: 1,
            last_ns: 2,
            received: 12,
            dropped: 7,
        }));
        let mut reader = PcapNgReader::new(&file[..]).expect("section");
        let mut lens = Vec::new();
        while let Some(block) = reader.next_block() {
            match block.expect("sound") {
                Block::InterfaceDescription(i) => assert_eq!(i.snaplen, 0),
                Block::EnhancedPacket(p) => {
                    assert_eq!(p.original_len, 1500);
                    assert!(p.data.iter().all(|b| usize::from(*b) == p.data.len()));
                    assert_eq!(p.timestamp, Duration::from_nanos(1_700_000_000_123_456_789));
                    let lost = p.options.iter().find_map(|o| {
                        if let Epb::DropCount(n) = o {
                            Some(*n)
                        } else {
                            None
                        }
                    });
                    assert_eq!(lost, (p.data.len() == 16).then_some(7));
                    assert!(p.options.contains(&Epb::Flags(1)), "{:?}", p.options);
                    lens.push(p.data.len());
                }
                Block::InterfaceStatistics(i) => {
                    assert!(
                        i.options.contains(&Isb::IsbIfRecv(12))
                            && i.options.contains(&Isb::IsbIfDrop(7)),
                        "{i:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(lens, [14, 15, 16, 17, 60]);
    }
}
