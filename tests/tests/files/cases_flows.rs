//! Flow records of traffic as networks carry it: connections on the same ports one after the other,
//! headers of switches and fabrics, pseudowires and tunnels.
//!
//! Inputs are generated, and read from `../shared/cases` if that folder is present.

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Wqcap, binaries, files,
    frames::{
        Ends, Frame, IPV4,
        encapsulated::{encapsulated, not_encapsulated},
    },
    need,
    oracles::duckdb::Duckdb,
    skip,
};

/// Replays a capture file and returns these columns of its flow records, in the order of their
/// first frames.
fn records(duckdb: &Duckdb, file: &Path, columns: &str) -> Vec<Vec<Value>> {
    let dir = Dir::new();
    let folder = dir.folder("flows");
    let finished = Wqcap::run(&dir, "replay")
        .model(&format!("pcap:{}", file.display()))
        .set("output.format=none")
        .set("flows.names=true")
        .set(&format!("flows.dir={}", folder.display()))
        .finish(0);
    assert_eq!(finished.summary.json["flows"]["missed_frames"], 0);
    duckdb.query(&format!(
        "SELECT {columns} FROM read_parquet('{}/*flows*.parquet') ORDER BY first_fwd_ns",
        folder.display()
    ))
}

/// Returns rows as text, one line each.
fn lines(rows: Vec<Vec<Value>>) -> Vec<String> {
    rows.into_iter()
        .map(|row| Value::from(row).to_string())
        .collect()
}

/// Returns the files of a folder of shared cases; `None`: the folder is absent.
fn case(number: &str) -> Option<PathBuf> {
    let folder = binaries::root().join("../shared/cases").join(number);
    folder.is_dir().then_some(folder)
}

/// Segment of the connection between 10.0.0.1:40000 and 10.0.0.2:80.
fn segment(back: bool, flags: u8, sequence: u32, acknowledged: u32, payload: &[u8]) -> Vec<u8> {
    let ends = Ends {
        from: 1,
        to: 2,
        sport: 40_000,
        dport: 80,
    };
    let ends = if back { ends.back() } else { ends };
    let frame = Frame::ethernet(&[], IPV4).ipv4(ends, 6, 0).tcp(ends);
    let mut frame = frame.bytes(payload).done();
    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
    frame[42..46].copy_from_slice(&acknowledged.to_be_bytes());
    frame[47] = flags;
    frame
}

/// Returns a whole connection with an HTTP request to `host`. `back`: from the other end.
fn connection(back: bool, initial: u32, host: &str) -> Vec<Vec<u8>> {
    let [syn, syn_ack, ack, push, fin] = [0x02, 0x12, 0x10, 0x18, 0x11];
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let end = initial + 1 + request.len() as u32;
    vec![
        segment(back, syn, initial, 0, &[]),
        segment(!back, syn_ack, 9000, initial + 1, &[]),
        segment(back, ack, initial + 1, 9001, &[]),
        segment(back, push, initial + 1, 9001, request.as_bytes()),
        segment(back, fin, end, 9001, &[]),
        segment(!back, fin, 9001, end + 1, &[]),
        segment(back, ack, end + 1, 9002, &[]),
    ]
}

const CONNECTION: &str = "src, src_port, frames_fwd + frames_rev, http_host, ended_by";

#[test]
fn connections_on_the_same_ports_have_a_record_each() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let file = dir.join("connections.pcap");
    let twice = connection(false, 300_000, "three.example.org");
    let repeated = twice.iter().flat_map(|it| [it.clone(), it.clone()]);
    let frames: Vec<_> = connection(false, 1000, "one.example.org")
        .into_iter()
        .chain(connection(true, 70_000, "two.example.org"))
        .chain(repeated)
        .collect();
    files::write(&file, 1_600_000_000, &frames);
    let expected = [
        r#"["10.0.0.1",40000,7,"one.example.org","reused"]"#,
        r#"["10.0.0.2",80,7,"two.example.org","reused"]"#,
        r#"["10.0.0.1",40000,14,"three.example.org","stopped"]"#,
    ];
    assert_eq!(lines(records(&duckdb, &file, CONNECTION)), expected);
}

