//! Flow of a frame for the index, with the fields that a pcap-filter expression sees.

use crate::format::ByteOrder::Big;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
pub(super) const ARP: u16 = 0x0806;
pub(super) const RARP: u16 = 0x8035;
/// Ethertypes that the `vlan` primitive accepts as VLAN tags.
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Numbers of the IP protocols with ports: TCP, UDP and SCTP.
pub(super) const PORTED: [u8; 3] = [6, 17, 132];
/// Number of the only IPv6 extension header that libpcap skips: the fragment header.
const FRAGMENT: u8 = 44;
/// Length of an Ethernet header, in bytes.
const ETHERNET: usize = 14;
const IPV6_HEADER: usize = 40;

/// Bidirectional flow in the index of a capture file. Fields that a frame does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IndexFlow {
    /// Ethertype of the flow's frames after VLAN tags.
    pub ethertype: u16,
    /// IP protocol number of the flow.
    pub protocol: u8,
    /// Address and port of the flow's end with the lower address and port; an IPv4 address is a
    /// 32-bit number.
    pub low: (u128, u16),
    /// Address and port of the flow's end with the higher address and port.
    pub high: (u128, u16),
}

impl IndexFlow {
    /// Returns the flow of a frame, which may be cut, for the index.
    #[must_use]
    pub fn new(frame: &[u8]) -> Self {
        let mut at = 0;
        while TAGS.contains(&Big.u16(frame, at + 12)) {
            at += 4;
        }
        let ethertype = Big.u16(frame, at + 12);
        let packet = frame.get(at + ETHERNET..).unwrap_or_default();
        let (protocol, a, b) = match ethertype {
            IPV4 => ipv4(packet),
            IPV6 => ipv6(packet),
            ARP | RARP => (0, (address4(packet, 14), 0), (address4(packet, 24), 0)),
            _ => (0, (0, 0), (0, 0)),
        };
        Self {
            ethertype,
            protocol,
            low: a.min(b),
            high: a.max(b),
        }
    }

    /// Creates the flow between the ends `a` and `b`, each an address as a number and a port.
    #[must_use]
    pub fn between(ethertype: u16, protocol: u8, a: (u128, u16), b: (u128, u16)) -> Self {
        Self {
            ethertype,
            protocol,
            low: a.min(b),
            high: a.max(b),
        }
    }

    /// Returns `true` if one end of the flow has this IP address.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        let (number, fits) = match address {
            IpAddr::V4(a) => (
                u128::from(a.to_bits()),
                [IPV4, ARP, RARP].contains(&self.ethertype),
            ),
            IpAddr::V6(a) => (a.to_bits(), self.ethertype == IPV6),
        };
        fits && (self.low.0 == number || self.high.0 == number)
    }

    /// Returns `true` if one end of the flow has this port.
    pub(super) fn has_port(&self, port: u16) -> bool {
        PORTED.contains(&self.protocol) && (self.low.1 == port || self.high.1 == port)
    }
}

type Ends = (u8, (u128, u16), (u128, u16));

fn ipv4(packet: &[u8]) -> Ends {
    let protocol = packet.get(9).copied().unwrap_or(0);
    let later = Big.u16(packet, 6) & 0x1fff != 0;
    let header = usize::from(packet.first().copied().unwrap_or(0) & 15) * 4;
    let ports = if later {
        (0, 0)
    } else {
        ports(packet, header, protocol)
    };
    (
        protocol,
        (address4(packet, 12), ports.0),
        (address4(packet, 16), ports.1),
    )
}

fn ipv6(packet: &[u8]) -> Ends {
    let next = packet.get(6).copied().unwrap_or(0);
    let (protocol, ports) = if next == FRAGMENT {
        (packet.get(IPV6_HEADER).copied().unwrap_or(0), (0, 0))
    } else {
        (next, ports(packet, IPV6_HEADER, next))
    };
    (
        protocol,
        (Big.u128(packet, 8), ports.0),
        (Big.u128(packet, 24), ports.1),
    )
}

fn ports(packet: &[u8], at: usize, protocol: u8) -> (u16, u16) {
    if !PORTED.contains(&protocol) {
        return (0, 0);
    }
    (Big.u16(packet, at), Big.u16(packet, at + 2))
}

fn address4(bytes: &[u8], at: usize) -> u128 {
    Big.u32(bytes, at).into()
}
