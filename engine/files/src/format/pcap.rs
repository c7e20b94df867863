//! pcap: a file header, then records, each with a header of its own.
//!
//! Source: draft-ietf-opsawg-pcap, and libpcap's `savefile` for the variant with longer record headers.

use super::{ByteOrder, Interface, SECOND, put_words};

/// Bytes of the file header: magic, version (two halves), two reserved words, snapshot length, link type.
pub const HEADER_LEN: usize = 24;
/// Where the file header has its snapshot length.
pub const SNAPLEN_OFFSET: u64 = 16;
/// What a header says when frames are kept whole: libpcap's own "no limit".
pub const NO_LIMIT: u32 = 262_144;
/// Second reserved word of the file header in captures of wqcap, whose files have any name: `wqcp`. Readers must ignore the word
/// (draft-ietf-opsawg-pcap, section 4).
const CAPTURE_MARK: u32 = u32::from_be_bytes(*b"wqcp");
const CAPTURE_MARK_OFFSET: usize = 12;
/// Bytes of a record header: seconds, fraction, captured length, original length.
pub const RECORD_LEN: usize = 16;
/// The same, then interface, protocol and packet type: an old Linux variant.
const LONG_RECORD_LEN: usize = 24;

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const LONG_MICROSECONDS: u32 = 0xa1b2_cd34;
/// The link type itself; the bits above it describe the FCS.
const LINK_TYPE: u32 = 0x03ff_ffff;
/// The upper four bits hold the FCS length, in words of 16 bits.
const HAS_FCS: u32 = 1 << 26;
const FCS_SHIFT: u32 = 28;

/// A file header in this machine's byte order, for records with stamps in nanoseconds.
#[must_use]
pub fn encode_header(snaplen: u32, link_type: u32, fcs_len: Option<u8>) -> [u8; HEADER_LEN] {
    let fcs = fcs_len.map_or(0, |bytes| HAS_FCS | u32::from(bytes / 2) << FCS_SHIFT);
    let [major, minor] = [2u16, 4].map(u16::to_ne_bytes);
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&NANOSECONDS.to_ne_bytes());
    header[4..8].copy_from_slice([major, minor].as_flattened());
    // Two reserved words, once a time zone and an accuracy.
    header[16..20].copy_from_slice(&snaplen.to_ne_bytes());
    header[20..].copy_from_slice(&(link_type | fcs).to_ne_bytes());
    header
}

/// Marks a file header as that of a capture, so that [`is_marked_as_capture`] recognises the file without its name.
#[must_use]
pub fn marked_as_capture(mut header: [u8; HEADER_LEN]) -> [u8; HEADER_LEN] {
    header[CAPTURE_MARK_OFFSET..][..4].copy_from_slice(&CAPTURE_MARK.to_ne_bytes());
    header
}

/// Whether a file begins with a marked file header, in either byte order.
#[must_use]
pub fn is_marked_as_capture(head: &[u8]) -> bool {
    RecordLayout::from_magic(head).is_some_and(|layout| {
        head.len() >= HEADER_LEN && layout.order.u32(head, CAPTURE_MARK_OFFSET) == CAPTURE_MARK
    })
}

/// The header of a record of `caplen` bytes.
#[inline]
#[must_use]
pub fn encode_record_header(ns: u64, caplen: u32, len: u32) -> [u8; RECORD_LEN] {
    // The format's seconds are 32 bits, unsigned: until 2106.
    let seconds = u32::try_from(ns / SECOND).unwrap_or(u32::MAX);
    let mut header = [0; RECORD_LEN];
    put_words(&mut header, &[seconds, (ns % SECOND) as u32, caplen, len]);
    header
}

/// How the records of a file are laid out.
#[derive(Clone, Copy, Debug)]
pub struct RecordLayout {
    /// The file's byte order.
    pub order: ByteOrder,
    /// Nanoseconds in a unit of the fraction.
    pub unit: u64,
    /// Bytes of a record header.
    pub header_len: usize,
}

impl RecordLayout {
    /// The layout that a file's first four bytes announce; `None`: it is not a pcap file.
    #[must_use]
    pub fn from_magic(start: &[u8]) -> Option<Self> {
        let variants = [
            (MICROSECONDS, 1000, RECORD_LEN),
            (NANOSECONDS, 1, RECORD_LEN),
            (LONG_MICROSECONDS, 1000, LONG_RECORD_LEN),
        ];
        variants.into_iter().find_map(|(magic, unit, header_len)| {
            Some(Self {
                order: ByteOrder::of_magic(magic, start)?,
                unit,
                header_len,
            })
        })
    }

    /// The interface that a whole file header describes.
    ///
    /// # Errors
    /// Another version of the format.
    pub fn interface(&self, header: &[u8]) -> Result<Interface, String> {
        let version = self.order.u16(header, 4);
        if version != 2 {
            return Err(format!(
                "pcap version {version}.{}; only 2.4 can be read",
                self.order.u16(header, 6)
            ));
        }
        let link = self.order.u32(header, 20);
        Ok(Interface {
            link_type: link & LINK_TYPE,
            snaplen: self.order.u32(header, 16),
            fcs_len: (link & HAS_FCS != 0).then_some((link >> FCS_SHIFT) as u8 * 2),
            ..Interface::default()
        })
    }

    /// Seconds, fraction, captured length and original length of the record header that `bytes` begins with.
    #[inline]
    #[must_use]
    pub fn record(&self, bytes: &[u8]) -> [u32; 4] {
        [0, 4, 8, 12].map(|at| self.order.u32(bytes, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        for fcs_len in [None, Some(0), Some(4)] {
            let header = encode_header(96, 1, fcs_len);
            assert!(!is_marked_as_capture(&header));
            let header = marked_as_capture(header);
            assert!(is_marked_as_capture(&header) && !is_marked_as_capture(&header[..23]));
            let layout = RecordLayout::from_magic(&header).expect("pcap");
            assert_eq!((layout.order, layout.unit), (ByteOrder::NATIVE, 1));
            let interface = layout.interface(&header).expect("version 2");
            let want = Interface {
                link_type: 1,
                snaplen: 96,
                fcs_len,
                ..Interface::default()
            };
            assert_eq!(interface, want);
            let record = encode_record_header(1_700_000_000_123_456_789, 60, 1500);
            let want = [1_700_000_000, 123_456_789, 60, 1500];
            assert_eq!(layout.record(&record), want);
        }
        let late = encode_record_header(u64::MAX, 0, 0);
        assert_eq!(late[..4], [0xff; 4], "as late as the format can tell");
    }
}
