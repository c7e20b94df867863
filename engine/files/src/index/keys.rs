//! Index keys: properties of a flow, and conditions of a filter expression, as 64-bit numbers. The
//! set of the keys of a part's flows suffices to decide whether the part may hold a matching frame;
//! the flows are not needed.
//!
//! A flow has one key each for its ethertype, its protocol, each host, each port, each host with
//! each port, both hosts, and both hosts with both ports. A condition on a host and a port is
//! therefore one key. It does not match a part in which one flow has the host and another flow has
//! the port.

use super::{
    flow::{ARP, IPV4, IPV6, IndexFlow, PORTED, RARP},
    terms::{FlowTerms, Term},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use xxhash_rust::xxh3::xxh3_64;

/// Index key of a flow property, such as a host with a port: XXH3 (64 bits) of the bytes that
/// `docs/fleet.md` defines.
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

    /// Returns the index key of a set of hosts and ports, both in ascending order.
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

/// Returns the hosts or ports of `all` in ascending order, each once.
fn distinct<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort_unstable();
    all.dedup();
    all
}

/// Appends the index keys of combinations of hosts and ports: each host with each port; two hosts;
/// two hosts with two ports. Both lists are in ascending order.
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
    /// Returns the index keys of the flow's properties.
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
    /// Returns the index keys that every flow has which these conditions of a filter allow. Only
    /// the most specific keys are returned: a host with a port replaces the keys of the host and of
    /// the port.
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
