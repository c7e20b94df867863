//! Necessary conditions that a filter expression puts on a flow, derived from plain conjunctions
//! (`and`).

use super::flow::{ARP, IPV4, IPV6, IndexFlow, PORTED, RARP};
use std::{iter::Peekable, net::IpAddr, str::SplitWhitespace};

/// Necessary conditions of a filter expression: every frame that the expression accepts satisfies
/// them. They are not sufficient, so the expression is still applied to each frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTerms(pub(super) Vec<Term>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Term {
    Ethertype(u16),
    /// Condition on the protocol number in the IPv4 or IPv6 header of the flow's frames.
    Protocol(u8),
    Host(IpAddr),
    Port(u16),
}

/// Keywords of filter expressions for an ethertype or a protocol, used alone or before `host` and
/// `port`.
const WORDS: [(&str, Term); 10] = [
    ("ip", Term::Ethertype(IPV4)),
    ("ip6", Term::Ethertype(IPV6)),
    ("arp", Term::Ethertype(ARP)),
    ("rarp", Term::Ethertype(RARP)),
    ("tcp", Term::Protocol(6)),
    ("udp", Term::Protocol(17)),
    ("sctp", Term::Protocol(132)),
    ("icmp", Term::Protocol(1)),
    ("icmp6", Term::Protocol(58)),
    ("igmp", Term::Protocol(2)),
];

impl FlowTerms {
    /// Parses a filter expression that joins `host`, `port`, protocols and `vlan` with `and`. Any
    /// other expression yields no terms, which allow every flow: a missing term is safe, a wrong
    /// one is not.
    #[must_use]
    pub fn parse(expression: &str) -> Self {
        let mut words = expression.split_whitespace().peekable();
        if words.peek().is_none() {
            return Self::default();
        }
        let mut terms = Vec::new();
        loop {
            if term(&mut words, &mut terms).is_none() {
                return Self::default();
            }
            match words.next() {
                None => return Self(terms),
                Some("and" | "&&") => {}
                Some(_) => return Self::default(),
            }
        }
    }

    /// Returns `true` if the filter expression yielded no conditions, so that every flow is
    /// allowed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if the filter expression may accept a frame of this flow.
    #[must_use]
    pub fn allows(&self, flow: &IndexFlow) -> bool {
        self.0.iter().all(|it| it.allows(flow))
    }

    /// Returns `true` if the filter expression may accept a frame of this flow, whose ports are not
    /// known.
    #[must_use]
    pub fn allows_with_some_ports(&self, flow: &IndexFlow) -> bool {
        self.0.iter().all(|it| match it {
            Term::Port(_) => PORTED.contains(&flow.protocol),
            _ => it.allows(flow),
        })
    }

    /// Returns `true` if the filter expression may accept a frame of this flow, whose IPv4 addresses
    /// are not known.
    #[must_use]
    pub fn allows_with_some_addresses(&self, flow: &IndexFlow) -> bool {
        self.0.iter().all(|it| match it {
            Term::Host(IpAddr::V4(_)) => true,
            _ => it.allows(flow),
        })
    }
}

impl Term {
    fn allows(self, flow: &IndexFlow) -> bool {
        match self {
            Self::Ethertype(ethertype) => flow.ethertype == ethertype,
            Self::Protocol(n) => [IPV4, IPV6].contains(&flow.ethertype) && flow.protocol == n,
            Self::Host(address) => flow.has_address(address),
            Self::Port(port) => flow.has_port(port),
        }
    }
}

/// Parses one term of a filter expression: `[protocol] [src | dst] host ADDRESS | port NUMBER`, a
/// protocol alone, or `vlan [NUMBER]`. The last adds no condition, because flows are read after all
/// tags. `None`: the term has another form.
fn term(words: &mut Peekable<SplitWhitespace<'_>>, terms: &mut Vec<Term>) -> Option<()> {
    if words.next_if_eq(&"vlan").is_some() {
        words.next_if(|word| number(word).is_some());
        return Some(());
    }
    let known = |word: &&str| WORDS.iter().any(|(name, _)| name == word);
    let protocol = words.next_if(known);
    terms.extend(
        WORDS
            .iter()
            .filter(|(name, _)| Some(*name) == protocol)
            .map(|(_, term)| *term),
    );
    let directed = words.next_if(|w| ["src", "dst"].contains(w)).is_some();
    let kind = words.next_if(|word| ["host", "port"].contains(word));
    match (kind, protocol) {
        (Some("port"), _) => terms.push(Term::Port(number(words.next()?)?)),
        (Some(_), _) => terms.push(Term::Host(words.next()?.parse().ok()?)),
        (None, _) if directed => terms.push(Term::Host(words.next()?.parse().ok()?)),
        (None, Some(_)) => {}
        (None, None) => return None,
    }
    Some(())
}

