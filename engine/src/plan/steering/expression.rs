//! Translation of a filter expression into the flow rules that a NIC can apply.
//!
//! The constraints that a filter puts on the frames it keeps ([`Constraints`]) become matches. The
//! matches take all of these frames, and as few others as rules can exclude. The software applies
//! the whole expression to the frames that the rules take, so that exactly the expression's frames
//! are kept.
//!
//! NICs differ in how deep they parse, and rules must not depend on it. So a match behind an S-tag
//! or an extension header is made twice: for a NIC that stops there, and for a NIC that parses
//! further. No NIC sees ports in a fragment: a port is matched only where the filter keeps no
//! fragments. Frames whose IP or transport header is truncated or malformed do not match a rule on
//! that header, and the kernel receives them.

use super::{
    describe,
    frame_match::{FrameMatch, Ip, VLAN_ID},
};
use crate::{
    filter::{Constraints, Filter, OffsetOrigin},
    frame::ethertype::{IPV4, IPV6, OLD_QINQ, SERVICE_VLAN, VLAN},
    verbs::Masked,
};
use serde::Serialize;
use wqcap_rss::profile::Profile;

/// Maximum number of frame matches (flow rules) that one filter expression may expand to.
const MOST: usize = 256;
/// Maximum number of VLAN tags that the flow rules of NICs look behind.
const MOST_TAGS: u32 = 2;
/// EtherTypes of service VLAN tags (S-VLAN).
const STAGS: [u16; 2] = [SERVICE_VLAN, OLD_QINQ];
/// Smallest EtherType of an Ethernet frame; smaller values in its field are lengths (IEEE 802.3).
const FIRST_ETHERTYPE: u16 = 0x0600;
/// Extension headers of IPv6 (IANA, "IPv6 Extension Header Types") without ESP, whose payload is
/// encrypted.
const EXTENSIONS: [u8; 8] = [0, 43, 51, 60, 135, 139, 140, FRAGMENT];
/// Next-header value of the IPv6 fragment header.
const FRAGMENT: u8 = 44;
/// Mask of the more-fragments flag and the offset in bytes 6 and 7 of an IPv4 header.
const FRAGMENT_BITS: [u8; 2] = [0x3f, 0xff];

/// Reason why flow rules cannot select the frames of a filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// Filter whose constraints on frames cannot be determined.
    #[error("the filter has too many alternatives, or a loop such as that of protochain")]
    TooComplex,
    /// Filter that constrains no field that flow rules match.
    #[error(
        "the filter keeps frames with any MAC destination, EtherType, IP address, protocol and port, and rules can match \
         only these fields"
    )]
    Unconstrained,
    /// Filter that expands to this number of frame matches, which is too large.
    #[error("the filter expands to {0} matches of flow rules; at most {MOST} are supported")]
    TooManyMatches(usize),
    /// New filter that keeps frames which the installed flow rules do not take.
    #[error(
        "the flow rules of the NIC were derived from the filter {installed:?} and do not take {missing}; restart the \
         capture with the new filter"
    )]
    NotTaken {
        /// Filter expression that the installed flow rules were derived from.
        installed: String,
        /// Readable text of a frame match that the installed flow rules miss.
        missing: String,
    },
}

/// Split of a filter expression between the NIC and the software.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Split {
    /// Readable text of the frame matches that the NIC applies.
    pub nic: Vec<String>,
    /// Filter expression that the software applies: the whole filter, because flow rules are less
    /// precise.
    pub software: String,
    /// Frame matches that the NIC applies by its flow rules.
    #[serde(skip)]
    pub(super) matches: Vec<FrameMatch>,
    /// Frame matches whose IPv4 fragments some NICs take neither by this match nor by another.
    #[serde(skip)]
    pub(super) fragments: Vec<FrameMatch>,
}

impl Split {
    /// Splits the filter expression of `filter` between the NIC and the software.
    ///
    /// # Errors
    /// Rules cannot express any part of the filter; the error is the reason.
    pub(super) fn from_filter(filter: &Filter) -> Result<Self, SplitError> {
        let known = filter.constraints().ok_or(SplitError::TooComplex)?;
        let (mut matches, mut fragments) = (Vec::new(), Vec::new());
        for it in known.iter().flat_map(matches_of) {
            if it == FrameMatch::default() {
                return Err(SplitError::Unconstrained);
            }
            add(&mut matches, it);
            if it.for_fragments().is_some() {
                add(&mut fragments, it);
            }
        }
        fragments.retain(|it| !it.has_its_fragments_taken_by(&matches));
        if matches.len() > MOST {
            return Err(SplitError::TooManyMatches(matches.len()));
        }
        let words = |it: &FrameMatch| describe(&it.specs(Profile::CatchAll));
        Ok(Self {
            nic: matches.iter().map(words).collect(),
            software: filter.expression().trim().to_owned(),
            matches,
            fragments,
        })
    }

