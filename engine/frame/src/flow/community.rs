//! Community ID, the flow identifier of Zeek, Suricata and other tools: version 1 of
//! <https://github.com/corelight/community-id-spec>, with seed 0.

use crate::{
    headers::{FiveTuple, Headers},
    ip::Icmp,
    numbers::protocol,
};
use community_id::calculate_community_id;
use std::net::IpAddr;

/// The text is not a Community ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the text is not a Community ID; write 1: and 28 characters of Base64, as in 1:wCb3OG7yAFWelaUydu0D+125CLM="
)]
pub struct NoCommunityId;

/// Checks that a text is a Community ID of version 1: the Base64 form of a SHA-1.
///
/// # Errors
/// The text has another form.
pub fn check_community_id(text: &str) -> Result<(), NoCommunityId> {
    let digits = text.strip_prefix("1:").and_then(|it| it.strip_suffix('='));
    let is_digit = |c: char| c.is_ascii_alphanumeric() || c == '+' || c == '/';
    match digits.is_some_and(|it| it.len() == 27 && it.chars().all(is_digit)) {
        true => Ok(()),
        false => Err(NoCommunityId),
    }
}

/// Returns the Community ID of a flow, equal for both directions.
///
/// For ICMP, `ports` are the type and code of the message. Returns `None` if the protocol has ports
/// and `ports` is `None`, or if the two addresses have different IP versions.
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
    /// Returns the Community ID of the 5-tuple's flow; `icmp` is the type and code of an ICMP
    /// message.
    ///
    /// Returns `None` for a frame without IP, and for a fragment without ports.
    #[must_use]
    pub fn community_id(&self, icmp: Option<[u8; 2]>) -> Option<String> {
        let ports = match icmp {
            Some([kind, code]) => Some((kind.into(), code.into())),
            // A tuple without ports has 0 in both fields.
            None => Some((self.src_port, self.dst_port)).filter(|it| *it != (0, 0)),
        };
        community_id((self.src()?, self.dst()?), self.protocol, ports)
    }
}

impl Headers {
    /// Returns the Community ID of the packet's flow; see [`FiveTuple::community_id`].
    #[must_use]
    pub fn community_id(&self, frame: &[u8]) -> Option<String> {
        self.tuple.community_id(self.icmp(frame))
    }