/// Parses a decimal number in a filter expression. Leading zeros are refused, because libpcap reads
/// such numbers as octal.
fn number(word: &str) -> Option<u16> {
    let plain = word.bytes().all(|b| b.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
    plain.then(|| word.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wqcap_frame::filter::Filter;

    #[test]
    fn only_conjunctions_are_parsed() {
        let host = |text: &str| Term::Host(text.parse().expect("address"));
        let all = [
            ("host 10.0.0.1", vec![host("10.0.0.1")]),
            (
                "tcp port 80 and src host ::1",
                vec![Term::Protocol(6), Term::Port(80), host("::1")],
            ),
            ("vlan 7 && dst 10.0.0.1", vec![host("10.0.0.1")]),
            ("vlan and arp", vec![Term::Ethertype(ARP)]),
            (
                "udp and dst port 53",
                vec![Term::Protocol(17), Term::Port(53)],
            ),
        ];
        for (expression, terms) in all {
            assert_eq!(
                FlowTerms::parse(expression),
                FlowTerms(terms),
                "{expression}"
            );
        }
        for expression in [
            "",
            "tcp or udp",
            "not host 10.0.0.1",
            "host 10.1",
            "host a.example",
            "port http",
            "port 010",
            "port 80 and 443",
            "(tcp) and port 80",
            "mpls and host 10.0.0.1",
            "tcp[13] = 2",
            "host 10.0.0.1 and",
            "host 10.0.0.1 port 5",
            "ether host 1:2:3:4:5:6",
            "src or dst host 10.0.0.1",
        ] {
            assert!(FlowTerms::parse(expression).is_empty(), "{expression}");
        }
    }

    fn chosen<T: Clone + std::fmt::Debug + 'static>(of: &[T]) -> impl Strategy<Value = T> + use<T> {
        proptest::sample::select(of.to_vec())
    }

    prop_compose! {
        /// Generates frames that nearly match filters: few addresses and ports, all header lengths,
        /// tags, fragments, cut anywhere.
        fn near_frames()(
            tags in 0usize..3,
            ethertype in chosen(&[IPV4, IPV6, ARP, RARP, 0x88cc]),
            protocol in chosen(&[6u8, 17, 132, 1, 58, 44, 2]),
            inner in chosen(&[6u8, 17, 58]),
            header in 4u8..8,
            fragment in chosen(&[0u16, 0x2000, 1, 0x4000]),
            ends in proptest::collection::vec(chosen(&[0u8, 1, 2]), 4),
            cut in 0usize..120,
        ) -> Vec<u8> {
            let mut frame = vec![0; 12];
            for tag in 0..tags {
                frame.extend([[0x81, 0], [0x88, 0xa8], [0x91, 0]][tag]);
                frame.extend([0, 7]);
            }
            frame.extend(ethertype.to_be_bytes());
            let mut packet = vec![0; 90];
            let mut ports = 40;
            match ethertype {
                IPV4 => {
                    packet[0] = 0x40 | header;
                    packet[6..8].copy_from_slice(&fragment.to_be_bytes());
                    packet[9] = protocol;
                    packet[12..20].copy_from_slice(&[10, 0, 0, ends[0], 10, 0, 0, ends[1]]);
                    ports = usize::from(header) * 4;
                }
                IPV6 => {
                    packet[6] = protocol;
                    (packet[23], packet[39]) = (ends[0], ends[1]);
                    packet[40] = inner;
                }
                _ => {
                    packet[14..18].copy_from_slice(&[10, 0, 0, ends[0]]);
                    packet[24..28].copy_from_slice(&[10, 0, 0, ends[1]]);
                }
            }
            if !(ethertype == IPV6 && protocol == 44) {
                (packet[ports + 1], packet[ports + 3]) = (ends[2], ends[3]);
            }
            frame.extend(packet);
            frame.truncate(frame.len().saturating_sub(cut));
            frame
        }
    }

    #[test]
    fn flows_of_accepted_frames_are_allowed() {
        let expressions = [
            "host 10.0.0.1",
            "src host 10.0.0.2 and port 1",
            "host ::1",
            "ip6 host ::2 and udp",
            "tcp",
            "tcp port 1",
            "udp and dst port 2",
            "sctp and port 0",
            "icmp and host 10.0.0.1",
            "icmp6",
            "igmp",
            "arp and host 10.0.0.2",
            "rarp host 10.0.0.1",
            "ip and port 2",
            "vlan and host 10.0.0.1",
            "vlan 7 and tcp port 1",
            "vlan and vlan 7 and host ::1 and tcp",
            "host 10.0.0.1 and host 10.0.0.2",
            "port 1 and port 2 and host 10.0.0.1",
            "host 10.0.0.1 and host 10.0.0.2 and tcp port 1",
            "host 10.0.0.1 and host 10.0.0.2 and port 1 and port 2",
        ]
        .map(|text| {
            let terms = FlowTerms::parse(text);
            assert!(!terms.is_empty(), "{text}");
            (
                text,
                Filter::compile(text).expect("compiles"),
                terms,
                std::cell::Cell::new((0, 0)),
            )
        });
        proptest!(ProptestConfig::with_cases(20_000), |(frame in near_frames())| {
            let len = u32::try_from(frame.len()).unwrap();
            let flow = IndexFlow::new(&frame);
            let has = flow.keys();
            for (text, filter, terms, counts) in &expressions {
                let (accepted, allowed) = (filter.accepts(&frame, len), terms.allows(&flow));
                prop_assert!(allowed || !accepted, "{} {:?}", text, frame);
                // For a single flow, the test by keys gives the same result.
                let by_keys = terms.keys().iter().all(|it| has.contains(it));
                prop_assert_eq!(by_keys, allowed, "{} {:?}", text, frame);
                let (a, b) = counts.get();
                counts.set((a + u32::from(accepted), b + u32::from(!allowed)));
            }
        });
        for (text, _, _, counts) in &expressions {
            let (accepted, refused) = counts.get();
            assert!(
                accepted > 0 && refused > 0,
                "{text}: {accepted} accepted, {refused} not allowed"
            );
        }
    }
}
