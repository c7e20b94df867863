//! Reads capture files as they are found: pcap and pcapng, in any byte order and resolution, whoever wrote them.
//!
//! ```text
//! file -> (decompress) -> window -> cursor: one record (pcap | pcapng) -> PacketReader -> Packet, borrowed
//! ```
//!
//! All tools over finished files read through this. They need more than the frames: where in the file a record begins,
//! where the last whole one ends, a record's options as they stand, and files that contradict their own headers. A
//! compressed file is recognised and decompressed on the way; offsets in it are those of what it decompresses to.
//!
//! May import: [`crate::format`].
//!
//! Invariants: memory is bounded by the longest record ([`MAX_FRAME`], [`MAX_BLOCK`]). No input panics. What is yielded
//! is whole: a record that the file's end cuts off is never yielded, and [`PacketReader::end`] tells of it. A packet's
//! `len` is never below the number of its bytes.

mod cursor;
mod decompress;
mod open;
pub mod origin;
mod pcap;
mod pcapng;
mod reader;
mod window;

pub use cursor::{Anomalies, FileEnd, MAX_FRAME, MOST_INTERFACES, ReadError};
pub use decompress::{Decompressor, first_frame_len};
pub use open::{FileRanges, FileReader, ReadMeter, RemoteContent, open};
pub use pcapng::MAX_BLOCK;
pub use reader::{Packet, PacketReader};

#[cfg(test)]
mod tests;
