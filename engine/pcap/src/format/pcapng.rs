//! Format pcapng: blocks of type, length, body and the length again; bodies contain options.
//!
//! Source: draft-ietf-opsawg-pcapng. Constants have the draft's names.

use super::{ByteOrder, Interface, InterfaceStatistics, SECOND, put_words};

/// Block type of a pcapng section header. A file begins with it, and its bytes are equal in both
/// byte orders.
pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
/// Block type of a pcapng interface description.
pub const INTERFACE_DESCRIPTION: u32 = 1;
/// Block type of a pcapng packet block: obsolete, but still in use.
const PACKET: u32 = 2;
/// Block type of a pcapng simple packet.
const SIMPLE_PACKET: u32 = 3;
/// Block type of pcapng interface statistics.
pub const INTERFACE_STATISTICS: u32 = 5;
/// Block type of a pcapng enhanced packet.
pub const ENHANCED_PACKET: u32 = 6;
/// Block type of pcapng decryption secrets.
pub const DECRYPTION_SECRETS: u32 = 10;
/// Byte-order magic in a pcapng section header block.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// Length in bytes of a pcapng block without a body: type, total length, total length again.
pub const EMPTY_BLOCK_LEN: usize = 12;
/// Length in bytes of a pcapng enhanced packet block before the frame: type, total length,
/// interface, timestamp (two words), captured length, original length.
pub const PACKET_HEADER_LEN: usize = 28;
/// Length in bytes of a pcapng block after its body: the total length.
pub const BLOCK_TRAILER_LEN: usize = 4;
/// Offset of the snapshot length in a pcapng interface description block.
pub const SNAPLEN_OFFSET: u64 = 12;

/// Codes of the options in pcapng blocks.
#[allow(missing_docs, reason = "the draft defines the codes under these names")]
pub mod code {
    pub const OPT_ENDOFOPT: u16 = 0;
    pub const OPT_COMMENT: u16 = 1;
    pub const SHB_HARDWARE: u16 = 2;
    pub const SHB_OS: u16 = 3;
    pub const SHB_USERAPPL: u16 = 4;
    pub const IF_NAME: u16 = 2;
    pub const IF_DESCRIPTION: u16 = 3;
    pub const IF_IPV4ADDR: u16 = 4;
    pub const IF_IPV6ADDR: u16 = 5;
    pub const IF_MACADDR: u16 = 6;
    pub const IF_EUIADDR: u16 = 7;
    pub const IF_SPEED: u16 = 8;
    pub const IF_TSRESOL: u16 = 9;
    pub const IF_TZONE: u16 = 10;
    pub const IF_FILTER: u16 = 11;
    pub const IF_OS: u16 = 12;
    pub const IF_FCSLEN: u16 = 13;
    pub const IF_TSOFFSET: u16 = 14;
    pub const IF_HARDWARE: u16 = 15;
    pub const IF_TXSPEED: u16 = 16;
    pub const IF_RXSPEED: u16 = 17;
    pub const IF_IANA_TZNAME: u16 = 18;
    pub const EPB_FLAGS: u16 = 2;
    pub const EPB_HASH: u16 = 3;
    pub const EPB_DROPCOUNT: u16 = 4;
    pub const EPB_PACKETID: u16 = 5;
    pub const EPB_QUEUE: u16 = 6;
    pub const EPB_VERDICT: u16 = 7;
    pub const ISB_STARTTIME: u16 = 2;
    pub const ISB_ENDTIME: u16 = 3;
    pub const ISB_IFRECV: u16 = 4;
    pub const ISB_IFDROP: u16 = 5;
}
use code::*;

