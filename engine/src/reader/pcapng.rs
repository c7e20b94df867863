//! Blocks: sections, interfaces, packets of three kinds, statistics; others are stepped over.
//!
//! Source: draft-ietf-opsawg-pcapng. Interfaces are numbered anew in each section of a file; here they are numbered
//! through.

use super::{
    End, FileState, Head, Interface, MAX_BLOCK, MAX_FRAME, Order, ReadError, Reader, SECOND,
    Statistics, fields::options,
};
use std::io::Read;

/// What a file begins with, in either byte order.
pub(super) const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
/// Obsolete, and still met.
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// Type and total length.
const BLOCK_HEADER: usize = 8;
/// These and the total length again.
const LEAST_BLOCK: u32 = 12;
/// More interfaces than this are no description of anything.
const MOST_INTERFACES: usize = 1 << 16;

const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const IF_FCSLEN: u16 = 13;
const IF_TSOFFSET: u16 = 14;
/// Options of an interface that are text: comment, description, OS, hardware.
const IF_TEXTS: [u16; 4] = [1, 3, 12, 15];
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

/// The section being read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PcapngFile {
    /// `None`: before the first section header.
    order: Option<Order>,
    /// Where this section's interfaces begin.
    first: usize,
}

impl PcapngFile {
    pub(super) fn order(&self) -> Order {
        self.order.unwrap_or(Order::NATIVE)
    }
}

/// How an interface's stamps become nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    resolution: Resolution,
    /// if_tsoffset in nanoseconds.
    offset: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolution {
    /// Nanoseconds of a tick.
    Times(u64),
    /// Ticks of a nanosecond.
    Over(u64),
    /// Ticks of a second are two to this.
    Binary(u8),
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            resolution: Resolution::Times(1000),
            offset: 0,
        }
    }
}

impl Clock {
    fn of(tsresol: Option<u8>, seconds: i64) -> Self {
        let resolution = match tsresol.unwrap_or(6) {
            power @ 0..=9 => Resolution::Times(10u64.pow(9 - u32::from(power))),
            power @ 10..=28 => Resolution::Over(10u64.pow(u32::from(power) - 9)),
            // So fine that 64 bits of ticks are no nanosecond.
            29..=127 => Resolution::Over(u64::MAX),
            binary => Resolution::Binary(binary & 0x7f),
        };
        Self {
            resolution,
            offset: seconds.saturating_mul(SECOND as i64),
        }
    }

    #[inline]
    fn ns(self, ticks: u64) -> u64 {
        let ns = match self.resolution {
            Resolution::Times(1) => ticks,
            Resolution::Times(ns) => ticks.saturating_mul(ns),
            Resolution::Over(ticks_per_ns) => ticks / ticks_per_ns,
            Resolution::Binary(power) => {
                let ns = (u128::from(ticks) * u128::from(SECOND)) >> power;
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        };
        ns.saturating_add_signed(self.offset)
    }
}

impl<R: Read> Reader<R> {
    /// Goes on to the next block that is a packet.
    pub(super) fn next_block(&mut self) -> Result<Option<End>, ReadError> {
        loop {
            self.sound_end = self.window.offset();
            if !self.want(LEAST_BLOCK as usize)? {
                return Ok(Some(self.ended()));
            }
            let bytes = self.window.bytes();
            if bytes.starts_with(&MAGIC) {
                self.section()?;
            }
            let FileState::Pcapng(PcapngFile {
                order: Some(order),
                first,
            }) = self.file
            else {
                return Err(self.damaged("no section header"));
            };
            let bytes = self.window.bytes();
            let (kind, total) = (order.u32(bytes, 0), order.u32(bytes, 4));
            if kind == 0 && total == 0 {
                return self.zeros().map(Some);
            }
            if !(LEAST_BLOCK..=MAX_BLOCK).contains(&total) || !total.is_multiple_of(4) {
                return Err(self.damaged(format!(
                    "a block of type {kind:#x} and {total} bytes; it must be a multiple of 4, and from \
                     {LEAST_BLOCK} to {MAX_BLOCK}"
                )));
            }
            let total = total as usize;
            if !self.want(total)? {
                return Ok(Some(self.ended()));
            }
            let bytes = self.window.bytes();
            let closing = order.u32(bytes, total - 4) as usize;
            if closing != total {
                return Err(self.damaged(format!(
                    "a block of {total} bytes that closes as one of {closing}"
                )));
            }
            let found = match kind {
                ENHANCED_PACKET => self.enhanced(order, first, total).map(|()| true),
                PACKET => self.obsolete(order, first, total).map(|()| true),
                SIMPLE_PACKET => self.simple(order, first, total).map(|()| true),
                other => self.aside(order, first, other, total).map(|()| false),
            };
            match found {
                Ok(true) => return Ok(None),
                Ok(false) => self.window.skip(total),
                Err(problem) => return Err(self.damaged(problem)),
            }
        }
    }

