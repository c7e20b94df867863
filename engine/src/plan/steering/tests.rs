//! Tests of the flow rules of each capture mode, in readable form.

use super::*;
use crate::filter::Filter;

/// Creates the steering of mode `filtered` with the rules in `text`.
fn filtered(text: &str, queues: u16) -> Result<Steering, Error> {
    let config = Config::parse(&format!("capture.mode = \"filtered\"\n{text}"))
        .expect("valid configuration");
    Steering::from_config(&config, queues)
}

/// Returns each flow rule as a line `priority match -> destination`.
fn lines(steering: &Steering) -> Vec<String> {
    let to = |qp: &QpPlan| match qp.spread {
        Spread::Table => qp.profile.to_string(),
        Spread::Queue(q) => format!("queue {q}"),
    };
    steering
        .rules
        .iter()
        .map(|r| {
            format!(
                "{} {} -> {}",
                r.priority,
                describe(&r.specs),
                to(&steering.qps[r.qp])
            )
        })
        .collect()
}

#[test]
fn steal_takes_every_frame_by_seven_profiles() {
    let steering = Steering::from_config(&Config::default(), 4).unwrap();
    assert_eq!(
        lines(&steering),
        [
            "8 ipv4 tcp -> ipv4-tcp",
            "8 ipv4 udp -> ipv4-udp",
            "8 ipv6 tcp -> ipv6-tcp",
            "8 ipv6 udp -> ipv6-udp",
            "10 ipv4 -> ipv4",
            "10 ipv6 -> ipv6",
            "12 any frame -> queue 0",
        ]
    );
}

#[test]
fn rules_for_inner_packets_come_before_rules_for_tunnels() {
    let config = Config::with_overrides("", &[("rss.inner", "true"), ("rss.hash", "l3")]);
    let steering = Steering::from_config(&config.unwrap(), 4).unwrap();
    assert_eq!(
        lines(&steering)[..5],
        [
            "6 ipv4 udp dst port 4789 vxlan inner ipv4 -> ipv4",
            "6 ipv6 udp dst port 4789 vxlan inner ipv4 -> ipv4",
            "6 ipv4 gre inner ipv4 -> ipv4",
            "6 ipv6 gre inner ipv4 -> ipv4",
            "6 ipv4 udp dst port 4789 vxlan inner ipv6 -> ipv6",
        ]
    );
    assert!(steering.qps[0].inner && steering.qps[0].hash_fields().bits() == 0x8000_0003);
    let deep = Config::with_overrides("", &[("rss.inner", "true")]).unwrap();
    let deep = Steering::from_config(&deep, 4).unwrap();
    assert_eq!((deep.qps.len(), deep.rules.len()), (13, 31));
    assert_eq!(
        lines(&deep)[0],
        "4 ipv4 udp dst port 4789 vxlan inner ipv4 inner tcp -> ipv4-tcp"
    );
    let other = [("rss.inner", "true"), ("capture.mode", "sniffer")];
    let error = Steering::from_config(&Config::with_overrides("", &other).unwrap(), 1).unwrap_err();
    assert!(error.to_string().contains("rss.inner"), "{error}");
}

#[test]
fn a_sniffer_has_one_queue() {
    let config = Config::with_overrides("", &[("capture.mode", "sniffer")]).unwrap();
    assert_eq!(Steering::from_config(&config, 1).unwrap().rules.len(), 1);
    let error = Steering::from_config(&config, 2).unwrap_err().to_string();
    assert!(
        error.starts_with("capture.queues = 2: mode \"sniffer\" has one queue"),
        "{error}"
    );
}