/// Codes of pcapng interface options with text, besides the name.
const IF_TEXTS: [u16; 5] = [
    OPT_COMMENT,
    IF_DESCRIPTION,
    IF_OS,
    IF_HARDWARE,
    IF_IANA_TZNAME,
];
/// Maximum number of bytes that are kept of all interface options of a pcapng file together. One
/// interface gets at most half of this, so that its block stays below the limit of readers.
pub const MOST_TEXTS: usize = 16 << 20;
/// Maximum length of a pcapng option value in bytes.
const MOST_VALUE: usize = u16::MAX as usize;
/// Maximum length in bytes of the options that are written for a pcapng record.
pub const MOST_OPTIONS: usize = 1 << 20;
/// Codes of custom pcapng options, whose value begins with an enterprise number: text and bytes to
/// copy, then text and bytes not to copy.
const CUSTOM: [u16; 4] = [2988, 2989, 19372, 19373];

/// Prefix of the pcapng section header comment that contains the host name.
pub const HOST_COMMENT: &str = "host: ";

/// Returns the byte order of a pcapng section from its header block; `None` for another block.
#[must_use]
pub fn section_order(block: &[u8]) -> Option<ByteOrder> {
    ByteOrder::from_magic(BYTE_ORDER_MAGIC, block.get(8..)?)
}

/// Returns the comments in the body of a pcapng section header block, without the host name.
pub fn section_comments(body: &[u8], order: ByteOrder) -> impl Iterator<Item = String> {
    let options = Options::new(body.get(16..).unwrap_or_default(), order);
    let comments = options.filter(|(code, value)| {
        *code == OPT_COMMENT && !value.starts_with(HOST_COMMENT.as_bytes())
    });
    comments.map(|(_, value)| text(value))
}

/// Returns the host name in the comments of a pcapng section header block, given by its body;
/// `None`: it has none.
#[must_use]
pub fn section_host(body: &[u8], order: ByteOrder) -> Option<String> {
    let mut options = Options::new(body.get(16..)?, order);
    let host = |value: &[u8]| {
        value
            .strip_prefix(HOST_COMMENT.as_bytes())
            .map(<[u8]>::to_vec)
    };
    let found = options.find_map(|(code, value)| host(value).filter(|_| code == code::OPT_COMMENT));
    found.and_then(|host| String::from_utf8(host).ok())
}

/// Iterator over the options of a pcapng block. It ends at the end option or at the first option
/// that exceeds the block.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
}

impl<'a> Options<'a> {
    /// Creates an iterator over the pcapng options at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { bytes, order }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let code = self.order.u16(self.bytes, 0);
        let len = usize::from(self.order.u16(self.bytes, 2));
        let value = self.bytes.get(4..4 + len);
        let value = value.filter(|_| code != OPT_ENDOFOPT)?;
        let end = 4 + len.next_multiple_of(4);
        self.bytes = self.bytes.get(end..).unwrap_or_default();
        Some((code, value))
    }
}

/// Decodes the pcapng timestamp of two words at offset `at`. The high word is first in either byte
/// order.
#[inline]
fn timestamp(bytes: &[u8], at: usize, order: ByteOrder) -> u64 {
    u64::from(order.u32(bytes, at)) << 32 | u64::from(order.u32(bytes, at + 4))
}

/// Fields of a pcapng packet block of any of the three types.
#[derive(Clone, Copy, Debug)]
pub struct PacketFields {
    /// Index of the packet's interface in its pcapng section.
    pub interface: usize,
    /// Timestamp of the packet in units of its interface; `None` for a simple packet block, which
    /// has none.
    pub ticks: Option<u64>,
    /// Captured length of the packet in bytes. A simple packet block has no such field, and the
    /// length is at most the interface's snapshot length.
    pub caplen: u32,
    /// Length of the packet's frame on the wire in bytes, as the file states it.
    pub len: u32,
    /// Offset of the frame in the pcapng packet block.
    pub data: usize,
}

impl PacketFields {
    /// Decodes a pcapng packet block; `None` for another block.
    #[inline]
    #[must_use]
    pub fn decode(block: &[u8], order: ByteOrder) -> Option<Self> {
        let word = |at| order.u32(block, at);
        let interface = match word(0) {
            ENHANCED_PACKET => word(8) as usize,
            PACKET => order.u16(block, 8).into(),
            SIMPLE_PACKET => {
                let room = u32::try_from(block.len().saturating_sub(16)).unwrap_or(u32::MAX);
                return Some(Self {
                    interface: 0,
                    ticks: None,
                    caplen: word(8).min(room),
                    len: word(8),
                    data: 12,
                });
            }
            _ => return None,
        };
        Some(Self {
            interface,
            ticks: Some(timestamp(block, 12, order)),
            caplen: word(20),
            len: word(24),
            data: PACKET_HEADER_LEN,
        })
    }
}

