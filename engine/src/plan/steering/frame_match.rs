//! Frame fields that one flow rule matches, and their translation into flow specs for each RSS
//! profile.

use crate::{
    config::{Net, Proto, RuleAction, RuleConfig},
    verbs::{FlowSpec, Inner, Masked},
};
use std::net::IpAddr;
use wqcap_rss::profile::{HashDepth, Profile};

/// UDP destination port of VXLAN (RFC 7348).
const VXLAN_PORT: u16 = 4789;
/// Mask of a VLAN tag's identifier: 12 bits (IEEE 802.1Q).
pub(super) const VLAN_ID: u16 = 0x0fff;

/// Bit of a MAC address's first byte that is set in multicast and broadcast addresses (IEEE 802).
const GROUP: u8 = 1;

/// Error of a configured flow rule whose fields no hardware rule can match together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RuleError {
    #[error("vlan is at most 4095")]
    VlanOutOfRange,
    #[error("vni is at most 16777215")]
    VniOutOfRange,
    #[error(
        "a flow rule with vni matches only VXLAN frames: set proto = \"udp\" and dst_port = {VXLAN_PORT}, or leave both out"
    )]
    VniWithoutVxlan,
    #[error("a flow rule with ports needs proto = \"tcp\" or \"udp\"")]
    PortsWithoutProtocol,
    #[error(
        "a flow rule with another ethertype than IPv4 and IPv6 cannot have addresses, proto or ports"
    )]
    EthertypeWithIp,
    #[error("a flow rule with action = \"drop\" has no queue; leave queue out")]
    DropWithQueue,
    #[error("the flow rule has fields of both IPv4 and IPv6, and no frame matches both")]
    BothIpVersions,
}

/// IP version that a flow rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ip {
    V4,
    V6,
}

/// Fields of a frame that a flow rule matches, without those of its RSS profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameMatch {
    /// Destination MAC address that the flow rule matches.
    pub(super) dst_mac: Masked<[u8; 6]>,
    /// Identifier of the first C-VLAN tag that the flow rule matches.
    pub(super) vlan: Masked<u16>,
    /// EtherType of frames other than IP that the flow rule matches; `ip` has the IP version.
    pub(super) ethertype: Option<u16>,
    /// IP version of the packets that the flow rule matches.
    pub(super) ip: Option<Ip>,
    /// Source IP address that the flow rule matches; IPv4 uses the low 32 bits.
    pub(super) src: Masked<u128>,
    /// Destination IP address that the flow rule matches; IPv4 uses the low 32 bits.
    pub(super) dst: Masked<u128>,
    /// IP protocol of the packets that the flow rule matches.
    pub(super) proto: Option<u8>,
    /// TCP or UDP source port that the flow rule matches.
    pub(super) src_port: Masked<u16>,
    /// TCP or UDP destination port that the flow rule matches.
    pub(super) dst_port: Masked<u16>,
    /// VXLAN network identifier that the flow rule matches.
    pub(super) vni: Option<u32>,
    /// `true` if the match does not want IPv4 fragments. Flow rules cannot exclude them, so the
    /// specs do not depend on this field.
    pub(super) whole: bool,
}

impl FrameMatch {
    /// Returns the frame match of a configured flow rule.
    ///
    /// # Errors
    /// A value is out of range, or fields exclude each other.
    pub(super) fn from_rule(rule: &RuleConfig) -> Result<Self, RuleError> {
        let any_or = |port: Option<u16>| port.map(Masked::exact).unwrap_or_default();
        let mac = rule.dst_mac.map(|mac| Masked {
            value: mac.0,
            mask: [0xff; 6],
        });
        // The identifier only; any priority and DEI match.
        let vlan = rule.vlan.map(|value| Masked {
            value,
            mask: VLAN_ID,
        });
        let mut it = Self {
            dst_mac: mac.unwrap_or_default(),
            vlan: vlan.unwrap_or_default(),
            src_port: any_or(rule.src_port),
            dst_port: any_or(rule.dst_port),
            proto: rule.proto.map(|p| p.0),
            vni: rule.vni,
            ..Self::default()
        };
        if rule.vlan.is_some_and(|v| v > VLAN_ID) {
            return Err(RuleError::VlanOutOfRange);
        }
        if rule.vni.is_some_and(|v| v >= 1 << 24) {
            return Err(RuleError::VniOutOfRange);
        }
        match rule.ethertype {
            Some(0x0800) => it.set_ip(Ip::V4)?,
            Some(0x86dd) => it.set_ip(Ip::V6)?,
            other => it.ethertype = other,
        }
        it.src = it.address(rule.src)?;
        it.dst = it.address(rule.dst)?;
        if rule.vni.is_some() {
            if rule.proto.is_some_and(|p| p != Proto::UDP)
                || rule.dst_port.is_some_and(|p| p != VXLAN_PORT)
            {
                return Err(RuleError::VniWithoutVxlan);
            }
            it.proto = Some(Proto::UDP.0);
            it.dst_port = Masked::exact(VXLAN_PORT);
        }
        let ports = rule.src_port.is_some() || rule.dst_port.is_some();
        if ports
            && !it
                .proto
                .is_some_and(|p| [Proto::TCP.0, Proto::UDP.0].contains(&p))
        {
            return Err(RuleError::PortsWithoutProtocol);
        }
        if it.ethertype.is_some() && (it.proto.is_some() || it.ip.is_some()) {
            return Err(RuleError::EthertypeWithIp);
        }
        if rule.action == RuleAction::Drop && rule.queue.is_some() {
            return Err(RuleError::DropWithQueue);
        }
        Ok(it)
    }

