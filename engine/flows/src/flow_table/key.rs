//! Key of a flow (addresses, ports, VLANs, tunnel), and the secret hash that spreads keys over a
//! table.

use foldhash::{SharedSeed, fast::FoldHasher};
use std::{
    hash::{BuildHasher, Hash, Hasher, RandomState},
    hint::select_unpredictable,
    sync::LazyLock,
};
use wqcap_frame::{FiveTuple, FlowKey, Headers};

/// Flow key: the innermost packet's ends, lower one first, the VLANs of the outermost Ethernet
/// header, and the tunnel's network identifier. Frames without IP are keyed by their MAC addresses,
/// with the ethertype instead of ports.
///
/// A key is six words: it is compared and hashed for every frame, and split into fields only for a
/// record.
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct Key {
    /// Addresses of the flow's ends as numbers in native byte order: the lower half, then the upper
    /// half.
    ends: [[u64; 2]; 2],
    /// Transport part of the flow key. Bits 63 to 32: the ports of both ends; bits 15 to 0:
    /// protocol and IP version.
    transport: u64,
    /// Network part of the flow key. Bits 63 to 32: two VLAN identifiers; bits 31 to 0: the
    /// tunnel's network identifier.
    network: u64,
}

/// Bit offset of the ports in the flow key's `transport`.
const PORTS: u32 = 32;
/// Bit offset of the protocol in the flow key's `transport`.
const PROTOCOL: u32 = 8;

/// Short form of a flow key: complete for IPv4. For other flow keys the addresses are mixed, so
/// that different flows may share a short form. It is packed so that two more bytes fit into three
/// words.
#[cfg(any(test, feature = "records"))]
#[derive(Clone, Copy, Debug, Eq)]
#[repr(C, packed(2))]
pub struct ShortKey {
    /// IPv4 addresses of the flow's ends; for other flow keys a mix of the addresses.
    pair: u64,
    network: u64,
    ports: u32,
    /// Protocol and IP version of the flow that the short key identifies.
    kind: u16,
}

#[cfg(any(test, feature = "records"))]
impl PartialEq for ShortKey {
    /// Compares all fields of two short flow keys without branches: which field differs is
    /// unpredictable.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        (self.pair == other.pair)
            & (self.network == other.network)
            & (self.ports == other.ports)
            & (self.kind == other.kind)
    }
}

impl PartialEq for Key {
    /// Compares two flow keys word by word, as they are written. A wider read of a new key would
    /// wait until the key is in the cache, since processors forward from the store buffer only to
    /// reads that lie within one store.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let ([a, b], [c, d]) = (self.ends, other.ends);
        (self.transport == other.transport)
            & (a[0] == c[0])
            & (a[1] == c[1])
            & (b[0] == d[0])
            & (b[1] == d[1])
            & (self.network == other.network)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.ends, self.transport, self.network).hash(state);
    }
}

fn halves(number: u128) -> [u64; 2] {
    [number as u64, (number >> 64) as u64]
}

fn whole([lower, upper]: [u64; 2]) -> u128 {
    u128::from(upper) << 64 | u128::from(lower)
}

impl Key {
    /// Value for flow keys without a tunnel's network identifier.
    const NO_NETWORK: u32 = u32::MAX;

    /// Returns the flow key of a frame, and `true` if the frame went from the flow's lower end
    /// (address and port) to its upper one. With IP, the ends are in the order of the frame; call
    /// [`Key::order`] then.
    #[inline]
    pub fn from_headers(frame: &[u8], outer: &Headers, inner: &Headers) -> (Self, bool) {
        let (ends, upward) = if inner.tuple.version == 0 {
            // The lower end is the lower MAC address.
            let upward = frame.get(6..12) <= frame.get(..6);
            (FlowKey::from_headers(frame, inner).ends, upward)
        } else {
            (inner.tuple.fresh_copy(), true)
        };
        let vlans = [0, 1].map(|i| outer.tags.id(i).unwrap_or(FlowKey::UNTAGGED));
        (Self::new(&ends, vlans, inner.segment), upward)
    }

    /// Creates a flow key with the ends in the order of `ends`, the VLANs and the tunnel's network
    /// identifier.
    #[inline]
    pub fn new(ends: &FiveTuple, vlans: [u16; 2], network: Option<u32>) -> Self {
        let addresses = [ends.src_bytes(), ends.dst_bytes()];
        Self {
            ends: addresses.map(|it| halves(u128::from_be_bytes(it))),
            transport: u64::from(ends.src_port) << 48
                | u64::from(ends.dst_port) << PORTS
                | u64::from(ends.protocol) << PROTOCOL
                | u64::from(ends.version),
            network: u64::from(vlans[0]) << 48
                | u64::from(vlans[1]) << 32
                | u64::from(network.unwrap_or(Self::NO_NETWORK)),
        }
    }

    /// Moves the lower of the flow key's two ends to the first place; returns `false` if the ends
    /// were exchanged.
    #[inline]
    pub fn order(&mut self) -> bool {
        let [src, dst] = self.ends.map(whole);
        let ports = (self.transport >> PORTS) as u32;
        let is_ordered = (src < dst) | ((src == dst) & (ports >> 16 <= ports & 0xffff));
        // The direction is unpredictable: a branch would be mispredicted half of the time.
        let lower = |a, b| select_unpredictable(is_ordered, a, b);
        self.ends = [lower(src, dst), lower(dst, src)].map(halves);
        let ports = select_unpredictable(is_ordered, ports, ports.rotate_left(16));
        self.transport = self.transport & ((1 << PORTS) - 1) | u64::from(ports) << PORTS;
        is_ordered
    }