/// Remaining memory budget for the interface options of a capture file. The limit prevents a
/// malicious file from exhausting the memory.
#[derive(Clone, Copy, Debug)]
pub struct TextBudget {
    /// Remaining bytes of the budget for interface options.
    bytes: usize,
    /// Number of interface options that were not kept, because the budget was too small.
    pub left_out: u64,
}

impl Default for TextBudget {
    fn default() -> Self {
        Self {
            bytes: MOST_TEXTS,
            left_out: 0,
        }
    }
}

impl TextBudget {
    /// Returns the number of bytes that were taken from the budget.
    #[must_use]
    pub fn taken(&self) -> usize {
        MOST_TEXTS - self.bytes
    }

    /// Takes the memory for an interface option from the budget. Returns `false` and counts the
    /// option if the budget is too small.
    pub fn take(&mut self, value: impl AsRef<[u8]>) -> bool {
        let value = value.as_ref();
        let left = self.bytes.checked_sub(value.len() + size_of::<Vec<u8>>());
        match left {
            Some(left) => self.bytes = left,
            None => self.left_out += 1,
        }
        left.is_some()
    }
}

impl Interface {
    /// Decodes the body of a pcapng interface description block. Options beyond the memory budget
    /// are left out.
    #[must_use]
    pub fn decode(body: &[u8], order: ByteOrder, budget: &mut TextBudget) -> Self {
        let mut texts = TextBudget {
            bytes: budget.bytes.min(MOST_TEXTS / 2),
            left_out: budget.left_out,
        };
        let before = texts.bytes;
        let mut interface = Self {
            link_type: order.u16(body, 0).into(),
            snaplen: order.u32(body, 4),
            ..Self::default()
        };
        let (mut resolution, mut offset_s) = (None, 0);
        for (code, value) in Options::new(body.get(8..).unwrap_or_default(), order) {
            match code {
                IF_TSRESOL => resolution = value.first().copied(),
                // The draft counts in bytes; its earlier versions and some writers count in bits.
                IF_FCSLEN => {
                    let len = value.first().map(|it| if *it < 16 { *it } else { *it / 8 });
                    interface.fcs_len = len;
                }
                IF_TSOFFSET => offset_s = order.u64(value, 0).cast_signed(),
                // A value longer than the budget is not decoded at all.
                _ if value.len() > texts.bytes => texts.left_out += 1,
                IF_NAME => interface.name = Some(text(value)).filter(|it| texts.take(it)),
                code => match interface_value(code, value, order) {
                    Some(value) if texts.take(&value) => interface.options.push((code, value)),
                    Some(_) => {}
                    None => interface.options_left_out += 1,
                },
            }
        }
        budget.bytes -= before - texts.bytes;
        budget.left_out = texts.left_out;
        interface.time_base = TimeBase::new(resolution, offset_s);
        interface
    }
}

/// Returns the text of a pcapng option, truncated so that it fits into an option again.
fn text(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    let text = text.trim_end_matches('\0');
    text[..text.floor_char_boundary(MOST_VALUE)].to_owned()
}

