//! Format pcap: a file header, then records, each with a record header.
//!
//! Source: draft-ietf-opsawg-pcap, and libpcap's `sf-pcap.c` for the variant with longer record
//! headers and for old versions.

use super::{ByteOrder, FormatViolation, Interface, SECOND, put_words};

/// Length of a pcap file header in bytes: magic, version (two halves), two reserved words, snapshot
/// length, link type.
pub const HEADER_LEN: usize = 24;
/// Offset of the snapshot length in a pcap file header.
pub const SNAPLEN_OFFSET: u64 = 16;
/// Snapshot length of pcap files with whole frames: libpcap's value for "no limit".
pub const NO_LIMIT: u32 = 262_144;
/// Mark of the pcap files that wqcap has captured, which may have any file name: the value `wqcp` of
/// the second reserved word in the file header. Readers must ignore the word (draft-ietf-opsawg-pcap, section 4).
const CAPTURE_MARK: u32 = u32::from_be_bytes(*b"wqcp");
/// Offset of [`CAPTURE_MARK`] in a pcap file header, in bytes.
const CAPTURE_MARK_OFFSET: usize = 12;
/// Length of a pcap record header in bytes: seconds, fraction, captured length, original length.
pub const RECORD_LEN: usize = 16;
/// Length in bytes of a pcap record header in an old Linux variant, which adds interface, protocol
/// and packet type.
const LONG_RECORD_LEN: usize = 24;

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const LONG_MICROSECONDS: u32 = 0xa1b2_cd34;
/// Mask of the link type in its word of the pcap file header; the bits above describe the FCS.
const LINK_TYPE: u32 = 0x03ff_ffff;
/// Flag in the link type word of a pcap file header: the FCS length is present.
const HAS_FCS: u32 = 1 << 26;
/// Shift of the FCS length in the link type word of a pcap file header: four bits, in units of
/// 16-bit words.
const FCS_SHIFT: u32 = 28;

/// Encodes a pcap file header for records with timestamps in nanoseconds. `fcs_len` is the length
/// in bytes of the FCS that each frame ends with, if known.
#[must_use]
pub fn encode_header(snaplen: u32, link_type: u32, fcs_len: Option<u8>) -> [u8; HEADER_LEN] {
    let fcs = fcs_len.map_or(0, |bytes| HAS_FCS | u32::from(bytes / 2) << FCS_SHIFT);
    let [major, minor] = [2u16, 4].map(u16::to_ne_bytes);
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&NANOSECONDS.to_ne_bytes());
    header[4..8].copy_from_slice([major, minor].as_flattened());
    // Two reserved words, formerly time zone and accuracy, stay 0.
    header[16..20].copy_from_slice(&snaplen.to_ne_bytes());
    header[20..].copy_from_slice(&(link_type | fcs).to_ne_bytes());
    header
}

/// Adds the capture mark to a pcap file header, so that [`is_marked_as_capture`] recognises the
/// file by its content.
#[must_use]
pub fn marked_as_capture(mut header: [u8; HEADER_LEN]) -> [u8; HEADER_LEN] {
    header[CAPTURE_MARK_OFFSET..][..4].copy_from_slice(&CAPTURE_MARK.to_ne_bytes());
    header
}

/// Returns `true` if a file begins with a pcap file header that has the capture mark, in either
/// byte order.
#[must_use]
pub fn is_marked_as_capture(head: &[u8]) -> bool {
    RecordLayout::from_magic(head).is_some_and(|layout| {
        head.len() >= HEADER_LEN && layout.order.u32(head, CAPTURE_MARK_OFFSET) == CAPTURE_MARK
    })
}

/// First time, in nanoseconds since 1970, that a pcap record cannot hold: 2106-02-07T06:28:16Z.
pub const END_OF_TIME: u64 = (1 << 32) * SECOND;

/// Encodes the header of a pcap record with `caplen` captured bytes. Times from [`END_OF_TIME`] on
/// get the last second that the format can hold.
#[inline]
#[must_use]
pub fn encode_record_header(ns: u64, caplen: u32, len: u32) -> [u8; RECORD_LEN] {
    let seconds = u32::try_from(ns / SECOND).unwrap_or(u32::MAX);
    let mut header = [0; RECORD_LEN];
    put_words(&mut header, &[seconds, (ns % SECOND) as u32, caplen, len]);
    header
}

/// Order of the two lengths in the record headers of a pcap file. Writers of version 2.4 put the
/// captured length first, writers of earlier versions the original length (libpcap, `sf-pcap.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthOrder {
    /// The captured length precedes the original length.
    CapturedFirst,
    /// The original length precedes the captured length.
    OriginalFirst,
    /// The smaller of the two lengths is the captured one: writers of version 2.3 used either
    /// order.
    SmallerIsCaptured,
}

