//! Names in traffic as programs send it: heads that break the grammar of HTTP, messages in any division
//! into segments and records, options of DHCP in several parts.
//!
//! | test | shows |
//! |---|---|
//! | `names_of_the_cases_of_other_tools` | each capture of `../shared/cases` has the names that its README lists, or a count of what was given up |
//! | `names_of_generated_traffic` | further instances of the same kinds, in one capture made by the test |

use super::names::{datagram, ends, run, sample, segment, summary, table};
use std::collections::BTreeMap;
use wqcap_tests::{
    Dir, Finished, binaries, files, ledger::number, need, oracles::duckdb::Duckdb, skip,
};

const GET: &str = "GET www.example.org 200";
const HELLO: &str = "www.example.org t13d0204h2_62ed6f6ca7ad_ef5f37ab036a";
const QUERY: &str = "www.example.org query";
/// Captures of `../shared/cases` with their names, or [`COUNTED`] if it suffices that they are counted.
const CASES: &[(&str, &str)] = &[
    ("case-09/space", GET),
    ("case-09/spacecolon", GET),
    ("case-09/fold", GET),
    ("case-09/many", GET),
    ("case-09/badname", GET),
    ("case-10/abs", GET),
    ("case-10/connect", "CONNECT www.example.org:443 200"),
    ("case-10/propfind", "PROPFIND www.example.org 200"),
    ("case-10/report", "REPORT www.example.org 200"),
    ("case-10/notify", "NOTIFY www.example.org 200"),
    ("case-11/seg1", HELLO),
    ("case-11/seg5", HELLO),
    ("case-11/seg8", HELLO),
    ("case-11/seg9", HELLO),
    ("case-11/ooo", COUNTED),
    ("case-11/ssh", "SSH-2.0-libssh_0.10 SSH-2.0-OpenSSH_9.2p1"),
    ("case-12/a", HELLO),
    ("case-12/b", HELLO),
    ("case-12/d", HELLO),
    ("case-12/big", COUNTED),
    ("case-13/a", QUERY),
    ("case-13/d", "two.example.org query, www.example.org query"),
    (
        "case-13/e",
        "www.example.org NOERROR, www.example.org query",
    ),
    (
        "case-14/fqdn",
        "REQUEST 00:00:5e:00:53:01 laptop.example.org",
    ),
    ("case-14/split", "REQUEST 00:00:5e:00:53:01 laptop"),
    ("case-14/cut", "REQUEST 00:00:5e:00:53:01 laptop"),
];
const COUNTED: &str = "nothing, and counted";

/// Returns the names in the flow records and tables of a run, by the lower port of the flow.
fn found(duckdb: &Duckdb, finished: &Finished) -> BTreeMap<u64, String> {
    let flows = summary(finished);
    let queries = [
        (
            &flows["files"],
            "tls_sni, ja4, http_method, http_host, http_status, ssh_fwd, ssh_rev",
        ),
        (
            &flows["names"]["dns_files"],
            "name, coalesce(rcode, 'query')",
        ),
        (&flows["names"]["dhcp_files"], "type, client, host"),
    ];
    let mut found = BTreeMap::<_, Vec<String>>::new();
    for (files, columns) in queries {
        if files.as_array().is_none_or(Vec::is_empty) {
            continue;
        }
        // The DHCP table has no ports.
        let port = if columns.starts_with("type") {
            "67"
        } else {
            "least(src_port, dst_port)"
        };
        let names = duckdb.query(&format!(
            "SELECT {port}::BIGINT, concat_ws(' ', {columns}) FROM {} ORDER BY ALL",
            table(files)
        ));
        for row in names {
            let name = row[1].as_str().unwrap_or_default().to_owned();
            let names = found.entry(number(&row[0])).or_default();
            names.extend(Some(name).filter(|it| !it.is_empty()));
        }
    }
    let found = found.into_iter();
    found
        .map(|(port, names)| (port, names.join(", ")))
        .collect()
}

/// Returns the number of payloads that a run counts as unreadable or missed.
fn given_up(finished: &Finished) -> u64 {
    let names = &summary(finished)["names"];
    number(&names["unreadable"]) + number(&names["missed"])
}

