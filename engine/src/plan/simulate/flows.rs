//! The flows seen: who talks with whom, both directions together, and on which queues.

use super::nic_view::SeenFrame;
use crate::{frame::community_id, stats::traffic::Volume};
use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};
use wqcap_rss::{L3, L4};

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct End {
    address: [u8; 16],
    port: u16,
}

/// What a flow's frames have in common; its ends in order, whichever sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SimulatedFlow {
    layer: L3Key,
    /// IP protocol, or EtherType.
    protocol: u16,
    fragment: bool,
    ends: [End; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum L3Key {
    Ethernet,
    Ipv4,
    Ipv6,
}

/// What a flow did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowLoad {
    pub(super) load: Volume,
    /// The queue of each direction that was seen.
    pub(super) queues: [Option<u16>; 2],
}

/// All flows.
#[derive(Default)]
pub(super) struct Flows(pub(super) HashMap<SimulatedFlow, FlowLoad>);

impl Flows {
    pub(super) fn count(&mut self, seen: &SeenFrame<'_>, queue: u16, len: u32) {
        let (key, direction) = key_of(seen);
        let flow = self.0.entry(key).or_default();
        flow.load.count(len);
        flow.queues[direction] = Some(queue);
    }
}

/// The flow, and which of its directions.
fn key_of(seen: &SeenFrame<'_>) -> (SimulatedFlow, usize) {
    let class = &seen.class;
    let (layer, protocol, addresses) = match (class.l3, class.addresses(seen.bytes)) {
        (L3::Ipv4, Some(addresses)) => (L3Key::Ipv4, u16::from(class.ip_protocol), addresses),
        (L3::Ipv6, Some(addresses)) => (L3Key::Ipv6, u16::from(class.ip_protocol), addresses),
        // Destination before source, as Ethernet has it; which is which does not matter for a key.
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
        End {
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
    /// Its Community ID, as far as its key tells that.
    pub(super) fn community_id(&self) -> Option<String> {
        let [a, b] = self.ends.map(|end| self.ip(&end));
        let ports = self.ends.map(|it| it.port);
        let ports = Some(ports.into()).filter(|it| *it != (0, 0));
        community_id((a?, b?), u8::try_from(self.protocol).ok()?, ports)
    }

    fn write_end(&self, f: &mut fmt::Formatter<'_>, end: &End) -> fmt::Result {
        let [a, b, c, d, e, g, ..] = end.address;
        match self.ip(end) {
            None => write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}"),
            Some(ip) if self.fragment || ![6, 17].contains(&self.protocol) => write!(f, "{ip}"),
            Some(IpAddr::V4(ip)) => write!(f, "{ip}:{}", end.port),
            Some(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", end.port),
        }
    }

    /// The address of an end; `None`: it is no IP.
    fn ip(&self, end: &End) -> Option<IpAddr> {
        let [a, b, c, d, ..] = end.address;
        match self.layer {
            L3Key::Ethernet => None,
            L3Key::Ipv4 => Some(Ipv4Addr::new(a, b, c, d).into()),
            L3Key::Ipv6 => Some(Ipv6Addr::from(end.address).into()),
        }
    }
}

impl fmt::Display for SimulatedFlow {
    /// `tcp 10.0.0.1:443 - 10.0.0.2:50000`
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
