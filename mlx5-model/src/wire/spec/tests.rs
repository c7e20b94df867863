//! What parses, what is printed, and what errors say.

use super::*;

fn spec(text: &str) -> WireSpec {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn what_is_printed_parses_back() {
    for text in [
        "af_packet:eth0",
        "af_packet:wqw-0.1@2,ring=8MiB",
        "pcap:a.pcap",
        "pcap:/tmp/with,comma and=sign.pcap,loop=3,pps=1000,lossy",
        "pcap:a,speed=0.25",
        "pcap:a,loop=0",
        "synth:size=64,flows=1024",
        "synth:size=64-1500,flows=7,pps=14880952,count=1000000,proto=mix,ip=mix,vlan=5,dir=both,lossy",
        "synth:size=imix,flows=1,proto=tcp,ip=6",
        "synth:size=100/200/300,flows=1",
        "peer:/tmp/a,b=c",
        "loopback",
    ] {
        let text = text.replace("64-1500", "80-1500");
        let parsed = spec(&text);
        assert_eq!(parsed.to_string(), text);
        assert_eq!(spec(&parsed.to_string()), parsed);
    }
}

#[test]
fn short_forms_and_defaults() {
    assert_eq!(spec("synth:"), spec("synth:size=64,flows=1024"));
    assert_eq!(spec("synth"), spec("synth:size=64,flows=1024"));
    assert_eq!(
        spec("synth:pps=2M,count=3k").to_string(),
        "synth:size=64,flows=1024,pps=2000000,count=3000"
    );
    assert_eq!(
        spec("synth:ip=6,proto=tcp").to_string(),
        "synth:size=74,flows=1024,proto=tcp,ip=6"
    );
    assert_eq!(spec("af_packet:e,ring=64MiB").to_string(), "af_packet:e");
    assert_eq!(
        spec("af_packet:e,ring=1GiB").to_string(),
        "af_packet:e,ring=1024MiB"
    );
    assert_eq!(spec("pcap:a,loop=1"), spec("pcap:a"));
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
        ("pcap:", &["file"]),
        ("pcap:,lossy", &["file"]),
        ("pcap:a,loop=x", &["loop", "`x`", "for ever"]),
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
        ("synth:size=9-5", &["size", "upwards"]),
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
