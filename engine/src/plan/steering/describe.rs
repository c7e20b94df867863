//! Flow specs as text for people.

use crate::{
    config,
    verbs::{FlowSpec, Inner},
};

/// A match in words.
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
                words.push("ipv4".into());
                for (side, net) in [("src", src), ("dst", dst)] {
                    if net.mask != 0 {
                        words.push(format!(
                            "{side} {}/{}",
                            std::net::Ipv4Addr::from_bits(net.value),
                            net.mask.count_ones()
                        ));
                    }
                }
                if proto.mask != 0 {
                    words.push(format!("protocol {}", proto.value));
                }
            }
            FlowSpec::Ipv6 { src, dst, proto } => {
                words.push("ipv6".into());
                for (side, net) in [("src", src), ("dst", dst)] {
                    if net.mask != 0 {
                        words.push(format!(
                            "{side} {}/{}",
                            std::net::Ipv6Addr::from_bits(net.value),
                            net.mask.count_ones()
                        ));
                    }
                }
                if proto.mask != 0 {
                    words.push(format!("protocol {}", proto.value));
                }
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
