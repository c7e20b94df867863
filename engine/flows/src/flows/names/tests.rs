use crate::flows::{FlowWriter, FlowsPlan, FlowsReport, Meter, PortLabels};
use parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::Row,
};
use std::{collections::BTreeMap, fs::File, path::PathBuf};
use wqcap_core::consumer::Frame;
use wqcap_frame::Headers;

const START: u64 = 1_700_000_000_000_000_000;
const HELLO: &[u8] = include_bytes!("../../../../../fuzz/corpus/names/client-hello");
const DHCP: &[u8] = include_bytes!("../../../../../fuzz/corpus/names/dhcp");
const DHCPV6: &[u8] = include_bytes!("../../../../../fuzz/corpus/names/dhcpv6");
const ANSWER: &[u8] = include_bytes!("../../../../../fuzz/corpus/names/answer");

/// Returns an IPv4 frame between port `port` of host 1 and port `service` of host 2. `back`
/// reverses the direction.
fn frame(protocol: u8, port: u16, back: bool, service: u16, of: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    let len = 20 + 4 + of.len();
    frame.extend(u16::try_from(len).unwrap().to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    let mut ends = [([10, 0, 0, 1], port), ([10, 0, 0, 2], service)];
    if back {
        ends.reverse();
    }
    frame.extend(ends.iter().flat_map(|it| it.0));
    frame.extend(ends.iter().flat_map(|it| it.1.to_be_bytes()));
    frame.extend(of);
    frame
}

fn tcp(port: u16, back: bool, sequence: u32, payload: &[u8]) -> Vec<u8> {
    segment(port, back, 443, sequence, payload)
}

fn segment(port: u16, back: bool, service: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut of = sequence.to_be_bytes().to_vec();
    of.extend([0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    of.extend(payload);
    frame(6, port, back, service, &of)
}

fn udp(port: u16, back: bool, service: u16, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + payload.len()).unwrap();
    let mut of = len.to_be_bytes().to_vec();
    of.extend([0, 0]);
    of.extend(payload);
    frame(17, port, back, service, &of)
}

fn count(meter: &mut Meter, frame: &[u8], ns: u64) {
    let headers = Headers::parse(frame);
    let len = u32::try_from(frame.len()).unwrap();
    meter.count(&Frame::new(frame, len, ns), &headers, &headers);
}

/// Returns the flow report of a meter with a table of `capacity` flows that received these batches
/// of frames.
fn record(dir: &tempfile::TempDir, capacity: usize, batches: &[Vec<Vec<u8>>]) -> FlowsReport {
    let plan = FlowsPlan {
        dir: dir.path().to_owned(),
        interval_ns: 3_600_000_000_000,
        active_ns: u64::MAX,
        idle_ns: u64::MAX,
        capacity,
        names: true,
    };
    let writer = FlowWriter::start(&plan, 1).unwrap();
    let mut meter = writer.meter(0, 0, PortLabels::default()).unwrap()();
    for (batch, ns) in batches.iter().zip(START..) {
        meter.batch();
        for frame in batch {
            count(&mut meter, frame, ns);
        }
        meter.handled();
    }
    drop(meter);
    let report = writer.finish();
    assert_eq!(report.failures, [""; 0]);
    report
}

fn rows(files: &[PathBuf]) -> Vec<Row> {
    let mut rows = Vec::new();
    for file in files {
        let reader = SerializedFileReader::new(File::open(file).unwrap()).unwrap();
        rows.extend(reader.get_row_iter(None).unwrap().map(Result::unwrap));
    }
    rows
}

/// Returns the value of a column of the flows table as text.
fn value(row: &Row, name: &str) -> String {
    let mut columns = row.get_column_iter();
    let (_, field) = columns.find(|it| it.0 == name).unwrap();
    field.to_string().trim_matches('"').to_owned()
}

/// Returns the values of a column of the flows table by the client's port.
fn by_port(report: &FlowsReport, name: &str) -> BTreeMap<u16, String> {
    let rows = rows(&report.files.iter().collect::<Vec<_>>());
    let named = |row: &Row| (value(row, "src_port").parse().unwrap(), value(row, name));
    rows.iter().map(named).collect()
}

fn expected<const N: usize>(values: [(u16, &str); N]) -> BTreeMap<u16, String> {
    values.map(|(port, value)| (port, value.to_owned())).into()
}

#[test]
fn names_are_in_the_records_of_their_flows() {
    let dir = tempfile::tempdir().unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let report = record(
        &dir,
        64,
        &[
            vec![tcp(1, false, 9, &HELLO[1..]), tcp(2, false, 9, request)],
            vec![
                tcp(2, true, 7, b"HTTP/1.1 404 x\r\n\r\n"),
                tcp(3, false, 1, b"x"),
            ],
            // TLS records after the handshake.
            vec![
                tcp(1, false, 300, &[0x17, 3, 3, 0, 9]),
                tcp(3, false, 2, b""),
            ],
        ],
    );
    assert_eq!((report.totals.records, report.totals.frames), (3, 6));
    let sni = expected([(1, "www.example.org"), (2, "null"), (3, "null")]);
    assert_eq!(by_port(&report, "tls_sni"), sni);
    let host = expected([(1, "null"), (2, "a.example"), (3, "null")]);
    assert_eq!(by_port(&report, "http_host"), host);
    assert_eq!(by_port(&report, "http_status")[&2], "404");
    let names = report.names.unwrap();
    assert_eq!((names.flows, names.dns), (2, 0));
    assert_eq!((names.unreadable, names.missed), (0, 0));
    assert!(dir.path().join("dns").is_dir() && names.dns_files.is_empty());
}

#[test]
fn a_hello_continues_in_the_next_segments() {
    let dir = tempfile::tempdir().unwrap();
    let hello = &HELLO[1..];
    // The sequence numbers wrap around within the hello.
    let first = u32::MAX - 50;
    let part = |port, from: usize, to: usize| {
        let sequence = first.wrapping_add(from as u32);
        tcp(port, false, sequence, &hello[from..to])
    };
    let len = hello.len();
    let report = record(
        &dir,
        64,
        &[
            // Four cases: one batch, with other frames and an acknowledgement in between; three
            // batches; wrong order; incomplete.
            vec![
                part(1, 0, 60),
                part(2, 0, 9),
                tcp(1, false, first.wrapping_add(60), b""),
                part(3, 100, len),
                part(1, 60, len),
            ],
            vec![part(2, 9, 100), part(3, 0, 100), part(4, 0, 20)],
            vec![part(2, 100, len), part(2, 100, len)],
        ],
    );
    let name = "www.example.org";
    let sni = expected([(1, name), (2, name), (3, "null"), (4, "null")]);
    assert_eq!(by_port(&report, "tls_sni"), sni);
    let names = report.names.unwrap();
    assert_eq!((names.flows, names.unreadable, names.missed), (2, 0, 2));
}

#[test]
fn a_request_continues_until_its_host() {
    let dir = tempfile::tempdir().unwrap();
    let begun = format!("GET / HTTP/1.1\r\nCookie: {}\r\n", "x".repeat(1400));
    let (begun, len) = (begun.as_bytes(), begun.len() as u32);
    let report = record(
        &dir,
        64,
        &[
            // Three cases: three segments; two segments, the first one very short; incomplete.
            vec![
                tcp(1, false, 0, begun),
                tcp(2, false, 0, b"GET "),
                tcp(3, false, 0, begun),
            ],
            vec![
                tcp(1, false, len, b"Host: a.ex"),
                tcp(2, false, 4, b"/ HTTP/1.1\r\nHost: b.example\r\nAc"),
            ],
            vec![tcp(1, false, len + 10, b"ample\r\nAccept: *\r\n\r\n")],
        ],
    );
    let host = expected([(1, "a.example"), (2, "b.example"), (3, "null")]);
    assert_eq!(by_port(&report, "http_host"), host);
    let names = report.names.unwrap();
    assert_eq!((names.flows, names.unreadable, names.missed), (2, 0, 1));
}

#[test]
fn a_flow_reads_at_most_its_share_of_payloads() {
    let dir = tempfile::tempdir().unwrap();
    let request = |at: u32| {
        let text = format!("GET / HTTP/1.1\r\nHost: host{at}\r\n\r\n");
        tcp(1, false, 1000 * at, text.as_bytes())
    };
    // Many more requests than copies in memory. Unreadable payloads are counted up to the share of
    // four.
    let batches: Vec<_> = (0..1000)
        .map(|at| vec![request(at), tcp(2, false, at, b"GET sip:x SIP/2.0\r\n")])
        .collect();
    let report = record(&dir, 64, &batches);
    assert_eq!(report.totals.frames, 2000);
    assert_eq!(by_port(&report, "http_host")[&1], "host0");
    let names = report.names.unwrap();
    assert_eq!((names.flows, names.unreadable, names.missed), (1, 4, 0));
}

#[test]
fn dns_messages_have_rows_in_a_separate_table() {
    let dir = tempfile::tempdir().unwrap();
    let query = [
        &[0x12, 0x34, 1, 0, 0, 1, 0, 0][..],
        &[0; 4],
        b"\x01a\0\0\x10\0\x01",
    ]
    .concat();
    let report = record(
        &dir,
        64,
        &[
            vec![udp(7, false, 53, &query)],
            vec![udp(7, true, 53, &ANSWER[1..]), udp(7, false, 53, b"query")],
        ],
    );
    let names = report.names.clone().unwrap();
    assert_eq!((names.flows, names.dns, names.unreadable), (0, 2, 1));
    let rows = rows(&names.dns_files.iter().collect::<Vec<_>>());
    let text = |row: &Row| {
        ["src", "src_port", "id", "name", "type", "rcode", "answers"].map(|it| value(row, it))
    };
    assert_eq!(
        text(&rows[0]),
        ["10.0.0.1", "7", "4660", "a", "TXT", "null", "null"]
    );
    let answer = [
        "10.0.0.2",
        "53",
        "4660",
        "www.example.org",
        "AAAA",
        "NXDOMAIN",
        "2",
    ];
    assert_eq!(text(&rows[1]), answer);
    let ns = [START, START + 1].map(|it| it.to_string());
    assert_eq!([&rows[0], &rows[1]].map(|it| value(it, "time_ns")), ns);
    // The flow's record is unchanged, and has the same community ID as both messages.
    assert_eq!(report.totals.frames, 3);
    let ids = by_port(&report, "community_id");
    assert!(rows.iter().all(|it| value(it, "community_id") == ids[&7]));
}

#[test]
fn dhcp_messages_have_rows_in_a_separate_table() {
    let dir = tempfile::tempdir().unwrap();
    // More messages than a flow's share, since all clients of a network belong to one flow.
    let batches: Vec<_> = (0..9)
        .map(|_| vec![udp(68, false, 67, &DHCP[1..])])
        .chain([vec![udp(546, false, 547, &DHCPV6[1..])]])
        .chain([vec![udp(546, false, 547, &DHCPV6[1..40])]])
        .collect();
    let report = record(&dir, 64, &batches);
    let names = report.names.unwrap();
    assert_eq!((names.dhcp, names.dns, names.unreadable), (11, 0, 1));
    let mut rows = rows(&names.dhcp_files.iter().collect::<Vec<_>>());
    // The options before the cut are kept.
    let cut = rows.pop().unwrap();
    let known = ["type", "client", "host"].map(|it| value(&cut, it));
    assert_eq!(known, ["REQUEST", "02:00:00:00:00:09", "null"]);
    let six = rows.pop().unwrap();
    assert_eq!(rows.len(), 9);
    let columns = [
        "src",
        "transaction",
        "type",
        "client",
        "host",
        "address",
        "requested",
        "vlan",
        "duid",
    ];
    let expected = [
        "10.0.0.1",
        "258",
        "REQUEST",
        "02:00:00:00:00:09",
        "host",
        "null",
        "10.0.0.7",
        "null",
        "null",
    ];
    for row in &rows {
        assert_eq!(columns.map(|it| value(row, it)), expected);
    }
    let expected = [
        "10.0.0.1",
        "66051",
        "REQUEST",
        "02:00:00:00:00:09",
        "host",
        "null",
        "2001:db8::7",
        "null",
        "00:01:00:01:2a:2b:2c:2d:02:00:00:00:00:09",
    ];
    assert_eq!(columns.map(|it| value(&six, it)), expected);
}

/// Returns segments of `size` bytes of a stream that starts at sequence number `first`.
fn divided(
    port: u16,
    back: bool,
    service: u16,
    first: u32,
    stream: &[u8],
    size: usize,
) -> Vec<Vec<u8>> {
    let parts = stream.chunks(size).zip((first..).step_by(size));
    parts
        .map(|(part, sequence)| segment(port, back, service, sequence, part))
        .collect()
}

#[test]
fn hellos_lines_and_heads_in_segments_of_any_size() {
    let hello = &HELLO[1..];
    // The same hello in records of one byte.
    let bytes = hello[5..].iter();
    let records: Vec<u8> = bytes.flat_map(|it| [0x16, 3, 1, 0, 1, *it]).collect();
    let request = b"\r\nPROPFIND /a b HTTP/1.1\r\nX: y\r\nHost: a.example\r\n\r\n";
    let known = b"POST / HTTP/1.1\r\nHost: b.example\r\n\r\n";
    for size in [1, 2, 3, 4, 5, 8, 9, 50] {
        let dir = tempfile::tempdir().unwrap();
        let batches = [
            divided(1, false, 443, 7, hello, size),
            divided(2, false, 443, 7, &records, size),
            divided(3, false, 80, 7, request, size),
            divided(4, false, 80, 7, known, size),
            divided(4, true, 80, 7, b"HTTP/1.1 404 Not Found\r\n\r\n", size),
            divided(5, false, 22, 7, b"SSH-2.0-x\r\n", size),
            // Keystrokes, which resemble the start of a method at first.
            divided(6, false, 23, 7, b"LIST x\r\nls\r\nQ\r\n", size),
        ];
        let report = record(&dir, 64, &batches);
        let sni = by_port(&report, "tls_sni");
        let ja4 = by_port(&report, "ja4");
        assert_eq!([&sni[&1], &sni[&2]], ["www.example.org"; 2], "{size}");
        assert!(ja4[&1] == ja4[&2] && ja4[&1].len() == 36, "{size}");
        let host = by_port(&report, "http_host");
        assert_eq!([&host[&3], &host[&4]], ["a.example", "b.example"], "{size}");
        let method = by_port(&report, "http_method");
        assert_eq!([&method[&3], &method[&4]], ["PROPFIND", "POST"], "{size}");
        assert_eq!(by_port(&report, "http_status")[&4], "404", "{size}");
        assert_eq!(by_port(&report, "ssh_fwd")[&5], "SSH-2.0-x", "{size}");
        let names = report.names.unwrap();
        assert_eq!(
            (names.flows, names.unreadable, names.missed),
            (5, 0, 0),
            "{size}"
        );
    }
}

#[test]
fn segments_that_repeat_or_overlap_do_not_hide_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let hello = &HELLO[1..];
    let part = |port, from: usize, to: usize| tcp(port, false, from as u32, &hello[from..to]);
    let report = record(
        &dir,
        64,
        &[vec![
            // Three cases: repeated, overlapping, and the next message of a stream that began
            // with a letter, such as the answer of a database to a request for TLS.
            part(1, 0, 60),
            part(1, 0, 60),
            part(1, 10, 60),
            part(2, 0, 60),
            part(2, 50, 90),
            part(2, 0, hello.len()),
            part(1, 60, hello.len()),
            tcp(3, true, 0, b"S"),
            tcp(3, true, 1, hello),
        ]],
    );
    let name = "www.example.org";
    assert_eq!(
        by_port(&report, "tls_sni"),
        expected([(1, name), (2, name), (443, name)])
    );
    let names = report.names.unwrap();
    assert_eq!((names.flows, names.unreadable, names.missed), (3, 0, 0));
}

#[test]
fn what_is_given_up_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let hello = &HELLO[1..];
    let long = [&b"GET / HTTP/1.1\r\nCookie: "[..], &[b'x'; 5000]].concat();
    let method = [&b"SEARCH /"[..], &[b'x'; 5000]].concat();
    let mut large = hello.to_vec();
    // A hello of 8000 bytes.
    (large[3], large[4], large[7], large[8]) = (0x1f, 0x44, 0x1f, 0x40);
    large.resize(5000, 0);
    let line = [&b"SSH-2.0-"[..], &[b'x'; 300]].concat();
    let report = record(
        &dir,
        64,
        &[
            divided(1, false, 80, 0, &long, 1400),
            divided(2, false, 80, 0, &method, 1400),
            divided(3, false, 443, 0, &large, 1400),
            divided(4, false, 22, 0, &line, 100),
            // The rest does not arrive.
            vec![tcp(5, false, 0, &hello[..1])],
            vec![tcp(6, false, 0, b"SSH-2")],
            vec![
                tcp(7, false, 60, &hello[60..]),
                tcp(7, false, 0, &hello[..60]),
            ],
            // No names: the end of the data is a short word.
            vec![tcp(8, false, 0, b"end")],
        ],
    );
    assert_eq!(by_port(&report, "http_method")[&1], "GET");
    let names = report.names.unwrap();
    assert_eq!((names.flows, names.unreadable, names.missed), (1, 4, 3));
}

