//! Parser of mlx5dv matchers: converts the NIC's match criteria (PRM "fte_match_param") into a
//! rule's match.
//!
//! Imports `frame` and `matching`. Invariants: a rule is refused if its mask has an unknown bit, so
//! that it never matches more than was requested. Sections that the criteria do not enable are
//! ignored.

use crate::frame::kind;
use crate::process::{Errno, refuse_if};

use super::matching::{Field, LayerMatch, Match, MatchCaps, MplsOver};

/// Sections of 64 bytes of the match criteria, each with its index and its bit in
/// `match_criteria_enable` (PRM "Create flow group").
const OUTER: (usize, u8) = (0, 1 << 0);
const MISC: (usize, u8) = (1, 1 << 1);
const INNER: (usize, u8) = (2, 1 << 2);
const MISC_2: (usize, u8) = (3, 1 << 3);
const SECTION: usize = 64;

/// Fields of `fte_match_set_lyr_2_4`: first bit and number of bits.
mod layer {
    pub const SMAC: (usize, usize) = (0x00, 48);
    pub const ETHERTYPE: (usize, usize) = (0x30, 16);
    pub const DMAC: (usize, usize) = (0x40, 48);
    /// Control information of the first VLAN tag: `first_prio`, `first_cfi`, `first_vid`.
    pub const FIRST_TAG: (usize, usize) = (0x70, 16);
    pub const IP_PROTOCOL: (usize, usize) = (0x80, 8);
    /// IP type of service: `ip_dscp`, `ip_ecn`.
    pub const TOS: (usize, usize) = (0x88, 8);
    pub const CVLAN_TAG: (usize, usize) = (0x90, 1);
    pub const SVLAN_TAG: (usize, usize) = (0x91, 1);
    pub const FRAGMENT: (usize, usize) = (0x92, 1);
    pub const IP_VERSION: (usize, usize) = (0x93, 4);
    pub const TCP_FLAGS: (usize, usize) = (0x97, 9);
    pub const TCP_SPORT: (usize, usize) = (0xa0, 16);
    pub const TCP_DPORT: (usize, usize) = (0xb0, 16);
    pub const TTL: (usize, usize) = (0xd8, 8);
    pub const UDP_SPORT: (usize, usize) = (0xe0, 16);
    pub const UDP_DPORT: (usize, usize) = (0xf0, 16);
    /// Halves of the source IP address (`src_ipv4_src_ipv6`), the one with the network first.
    pub const SOURCE: [(usize, usize); 2] = [(0x100, 64), (0x140, 64)];
    /// Halves of the destination IP address (`dst_ipv4_dst_ipv6`), the one with the network first.
    pub const DESTINATION: [(usize, usize); 2] = [(0x180, 64), (0x1c0, 64)];
}

/// Fields of `fte_match_set_misc`: first bit and number of bits.
mod misc {
    pub const GRE_PROTOCOL: (usize, usize) = (0x70, 16);
    pub const GRE_KEY: (usize, usize) = (0x80, 32);
    pub const VXLAN_VNI: (usize, usize) = (0xa0, 24);
    pub const OUTER_FLOW_LABEL: (usize, usize) = (0xec, 20);
    pub const INNER_FLOW_LABEL: (usize, usize) = (0x10c, 20);
    pub const OUTER_ESP_SPI: (usize, usize) = (0x180, 32);
}

/// Match that the criteria and values of a flow matcher define.
#[derive(Debug, PartialEq, Eq)]
pub struct ParsedMatch {
    /// Fields of a frame that the flow matcher's rule matches.
    pub rule: Match,
    /// Set when the flow matcher's rule matches only group addresses.
    pub multicast_only: bool,
}

/// Fields of `fte_match_set_misc2`, each one entry of an MPLS label stack.
mod misc_2 {
    pub const OUTER_FIRST_MPLS: (usize, usize) = (0x00, 32);
    pub const INNER_FIRST_MPLS: (usize, usize) = (0x20, 32);
    pub const OUTER_FIRST_MPLS_OVER_GRE: (usize, usize) = (0x40, 32);
    pub const OUTER_FIRST_MPLS_OVER_UDP: (usize, usize) = (0x60, 32);
}

