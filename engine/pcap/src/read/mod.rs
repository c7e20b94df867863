//! Reader of capture files: pcap and pcapng of any program, in any version,
//! byte order and resolution.
//!
//! ```text
//! file -> (decompress) -> window -> cursor: one record (pcap | pcapng) -> PacketReader -> Packet, borrowed
//! ```
//!
//! All tools for finished files use this module. They need more than the frames: the offset of each
//! record, the end of the last complete record, the raw options of a record, and tolerance of files
//! that contradict their headers. A compressed file is detected and decompressed. Offsets in it
//! refer to the decompressed content.
//!
//! May import: [`crate::format`].
//!
//! Invariants: memory is bounded by the longest record ([`MAX_FRAME`], [`MAX_BLOCK`]). No input
//! causes a panic. Only complete records are returned: a record truncated by the end of the file is
//! not returned, and [`PacketReader::end`] reports it. A packet's `len` is never below the number
//! of its bytes.

mod budget;
mod cursor;
mod decompress;
mod gzip;
mod pcap;
mod pcapng;
mod reader;
mod window;

pub use cursor::{Anomalies, FileEnd, MAX_FRAME, MOST_INTERFACES, ReadError};
pub use decompress::{Decompressor, first_frame_len};
pub use pcapng::MAX_BLOCK;
pub use reader::{Packet, PacketReader, is_capture_start};
pub use window::{BEGINNING, WHOLE_FILE};
