//! Encoder of pcap files with nanosecond time stamps.

use crate::{Encoder, Record, Totals};
use wqcap_core::consumer::FCS_LEN;
use wqcap_files::format::{ETHERNET, pcap};

/// Encoder of frame records into the pcap format.
#[derive(Clone, Copy, Debug, Default)]
pub struct PcapEncoder {
    /// Maximum bytes of a frame that its record holds; 0: whole frames.
    pub snaplen: u32,
    /// `true` if the record of each frame ends with the FCS.
    pub fcs: bool,
}

impl Encoder for PcapEncoder {
    fn extension(&self) -> &'static str {
        "pcap"
    }

    fn header(&mut self, _queue: Option<u16>, _ns: u64) -> Vec<u8> {
        let fcs_len = self.fcs.then_some(FCS_LEN as u8);
        let snaplen = match self.snaplen {
            0 => pcap::NO_LIMIT,
            snaplen => snaplen,
        };
        pcap::marked_as_capture(pcap::encode_header(snaplen, ETHERNET, fcs_len)).into()
    }

    #[inline]
    fn record_len(&self, record: &Record<'_>) -> usize {
        pcap::RECORD_LEN + record.caplen()
    }

    #[inline]
    fn record(&self, out: &mut [u8], _queue: u16, record: &Record<'_>) {
        let (header, data) = out.split_at_mut(pcap::RECORD_LEN);
        // A slot is much smaller than 4 GiB.
        let caplen = record.caplen() as u32;
        header.copy_from_slice(&pcap::encode_record_header(
            record.ns,
            caplen,
            record.wire_len(),
        ));
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
        let mut encoder = PcapEncoder {
            snaplen: 60,
            ..PcapEncoder::default()
        };
        let mut file = encoder.header(Some(0), 0);
        let frame = [7u8; 60];
        for (ns, len) in [(1, 60), (1_700_000_000_123_456_789, 1500)] {
            let record = Record {
                ns,
                bytes: &frame,
                len,
                fcs: &[],
                fcs_len: 0,
                interface: 0,
                bad_fcs: false,
                lost_before: 0,
            };
            let mut out = vec![0; encoder.record_len(&record)];
            encoder.record(&mut out, 0, &record);
            file.extend(out);
        }
        let mut reader = PcapReader::new(&file[..]).expect("header");
        assert_eq!(reader.header().snaplen, 60);
        // Raw, because the reader's checked method rejects a cut frame, whose original length exceeds the snap length.
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
