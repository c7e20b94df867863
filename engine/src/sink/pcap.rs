//! The classic file format, with nanosecond stamps.
//!
//! Source: draft-ietf-opsawg-pcap. Fields are in this machine's byte order; readers tell by the magic.

use crate::sink::{Encoder, Record, Totals};

/// Magic of nanosecond files.
const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// LINKTYPE_ETHERNET.
const ETHERNET: u32 = 1;
/// Beside the link type: an FCS stands behind each frame (bit 26), of two 16-bit words (bits 28 to 31).
const FCS: u32 = 1 << 26 | 2 << 28;
/// What a header says when frames are kept whole: libpcap's own "no limit".
const WHOLE: u32 = 262_144;
/// ts_sec, ts_nsec, incl_len, orig_len.
const RECORD_HEADER: usize = 16;
/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// Writes pcap.
#[derive(Clone, Copy, Debug)]
pub struct PcapEncoder {
    snaplen: u32,
    fcs: bool,
}

impl PcapEncoder {
    /// For records of at most `snaplen` bytes; 0 means whole frames.
    #[must_use]
    pub fn new(snaplen: u32) -> Self {
        Self {
            snaplen: if snaplen == 0 { WHOLE } else { snaplen },
            fcs: false,
        }
    }

    /// Declares that each frame ends with its FCS.
    #[must_use]
    pub fn with_fcs(self, fcs: bool) -> Self {
        Self { fcs, ..self }
    }
}

impl Encoder for PcapEncoder {
    fn extension(&self) -> &'static str {
        "pcap"
    }

    fn header(&mut self, _queue: Option<u16>) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        out.extend(MAGIC_NS.to_ne_bytes());
        out.extend(2u16.to_ne_bytes());
        out.extend(4u16.to_ne_bytes());
        // Two reserved words, once a time zone and an accuracy.
        out.extend([0; 8]);
        out.extend(self.snaplen.to_ne_bytes());
        out.extend((ETHERNET | if self.fcs { FCS } else { 0 }).to_ne_bytes());
        out
    }

    #[inline]
    fn record_len(&self, record: &Record<'_>) -> usize {
        RECORD_HEADER + record.caplen()
    }

    #[inline]
    fn record(&self, out: &mut [u8], _queue: u16, record: &Record<'_>) {
        let (header, data) = out.split_at_mut(RECORD_HEADER);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "the format's seconds are 32 bits, unsigned: until 2106"
        )]
        let words = [
            (record.ns / SECOND) as u32,
            (record.ns % SECOND) as u32,
            record.caplen() as u32,
            record.wire_len(),
        ];
        for (to, word) in header.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        record.copy_to(data);
    }

    fn trailer(&self, _totals: &Totals) -> Vec<u8> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::PcapReader;

    #[test]
    fn reads_back_byte_for_byte_and_to_the_nanosecond() {
        let mut encoder = PcapEncoder::new(60);
        let mut file = encoder.header(Some(0));
        let frame = [7u8; 60];
        for (ns, len) in [(1, 60), (1_700_000_000_123_456_789, 1500)] {
            let record = Record {
                ns,
                bytes: &frame,
                len,
                fcs: &[],
                fcs_len: 0,
                bad_fcs: false,
                lost_before: 0,
            };
            let mut out = vec![0; encoder.record_len(&record)];
            encoder.record(&mut out, 0, &record);
            file.extend(out);
        }
        let mut reader = PcapReader::new(&file[..]).expect("header");
        assert_eq!(reader.header().snaplen, 60);
        // Raw: the reader's checked form refuses an original length above the snap length, which is what cutting means.
        let first = reader
            .next_raw_packet()
            .expect("one")
            .expect("sound")
            .into_owned();
        assert_eq!(
            (first.ts_sec, first.ts_frac, first.incl_len, first.orig_len),
            (0, 1, 60, 60)
        );
        assert_eq!(&first.data[..], &frame[..]);
        let second = reader.next_raw_packet().expect("two").expect("sound");
        assert_eq!(
            (second.ts_sec, second.ts_frac, second.orig_len),
            (1_700_000_000, 123_456_789, 1500)
        );
        assert!(reader.next_raw_packet().is_none());
    }
}
