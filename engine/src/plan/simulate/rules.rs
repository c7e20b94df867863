//! Matching of frames against a plan's flow rules: the rules that a run would install, tried in
//! order.

use super::{
    nic_view::NicFrame,
    tunnel::{TunnelKind, TunnelledFrame},
};
use crate::{
    plan::steering::{RulePlan, Steering},
    verbs::{FlowKind, FlowSpec, Inner, Masked},
};
use wqcap_rss::{FrameClass, L3, L4};

/// TPID of the IEEE 802.1Q customer tag, which a flow rule's `vlan` matches.
const TPID_CVLAN: [u8; 2] = [0x81, 0x00];

/// Flow rules of a plan, in the order in which the NIC tries them.
pub(super) struct Rules {
    /// QPs and flow rules, the rules sorted by priority.
    pub(super) steering: Steering,
    /// `true` if a flow rule matches inner headers, so that tunnels must be parsed.
    pub(super) match_tunnels: bool,
}

/// Destination of a simulated frame: a QP, a flow rule that drops it, or the kernel.
pub(super) enum FrameDestination {
    /// Index in [`Steering::qps`] of the QP that takes the frame.
    Qp(usize),
    /// Frame is dropped by a flow rule.
    Dropped,
    /// Frame is left to the kernel, because no flow rule takes it.
    Left,
}

impl Rules {
    /// Creates the list of flow rules from a steering: sorts them by priority.
    pub(super) fn new(mut steering: Steering) -> Self {
        steering.rules.sort_by_key(|rule| rule.priority);
        let asks = |spec: &FlowSpec| {
            matches!(
                spec,
                FlowSpec::Vxlan { .. } | FlowSpec::Gre | FlowSpec::Inner(_)
            )
        };
        let match_tunnels = steering.rules.iter().any(|r| r.specs.iter().any(asks));
        Self {
            steering,
            match_tunnels,
        }
    }

    /// Returns the destination of a simulated frame, by the plan's flow rules; `inner` is the
    /// packet in its tunnel.
    pub(super) fn fate(
        &self,
        seen: &NicFrame<'_>,
        inner: Option<&TunnelledFrame<'_>>,
    ) -> FrameDestination {
        let taking = |rule: &&RulePlan| {
            rule.kind == FlowKind::Sniffer || rule.specs.iter().all(|spec| takes(spec, seen, inner))
        };
        match self.steering.rules.iter().find(taking) {
            None => FrameDestination::Left,
            Some(rule) if rule.specs.contains(&FlowSpec::Drop) => FrameDestination::Dropped,
            Some(rule) => FrameDestination::Qp(rule.qp),
        }
    }
}

/// Returns `true` if a flow spec (one layer of a flow rule) matches the simulated frame.
fn takes(spec: &FlowSpec, seen: &NicFrame<'_>, inner: Option<&TunnelledFrame<'_>>) -> bool {
    let class = &seen.class;
    match *spec {
        FlowSpec::Ethernet {
            dst,
            ethertype,
            vlan,
        } => {
            is_to(seen.bytes, dst)
                && agrees(class.ethertype, ethertype)
                && (vlan.mask == 0 || first_cvlan(seen).is_some_and(|tci| agrees(tci, vlan)))
        }
        FlowSpec::Ipv4 { src, dst, proto } => {
            let (from, to) = addresses(seen, L3::Ipv4);
            is_packet(class, L3::Ipv4)
                && agrees(from, src.widen())
                && agrees(to, dst.widen())
                // The driver makes the same match of this and of a TCP or UDP spec without ports
                // (`parse_flow_attr`), so both take fragments or neither does. No source states
                // which; here neither does.
                && (proto.mask == 0 || !class.fragment && agrees(class.ip_protocol, proto))
        }
        FlowSpec::Ipv6 { src, dst, proto } => {
            let (from, to) = addresses(seen, L3::Ipv6);
            is_packet(class, L3::Ipv6)
                && agrees(from, src)
                && agrees(to, dst)
                && agrees(class.ip_protocol, proto)
        }
        FlowSpec::Tcp { src, dst } => class.l4 == L4::Tcp && are_between(seen, src, dst),
        FlowSpec::Udp { src, dst } => class.l4 == L4::Udp && are_between(seen, src, dst),
        FlowSpec::Vxlan { vni } => inner.is_some_and(
            |it| matches!(it.tunnel, TunnelKind::Vxlan { vni: number } if agrees(number, vni)),
        ),
        FlowSpec::Gre => inner.is_some_and(|it| it.tunnel == TunnelKind::Gre),
        FlowSpec::Inner(header) => inner.is_some_and(|it| match header {
            Inner::Ipv4 => is_packet(&it.seen.class, L3::Ipv4),
            Inner::Ipv6 => is_packet(&it.seen.class, L3::Ipv6),
            Inner::Tcp => it.seen.class.l4 == L4::Tcp,
            Inner::Udp => it.seen.class.l4 == L4::Udp,
        }),
        FlowSpec::Drop => true,
    }
}

/// Returns `true` if a flow rule for the IP version `version` takes a packet.
///
/// The NIC's parser does not recognize a packet that ends within its L4 header. Only rules without
/// an IP layer take it.
fn is_packet(class: &FrameClass, version: L3) -> bool {
    class.l3 == version && !class.truncated_l4
}

/// Returns `true` if the masked bits of a header field match a flow rule's value.
fn agrees<T>(value: T, wanted: Masked<T>) -> bool
where
    T: Copy + PartialEq + std::ops::BitAnd<Output = T>,
{
    value & wanted.mask == wanted.value & wanted.mask
}

/// Returns `true` if a frame's destination MAC address matches a flow rule's.
fn is_to(frame: &[u8], dst: Masked<[u8; 6]>) -> bool {
    let bytes = frame.first_chunk::<6>().copied().unwrap_or_default();
    let pairs = bytes.iter().zip(dst.value.iter().zip(&dst.mask));
    pairs
        .into_iter()
        .all(|(byte, (value, mask))| byte & mask == value & mask)
}

/// Returns the tag control information of a customer tag directly after the MAC addresses.
fn first_cvlan(seen: &NicFrame<'_>) -> Option<u16> {
    let is_customers = seen.bytes.get(12..14) == Some(&TPID_CVLAN);
    seen.class.vlan.filter(|_| is_customers)
}

/// Returns the source and destination address of a packet of this IP version, or zeros for other
/// packets.
fn addresses(seen: &NicFrame<'_>, version: L3) -> (u128, u128) {
    let both = seen.class.addresses(seen.bytes);
    let both = both
        .filter(|_| seen.class.l3 == version)
        .unwrap_or_default();
    let (from, to) = both.split_at(both.len() / 2);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u128::from(*byte));
    (number(from), number(to))
}

/// Returns `true` if a frame's source and destination ports match those of a flow rule.
fn are_between(seen: &NicFrame<'_>, src: Masked<u16>, dst: Masked<u16>) -> bool {
    let [a, b, c, d] = seen.class.ports(seen.bytes).copied().unwrap_or_default();
    agrees(u16::from_be_bytes([a, b]), src) && agrees(u16::from_be_bytes([c, d]), dst)
}
