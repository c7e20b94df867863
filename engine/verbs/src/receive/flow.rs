//! Flow rules: steer the frames of a port to QPs.

use super::{qp::QpInner, raw_qp::RawQpHandle, rss_qp::RssQp};
use crate::sys as ffi;
use crate::{
    device::operation,
    error::{VerbsError, check_created, log_destroy_error},
};
use std::{mem::offset_of, sync::Arc};

/// Appends a structure of `infiniband/verbs.h` to a flow rule's bytes: zeroes, then each listed
/// field at its offset.
///
/// A structure that is built in Rust and copied as a whole would include undefined padding bytes.
/// libibverbs rejects an IPv6 filter whose mask does not end in a zero (`get_filters_size` of
/// rdma-core, libibverbs/cmd.c). The kernel rejects a filter with a bit set behind the fields that
/// it knows (`spec_filter_size` of drivers/infiniband/core/uverbs_cmd.c).
macro_rules! append {
    ($out:expr, $structure:ident { $($($field:ident).+: $value:expr),+ $(,)? }) => {{
        let out: &mut Vec<u8> = $out;
        let start = out.len();
        out.resize(start + size_of::<ffi::$structure>(), 0);
        $(
            let at = start + offset_of!(ffi::$structure, $($field).+);
            write_field(&mut out[at..], |it: &ffi::$structure| it.$($field).+, $value);
        )+
    }};
}

/// Writes a structure field at the start of `to`; `_field` determines its type.
fn write_field<S, F: PlainField>(to: &mut [u8], _field: fn(&S) -> F, value: F) {
    let bytes = value.ne_bytes();
    let bytes = bytes.as_ref();
    to[..bytes.len()].copy_from_slice(bytes);
}

/// Types of structure fields in a flow rule: plain integers or bytes, which have no padding.
trait PlainField {
    type Bytes: AsRef<[u8]>;

    /// Returns the bytes of the field's value in memory order.
    fn ne_bytes(self) -> Self::Bytes;
}

impl<const N: usize> PlainField for [u8; N] {
    type Bytes = Self;

    fn ne_bytes(self) -> Self {
        self
    }
}

macro_rules! integer_fields {
    ($($integer:ident),+) => {$(
        impl PlainField for $integer {
            type Bytes = [u8; size_of::<Self>()];

            fn ne_bytes(self) -> Self::Bytes {
                self.to_ne_bytes()
            }
        }
    )+};
}
integer_fields!(u8, u16, u32);

/// Flow rule to install in the NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// Number of the port whose frames the rule matches, from 1.
    pub port: u8,
    /// Kind of the flow rule.
    pub kind: FlowKind,
    /// Priority of the flow rule; a lower value is matched first. mlx5 accepts 0 to 15.
    pub priority: u16,
    /// Specs of the flow rule, all of which must match a frame; empty for a sniffer.
    pub specs: Vec<FlowSpec>,
}

/// Kinds of flow rules (`ibv_flow_attr_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FlowKind {
    /// Flow rule that takes the frames that its specs match, before the kernel receives them.
    Normal,
    /// Flow rule that copies all frames that the port receives and sends.
    Sniffer,
}

/// Value and mask of the header bits that a flow rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masked<T> {
    /// Header field value to match, in host byte order.
    pub value: T,
    /// Mask of the header field, with a 1 for each bit that must match.
    pub mask: T,
}

impl<T: Default + std::ops::Not<Output = T>> Masked<T> {
    /// Creates a match of all bits of the header field value `value`.
    #[must_use]
    pub fn exact(value: T) -> Self {
        Self {
            value,
            mask: !T::default(),
        }
    }
}

impl<T> Masked<T> {
    /// Converts the match's value and mask with `convert`.
    fn map<U>(self, convert: impl Fn(T) -> U) -> Masked<U> {
        Masked {
            value: convert(self.value),
            mask: convert(self.mask),
        }
    }
}