    /// A section header: from here on another byte order, and interfaces from 0.
    fn section(&mut self) -> Result<(), ReadError> {
        let bytes = self.window.bytes();
        let order = [Order::Little, Order::Big]
            .into_iter()
            .find(|order| order.u32(bytes, 8) == BYTE_ORDER)
            .ok_or_else(|| self.damaged("a section header without a byte-order magic"))?;
        if self.want(16)? {
            let version = order.u16(self.window.bytes(), 12);
            if version != 1 {
                return Err(self.damaged(format!("version {version} of the format; 1 can be read")));
            }
        }
        self.file = FileState::Pcapng(PcapngFile {
            order: Some(order),
            first: self.interfaces.len(),
        });
        Ok(())
    }

    /// Blocks that are no packets.
    fn aside(&mut self, order: Order, first: usize, kind: u32, total: usize) -> Result<(), String> {
        let body = &self.window.bytes()[BLOCK_HEADER..total - 4];
        match kind {
            SECTION => {}
            INTERFACE if body.len() >= 8 => {
                let interface = interface(order, body);
                if self.interfaces.len() == MOST_INTERFACES {
                    return Err(format!("more than {MOST_INTERFACES} interfaces"));
                }
                self.interfaces.push(interface);
            }
            STATISTICS if body.len() >= 12 => {
                let index = first + order.u32(body, 0) as usize;
                if let Some(interface) = self.interfaces.get_mut(index) {
                    interface.statistics = statistics(order, interface.clock, &body[12..]);
                }
            }
            _ => self.oddities.other_blocks += 1,
        }
        Ok(())
    }

    #[inline]
    fn enhanced(&mut self, order: Order, first: usize, total: usize) -> Result<(), String> {
        let bytes = self.window.bytes();
        let body = Body {
            interface: first + order.u32(bytes, 8) as usize,
            ticks: Some(order.stamp(bytes, 12)),
            caplen: order.u32(bytes, 20),
            len: order.u32(bytes, 24),
            data: 28,
        };
        self.take(body, total)
    }

    fn obsolete(&mut self, order: Order, first: usize, total: usize) -> Result<(), String> {
        let bytes = self.window.bytes();
        let body = Body {
            interface: first + usize::from(order.u16(bytes, 8)),
            ticks: Some(order.stamp(bytes, 12)),
            caplen: order.u32(bytes, 20),
            len: order.u32(bytes, 24),
            data: 28,
        };
        self.take(body, total)
    }

    fn simple(&mut self, order: Order, first: usize, total: usize) -> Result<(), String> {
        let len = order.u32(self.window.bytes(), 8);
        let snaplen = match self.interfaces.get(first).map_or(0, |i| i.snaplen) {
            0 => u32::MAX,
            some => some,
        };
        // The block may be shorter than the snapshot length says; never longer than itself.
        let room = u32::try_from(total.saturating_sub(16)).unwrap_or(0);
        let body = Body {
            interface: first,
            ticks: None,
            caplen: len.min(snaplen).min(room),
            len,
            data: 12,
        };
        self.take(body, total)
    }