#[test]
fn a_rule_is_split_into_the_fewest_profiles() {
    let rule = "[[rule]]\ndst = \"10.0.0.0/8\"\npriority = 1";
    assert_eq!(
        lines(&filtered(rule, 2).unwrap()),
        [
            "0 ipv4 dst 10.0.0.0/8 tcp -> ipv4-tcp",
            "0 ipv4 dst 10.0.0.0/8 udp -> ipv4-udp",
            "2 ipv4 dst 10.0.0.0/8 -> ipv4",
        ]
    );
    assert_eq!(
        lines(&filtered("[[rule]]\nproto = \"tcp\"\ndst_port = 443", 2).unwrap()),
        [
            "0 ipv4 tcp dst port 443 -> ipv4-tcp",
            "0 ipv6 tcp dst port 443 -> ipv6-tcp"
        ]
    );
    assert_eq!(
        lines(&filtered("[[rule]]\nproto = \"esp\"", 2).unwrap()),
        ["0 ipv4 protocol 50 -> ipv4", "0 ipv6 protocol 50 -> ipv6"]
    );
    assert_eq!(
        lines(&filtered("[[rule]]\nethertype = 0x0806", 2).unwrap()),
        ["0 ethertype 0x0806 -> queue 0"]
    );
    assert_eq!(
        lines(&filtered("[[rule]]\nvlan = 7\naction = \"drop\"", 2).unwrap()),
        ["0 vlan 7 drop -> queue 0"]
    );
    assert_eq!(
        lines(&filtered("[[rule]]\nsrc = \"::1\"\nqueue = 1", 2).unwrap()),
        ["0 ipv6 src ::1/128 -> queue 1"]
    );
    assert_eq!(
        lines(&filtered("[[rule]]\nvni = 5\nqueue = 1", 2).unwrap()),
        [
            "0 ipv4 udp dst port 4789 vni 5 -> queue 1",
            "0 ipv6 udp dst port 4789 vni 5 -> queue 1"
        ]
    );
    assert_eq!(
        lines(
            &filtered(
                "[rss]\nhash = \"l3\"\n[[rule]]\nproto = \"tcp\"\ndst_port = 443",
                2
            )
            .unwrap()
        ),
        [
            "0 ipv4 tcp dst port 443 -> ipv4",
            "0 ipv6 tcp dst port 443 -> ipv6"
        ]
    );
}

#[test]
fn a_filter_becomes_the_rules_that_take_all_it_keeps() {
    let of = |expression: &str| {
        let steering = filtered(&format!("capture.filter = \"{expression}\""), 2).unwrap();
        let mut nic = steering.split.unwrap().nic;
        nic.sort();
        nic
    };
    // First fragments have the port, but no NIC matches it there.
    assert_eq!(
        of("udp dst port 53"),
        ["ipv4 protocol 17", "ipv6 udp dst port 53"]
    );
    assert_eq!(
        of("ip and udp dst port 53 and ip[6:2] & 0x3fff = 0"),
        ["ipv4 udp dst port 53"]
    );
    assert_eq!(
        of("tcp"),
        ["ipv4 protocol 6", "ipv6 protocol 44", "ipv6 protocol 6"]
    );
    assert_eq!(
        of("ip host 10.0.0.1 and greater 100"),
        ["ipv4 dst 10.0.0.1/32", "ipv4 src 10.0.0.1/32"]
    );
    assert_eq!(
        of("ip or arp"),
        ["ethertype 0x0800", "ethertype 0x0806", "ipv4"]
    );
    assert_eq!(
        of("ether[12:2] = 0x8100 and vlan 7 and icmp6"),
        ["vlan 7 ipv6 protocol 44", "vlan 7 ipv6 protocol 58"]
    );
    // Some NICs do not parse behind this tag.
    assert_eq!(
        of("ether[12:2] = 0x88a8 and vlan and arp"),
        ["ethertype 0x0806", "ethertype 0x88a8"]
    );
    assert_eq!(of("ether dst 01:80:c2:00:00:00"), ["to 01:80:c2:00:00:00"]);
    assert_eq!(
        of("ether multicast"),
        ["to 01:00:00:00:00:00/01:00:00:00:00:00"]
    );
    let steering = filtered("capture.filter = \"ip proto 17\"", 2).unwrap();
    assert_eq!(
        lines(&steering),
        ["0 ipv4 udp -> ipv4-udp", "2 ipv4 protocol 17 -> ipv4"]
    );
}

#[test]
fn another_filter_is_allowed_where_the_rules_take_all_it_keeps() {
    let steering = filtered("capture.filter = \"udp or arp\"", 2).unwrap();
    let split = steering.split.unwrap();
    let allows = |expression| split.allows(&Filter::compile(expression).unwrap());
    for narrower in [
        "udp port 53",
        "arp and greater 60",
        "udp and src net 10.0.0.0/8",
    ] {
        allows(narrower).unwrap_or_else(|e| panic!("{narrower}: {e}"));
    }
    let error = allows("tcp").unwrap_err().to_string();
    assert!(
        error.contains("do not take ipv") && error.contains("protocol 6"),
        "{error}"
    );
    assert!(allows("").is_err() && allows("greater 60").is_err());
}

