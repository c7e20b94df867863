//! Formats pcap and pcapng: encoders, decoders, and a reader of capture files of any program.
//!
//! | module | purpose |
//! |---|---|
//! | [`format`](mod@format) | constants, encoders and decoders of pcap and pcapng, for readers and writers |
//! | [`read`] | reads any version, byte order and resolution, gzip, zstd and LZ4, torn and damaged files |
//! | [`link`] | Ethernet frames for packets of other link types |
//! | [`name`] | names of capture files of any program, and their order |
//!
//! The tools for capture files and the software NIC share this crate, so that both read the same
//! files in the same way.
//!
//! # Invariants
//!
//! No input causes a panic. Memory is bounded by the size of a record, not by the size of a file.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod format;
pub mod link;
pub mod name;
pub mod read;