/// Parses the `mask` and `value` of a flow matcher in the sections that `criteria` enables. Fails
/// with `EINVAL`: for values outside their masks like the kernel (`check_valid_spec`), for fields
/// that the device cannot match like the firmware.
pub fn parse(
    mask: &[u8],
    value: &[u8],
    criteria: u8,
    caps: MatchCaps,
) -> Result<ParsedMatch, Errno> {
    let masked = |(at, byte): (usize, &u8)| byte & !mask.get(at).copied().unwrap_or(0) == 0;
    if !value.iter().enumerate().all(masked)
        || criteria & !(OUTER.1 | MISC.1 | INNER.1 | MISC_2.1) != 0
    {
        return Err(libc::EINVAL);
    }
    let mut rule = Match::default();
    // A section that is not enabled is treated as one with a zero mask.
    let section = |(index, bit)| match criteria & bit {
        0 => CriteriaSection::new(index, &[], &[]),
        _ => CriteriaSection::new(index, mask, value),
    };
    let [mut outer, mut misc, mut inner, mut misc_2] = [OUTER, MISC, INNER, MISC_2].map(section);
    let multicast_only = outer.is_multicast();
    outer.read_layer(&mut rule.outer, caps);
    misc.read_misc(&mut rule, caps);
    inner.read_layer(&mut rule.inner, caps);
    if caps.mpls {
        misc_2.read_labels(&mut rule);
    }
    for section in [outer, misc, inner, misc_2] {
        section.finish()?;
    }
    refuse_if(!caps.tunnels && rule.has_tunnel_match(), libc::EINVAL)?;
    rule.normalize();
    Ok(ParsedMatch {
        rule,
        multicast_only,
    })
}

/// One section of 64 bytes of a flow matcher's mask and value. Fields that were read are cleared in
/// the mask.
struct CriteriaSection {
    mask: [u8; SECTION],
    value: [u8; SECTION],
}

impl CriteriaSection {
    fn new(index: usize, mask: &[u8], value: &[u8]) -> Self {
        let cut = |bytes: &[u8]| {
            let mut section = [0; SECTION];
            let rest = bytes.get(index * SECTION..).unwrap_or(&[]);
            let len = rest.len().min(SECTION);
            section[..len].copy_from_slice(&rest[..len]);
            section
        };
        Self {
            mask: cut(mask),
            value: cut(value),
        }
    }

    /// Reads value and mask of a field of the match criteria, and clears the field's mask.
    fn take(&mut self, (first, bits): (usize, usize)) -> (u64, u64) {
        let (mut value, mut mask) = (0, 0);
        for bit in first..first + bits {
            let (byte, place) = (bit / 8, 0x80 >> (bit % 8));
            value = value << 1 | u64::from(self.value[byte] & place != 0);
            mask = mask << 1 | u64::from(self.mask[byte] & place != 0);
            self.mask[byte] &= !place;
        }
        (value, mask)
    }

    /// Checks that every masked bit of the section was read as a known field. Fails with `EINVAL`
    /// otherwise.
    fn finish(&self) -> Result<(), Errno> {
        if self.mask == [0; SECTION] {
            Ok(())
        } else {
            Err(libc::EINVAL)
        }
    }

    /// Returns `true` if the section makes a flow rule a multicast rule: `raw_fs_is_multicast` of
    /// the driver, which reads an IPv4 address whatever the IP version.
    fn is_multicast(&self) -> bool {
        let (dmac, ipv4) = (layer::DMAC.0 / 8, layer::DESTINATION[1].0 / 8 + 4);
        let group = |bytes: &[u8; SECTION]| bytes[dmac] & 1 != 0;
        let class_d = |bytes: &[u8; SECTION]| bytes[ipv4] & 0xf0 == 0xe0;
        group(&self.value) && group(&self.mask) || class_d(&self.value) && class_d(&self.mask)
    }

    /// Reads the L2 to L4 fields of one layer of the match criteria (`fte_match_set_lyr_2_4`).
    fn read_layer(&mut self, to: &mut LayerMatch, caps: MatchCaps) {
        to.compare(Field::L2(0), self.take(layer::DMAC), 6);
        to.compare(Field::L2(6), self.take(layer::SMAC), 6);
        for (field, place) in [
            (Field::EtherType, layer::ETHERTYPE),
            (Field::Vlan, layer::FIRST_TAG),
            (Field::CvlanTag, layer::CVLAN_TAG),
            (Field::SvlanTag, layer::SVLAN_TAG),
            (caps.ip_protocol(), layer::IP_PROTOCOL),
            (Field::Tos, layer::TOS),
            (Field::Ttl, layer::TTL),
            (Field::Fragment, layer::FRAGMENT),
            (Field::Source(0), layer::SOURCE[0]),
            (Field::Source(1), layer::SOURCE[1]),
            (Field::Destination(0), layer::DESTINATION[0]),
            (Field::Destination(1), layer::DESTINATION[1]),
        ] {
            to.push(field, self.take(place));
        }
        match self.take(layer::IP_VERSION) {
            (4, 0xf) => to.kinds |= kind::IPV4,
            (6, 0xf) => to.kinds |= kind::IPV6,
            other => to.push(Field::IpVersion, other),
        }
        // Comparing ports or flags requires their header.
        for (transport, offset, place) in [
            (kind::TCP, 0, layer::TCP_SPORT),
            (kind::TCP, 2, layer::TCP_DPORT),
            (kind::TCP, 12, layer::TCP_FLAGS),
            (kind::UDP, 0, layer::UDP_SPORT),
            (kind::UDP, 2, layer::UDP_DPORT),
        ] {
            let (value, mask) = self.take(place);
            if mask != 0 {
                to.kinds |= transport;
                to.compare(Field::L4(offset), (value, mask), 2);
            }
        }
    }

