//! Community ID, the name that Zeek, Suricata and others give a flow: version 1 of
//! <https://github.com/corelight/community-id-spec>, with seed 0.

use crate::{
    headers::{FiveTuple, Headers},
    ip::Icmp,
    numbers::protocol,
};
use community_id::calculate_community_id;
use std::net::IpAddr;

/// The Community ID of a flow, the same for both directions. `ports` of ICMP are the message's type and code. `None`: the
/// ports of a protocol that has such are not known, or the versions of IP differ.
#[must_use]
pub fn community_id(
    (src, dst): (IpAddr, IpAddr),
    protocol: u8,
    ports: Option<(u16, u16)>,
) -> Option<String> {
    let has_ports = matches!(
        protocol,
        protocol::TCP | protocol::UDP | protocol::SCTP | protocol::ICMP | protocol::ICMPV6
    );
    if has_ports && ports.is_none() {
        return None;
    }
    let (src_port, dst_port) = ports.filter(|_| has_ports).unzip();
    calculate_community_id(0, src, dst, src_port, dst_port, protocol, false).ok()
}

impl FiveTuple {
    /// The Community ID of its flow, with type and code of an ICMP message. `None`: it is no IP, or of a part of a packet
    /// without its ports.
    #[must_use]
    pub fn community_id(&self, icmp: Option<[u8; 2]>) -> Option<String> {
        let ports = match icmp {
            Some([kind, code]) => Some((kind.into(), code.into())),
            // Where there are no ports, both are 0.
            None => Some((self.src_port, self.dst_port)).filter(|it| *it != (0, 0)),
        };
        community_id((self.src()?, self.dst()?), self.protocol, ports)
    }
}

impl Headers {
    /// The Community ID of the packet's flow, as [`FiveTuple::community_id`].
    #[must_use]
    pub fn community_id(&self, frame: &[u8]) -> Option<String> {
        self.tuple.community_id(self.icmp(frame))
    }

    /// Type and code of an ICMP message, whose header is in this frame.
    #[inline]
    #[must_use]
    pub fn icmp(&self, frame: &[u8]) -> Option<[u8; 2]> {
        let is_icmp = matches!(
            (self.tuple.protocol, self.tuple.version),
            (protocol::ICMP, 4) | (protocol::ICMPV6, 6)
        );
        if !is_icmp || self.fragment.is_later() {
            return None;
        }
        let icmp = Icmp::new(frame.get(self.l4()?..self.end())?).ok()?;
        Some([icmp.kind(), icmp.code()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the specification's baseline, `baseline/baseline_deflt.json`.
    #[test]
    fn ids_are_those_that_are_published() {
        let v4 = |a, b| (IpAddr::from(a), IpAddr::from(b));
        for (ends, protocol, ports, id) in [
            (
                v4([1, 2, 3, 4], [5, 6, 7, 8]),
                protocol::TCP,
                Some((1122, 3344)),
                "1:wCb3OG7yAFWelaUydu0D+125CLM=",
            ),
            (
                v4([5, 6, 7, 8], [1, 2, 3, 4]),
                protocol::TCP,
                Some((3344, 1122)),
                "1:wCb3OG7yAFWelaUydu0D+125CLM=",
            ),
            (
                v4([1, 2, 3, 4], [5, 6, 7, 8]),
                protocol::UDP,
                Some((1122, 3344)),
                "1:0Mu9InQx6z4ZiCZM/7HXi2WMhOg=",
            ),
            (
                v4([1, 2, 3, 4], [5, 6, 7, 8]),
                protocol::SCTP,
                Some((1122, 3344)),
                "1:EKt4MsxuyaE6mL+hmrEkQ9csDD8=",
            ),
            (
                v4([1, 2, 3, 4], [5, 6, 7, 8]),
                protocol::ICMP,
                Some((8, 0)),
                "1:crodRHL2FEsHjbv3UkRrfbs4bZ0=",
            ),
        ] {
            assert_eq!(community_id(ends, protocol, ports).as_deref(), Some(id));
        }
        let ends = v4([1, 2, 3, 4], [5, 6, 7, 8]);
        assert_eq!(community_id(ends, protocol::TCP, None), None);
        assert_eq!(community_id(ends, protocol::ICMPV6, Some((128, 0))), None);
        assert!(community_id(ends, protocol::GRE, None).is_some());
    }
}