    #[inline]
    fn take(&mut self, body: Body, total: usize) -> Result<(), String> {
        let Some(interface) = self.interfaces.get(body.interface) else {
            return Err("a packet of an interface that is not described".into());
        };
        let data = body.data..body.data.saturating_add(body.caplen as usize);
        if data.end > total - 4 || body.caplen > MAX_FRAME {
            return Err(format!(
                "a packet of {} bytes in a block of {total}",
                body.caplen
            ));
        }
        let ns = match body.ticks {
            Some(ticks) => interface.clock.ns(ticks),
            None => self.head.ns,
        };
        self.oddities.unstamped += u64::from(body.ticks.is_none());
        self.oddities.longer_than_frame += u64::from(body.caplen > body.len);
        self.oddities.above_snaplen +=
            u64::from(interface.snaplen != 0 && body.caplen > interface.snaplen);
        let options = data.end.next_multiple_of(4).min(total - 4)..total - 4;
        self.head = Head {
            interface: body.interface,
            ns,
            len: body.len.max(body.caplen),
            data,
            options,
            total,
        };
        Ok(())
    }
}

/// What the kinds of packet blocks have in common.
struct Body {
    interface: usize,
    ticks: Option<u64>,
    caplen: u32,
    len: u32,
    /// Where the bytes begin.
    data: usize,
}

fn interface(order: Order, body: &[u8]) -> Interface {
    let mut interface = Interface {
        link_type: u32::from(order.u16(body, 0)),
        snaplen: order.u32(body, 4),
        ..Interface::default()
    };
    let (mut resolution, mut seconds) = (None, 0);
    for (code, value) in options(&body[8..], order) {
        let text = || {
            String::from_utf8_lossy(value)
                .trim_end_matches('\0')
                .to_owned()
        };
        match code {
            IF_NAME => interface.name = Some(text()),
            IF_TSRESOL => resolution = value.first().copied(),
            IF_FCSLEN => interface.fcs_len = value.first().copied(),
            IF_TSOFFSET => seconds = order.u64(value, 0).cast_signed(),
            code if IF_TEXTS.contains(&code) => interface.texts.push((code, text())),
            _ => {}
        }
    }
    interface.clock = Clock::of(resolution, seconds);
    interface
}

fn statistics(order: Order, clock: Clock, bytes: &[u8]) -> Statistics {
    let mut it = Statistics::default();
    for (code, value) in options(bytes, order).filter(|(_, value)| value.len() == 8) {
        match code {
            ISB_STARTTIME => it.start_ns = Some(clock.ns(order.stamp(value, 0))),
            ISB_ENDTIME => it.end_ns = Some(clock.ns(order.stamp(value, 0))),
            ISB_IFRECV => it.received = Some(order.u64(value, 0)),
            ISB_IFDROP => it.dropped = Some(order.u64(value, 0)),
            _ => {}
        }
    }
    it
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_every_resolution_become_nanoseconds() {
        for (tsresol, seconds, ticks, ns) in [
            (None, 0, 1_700_000_000_000_001, 1_700_000_000_000_001_000),
            (Some(0), 0, 7, 7 * SECOND),
            (Some(9), 0, u64::MAX, u64::MAX),
            (Some(12), 0, 1_999_999, 1999),
            (Some(60), 0, 1 << 60, 0),
            (Some(0x80 | 10), 0, 1536, 1_500_000_000),
            (Some(0x80 | 32), 0, 1 << 63, SECOND << 31),
            (Some(9), -1, 2 * SECOND, SECOND),
            (Some(9), -3, 2 * SECOND, 0),
            (Some(3), i64::MAX, u64::MAX, u64::MAX),
        ] {
            assert_eq!(
                Clock::of(tsresol, seconds).ns(ticks),
                ns,
                "{tsresol:?} {ticks}"
            );
        }
    }
}
