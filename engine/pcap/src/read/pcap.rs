//! Iteration over the records of a pcap file.

use super::cursor::{Cursor, FileEnd, MAX_FRAME, ReadError, RecordHead};
use crate::format::{FormatViolation, SECOND, pcap::RecordLayout};
use std::io::Read;

/// Minimum number of zero bytes at the end of a pcap file that are taken as padding; a few empty
/// records are shorter.
const ALL_ZERO: usize = 512;

/// Decodes the pcap record at the start of the window into the cursor's head. Returns the end of
/// the file after the last record.
#[inline]
pub(super) fn next_record<R: Read>(
    cursor: &mut Cursor<R>,
    layout: RecordLayout,
) -> Result<Option<FileEnd>, ReadError> {
    cursor.sound_end = cursor.window.offset();
    if !cursor.ensure(layout.header_len)? {
        return Ok(Some(cursor.ended()));
    }
    let [seconds, fraction, caplen, len] = layout.record(cursor.window.held());
    // A single record may be all zeros, but a long run of zeros is padding.
    if seconds | fraction | caplen | len == 0 {
        cursor.ensure(ALL_ZERO)?;
        let bytes = cursor.window.held();
        if bytes.iter().take(ALL_ZERO).all(|b| *b == 0) {
            return cursor.zeros().map(Some);
        }
    }
    if caplen > MAX_FRAME {
        return Err(cursor.damaged(FormatViolation::RecordLength {
            caplen,
            limit: MAX_FRAME,
        }));
    }
    let total = layout.header_len + caplen as usize;
    if !cursor.ensure(total)? {
        return Ok(Some(cursor.ended()));
    }
    let fraction = u64::from(fraction) * layout.unit;
    let snaplen = cursor.interfaces.first().map_or(0, |it| it.snaplen);
    cursor.anomalies.fraction_above_second += u64::from(fraction >= SECOND);
    cursor.anomalies.longer_than_frame += u64::from(caplen > len);
    cursor.anomalies.above_snaplen += u64::from(caplen > snaplen && snaplen != 0);
    cursor.head = RecordHead {
        interface: 0,
        ns: u64::from(seconds) * SECOND + fraction,
        len: len.max(caplen),
        stamped: true,
        data: layout.header_len..total,
        options: 0..0,
        total,
    };
    Ok(None)
}
