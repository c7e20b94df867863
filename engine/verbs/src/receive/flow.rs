//! Flow rules: which frames of a port go to which QP.

use super::rss_qp::{RssQp, RssQpInner};
use crate::{
    device::operation,
    error::{VerbsError, destroyed, made},
};
use rdma_sys as ffi;
use std::sync::Arc;

/// A rule as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// Port, from 1.
    pub port: u8,
    /// What kind of rule.
    pub kind: FlowKind,
    /// Lower is matched first; mlx5 takes 0 to 15.
    pub priority: u16,
    /// All must match; empty for a sniffer.
    pub specs: Vec<FlowSpec>,
}

/// Kinds of rules (`ibv_flow_attr_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// Takes what its specs match, before the kernel sees it.
    Normal,
    /// Copies everything the port receives and sends.
    Sniffer,
}

/// A value and the bits of it that count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masked<T> {
    /// The value, in this machine's byte order.
    pub value: T,
    /// Ones where it must match.
    pub mask: T,
}

impl<T: Default + std::ops::Not<Output = T>> Masked<T> {
    /// All bits of `value` count.
    #[must_use]
    pub fn exact(value: T) -> Self {
        Self {
            value,
            mask: !T::default(),
        }
    }
}

impl<T: Into<u128>> Masked<T> {
    /// The same in 128 bits.
    #[must_use]
    pub fn widen(self) -> Masked<u128> {
        Masked {
            value: self.value.into(),
            mask: self.mask.into(),
        }
    }
}

/// One part of a match, or an action. A default one matches every packet of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowSpec {
    /// `IBV_FLOW_SPEC_ETH`.
    Ethernet {
        /// Destination MAC address.
        dst: Masked<[u8; 6]>,
        /// Ethertype behind the tags.
        ethertype: Masked<u16>,
        /// Tag control information of the first tag; a frame without one does not match.
        vlan: Masked<u16>,
    },
    /// `IBV_FLOW_SPEC_IPV4`, or `_EXT` where the protocol counts.
    Ipv4 {
        /// Source address.
        src: Masked<u32>,
        /// Destination address.
        dst: Masked<u32>,
        /// Protocol.
        proto: Masked<u8>,
    },
    /// `IBV_FLOW_SPEC_IPV6`.
    Ipv6 {
        /// Source address.
        src: Masked<u128>,
        /// Destination address.
        dst: Masked<u128>,
        /// Next header of the fixed header.
        proto: Masked<u8>,
    },
    /// `IBV_FLOW_SPEC_TCP`.
    Tcp {
        /// Source port.
        src: Masked<u16>,
        /// Destination port.
        dst: Masked<u16>,
    },
    /// `IBV_FLOW_SPEC_UDP`.
    Udp {
        /// Source port.
        src: Masked<u16>,
        /// Destination port.
        dst: Masked<u16>,
    },
    /// `IBV_FLOW_SPEC_VXLAN_TUNNEL`.
    Vxlan {
        /// Network identifier, 24 bits.
        vni: Masked<u32>,
    },
    /// `IBV_FLOW_SPEC_GRE`: any.
    Gre,
    /// A header inside the tunnel (`IBV_FLOW_SPEC_INNER`).
    Inner(Inner),
    /// `IBV_FLOW_SPEC_ACTION_DROP`.
    Drop,
}

/// Headers inside a tunnel, of which any will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Inner {
    /// The same as an outer header.
    fn outer(self) -> FlowSpec {
        let proto = Masked::default();
        match self {
            Self::Ipv4 => {
                let (src, dst) = Default::default();
                FlowSpec::Ipv4 { src, dst, proto }
            }
            Self::Ipv6 => {
                let (src, dst) = Default::default();
                FlowSpec::Ipv6 { src, dst, proto }
            }
            Self::Tcp => {
                let (src, dst) = Default::default();
                FlowSpec::Tcp { src, dst }
            }
            Self::Udp => {
                let (src, dst) = Default::default();
                FlowSpec::Udp { src, dst }
            }
        }
    }
}

impl FlowSpec {
    /// Any Ethernet frame.
    pub const ETHERNET: Self = Self::Ethernet {
        dst: Masked {
            value: [0; 6],
            mask: [0; 6],
        },
        ethertype: Masked { value: 0, mask: 0 },
        vlan: Masked { value: 0, mask: 0 },
    };

