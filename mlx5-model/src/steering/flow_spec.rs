//! Parser of flow specs: converts those of EX_CREATE_FLOW into a rule's match and actions.
//!
//! Imports `abi`, `frame` and `matching`. Invariant: every spec that the kernel or the mlx5 driver
//! refuses is refused with the same errno, before a rule exists.

use crate::abi;
use crate::abi::read_from;
use crate::frame::kind;
use crate::process::{Errno, refuse_if};

use super::matching::{ETHERTYPES_MPLS, Field, LayerMatch, Match, MatchCaps, MplsOver};
use super::tunnel::PROTOCOL_GRE;

/// Values of `enum ib_flow_spec_type`, which no uAPI header defines.
mod spec_type {
    pub const ETH: u32 = 0x20;
    pub const IPV4: u32 = 0x30;
    pub const IPV6: u32 = 0x31;
    pub const ESP: u32 = 0x34;
    pub const TCP: u32 = 0x40;
    pub const UDP: u32 = 0x41;
    pub const VXLAN_TUNNEL: u32 = 0x50;
    pub const GRE: u32 = 0x51;
    pub const MPLS: u32 = 0x60;
    pub const INNER: u32 = 0x100;
    pub const ACTION_TAG: u32 = 0x1000;
    pub const ACTION_DROP: u32 = 0x1001;
    pub const ACTION_HANDLE: u32 = 0x1002;
    pub const ACTION_COUNT: u32 = 0x1003;
}

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// Maximum number of flow specs of a flow rule (`IB_FLOW_SPEC_SUPPORT_LAYERS`).
pub const MAX_SPECS: u8 = 10;

/// Match and actions that the flow specs of a rule define.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedSpecs {
    /// Fields of a frame that the flow rule matches.
    pub rule: Match,
    pub tag: Option<u32>,
    /// Handle of the flow counters that the flow rule names.
    pub counters: Option<u32>,
    /// Set when the flow rule drops its frames.
    pub drop: bool,
    /// Set when the rule's first flow spec matches only group addresses: such rules have a separate
    /// priority.
    pub multicast_only: bool,
}

/// State of the flow spec parser for one layer of headers, outer or inner.
#[derive(Default)]
struct LayerSpecs {
    ethertype: Option<(u16, u16)>,
    ip: Option<u32>,
    protocol: Option<(u8, u8)>,
}

impl LayerSpecs {
    /// Records the IP protocol that a flow spec matches. Fails with `EINVAL` if another spec of the
    /// layer matches a different protocol.
    fn protocol(&mut self, mask: u8, value: u8) -> Result<(), Errno> {
        match self.protocol {
            _ if mask == 0 => Ok(()),
            Some(known) if known != (mask, value) => Err(libc::EINVAL),
            _ => {
                self.protocol = Some((mask, value));
                Ok(())
            }
        }
    }

    /// Checks the EtherType of an Ethernet flow spec as `is_valid_ethertype` of the driver does:
    /// next to an IP spec it must be that spec's EtherType or MPLS.
    fn check_ethertype(&self) -> Result<(), Errno> {
        let (Some((mask, value)), Some(ip)) = (self.ethertype, self.ip) else {
            return Ok(());
        };
        let expected = if ip == spec_type::IPV4 {
            ETHERTYPE_IPV4
        } else {
            ETHERTYPE_IPV6
        };
        let agree = mask == 0xffff && (value == expected || ETHERTYPES_MPLS.contains(&value));
        if agree { Ok(()) } else { Err(libc::EINVAL) }
    }
}

/// Value and mask of the filter in a flow spec, zero-extended to `N` bytes.
struct SpecFilter<const N: usize> {
    value: [u8; N],
    mask: [u8; N],
}

