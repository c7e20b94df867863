//! What tells flows apart.

use crate::frame::{FiveTuple, FlowKey, Headers};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A flow: the innermost packet's ends, lower one first, in the VLANs of the outermost Ethernet header and the network
/// of the tunnel. Frames without IP are keyed by their MAC addresses, with the ethertype in place of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) ends: FiveTuple,
    pub(crate) vlans: [u16; 2],
    /// VXLAN or Geneve network identifier, which has 24 bits; [`Key::NO_NETWORK`]: none. Tenants may use the same
    /// addresses.
    pub(crate) network: u32,
}

impl Key {
    /// In place of a network identifier.
    pub(crate) const NO_NETWORK: u32 = u32::MAX;

    /// Of a frame with these headers, its ends as they stand in the frame where it has IP: see [`Key::order`]. And whether
    /// it went from the lower end to the other, as far as that is settled.
    #[inline]
    pub(crate) fn of(frame: &[u8], outer: &Headers, inner: &Headers) -> (Self, bool) {
        let (ends, upward) = if inner.tuple.version == 0 {
            // Lower means the lower MAC address.
            let upward = frame.get(6..12) <= frame.get(..6);
            (FlowKey::of(frame, inner).ends, upward)
        } else {
            (inner.tuple.fresh_copy(), true)
        };
        let key = Self {
            ends,
            vlans: [0, 1].map(|i| outer.tags.id(i).unwrap_or(FlowKey::UNTAGGED)),
            network: inner.segment.unwrap_or(Self::NO_NETWORK),
        };
        (key, upward)
    }

    /// Puts the lower end first; false: it was the other.
    #[inline]
    pub(crate) fn order(&mut self) -> bool {
        let (ends, upward) = self.ends.ordered();
        self.ends = ends;
        upward
    }

    /// Spreads keys over a table. The seed keeps a sender from choosing flows that fall together.
    #[inline]
    pub(crate) fn hash(&self, seed: u64) -> u32 {
        let ends = &self.ends;
        // In one piece, since bytes that are written one by one are slow to read as words.
        let rest = u128::from(ends.src_port) << 112
            | u128::from(ends.dst_port) << 96
            | u128::from(ends.protocol) << 72
            | u128::from(ends.version) << 64
            | u128::from(self.vlans[0]) << 48
            | u128::from(self.vlans[1]) << 32
            | u128::from(self.network);
        let mut bytes = [0; 48];
        bytes[..16].copy_from_slice(&ends.src_bytes());
        bytes[16..32].copy_from_slice(&ends.dst_bytes());
        bytes[32..].copy_from_slice(&rest.to_ne_bytes());
        // Half of the hash is enough.
        xxh3_64_with_seed(&bytes, seed) as u32
    }
}
