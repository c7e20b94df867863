//! Notes on frames that a port does not receive or does not deliver whole, so that users learn of
//! gaps before the capture.
//!
//! May import: [`crate::config`], [`crate::device`], [`crate::plan::steering`]. Pure: facts and
//! configuration in, notes out.

use crate::{config::Config, device::PortFacts, plan::steering::Steering};
use wqcap_core::consumer::FCS_LEN;

/// Bytes of an Ethernet header with one VLAN tag, which the port admits beyond the MTU: the driver
/// sets the port's MTU to the netdev's plus `MLX5E_ETH_HARD_MTU`, which has 4 more for the FCS
/// (`mlx5e_set_mtu` of drivers/net/ethernet/mellanox/mlx5/core/en_main.c). Kernels with PSP add 40.
const HEADER: u64 = 18;
/// Bytes of a VLAN tag of a frame.
const TAG: u64 = 4;

/// Returns notes for the user, one for each reason why frames on the cable are not captured as
/// sent. `of_kernel` is `true` for an ordinary interface, whose rings have other limits.
pub(crate) fn notes(config: &Config, port: &PortFacts, of_kernel: bool) -> Vec<String> {
    let mut notes = sharing(port);
    notes.extend(interface(config, port));
    notes.extend(addresses(config, port));
    if !of_kernel {
        notes.extend(lengths(config, port));
        notes.extend(tags(config, port));
        notes.extend(roce(port));
    }
    notes.extend(damaged(config, port));
    notes
}

/// Returns a note on IPv4 fragments if flow rules name a protocol without a port and no rule takes
/// all packets.
pub(crate) fn fragments(steering: &Steering) -> Option<String> {
    let rules = steering.rules_without_fragments();
    let (verb, which) = match rules.as_slice() {
        [] => return None,
        [only] => ("names", only.clone()),
        [first, rest @ ..] => ("name", format!("{first} and {} more", rest.len())),
    };
    Some(format!(
        "mode \"filtered\": {which} {verb} a protocol and no port. No source states whether such rules match fragments of \
         IPv4; on a NIC where they do not, the kernel receives the fragments. A [[rule]] with ethertype = 0x0800 takes \
         them everywhere"
    ))
}

/// Returns the name of the port's network interface for a note, or `port N`.
fn name(port: &PortFacts) -> String {
    port.netdev
        .clone()
        .unwrap_or_else(|| format!("port {}", port.number))
}

/// Returns notes for the user on frames that the e-switch, a bond or other functions keep from the
/// captured port.
fn sharing(port: &PortFacts) -> Vec<String> {
    let (name, place) = (name(port), &port.place);
    let mut notes = Vec::new();
    if place.is_vf {
        notes.push(format!(
            "{name} is a virtual function: unless the host trusts it (ip link set PF vf N trust on), it sees frames to \
             its own MAC addresses and broadcasts only"
        ));
    }
    if place.vfs > 0 {
        notes.push(format!(
            "{name} has {} virtual functions: unicast frames to their MAC addresses go to them and are not seen by the capture",
            place.vfs
        ));
    }
    if let Some(other) = &place.represents {
        notes.push(format!(
            "{name} represents {other}: it sees what that port sends and no e-switch rule forwards, not what arrives \
             on the cable"
        ));
    } else if place.switchdev {
        notes.push(format!(
            "{name} is the uplink of an e-switch in switchdev mode: frames that its rules (tc, Open vSwitch) forward \
             to other ports are not seen here"
        ));
    }
    if let Some(bond) = &place.bond {
        notes.push(format!(
            "{name} belongs to {bond}: what arrives on the bond's other interfaces is not seen here; capture all of \
             them with -i for each"
        ));
    }
    if place.is_lag {
        notes.push(format!(
            "{name} is a RoCE LAG device: one port stands for several physical ones, and which of them a rule covers \
             is decided by the firmware; remove the bond to capture a known port"
        ));
    }
    notes
}

/// Returns a note on the functions of a capture that are missing because the port's network
/// interface is unknown.
fn interface(config: &Config, port: &PortFacts) -> Option<String> {
    if port.netdev.is_some() {
        return None;
    }
    let promiscuous = if config.capture.promiscuous {
        "capture.promiscuous has no effect, its MTU is not compared with capture.buffer, and"
    } else {
        "its MTU is not compared with capture.buffer, and"
    };
    Some(format!(
        "the network interface of port {} is unknown: {promiscuous} the NIC's ethtool counters such as rx_discards_phy are \
         unreadable",
        port.number
    ))
}