    /// Returns type and code of the packet's ICMP message if its header is in `frame`.
    #[inline]
    #[must_use]
    pub fn icmp(&self, frame: &[u8]) -> Option<[u8; 2]> {
        match self.tuple.protocol {
            protocol::ICMP | protocol::ICMPV6 => self.icmp_message(frame),
            _ => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn icmp_message(&self, frame: &[u8]) -> Option<[u8; 2]> {
        let version = match self.tuple.protocol {
            protocol::ICMP => 4,
            _ => 6,
        };
        if self.tuple.version != version || self.fragment.is_later() {
            return None;
        }
        let icmp = Icmp::new(frame.get(self.l4()?..self.end())?).ok()?;
        Some([icmp.kind(), icmp.code()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vector of one flow direction: addresses, protocol, ports (or ICMP type and code), and
    /// the Community ID without its version prefix.
    type Vector = (
        &'static str,
        &'static str,
        u8,
        Option<(u16, u16)>,
        &'static str,
    );

    /// Test vectors from the first table of `baseline/README.md` in the specification's repository.
    /// The reference implementation, communityid 1.5.0 from PyPI, returns equal IDs.
    #[rustfmt::skip]
    const TABLE: &[Vector] = &[
        ("1.2.3.4", "5.6.7.8", 6, Some((1122, 3344)), "wCb3OG7yAFWelaUydu0D+125CLM="),
        ("5.6.7.8", "1.2.3.4", 6, Some((3344, 1122)), "wCb3OG7yAFWelaUydu0D+125CLM="),
        ("1.2.3.4", "5.6.7.8", 17, Some((1122, 3344)), "0Mu9InQx6z4ZiCZM/7HXi2WMhOg="),
        ("5.6.7.8", "1.2.3.4", 17, Some((3344, 1122)), "0Mu9InQx6z4ZiCZM/7HXi2WMhOg="),
        ("1.2.3.4", "5.6.7.8", 132, Some((1122, 3344)), "EKt4MsxuyaE6mL+hmrEkQ9csDD8="),
        ("5.6.7.8", "1.2.3.4", 132, Some((3344, 1122)), "EKt4MsxuyaE6mL+hmrEkQ9csDD8="),
        ("1.2.3.4", "5.6.7.8", 1, Some((8, 0)), "crodRHL2FEsHjbv3UkRrfbs4bZ0="),
        ("5.6.7.8", "1.2.3.4", 1, Some((0, 0)), "crodRHL2FEsHjbv3UkRrfbs4bZ0="),
        ("1.2.3.4", "5.6.7.8", 1, Some((11, 0)), "f/YiSyWqczrTgfUCZlBUnvHRcPk="),
        ("fe80:1:203:405:607:809:a0b:c0d", "fe80:1011:1213:1415:1617:1819:1a1b:1c1d", 58, Some((128, 0)), "0bf7hyMJUwt3fMED7z8LIfRpBeo="),
        ("fe80:1011:1213:1415:1617:1819:1a1b:1c1d", "fe80:1:203:405:607:809:a0b:c0d", 58, Some((129, 0)), "0bf7hyMJUwt3fMED7z8LIfRpBeo="),
        ("fe80:1:203:405:607:809:a0b:c0d", "fe80:1011:1213:1415:1617:1819:1a1b:1c1d", 58, Some((146, 0)), "fYC8+pz24E+EhANP1EZhpX0Dw10="),
        ("1.2.3.4", "5.6.7.8", 46, None, "ikv3kmf89luf73WPz1jOs49S768="),
        ("5.6.7.8", "1.2.3.4", 46, None, "ikv3kmf89luf73WPz1jOs49S768="),
        ("fe80:1:203:405:607:809:a0b:c0d", "fe80:1011:1213:1415:1617:1819:1a1b:1c1d", 46, None, "wQ/2mwrnXP4lmJcHdGL5ePjR+e0="),
        ("fe80:1011:1213:1415:1617:1819:1a1b:1c1d", "fe80:1:203:405:607:809:a0b:c0d", 46, None, "wQ/2mwrnXP4lmJcHdGL5ePjR+e0="),
    ];

    /// Test vectors from `baseline/baseline_deflt.json` in the specification's repository: the
    /// flows of its captures. For ICMP the ports are type and code of a one-way message, or the
    /// types of request and reply.
    #[rustfmt::skip]
    const CAPTURES: &[Vector] = &[
        ("fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", 58, Some((135, 136)), "dGHyGvjMfljg6Bppwm3bg0LO8TY="),
        ("fe80::260:97ff:fe07:69ea", "fe80::200:86ff:fe05:80da", 58, Some((136, 135)), "dGHyGvjMfljg6Bppwm3bg0LO8TY="),
        ("fe80::260:97ff:fe07:69ea", "fe80::200:86ff:fe05:80da", 58, Some((135, 136)), "zavyT/cezQr1fmImYCwYnMXbgck="),
        ("fe80::200:86ff:fe05:80da", "fe80::260:97ff:fe07:69ea", 58, Some((136, 135)), "zavyT/cezQr1fmImYCwYnMXbgck="),
        ("3ffe:501:1800:2345::2", "3ffe:507:0:1:200:86ff:fe05:80da", 58, Some((3, 0)), "2ObVBgIn28oZvibYZhZMBgh7WdQ="),
        ("3ffe:501:410:0:2c0:dfff:fe47:33e", "3ffe:507:0:1:200:86ff:fe05:80da", 58, Some((1, 4)), "hLZd0XGWojozrvxqE0dWB1iM6R0="),
        ("3ffe:507:0:1:200:86ff:fe05:80da", "3ffe:501:0:1001::2", 58, Some((128, 129)), "+TW+HtLHvV1xnGhV1lv7XoJrqQg="),
        ("3ffe:501:0:1001::2", "3ffe:507:0:1:200:86ff:fe05:80da", 58, Some((129, 128)), "+TW+HtLHvV1xnGhV1lv7XoJrqQg="),
        ("fe80::200:86ff:fe05:80da", "ff02::2", 58, Some((133, 134)), "hO+sN4H+MG5MY/8hIrXPqc4ZQz0="),
        ("fe80::260:97ff:fe07:69ea", "ff02::1", 58, Some((134, 133)), "pkvHqCL88/tg1k4cPigmZXUtL00="),
        ("192.168.0.89", "192.168.0.1", 1, Some((8, 0)), "X0snYXpgwiv9TZtqg64sgzUn6Dk="),
        ("192.168.0.1", "192.168.0.89", 1, Some((0, 8)), "X0snYXpgwiv9TZtqg64sgzUn6Dk="),
        ("10.0.0.1", "10.0.0.2", 1, Some((11, 0)), "YHxtAirCG//0OzkcVAukqKQN9xM="),
        ("2001:470:e5bf:dead:4957:2174:e82c:4887", "2607:f8b0:400c:c03::1a", 6, Some((63943, 25)), "/qFaeAR+gFe1KYjMzVDsMv+wgU4="),
        ("2607:f8b0:400c:c03::1a", "2001:470:e5bf:dead:4957:2174:e82c:4887", 6, Some((25, 63943)), "/qFaeAR+gFe1KYjMzVDsMv+wgU4="),
        ("192.168.170.8", "192.168.170.56", 132, Some((7, 7)), "MP2EtRCAUIZvTw6MxJHLV7N7JDs="),
        ("192.168.170.56", "192.168.170.8", 132, Some((7, 7)), "MP2EtRCAUIZvTw6MxJHLV7N7JDs="),
        ("128.232.110.120", "66.35.250.204", 6, Some((34855, 80)), "LQU9qZlK+B5F3KDmev6m5PMibrg="),
        ("66.35.250.204", "128.232.110.120", 6, Some((80, 34855)), "LQU9qZlK+B5F3KDmev6m5PMibrg="),
        ("192.168.1.52", "8.8.8.8", 17, Some((54585, 53)), "d/FP5EW3wiY1vCndhwleRRKHowQ="),
        ("8.8.8.8", "192.168.1.52", 17, Some((53, 54585)), "d/FP5EW3wiY1vCndhwleRRKHowQ="),
        ("10.1.12.1", "10.1.12.2", 46, None, "KHlLkgoJW7ifUTyTSgyVfkFHzKw="),
        ("10.1.12.2", "10.1.12.1", 46, None, "KHlLkgoJW7ifUTyTSgyVfkFHzKw="),
    ];

    #[test]
    fn ids_match_the_published_vectors() {
        for (src, dst, protocol, ports, id) in TABLE.iter().chain(CAPTURES) {
            let ends =
                [src, dst].map(|it| it.parse::<IpAddr>().expect("vectors hold IP addresses"));
            let found = community_id(ends.into(), *protocol, *ports);
            assert_eq!(
                found,
                Some(format!("1:{id}")),
                "{src} {dst} {protocol} {ports:?}"
            );
        }
    }

    #[test]
    fn missing_ports_or_mixed_ip_versions_have_no_id() {
        let v4 = |last| IpAddr::from([1, 2, 3, last]);
        let ends = (v4(4), v4(5));
        for protocol in [protocol::TCP, protocol::UDP, protocol::SCTP, protocol::ICMP] {
            assert_eq!(community_id(ends, protocol, None), None);
        }
        assert_eq!(community_id(ends, protocol::ICMPV6, Some((128, 0))), None);
        let six = IpAddr::from([0; 16]);
        assert_eq!(
            community_id((v4(4), six), protocol::TCP, Some((1, 2))),
            None
        );
        assert!(community_id(ends, protocol::GRE, None).is_some());
    }
}
