//! Tests of the parser: accepted texts, properties of wires, and error messages.

use super::pcap::PcapPace;
use super::synth::{Mix, Sizes};
use super::*;
use std::num::NonZeroU64;

fn spec(text: &str) -> WireSpec {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn kind(text: &str) -> WireKind {
    let spec = spec(text);
    assert_eq!(spec.text(), text);
    spec.kind
}

#[test]
fn every_option_is_read() {
    for (text, ring) in [
        ("af_packet:wqw-0.1@2", 128 << 20),
        ("af_packet:wqw-0.1@2,ring=8MiB", 8 << 20),
        ("af_packet:wqw-0.1@2,ring=1GiB", 1 << 30),
    ] {
        let iface = "wqw-0.1@2".to_owned();
        assert_eq!(kind(text), WireKind::AfPacket(AfPacketSpec { iface, ring }));
    }
    let unpaced = PcapSpec {
        file: "a".into(),
        rounds: 1,
        pace: PcapPace::Unpaced,
        lossy: false,
    };
    let pps = |n| PcapPace::Pps(NonZeroU64::new(n).unwrap());
    for (text, want) in [
        ("pcap:a", unpaced.clone()),
        ("pcap:a,loop=1", unpaced.clone()),
        (
            "pcap:a,speed=0.25",
            PcapSpec {
                pace: PcapPace::Speed(0.25),
                ..unpaced.clone()
            },
        ),
        (
            "pcap:a,loop=0",
            PcapSpec {
                rounds: 0,
                ..unpaced
            },
        ),
        (
            "pcap:/tmp/with,comma and=sign.pcap,loop=3,pps=1000,lossy",
            PcapSpec {
                file: "/tmp/with,comma and=sign.pcap".into(),
                rounds: 3,
                pace: pps(1000),
                lossy: true,
            },
        ),
    ] {
        assert_eq!(kind(text), WireKind::Pcap(want));
    }
    let plain = SynthSpec {
        sizes: Sizes::List(vec![64]),
        flows: 1024,
        pps: None,
        count: None,
        proto: Mix::First,
        ip: Mix::First,
        vlan: None,
        both: false,
        lossy: false,
    };
    for (text, want) in [
        ("synth", plain.clone()),
        ("synth:", plain.clone()),
        ("synth:size=64,flows=1024", plain.clone()),
        (
            "synth:pps=2M,count=3k",
            SynthSpec {
                pps: NonZeroU64::new(2_000_000),
                count: Some(3000),
                ..plain.clone()
            },
        ),
        (
            "synth:ip=6,proto=tcp",
            SynthSpec {
                sizes: Sizes::List(vec![74]),
                proto: Mix::Second,
                ip: Mix::Second,
                ..plain.clone()
            },
        ),
        (
            "synth:size=imix,flows=1",
            SynthSpec {
                sizes: Sizes::Imix,
                flows: 1,
                ..plain.clone()
            },
        ),
        (
            "synth:size=100/200/300,flows=1",
            SynthSpec {
                sizes: Sizes::List(vec![100, 200, 300]),
                flows: 1,
                ..plain
            },
        ),
        (
            "synth:size=80-1500,flows=7,pps=14880952,count=1000000,proto=mix,ip=mix,vlan=5,dir=both,lossy",
            SynthSpec {
                sizes: Sizes::Range(80, 1500),
                flows: 7,
                pps: NonZeroU64::new(14_880_952),
                count: Some(1_000_000),
                proto: Mix::Both,
                ip: Mix::Both,
                vlan: Some(5),
                both: true,
                lossy: true,
            },
        ),
    ] {
        assert_eq!(kind(text), WireKind::Synth(want));
    }
    assert_eq!(kind("peer:/tmp/a,b=c"), WireKind::Peer("/tmp/a,b=c".into()));
    assert_eq!(kind("loopback"), WireKind::Loopback);
}

#[test]
fn options_of_a_file_are_read_from_its_end() {
    let WireKind::Pcap(it) = spec("pcap:x,y=2.pcap,loop=4").kind else {
        panic!()
    };
    assert_eq!((it.file.as_str(), it.rounds), ("x,y=2.pcap", 4));
    let WireKind::Pcap(it) = spec("pcap:x,what=2").kind else {
        panic!()
    };
    assert_eq!(it.file, "x,what=2");
}

#[test]
fn finite_and_lossless_wires() {
    let facts = |text| (spec(text).finite(), spec(text).lossless());
    assert_eq!(facts("pcap:a"), (true, true));
    assert_eq!(facts("pcap:a,lossy"), (true, false));
    assert_eq!(facts("pcap:a,loop=0"), (false, false));
    assert_eq!(facts("synth:"), (false, false));
    assert_eq!(facts("synth:count=5"), (true, true));
    assert_eq!(facts("synth:count=5,lossy"), (true, false));
    assert_eq!(facts("loopback"), (false, false));
    assert_eq!(facts("peer:x"), (false, false));
    assert_eq!(facts("af_packet:eth0"), (false, false));
    assert_eq!(spec("af_packet:eth0,ring=8MiB").netdev(), Some("eth0"));
    assert_eq!(spec("pcap:eth0").netdev(), None);
}

#[test]
fn errors_name_the_part_the_value_and_what_is_allowed() {
    for (text, parts) in [
        ("", &["kind", "af_packet:IFACE"][..]),
        ("ether:0", &["kind", "`ether`", "loopback"]),
        ("af_packet", &["kind", "af_packet:IFACE"]),
        ("af_packet:", &["interface"]),
        ("af_packet:a-name-too-long-by-far", &["interface", "eth0"]),
        ("af_packet:a/b", &["interface", "`a/b`"]),
        ("af_packet:e,rng=1", &["option", "`rng=1`", "ring"]),
        ("af_packet:e,ring=1", &["ring", "`1`", "2MiB"]),
        ("af_packet:e,ring=1TiB", &["ring", "`1TiB`"]),
        ("af_packet:e,ring=17179869184GiB", &["ring"]),
        ("af_xdp", &["kind", "`af_xdp`", "wqcap run -i eth0"]),
        ("af_xdp:", &["kind", "wqcap run -i eth0"]),
        (
            "af_xdp:e1,queues=2",
            &["kind", "`af_xdp`", "capture e1 itself: wqcap run -i e1"],
        ),
        ("pcap:", &["file"]),
        ("pcap:,lossy", &["file"]),
        ("pcap:a,loop=x", &["loop", "`x`", "forever"]),
        ("pcap:a,pps=0", &["pps", "`0`", "from 1"]),
        ("pcap:a,speed=0", &["speed", "`0`"]),
        ("pcap:a,speed=NaN", &["speed", "`NaN`"]),
        ("pcap:a,pps=1,speed=1", &["pace", "one of"]),
        ("pcap:a,loop=1,loop=2", &["loop", "once"]),
        ("synth:size=41", &["size", "`41`", "42 bytes"]),
        ("synth:size=45,vlan=1", &["size", "`45`", "46 bytes"]),
        (
            "synth:size=64,ip=mix,proto=mix",
            &["size", "`64`", "74 bytes"],
        ),
        ("synth:size=65536", &["size", "`65536`", "65535"]),
        ("synth:size=9-5", &["size", "ascending"]),
        ("synth:size=a/b", &["size", "`a`"]),
        ("synth:flows=0", &["flows", "`0`"]),
        ("synth:flows=1048577", &["flows"]),
        ("synth:flows=1048576,size=9000", &["flows and size", "MiB"]),
        ("synth:vlan=4096", &["vlan", "4095"]),
        ("synth:ip=5", &["ip", "`5`", "4, 6 or mix"]),
        ("synth:proto=sctp", &["proto", "udp, tcp or mix"]),
        ("synth:dir=back", &["dir", "one or both"]),
        ("synth:count=-1", &["count", "`-1`"]),
        ("synth:gap=1", &["option", "`gap=1`", "flows"]),
        ("synth:size=64,", &["option", "``"]),
        ("peer:", &["path"]),
        ("loopback:x", &["options", "`x`"]),
        ("loopback,x", &["kind", "`loopback,x`"]),
    ] {
        let error = text.parse::<WireSpec>().expect_err(text).to_string();
        for part in parts.iter().chain([&&*format!("`{text}`")]) {
            assert!(error.contains(part), "{text}: {error} lacks {part}");
        }
    }
}

/// Checks that the table of README.md has every option of a wire, with an example that parses.
#[test]
fn readme_has_every_option() {
    let readme = include_str!("../../../README.md");
    let rows = readme.lines().filter_map(|line| {
        let mut code = line.strip_prefix("| `")?.split('`').step_by(2);
        let (kind, option) = (code.next()?, code.next()?);
        ["af_packet", "pcap", "synth"]
            .contains(&kind)
            .then_some((kind, option))
    });
    let mut documented = Vec::new();
    for (name, option) in rows {
        let argument = match name {
            "synth" => "",
            "pcap" => "a.pcap,",
            _ => "eth0,",
        };
        let parsed = kind(&format!("{name}:{argument}{option}"));
        if let WireKind::Pcap(pcap) = parsed {
            // An unknown option would be part of the file's name.
            assert_eq!(pcap.file, "a.pcap", "{option}");
        }
        documented.push((name, option.split('=').next().expect("a name")));
    }
    assert_eq!(documented.iter().filter(|it| it.0 == "pcap").count(), 4);
    for wire in ["af_packet:eth0,none", "synth:none"] {
        let error = wire.parse::<WireSpec>().unwrap_err().to_string();
        let (wire, _) = wire.split_once(':').expect("a kind");
        let (_, names) = error.split_once(" takes ").expect("a list of options");
        let names = names.split(|c: char| !c.is_alphanumeric() && c != '_');
        let others = ["", "each", "VALUE", "SIZE", "and"];
        for name in names.filter(|it| !others.contains(it)) {
            assert!(documented.contains(&(wire, name)), "{wire}: {name}");
        }
    }
}