/// Returns a note on unicast frames that the NIC filters out without promiscuous mode.
fn addresses(config: &Config, port: &PortFacts) -> Option<String> {
    let reason = if !config.capture.promiscuous {
        "capture.promiscuous is off"
    } else if port.netdev.is_none() {
        "promiscuous mode is not joined"
    } else {
        return None;
    };
    Some(format!(
        "{reason}: {} receives unicast frames to its own MAC addresses only, and frames of the multicast groups that were joined",
        name(port)
    ))
}

/// Returns a note if the receive buffers are too small for the MTU, or if the MTU is too small for
/// the buffers.
fn lengths(config: &Config, port: &PortFacts) -> Option<String> {
    let fcs = if config.wq.scatter_fcs { FCS_LEN } else { 0 } as u64;
    let room = u64::from(config.capture.buffer.to_u32()) * u64::from(config.capture.max_sge);
    let (name, mtu) = (name(port), u64::from(port.mtu?));
    let longest = mtu + HEADER + fcs;
    if room < longest {
        return Some(format!(
            "capture.buffer x capture.max_sge = {room} bytes: frames at {name}'s MTU of {mtu} have up to {longest} bytes, \
             and frames that do not fit are counted as errors; set a larger capture.buffer"
        ));
    }
    // Buffers larger than the default are meant for frames of that size.
    let default = crate::config::CaptureConfig::default();
    let usual = u64::from(default.buffer.to_u32()) * u64::from(default.max_sge);
    (room > usual.max(longest)).then(|| {
        format!(
            "capture.buffer x capture.max_sge = {room} bytes, but {name}'s MTU is {mtu}: the port drops frames of more \
             than {longest} bytes; to capture longer frames, raise the MTU (ip link set {name} mtu {})",
            room - HEADER - fcs
        )
    })
}

/// Returns a note on frames with two VLAN tags if the configuration is about VLANs.
fn tags(config: &Config, port: &PortFacts) -> Option<String> {
    let words = config
        .capture
        .filter
        .split(|c: char| !c.is_ascii_alphanumeric());
    let is_about_vlans = config.wq.cvlan_stripping
        || config.rule.iter().any(|rule| rule.vlan.is_some())
        || words.into_iter().any(|it| it == "vlan");
    let mtu = u64::from(port.mtu.filter(|_| is_about_vlans)?);
    let name = name(port);
    Some(format!(
        "{name}'s MTU of {mtu} admits frames of up to {} bytes, a full frame with one VLAN tag; if frames on the wire have two \
         tags (QinQ), the port drops the longest and counts them in rx_oversize_pkts_phy: raise the MTU by {TAG} (ip link set \
         {name} mtu {})",
        mtu + HEADER,
        mtu + TAG
    ))
}

/// Returns a note if RoCE is disabled on the captured port, since every mode then captures RoCE
/// frames.
fn roce(port: &PortFacts) -> Option<String> {
    (port.roce == Some(false)).then(|| {
        format!(
            "RoCE is disabled on {} (enable_roce of devlink): RoCE frames are ordinary Ethernet frames, and every mode captures them",
            name(port)
        )
    })
}

