//! Live counters of frames by protocol, trait (such as IPv6 or VLAN) and size, as plain arrays.

use super::Volume;
use wqcap_frame::{Headers, ethertype, protocol};

/// Names of the protocols in the live statistics, indexed by [`protocol_of`]. Each frame has
/// exactly one.
pub(super) const PROTOCOLS: [&str; 9] = [
    "tcp", "udp", "icmp", "sctp", "gre", "esp", "other_ip", "arp", "other",
];

/// Names of the frame traits in the live statistics. A frame has any number of them.
pub(super) const TRAITS: [&str; 6] = ["ipv4", "ipv6", "vlan", "tunnel", "fragment", "malformed"];

/// Largest frame of each size bin of the live statistics, in bytes without FCS; the bin after the
/// last is unbounded.
pub(super) const SIZES: [u32; 9] = [64, 127, 255, 511, 1023, 1518, 2047, 4095, 9216];

/// Returns the index in [`PROTOCOLS`] of the protocol of a frame's innermost packet.
#[inline]
fn protocol_of(inner: &Headers) -> usize {
    if inner.tuple.version == 0 {
        return if inner.ethertype == ethertype::ARP {
            7
        } else {
            8
        };
    }
    match inner.tuple.protocol {
        protocol::TCP => 0,
        protocol::UDP => 1,
        protocol::ICMP | protocol::ICMPV6 => 2,
        protocol::SCTP => 3,
        protocol::GRE => 4,
        protocol::ESP => 5,
        _ => 6,
    }
}

/// Live counters of frames by protocol, trait and size.
#[derive(Clone, Debug, Default)]
pub(super) struct TrafficMix {
    pub(super) total: Volume,
    pub(super) protocols: [Volume; PROTOCOLS.len()],
    pub(super) traits: [Volume; TRAITS.len()],
    pub(super) sizes: [u64; SIZES.len() + 1],
}

impl TrafficMix {
    #[inline]
    pub(super) fn count(&mut self, outer: &Headers, inner: &Headers, len: u32) {
        self.total.count(len);
        self.protocols[protocol_of(inner)].count(len);
        let has = [
            inner.tuple.version == 4,
            inner.tuple.version == 6,
            outer.tags.count > 0,
            outer.l3() != inner.l3(),
            inner.fragment.is_fragment(),
            inner.malformed.is_some(),
        ];
        for (volume, has) in self.traits.iter_mut().zip(has) {
            volume.frames += u64::from(has);
            volume.bytes += u64::from(len) * u64::from(has);
        }
        let bin = SIZES.iter().filter(|&&most| len > most).count();
        self.sizes[bin] += 1;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.total += other.total;
        for (sum, it) in self.protocols.iter_mut().zip(&other.protocols) {
            *sum += *it;
        }
        for (sum, it) in self.traits.iter_mut().zip(&other.traits) {
            *sum += *it;
        }
        for (sum, it) in self.sizes.iter_mut().zip(&other.sizes) {
            *sum += it;
        }
    }
}