#[test]
fn few_ranks_leave_free_priorities_between_them() {
    let rules = |n: u16| {
        let rule = |i| format!("[[rule]]\nsrc = \"10.{i}.0.0/16\"\npriority = {i}\n");
        filtered(&(0..n).map(rule).collect::<String>(), 2).unwrap()
    };
    for (n, last) in [(1, 2), (4, 14), (5, 9)] {
        let steering = rules(n);
        assert_eq!(steering.rules.last().unwrap().priority, last, "{n}");
    }
}

#[test]
fn invalid_rules_are_refused_with_a_reason() {
    for (rule, reason) in [
        ("", "no [[rule]]"),
        ("capture.filter = \"greater 100\"", "write [[rule]]s"),
        ("capture.filter = \"ip6 protochain 58\"", "protochain"),
        ("[[rule]]\nsrc = \"10.0.0.1\"\ndst = \"::1\"", "rule 1"),
        ("[[rule]]\ndst_port = 80", "ports needs proto"),
        ("[[rule]]\nqueue = 2", "queues 0 to 1"),
        ("[[rule]]\npriority = 5", "must be a number from 0 to 4"),
        (
            "[[rule]]\nid = \"a\"\nvlan = 1\n[[rule]]\nid = \"a\"\nvlan = 2",
            "rule 2: id = \"a\": another rule",
        ),
        ("[[rule]]\nvni = 3\nproto = \"tcp\"", "VXLAN"),
        ("[[rule]]\nethertype = 0x0806\nproto = \"udp\"", "ethertype"),
        ("[[rule]]\naction = \"drop\"\nqueue = 0", "has no queue"),
    ] {
        let error = filtered(rule, 2).unwrap_err().to_string();
        assert!(error.contains(reason), "{rule}: {error}");
    }
    // The range check of the configuration does not apply to rules that a running capture is given.
    let rule = RuleConfig {
        vlan: Some(4096),
        ..RuleConfig::default()
    };
    let error = Steering::filtered(&[rule], HashDepth::L4, 2).unwrap_err();
    assert_eq!(error.to_string(), "rule 1: vlan is at most 4095");
}

#[test]
fn only_rules_that_would_duplicate_frames_are_refused() {
    let both = |a: &str, b: &str| filtered(&format!("[[rule]]\n{a}\n[[rule]]\n{b}"), 4);
    for (a, b) in [
        (
            "dst = \"10.0.0.0/8\"\nqueue = 1",
            "dst = \"10.1.0.0/16\"\nqueue = 2",
        ),
        (
            "dst = \"10.0.0.0/8\"\nqueue = 1",
            "src = \"10.0.0.0/8\"\naction = \"drop\"",
        ),
        (
            "vlan = 5\nqueue = 1",
            "dst_mac = \"01:02:03:04:05:06\"\nqueue = 2",
        ),
    ] {
        let error = both(a, b).unwrap_err().to_string();
        assert!(
            error.contains("rule 1") && error.contains("priority"),
            "{error}"
        );
    }
    for (a, b) in [
        (
            "dst = \"10.0.0.0/8\"\nqueue = 1",
            "dst = \"11.0.0.0/8\"\nqueue = 2",
        ),
        (
            "dst = \"10.0.0.0/8\"\nqueue = 1",
            "dst = \"10.1.0.0/16\"\nqueue = 2\npriority = 1",
        ),
        ("dst = \"10.0.0.0/8\"", "src = \"10.0.0.0/8\""),
        (
            "proto = \"tcp\"\ndst_port = 80\nqueue = 1",
            "proto = \"udp\"\ndst_port = 80\nqueue = 2",
        ),
        (
            "ethertype = 0x0806\nqueue = 1",
            "dst = \"10.1.0.0/16\"\nqueue = 2",
        ),
    ] {
        both(a, b).unwrap_or_else(|e| panic!("{a} | {b}: {e}"));
    }
}