/// Returns a note that the captured port drops frames with a bad FCS before `capture.verify_fcs`
/// can find them.
fn damaged(config: &Config, port: &PortFacts) -> Option<String> {
    config.capture.verify_fcs.then(|| {
        format!(
            "capture.verify_fcs: {} drops frames with a bad FCS before any rule and counts them in rx_crc_errors_phy, so that \
             verify_fcs finds none; to receive them, run ethtool -K {} rx-all on",
            name(port),
            port.netdev.as_deref().unwrap_or("IFACE")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::port_topology::PortTopology;

    /// Returns an active port with MTU 1500.
    fn port(place: PortTopology) -> PortFacts {
        PortFacts {
            number: 1,
            state: "ACTIVE".into(),
            ethernet: true,
            rate_gbps: 100.0,
            netdev: Some("ens1".into()),
            mtu: Some(1500),
            roce: None,
            place,
        }
    }

    /// Returns a configuration with these settings.
    fn config(settings: &[(&str, &str)]) -> Config {
        Config::with_overrides("", settings).expect("valid configuration")
    }

    #[test]
    fn an_unshared_port_has_no_notes() {
        assert_eq!(
            notes(&Config::default(), &port(PortTopology::default()), false),
            [""; 0]
        );
    }

    #[test]
    fn each_kind_of_sharing_has_a_note() {
        let cases = [
            (
                PortTopology {
                    is_vf: true,
                    ..PortTopology::default()
                },
                "virtual function: unless the host trusts it",
            ),
            (
                PortTopology {
                    vfs: 4,
                    ..PortTopology::default()
                },
                "has 4 virtual functions",
            ),
            (
                PortTopology {
                    switchdev: true,
                    represents: Some("pf0vf3".into()),
                    ..PortTopology::default()
                },
                "represents pf0vf3",
            ),
            (
                PortTopology {
                    switchdev: true,
                    ..PortTopology::default()
                },
                "switchdev mode",
            ),
            (
                PortTopology {
                    bond: Some("bond0".into()),
                    ..PortTopology::default()
                },
                "belongs to bond0",
            ),
            (
                PortTopology {
                    is_lag: true,
                    ..PortTopology::default()
                },
                "RoCE LAG",
            ),
        ];
        for (place, says) in cases {
            let notes = notes(&Config::default(), &port(place), false);
            assert_eq!(notes.len(), 1, "{notes:?}");
            assert!(
                notes[0].contains(says) && notes[0].contains("ens1"),
                "{notes:?}"
            );
        }
    }

    #[test]
    fn without_promiscuous_mode_other_addresses_are_not_seen() {
        let off = config(&[("capture.promiscuous", "false")]);
        let said = notes(&off, &port(PortTopology::default()), false);
        assert!(said[0].contains("capture.promiscuous is off"), "{said:?}");
        let nameless = PortFacts {
            netdev: None,
            mtu: None,
            ..port(PortTopology::default())
        };
        let said = notes(&Config::default(), &nameless, false);
        assert!(
            said[0].contains("network interface of port 1 is unknown")
                && said[0].contains("rx_discards_phy"),
            "{said:?}"
        );
        assert!(said[1].contains("is not joined"), "{said:?}");
        let said = notes(&off, &nameless, false);
        assert!(!said[0].contains("capture.promiscuous has"), "{said:?}");
    }

    #[test]
    fn buffers_are_compared_with_the_mtu() {
        for (settings, says) in [
            (&[("capture.buffer", "1500")][..], Some("have up to 1518")),
            (&[("capture.buffer", "1518")], None),
            (
                &[("capture.buffer", "1518"), ("wq.scatter_fcs", "true")],
                Some("have up to 1522"),
            ),
            (&[("capture.buffer", "2048")], None),
            (
                &[("capture.max_sge", "5")],
                Some("drops frames of more than 1518 bytes"),
            ),
        ] {
            let said = notes(&config(settings), &port(PortTopology::default()), false);
            assert_eq!(said.len(), usize::from(says.is_some()), "{said:?}");
            assert!(
                said.iter().all(|it| it.contains(says.unwrap_or_default())),
                "{said:?}"
            );
        }
        let jumbo = PortFacts {
            mtu: Some(10_222),
            ..port(PortTopology::default())
        };
        let said = notes(&config(&[("capture.max_sge", "5")]), &jumbo, false);
        assert_eq!(said, [""; 0]);
    }

    #[test]
    fn a_second_tag_needs_a_larger_mtu() {
        for (settings, is_told) in [
            (&[("capture.filter", "vlan 7 and udp")][..], true),
            (&[("wq.cvlan_stripping", "true")], true),
            (&[("capture.filter", "udp")], false),
        ] {
            let said = notes(&config(settings), &port(PortTopology::default()), false);
            assert_eq!(said.len(), usize::from(is_told), "{said:?}");
            let words = ["frames of up to 1518 bytes", "ip link set ens1 mtu 1504"];
            assert!(
                said.iter()
                    .all(|it| words.iter().all(|word| it.contains(word))),
                "{said:?}"
            );
        }
    }

    #[test]
    fn a_port_without_roce_has_a_note() {
        for (roce, count) in [(None, 0), (Some(true), 0), (Some(false), 1)] {
            let port = PortFacts {
                roce,
                ..port(PortTopology::default())
            };
            let said = notes(&Config::default(), &port, false);
            assert_eq!(said.len(), count, "{said:?}");
            assert!(
                said.iter()
                    .all(|it| it.contains("ordinary Ethernet frames"))
            );
        }
    }
}