    /// Returns the address and mask of an IP network, and sets the frame match's IP version to the
    /// network's.
    fn address(&mut self, net: Option<Net>) -> Result<Masked<u128>, RuleError> {
        let Some(net) = net else {
            return Ok(Masked::default());
        };
        let (ip, value, mask) = match net.address {
            IpAddr::V4(a) => (Ip::V4, a.to_bits().into(), net.mask_v4().into()),
            IpAddr::V6(a) => (Ip::V6, a.to_bits(), net.mask_v6()),
        };
        self.set_ip(ip)?;
        Ok(Masked { value, mask })
    }

    /// Returns the flow specs of a tunnel's outer headers: VXLAN, or GRE if `vxlan` is `false`.
    pub(super) fn tunnel(vxlan: bool, ip: Ip) -> Vec<FlowSpec> {
        let mut outer = Self {
            ip: Some(ip),
            ..Self::default()
        };
        if vxlan {
            outer.proto = Some(Proto::UDP.0);
            outer.dst_port = Masked::exact(VXLAN_PORT);
        }
        // The catch-all profile adds no specs to those of the match.
        let mut specs = outer.specs(Profile::CatchAll);
        specs.push(if vxlan {
            FlowSpec::Vxlan {
                vni: Masked::default(),
            }
        } else {
            FlowSpec::Gre
        });
        specs
    }

    /// Sets the frame match's IP version; fails if the match has the other version already.
    pub(super) fn set_ip(&mut self, ip: Ip) -> Result<(), RuleError> {
        if self.ip.is_some_and(|old| old != ip) {
            return Err(RuleError::BothIpVersions);
        }
        self.ip = Some(ip);
        Ok(())
    }

    /// Returns the RSS profiles whose frames this match can take.
    ///
    /// If `whole` is set, all frames have one destination, so the fewest profiles that can express
    /// the match are returned.
    pub(super) fn profiles(&self, depth: HashDepth, whole: bool) -> Vec<Profile> {
        let fits = |profile: Profile| {
            let (ip, l4) = kinds(profile);
            let same_ip = match (self.ip, ip) {
                (Some(mine), Some(its)) => mine == its,
                (Some(_), None) => false,
                (None, _) => true,
            };
            let same_l4 = match (self.proto, l4) {
                (Some(mine), Some(its)) => mine == its,
                // IP packets of a protocol are hashed by addresses, unless the profile is of that
                // protocol. Fragments have no ports, so the protocol's profile does not take them.
                (Some(mine), None) => {
                    let all_have_ports = [6, 17].contains(&mine) && self.has_ports();
                    ip.is_some() && (depth == HashDepth::L3 || whole || !all_have_ports)
                }
                (None, _) => true,
            };
            same_ip && same_l4 && (self.ethertype.is_none() || profile == Profile::CatchAll)
        };
        let fitting = Profile::to_install(if whole { HashDepth::L4 } else { depth })
            .iter()
            .copied()
            .filter(|p| fits(*p));
        if whole {
            // The most general profiles that can express the match: a protocol needs an IP spec,
            // ports an L4 spec.
            let fitting: Vec<_> = fitting.collect();
            let offset = if self.has_ports() {
                0
            } else if self.ip.is_some() || self.proto.is_some() {
                1
            } else {
                2
            };
            return fitting
                .into_iter()
                .filter(|p| p.priority_offset() == offset)
                .collect();
        }
        // With hash = "l3", ports must still be matched: the L3 profile's rule has an L4 spec.
        fitting.collect()
    }

    /// Returns the frame match that takes the IPv4 fragments of this match on a NIC whose protocol
    /// rules do not match fragments.
    ///
    /// Returns `None` if this match names no protocol or does not include fragments.
    pub(super) fn for_fragments(&self) -> Option<Self> {
        let names = self.proto.is_some() && self.ip != Some(Ip::V6);
        (names && !self.whole && !self.has_ports()).then_some(Self {
            ip: Some(Ip::V4),
            proto: None,
            ..*self
        })
    }

    /// Returns `true` if the frame match has ports or a VNI, which fragments do not have.
    pub(super) fn has_ports(&self) -> bool {
        self.src_port.mask | self.dst_port.mask != 0 || self.vni.is_some()
    }

    /// Returns this frame match, narrowed to the frames of an RSS profile.
    pub(super) fn as_profile(&self, profile: Profile) -> Self {
        let (ip, l4) = kinds(profile);
        Self {
            ip: self.ip.or(ip),
            proto: self.proto.or(l4),
            ..*self
        }
    }