/// Layout of the records of a pcap file: byte order, unit of time, and header.
#[derive(Clone, Copy, Debug)]
pub struct RecordLayout {
    /// Byte order of the pcap file.
    pub order: ByteOrder,
    /// Nanoseconds per unit of the second word of a pcap timestamp, the fraction of a second.
    pub unit: u64,
    /// Length in bytes of the pcap file's record headers.
    pub header_len: usize,
    /// Order of the two lengths in the pcap file's record headers.
    pub lengths: LengthOrder,
}

impl RecordLayout {
    /// Returns the record layout for the magic number of a file of the current version; `None` if it
    /// is not a pcap file.
    #[must_use]
    pub fn from_magic(start: &[u8]) -> Option<Self> {
        let variants = [
            (MICROSECONDS, 1000, RECORD_LEN),
            (NANOSECONDS, 1, RECORD_LEN),
            (LONG_MICROSECONDS, 1000, LONG_RECORD_LEN),
        ];
        variants.into_iter().find_map(|(magic, unit, header_len)| {
            Some(Self {
                order: ByteOrder::from_magic(magic, start)?,
                unit,
                header_len,
                lengths: LengthOrder::CapturedFirst,
            })
        })
    }

    /// Decodes the interface in a complete pcap file header, and sets the layout to that of the
    /// file's version.
    ///
    /// # Errors
    /// The format version is unknown.
    pub fn interface(&mut self, header: &[u8]) -> Result<Interface, FormatViolation> {
        let [major, minor] = [4, 6].map(|at| self.order.u16(header, at));
        self.lengths = match (major, minor) {
            // DG/UX tcpdump wrote 543.0.
            (2, ..=2) | (543, 0) => LengthOrder::OriginalFirst,
            (2, 3) => LengthOrder::SmallerIsCaptured,
            (2, _) => LengthOrder::CapturedFirst,
            _ => return Err(FormatViolation::PcapVersion { major, minor }),
        };
        let link = self.order.u32(header, 20);
        Ok(Interface {
            link_type: link & LINK_TYPE,
            snaplen: self.order.u32(header, 16),
            fcs_len: (link & HAS_FCS != 0).then_some((link >> FCS_SHIFT) as u8 * 2),
            ..Interface::default()
        })
    }

    /// Decodes the pcap record header at the start of `bytes`: seconds, fraction, captured length,
    /// original length.
    #[inline]
    #[must_use]
    pub fn record(&self, bytes: &[u8]) -> [u32; 4] {
        let [seconds, fraction, a, b] = [0, 4, 8, 12].map(|at| self.order.u32(bytes, at));
        let is_swapped = match self.lengths {
            LengthOrder::CapturedFirst => false,
            LengthOrder::OriginalFirst => true,
            LengthOrder::SmallerIsCaptured => a > b,
        };
        let [caplen, len] = if is_swapped { [b, a] } else { [a, b] };
        [seconds, fraction, caplen, len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_headers_are_decoded_unchanged() {
        for fcs_len in [None, Some(0), Some(4)] {
            let header = encode_header(96, 1, fcs_len);
            assert!(!is_marked_as_capture(&header));
            let header = marked_as_capture(header);
            assert!(is_marked_as_capture(&header) && !is_marked_as_capture(&header[..23]));
            let mut layout = RecordLayout::from_magic(&header).expect("pcap");
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
        for (version, [caplen, len]) in [
            ([2, 4], [62, 40]),
            ([2, 3], [40, 62]),
            ([2, 2], [40, 62]),
            ([2, 0], [40, 62]),
            ([543, 0], [40, 62]),
        ] {
            let mut header = encode_header(96, 1, None);
            header[4..8].copy_from_slice(version.map(u16::to_ne_bytes).as_flattened());
            let mut layout = RecordLayout::from_magic(&header).expect("pcap");
            layout.interface(&header).expect("a known version");
            let record = layout.record(&encode_record_header(0, 62, 40));
            assert_eq!(record, [0, 0, caplen, len], "{version:?}");
            // Only version 2.3 has either order.
            let record = layout.record(&encode_record_header(0, 40, 62));
            let is_23 = version == [2, 3];
            let want = if is_23 { [40, 62] } else { [len, caplen] };
            assert_eq!(record[2..], want, "{version:?}");
        }
        let late = encode_record_header(u64::MAX, 0, 0);
        assert_eq!(
            late[..4],
            [0xff; 4],
            "seconds saturate at the maximum of the format"
        );
    }
}
