//! The classic format: a header, then records.
//!
//! Source: draft-ietf-opsawg-pcap, and libpcap's `savefile` for the variant with longer record headers.

use super::{End, Head, Interface, MAX_FRAME, Order, ReadError, Reader, SECOND};
use std::io::Read;

/// Magic, version (two halves), two reserved words, snapshot length, link type.
pub(super) const HEADER: usize = 24;
/// Seconds, fraction, captured length, original length.
const RECORD: usize = 16;
/// The same, then interface, protocol and packet type: an old Linux variant.
const LONG_RECORD: usize = 24;
const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const LONG_MICROSECONDS: u32 = 0xa1b2_cd34;
/// The link type proper; above it are the bits that tell of the FCS.
const LINK_TYPE: u32 = 0x03ff_ffff;
/// The FCS length in the upper four bits is meant.
const HAS_FCS: u32 = 1 << 26;
/// Bytes that no row of empty records fills with zeros.
const ALL_ZERO: usize = 512;

/// How records are laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct PcapFile {
    order: Order,
    /// Nanoseconds of a unit of the fraction.
    unit: u64,
    record: usize,
    snaplen: u32,
}

impl PcapFile {
    pub(super) fn order(&self) -> Order {
        self.order
    }
}

/// What the magic tells; `None`: it is none.
pub(super) fn layout(start: &[u8]) -> Option<PcapFile> {
    [Order::Little, Order::Big].into_iter().find_map(|order| {
        let (unit, record) = match order.u32(start, 0) {
            MICROSECONDS => (1000, RECORD),
            NANOSECONDS => (1, RECORD),
            LONG_MICROSECONDS => (1000, LONG_RECORD),
            _ => return None,
        };
        Some(PcapFile {
            order,
            unit,
            record,
            snaplen: 0,
        })
    })
}

/// Reads the rest of the header.
pub(super) fn header(mut file: PcapFile, bytes: &[u8]) -> Result<(PcapFile, Interface), String> {
    let order = file.order;
    let version = order.u16(bytes, 4);
    if version != 2 {
        return Err(format!(
            "version {version}.{} of the format; 2.4 can be read",
            order.u16(bytes, 6)
        ));
    }
    file.snaplen = order.u32(bytes, 16);
    let link = order.u32(bytes, 20);
    let interface = Interface {
        link_type: link & LINK_TYPE,
        snaplen: file.snaplen,
        // Counted in halves of a word there.
        fcs_len: (link & HAS_FCS != 0).then_some((link >> 28) as u8 * 2),
        ..Interface::default()
    };
    Ok((file, interface))
}

impl<R: Read> Reader<R> {
    #[inline]
    pub(super) fn next_record(&mut self, file: PcapFile) -> Result<Option<End>, ReadError> {
        self.sound_end = self.window.offset();
        if !self.want(file.record)? {
            return Ok(Some(self.ended()));
        }
        let bytes = self.window.bytes();
        let order = file.order;
        let [seconds, fraction, caplen, len] = [0, 4, 8, 12].map(|at| order.u32(bytes, at));
        // One record may be all zeros; a long row of them is no row of records.
        if seconds | fraction | caplen | len == 0 {
            self.want(ALL_ZERO)?;
            let bytes = self.window.bytes();
            if bytes.iter().take(ALL_ZERO).all(|b| *b == 0) {
                return self.zeros().map(Some);
            }
        }
        if caplen > MAX_FRAME {
            return Err(self.damaged(format!(
                "a record of {caplen} bytes; more than {MAX_FRAME} cannot be right"
            )));
        }
        let total = file.record + caplen as usize;
        if !self.want(total)? {
            return Ok(Some(self.ended()));
        }
        let fraction = u64::from(fraction) * file.unit;
        self.oddities.fraction_above_second += u64::from(fraction >= SECOND);
        self.oddities.longer_than_frame += u64::from(caplen > len);
        self.oddities.above_snaplen += u64::from(caplen > file.snaplen && file.snaplen != 0);
        self.head = Head {
            interface: 0,
            ns: u64::from(seconds) * SECOND + fraction,
            len: len.max(caplen),
            data: file.record..total,
            options: 0..0,
            total,
        };
        Ok(None)
    }
}
