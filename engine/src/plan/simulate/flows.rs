//! Table of the simulated flows, both directions together, with the queue of each direction.

use super::nic_view::NicFrame;
use crate::{frame::community_id, stats::traffic::Volume};
use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use wqcap_rss::{L3, L4};

/// Address and port of one end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct FlowEnd {
    /// IPv6, IPv4 or MAC address of the flow's end, padded with zeros at the end.
    address: [u8; 16],
    /// TCP or UDP port of the flow's end; 0 if the frame has no ports.
    port: u16,
}

/// Key of a simulated flow. Its ends are sorted, so both directions have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SimulatedFlow {
    /// Layer of the flow's addresses: IPv6, IPv4 or Ethernet.
    layer: L3Key,
    /// IP protocol of the flow, or EtherType of frames other than IP.
    protocol: u16,
    /// `true` if the flow's frames are IP fragments.
    fragment: bool,
    /// Addresses and ports of both ends of the flow, the lower end first.
    ends: [FlowEnd; 2],
}

/// Layer of a flow's addresses: IPv6, IPv4 or Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum L3Key {
    Ethernet,
    Ipv4,
    Ipv6,
}

/// Load and queues of a simulated flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowLoad {
    /// Number of frames and bytes of both directions of the flow.
    pub(super) load: Volume,
    /// Queue of each direction of the flow; `None` if the direction was not seen.
    pub(super) queues: [Option<u16>; 2],
}

/// Maximum number of flows in a simulation's table, which then has about 300 MB: the number at which
/// the table would double.
const MOST_FLOWS: usize = (1 << 22) / 8 * 7;

/// Flows of a simulation, with the load and queues of each.
pub(super) struct Flows {
    /// First flows of the simulation, at most `most`.
    pub(super) table: HashMap<SimulatedFlow, FlowLoad>,
    /// Number of frames and bytes of the flows that are not in the table.
    pub(super) further: Volume,
    /// Maximum number of flows in the table.
    most: usize,
}

impl Default for Flows {
    fn default() -> Self {
        Self::with_most(MOST_FLOWS)
    }
}

impl Flows {
    /// Creates an empty table of at most `most` flows.
    pub(super) fn with_most(most: usize) -> Self {
        Self {
            table: HashMap::new(),
            further: Volume::default(),
            most,
        }
    }

    /// Counts a simulated frame of `len` bytes on `queue` for its flow.
    pub(super) fn count(&mut self, seen: &NicFrame<'_>, queue: u16, len: u32) {
        let (key, direction) = key_of(seen);
        let is_full = self.table.len() == self.most;
        let flow = match self.table.entry(key) {
            Entry::Vacant(_) if is_full => return self.further.count(len),
            entry => entry.or_default(),
        };
        flow.load.count(len);
        flow.queues[direction] = Some(queue);
    }
}

/// Returns the key of a frame's flow and the index of the frame's direction.
fn key_of(seen: &NicFrame<'_>) -> (SimulatedFlow, usize) {
    let class = &seen.class;
    let (layer, protocol, addresses) = match (class.l3, class.addresses(seen.bytes)) {
        (L3::Ipv4, Some(addresses)) => (L3Key::Ipv4, u16::from(class.ip_protocol), addresses),
        (L3::Ipv6, Some(addresses)) => (L3Key::Ipv6, u16::from(class.ip_protocol), addresses),
        // Ethernet has the destination before the source. The order does not matter for a key.
        _ => (
            L3Key::Ethernet,
            class.ethertype,
            seen.bytes.get(..12).unwrap_or_default(),
        ),
    };
    let ports = match class.l4 {
        L4::None => [0; 4],
        _ => class.ports(seen.bytes).copied().unwrap_or_default(),
    };
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    let end = |from: &[u8], port: [u8; 2]| {
        let mut address = [0; 16];
        address[..from.len()].copy_from_slice(from);
        FlowEnd {
            address,
            port: u16::from_be_bytes(port),
        }
    };
    let mut ends = [
        end(source, [ports[0], ports[1]]),
        end(destination, [ports[2], ports[3]]),
    ];
    let direction = usize::from(ends[0] > ends[1]);
    ends.sort_unstable();
    let key = SimulatedFlow {
        layer,
        protocol,
        fragment: class.fragment,
        ends,
    };
    (key, direction)
}

impl SimulatedFlow {
    /// Returns the flow's Community ID, or `None` if the flow's key does not determine it.
    pub(super) fn community_id(&self) -> Option<String> {
        let [a, b] = self.ends.map(|end| self.ip(&end));
        let ports = self.ends.map(|it| it.port);
        let ports = Some(ports.into()).filter(|it| *it != (0, 0));
        community_id((a?, b?), u8::try_from(self.protocol).ok()?, ports)
    }

    /// Writes one end of a simulated flow as a MAC address, or as an IP address with the port of
    /// TCP and UDP.
    fn write_end(&self, f: &mut fmt::Formatter<'_>, end: &FlowEnd) -> fmt::Result {
        let [a, b, c, d, e, g, ..] = end.address;
        match self.ip(end) {
            None => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
            Some(ip) if self.fragment || ![6, 17].contains(&self.protocol) => write!(f, "{ip}"),
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:{}", end.port),
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", end.port),
        }
    }

    /// Returns the IP address of a flow's end, or `None` if the flow is not IP.
    fn ip(&self, end: &FlowEnd) -> Option<IpAddr> {
        let [a, b, c, d, ..] = end.address;
        match self.layer {
            L3Key::Ethernet => None,
            L3Key::Ipv4 => Some(Ipv4Addr::new(a, b, c, d).into()),
            L3Key::Ipv6 => Some(Ipv6Addr::from(end.address).into()),
        }
    }
}

impl fmt::Display for SimulatedFlow {
    /// Writes the protocol and both ends of the simulated flow: `tcp 10.0.0.1:443 -
    /// 10.0.0.2:50000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.layer, self.protocol) {
            (L3Key::Ethernet, 0) => f.write_str("ethernet")?,
            (L3Key::Ethernet, 0x0806) => f.write_str("arp")?,
            (L3Key::Ethernet, 0x88cc) => f.write_str("lldp")?,
            (L3Key::Ethernet, 0x8847 | 0x8848) => f.write_str("mpls")?,
            (L3Key::Ethernet, 0x8863 | 0x8864) => f.write_str("pppoe")?,
            (L3Key::Ethernet, length @ ..0x0600) => write!(f, "802.3 length {length}")?,
            (L3Key::Ethernet, other) => write!(f, "ethertype {other:#06x}")?,
            (_, 6) => f.write_str("tcp")?,
            (_, 17) => f.write_str("udp")?,
            (_, 1) => f.write_str("icmp")?,
            (_, 47) => f.write_str("gre")?,
            (_, 50) => f.write_str("esp")?,
            (_, 58) => f.write_str("icmpv6")?,
            (_, 132) => f.write_str("sctp")?,
            (_, other) => write!(f, "ip protocol {other}")?,
        }
        if self.fragment {
            f.write_str(" fragments")?;
        }
        let [a, b] = &self.ends;
        f.write_str(" ")?;
        self.write_end(f, a)?;
        f.write_str(" - ")?;
        self.write_end(f, b)
    }
}