/// Builds a DNS question for the name `name`, of one label, with its length before it. `records`
/// bytes follow the question.
fn question(name: &str, records: usize) -> Vec<u8> {
    let mut message = [&[0x12, 0x34, 1, 0, 0, 1][..], &[0; 6]].concat();
    message.push(name.len() as u8);
    message.extend(name.as_bytes());
    message.extend(b"\0\0\x01\0\x01");
    message.resize(message.len() + records, 0);
    let len = u16::try_from(message.len()).unwrap();
    [&len.to_be_bytes()[..], &message].concat()
}

/// Returns the queried names in the DNS table, by the client's port, in the order of the messages.
fn questions(report: &FlowsReport) -> BTreeMap<u16, Vec<String>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    let files = &report.names.as_ref().unwrap().dns_files;
    for row in rows(&files.iter().collect::<Vec<_>>()) {
        let ports = ["src_port", "dst_port"].map(|it| value(&row, it).parse::<u16>().unwrap());
        let port = ports[0].min(ports[1]);
        all.entry(port).or_default().push(value(&row, "name"));
    }
    all
}

#[test]
fn messages_of_a_dns_stream_have_rows_in_any_division() {
    let stream = [
        question("one", 0),
        question("two", 90),
        question("three", 0),
    ]
    .concat();
    for size in 1..=stream.len() {
        let dir = tempfile::tempdir().unwrap();
        let there = divided(1, false, 53, u32::MAX - 9, &stream[..9], size.min(9));
        let report = record(
            &dir,
            64,
            &[
                divided(2, false, 53, 0, &stream, size),
                divided(3, true, 53, 0, &stream, size),
                there,
            ],
        );
        let all = ["one", "two", "three"].map(str::to_owned).to_vec();
        let expected = BTreeMap::from([(2, all.clone()), (3, all)]);
        assert_eq!(questions(&report), expected, "{size}");
        let names = report.names.unwrap();
        assert_eq!((names.unreadable, names.missed), (0, 1), "{size}");
    }
}

