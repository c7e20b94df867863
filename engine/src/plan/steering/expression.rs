//! The part of a filter expression that a NIC can do, as rules.
//!
//! What a filter knows of the frames it keeps ([`Constraints`]) becomes matches that take all of them, and as few others as
//! rules can tell apart. The expression itself is still asked of what they take, so that exactly its frames are kept.
//!
//! NICs differ in how far they look, and rules must not depend on it. So what follows from an S-tag or an extension
//! header stands twice: as for a NIC that stops there, and as for one that sees through. No NIC sees ports in a
//! fragment: a port is matched only where the filter leaves no fragments. Frames whose IP or transport header is cut
//! short or broken match no rule that asks for one, and so are with the kernel.

use super::{
    describe,
    frame_match::{Ip, Match, VLAN_ID},
};
use crate::{
    filter::{Constraints, Filter, OffsetOrigin},
    frame::ethertype::{IPV4, IPV6, OLD_QINQ, SERVICE_VLAN, VLAN},
    verbs::Masked,
};
use serde::Serialize;
use wqcap_rss::profile::Profile;

/// Most matches that are made of one expression.
const MOST: usize = 256;
/// Tags that NICs see through.
const MOST_TAGS: u32 = 2;
const STAGS: [u16; 2] = [SERVICE_VLAN, OLD_QINQ];
/// Smaller numbers in an EtherType's place are lengths (IEEE 802.3).
const FIRST_ETHERTYPE: u16 = 0x0600;
/// Extension headers of IPv6 (IANA, "IPv6 Extension Header Types"), but ESP, behind which nobody sees.
const EXTENSIONS: [u8; 8] = [0, 43, 51, 60, 135, 139, 140, FRAGMENT];
const FRAGMENT: u8 = 44;
/// More-fragments and the offset, in bytes 6 and 7 of an IPv4 header.
const FRAGMENT_BITS: [u8; 2] = [0x3f, 0xff];

/// How an expression is split between the NIC and the software behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Split {
    /// What rules take.
    pub nic: Vec<String>,
    /// What is asked of the frames they take: the whole expression, since rules tell less than it.
    pub software: String,
    #[serde(skip)]
    pub(super) matches: Vec<Match>,
    /// Those whose fragments not every NIC takes by them, nor by another.
    #[serde(skip)]
    pub(super) fragments: Vec<Match>,
}

impl Split {
    /// Splits a filter.
    ///
    /// # Errors
    /// There is nothing in it that rules can do: in words.
    pub(super) fn of(filter: &Filter) -> Result<Self, String> {
        let known = filter
            .constraints()
            .ok_or("it has too many alternatives, or a loop such as that of protochain")?;
        let (mut matches, mut fragments) = (Vec::new(), Vec::new());
        for it in known.iter().flat_map(matches_of) {
            if it == Match::default() {
                return Err(
                    "rules can match MAC destinations, EtherTypes, IP addresses, protocols and ports, and it keeps frames \
                     that have none of those in common"
                        .into(),
                );
            }
            add(&mut matches, it);
            if it.for_fragments().is_some() {
                add(&mut fragments, it);
            }
        }
        fragments.retain(|it| !it.has_its_fragments_taken_by(&matches));
        if matches.len() > MOST {
            return Err(format!(
                "it expands to {} matches; at most {MOST} are supported",
                matches.len()
            ));
        }
        let words = |it: &Match| describe(&it.specs(Profile::CatchAll));
        Ok(Self {
            nic: matches.iter().map(words).collect(),
            software: filter.expression().trim().to_owned(),
            matches,
            fragments,
        })
    }

    /// Whether the rules take all that another filter keeps.
    ///
    /// # Errors
    /// They do not: in words.
    pub fn allows(&self, filter: &Filter) -> Result<(), String> {
        let other = Self::of(filter)?;
        let is_taken = |it: &&Match| self.matches.iter().any(|mine| mine.covers(it));
        match other.matches.iter().find(|it| !is_taken(it)) {
            None => Ok(()),
            Some(missing) => Err(format!(
                "the NIC's rules were derived from {:?} and do not take {}",
                self.software,
                describe(&missing.specs(Profile::CatchAll))
            )),
        }
    }
}

/// Adds a match, unless another takes its frames too.
fn add(matches: &mut Vec<Match>, it: Match) {
    if !matches.iter().any(|old| old.covers(&it)) {
        matches.retain(|old| !it.covers(old));
        matches.push(it);
    }
}

/// Matches that together take every frame of which this is known.
fn matches_of(known: &Constraints) -> Vec<Match> {
    let mut it = Match::default();
    for (i, at) in (0..6).enumerate() {
        let bits = known.byte(OffsetOrigin::Start, at);
        (it.dst_mac.mask[i], it.dst_mac.value[i]) = (bits.mask, bits.value);
    }
    behind_tags(known, it, 12, 0)
}