/// Returns the value of a pcapng interface option for a copy of the option, with numbers in this
/// machine's byte order; `None` if the option is unknown or malformed, or must not be copied.
fn interface_value(code: u16, value: &[u8], order: ByteOrder) -> Option<Vec<u8>> {
    let is_sound = match code {
        IF_IPV4ADDR | IF_EUIADDR => value.len() == 8,
        IF_IPV6ADDR => value.len() == 17,
        IF_MACADDR => value.len() == 6,
        // The kind of the filter, and the filter.
        IF_FILTER => value.len() > 1,
        IF_SPEED | IF_TXSPEED | IF_RXSPEED if value.len() == 8 => {
            return Some(order.u64(value, 0).to_ne_bytes().to_vec());
        }
        IF_TZONE if value.len() == 4 => return Some(order.u32(value, 0).to_ne_bytes().to_vec()),
        code if IF_TEXTS.contains(&code) => return Some(text(value).into_bytes()),
        code if CUSTOM[..2].contains(&code) && value.len() >= 4 => {
            let number = order.u32(value, 0).to_ne_bytes();
            return Some([&number, &value[4..]].concat());
        }
        _ => false,
    };
    is_sound.then(|| value.to_vec())
}

impl InterfaceStatistics {
    /// Decodes the options of a pcapng interface statistics block.
    #[must_use]
    pub fn decode(bytes: &[u8], order: ByteOrder, time_base: TimeBase) -> Self {
        let mut it = Self::default();
        for (code, value) in Options::new(bytes, order).filter(|(_, value)| value.len() == 8) {
            let ns = || Some(time_base.ns(timestamp(value, 0, order)));
            match code {
                ISB_STARTTIME => it.start_ns = ns(),
                ISB_ENDTIME => it.end_ns = ns(),
                ISB_IFRECV => it.received = Some(order.u64(value, 0)),
                ISB_IFDROP => it.dropped = Some(order.u64(value, 0)),
                _ => {}
            }
        }
        it
    }
}

/// Conversion of the timestamps of an interface in a pcapng file to nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeBase {
    /// Number of timestamp units of the interface per second.
    ticks_per_second: u128,
    /// Nanoseconds per timestamp unit of the interface, if that is a whole number.
    ns_per_tick: Option<u64>,
    /// Offset in nanoseconds that is added to each timestamp of the interface.
    offset_ns: i64,
}

impl Default for TimeBase {
    fn default() -> Self {
        Self::new(None, 0)
    }
}

impl TimeBase {
    /// Creates a timestamp conversion from the interface options if_tsresol and if_tsoffset.
    #[must_use]
    pub fn new(tsresol: Option<u8>, offset_s: i64) -> Self {
        let ticks_per_second = match tsresol.unwrap_or(6) {
            power @ ..=127 => 10u128.saturating_pow(power.into()),
            power => 1 << (power & 0x7f),
        };
        let second = u128::from(SECOND);
        let is_whole = second.is_multiple_of(ticks_per_second);
        Self {
            ticks_per_second,
            ns_per_tick: is_whole.then_some((second / ticks_per_second) as u64),
            offset_ns: offset_s.saturating_mul(SECOND as i64),
        }
    }

    /// Converts an interface's timestamp to nanoseconds since 1970.
    #[inline]
    #[must_use]
    pub fn ns(self, ticks: u64) -> u64 {
        let ns = match self.ns_per_tick {
            Some(ns) => ticks.saturating_mul(ns),
            None => {
                let ns = u128::from(ticks) * u128::from(SECOND) / self.ticks_per_second;
                u64::try_from(ns).unwrap_or(u64::MAX)
            }
        };
        ns.saturating_add_signed(self.offset_ns)
    }
}

/// Appends a pcapng option, padded to 32 bits. An option longer than 65535 bytes is left out.
pub fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let Ok(len) = u16::try_from(value.len()) else {
        return;
    };
    out.extend(option_header(code, len).to_ne_bytes());
    out.extend_from_slice(value);
    let padding = value.len().next_multiple_of(4) - value.len();
    out.extend_from_slice(&[0; 4][..padding]);
}

