//! What tells flows apart.

use foldhash::{SharedSeed, fast::FoldHasher};
use std::{
    hash::{BuildHasher, Hash, Hasher, RandomState},
    hint::select_unpredictable,
    sync::LazyLock,
};
use wqcap_frame::{FiveTuple, FlowKey, Headers};

/// A flow: the innermost packet's ends, lower one first, in the VLANs of the outermost Ethernet header and the network
/// of the tunnel. Frames without IP are keyed by their MAC addresses, with the ethertype in place of ports.
///
/// It is six words, since it is compared and hashed for every frame, and read apart only for a record.
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct Key {
    /// Addresses, as numbers in the machine's byte order: the lower half, then the upper.
    ends: [[u64; 2]; 2],
    /// From the highest bit on: the ports of both (16 bits each); in the lowest 16, protocol and version.
    transport: u64,
    /// From the highest bit on: two VLANs (16 bits each), the network.
    network: u64,
}

/// Where in `transport` the ports begin, and the protocol.
const PORTS: u32 = 32;
const PROTOCOL: u32 = 8;

/// A key in few bytes: all of it for IPv4. Of others the addresses are mixed, so that different flows may share one. Packed, so
/// that two bytes more fit three words.
#[cfg(any(test, feature = "records"))]
#[derive(Clone, Copy, Debug, Eq)]
#[repr(C, packed(2))]
pub struct ShortKey {
    /// The addresses of IPv4, or those of others, mixed.
    pair: u64,
    network: u64,
    ports: u32,
    /// Protocol and version.
    kind: u16,
}

#[cfg(any(test, feature = "records"))]
impl PartialEq for ShortKey {
    /// All at once: which of them differs is chance.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        (self.pair == other.pair)
            & (self.network == other.network)
            & (self.ports == other.ports)
            & (self.kind == other.kind)
    }
}

impl PartialEq for Key {
    /// Word by word, as keys are written: wider reads of a key that has just been made would wait until it is in the cache,
    /// since processors forward what is in a store's buffer only to reads that lie within one store.
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
    /// In place of a network identifier.
    const NO_NETWORK: u32 = u32::MAX;

    /// Of a frame with these headers, its ends as they stand in the frame where it has IP: see [`Key::order`]. And whether
    /// it went from the lower end to the other, as far as that is settled.
    #[inline]
    pub fn of(frame: &[u8], outer: &Headers, inner: &Headers) -> (Self, bool) {
        let (ends, upward) = if inner.tuple.version == 0 {
            // Lower means the lower MAC address.
            let upward = frame.get(6..12) <= frame.get(..6);
            (FlowKey::of(frame, inner).ends, upward)
        } else {
            (inner.tuple.fresh_copy(), true)
        };
        let vlans = [0, 1].map(|i| outer.tags.id(i).unwrap_or(FlowKey::UNTAGGED));
        (Self::new(&ends, vlans, inner.segment), upward)
    }

    /// Of these ends, in the order in which they stand.
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

    /// Puts the lower end first; false: it was the other.
    #[inline]
    pub fn order(&mut self) -> bool {
        let [src, dst] = self.ends.map(whole);
        let ports = (self.transport >> PORTS) as u32;
        let is_ordered = (src < dst) | ((src == dst) & (ports >> 16 <= ports & 0xffff));
        // Which end sends is chance: a branch would be mispredicted every other time.
        let lower = |a, b| select_unpredictable(is_ordered, a, b);
        self.ends = [lower(src, dst), lower(dst, src)].map(halves);
        let ports = select_unpredictable(is_ordered, ports, ports.rotate_left(16));
        self.transport = self.transport & ((1 << PORTS) - 1) | u64::from(ports) << PORTS;
        is_ordered
    }

    /// Spreads keys over a table.
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

/// As records keep and tell it.
#[cfg(any(test, feature = "records"))]
impl Key {
    /// In few bytes.
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

    /// Whether its short form is all of it.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.transport as u8 == 4
    }

    /// The addresses, for those whose short form is not all.
    #[inline]
    pub fn addresses(&self) -> [[u64; 2]; 2] {
        self.ends
    }

    /// Of these addresses, with the rest of the short form.
    pub fn with_addresses(short: ShortKey, ends: [[u64; 2]; 2]) -> Self {
        Self {
            ends,
            transport: u64::from(short.ports) << PORTS | u64::from(short.kind),
            network: short.network,
        }
    }

    /// The ends, in their order.
    pub fn ends(&self) -> FiveTuple {
        let [src, dst] = self.ends.map(|it| whole(it).to_be_bytes());
        let ports = [48, PORTS].map(|at| (self.transport >> at) as u16);
        let [protocol, version] = [PROTOCOL, 0].map(|at| (self.transport >> at) as u8);
        FiveTuple::of_parts([src, dst], ports, protocol, version)
    }

    /// VLANs, [`FlowKey::UNTAGGED`] for none.
    pub fn vlans(&self) -> [u16; 2] {
        [48, 32].map(|at| (self.network >> at) as u16)
    }

    /// VXLAN or Geneve network identifier, which has 24 bits. Tenants may use the same addresses.
    pub fn network(&self) -> Option<u32> {
        let network = self.network as u32;
        (network != Self::NO_NETWORK).then_some(network)
    }
}

/// What a frame's flow is found by, in every table, and what it is to that flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowPlace {
    /// With its lower end first.
    pub key: Key,
    /// Of the key.
    pub hash: u32,
    /// Whether the frame went from the lower end to the other.
    pub upward: bool,
    /// Its control bits of TCP.
    pub tcp_flags: u8,
}

impl FlowPlace {
    /// Makes it that of a frame with these headers. In place and out of line, since a copy would wait for what has just been
    /// written. `seed`: [`hash_seed`].
    #[inline(never)]
    pub fn set(&mut self, frame: &[u8], outer: &Headers, inner: &Headers, seed: HashSeed) {
        let (mut key, upward) = Key::of(frame, outer, inner);
        let is_ordered = key.order();
        self.key = key;
        self.hash = key.hash(seed);
        self.upward = is_ordered && upward;
        self.tcp_flags = inner.tcp_flags(frame);
    }
}

/// What keeps a sender from choosing flows that fall together: both factors of each multiplication are secret, since words that
/// meet a known one can be chosen so that nothing is left of the other.
#[derive(Clone, Copy)]
pub struct HashSeed {
    first: u64,
    shared: &'static SharedSeed,
}

/// One for all tables, so that a frame's key is hashed once.
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
    fn a_sender_who_knows_the_library_finds_no_flows_that_fall_together() {
        // What the library multiplies by unless it is told otherwise (its `SharedSeed::global_fixed`).
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
