//! Iteration over the packets of a pcapng file. Sections, interfaces and statistics are recorded,
//! other blocks are skipped.
//!
//! A file numbers its interfaces from 0 in each section. The reader numbers them through the whole
//! file.

use super::cursor::{Cursor, FileEnd, MAX_FRAME, MOST_INTERFACES, ReadError, RecordHead};
use crate::format::{
    ByteOrder, FormatViolation, Interface, InterfaceStatistics,
    pcapng::{
        BLOCK_TRAILER_LEN, DECRYPTION_SECRETS, EMPTY_BLOCK_LEN, INTERFACE_DESCRIPTION,
        INTERFACE_STATISTICS, Options, PacketFields, SECTION_HEADER, section_comments,
        section_host, section_order,
    },
    secrets::Secrets,
};
use std::io::Read;

/// Maximum length in bytes of a host name in a section header; HOST_NAME_MAX of Linux is less.
const MOST_HOST: usize = 255;

/// Maximum length in bytes of a pcapng block that the reader accepts.
pub const MAX_BLOCK: u32 = 16 << 20;

/// Maximum number of bytes of decryption secrets that are kept between two packets.
const MOST_SECRETS: usize = 16 << 20;

/// Current section of a pcapng file, with its byte order and its first interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentSection {
    /// Byte order of the current pcapng section.
    pub(super) order: ByteOrder,
    /// Index of the section's first interface among all interfaces of the pcapng file.
    first: usize,
}

/// Decodes the next pcapng packet block into the cursor's head. Returns the end of the file after
/// the last packet. `section` is the current section and is updated at each section header.
#[inline]
pub(super) fn next_packet<R: Read>(
    cursor: &mut Cursor<R>,
    section: &mut Option<CurrentSection>,
) -> Result<Option<FileEnd>, ReadError> {
    loop {
        cursor.sound_end = cursor.window.offset();
        if !cursor.ensure(EMPTY_BLOCK_LEN)? {
            return Ok(Some(cursor.ended()));
        }
        if cursor
            .window
            .held()
            .starts_with(&SECTION_HEADER.to_ne_bytes())
        {
            *section = Some(begin_section(cursor)?);
        }
        let Some(it) = *section else {
            return Err(cursor.damaged(FormatViolation::NoSection));
        };
        let bytes = cursor.window.held();
        let (kind, total) = (it.order.u32(bytes, 0), it.order.u32(bytes, 4));
        if kind == 0 && total == 0 {
            return cursor.zeros().map(Some);
        }
        const LEAST: u32 = EMPTY_BLOCK_LEN as u32;
        if !(LEAST..=MAX_BLOCK).contains(&total) || !total.is_multiple_of(4) {
            return Err(cursor.damaged(FormatViolation::BlockLength {
                kind,
                total,
                least: LEAST,
                limit: MAX_BLOCK,
            }));
        }
        let total = total as usize;
        if !cursor.ensure(total)? {
            return Ok(Some(cursor.ended()));
        }
        let block = &cursor.window.held()[..total];
        let closing = it.order.u32(block, total - BLOCK_TRAILER_LEN) as usize;
        if closing != total {
            return Err(cursor.damaged(FormatViolation::ClosingLength { total, closing }));
        }
        let packet = PacketFields::decode(block, it.order);
        if let Some(packet) = packet {
            return match packet_block(cursor, it, packet, total) {
                Ok(()) => Ok(None),
                Err(violation) => Err(cursor.damaged(violation)),
            };
        }
        other_block(cursor, it, kind, total)?;
        cursor.window.skip(total);
        if total > cursor.window.usual() {
            cursor.window.shrink();
        }
    }
}

/// Starts a pcapng section at its header block: sets the byte order, and restarts the interface
/// numbers.
fn begin_section<R: Read>(cursor: &mut Cursor<R>) -> Result<CurrentSection, ReadError> {
    let order = section_order(cursor.window.held())
        .ok_or_else(|| cursor.damaged(FormatViolation::NoByteOrder))?;
    if cursor.ensure(16)? {
        let version = order.u16(cursor.window.held(), 12);
        if version != 1 {
            return Err(cursor.damaged(FormatViolation::PcapngVersion(version)));
        }
    }
    Ok(CurrentSection {
        order,
        first: cursor.interfaces.len(),
    })
}

