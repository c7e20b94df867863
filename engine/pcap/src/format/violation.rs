//! Ways in which a capture file violates its format.

/// Violation of the pcap or pcapng format by a record, a block or a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatViolation {
    /// The file ends within its pcap header.
    #[error("the file ends within its header")]
    TornHeader,
    /// The version in a pcap header is unknown.
    #[error("pcap version {major}.{minor} is not supported; only 2.0 to 2.4 and 543.0 can be read")]
    PcapVersion {
        /// Major version number in the pcap header.
        major: u16,
        /// Minor version number in the pcap header.
        minor: u16,
    },
    /// The major version in a pcapng section header is not 1.
    #[error("pcapng version {0} is not supported; only 1 can be read")]
    PcapngVersion(u16),
    /// A pcap record, or the packet of a pcapng block, has more bytes than the reader accepts.
    #[error("a record of {caplen} bytes is too long; at most {limit} are accepted")]
    RecordLength {
        /// Captured length of the record in bytes.
        caplen: u32,
        /// Longest captured length in bytes that the reader accepts.
        limit: u32,
    },
    /// A pcap file has zeros in the place of a record, and other bytes follow them.
    #[error("the file has {0} zero bytes instead of a record, and more data after them")]
    Zeros(u64),
    /// A pcapng file does not begin with a section header.
    #[error("the pcapng file has no section header before this block")]
    NoSection,
    /// A pcapng section header has no byte-order magic.
    #[error("the section header of the pcapng file has no byte-order magic")]
    NoByteOrder,
    /// The length of a pcapng block is not a multiple of 4 within the accepted range.
    #[error(
        "a pcapng block of type {kind:#x} has {total} bytes; the length must be a multiple of 4 from {least} to {limit}"
    )]
    BlockLength {
        /// Block type in the pcapng block's header.
        kind: u32,
        /// Total length in the pcapng block's header, in bytes.
        total: u32,
        /// Length in bytes of a pcapng block of this type without a body.
        least: u32,
        /// Longest length of a pcapng block in bytes that the reader accepts.
        limit: u32,
    },
    /// The two length fields of a pcapng block differ.
    #[error(
        "a pcapng block begins with the length {total} and ends with the length {closing}, but the two lengths must be equal"
    )]
    ClosingLength {
        /// Total length in the pcapng block's header, in bytes.
        total: usize,
        /// Total length at the pcapng block's end, in bytes.
        closing: usize,
    },
    /// The interface of a pcapng packet block is not described before the block.
    #[error("a packet names an interface that the pcapng file does not describe")]
    UnknownInterface,
    /// The captured bytes of a pcapng packet exceed its block.
    #[error(
        "a packet of {caplen} bytes does not fit into its pcapng block, which has {total} bytes"
    )]
    PacketLength {
        /// Captured length of the pcapng packet in bytes.
        caplen: u32,
        /// Total length of the pcapng packet's block in bytes.
        total: usize,
    },
}
