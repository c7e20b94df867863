//! Flow keys, which identify the flow to which a frame belongs.

mod community;

pub use community::{NoCommunityId, check_community_id, community_id};

use crate::{
    headers::{FiveTuple, Headers},
    link::Ethernet,
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Key of a bidirectional flow: the 5-tuple with the lower endpoint first, and the VLANs of the
/// frame. Frames without IP are keyed by their MAC addresses and ethertype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// 5-tuple of a flow whose source is the lower of the two (address, port) pairs.
    pub ends: FiveTuple,
    /// VLAN identifiers of the two outermost tags of a flow; [`FlowKey::UNTAGGED`] for a missing
    /// tag.
    pub vlans: [u16; 2],
}

impl FlowKey {
    /// Value of [`FlowKey::vlans`] for a missing VLAN tag.
    pub const UNTAGGED: u16 = 0xffff;

    /// Returns the flow key of a frame from its parsed headers.
    #[must_use]
    pub fn from_headers(frame: &[u8], headers: &Headers) -> Self {
        Self {
            ends: ends(frame, headers),
            vlans: [0, 1].map(|i| headers.tags.id(i).unwrap_or(Self::UNTAGGED)),
        }
    }

    /// Returns a hash of the flow's endpoints that distributes flows over threads.
    ///
    /// Both directions and all VLANs of a flow have equal hashes. Fragments are hashed by addresses
    /// and protocol only, so all fragments of a datagram have equal hashes.
    #[must_use]
    pub fn spread(frame: &[u8], headers: &Headers) -> u64 {
        let mut ends = ends(frame, headers);
        if headers.fragment.is_fragment() {
            (ends.src_port, ends.dst_port) = (0, 0);
        }
        hash(&ends)
    }
}

/// Returns a frame's 5-tuple with the lower endpoint first, or a substitute for frames without IP.
#[inline]
fn ends(frame: &[u8], headers: &Headers) -> FiveTuple {
    if headers.tuple.version == 0 {
        return without_ip(frame, headers);
    }
    headers.tuple.ordered().0
}

/// Returns a substitute for the 5-tuple of a frame without IP: MAC addresses as addresses, and the
/// ethertype as ports.
#[cold]
fn without_ip(frame: &[u8], headers: &Headers) -> FiveTuple {
    let mut tuple = headers.tuple;
    if let Ok(ethernet) = Ethernet::new(frame) {
        tuple.src[..6].copy_from_slice(&ethernet.src());
        tuple.dst[..6].copy_from_slice(&ethernet.dst());
        (tuple.src_port, tuple.dst_port) = (headers.ethertype, headers.ethertype);
    }
    tuple.ordered().0
}

fn hash(ends: &FiveTuple) -> u64 {
    let rest = u64::from(ends.src_port) << 48
        | u64::from(ends.dst_port) << 32
        | u64::from(ends.protocol) << 8
        | u64::from(ends.version);
    let mut bytes = [0; 40];
    bytes[..16].copy_from_slice(&ends.src);
    bytes[16..32].copy_from_slice(&ends.dst);
    bytes[32..].copy_from_slice(&rest.to_be_bytes());
    xxh3_64_with_seed(&bytes, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(src: u8, dst: u8, sport: u16, dport: u16, fragment: u16) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame[5] = dst;
        frame[11] = src;
        frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 0, 0, 1]);
        frame.extend_from_slice(&fragment.to_be_bytes());
        frame.extend_from_slice(&[64, 17, 0, 0, 10, 0, 0, src, 10, 0, 0, dst]);
        frame.extend_from_slice(&sport.to_be_bytes());
        frame.extend_from_slice(&dport.to_be_bytes());
        frame.extend_from_slice(&[0; 4]);
        frame
    }

    fn key(frame: &[u8]) -> FlowKey {
        FlowKey::from_headers(frame, &Headers::parse(frame))
    }

    fn spread(frame: &[u8]) -> u64 {
        FlowKey::spread(frame, &Headers::parse(frame))
    }

    #[test]
    fn both_directions_are_one_flow() {
        let (there, back) = (frame(1, 2, 53, 9999, 0), frame(2, 1, 9999, 53, 0));
        assert_eq!(key(&there), key(&back));
        assert_eq!(spread(&there), spread(&back));
        assert_eq!(key(&there).ends, Headers::parse(&there).tuple);
        assert_ne!(key(&there).ends, Headers::parse(&back).tuple);
        let other = frame(1, 2, 54, 9999, 0);
        assert_ne!(key(&there), key(&other));
        assert_ne!(spread(&there), spread(&other));
        assert_eq!(Headers::parse(&there).tuple.fresh_copy(), key(&there).ends);
        // Both endpoints have one address, so the ports decide the order.
        assert_eq!(key(&frame(1, 1, 5, 6, 0)), key(&frame(1, 1, 6, 5, 0)));
    }

    #[test]
    fn fragments_of_a_datagram_have_one_hash() {
        let first = frame(1, 2, 53, 9999, 0x2000);
        let last = frame(1, 2, 0x6162, 0x6364, 0x0010);
        assert_eq!(spread(&first), spread(&last));
        assert_ne!(key(&first), key(&last));
    }

    #[test]
    fn frames_without_ip_are_keyed_by_mac_addresses() {
        let arp = |src: u8, dst: u8| {
            let mut arp = frame(src, dst, 0, 0, 0);
            arp[13] = 6;
            arp
        };
        assert_eq!(key(&arp(1, 2)), key(&arp(2, 1)));
        assert_ne!(key(&arp(1, 2)), key(&arp(1, 3)));
        assert_ne!(spread(&arp(1, 2)), spread(&arp(1, 3)));
        assert_eq!(key(&[]), key(&[1, 2, 3]));
    }
}