/// Stores the content of a pcapng block that is not a packet, such as an interface or statistics,
/// in the cursor.
fn other_block<R: Read>(
    cursor: &mut Cursor<R>,
    section: CurrentSection,
    kind: u32,
    total: usize,
) -> Result<(), ReadError> {
    let body = &cursor.window.held()[8..total - BLOCK_TRAILER_LEN];
    match kind {
        SECTION_HEADER => {
            let options = Options::new(body.get(16..).unwrap_or_default(), section.order);
            cursor.anomalies.section_options += options.count() as u64;
            cursor.host = section_host(body, section.order).filter(|it| it.len() <= MOST_HOST);
            for comment in section_comments(body, section.order) {
                if !cursor.comments.has(&comment) && cursor.texts.take(&comment) {
                    cursor.comments.add(comment);
                }
            }
            cursor.anomalies.texts_left_out = cursor.texts.left_out;
            cursor.account_descriptions()?;
        }
        INTERFACE_DESCRIPTION if body.len() >= 8 => {
            if cursor.interfaces.len() == MOST_INTERFACES {
                let offset = cursor.window.offset();
                return Err(ReadError::TooManyInterfaces { offset });
            }
            let mut interface = Interface::decode(body, section.order, &mut cursor.texts);
            interface.host = cursor.host.clone();
            interface.host.take_if(|it| !cursor.texts.take(it));
            cursor.anomalies.interface_options += interface.options_left_out;
            cursor.interfaces.push(interface);
            cursor.anomalies.texts_left_out = cursor.texts.left_out;
            cursor.account_descriptions()?;
        }
        INTERFACE_STATISTICS if body.len() >= 12 => {
            let index = section.first + section.order.u32(body, 0) as usize;
            if let Some(interface) = cursor.interfaces.get_mut(index) {
                interface.statistics =
                    InterfaceStatistics::decode(&body[12..], section.order, interface.time_base);
            }
        }
        DECRYPTION_SECRETS
            if let Some(held) = &mut cursor.secrets
                && held.bytes + body.len() <= MOST_SECRETS
                && let Some(secrets) = Secrets::decode(body, section.order) =>
        {
            held.bytes += secrets.size();
            held.list.push(secrets);
        }
        _ => cursor.anomalies.other_blocks += 1,
    }
    Ok(())
}

/// Checks the fields of a pcapng packet block and stores them in the cursor's head.
#[inline]
fn packet_block<R: Read>(
    cursor: &mut Cursor<R>,
    section: CurrentSection,
    packet: PacketFields,
    total: usize,
) -> Result<(), FormatViolation> {
    let index = section.first + packet.interface;
    let Some(interface) = cursor.interfaces.get(index) else {
        return Err(FormatViolation::UnknownInterface);
    };
    let (snaplen, end) = (interface.snaplen, total - BLOCK_TRAILER_LEN);
    let (ns, caplen) = match packet.ticks {
        Some(ticks) => (interface.time_base.ns(ticks), packet.caplen),
        None if snaplen == 0 => (cursor.head.ns, packet.caplen),
        None => (cursor.head.ns, packet.caplen.min(snaplen)),
    };
    let data = packet.data..packet.data.saturating_add(caplen as usize);
    if data.end > end {
        return Err(FormatViolation::PacketLength { caplen, total });
    }
    if caplen > MAX_FRAME {
        return Err(FormatViolation::RecordLength {
            caplen,
            limit: MAX_FRAME,
        });
    }
    cursor.anomalies.unstamped += u64::from(packet.ticks.is_none());
    cursor.anomalies.longer_than_frame += u64::from(caplen > packet.len);
    cursor.anomalies.above_snaplen += u64::from(snaplen != 0 && caplen > snaplen);
    cursor.head = RecordHead {
        interface: index,
        ns,
        len: packet.len.max(caplen),
        stamped: packet.ticks.is_some(),
        options: match packet.ticks {
            Some(_) => data.end.next_multiple_of(4).min(end)..end,
            // A simple packet block has no options; bytes after the frame are beyond the snapshot
            // length.
            None => end..end,
        },
        data,
        total,
    };
    Ok(())
}
