//! Heaviest senders (talkers) of the last time window of [`WINDOW_NS`].

use super::sketch::{HeavyHitter, Sketch};
use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
};
use wqcap_frame::{Ethernet, Headers};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Length in nanoseconds of a window in which senders are counted: long enough to rank them, short
/// enough to be current.
pub(super) const WINDOW_NS: u64 = 10_000_000_000;

/// Address of a sender: the innermost packet's source address, or without IP the frame's source MAC
/// address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Address {
    bytes: [u8; 16],
    /// IP version of the sender's address; 0: the first six bytes are a MAC address.
    version: u8,
}

impl Address {
    #[inline]
    fn from_headers(frame: &[u8], inner: &Headers) -> Self {
        if inner.tuple.version != 0 {
            return Self {
                bytes: inner.tuple.src_bytes(),
                version: inner.tuple.version,
            };
        }
        let mut address = Self::default();
        if let Ok(ethernet) = Ethernet::new(frame) {
            address.bytes[..6].copy_from_slice(&ethernet.src());
        }
        address
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, ..] = self.bytes;
        match self.version {
            4 => Ipv4Addr::new(a, b, c, d).fmt(f),
            6 => Ipv6Addr::from(self.bytes).fmt(f),
            _ => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
        }
    }
}

/// Heaviest senders (talkers) of one window, by bytes and by frames.
#[derive(Clone, Debug, Default)]
pub(super) struct Talkers {
    by_bytes: Sketch<Address>,
    by_frames: Sketch<Address>,
    /// Number of the window of [`WINDOW_NS`] in which senders are counted, from 0 at the first
    /// frame.
    pub(super) window: u64,
    /// Length in nanoseconds of the part of the window in which senders were counted.
    pub(super) over_ns: u64,
}

impl Talkers {
    /// Counts a frame for its sender, which the source address identifies. `seed` is secret, so that
    /// senders cannot choose addresses that share the counters of another sender.
    #[inline]
    pub(super) fn count(&mut self, frame: &[u8], inner: &Headers, len: u32, seed: u64) {
        let address = Address::from_headers(frame, inner);
        let hash = xxh3_64_with_seed(&address.bytes, seed ^ u64::from(address.version));
        self.by_bytes.add(hash, &address, u64::from(len).max(1));
        self.by_frames.add(hash, &address, 1);
    }

    /// Clears the counters of senders and starts the window with the number `window`.
    pub(super) fn restart(&mut self, window: u64) {
        self.by_bytes.clear();
        self.by_frames.clear();
        (self.window, self.over_ns) = (window, 0);
    }

    /// Copies the heaviest senders of `other` without allocating.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.by_bytes.copy_from(&other.by_bytes);
        self.by_frames.copy_from(&other.by_frames);
        (self.window, self.over_ns) = (other.window, other.over_ns);
    }

    pub(super) fn by_bytes(&self) -> impl Iterator<Item = &HeavyHitter<Address>> {
        self.by_bytes.counters()
    }

    pub(super) fn by_frames(&self) -> impl Iterator<Item = &HeavyHitter<Address>> {
        self.by_frames.counters()
    }
}