    /// The spec's structure of `infiniband/verbs.h`, appended. Multi-byte fields are in network order there.
    fn append(self, out: &mut Vec<u8>) {
        use ffi::ibv_flow_spec_type as t;
        /// A spec of this type with the filter's values and their masks.
        macro_rules! spec {
            ($spec:ident, $kind:expr, $filter:expr, $($field:expr),*) => {
                put(
                    out,
                    &ffi::$spec {
                        type_: $kind,
                        size: size_of_u16::<ffi::$spec>(),
                        val: $filter($($field.value),*),
                        mask: $filter($($field.mask),*),
                    },
                )
            };
        }
        match self {
            Self::Ethernet {
                dst,
                ethertype,
                vlan,
            } => spec!(
                ibv_flow_spec_eth,
                t::IBV_FLOW_SPEC_ETH,
                eth,
                dst,
                ethertype,
                vlan
            ),
            Self::Ipv4 { src, dst, proto } if proto.mask == 0 => {
                spec!(ibv_flow_spec_ipv4, t::IBV_FLOW_SPEC_IPV4, ipv4, src, dst);
            }
            Self::Ipv4 { src, dst, proto } => {
                let kind = t::IBV_FLOW_SPEC_IPV4_EXT;
                spec!(ibv_flow_spec_ipv4_ext, kind, ipv4_ext, src, dst, proto);
            }
            Self::Ipv6 { src, dst, proto } => {
                spec!(
                    ibv_flow_spec_ipv6,
                    t::IBV_FLOW_SPEC_IPV6,
                    ipv6,
                    src,
                    dst,
                    proto
                );
            }
            Self::Tcp { src, dst } => {
                spec!(ibv_flow_spec_tcp_udp, t::IBV_FLOW_SPEC_TCP, ports, src, dst);
            }
            Self::Udp { src, dst } => {
                spec!(ibv_flow_spec_tcp_udp, t::IBV_FLOW_SPEC_UDP, ports, src, dst);
            }
            Self::Vxlan { vni } => {
                spec!(
                    ibv_flow_spec_tunnel,
                    t::IBV_FLOW_SPEC_VXLAN_TUNNEL,
                    tunnel,
                    vni
                );
            }
            Self::Gre => {
                let any = |()| ffi::ibv_flow_gre_filter {
                    c_ks_res0_ver: 0,
                    protocol: 0,
                    key: 0,
                };
                spec!(
                    ibv_flow_spec_gre,
                    t::IBV_FLOW_SPEC_GRE,
                    any,
                    Masked::<()>::default()
                );
            }
            Self::Inner(inner) => {
                let at = out.len();
                inner.outer().append(out);
                // Every spec begins with its type, a word.
                if let Some((kind, _)) = out[at..].split_first_chunk_mut::<4>() {
                    *kind = (u32::from_ne_bytes(*kind) | t::IBV_FLOW_SPEC_INNER).to_ne_bytes();
                }
            }
            Self::Drop => put(
                out,
                &ffi::ibv_flow_spec_action_drop {
                    type_: t::IBV_FLOW_SPEC_ACTION_DROP,
                    size: size_of_u16::<ffi::ibv_flow_spec_action_drop>(),
                },
            ),
        }
    }
}

fn eth(dst_mac: [u8; 6], ethertype: u16, vlan: u16) -> ffi::ibv_flow_eth_filter {
    ffi::ibv_flow_eth_filter {
        dst_mac,
        src_mac: [0; 6],
        ether_type: ethertype.to_be(),
        vlan_tag: vlan.to_be(),
    }
}

fn ipv4(src: u32, dst: u32) -> ffi::ibv_flow_ipv4_filter {
    ffi::ibv_flow_ipv4_filter {
        src_ip: src.to_be(),
        dst_ip: dst.to_be(),
    }
}

fn ipv4_ext(src: u32, dst: u32, proto: u8) -> ffi::ibv_flow_ipv4_ext_filter {
    ffi::ibv_flow_ipv4_ext_filter {
        src_ip: src.to_be(),
        dst_ip: dst.to_be(),
        proto,
        tos: 0,
        ttl: 0,
        flags: 0,
    }
}

fn ipv6(src: u128, dst: u128, next_hdr: u8) -> ffi::ibv_flow_ipv6_filter {
    ffi::ibv_flow_ipv6_filter {
        src_ip: src.to_be_bytes(),
        dst_ip: dst.to_be_bytes(),
        flow_label: 0,
        next_hdr,
        traffic_class: 0,
        hop_limit: 0,
    }
}

fn ports(src: u16, dst: u16) -> ffi::ibv_flow_tcp_udp_filter {
    ffi::ibv_flow_tcp_udp_filter {
        dst_port: dst.to_be(),
        src_port: src.to_be(),
    }
}

fn tunnel(vni: u32) -> ffi::ibv_flow_tunnel_filter {
    ffi::ibv_flow_tunnel_filter {
        tunnel_id: vni.to_be(),
    }
}