impl<const N: usize> SpecFilter<N> {
    /// Reads the filter of a flow spec as `ib_uverbs_kern_spec_to_ib_spec_filter` of
    /// drivers/infiniband/core/uverbs_cmd.c does. Its size is a multiple of 4, and a mask that is
    /// longer than the kernel's ends in zeroes (`spec_filter_size`). The kernel does not read the
    /// value's bytes beyond its own structure.
    fn read(body: &[u8]) -> Result<Self, Errno> {
        let half = body.len() / 2;
        let known = half.min(N);
        refuse_if(half == 0 || !half.is_multiple_of(4), libc::EINVAL)?;
        let (value, mask) = (&body[..half], &body[half..half * 2]);
        refuse_if(mask[known..].iter().any(|&byte| byte != 0), libc::EINVAL)?;
        let side = |bytes: &[u8]| {
            let mut side = [0; N];
            side[..known].copy_from_slice(&bytes[..known]);
            side
        };
        Ok(Self {
            value: side(value),
            mask: side(mask),
        })
    }

    /// Returns bytes `at..at + len` of a flow spec's value and mask as numbers. Fails with `EINVAL`
    /// for a value with bits outside its mask (the kernel's `check_valid_spec`).
    fn field(&self, at: usize, len: usize) -> Result<(u64, u64), Errno> {
        let (value, mask) = self.numbers(at, len);
        if value & !mask == 0 {
            Ok((value, mask))
        } else {
            Err(libc::EINVAL)
        }
    }

    /// Returns bytes `at..at + len` of a flow spec's value and mask as numbers, or zeroes if the
    /// mask is zero: the driver ignores such a field.
    fn field_if_masked(&self, at: usize, len: usize) -> Result<(u64, u64), Errno> {
        match self.numbers(at, len) {
            (_, 0) => Ok((0, 0)),
            _ => self.field(at, len),
        }
    }

