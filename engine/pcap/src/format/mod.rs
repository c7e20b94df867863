//! Formats pcap and pcapng: all constants, encoders and decoders.
//!
//! Encoders use this machine's byte order and timestamps in nanoseconds. Decoders accept either
//! byte order and any resolution. May import: only `std` and `thiserror`. No function does I/O, and
//! no input causes a panic.

mod byte_order;
mod distinct;
pub mod pcap;
pub mod pcapng;
pub mod secrets;
mod violation;

pub use byte_order::ByteOrder;
pub use distinct::DistinctTexts;
pub use violation::FormatViolation;

/// Link type of Ethernet in capture files: LINKTYPE_ETHERNET.
pub const ETHERNET: u32 = 1;
/// Number of nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// Writes 32-bit words to `out` in this machine's byte order.
#[inline]
pub fn put_words(out: &mut [u8], words: &[u32]) {
    for (to, word) in out.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
}

/// Format of a capture file: pcap or pcapng.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Classic format pcap: a file header, then records.
    Pcap,
    /// Format pcapng: a sequence of blocks.
    Pcapng,
}

impl FileFormat {
    /// Returns the name of the capture file format, which is also the usual file extension.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pcap => "pcap",
            Self::Pcapng => "pcapng",
        }
    }
}

/// Description of a capture interface in a capture file. A pcap file has exactly one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Link type of the interface (LINKTYPE_ value).
    pub link_type: u32,
    /// Snapshot length of the interface in bytes, as declared by the file; 0 for no limit.
    pub snaplen: u32,
    /// Length in bytes of the frame check sequence at the end of each frame, if the file declares
    /// it.
    pub fcs_len: Option<u8>,
    /// Name of the capture interface.
    pub name: Option<String>,
    /// Host name in the pcapng section header, if a capture of wqcap wrote the section.
    pub host: Option<String>,
    /// Options of the interface with their codes, for a copy of its description: comments, text,
    /// addresses, speed and filter. Numbers are in this machine's byte order.
    pub options: Vec<(u16, Vec<u8>)>,
    /// Number of options of the interface that `options` lacks: unknown, malformed, or not to be
    /// copied.
    pub options_left_out: u64,
    /// Last statistics of the interface in the capture file so far.
    pub statistics: InterfaceStatistics,
    /// Conversion of the interface's timestamps in the file to nanoseconds.
    pub time_base: pcapng::TimeBase,
}

/// Statistics of a capture interface in a capture file: frames received and lost, and times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStatistics {
    /// Number of frames received on the interface.
    pub received: Option<u64>,
    /// Number of the interface's frames lost because buffers were full.
    pub dropped: Option<u64>,
    /// Start of the capture on this interface, in nanoseconds since 1970.
    pub start_ns: Option<u64>,
    /// End of the capture on this interface, in nanoseconds since 1970.
    pub end_ns: Option<u64>,
}