#[test]
fn names_of_the_cases_of_other_tools() {
    let duckdb = need!(Duckdb::install());
    let folder = binaries::root().join("../shared/cases");
    if !folder.is_dir() {
        skip!("no folder ../shared/cases");
    }
    let dir = Dir::new();
    let mut wrong = Vec::new();
    for (case, expected) in CASES {
        let finished = run(
            &dir,
            &case.replace('/', "-"),
            &folder.join(format!("{case}.pcap")),
        )
        .finish(0);
        let found: Vec<_> = found(&duckdb, &finished).into_values().collect();
        let found = found.join(", ");
        let given_up = given_up(&finished);
        if *expected == COUNTED && found.is_empty() && given_up > 0 {
            continue;
        }
        if found != *expected {
            wrong.push(format!(
                "{case}: {found:?} instead of {expected:?}, given up: {given_up}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the frames of a stream in segments of `size` bytes.
fn stream(port: u16, service: u16, back: bool, bytes: &[u8], size: usize) -> Vec<Vec<u8>> {
    let parts = bytes.chunks(size).zip((0..).step_by(size));
    parts
        .map(|(part, at)| segment(ends(port, service), back, at, part))
        .collect()
}

/// Returns a message of DNS over TCP for `name`, of one label, with its length before it.
fn question(name: &str, flags: [u8; 2]) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, flags[0], flags[1], 0, 1, 0, 0, 0, 0, 0, 0];
    message.push(u8::try_from(name.len()).expect("a label is short"));
    message.extend(name.as_bytes());
    message.extend(b"\0\0\x01\0\x01");
    let len = u8::try_from(message.len()).expect("a question is short");
    [&[0, len][..], &message].concat()
}

/// Returns a DHCP request with the given options.
fn request(options: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 240];
    message[..4].copy_from_slice(&[1, 1, 6, 0]);
    message[28..34].copy_from_slice(&[0, 0, 0x5e, 0, 0x53, 1]);
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    message.extend(b"\x35\x01\x03");
    message.extend(options);
    datagram(ends(68, 67), false, &message)
}

#[test]
fn names_of_generated_traffic() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let hello = sample("client-hello");
    let records = |size| -> Vec<u8> {
        let parts = hello[5..].chunks(size);
        let record = |it: &[u8]| [&[0x16, 3, 1, 0, it.len() as u8][..], it].concat();
        parts.flat_map(record).collect()
    };
    // A hello of 1.7 kB, as with post-quantum keys: padding (RFC 7685) is added.
    let mut large = hello.clone();
    large.extend([&[0, 21, 6, 0][..], &[0; 0x600]].concat());
    let extensions = hello.len() - 9 - extensions_of(&hello);
    for (at, size) in [
        (3, large.len() - 5),
        (7, large.len() - 9),
        (9 + extensions, extensions_of(&large) - 2),
    ] {
        large[at..at + 2].copy_from_slice(&u16::try_from(size).expect("a hello").to_be_bytes());
    }
    let asked = [
        question("one", [1, 0]),
        question("two", [1, 0]),
        question("three", [1, 0]),
    ]
    .concat();
    let answered = question("one", [0x81, 0x83]);
    let mut sent = Vec::new();
    let mut expected = BTreeMap::new();
    let mut add = |port: u16, frames: Vec<Vec<u8>>, names: &str| {
        sent.extend(frames);
        expected.insert(u64::from(port), names.to_owned());
    };
    let heads = [
        ("GET /a  b\tc HTTP/1.1\nHost: a\n\n", "GET a"),
        ("POST / HTTP/1.1\r\nHost:\r\n\ta\r\nX: y\r\n\r\n", "POST a"),
        ("GET / HTTP/1.0\r\n\r\n", "GET"),
        (
            "GET http://u:p@a:81?b HTTP/1.1\r\nHost: c\r\n\r\n",
            "GET a:81",
        ),
        (
            "CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: c\r\n\r\n",
            "CONNECT [2001:db8::1]:443",
        ),
        (
            "M-SEARCH * HTTP/1.1\r\nHOST: a:1900\r\n\r\n",
            "M-SEARCH a:1900",
        ),
        (
            "VERSION-CONTROL /x HTTP/1.1\r\nX: \x02\x7f\r\nHost: a\r\n\r\n",
            "VERSION-CONTROL a",
        ),
        ("USER anonymous\r\nPASS x\r\n", ""),
        ("SETUP rtsp://a/ RTSP/1.0\r\n\r\n", ""),
    ];
    for ((head, names), port) in heads.iter().zip((1000..).step_by(10)) {
        for (size, port) in [1, 2, 7, 4000].into_iter().zip(port..) {
            add(
                port,
                stream(port, 8000, false, head.as_bytes(), size),
                names,
            );
        }
    }
    for (port, head, names) in [
        (
            1500,
            "\r\n\r\nget /\x01 HTTP/1.1\r\nX\r\n: y\r\nHOST\t: a\r\n\r\n",
            "get a",
        ),
        (1501, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""),
    ] {
        add(
            port,
            stream(port, 8000, false, head.as_bytes(), 4000),
            names,
        );
    }
    let ja4 = "www.example.org t1";
    for (size, port) in [1, 3, 5, 6, 8, 9, 11, 100].into_iter().zip(2000..) {
        add(port, stream(port, 4430, false, &hello, size), ja4);
        add(
            port + 100,
            stream(port + 100, 4430, false, &records(size), 50),
            ja4,
        );
        add(
            port + 200,
            stream(port + 200, 4430, false, &records(size), 1),
            ja4,
        );
        add(
            port + 300,
            stream(port + 300, 4430, false, &large, 1448 / size),
            ja4,
        );
        add(
            port + 400,
            stream(port + 400, 22_000, true, b"SSH-2.0-server\r\n", size),
            "SSH-2.0-server",
        );
        // Overlapping segments, and a repeated one.
        let mut parts = stream(port + 500, 4430, false, &hello, 40);
        parts.insert(
            1,
            segment(ends(port + 500, 4430), false, size, &hello[size..size + 60]),
        );
        parts.insert(1, parts[0].clone());
        add(port + 500, parts, ja4);
    }
    for (size, port) in (1..).zip(3000..).take(asked.len()) {
        let mut frames = stream(port, 53, false, &asked, size);
        frames.extend(stream(port, 53, true, &answered, size));
        // The lower port of these flows is that of the server.
        add(port, frames, "");
    }
    for options in [
        &b"\x51\x09\0\0\0laptop\xff"[..],
        b"\x51\x0a\x04\0\0\x06laptop\xff",
        b"\x0c\x02la\x0c\x04ptop\xff",
        b"\x51\x06\0\0\0lap\0\x51\x03top\xff",
        b"\x0c\x06laptop\x51\xff\0\0\0la",
        b"\x0c\x06laptop\x3c",
    ] {
        add(67, vec![request(options)], "");
    }
    let file = dir.join("generated.pcap");
    files::write(&file, 1_600_000_000, &sent);
    let finished = run(&dir, "generated", &file).finish(0);
    let mut found = found(&duckdb, &finished);
    let dns = found.remove(&53).unwrap_or_default();
    let each = ["one NXDOMAIN", "one query", "three query", "two query"];
    let all: Vec<_> = each.iter().flat_map(|it| vec![*it; asked.len()]).collect();
    assert_eq!(dns, all.join(", "));
    let dhcp = found.remove(&67).unwrap_or_default();
    let each = "REQUEST 00:00:5e:00:53:01 laptop".to_owned();
    assert_eq!(dhcp, vec![each; 6].join(", "));
    expected.retain(|port, _| !(3000..4000).contains(port) && *port != 67);
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    let wrong: Vec<_> = found
        .iter()
        .filter(|(port, names)| match &expected[port] {
            it if it == ja4 => !names.starts_with(ja4) || names.len() != 52,
            it => it != *names,
        })
        .collect();
    assert_eq!(wrong, []);
    let names = &summary(&finished)["names"];
    // Both cut messages of DHCP.
    let counts = ["unreadable", "missed"].map(|it| number(&names[it]));
    assert_eq!(counts, [2, 0], "{names}");
}

/// Returns the length of the extensions of a hello, with the field of their length.
fn extensions_of(hello: &[u8]) -> usize {
    let mut at = 9 + 34;
    at += 1 + usize::from(hello[at]);
    at += 2 + usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    at += 1 + usize::from(hello[at]);
    hello.len() - at
}