#[test]
fn connections_of_the_shared_cases() {
    let duckdb = need!(Duckdb::install());
    let Some(folder) = case("case-04") else {
        skip!("../shared/cases/case-04 is absent");
    };
    let columns = "src, src_port, frames_fwd + frames_rev, coalesce(tls_sni, http_host)";
    let (one, two) = ("one.example.org", "two.example.org");
    let first = |frames: u8, host| format!(r#"["192.0.2.1",40000,{frames},"{host}"]"#);
    let expected = [
        ("fin.pcap", vec![first(7, one), first(7, two)]),
        ("rst.pcap", vec![first(5, one), first(7, two)]),
        (
            "swap.pcap",
            vec![first(7, one), format!(r#"["198.51.100.2",80,7,"{two}"]"#)],
        ),
        ("retrans.pcap", vec![first(11, one)]),
    ];
    for (name, expected) in expected {
        let rows = records(&duckdb, &folder.join(name), columns);
        assert_eq!(lines(rows), expected, "{name}");
    }
}

#[test]
fn packets_behind_other_headers_have_records() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let file = dir.join("encapsulated.pcap");
    let cases = encapsulated();
    let frames: Vec<_> = cases.iter().map(|it| it.frame.clone()).collect();
    files::write(&file, 1_600_000_000, &frames);
    let columns = "src_port, dst_port, src, dst, vlan, vlan2, outer_src, outer_dst, frames_fwd";
    let mut found = lines(records(&duckdb, &file, columns));
    found.sort();
    let mut expected: Vec<_> = cases
        .iter()
        .map(|it| {
            let [src, dst] = if it.is_v6 {
                ["fd00::3", "fd00::4"]
            } else {
                ["10.0.0.3", "10.0.0.4"]
            };
            let vlan = |id: u16| if id == 0 { Value::Null } else { id.into() };
            let outer = |address: &str| {
                if it.has_tunnel {
                    address.into()
                } else {
                    Value::Null
                }
            };
            let row = vec![
                it.ends.sport.into(),
                2222.into(),
                src.into(),
                dst.into(),
                vlan(it.vlans[0]),
                vlan(it.vlans[1]),
                outer("10.0.0.1"),
                outer("10.0.0.2"),
                1.into(),
            ];
            Value::from(row).to_string()
        })
        .collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn announced_packets_that_are_absent_have_no_records() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let file = dir.join("others.pcap");
    let frames: Vec<_> = not_encapsulated().into_iter().map(|it| it.1).collect();
    files::write(&file, 1_600_000_000, &frames);
    let columns = "ip_version, src, outer_src, ethertype, frames_fwd";
    let is_mpls = |frame: &&Vec<u8>| frame[12..14] == [0x88, 0x47];
    let labels = frames.iter().filter(is_mpls).count();
    let mut found = [0, 0];
    for row in lines(records(&duckdb, &file, columns)) {
        let frames = |prefix: &str| {
            row.strip_prefix(prefix)?
                .strip_suffix(']')?
                .parse::<usize>()
                .ok()
        };
        if let Some(count) = frames(r#"[null,"02:00:00:00:00:01",null,34887,"#) {
            found[0] += count;
        } else if let Some(count) = frames(r#"[4,"10.0.0.1",null,2048,"#) {
            found[1] += count;
        } else {
            panic!("{row}");
        }
    }
    assert_eq!(found, [labels, frames.len() - labels]);
}

#[test]
fn packets_of_the_shared_cases() {
    let duckdb = need!(Duckdb::install());
    let columns = "src, src_port, dst, dst_port, outer_src, outer_dst, vlan";
    let mut count = 0;
    for number in ["case-07", "case-08", "case-15"] {
        let Some(folder) = case(number) else {
            skip!("../shared/cases/{number} is absent");
        };
        for entry in fs::read_dir(&folder).expect("the folder is readable") {
            let file = entry.expect("the folder is readable").path();
            if file.extension().is_none_or(|it| it != "pcap") {
                continue;
            }
            let has_tunnel = number == "case-15" || file.ends_with("gre.pcap");
            let outer = if has_tunnel {
                r#""192.0.2.1","198.51.100.2""#
            } else {
                "null,null"
            };
            let vlan = if file.ends_with("vlan.pcap") {
                "7"
            } else {
                "null"
            };
            let expected = format!(r#"["203.0.113.1",1111,"203.0.113.2",2222,{outer},{vlan}]"#);
            let rows = lines(records(&duckdb, &file, columns));
            assert_eq!(rows, [expected], "{}", file.display());
            count += 1;
        }
    }
    assert!(count >= 17, "{count} files");
}