    /// Reads the MPLS labels of `fte_match_set_misc2`.
    fn read_labels(&mut self, rule: &mut Match) {
        let mut read = |layer: &mut LayerMatch, over, place| {
            layer.push(Field::Mpls(over), self.take(place));
        };
        let (outer, inner) = (&mut rule.outer, &mut rule.inner);
        read(outer, MplsOver::Ethernet, misc_2::OUTER_FIRST_MPLS);
        read(inner, MplsOver::Ethernet, misc_2::INNER_FIRST_MPLS);
        read(outer, MplsOver::Gre, misc_2::OUTER_FIRST_MPLS_OVER_GRE);
        read(outer, MplsOver::Udp, misc_2::OUTER_FIRST_MPLS_OVER_UDP);
    }

    /// Reads the ESP, GRE, VXLAN and flow label fields of `fte_match_set_misc`.
    fn read_misc(&mut self, rule: &mut Match, caps: MatchCaps) {
        if caps.esp {
            rule.outer.push(Field::Spi, self.take(misc::OUTER_ESP_SPI));
        }
        for (field, place) in [
            (Field::GreProtocol, misc::GRE_PROTOCOL),
            (Field::GreKey, misc::GRE_KEY),
            (Field::Vni, misc::VXLAN_VNI),
        ] {
            rule.tunnel.push(field, self.take(place));
        }
        for (to, place) in [
            (&mut rule.outer, misc::OUTER_FLOW_LABEL),
            (&mut rule.inner, misc::INNER_FLOW_LABEL),
        ] {
            let (value, mask) = self.take(place);
            if mask != 0 {
                to.kinds |= kind::IPV6;
                to.compare(Field::L3(0), (value, mask), 4);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::ParsedFrame;
    use crate::steering::flow_spec::tests::{ALL, NOTHING};
    use wqcap_rss::FrameClass;

    /// Builder of a flow matcher's criteria and values in tests, field by field.
    #[derive(Default)]
    struct Criteria {
        mask: Vec<u8>,
        value: Vec<u8>,
    }

    impl Criteria {
        fn with(mut self, section: usize, (first, bits): (usize, usize), value: u64) -> Self {
            self.mask.resize(4 * SECTION, 0);
            self.value.resize(4 * SECTION, 0);
            for bit in 0..bits {
                let at = section * SECTION * 8 + first + bit;
                self.mask[at / 8] |= 0x80 >> (at % 8);
                if value >> (bits - 1 - bit) & 1 != 0 {
                    self.value[at / 8] |= 0x80 >> (at % 8);
                }
            }
            self
        }

        fn outer(self, place: (usize, usize), value: u64) -> Self {
            self.with(0, place, value)
        }

        fn parse(&self, criteria: u8) -> Result<ParsedMatch, Errno> {
            parse(&self.mask, &self.value, criteria, ALL)
        }

        fn matches(&self, frame: &[u8]) -> bool {
            let rule = self
                .parse(OUTER.1 | MISC.1 | INNER.1 | MISC_2.1)
                .unwrap()
                .rule;
            rule.matches(&ParsedFrame::new(frame, &FrameClass::from_frame(frame), 0))
        }
    }

    fn criteria() -> Criteria {
        Criteria::default()
    }

    const UDP: [u8; 42] = [
        2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0xb9, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10,
        0, 0, 1, 10, 0, 0, 2, 0x30, 0, 0, 53, 0, 8, 0, 0,
    ];

    #[test]
    fn fields_have_the_positions_of_the_prm() {
        let right: [((usize, usize), u64); 12] = [
            (layer::DMAC, 0x02_00_00_00_00_01),
            (layer::SMAC, 0x02_00_00_00_00_02),
            (layer::ETHERTYPE, 0x0800),
            (layer::IP_PROTOCOL, 17),
            (layer::TOS, 0xb9),
            (layer::TTL, 64),
            (layer::FRAGMENT, 0),
            (layer::CVLAN_TAG, 0),
            (layer::IP_VERSION, 4),
            (layer::UDP_SPORT, 0x3000),
            (layer::UDP_DPORT, 53),
            (layer::DESTINATION[1], 0x0a00_0002),
        ];
        for (place, value) in right {
            assert!(criteria().outer(place, value).matches(&UDP), "{place:x?}");
            let other = criteria().outer(place, value ^ 1);
            assert!(!other.matches(&UDP), "{place:x?} is another value");
        }
        let all = right.iter().fold(criteria(), |asked, (place, value)| {
            asked.outer(*place, *value)
        });
        assert!(all.matches(&UDP));
        assert!(!criteria().outer(layer::TCP_DPORT, 53).matches(&UDP));
        assert!(!criteria().outer(layer::SVLAN_TAG, 1).matches(&UDP));
    }

    #[test]
    fn tags_addresses_and_flags_of_other_frames() {
        let mut tcp = vec![
            2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x60, 7, 0x86, 0xdd,
        ];
        tcp.extend([0x6b, 0x91, 0x23, 0x45, 0, 20, 6, 63]);
        tcp.extend((0..32).map(|byte| byte + 0x40));
        tcp.extend([
            0, 22, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0,
        ]);
        for (place, value) in [
            (layer::CVLAN_TAG, 1),
            (layer::FIRST_TAG, 0x6007),
            (layer::IP_VERSION, 6),
            (layer::TOS, 0xb9),
            (layer::TTL, 63),
            (layer::SOURCE[0], 0x4041_4243_4445_4647),
            (layer::DESTINATION[1], 0x5859_5a5b_5c5d_5e5f),
            (layer::TCP_SPORT, 22),
            (layer::TCP_FLAGS, 0x12),
        ] {
            assert!(criteria().outer(place, value).matches(&tcp), "{place:x?}");
            assert!(
                !criteria().outer(place, value ^ 1).matches(&tcp),
                "{place:x?}"
            );
        }
        assert!(
            criteria()
                .with(1, misc::OUTER_FLOW_LABEL, 0x12345)
                .matches(&tcp)
        );
        assert!(
            !criteria()
                .with(1, misc::OUTER_FLOW_LABEL, 0x12346)
                .matches(&tcp)
        );
    }

    #[test]
    fn fields_that_cannot_be_matched_are_refused() {
        let refused = |asked: Criteria, criteria| asked.parse(criteria).unwrap_err();
        // `ipv4_ihl`, `source_sqn`, and `metadata_reg_c_7`.
        assert_eq!(
            refused(criteria().outer((0xd0, 4), 5), OUTER.1),
            libc::EINVAL
        );
        assert_eq!(
            refused(criteria().with(1, (8, 24), 1), MISC.1),
            libc::EINVAL
        );
        assert_eq!(
            refused(criteria().with(3, (0x80, 32), 1), MISC_2.1),
            libc::EINVAL
        );
        let mut outside_mask = criteria().outer(layer::ETHERTYPE, 0x0800);
        outside_mask.value[0] = 1;
        assert_eq!(refused(outside_mask, OUTER.1), libc::EINVAL);
        let inner = criteria().with(2, layer::IP_PROTOCOL, 6);
        assert_eq!(
            parse(&inner.mask, &inner.value, INNER.1, NOTHING).unwrap_err(),
            libc::EINVAL
        );
        // A section that the criteria do not enable is ignored.
        assert_eq!(inner.parse(OUTER.1).unwrap().rule, Match::default());
    }

    #[test]
    fn short_masks_and_values_are_zero_beyond_their_end() {
        let ethertype = criteria().outer(layer::ETHERTYPE, 0x0800);
        let parsed = parse(&ethertype.mask[..8], &ethertype.value[..8], OUTER.1, ALL);
        assert_eq!(parsed, ethertype.parse(OUTER.1));
        assert!(parse(&[], &[], OUTER.1, ALL).is_ok());
        assert_eq!(parse(&[], &[1], OUTER.1, ALL).unwrap_err(), libc::EINVAL);
    }

    #[test]
    fn group_addresses_are_recognised() {
        let multicast = |asked: Criteria| asked.parse(OUTER.1).unwrap().multicast_only;
        assert!(multicast(criteria().outer(layer::DMAC, 0x0100_5e00_0001)));
        assert!(!multicast(criteria().outer(layer::DMAC, 0x0200_0000_0001)));
        // As in the driver: the mask of a class D address is checked like an address.
        assert!(!multicast(
            criteria().outer(layer::DESTINATION[1], 0xe000_0001)
        ));
    }
}
