//! Decisions of flow records on filter expressions: which records an answer lists, and whether they
//! decide the whole expression.

use super::{FlowColumns, FlowRow, Numbers, Texts};
use std::net::IpAddr;
use wqcap_files::index::{FlowTerms, IndexFlow};
use wqcap_frame::ethertype::{ARP, IPV4, IPV6};

/// Returns `true` if flow records decide a whole filter expression, of which they test `terms`: a
/// record is of both directions, and of frames with and without VLAN tags.
pub(super) fn is_exact(filter: &str, terms: &FlowTerms) -> bool {
    let is_open = |word: &str| ["src", "dst", "vlan"].contains(&word);
    match filter.trim() {
        "" => true,
        _ => !terms.is_empty() && !filter.split_whitespace().any(is_open),
    }
}

/// Decision on a flow record by the terms of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The filter accepts frames of the record.
    Accepted,
    /// The filter may accept frames of the record, which is in the answer.
    Possible,
    /// The filter may accept frames of the record, which is not in the answer: it is one of ARP, and
    /// does not have the addresses in the frames.
    Unlisted,
    /// The filter accepts no frame of the record.
    Excluded,
}

impl Decision {
    /// Returns `true` if the answer has the record.
    pub(super) fn is_listed(self) -> bool {
        matches!(self, Self::Accepted | Self::Possible)
    }

    /// Returns `true` if the record decides the filter.
    pub(super) fn is_certain(self) -> bool {
        matches!(self, Self::Accepted | Self::Excluded)
    }

    /// Decides on record `n` of a table, which is `row`.
    pub(super) fn of(table: &FlowColumns, n: usize, row: &FlowRow, terms: &FlowTerms) -> Self {
        let number = |of: &Numbers| of.get(n).copied().flatten();
        let text = |of: &Texts| of.get(n).cloned().flatten();
        if terms.is_empty() {
            return Self::Accepted;
        }
        let protocol = row.protocol.unwrap_or(0);
        let ends = [(&*row.src, row.src_port), (&*row.dst, row.dst_port)];
        let inner = index_flow(number(&table.ethertype), protocol, ends);
        let tunnel = text(&table.outer[0]).zip(text(&table.outer[1]));
        let tunnel = tunnel.map(|(src, dst)| {
            let ethertype = if src.contains(':') { IPV6 } else { IPV4 };
            let protocol = number(&table.outer_protocol);
            let protocol = protocol.and_then(|it| u8::try_from(it).ok());
            let ends = [(&*src, None), (&*dst, None)];
            index_flow(Some(ethertype.into()), protocol.unwrap_or(0), ends)
        });
        let is_arp = inner.ethertype == ARP;
        match (terms.allows(&inner), tunnel) {
            (true, None) if number(&table.vlan).is_none() => Self::Accepted,
            (true, _) => Self::Possible,
            (false, Some(it)) if terms.allows_with_some_ports(&it) => Self::Possible,
            (false, None) if is_arp && terms.allows_with_some_addresses(&inner) => Self::Unlisted,
            _ => Self::Excluded,
        }
    }
}

/// Returns a flow between two ends, each an address with a port, in the form that the terms of
/// filters examine.
fn index_flow(ethertype: Option<u64>, protocol: u8, ends: [(&str, Option<u16>); 2]) -> IndexFlow {
    let [a, b] = ends.map(|(address, port)| {
        let number = match address.parse() {
            Ok(IpAddr::V4(it)) => u128::from(it.to_bits()),
            Ok(IpAddr::V6(it)) => it.to_bits(),
            Err(_) => 0,
        };
        (number, port.unwrap_or(0))
    });
    let ethertype = ethertype.and_then(|it| u16::try_from(it).ok());
    IndexFlow::between(ethertype.unwrap_or(0), protocol, a, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_do_not_decide_directions_and_tags() {
        for (filter, expected) in [
            ("", true),
            ("host 10.0.0.1 and udp port 53", true),
            ("dst host 10.0.0.1", false),
            ("udp src port 53", false),
            ("vlan 5 and host 10.0.0.1", false),
            ("tcp or udp", false),
        ] {
            assert_eq!(
                is_exact(filter, &FlowTerms::parse(filter)),
                expected,
                "{filter}"
            );
        }
    }

    #[test]
    fn records_of_tunnels_tags_and_arp_do_not_decide_filters() {
        use Decision::{Accepted, Excluded, Possible, Unlisted};
        let text = |it: &str| vec![Some(it.to_owned())];
        let packet = || FlowColumns {
            first: vec![Some(1)],
            src: text("192.168.1.1"),
            dst: text("192.168.1.2"),
            ports: [vec![Some(1111)], vec![Some(80)]],
            protocol: vec![Some(6)],
            ethertype: vec![Some(IPV4.into())],
            ..FlowColumns::default()
        };
        let tunnel = FlowColumns {
            outer: [text("2001:db8::3"), text("2001:db8::4")],
            outer_protocol: vec![Some(17)],
            ..packet()
        };
        let tagged = FlowColumns {
            vlan: vec![Some(7)],
            ..packet()
        };
        let arp = FlowColumns {
            src: text("02:00:00:00:00:01"),
            dst: text("ff:ff:ff:ff:ff:ff"),
            ports: [vec![None], vec![None]],
            protocol: vec![None],
            ethertype: vec![Some(0x0806)],
            ..packet()
        };
        let tables = [packet(), tagged, tunnel, arp];
        for (filter, expected) in [
            ("", [Accepted; 4]),
            (
                "tcp port 80 and host 192.168.1.2",
                [Accepted, Possible, Possible, Excluded],
            ),
            (
                "udp port 4789 and host 2001:db8::3",
                [Excluded, Excluded, Possible, Excluded],
            ),
            ("ip6", [Excluded, Excluded, Possible, Excluded]),
            ("host 2001:db8::5", [Excluded; 4]),
            ("host 10.0.0.1", [Excluded, Excluded, Excluded, Unlisted]),
            ("arp", [Excluded, Excluded, Excluded, Accepted]),
            ("tcp port 81", [Excluded; 4]),
        ] {
            let terms = FlowTerms::parse(filter);
            let decided = |table| {
                let row = FlowColumns::row(table, 0).expect("a record");
                Decision::of(table, 0, &row, &terms)
            };
            assert_eq!(tables.each_ref().map(decided), expected, "{filter}");
        }
    }
}
