//! What tells flows apart.

use crate::frame::{FiveTuple, FlowKey, Headers};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A flow: the innermost packet's ends, lower one first, in the VLANs of the outermost Ethernet header and the network
/// of the tunnel. Frames without IP are keyed by their MAC addresses, with the ethertype in place of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) ends: FiveTuple,
    pub(super) vlans: [u16; 2],
    /// VXLAN or Geneve network identifier, which has 24 bits; [`Key::NO_NETWORK`]: none. Tenants may use the same
    /// addresses.
    pub(super) network: u32,
}

impl Key {
    /// In place of a network identifier.
    pub(super) const NO_NETWORK: u32 = u32::MAX;

    /// Of a frame with these headers, and whether it went from the lower end to the other.
    #[inline]
    pub(super) fn of(frame: &[u8], outer: &Headers, inner: &Headers) -> (Self, bool) {
        let FlowKey { ends, .. } = FlowKey::of(frame, inner);
        let key = Self {
            ends,
            vlans: [0, 1].map(|i| outer.tags.id(i).unwrap_or(FlowKey::UNTAGGED)),
            network: inner.segment.unwrap_or(Self::NO_NETWORK),
        };
        let upward = if inner.tuple.version == 0 {
            // Lower means the lower MAC address.
            frame.get(6..12) <= frame.get(..6)
        } else {
            ends == inner.tuple
        };
        (key, upward)
    }

    /// Spreads keys over a table. The seed keeps a sender from choosing flows that fall together.
    #[inline]
    pub(super) fn hash(&self, seed: u64) -> u32 {
        let ends = &self.ends;
        let mut bytes = [0; 46];
        bytes[..16].copy_from_slice(&ends.src_bytes());
        bytes[16..32].copy_from_slice(&ends.dst_bytes());
        bytes[32..34].copy_from_slice(&ends.src_port.to_ne_bytes());
        bytes[34..36].copy_from_slice(&ends.dst_port.to_ne_bytes());
        bytes[36..38].copy_from_slice(&[ends.protocol, ends.version]);
        bytes[38..40].copy_from_slice(&self.vlans[0].to_ne_bytes());
        bytes[40..42].copy_from_slice(&self.vlans[1].to_ne_bytes());
        bytes[42..].copy_from_slice(&self.network.to_ne_bytes());
        // Half of the hash is enough.
        xxh3_64_with_seed(&bytes, seed) as u32
    }
}
