//! Goes from record to record of a pcap file.

use super::cursor::{Cursor, FileEnd, Head, MAX_FRAME, ReadError};
use crate::format::{SECOND, pcap::RecordLayout};
use std::io::Read;

/// Bytes that no row of empty records fills with zeros.
const ALL_ZERO: usize = 512;

/// Moves the cursor's head to the record at the window's start; `Some`: there is none.
#[inline]
pub(super) fn next_record<R: Read>(
    cursor: &mut Cursor<R>,
    layout: RecordLayout,
) -> Result<Option<FileEnd>, ReadError> {
    cursor.sound_end = cursor.window.offset();
    if !cursor.want(layout.header_len)? {
        return Ok(Some(cursor.ended()));
    }
    let [seconds, fraction, caplen, len] = layout.record(cursor.window.held());
    // One record may be all zeros; a long row of them is no row of records.
    if seconds | fraction | caplen | len == 0 {
        cursor.want(ALL_ZERO)?;
        let bytes = cursor.window.held();
        if bytes.iter().take(ALL_ZERO).all(|b| *b == 0) {
            return cursor.zeros().map(Some);
        }
    }
    if caplen > MAX_FRAME {
        return Err(cursor.damaged(format!(
            "a record of {caplen} bytes; more than {MAX_FRAME} cannot be right"
        )));
    }
    let total = layout.header_len + caplen as usize;
    if !cursor.want(total)? {
        return Ok(Some(cursor.ended()));
    }
    let fraction = u64::from(fraction) * layout.unit;
    let snaplen = cursor.interfaces.first().map_or(0, |it| it.snaplen);
    cursor.anomalies.fraction_above_second += u64::from(fraction >= SECOND);
    cursor.anomalies.longer_than_frame += u64::from(caplen > len);
    cursor.anomalies.above_snaplen += u64::from(caplen > snaplen && snaplen != 0);
    cursor.head = Head {
        interface: 0,
        ns: u64::from(seconds) * SECOND + fraction,
        len: len.max(caplen),
        data: layout.header_len..total,
        options: 0..0,
        total,
    };
    Ok(None)
}
