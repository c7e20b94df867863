//! The two file formats, byte by byte: the one place for their constants, encoders and decoders.
//!
//! What is written is in this machine's byte order, with stamps in nanoseconds; what is read may be in either order and
//! any resolution. May import: nothing but `std` and `thiserror`. No function here does I/O, and none panics on any input.

mod byte_order;
pub mod pcap;
pub mod pcapng;
pub mod secrets;

pub use byte_order::ByteOrder;

/// LINKTYPE_ETHERNET.
pub const ETHERNET: u32 = 1;
/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;

/// Writes words in this machine's byte order.
#[inline]
pub fn put_words(out: &mut [u8], words: &[u32]) {
    for (to, word) in out.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// The classic one: a header, then records.
    Pcap,
    /// Blocks.
    Pcapng,
}

impl FileFormat {
    /// Its name, which is also the usual ending of a file's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pcap => "pcap",
            Self::Pcapng => "pcapng",
        }
    }
}

/// An interface that frames were received on, as a file describes it. A pcap file has exactly one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// LINKTYPE.
    pub link_type: u32,
    /// The longest record, as the file says; 0: no limit.
    pub snaplen: u32,
    /// Bytes of frame check sequence at each frame's end, if the file tells.
    pub fcs_len: Option<u8>,
    /// Its name.
    pub name: Option<String>,
    /// The machine that it is of, if its section is a capture's.
    pub host: Option<String>,
    /// All its options that are text, by option code, except for its name.
    pub texts: Vec<(u16, String)>,
    /// The last statistics that the file has of it.
    pub statistics: InterfaceStatistics,
    /// How its stamps become nanoseconds.
    pub time_base: pcapng::TimeBase,
}

/// Statistics of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStatistics {
    /// Frames received.
    pub received: Option<u64>,
    /// Frames lost for want of room.
    pub dropped: Option<u64>,
    /// When the interface's capture began, in nanoseconds since 1970.
    pub start_ns: Option<u64>,
    /// When it ended.
    pub end_ns: Option<u64>,
}