    /// Returns the flow specs of a rule that takes those frames of an RSS profile that this match
    /// selects.
    ///
    /// The driver puts a rule whose first spec has a group MAC address into a separate last
    /// priority, whatever priority the rule has. There, two rules with the same match both take
    /// each frame (`flow_is_multicast_only` and `get_flow_table` of
    /// drivers/infiniband/hw/mlx5/fs.c). To keep its priority, such a rule begins with a spec that
    /// matches any frame. The driver checks only the first spec, and the next spec of the same
    /// header overwrites it (`parse_flow_attr`).
    pub(super) fn specs(&self, profile: Profile) -> Vec<FlowSpec> {
        let it = self.as_profile(profile);
        let (_, own_l4) = kinds(profile);
        let mut specs = Vec::new();
        if it.dst_mac.value[0] & it.dst_mac.mask[0] & GROUP != 0 {
            specs.push(FlowSpec::ETHERNET);
        }
        specs.push(FlowSpec::Ethernet {
            dst: it.dst_mac,
            ethertype: it.ethertype.map(Masked::exact).unwrap_or_default(),
            vlan: it.vlan,
        });
        let l4 = own_l4.or(it.proto.filter(|_| it.has_ports()));
        let proto = match (it.proto, l4) {
            (Some(value), None) => Masked::exact(value),
            _ => Masked::default(),
        };
        // Narrows an IPv4 address from 128 bits to 32.
        let v4 = |m: Masked<u128>| Masked {
            value: m.value as u32,
            mask: m.mask as u32,
        };
        match it.ip {
            Some(Ip::V4) => specs.push(FlowSpec::Ipv4 {
                src: v4(it.src),
                dst: v4(it.dst),
                proto,
            }),
            Some(Ip::V6) => specs.push(FlowSpec::Ipv6 {
                src: it.src,
                dst: it.dst,
                proto,
            }),
            None => {}
        }
        let (src, dst) = (it.src_port, it.dst_port);
        match l4 {
            Some(6) => specs.push(FlowSpec::Tcp { src, dst }),
            Some(17) => specs.push(FlowSpec::Udp { src, dst }),
            _ => {}
        }
        if let Some(value) = it.vni {
            specs.push(FlowSpec::Vxlan {
                vni: Masked {
                    value,
                    mask: 0x00ff_ffff,
                },
            });
        }
        specs
    }

    /// Returns the value and mask of each field of the frame match, widened to 128 bits.
    fn fields(&self) -> [Masked<u128>; 10] {
        let whole = |value: Option<u128>| value.map_or_else(Masked::default, Masked::exact);
        let mac = |bytes: [u8; 6]| bytes.iter().fold(0, |n, it| n << 8 | u128::from(*it));
        [
            Masked {
                value: mac(self.dst_mac.value),
                mask: mac(self.dst_mac.mask),
            },
            self.vlan.widen(),
            whole(self.ethertype.map(u128::from)),
            whole(self.ip.map(|ip| ip as u128)),
            self.src,
            self.dst,
            whole(self.proto.map(u128::from)),
            self.src_port.widen(),
            self.dst_port.widen(),
            whole(self.vni.map(u128::from)),
        ]
    }

    /// Returns `true` if one frame can match both frame matches.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        // An EtherType other than IP and an IP version exclude each other.
        let excluded = |a: &Self, b: &Self| a.ethertype.is_some() && b.ip.is_some();
        let agree =
            |(a, b): (Masked<u128>, Masked<u128>)| (a.value ^ b.value) & a.mask & b.mask == 0;
        !excluded(self, other)
            && !excluded(other, self)
            && self.fields().into_iter().zip(other.fields()).all(agree)
    }

    /// Returns `true` if this frame match takes every frame that `other` takes.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let wider = |(mine, its): (Masked<u128>, Masked<u128>)| {
            mine.mask & !its.mask == 0 && (mine.value ^ its.value) & mine.mask == 0
        };
        self.fields().into_iter().zip(other.fields()).all(wider)
    }
}

/// Returns the flow specs of an RSS profile's headers inside a tunnel.
pub(super) fn inner_specs(profile: Profile) -> Vec<FlowSpec> {
    let (ip, l4) = kinds(profile);
    let ip = ip.map(|ip| match ip {
        Ip::V4 => Inner::Ipv4,
        Ip::V6 => Inner::Ipv6,
    });
    let l4 = l4.map(|l4| if l4 == 6 { Inner::Tcp } else { Inner::Udp });
    ip.into_iter().chain(l4).map(FlowSpec::Inner).collect()
}

/// Returns the IP version and the L4 protocol of an RSS profile.
pub(super) fn kinds(profile: Profile) -> (Option<Ip>, Option<u8>) {
    match profile {
        Profile::Ipv4Tcp => (Some(Ip::V4), Some(6)),
        Profile::Ipv4Udp => (Some(Ip::V4), Some(17)),
        Profile::Ipv6Tcp => (Some(Ip::V6), Some(6)),
        Profile::Ipv6Udp => (Some(Ip::V6), Some(17)),
        Profile::Ipv4 => (Some(Ip::V4), None),
        Profile::Ipv6 => (Some(Ip::V6), None),
        Profile::CatchAll => (None, None),
    }
}