impl<T: Into<u128>> Masked<T> {
    /// Converts the match's value and mask to 128 bits.
    #[must_use]
    pub fn widen(self) -> Masked<u128> {
        Masked {
            value: self.value.into(),
            mask: self.mask.into(),
        }
    }
}

/// Spec of a flow rule: a header to match, or an action. A spec with default fields matches every
/// packet of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowSpec {
    /// Spec of the Ethernet header (`IBV_FLOW_SPEC_ETH`).
    Ethernet {
        /// Destination MAC address that the flow rule matches.
        dst: Masked<[u8; 6]>,
        /// EtherType behind the VLAN tags that the flow rule matches.
        ethertype: Masked<u16>,
        /// Tag control information of the first VLAN tag to match; a frame without a tag does not
        /// match.
        vlan: Masked<u16>,
    },
    /// Spec of the IPv4 header (`IBV_FLOW_SPEC_IPV4`, or `_EXT` if the protocol is matched).
    Ipv4 {
        /// Source IPv4 address that the flow rule matches.
        src: Masked<u32>,
        /// Destination IPv4 address that the flow rule matches.
        dst: Masked<u32>,
        /// IP protocol number that the flow rule matches.
        proto: Masked<u8>,
    },
    /// Spec of the IPv6 header (`IBV_FLOW_SPEC_IPV6`).
    Ipv6 {
        /// Source IPv6 address that the flow rule matches.
        src: Masked<u128>,
        /// Destination IPv6 address that the flow rule matches.
        dst: Masked<u128>,
        /// Next header value of the fixed IPv6 header that the flow rule matches.
        proto: Masked<u8>,
    },
    /// Spec of the TCP header (`IBV_FLOW_SPEC_TCP`).
    Tcp {
        /// Source TCP port that the flow rule matches.
        src: Masked<u16>,
        /// Destination TCP port that the flow rule matches.
        dst: Masked<u16>,
    },
    /// Spec of the UDP header (`IBV_FLOW_SPEC_UDP`).
    Udp {
        /// Source UDP port that the flow rule matches.
        src: Masked<u16>,
        /// Destination UDP port that the flow rule matches.
        dst: Masked<u16>,
    },
    /// Spec of the VXLAN header (`IBV_FLOW_SPEC_VXLAN_TUNNEL`).
    Vxlan {
        /// VXLAN network identifier of 24 bits that the flow rule matches.
        vni: Masked<u32>,
    },
    /// Spec of any GRE header (`IBV_FLOW_SPEC_GRE`).
    Gre,
    /// Spec of a header inside the tunnel (`IBV_FLOW_SPEC_INNER`).
    Inner(Inner),
    /// Action of a flow rule that drops the frame (`IBV_FLOW_SPEC_ACTION_DROP`).
    Drop,
}

/// Header inside a tunnel, matched with any field values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inner {
    /// IPv4 header inside a tunnel.
    Ipv4,
    /// IPv6 header inside a tunnel.
    Ipv6,
    /// TCP header inside a tunnel.
    Tcp,
    /// UDP header inside a tunnel.
    Udp,
}

impl Inner {
    /// Returns the flow spec of an outer header of this type.
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
    /// Flow spec that matches any Ethernet frame.
    pub const ETHERNET: Self = Self::Ethernet {
        dst: Masked {
            value: [0; 6],
            mask: [0; 6],
        },
        ethertype: Masked { value: 0, mask: 0 },
        vlan: Masked { value: 0, mask: 0 },
    };

