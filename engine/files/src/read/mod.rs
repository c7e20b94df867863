//! Opening of capture files: local or remote, whole or in part, sealed or plain; detection of their
//! origin. The reader itself is that of `wqcap-pcap`, which the software NIC also uses.
//!
//! ```text
//! file -> (unseal) -> ranges -> (decompress) -> PacketReader -> Packet, borrowed
//! ```
//!
//! May import: [`crate::folder`], [`crate::format`], [`crate::sealed`].

mod open;
pub mod origin;

pub(crate) use open::Deletion;
pub use open::{FileRanges, FileReader, ReadMeter, RemoteContent, open};
pub use wqcap_pcap::read::{
    Anomalies, Decompressor, FileEnd, MAX_BLOCK, MAX_FRAME, MOST_INTERFACES, Packet, PacketReader,
    ReadError, first_frame_len, is_capture_start,
};

/// Maximum length in bytes of the torn record that a crash leaves at the end of an uncompressed file:
/// longer than the longest record. More bytes may have other records.
pub(crate) const LONGEST_TORN: u64 = 2 << 20;

#[cfg(test)]
mod tests;