    /// Checks that the flow rules, derived from the first filter, take every frame that the capture
    /// filter `filter` keeps.
    ///
    /// # Errors
    /// The rules miss frames of the filter; the error names a missing match.
    pub fn allows(&self, filter: &Filter) -> Result<(), SplitError> {
        let other = Self::from_filter(filter)?;
        let is_taken = |it: &&FrameMatch| self.matches.iter().any(|mine| mine.covers(it));
        match other.matches.iter().find(|it| !is_taken(it)) {
            None => Ok(()),
            Some(missing) => Err(SplitError::NotTaken {
                installed: self.software.clone(),
                missing: describe(&missing.specs(Profile::CatchAll)),
            }),
        }
    }
}

/// Adds the frame match `it` to `matches` unless another one covers it, and removes the matches
/// that it covers.
fn add(matches: &mut Vec<FrameMatch>, it: FrameMatch) {
    if !matches.iter().any(|old| old.covers(&it)) {
        matches.retain(|old| !it.covers(old));
        matches.push(it);
    }
}

/// Returns the frame matches that together take every frame that satisfies the filter's
/// constraints.
fn matches_of(known: &Constraints) -> Vec<FrameMatch> {
    let mut it = FrameMatch::default();
    for (i, at) in (0..6).enumerate() {
        let bits = known.byte(OffsetOrigin::Start, at);
        (it.dst_mac.mask[i], it.dst_mac.value[i]) = (bits.mask, bits.value);
    }
    behind_tags(known, it, 12, 0)
}

/// Extends `it` to matches of frames whose next EtherType is at offset `at`, after `tags` VLAN
/// tags.
fn behind_tags(known: &Constraints, it: FrameMatch, at: u32, tags: u32) -> Vec<FrameMatch> {
    let Some(ethertype) = known.half(OffsetOrigin::Start, at) else {
        return vec![it];
    };
    let plain = FrameMatch {
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

/// Adds the identifier of a C-VLAN tag to the frame match. Flow rules match it only in the first
/// tag.
fn tagged(known: &Constraints, it: FrameMatch, at: u32, tags: u32) -> FrameMatch {
    let [high, low] = [2, 3].map(|i| known.byte(OffsetOrigin::Start, at + i));
    let mask = u16::from_be_bytes([high.mask, low.mask]) & VLAN_ID;
    if tags > 0 || mask != VLAN_ID {
        return it;
    }
    let vlan = Masked {
        value: u16::from_be_bytes([high.value, low.value]) & VLAN_ID,
        mask,
    };
    FrameMatch { vlan, ..it }
}

/// Returns the frame matches of IPv4 packets whose header begins at offset `header`.
///
/// If the constraints are on the EtherType only, `plain` is added: it takes malformed packets too.
fn ipv4(known: &Constraints, it: FrameMatch, header: u32, plain: FrameMatch) -> Vec<FrameMatch> {
    let byte = |at| known.byte(OffsetOrigin::Start, header + at);
    let proto = byte(9);
    let proto = (proto.mask == 0xff).then_some(proto.value);
    let packet = FrameMatch {
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
        let whole = FrameMatch {
            whole: true,
            ..packet
        };
        return vec![ports(known, whole, OffsetOrigin::BehindIpv4(header), 0)];
    }
    with_broken(packet, it, plain)
}

/// Returns the frame matches of IPv6 packets whose header begins at offset `header`.
fn ipv6(known: &Constraints, it: FrameMatch, header: u32, plain: FrameMatch) -> Vec<FrameMatch> {
    let next = |at| {
        let bits = known.byte(OffsetOrigin::Start, header + at);
        (bits.mask == 0xff).then_some(bits.value)
    };
    let packet = FrameMatch {
        ip: Some(Ip::V6),
        src: number(known, header + 8, 16),
        dst: number(known, header + 24, 16),
        ..it
    };
    let of = |proto| FrameMatch {
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

/// Returns the frame match `packet`, and also `plain`, which takes malformed packets, if `packet`
/// constrains only the EtherType.
fn with_broken(packet: FrameMatch, it: FrameMatch, plain: FrameMatch) -> Vec<FrameMatch> {
    let all = FrameMatch {
        ip: packet.ip,
        ..it
    };
    if packet == all {
        vec![packet, plain]
    } else {
        vec![packet]
    }
}

/// Adds the TCP or UDP ports at offset `at` to the frame match of an unfragmented packet.
fn ports(known: &Constraints, it: FrameMatch, from: OffsetOrigin, at: u32) -> FrameMatch {
    if !it.proto.is_some_and(|proto| [6, 17].contains(&proto)) {
        return it;
    }
    let port = |at| known.half(from, at).map(Masked::exact).unwrap_or_default();
    FrameMatch {
        src_port: port(at),
        dst_port: port(at + 2),
        ..it
    }
}

/// Returns the known bits of the IP address of `len` bytes at offset `at`.
fn number(known: &Constraints, at: u32, len: u32) -> Masked<u128> {
    (at..at + len).fold(Masked::default(), |it, at| {
        let bits = known.byte(OffsetOrigin::Start, at);
        Masked {
            value: it.value << 8 | u128::from(bits.value),
            mask: it.mask << 8 | u128::from(bits.mask),
        }
    })
}

impl FrameMatch {
    /// Returns `true` if one of the frame matches `others` takes the IPv4 fragments of this match
    /// on every NIC.
    pub(super) fn has_its_fragments_taken_by(&self, others: &[Self]) -> bool {
        self.for_fragments()
            .is_none_or(|them| others.iter().any(|it| it.covers(&them)))
    }
}