/// Returns code and length of a pcapng option as one word in this machine's byte order.
#[inline]
#[must_use]
pub fn option_header(code: u16, len: u16) -> u32 {
    let ([a, b], [c, d]) = (code.to_ne_bytes(), len.to_ne_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

/// Appends the options of a pcapng packet block for which `wanted` returns `true`, converted to
/// this machine's byte order.
///
/// Returns the number of options left out: unwanted options, malformed options, for which readers
/// would reject the file, and options beyond [`MOST_OPTIONS`].
pub fn recode_options(
    out: &mut Vec<u8>,
    bytes: &[u8],
    order: ByteOrder,
    wanted: impl Fn(u16) -> bool,
) -> u64 {
    let mut all = Options::new(bytes, order);
    let (start, mut left_out) = (out.len(), 0);
    for (code, value) in all.by_ref() {
        let word = order.u32(value, 0).to_ne_bytes();
        let long = |at| order.u64(value, at).to_ne_bytes();
        match (code, value) {
            _ if !wanted(code) => left_out += 1,
            _ if out.len() - start + value.len() > MOST_OPTIONS => left_out += 1,
            (EPB_FLAGS | EPB_QUEUE, [_, _, _, _]) => option(out, code, &word),
            (EPB_DROPCOUNT | EPB_PACKETID, [_, _, _, _, _, _, _, _]) => option(out, code, &long(0)),
            // A verdict of the eBPF traffic classifier or XDP is a 64-bit number.
            (EPB_VERDICT, [kind @ (1 | 2), rest @ ..]) if rest.len() == 8 => {
                option(out, code, &[&[*kind][..], &long(1)].concat());
            }
            (EPB_VERDICT, [1 | 2, ..]) | (EPB_VERDICT | EPB_HASH, []) => left_out += 1,
            (EPB_FLAGS | EPB_QUEUE | EPB_DROPCOUNT | EPB_PACKETID, _) => left_out += 1,
            (code, [_, _, _, _, rest @ ..]) if CUSTOM.contains(&code) => {
                option(out, code, &[&word, rest].concat());
            }
            (code, _) if CUSTOM.contains(&code) => left_out += 1,
            _ => option(out, code, value),
        }
    }
    if out.len() > start {
        option(out, OPT_ENDOFOPT, &[]);
    }
    // Count the option at which the iterator stopped, unless it is the end option.
    left_out + u64::from(order.u16(all.bytes, 0) != OPT_ENDOFOPT)
}

/// Appends a pcapng block; `body` appends its body.
pub fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([kind, 0].map(u32::to_ne_bytes).as_flattened());
    body(out);
    close_block(out, start);
}

/// Completes the pcapng block from `start` to the end of the buffer: writes both length fields.
#[inline]
pub fn close_block(out: &mut Vec<u8>, start: usize) {
    let total = u32::try_from(out.len() - start + BLOCK_TRAILER_LEN).unwrap_or(u32::MAX);
    out.extend_from_slice(&total.to_ne_bytes());
    out[start + 4..start + 8].copy_from_slice(&total.to_ne_bytes());
}

/// Appends a pcapng section header block; `options` appends its options, without the end option.
pub fn section_header(out: &mut Vec<u8>, options: impl FnOnce(&mut Vec<u8>)) {
    block(out, SECTION_HEADER, |out| {
        out.extend(BYTE_ORDER_MAGIC.to_ne_bytes());
        // Version 1.0.
        out.extend([1u16, 0].map(u16::to_ne_bytes).as_flattened());
        // -1: the length of the section is unspecified.
        out.extend((-1i64).to_ne_bytes());
        options(out);
        option(out, OPT_ENDOFOPT, &[]);
    });
}

/// Appends a pcapng interface description block for timestamps in nanoseconds; `options` appends
/// additional options.
pub fn interface_description(
    out: &mut Vec<u8>,
    link_type: u16,
    snaplen: u32,
    fcs_len: Option<u8>,
    options: impl FnOnce(&mut Vec<u8>),
) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend([link_type, 0].map(u16::to_ne_bytes).as_flattened());
        out.extend(snaplen.to_ne_bytes());
        options(out);
        // 10^-9 seconds.
        option(out, IF_TSRESOL, &[9]);
        if let Some(len) = fcs_len {
            option(out, IF_FCSLEN, &[len]);
        }
        option(out, OPT_ENDOFOPT, &[]);
    });
}

