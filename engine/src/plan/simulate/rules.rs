//! Which rule of a plan takes a frame: the very rules that a run would install, tried one by one.

use super::{
    nic_view::SeenFrame,
    tunnel::{InnerFrame, Tunnel},
};
use crate::{
    plan::steering::{RulePlan, Steering},
    verbs::{FlowKind, FlowSpec, Inner, Masked},
};
use wqcap_rss::{FrameClass, L3, L4};

/// IEEE 802.1Q customer tag, which is what a rule's `vlan` is about.
const TPID_CVLAN: [u8; 2] = [0x81, 0x00];

/// A plan's rules, in the order in which the NIC tries them.
pub(super) struct Rules {
    pub(super) steering: Steering,
    /// Some rule matches on what is in a tunnel, so that that must be found.
    pub(super) match_tunnels: bool,
}

/// What becomes of a frame.
pub(super) enum Fate {
    /// It goes to this QP ([`Steering::qps`]).
    Qp(usize),
    /// A rule drops it.
    Dropped,
    /// No rule takes it: the kernel has it.
    Left,
}

impl Rules {
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

    /// Where a frame goes that has `inner` as its tunnelled packet.
    pub(super) fn fate(&self, seen: &SeenFrame<'_>, inner: Option<&InnerFrame<'_>>) -> Fate {
        let taking = |rule: &&RulePlan| {
            rule.kind == FlowKind::Sniffer || rule.specs.iter().all(|spec| takes(spec, seen, inner))
        };
        match self.steering.rules.iter().find(taking) {
            None => Fate::Left,
            Some(rule) if rule.specs.contains(&FlowSpec::Drop) => Fate::Dropped,
            Some(rule) => Fate::Qp(rule.qp),
        }
    }
}

fn takes(spec: &FlowSpec, seen: &SeenFrame<'_>, inner: Option<&InnerFrame<'_>>) -> bool {
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
                // The driver makes one match of this and of a TCP or UDP spec without ports (`parse_flow_attr`), so both
                // take fragments or neither does; no source tells which.
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
            |it| matches!(it.tunnel, Tunnel::Vxlan { vni: number } if agrees(number, vni)),
        ),
        FlowSpec::Gre => inner.is_some_and(|it| it.tunnel == Tunnel::Gre),
        FlowSpec::Inner(header) => inner.is_some_and(|it| match header {
            Inner::Ipv4 => is_packet(&it.seen.class, L3::Ipv4),
            Inner::Ipv6 => is_packet(&it.seen.class, L3::Ipv6),
            Inner::Tcp => it.seen.class.l4 == L4::Tcp,
            Inner::Udp => it.seen.class.l4 == L4::Udp,
        }),
        FlowSpec::Drop => true,
    }
}

/// Whether a rule for this version takes a packet. One that ends within the header that its IP header announces is
/// unknown to the NIC's parser: only rules that ask for no layer take it.
fn is_packet(class: &FrameClass, version: L3) -> bool {
    class.l3 == version && !class.truncated_l4
}

fn agrees<T>(value: T, wanted: Masked<T>) -> bool
where
    T: Copy + PartialEq + std::ops::BitAnd<Output = T>,
{
    value & wanted.mask == wanted.value & wanted.mask
}

fn is_to(frame: &[u8], dst: Masked<[u8; 6]>) -> bool {
    let bytes = frame.first_chunk::<6>().copied().unwrap_or_default();
    let pairs = bytes.iter().zip(dst.value.iter().zip(&dst.mask));
    pairs
        .into_iter()
        .all(|(byte, (value, mask))| byte & mask == value & mask)
}

/// The tag control information of a customer tag directly behind the addresses.
fn first_cvlan(seen: &SeenFrame<'_>) -> Option<u16> {
    let is_customers = seen.bytes.get(12..14) == Some(&TPID_CVLAN);
    seen.class.vlan.filter(|_| is_customers)
}

/// Source and destination address of a packet of this version.
fn addresses(seen: &SeenFrame<'_>, version: L3) -> (u128, u128) {
    let both = seen.class.addresses(seen.bytes);
    let both = both
        .filter(|_| seen.class.l3 == version)
        .unwrap_or_default();
    let (from, to) = both.split_at(both.len() / 2);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n, byte| n << 8 | u128::from(*byte));
    (number(from), number(to))
}

fn are_between(seen: &SeenFrame<'_>, src: Masked<u16>, dst: Masked<u16>) -> bool {
    let [a, b, c, d] = seen.class.ports(seen.bytes).copied().unwrap_or_default();
    agrees(u16::from_be_bytes([a, b]), src) && agrees(u16::from_be_bytes([c, d]), dst)
}
