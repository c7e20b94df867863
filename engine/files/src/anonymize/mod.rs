//! Anonymization of frames: addresses are replaced, and bytes that are not recognised are removed.
//!
//! ```text
//! frame -> walk over the headers: replace addresses, extend the kept part -> update checksums,
//! innermost first -> cut
//! ```
//!
//! | module | task |
//! |---|---|
//! | `address`, `mac` | replacement of IP and MAC addresses |
//! | `walk`, `network`, `control` | walk over the headers: link and tunnels; IP and transports; ARP, ICMP and ICMPv6 |
//! | `options` | options of IP, TCP and neighbour discovery |
//! | `checksum` | update of checksums |
//!
//! May import: the parsers of `wqcap-frame`.
//!
//! Invariants: the output contains only bytes that the walk has recognised, and payload bytes that
//! the query requests. The walk parses the original frame, never replaced bytes. The work per frame
//! is bounded as in `wqcap-frame`. No input causes a panic.

mod address;
mod checksum;
mod control;
mod mac;
mod network;
mod options;
#[cfg(test)]
mod tests;
mod walk;

use crate::sealed::SecretKey;
use address::AddressCipher;
use checksum::Checksum;
use mac::MacCipher;
use serde::Serialize;
use walk::Walk;
use wqcap_frame::Slice;

/// Parameters of an anonymization: secret key, and part of each frame to keep.
#[derive(Clone, Debug)]
pub struct AnonymizeParams {
    /// Secret key of the anonymization. With equal keys, an address always has the same
    /// replacement.
    pub key: SecretKey,
    /// Part of a frame that the anonymizer keeps. [`Slice::Whole`] keeps all recognised headers and
    /// no payload. [`Slice::Payload`] keeps bytes of the payload unchanged.
    pub slice: Slice,
}

impl AnonymizeParams {
    /// Returns a text that differs for other parameters and for other versions of this program. Equal
    /// files and equal fingerprints yield equal anonymized files.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let slice = String::from(self.slice);
        let version = env!("CARGO_PKG_VERSION");
        self.key
            .fingerprint(&format!("anonymize {version} {slice}"))
    }
}

/// Counts of the anonymizer's changes to frames, besides replaced addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AnonymizeCounts {
    /// Number of frames from which the anonymizer removed bytes.
    pub frames_cut: u64,
    /// Number of bytes that the anonymizer removed from frames.
    pub bytes_cut: u64,
    /// Number of header options that the anonymizer overwrote because they may contain addresses.
    pub options_overwritten: u64,
    /// Number of anonymized frames with unchanged payload bytes.
    pub frames_with_payload: u64,
}

/// Ciphers that replace IP and MAC addresses.
struct Ciphers {
    /// Cipher that replaces IP addresses.
    addresses: AddressCipher,
    /// Cipher that replaces MAC addresses.
    macs: MacCipher,
}

/// Anonymizer of frames: replaces addresses and removes payload.
///
/// ```
/// use wqcap_files::{anonymize::{AnonymizeParams, Anonymizer}, sealed::SecretKey};
/// use wqcap_frame::{Headers, Slice};
///
/// // 10.0.0.1:4660 > 10.0.0.2:53, UDP, and 5 bytes of payload.
/// let mut frame = vec![0; 47];
/// frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 33, 0, 0, 0, 0, 64, 17]);
/// frame[26..38].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 53]);
/// frame[39] = 13;
///
/// let key = SecretKey::new(&[7; 32]);
/// let slice = Slice::Whole;
/// let mut anonymizer = Anonymizer::new(&AnonymizeParams { key, slice });
/// let anonymized = anonymizer.frame(&frame, 47);
/// let (was, is) = (Headers::parse(&frame).tuple, Headers::parse(anonymized).tuple);
/// assert_eq!((anonymized.len(), is.dst_port), (42, 53));
/// assert_ne!(was.src(), is.src());
/// ```
pub struct Anonymizer {
    /// Ciphers that replace addresses, made from the secret key.
    ciphers: Ciphers,
    /// Part of each frame that the anonymizer keeps.
    slice: Slice,
    /// Buffer of the anonymized frame.
    frame: Vec<u8>,
    /// Checksums to update in the current frame, outermost first.
    checksums: Vec<Checksum>,
    /// Counts of the anonymizer's changes to all frames so far.
    done: AnonymizeCounts,
}

impl Anonymizer {
    /// Creates an anonymizer with a secret key and the part of each frame to keep.
    #[must_use]
    pub fn new(query: &AnonymizeParams) -> Self {
        let ciphers = Ciphers {
            addresses: AddressCipher::new(&query.key),
            macs: MacCipher::new(&query.key),
        };
        Self {
            ciphers,
            slice: query.slice,
            frame: Vec::new(),
            checksums: Vec::new(),
            done: AnonymizeCounts::default(),
        }
    }

    /// Returns the anonymized form of an Ethernet frame; `len` is its length on the wire.
    pub fn frame(&mut self, frame: &[u8], len: u32) -> &[u8] {
        self.frame.clear();
        self.frame.extend_from_slice(frame);
        self.checksums.clear();
        let whole = frame.len() >= len as usize;
        let mut walk = Walk::new(
            &self.ciphers,
            self.slice,
            frame,
            &mut self.frame,
            &mut self.checksums,
            whole,
        );
        let end = walk.run();
        self.done.options_overwritten += walk.options_overwritten;
        self.done.frames_with_payload += u64::from(walk.has_payload);
        // Inner checksums are updated before the outer ones that cover them.
        for checksum in self.checksums.iter().rev() {
            checksum.update(frame, &mut self.frame);
        }
        self.frame.truncate(end);
        let cut = frame.len() - self.frame.len();
        self.done.frames_cut += u64::from(cut > 0);
        self.done.bytes_cut += cut as u64;
        &self.frame
    }

    /// Returns the counts of the anonymizer's changes to all frames so far.
    #[must_use]
    pub fn done(&self) -> AnonymizeCounts {
        self.done
    }
}
