//! Readable text of flow specs, the fields that a flow rule of the NIC matches.

use crate::{
    config,
    verbs::{FlowSpec, Inner, Masked},
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns a readable text of the frames that the flow specs of a rule match.
#[must_use]
pub fn describe(specs: &[FlowSpec]) -> String {
    let mut words = Vec::new();
    for spec in specs {
        match spec {
            FlowSpec::Ethernet {
                dst,
                ethertype,
                vlan,
            } => {
                if dst.mask == [0xff; 6] {
                    words.push(format!("to {}", config::Mac(dst.value)));
                } else if dst.mask != [0; 6] {
                    let (value, mask) = (config::Mac(dst.value), config::Mac(dst.mask));
                    words.push(format!("to {value}/{mask}"));
                }
                if vlan.mask != 0 {
                    words.push(format!("vlan {}", vlan.value & vlan.mask));
                }
                if ethertype.mask != 0 {
                    words.push(format!("ethertype {:#06x}", ethertype.value));
                }
            }
            FlowSpec::Ipv4 { src, dst, proto } => {
                let net = |it: &Masked<u32>| (Ipv4Addr::from_bits(it.value).into(), it.mask.into());
                packet(&mut words, "ipv4", [net(src), net(dst)], *proto);
            }
            FlowSpec::Ipv6 { src, dst, proto } => {
                let net = |it: &Masked<u128>| (Ipv6Addr::from_bits(it.value).into(), it.mask);
                packet(&mut words, "ipv6", [net(src), net(dst)], *proto);
            }
            FlowSpec::Tcp { src, dst } | FlowSpec::Udp { src, dst } => {
                words.push(if matches!(spec, FlowSpec::Tcp { .. }) {
                    "tcp".into()
                } else {
                    "udp".into()
                });
                for (side, port) in [("src port", src), ("dst port", dst)] {
                    if port.mask != 0 {
                        words.push(format!("{side} {}", port.value));
                    }
                }
            }
            FlowSpec::Vxlan { vni } if vni.mask == 0 => words.push("vxlan".into()),
            FlowSpec::Vxlan { vni } => words.push(format!("vni {}", vni.value)),
            FlowSpec::Gre => words.push("gre".into()),
            FlowSpec::Inner(inner) => words.push(
                match inner {
                    Inner::Ipv4 => "inner ipv4",
                    Inner::Ipv6 => "inner ipv6",
                    Inner::Tcp => "inner tcp",
                    Inner::Udp => "inner udp",
                }
                .into(),
            ),
            FlowSpec::Drop => words.push("drop".into()),
        }
    }
    if words.is_empty() {
        "any frame".into()
    } else {
        words.join(" ")
    }
}

/// Appends the text of a flow rule's match of IP packets: version, networks (address and mask) and
/// protocol.
fn packet(
    words: &mut Vec<String>,
    version: &str,
    [src, dst]: [(IpAddr, u128); 2],
    proto: Masked<u8>,
) {
    words.push(version.into());
    for (side, (address, mask)) in [("src", src), ("dst", dst)] {
        if mask != 0 {
            words.push(format!("{side} {address}/{}", mask.count_ones()));
        }
    }
    if proto.mask != 0 {
        words.push(format!("protocol {}", proto.value));
    }
}