#[test]
fn a_dns_stream_continues_after_long_messages() {
    let dir = tempfile::tempdir().unwrap();
    let many: Vec<_> = (0..200).map(|it| format!("n{it}")).collect();
    let short: Vec<u8> = many.iter().flat_map(|it| question(it, 0)).collect();
    let long = [
        question("a", 60_000),
        question("b", 9),
        question("c", 5000),
        question("d", 0),
    ];
    let mut behind = divided(2, true, 53, 0, &long.concat(), 1400);
    // Segments in the records of the long messages are repeated.
    behind.insert(30, behind[20].clone());
    behind.insert(46, behind[45].clone());
    let garbage: Vec<_> = (0..50)
        .map(|at| segment(4, false, 53, at * 9000, &[7; 1400]))
        .collect();
    let report = record(
        &dir,
        64,
        &[
            // More messages in one segment than a copy has room for.
            vec![segment(1, false, 53, 0, &short)],
            behind,
            // Many segments: each message is read.
            divided(3, false, 53, 0, &short, 40),
            garbage,
        ],
    );
    let expected = BTreeMap::from([
        (1, many.clone()),
        (2, ["a", "b", "c", "d"].map(str::to_owned).to_vec()),
        (3, many),
    ]);
    assert_eq!(questions(&report), expected);
    // What is no DNS is read as often as other payloads of a flow.
    let names = report.names.unwrap();
    assert_eq!((names.unreadable, names.missed), (4, 0));
}