    /// Appends the flow spec as a structure of `infiniband/verbs.h`. Fields of several bytes are in
    /// network order there.
    fn append(self, out: &mut Vec<u8>) {
        use ffi::ibv_flow_spec_type as t;
        /// Appends a flow spec structure of this type, with each field in the filter's value and
        /// mask.
        macro_rules! spec {
            ($spec:ident, $kind:expr, { $($field:ident: $masked:expr),* $(,)? }) => {
                append!(out, $spec {
                    type_: $kind,
                    size: size_of_u16::<ffi::$spec>(),
                    $(val.$field: $masked.value, mask.$field: $masked.mask,)*
                })
            };
        }
        match self {
            Self::Ethernet {
                dst,
                ethertype,
                vlan,
            } => spec!(ibv_flow_spec_eth, t::IBV_FLOW_SPEC_ETH, {
                dst_mac: dst,
                ether_type: ethertype.map(u16::to_be),
                vlan_tag: vlan.map(u16::to_be),
            }),
            Self::Ipv4 { src, dst, proto } if proto.mask == 0 => {
                spec!(ibv_flow_spec_ipv4, t::IBV_FLOW_SPEC_IPV4, {
                    src_ip: src.map(u32::to_be),
                    dst_ip: dst.map(u32::to_be),
                });
            }
            Self::Ipv4 { src, dst, proto } => {
                spec!(ibv_flow_spec_ipv4_ext, t::IBV_FLOW_SPEC_IPV4_EXT, {
                    src_ip: src.map(u32::to_be),
                    dst_ip: dst.map(u32::to_be),
                    proto: proto,
                });
            }
            Self::Ipv6 { src, dst, proto } => spec!(ibv_flow_spec_ipv6, t::IBV_FLOW_SPEC_IPV6, {
                src_ip: src.map(u128::to_be_bytes),
                dst_ip: dst.map(u128::to_be_bytes),
                next_hdr: proto,
            }),
            Self::Tcp { src, dst } => spec!(ibv_flow_spec_tcp_udp, t::IBV_FLOW_SPEC_TCP, {
                dst_port: dst.map(u16::to_be),
                src_port: src.map(u16::to_be),
            }),
            Self::Udp { src, dst } => spec!(ibv_flow_spec_tcp_udp, t::IBV_FLOW_SPEC_UDP, {
                dst_port: dst.map(u16::to_be),
                src_port: src.map(u16::to_be),
            }),
            Self::Vxlan { vni } => spec!(ibv_flow_spec_tunnel, t::IBV_FLOW_SPEC_VXLAN_TUNNEL, {
                tunnel_id: vni.map(u32::to_be),
            }),
            Self::Gre => spec!(ibv_flow_spec_gre, t::IBV_FLOW_SPEC_GRE, {}),
            Self::Inner(inner) => {
                let at = out.len();
                inner.outer().append(out);
                // Every spec begins with its type, a 32-bit word.
                if let Some((kind, _)) = out[at..].split_first_chunk_mut::<4>() {
                    *kind = (u32::from_ne_bytes(*kind) | t::IBV_FLOW_SPEC_INNER).to_ne_bytes();
                }
            }
            Self::Drop => append!(
                out,
                ibv_flow_spec_action_drop {
                    type_: t::IBV_FLOW_SPEC_ACTION_DROP,
                    size: size_of_u16::<ffi::ibv_flow_spec_action_drop>(),
                }
            ),
        }
    }
}

fn size_of_u16<T>() -> u16 {
    u16::try_from(size_of::<T>()).unwrap_or(u16::MAX)
}

impl FlowRule {
    /// Returns the flow rule as `ibv_create_flow` reads it: a flow attribute directly followed by
    /// the specs. The result is in 8-byte words, so that the structures are aligned; all sizes are
    /// multiples of 4, the strictest alignment among the structures.
    fn words(&self) -> Vec<u64> {
        let mut specs = Vec::new();
        for spec in &self.specs {
            spec.append(&mut specs);
        }
        let mut bytes = Vec::new();
        append!(
            &mut bytes,
            ibv_flow_attr {
                type_: match self.kind {
                    FlowKind::Normal => ffi::ibv_flow_attr_type::IBV_FLOW_ATTR_NORMAL,
                    FlowKind::Sniffer => ffi::ibv_flow_attr_type::IBV_FLOW_ATTR_SNIFFER,
                },
                size: u16::try_from(size_of::<ffi::ibv_flow_attr>() + specs.len())
                    .unwrap_or(u16::MAX),
                priority: self.priority,
                num_of_specs: u8::try_from(self.specs.len()).unwrap_or(u8::MAX),
                port: self.port,
            }
        );
        bytes.extend(specs);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
            .chunks_exact(8)
            .map(|c| u64::from_ne_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]))
            .collect()
    }
}

