//! Capture files, from pcap's first byte to the indexes of a whole folder: everything that needs no NIC.
//!
//! ```
//! use wqcap_files::{format::pcap, read::PacketReader};
//!
//! // A file with one frame of 60 bytes, of which 4 were kept.
//! let mut file = pcap::encode_header(4, 1, None).to_vec();
//! file.extend(pcap::encode_record_header(1_700_000_000_000_000_001, 4, 60));
//! file.extend([1, 2, 3, 4]);
//!
//! let mut reader = PacketReader::new(&file[..])?;
//! while let Some(packet) = reader.next()? {
//!     assert_eq!((packet.ns, packet.len), (1_700_000_000_000_000_001, 60));
//!     assert_eq!(packet.bytes, [1, 2, 3, 4]);
//! }
//! # Ok::<(), wqcap_files::read::ReadError>(())
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`format`](mod@format) | constants, encoders and decoders of pcap and pcapng, for readers and writers |
//! | [`name`], [`folder`] | make names of capture files, also by a template, and recognise them; list those in a folder; how far each is on its way to an object store |
//! | [`open`] | opens files where other users may place files: regular ones, without waiting, within limits |
//! | [`sealed`] | encrypts finished files, so that any part of one can be read |
//! | [`read`] | reads files as they are found: any byte order and resolution, zstd and LZ4, torn or damaged; tells captures of wqcap's from others |
//! | [`merge`] | merges files into one, by time |
//! | [`index`] | keeps for each file which times and flows are in which part of it |
//! | [`anonymize`] | replaces addresses in frames, and cuts off what may hold more of them |
//! | [`extract`] | takes the frames of a time and a filter out of a folder |
//! | [`pin`] | holds files of a folder, so that retention does not delete them |
//! | [`recover`] | finishes files that a crash left open |
//!
//! `examples/contents.rs` prints what is in a file.
//!
//! # Invariants
//!
//! Each module uses only those above it in the table. The crate builds and is tested where no NIC library is installed;
//! the one foreign library it needs is libpcap, which compiles filters. No input panics. Memory is
//! bounded by a record, not by a file.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod anonymize;
pub mod extract;
pub mod file_list;
#[cfg(test)]
mod fixtures;
pub mod folder;
pub mod format;
pub mod index;
pub mod merge;
pub mod name;
pub mod open;
pub mod pin;
pub mod read;
pub mod recover;
pub mod sealed;