/// The same, of frames whose next EtherType is at this offset behind so many tags.
fn behind_tags(known: &Constraints, it: Match, at: u32, tags: u32) -> Vec<Match> {
    let Some(ethertype) = known.half(OffsetOrigin::Start, at) else {
        return vec![it];
    };
    let plain = Match {
        ethertype: Some(ethertype),
        ..it
    };
    match ethertype {
        VLAN | SERVICE_VLAN | OLD_QINQ if tags == MOST_TAGS => vec![it],
        VLAN => behind_tags(known, tagged(known, it, at, tags), at + 4, tags + 1),
        tag if STAGS.contains(&tag) => {
            let mut both = behind_tags(known, it, at + 4, tags + 1);
            both.push(plain);
            both
        }
        IPV4 => ipv4(known, it, at + 2, plain),
        IPV6 => ipv6(known, it, at + 2, plain),
        FIRST_ETHERTYPE.. => vec![plain],
        _ => vec![it],
    }
}

/// With the identifier of a C-VLAN tag, which rules match in the first tag alone.
fn tagged(known: &Constraints, it: Match, at: u32, tags: u32) -> Match {
    let [high, low] = [2, 3].map(|i| known.byte(OffsetOrigin::Start, at + i));
    let mask = u16::from_be_bytes([high.mask, low.mask]) & VLAN_ID;
    if tags > 0 || mask != VLAN_ID {
        return it;
    }
    let vlan = Masked {
        value: u16::from_be_bytes([high.value, low.value]) & VLAN_ID,
        mask,
    };
    Match { vlan, ..it }
}

/// Of IPv4 packets, whose header begins at this offset. If nothing is known but that, `plain` takes broken ones too.
fn ipv4(known: &Constraints, it: Match, header: u32, plain: Match) -> Vec<Match> {
    let byte = |at| known.byte(OffsetOrigin::Start, header + at);
    let proto = byte(9);
    let proto = (proto.mask == 0xff).then_some(proto.value);
    let packet = Match {
        ip: Some(Ip::V4),
        src: number(known, header + 12, 4),
        dst: number(known, header + 16, 4),
        proto,
        ..it
    };
    let whole = (6..).zip(FRAGMENT_BITS).all(|(at, bits)| {
        let known = byte(at);
        known.mask & bits == bits && known.value & bits == 0
    });
    if whole {
        let whole = Match {
            whole: true,
            ..packet
        };
        return vec![ports(known, whole, OffsetOrigin::BehindIpv4(header), 0)];
    }
    with_broken(packet, it, plain)
}

/// The same of IPv6 packets.
fn ipv6(known: &Constraints, it: Match, header: u32, plain: Match) -> Vec<Match> {
    let next = |at| {
        let bits = known.byte(OffsetOrigin::Start, header + at);
        (bits.mask == 0xff).then_some(bits.value)
    };
    let packet = Match {
        ip: Some(Ip::V6),
        src: number(known, header + 8, 16),
        dst: number(known, header + 24, 16),
        ..it
    };
    let of = |proto| Match {
        proto: Some(proto),
        ..packet
    };
    match (next(6), next(40)) {
        (Some(FRAGMENT), Some(behind)) if !EXTENSIONS.contains(&behind) => {
            vec![of(FRAGMENT), of(behind)]
        }
        (Some(proto), _) if !EXTENSIONS.contains(&proto) => {
            vec![ports(known, of(proto), OffsetOrigin::Start, header + 40)]
        }
        _ => with_broken(packet, it, plain),
    }
}

/// A match of packets, and where it asks no more than their EtherType, of broken ones too.
fn with_broken(packet: Match, it: Match, plain: Match) -> Vec<Match> {
    let all = Match {
        ip: packet.ip,
        ..it
    };
    if packet == all {
        vec![packet, plain]
    } else {
        vec![packet]
    }
}

/// With the ports of a packet that is no fragment.
fn ports(known: &Constraints, it: Match, from: OffsetOrigin, at: u32) -> Match {
    if !it.proto.is_some_and(|proto| [6, 17].contains(&proto)) {
        return it;
    }
    let port = |at| known.half(from, at).map(Masked::exact).unwrap_or_default();
    Match {
        src_port: port(at),
        dst_port: port(at + 2),
        ..it
    }
}

/// What is known of an address.
fn number(known: &Constraints, at: u32, len: u32) -> Masked<u128> {
    (at..at + len).fold(Masked::default(), |it, at| {
        let bits = known.byte(OffsetOrigin::Start, at);
        Masked {
            value: it.value << 8 | u128::from(bits.value),
            mask: it.mask << 8 | u128::from(bits.mask),
        }
    })
}

impl Match {
    /// Whether its fragments find one of these, on whatever NIC.
    pub(super) fn has_its_fragments_taken_by(&self, others: &[Self]) -> bool {
        self.for_fragments()
            .is_none_or(|them| others.iter().any(|it| it.covers(&them)))
    }
}
