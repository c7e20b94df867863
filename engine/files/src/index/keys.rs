//! What a flow has and what an expression demands of one, as numbers: a set of those of a part's flows tells, without the
//! flows, whether a frame of the part can be accepted.
//!
//! Of a flow there is a key for its ethertype, its protocol, each host, each port, each host with each port, both hosts, and
//! both hosts with both ports. So a demand for a host and a port is one key, and holds for no part in which the one is in
//! this flow and the other in that.

use super::{
    flow::{ARP, IPV4, IPV6, IndexFlow, PORTED, RARP},
    terms::{FlowTerms, Term},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use xxhash_rust::xxh3::xxh3_64;

/// One of a flow's keys: XXH3 (64 bits) of what it has, as `docs/fleet.md` puts it in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexKey(pub u64);

impl IndexKey {
    fn ethertype(ethertype: u16) -> Self {
        let [a, b] = ethertype.to_be_bytes();
        Self(xxh3_64(&[b'e', a, b]))
    }

    fn protocol(protocol: u8) -> Self {
        Self(xxh3_64(&[b'i', protocol]))
    }

    /// Hosts and ports, both ascending.
    fn ends(hosts: &[IpAddr], ports: &[u16]) -> Self {
        let mut bytes = Vec::with_capacity(40);
        for host in hosts {
            match host {
                IpAddr::V4(it) => {
                    bytes.push(b'4');
                    bytes.extend(it.octets());
                }
                IpAddr::V6(it) => {
                    bytes.push(b'6');
                    bytes.extend(it.octets());
                }
            }
        }
        for port in ports {
            bytes.push(b'p');
            bytes.extend(port.to_be_bytes());
        }
        Self(xxh3_64(&bytes))
    }
}

/// Ascending, each once.
fn distinct<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort_unstable();
    all.dedup();
    all
}

/// The keys of hosts and ports that are ascending; those of both together are of two each.
fn keys_of_ends(hosts: &[IpAddr], ports: &[u16], keys: &mut Vec<IndexKey>) {
    for host in hosts {
        keys.extend(ports.iter().map(|it| IndexKey::ends(&[*host], &[*it])));
    }
    if let [_, _] = hosts {
        keys.push(IndexKey::ends(hosts, &[]));
        if let [_, _] = ports {
            keys.push(IndexKey::ends(hosts, ports));
        }
    }
}

impl IndexFlow {
    /// Its keys.
    #[must_use]
    pub fn keys(&self) -> Vec<IndexKey> {
        let ends = [self.low, self.high];
        let address = |number: u128| match self.ethertype {
            IPV4 | ARP | RARP => Some(IpAddr::from(Ipv4Addr::from_bits(
                u32::try_from(number).ok()?,
            ))),
            IPV6 => Some(IpAddr::from(Ipv6Addr::from_bits(number))),
            _ => None,
        };
        let hosts = ends.iter().filter_map(|(it, _)| address(*it)).collect();
        let hosts = distinct(hosts);
        let ports = match PORTED.contains(&self.protocol) {
            true => distinct(ends.map(|(_, port)| port).to_vec()),
            false => Vec::new(),
        };
        let mut keys = vec![IndexKey::ethertype(self.ethertype)];
        if [IPV4, IPV6].contains(&self.ethertype) {
            keys.push(IndexKey::protocol(self.protocol));
        }
        keys.extend(hosts.iter().map(|it| IndexKey::ends(&[*it], &[])));
        keys.extend(ports.iter().map(|it| IndexKey::ends(&[], &[*it])));
        keys_of_ends(&hosts, &ports, &mut keys);
        keys
    }
}

impl FlowTerms {
    /// The keys that a flow has if these allow it, and those of them alone that say most: a host with a port stands for the
    /// host and for the port.
    #[must_use]
    pub fn keys(&self) -> Vec<IndexKey> {
        let (mut hosts, mut ports, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        for term in &self.0 {
            match *term {
                Term::Ethertype(it) => keys.push(IndexKey::ethertype(it)),
                Term::Protocol(it) => keys.push(IndexKey::protocol(it)),
                Term::Host(it) => hosts.push(it),
                Term::Port(it) => ports.push(it),
            }
        }
        let (hosts, ports) = (distinct(hosts), distinct(ports));
        if ports.is_empty() {
            keys.extend(hosts.iter().map(|it| IndexKey::ends(&[*it], &[])));
        }
        if hosts.is_empty() {
            keys.extend(ports.iter().map(|it| IndexKey::ends(&[], &[*it])));
        }
        keys_of_ends(&hosts, &ports, &mut keys);
        keys
    }
}