    /// Returns the 32-bit hash of the flow key, computed with a secret seed.
    #[inline]
    pub fn hash(&self, seed: HashSeed) -> u32 {
        let mut hasher = FoldHasher::with_seed(seed.first, seed.shared);
        for word in self.ends.as_flattened() {
            hasher.write_u64(*word);
        }
        hasher.write_u64(self.transport);
        hasher.write_u64(self.network);
        // Half of the hash is enough.
        hasher.finish() as u32
    }
}

/// Short form and fields of a flow key, for flow records.
#[cfg(any(test, feature = "records"))]
impl Key {
    /// Returns the short form of the flow key, which is complete for IPv4.
    #[inline]
    pub fn short(&self) -> ShortKey {
        // An IPv4 address is a number's upper four bytes, and the lower half is 0.
        let [lower, higher] = self.ends.map(|[lower, upper]| lower ^ upper);
        ShortKey {
            pair: lower ^ higher.rotate_left(32),
            network: self.network,
            ports: (self.transport >> PORTS) as u32,
            kind: self.transport as u16,
        }
    }

    /// Returns `true` if the flow key's short form is complete, because the flow key is of IPv4.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.transport as u8 == 4
    }

    /// Returns the addresses of the flow's ends, which complete an incomplete short flow key.
    #[inline]
    pub fn addresses(&self) -> [[u64; 2]; 2] {
        self.ends
    }

    /// Creates a flow key from its short form and the addresses of both ends.
    pub fn with_addresses(short: ShortKey, ends: [[u64; 2]; 2]) -> Self {
        Self {
            ends,
            transport: u64::from(short.ports) << PORTS | u64::from(short.kind),
            network: short.network,
        }
    }

    /// Returns both ends (addresses and ports) of the flow, the lower one first.
    pub fn ends(&self) -> FiveTuple {
        let [src, dst] = self.ends.map(|it| whole(it).to_be_bytes());
        let ports = [48, PORTS].map(|at| (self.transport >> at) as u16);
        let [protocol, version] = [PROTOCOL, 0].map(|at| (self.transport >> at) as u8);
        FiveTuple::from_parts([src, dst], ports, protocol, version)
    }

    /// Returns the flow's VLAN identifiers, [`FlowKey::UNTAGGED`] for a missing one.
    pub fn vlans(&self) -> [u16; 2] {
        [48, 32].map(|at| (self.network >> at) as u16)
    }

    /// Returns the flow's VXLAN or Geneve network identifier, which has 24 bits. Different networks
    /// may use the same addresses.
    pub fn network(&self) -> Option<u32> {
        let network = self.network as u32;
        (network != Self::NO_NETWORK).then_some(network)
    }
}

/// Flow key and hash of a frame, with the frame's direction and TCP flags.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowPlace {
    /// Flow key of the frame, with the flow's lower end first.
    pub key: Key,
    /// Hash of the frame's flow key, computed with the secret seed.
    pub hash: u32,
    /// `true` if the frame went from the flow's lower end (address and port) to its upper one.
    pub upward: bool,
    /// TCP control bits (flags) of the frame.
    pub tcp_flags: u8,
}

impl FlowPlace {
    /// Sets the flow key, its hash and the direction of a frame with the headers `outer` and
    /// `inner`. The function writes in place and is not inlined: a copy would wait for the words
    /// just written. `seed` comes from [`hash_seed`].
    #[inline(never)]
    pub fn set(&mut self, frame: &[u8], outer: &Headers, inner: &Headers, seed: HashSeed) {
        let (mut key, upward) = Key::from_headers(frame, outer, inner);
        let is_ordered = key.order();
        self.key = key;
        self.hash = key.hash(seed);
        self.upward = is_ordered && upward;
        self.tcp_flags = inner.tcp_flags(frame);
    }
}

/// Secret seed of the flow key hash, so that a sender cannot choose flows that collide. Both
/// factors of each multiplication are secret: with a known factor, a sender could choose words that
/// cancel the other one.
#[derive(Clone, Copy)]
pub struct HashSeed {
    first: u64,
    shared: &'static SharedSeed,
}

/// Returns the hash seed of all flow tables. They share it, so that the flow key of a frame is
/// hashed once.
pub fn hash_seed() -> HashSeed {
    static SEED: LazyLock<(u64, SharedSeed)> = LazyLock::new(|| {
        let secret = RandomState::new();
        let shared = SharedSeed::from_u64(secret.hash_one(1));
        (secret.hash_one(0), shared)
    });
    let (first, shared) = &*SEED;
    HashSeed {
        first: *first,
        shared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn flows_chosen_for_the_librarys_fixed_seed_do_not_collide() {
        // Default factor of the library (its `SharedSeed::global_fixed`).
        const KNOWN: u64 = 0xc0ac_29b7_c97c_50dd;
        for end in 0..2 {
            let hashes: HashSet<u32> = (0..1000)
                .map(|n| {
                    let mut key = Key::default();
                    key.ends[end] = [n, KNOWN];
                    key.hash(hash_seed())
                })
                .collect();
            assert!(hashes.len() > 990, "{} of 1000", hashes.len());
        }
    }
}
