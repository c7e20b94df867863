//! Frames for the eyes of others: addresses replaced, and everything cut off that is not understood.
//!
//! ```text
//! frame -> walk, header by header: addresses replaced, bytes that are understood counted in -> checksums, from the inside out -> cut
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `address`, `mac` | what stands in place of an address |
//! | `walk`, `network`, `control` | the way through a frame: link and tunnels; IP and transports; ARP, ICMP and ICMPv6 |
//! | `options` | options of IP, TCP and neighbour discovery |
//! | `checksum` | mending checksums |
//!
//! May import: the parsers of `wqcap-frame`.
//!
//! Invariants: the walk tells which bytes it has understood, and no other byte of a frame is in what comes out, but for the
//! payload that was asked for. All parsing is of the frame as it was, never of what was replaced. The work on a frame
//! is bounded as it is in `wqcap-frame`. No input panics.

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

/// How frames are anonymized.
#[derive(Clone, Debug)]
pub struct AnonymizeQuery {
    /// The same key replaces an address by the same other one.
    pub key: SecretKey,
    /// How much is kept. [`Slice::Whole`]: all that is understood, which is no payload. [`Slice::Payload`] keeps bytes
    /// of payload as they are.
    pub slice: Slice,
}

/// What was done besides replacing addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Anonymized {
    /// Frames of which a part was cut off.
    pub frames_cut: u64,
    /// Bytes that were cut off.
    pub bytes_cut: u64,
    /// Options of headers that were overwritten, since they are not known to be without addresses.
    pub options_overwritten: u64,
    /// Frames that have bytes of payload, as they were.
    pub frames_with_payload: u64,
}

/// What replaces addresses.
struct Ciphers {
    addresses: AddressCipher,
    macs: MacCipher,
}

/// Anonymizes one frame after the other.
///
/// ```
/// use wqcap_files::{anonymize::{AnonymizeQuery, Anonymizer}, sealed::SecretKey};
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
/// let mut anonymizer = Anonymizer::new(&AnonymizeQuery { key, slice });
/// let anonymized = anonymizer.frame(&frame, 47);
/// let (was, is) = (Headers::parse(&frame).tuple, Headers::parse(anonymized).tuple);
/// assert_eq!((anonymized.len(), is.dst_port), (42, 53));
/// assert_ne!(was.src(), is.src());
/// ```
pub struct Anonymizer {
    ciphers: Ciphers,
    slice: Slice,
    frame: Vec<u8>,
    checksums: Vec<Checksum>,
    done: Anonymized,
}

impl Anonymizer {
    /// With a key and a slice.
    #[must_use]
    pub fn new(query: &AnonymizeQuery) -> Self {
        let ciphers = Ciphers {
            addresses: AddressCipher::new(&query.key),
            macs: MacCipher::new(&query.key),
        };
        Self {
            ciphers,
            slice: query.slice,
            frame: Vec::new(),
            checksums: Vec::new(),
            done: Anonymized::default(),
        }
    }

    /// What comes in place of an Ethernet frame that had `len` bytes on the wire.
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
        // What is inside is mended before what is around it.
        for checksum in self.checksums.iter().rev() {
            checksum.mend(frame, &mut self.frame);
        }
        self.frame.truncate(end);
        let cut = frame.len() - self.frame.len();
        self.done.frames_cut += u64::from(cut > 0);
        self.done.bytes_cut += cut as u64;
        &self.frame
    }

    /// What has been done so far.
    #[must_use]
    pub fn done(&self) -> Anonymized {
        self.done
    }
}
