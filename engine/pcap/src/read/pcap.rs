//! Iteration over the records of a pcap file.

use super::cursor::{Cursor, FileEnd, MAX_FRAME, ReadError, RecordHead};
use crate::format::{FormatViolation, SECOND, pcap::RecordLayout};
use std::io::Read;

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
    // No capture writes a record of 1970 without a byte of its frame: the zeros are a hole that a
    // file system left, or padding at the end of the file.
    if seconds | fraction | caplen == 0 {
        return cursor.zeros().map(Some);
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