/// Encodes the part before the frame of a pcapng enhanced packet block with `total` bytes.
#[inline]
#[must_use]
pub fn encode_packet_header(
    total: u32,
    interface: u32,
    ns: u64,
    caplen: u32,
    len: u32,
) -> [u8; PACKET_HEADER_LEN] {
    let [high, low] = timestamp_words(ns);
    let words = [ENHANCED_PACKET, total, interface, high, low, caplen, len];
    let mut header = [0; PACKET_HEADER_LEN];
    put_words(&mut header, &words);
    header
}

/// Appends a pcapng simple packet block, which has neither a timestamp nor an interface: the frame
/// belongs to the section's first interface.
pub fn simple_packet(out: &mut Vec<u8>, bytes: &[u8], len: u32) {
    block(out, SIMPLE_PACKET, |out| {
        out.extend(len.to_ne_bytes());
        out.extend_from_slice(bytes);
        out.resize(out.len() + bytes.len().next_multiple_of(4) - bytes.len(), 0);
    });
}

/// Appends a pcapng enhanced packet block; `options` appends its options, including the end option.
#[inline]
pub fn enhanced_packet(
    out: &mut Vec<u8>,
    interface: u32,
    ns: u64,
    bytes: &[u8],
    len: u32,
    options: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    let caplen = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&encode_packet_header(0, interface, ns, caplen, len));
    out.extend_from_slice(bytes);
    let padding = bytes.len().next_multiple_of(4) - bytes.len();
    out.extend_from_slice(&[0; 4][..padding]);
    options(out);
    close_block(out, start);
}

/// Appends a pcapng interface statistics block: the options that `options` appends, then the known
/// statistics.
pub fn interface_statistics(
    out: &mut Vec<u8>,
    interface: u32,
    statistics: &InterfaceStatistics,
    options: impl FnOnce(&mut Vec<u8>),
) {
    let stamp = |ns| timestamp_words(ns).map(u32::to_ne_bytes);
    block(out, INTERFACE_STATISTICS, |out| {
        out.extend(interface.to_ne_bytes());
        out.extend(stamp(statistics.end_ns.unwrap_or(0)).as_flattened());
        options(out);
        let stamps = [
            (ISB_STARTTIME, statistics.start_ns),
            (ISB_ENDTIME, statistics.end_ns),
        ];
        for (code, ns) in stamps {
            if let Some(ns) = ns {
                option(out, code, stamp(ns).as_flattened());
            }
        }
        let counts = [
            (ISB_IFRECV, statistics.received),
            (ISB_IFDROP, statistics.dropped),
        ];
        for (code, n) in counts {
            if let Some(n) = n {
                option(out, code, &n.to_ne_bytes());
            }
        }
        option(out, OPT_ENDOFOPT, &[]);
    });
}

/// Splits a pcapng timestamp into two words, the high word first.
#[inline]
fn timestamp_words(ns: u64) -> [u32; 2] {
    [(ns >> 32) as u32, ns as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_at_the_end_option_or_a_truncated_option() {
        let bytes = [2, 0, 3, 0, 9, 8, 7, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        let all: Vec<_> = Options::new(&bytes, ByteOrder::Little).collect();
        assert_eq!(all, [(2, &[9, 8, 7][..]), (5, &[])]);
        let broken = [2, 0, 0, 0, 3, 0, 200, 0, 1];
        assert_eq!(Options::new(&broken, ByteOrder::Little).count(), 1);
        assert_eq!(Options::new(&[], ByteOrder::Big).count(), 0);
    }

    #[test]
    fn the_high_word_of_a_timestamp_is_first() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        let ticks = |order| timestamp(&bytes, 0, order);
        assert_eq!(ticks(ByteOrder::Little), 0x0403_0201_0807_0605);
        assert_eq!(ticks(ByteOrder::Big), 0x0102_0304_0506_0708);
    }

    #[test]
    fn timestamps_of_every_resolution_are_converted() {
        for (tsresol, offset_s, ticks, ns) in [
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
                TimeBase::new(tsresol, offset_s).ns(ticks),
                ns,
                "{tsresol:?} {ticks}"
            );
        }
    }
}