/// Installed flow rule; dropping it removes the rule.
pub struct Flow {
    raw: *mut ffi::ibv_flow,
    qp: Arc<QpInner>,
}

// SAFETY: immutable after creation.
unsafe impl Send for Flow {}

impl Drop for Flow {
    fn drop(&mut self) {
        if let Some(destroy) = operation!(self.qp.pd.context, ibv_destroy_flow) {
            // SAFETY: created by `create`, destroyed only here.
            log_destroy_error("ibv_destroy_flow", unsafe { destroy(self.raw) });
        }
    }
}

impl Flow {
    /// Installs a flow rule that steers frames to `qp`.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW, ENOMEM for a priority above 15, EINVAL for contradictory specs,
    /// EEXIST for a conflict with an installed rule.
    pub fn create(qp: &RssQp, rule: &FlowRule) -> Result<Self, VerbsError> {
        Self::install(&qp.0, rule)
    }

    /// Installs a flow rule that steers frames to a QP with its own receive queue.
    ///
    /// # Errors
    /// See [`Flow::create`]; EBUSY for a second sniffer rule on a device that has one only.
    pub fn create_to_raw_qp(qp: &RawQpHandle, rule: &FlowRule) -> Result<Self, VerbsError> {
        Self::install(&qp.0, rule)
    }

    fn install(qp: &Arc<QpInner>, rule: &FlowRule) -> Result<Self, VerbsError> {
        let context = &qp.pd.context;
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
        // SAFETY: a live QP, held by the new object; `words` is a well-formed rule and outlives the
        // call.
        let raw = unsafe { create(qp.raw, words.as_mut_ptr().cast()) };
        let raw = check_created(raw, "ibv_create_flow", object())?;
        Ok(Self {
            raw,
            qp: Arc::clone(qp),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_has_the_layout_of_verbs_h() {
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

    #[test]
    fn padding_is_zero_and_every_other_byte_of_a_masked_field_is_set() {
        let any = Masked::exact(u16::MAX);
        let address = Masked::exact(u128::MAX);
        let word = Masked::exact(u32::MAX);
        let proto = Masked::exact(u8::MAX);
        // For each spec: bytes in front of the value, ranges of the value's bytes that are set,
        // size of the filter.
        let specs = [
            (
                FlowSpec::Ethernet {
                    dst: Masked {
                        value: [0xff; 6],
                        mask: [0xff; 6],
                    },
                    ethertype: any,
                    vlan: any,
                },
                (6, [0..6, 12..16], 16),
            ),
            (
                FlowSpec::Ipv4 {
                    src: word,
                    dst: word,
                    proto,
                },
                (8, [0..9, 9..9], 12),
            ),
            (
                FlowSpec::Ipv6 {
                    src: address,
                    dst: address,
                    proto,
                },
                (8, [0..32, 36..37], 40),
            ),
            (FlowSpec::Tcp { src: any, dst: any }, (6, [0..4, 4..4], 4)),
            (FlowSpec::Vxlan { vni: word }, (8, [0..4, 4..4], 4)),
        ];
        for (spec, (head, set, size)) in specs {
            // Reused memory: a spec that is copied over it as a whole would keep old bytes in its
            // padding.
            let mut bytes = vec![0x55; 256];
            bytes.clear();
            spec.append(&mut bytes);
            for (at, byte) in bytes.iter().enumerate().skip(6) {
                let is_set = at >= head
                    && at < head + 2 * size
                    && set.iter().any(|it| it.contains(&((at - head) % size)));
                let expected = if is_set { 0xff } else { 0 };
                assert_eq!(*byte, expected, "byte {at} of {spec:?}: {bytes:x?}");
            }
        }
    }
}