#[test]
fn requests_of_ssdp_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let search = b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\n\r\n";
    let report = record(
        &dir,
        64,
        &[vec![
            udp(1, false, 1900, search),
            udp(1, true, 1900, b"HTTP/1.1 200 OK\r\nST: x\r\n\r\n"),
            // A datagram is never continued.
            udp(2, false, 1900, b"NOTIFY * HTTP/1.1\r\nNT: x\r\n"),
        ]],
    );
    let method = by_port(&report, "http_method");
    assert_eq!(method, expected([(1, "M-SEARCH"), (2, "NOTIFY")]));
    assert_eq!(by_port(&report, "http_host")[&1], "239.255.255.250:1900");
    assert_eq!(by_port(&report, "http_status")[&1], "200");
    let names = report.names.unwrap();
    assert_eq!((names.flows, names.unreadable, names.missed), (2, 1, 0));
}

#[test]
fn names_of_more_flows_than_memory_are_missed() {
    let dir = tempfile::tempdir().unwrap();
    // A quarter of the memory of ten flows has room for the names of one or two.
    let batches: Vec<_> = (1..=10)
        .map(|port| vec![tcp(port, false, 1, &HELLO[1..])])
        .collect();
    let report = record(&dir, 10, &batches);
    let names = report.names.unwrap();
    assert_eq!(names.flows + names.missed, 10);
    assert!((1..=3).contains(&names.flows), "{names:?}");
    assert_eq!(report.totals.records, 10);
}