    fn numbers(&self, at: usize, len: usize) -> (u64, u64) {
        let number = |bytes: &[u8; N]| {
            bytes
                .iter()
                .skip(at)
                .take(len)
                .fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        (number(&self.value), number(&self.mask))
    }

    /// Fails with `EOPNOTSUPP` if the flow spec's mask has bits from byte `at` on, which the driver
    /// does not support (`FIELDS_NOT_SUPPORTED`).
    fn unsupported_from(&self, at: usize) -> Result<(), Errno> {
        if self.mask[at..].iter().any(|&byte| byte != 0) {
            Err(libc::EOPNOTSUPP)
        } else {
            Ok(())
        }
    }
}

/// Parses `count` flow specs that fill `bytes`. Fails as the kernel does: with `EINVAL` for
/// malformed or contradictory specs, with `EOPNOTSUPP` for fields that the device cannot match.
pub fn parse(mut bytes: &[u8], count: u8, caps: MatchCaps) -> Result<ParsedSpecs, Errno> {
    let mut parsed = ParsedSpecs::default();
    let mut layers = [LayerSpecs::default(), LayerSpecs::default()];
    let mut previous = 0;
    for index in 0..count {
        let header: abi::ib_uverbs_flow_spec_hdr = read_from(bytes).ok_or(libc::EINVAL)?;
        let size = usize::from(header.size);
        let body = bytes
            .get(size_of::<abi::ib_uverbs_flow_spec_hdr>()..size)
            .ok_or(libc::EINVAL)?;
        refuse_if(header.reserved != 0, libc::EINVAL)?;
        if index == 0 {
            parsed.multicast_only = is_multicast_only(header.type_, body);
        }
        if header.type_ >= spec_type::ACTION_TAG {
            action(header.type_, body, &mut parsed)?;
        } else {
            let specs = [previous, header.type_];
            filter(specs, body, caps, &mut parsed.rule, &mut layers)?;
        }
        previous = header.type_;
        bytes = &bytes[size..];
    }
    refuse_if(!bytes.is_empty(), libc::EINVAL)?;
    for layer in &layers {
        layer.check_ethertype()?;
    }
    parsed.rule.normalize();
    Ok(parsed)
}

/// Returns `true` if a rule with this first flow spec matches only group addresses
/// (`flow_is_multicast_only` of the driver).
fn is_multicast_only(spec: u32, body: &[u8]) -> bool {
    match spec {
        spec_type::ETH => SpecFilter::<16>::read(body)
            .is_ok_and(|filter| filter.value[0] & 1 != 0 && filter.mask[0] & 1 != 0),
        spec_type::IPV4 => {
            SpecFilter::<12>::read(body).is_ok_and(|filter| filter.value[4] & 0xf0 == 0xe0)
        }
        _ => false,
    }
}

fn action(spec: u32, body: &[u8], parsed: &mut ParsedSpecs) -> Result<(), Errno> {
    match spec {
        spec_type::ACTION_TAG => {
            // `ib_uverbs_flow_spec_action_tag`: tag_id, reserved1.
            let [a, b, c, d, _, _, _, _] = *body else {
                return Err(libc::EINVAL);
            };
            let tag = u32::from_ne_bytes([a, b, c, d]);
            refuse_if(tag >= 1 << 24, libc::EINVAL)?;
            parsed.tag = Some(tag);
            Ok(())
        }
        spec_type::ACTION_DROP if body.is_empty() => {
            parsed.drop = true;
            Ok(())
        }
        spec_type::ACTION_HANDLE => Err(libc::EOPNOTSUPP),
        spec_type::ACTION_COUNT => {
            // `ib_uverbs_flow_spec_action_count`: handle, reserved1. At most one per rule.
            let ([a, b, c, d, _, _, _, _], None) = (body, parsed.counters) else {
                return Err(libc::EINVAL);
            };
            parsed.counters = Some(u32::from_ne_bytes([*a, *b, *c, *d]));
            Ok(())
        }
        _ => Err(libc::EINVAL),
    }
}

/// Parses the filter of one flow spec, whose meaning may depend on the spec before it, and adds it
/// to the rule's match.
fn filter(
    [previous, spec]: [u32; 2],
    body: &[u8],
    caps: MatchCaps,
    rule: &mut Match,
    layers: &mut [LayerSpecs; 2],
) -> Result<(), Errno> {
    let inner = spec & spec_type::INNER != 0;
    refuse_if(inner && !caps.tunnels, libc::EOPNOTSUPP)?;
    let [outer_state, inner_state] = layers;
    let state = if inner { inner_state } else { outer_state };
    let layer = if inner {
        &mut rule.inner
    } else {
        &mut rule.outer
    };
    match spec & !spec_type::INNER {
        spec_type::ETH => ethernet(body, layer, state),
        spec_type::IPV4 => ipv4(body, layer, state, caps),
        spec_type::IPV6 => ipv6(body, layer, state, caps),
        spec_type::TCP => ports(body, layer, state, PROTOCOL_TCP, caps),
        spec_type::UDP => ports(body, layer, state, PROTOCOL_UDP, caps),
        spec_type::VXLAN_TUNNEL | spec_type::GRE if !caps.tunnels => Err(libc::EOPNOTSUPP),
        spec_type::VXLAN_TUNNEL => vxlan(body, rule),
        spec_type::GRE => {
            state.protocol(0xff, PROTOCOL_GRE)?;
            gre(body, rule, caps)
        }
        // The driver has one ESP field, whichever layer the spec names.
        spec_type::ESP => esp(body, &mut rule.outer, caps),
        spec_type::MPLS => match previous {
            spec_type::UDP => mpls(body, MplsOver::Udp, &mut rule.outer, caps),
            spec_type::GRE => mpls(body, MplsOver::Gre, &mut rule.outer, caps),
            _ => mpls(body, MplsOver::Ethernet, layer, caps),
        },
        _ => Err(libc::EINVAL),
    }
}

/// Parses the filter of an Ethernet flow spec (`ib_uverbs_flow_eth_filter`): destination, source,
/// EtherType, TCI.
fn ethernet(body: &[u8], layer: &mut LayerMatch, state: &mut LayerSpecs) -> Result<(), Errno> {
    let filter = SpecFilter::<16>::read(body)?;
    layer.compare(Field::L2(0), filter.field(0, 6)?, 6);
    layer.compare(Field::L2(6), filter.field(6, 6)?, 6);
    let (value, mask) = filter.field(12, 2)?;
    layer.push(Field::EtherType, (value, mask));
    if mask != 0 {
        state.ethertype = Some((mask as u16, value as u16));
    }
    let (value, mask) = filter.field_if_masked(14, 2)?;
    if mask != 0 {
        layer.kinds |= kind::CVLAN;
        layer.push(Field::Vlan, (value, mask));
    }
    Ok(())
}

/// Parses the filter of an IPv4 flow spec (`ib_uverbs_flow_ipv4_filter`): source, destination,
/// protocol, TOS, TTL, flags.
fn ipv4(
    body: &[u8],
    layer: &mut LayerMatch,
    state: &mut LayerSpecs,
    caps: MatchCaps,
) -> Result<(), Errno> {
    let filter = SpecFilter::<12>::read(body)?;
    filter.unsupported_from(10)?;
    layer.kinds |= kind::IPV4;
    state.ip = Some(spec_type::IPV4);
    layer.compare(Field::L3(12), filter.field(0, 8)?, 8);
    layer.compare(Field::L3(1), filter.field(9, 1)?, 1);
    state.protocol(filter.mask[8], filter.value[8])?;
    ip_protocol(layer, filter.field_if_masked(8, 1)?, caps);
    Ok(())
}

/// Parses the filter of an IPv6 flow spec (`ib_uverbs_flow_ipv6_filter`): source, destination, flow
/// label, next header, traffic class, hop limit.
fn ipv6(
    body: &[u8],
    layer: &mut LayerMatch,
    state: &mut LayerSpecs,
    caps: MatchCaps,
) -> Result<(), Errno> {
    // The last byte is reserved: the kernel's struct ends before it.
    let filter = SpecFilter::<39>::read(body)?;
    let (label, label_mask) = filter.numbers(32, 4);
    refuse_if(label >= 1 << 20 || label_mask >= 1 << 20, libc::EINVAL)?;
    filter.unsupported_from(38)?;
    layer.kinds |= kind::IPV6;
    state.ip = Some(spec_type::IPV6);
    for at in [0, 8, 16, 24] {
        layer.compare(Field::L3(8 + at), filter.field(usize::from(at), 8)?, 8);
    }
    filter.field(32, 4)?;
    let (class, class_mask) = filter.field(37, 1)?;
    let first = (label | class << 20, label_mask | class_mask << 20);
    layer.compare(Field::L3(0), first, 4);
    state.protocol(filter.mask[36], filter.value[36])?;
    ip_protocol(layer, filter.field_if_masked(36, 1)?, caps);
    Ok(())
}

/// Adds a comparison of the IP protocol to a layer's match. `parse_flow_attr` of the driver builds
/// the same match, `ip_protocol` alone, from a TCP or UDP spec without ports and from an IP spec
/// that names its protocol.
fn ip_protocol(layer: &mut LayerMatch, (value, mask): (u64, u64), caps: MatchCaps) {
    // If fragments are not matched, the field equals the parser's result, which is cheaper to
    // compare.
    let known = transport(value as u8).filter(|_| mask == 0xff && !caps.fragment_protocol);
    match known {
        Some(kind) => layer.kinds |= kind,
        None => layer.push(caps.ip_protocol(), (value, mask)),
    }
}

/// Returns the frame kind of frames with this transport protocol; `None` if no frame kind stands
/// for it.
fn transport(protocol: u8) -> Option<u32> {
    match protocol {
        PROTOCOL_TCP => Some(kind::TCP),
        PROTOCOL_UDP => Some(kind::UDP),
        _ => None,
    }
}

/// Parses the filter of a TCP or UDP flow spec (`ib_uverbs_flow_tcp_udp_filter`): destination port,
/// source port.
fn ports(
    body: &[u8],
    layer: &mut LayerMatch,
    state: &mut LayerSpecs,
    protocol: u8,
    caps: MatchCaps,
) -> Result<(), Errno> {
    let filter = SpecFilter::<4>::read(body)?;
    state.protocol(0xff, protocol)?;
    ip_protocol(layer, (u64::from(protocol), 0xff), caps);
    if filter.numbers(0, 4).1 != 0 {
        // Fragments have no ports.
        layer.kinds |= transport(protocol).unwrap_or(0);
    }
    layer.compare(Field::L4(2), filter.field(0, 2)?, 2);
    layer.compare(Field::L4(0), filter.field(2, 2)?, 2);
    Ok(())
}

/// Parses the filter of a VXLAN flow spec (`ib_uverbs_flow_tunnel_filter`): the network identifier.
fn vxlan(body: &[u8], rule: &mut Match) -> Result<(), Errno> {
    let filter = SpecFilter::<4>::read(body)?;
    let (value, mask) = filter.numbers(0, 4);
    refuse_if(value >= 1 << 24 || mask >= 1 << 24, libc::EINVAL)?;
    filter.field(0, 4)?;
    rule.tunnel.push(Field::Vni, (value, mask));
    Ok(())
}

/// Parses the filter of a GRE flow spec (`ib_uverbs_flow_gre_filter`): flags and version, protocol,
/// key.
fn gre(body: &[u8], rule: &mut Match, caps: MatchCaps) -> Result<(), Errno> {
    let filter = SpecFilter::<8>::read(body)?;
    refuse_if(filter.mask[..2] != [0, 0], libc::EOPNOTSUPP)?;
    let protocol = (u64::from(PROTOCOL_GRE), 0xff);
    ip_protocol(&mut rule.outer, protocol, caps);
    rule.tunnel.push(Field::GreProtocol, filter.field(2, 2)?);
    rule.tunnel.push(Field::GreKey, filter.field(4, 4)?);
    Ok(())
}

/// Parses the filter of an ESP flow spec (`ib_uverbs_flow_spec_esp_filter`): SPI, sequence number.
/// As in the driver, it implies no protocol: without a mask it matches everything.
fn esp(body: &[u8], layer: &mut LayerMatch, caps: MatchCaps) -> Result<(), Errno> {
    let filter = SpecFilter::<8>::read(body)?;
    filter.unsupported_from(4)?;
    let (value, mask) = filter.field(0, 4)?;
    if mask != 0 && !caps.esp {
        // The driver does not check the capability; the firmware refuses the rule.
        return Err(libc::EINVAL);
    }
    layer.push(Field::Spi, (value, mask));
    Ok(())
}

/// Parses the filter of an MPLS flow spec (`ib_uverbs_flow_mpls_filter`): label, traffic class,
/// bottom of stack and time to live in one word.
fn mpls(body: &[u8], over: MplsOver, layer: &mut LayerMatch, caps: MatchCaps) -> Result<(), Errno> {
    let filter = SpecFilter::<4>::read(body)?;
    filter.unsupported_from(if caps.mpls { 4 } else { 0 })?;
    layer.push(Field::Mpls(over), filter.field(0, 4)?);
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::frame::ParsedFrame;

    pub const ALL: MatchCaps = MatchCaps {
        tunnels: true,
        mpls: true,
        esp: true,
        fragment_protocol: false,
    };
    pub const NOTHING: MatchCaps = MatchCaps {
        tunnels: false,
        mpls: false,
        esp: false,
        fragment_protocol: false,
    };

    /// Builds a flow spec in the layout of the uAPI.
    pub fn spec(kind: u32, value: &[u8], mask: &[u8]) -> Vec<u8> {
        let size = (8 + value.len() + mask.len()) as u16;
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(size.to_ne_bytes());
        bytes.extend([0, 0]);
        bytes.extend(value);
        bytes.extend(mask);
        bytes
    }

    pub fn eth_any() -> Vec<u8> {
        spec(spec_type::ETH, &[0; 16], &[0; 16])
    }

    pub fn ipv4_any() -> Vec<u8> {
        spec(spec_type::IPV4, &[0; 12], &[0; 12])
    }

    pub fn udp_any() -> Vec<u8> {
        spec(spec_type::UDP, &[0; 4], &[0; 4])
    }

    pub fn tag(tag: u32) -> Vec<u8> {
        spec(spec_type::ACTION_TAG, &tag.to_ne_bytes(), &[0; 4])
    }

    pub fn drop_action() -> Vec<u8> {
        spec(spec_type::ACTION_DROP, &[], &[])
    }

    pub fn eth_type(ethertype: u16) -> Vec<u8> {
        let (mut value, mut mask) = ([0; 16], [0; 16]);
        value[12..14].copy_from_slice(&ethertype.to_be_bytes());
        mask[12..14].fill(0xff);
        spec(spec_type::ETH, &value, &mask)
    }

    pub fn eth_to(mac: [u8; 6]) -> Vec<u8> {
        let (mut value, mut mask) = ([0; 16], [0; 16]);
        value[..6].copy_from_slice(&mac);
        mask[..6].fill(0xff);
        spec(spec_type::ETH, &value, &mask)
    }

    #[test]
    fn values_outside_their_masks_are_refused() {
        let (mut value, mask) = ([0; 12], [0; 12]);
        value[8] = PROTOCOL_TCP;
        let protocol = spec(spec_type::IPV4, &value, &mask);
        assert!(
            parse(&protocol, 1, ALL).is_ok(),
            "a protocol without a mask is ignored"
        );
        value[4] = 10;
        assert_eq!(
            refused(&[spec(spec_type::IPV4, &value, &mask)]),
            libc::EINVAL
        );
        let mut tagged = [0; 16];
        tagged[14] = 1;
        assert!(parse(&spec(spec_type::ETH, &tagged, &[0; 16]), 1, ALL).is_ok());
        tagged[0] = 2;
        assert_eq!(
            refused(&[spec(spec_type::ETH, &tagged, &[0; 16])]),
            libc::EINVAL
        );
        assert_eq!(
            refused(&[spec(spec_type::UDP, &[0, 53, 0, 0], &[0; 4])]),
            libc::EINVAL
        );
    }

    fn refused(specs: &[Vec<u8>]) -> Errno {
        parse(&specs.concat(), specs.len() as u8, ALL).unwrap_err()
    }

    #[test]
    fn contradictions_are_refused() {
        assert_eq!(
            refused(&[eth_type(ETHERTYPE_IPV6), ipv4_any()]),
            libc::EINVAL
        );
        let mut partial = eth_type(ETHERTYPE_IPV4);
        partial[8 + 16 + 12] = 0xf0;
        assert_eq!(refused(&[partial, ipv4_any()]), libc::EINVAL);
        assert!(parse(&[eth_type(ETHERTYPE_IPV4), ipv4_any()].concat(), 2, ALL).is_ok());
        let (mut value, mut mask) = ([0; 12], [0; 12]);
        (value[8], mask[8]) = (PROTOCOL_TCP, 0xff);
        assert_eq!(
            refused(&[spec(spec_type::IPV4, &value, &mask), udp_any()]),
            libc::EINVAL
        );
    }

    #[test]
    fn fields_that_the_device_cannot_match_are_refused() {
        let mut mask = [0; 12];
        mask[10] = 1;
        assert_eq!(
            refused(&[spec(spec_type::IPV4, &[0; 12], &mask)]),
            libc::EOPNOTSUPP
        );
        let mut mask = [0; 40];
        mask[38] = 1;
        assert_eq!(
            refused(&[spec(spec_type::IPV6, &[0; 40], &mask)]),
            libc::EOPNOTSUPP
        );
        mask[39] = 1;
        assert_eq!(
            refused(&[spec(spec_type::IPV6, &[0; 40], &mask)]),
            libc::EINVAL
        );
        assert_eq!(
            refused(&[spec(spec_type::ESP, &[0; 8], &[0, 0, 0, 0, 0, 0, 0, 1])]),
            libc::EOPNOTSUPP
        );
        let without = |kind, len| {
            let masked = spec(
                kind,
                &vec![0; len],
                &[&[0xff; 4][..], &vec![0; len - 4]].concat(),
            );
            parse(&masked, 1, NOTHING).unwrap_err()
        };
        assert_eq!(without(spec_type::MPLS, 4), libc::EOPNOTSUPP);
        assert_eq!(without(spec_type::ESP, 8), libc::EINVAL);
        let matches_all = spec(spec_type::MPLS, &[0; 4], &[0; 4]);
        assert_eq!(parse(&matches_all, 1, NOTHING), Ok(ParsedSpecs::default()));
        assert_eq!(refused(&[spec(0x99, &[0; 4], &[0; 4])]), libc::EINVAL);
        let inner = spec(spec_type::INNER | spec_type::ETH, &[0; 16], &[0; 16]);
        assert_eq!(parse(&inner, 1, NOTHING), Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn labels_and_spis_are_matched_behind_their_headers() {
        const ENTRY: [u8; 4] = [0x12, 0x34, 0x51, 64];
        let takes = |specs: &[Vec<u8>], frame: &[u8]| {
            let parsed = parse(&specs.concat(), specs.len() as u8, ALL).unwrap();
            let class = wqcap_rss::FrameClass::from_frame(frame);
            parsed.rule.matches(&ParsedFrame::new(frame, &class, 0))
        };
        let ip = |protocol, inside: &[u8]| {
            let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
            frame.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0]);
            frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
            frame.extend(inside);
            frame
        };
        let mpls = spec(spec_type::MPLS, &ENTRY, &[0xff; 4]);
        let gre = spec(spec_type::GRE, &[0; 8], &[0; 8]);
        let frames = [
            [&[2; 12][..], &[0x88, 0x47], &ENTRY].concat(),
            ip(
                PROTOCOL_UDP,
                &[&[0x30, 0, 0x19, 0xeb, 0, 0, 0, 0][..], &ENTRY].concat(),
            ),
            ip(
                PROTOCOL_GRE,
                &[&[0x20, 0, 0x88, 0x47, 0, 0, 0, 9][..], &ENTRY].concat(),
            ),
        ];
        let rules = [
            vec![mpls.clone()],
            vec![udp_any(), mpls.clone()],
            vec![gre, mpls],
        ];
        for (i, rule) in rules.iter().enumerate() {
            for (k, frame) in frames.iter().enumerate() {
                assert_eq!(takes(rule, frame), i == k, "rule {i}, frame {k}");
                assert!(!takes(rule, &frame[..frame.len() - 1]));
            }
        }
        let spi = |mask| spec(spec_type::ESP, &[0; 8], &[mask, 0, 0, 0, 0, 0, 0, 0]);
        let esp = ip(50, &[0, 1, 2, 3, 0, 0, 0, 1]);
        assert!(takes(&[spi(0xff)], &esp));
        assert!(!takes(&[spi(0xff)], &ip(51, &[0; 8])));
        assert!(
            takes(&[spi(0)], &frames[0]),
            "without a mask it matches everything"
        );
        let mut fragment = esp.clone();
        fragment[20] = 0x20;
        assert!(!takes(&[spi(0xff)], &fragment));
    }

    /// Checks that a transport spec without ports and an IP spec with the protocol give one match,
    /// as in the driver: they take the same frames whether or not the NIC matches fragments.
    #[test]
    fn a_transport_spec_without_ports_equals_an_ip_protocol() {
        let (mut value, mut mask) = ([0; 12], [0; 12]);
        (value[8], mask[8]) = (PROTOCOL_UDP, 0xff);
        let by_protocol = spec(spec_type::IPV4, &value, &mask);
        let ports = spec(spec_type::UDP, &[0, 53, 0, 0], &[0xff, 0xff, 0, 0]);
        let mut whole = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        whole.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, PROTOCOL_UDP, 0, 0]);
        whole.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        whole.extend([0x30, 0, 0, 53, 0, 8, 0, 0]);
        let [mut first, mut last] = [whole.clone(), whole.clone()];
        (first[20], last[21]) = (0x20, 0x20);
        for fragment_protocol in [false, true] {
            let caps = MatchCaps {
                fragment_protocol,
                ..ALL
            };
            let rule = |specs: &[Vec<u8>]| {
                let parsed = parse(&specs.concat(), specs.len() as u8, caps);
                parsed.unwrap().rule
            };
            let takes = |rule: &Match| {
                [&whole, &first, &last].map(|frame| {
                    let class = wqcap_rss::FrameClass::from_frame(frame);
                    rule.matches(&ParsedFrame::new(frame, &class, 0))
                })
            };
            let portless = rule(&[ipv4_any(), udp_any()]);
            assert_eq!(portless, rule(std::slice::from_ref(&by_protocol)));
            assert_eq!(
                takes(&portless),
                [true, fragment_protocol, fragment_protocol]
            );
            let with_ports = rule(&[ipv4_any(), ports.clone()]);
            assert_eq!(takes(&with_ports), [true, false, false]);
        }
    }

    #[test]
    fn mask_bits_beyond_the_fields_are_refused_value_bits_are_not() {
        let specs = [
            (spec_type::ETH, 16),
            (spec_type::IPV4, 12),
            // The 40th byte is padding in the structure of libibverbs and of the uAPI.
            (spec_type::IPV6, 39),
            (spec_type::UDP, 4),
            (spec_type::VXLAN_TUNNEL, 4),
            (spec_type::GRE, 8),
            (spec_type::ESP, 8),
            (spec_type::MPLS, 4),
        ];
        for (kind, known) in specs {
            let longer = usize::next_multiple_of(known + 1, 4);
            for at in known..longer {
                let (zeroes, mut set) = (vec![0; longer], vec![0; longer]);
                set[at] = 0x55;
                let masked = spec(kind, &zeroes, &set);
                assert_eq!(refused(&[masked]), libc::EINVAL, "{kind:#x}, byte {at}");
                let valued = spec(kind, &set, &zeroes);
                assert!(parse(&valued, 1, ALL).is_ok(), "{kind:#x}, byte {at}");
            }
        }
        // A size that is not a multiple of 4.
        assert_eq!(
            refused(&[spec(spec_type::UDP, &[0; 6], &[0; 6])]),
            libc::EINVAL
        );
    }

    #[test]
    fn malformed_lists_are_refused() {
        assert_eq!(refused(&[tag(1 << 24)]), libc::EINVAL);
        assert_eq!(refused(&[vec![0x20, 0, 0, 0, 4, 0, 0, 0]]), libc::EINVAL);
        assert_eq!(refused(&[vec![0x20, 0, 0, 0, 200, 0, 0, 0]]), libc::EINVAL);
        assert_eq!(parse(&eth_any(), 2, ALL), Err(libc::EINVAL));
        assert_eq!(parse(&eth_any(), 0, ALL), Err(libc::EINVAL));
        let mut reserved = eth_any();
        reserved[6] = 1;
        assert_eq!(refused(&[reserved]), libc::EINVAL);
    }

    #[test]
    fn short_filters_are_extended_and_actions_read() {
        // The older IPv4 filter has two addresses only.
        let parsed = parse(
            &[
                spec(spec_type::IPV4, &[0; 8], &[0; 8]),
                tag(0xff_ffff),
                drop_action(),
            ]
            .concat(),
            3,
            ALL,
        )
        .unwrap();
        assert_eq!(parsed.rule.outer.kinds, kind::IPV4);
        assert_eq!((parsed.tag, parsed.drop), (Some(0xff_ffff), true));
        assert!(
            parse(&eth_to([1, 0, 0x5e, 0, 0, 1]), 1, ALL)
                .unwrap()
                .multicast_only
        );
        assert!(
            !parse(&eth_to([2, 0, 0, 0, 0, 1]), 1, ALL)
                .unwrap()
                .multicast_only
        );
        assert_eq!(parse(&[], 0, ALL), Ok(ParsedSpecs::default()));
    }
}
