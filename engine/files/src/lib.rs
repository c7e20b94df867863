//! Capture files: pcap and pcapng formats, reading, merging, indexing, extraction and recovery. The
//! crate needs no NIC.
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
//! | module | purpose |
//! |---|---|
//! | [`format`](mod@format), [`link`] | those of `wqcap-pcap`: constants, encoders and decoders of pcap and pcapng; Ethernet frames for other link types |
//! | [`name`], [`folder`] | build and recognise names of capture files, also by a template; list the files of a folder; open files that other users may have placed there: regular files only, without blocking, within size limits; read each file's delivery state |
//! | [`sealed`] | encrypts finished files; any part of one can be read without the parts before it |
//! | [`read`] | opens files for the reader of `wqcap-pcap`, whole or in part; recognises captures, and those of wqcap |
//! | [`merge`] | merges files into one, by time |
//! | [`index`] | records for each file which times and flows are in which part |
//! | [`anonymize`] | replaces addresses in frames, and cuts off bytes that may hold further addresses |
//! | [`extract`] | copies the frames that match a time range and a filter out of a folder or a file |
//! | [`pin`] | protects files of a folder from retention |
//! | [`recover`] | finishes files that a crash left open |
//!
//! `examples/contents.rs` prints the contents of a file.
//!
//! # Invariants
//!
//! Each module uses only those above it in the table. The crate builds and is tested on machines
//! without a NIC library. Its one foreign library is libpcap, which compiles filters. No input
//! causes a panic. Memory is bounded by the size of a record, not by the size of a file.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod anonymize;
pub mod extract;
#[cfg(test)]
mod fixtures;
pub mod folder;
pub mod index;
pub mod merge;
pub mod name;
pub mod pin;
pub mod read;
pub mod recover;
pub mod sealed;

pub use wqcap_pcap::{format, link};