fn size_of_u16<T>() -> u16 {
    u16::try_from(size_of::<T>()).unwrap_or(u16::MAX)
}

/// Appends the bytes of a structure of `infiniband/verbs.h`.
fn put<T: Copy>(out: &mut Vec<u8>, value: &T) {
    // A zeroed buffer first: padding bytes of `value` are not initialised and must not be read.
    let at = out.len();
    out.resize(at + size_of::<T>(), 0);
    // SAFETY: `out` has room for a T at `at`; an unaligned write of a plain structure of integers.
    unsafe { out.as_mut_ptr().add(at).cast::<T>().write_unaligned(*value) };
}

impl FlowRule {
    /// The rule as `ibv_create_flow` reads it: a flow attribute with the specs right behind it, in 8-byte words so
    /// that the structures are aligned (all sizes are multiples of 4, the strictest alignment among them).
    fn words(&self) -> Vec<u64> {
        let mut specs = Vec::new();
        for spec in &self.specs {
            spec.append(&mut specs);
        }
        let attr = ffi::ibv_flow_attr {
            comp_mask: 0,
            type_: match self.kind {
                FlowKind::Normal => ffi::ibv_flow_attr_type::IBV_FLOW_ATTR_NORMAL,
                FlowKind::Sniffer => ffi::ibv_flow_attr_type::IBV_FLOW_ATTR_SNIFFER,
            },
            size: u16::try_from(size_of::<ffi::ibv_flow_attr>() + specs.len()).unwrap_or(u16::MAX),
            priority: self.priority,
            num_of_specs: u8::try_from(self.specs.len()).unwrap_or(u8::MAX),
            port: self.port,
            flags: 0,
        };
        let mut bytes = Vec::new();
        put(&mut bytes, &attr);
        bytes.extend(specs);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
            .chunks_exact(8)
            .map(|c| u64::from_ne_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]))
            .collect()
    }
}

/// An installed rule; dropping it takes the rule away.
pub struct Flow {
    raw: *mut ffi::ibv_flow,
    qp: Arc<RssQpInner>,
}

// SAFETY: immutable after creation.
unsafe impl Send for Flow {}

impl Drop for Flow {
    fn drop(&mut self) {
        if let Some(destroy) = operation!(self.qp.pd.context, ibv_destroy_flow) {
            // SAFETY: created by `create`, destroyed only here.
            destroyed("ibv_destroy_flow", unsafe { destroy(self.raw) });
        }
    }
}

impl Flow {
    /// Installs a rule that leads to `qp`.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW, ENOMEM for a priority above 15, EINVAL for a contradiction, EEXIST for a conflict.
    pub fn create(qp: &RssQp, rule: &FlowRule) -> Result<Self, VerbsError> {
        let context = &qp.0.pd.context;
        let object = || {
            format!(
                "{} port {}, priority {}, {:?}",
                context.name(),
                rule.port,
                rule.priority,
                rule.specs
            )
        };
        let create = operation!(context, ibv_create_flow, "ibv_create_flow", object)?;
        let mut words = rule.words();
        // SAFETY: a live QP, held by the new object; `words` is a well-formed rule and outlives the call.
        let raw = unsafe { create(qp.0.raw, words.as_mut_ptr().cast()) };
        let raw = made(raw, "ibv_create_flow", object())?;
        Ok(Self {
            raw,
            qp: Arc::clone(&qp.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_laid_out_as_verbs_h_has_it() {
        let rule = FlowRule {
            port: 2,
            kind: FlowKind::Normal,
            priority: 7,
            specs: vec![
                FlowSpec::ETHERNET,
                FlowSpec::Udp {
                    src: Masked::default(),
                    dst: Masked {
                        value: 0x1234,
                        mask: 0xffff,
                    },
                },
                FlowSpec::Drop,
            ],
        };
        let bytes: Vec<u8> = rule.words().iter().flat_map(|w| w.to_ne_bytes()).collect();
        let (attr, specs) = bytes.split_at(size_of::<ffi::ibv_flow_attr>());
        assert_eq!(attr[8..16], [20 + 40 + 16 + 8, 0, 7, 0, 3, 2, 0, 0]);
        assert_eq!(specs[..6], [0x20, 0, 0, 0, 40, 0]);
        assert!(specs[6..40].iter().all(|b| *b == 0));
        // Type, size, value (destination, source), mask.
        assert_eq!(
            specs[40..56],
            [
                0x41, 0, 0, 0, 16, 0, 0x12, 0x34, 0, 0, 0xff, 0xff, 0, 0, 0, 0
            ]
        );
        assert_eq!(specs[56..62], [0x01, 0x10, 0, 0, 8, 0]);
    }
}
