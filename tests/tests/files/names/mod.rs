//! Names in flow records, and the DNS and DHCP tables, through the binary.
//!
//! | test | shows |
//! |---|---|
//! | `records_have_the_names_of_known_flows` | TLS hellos in one and in several segments, HTTP, SSH, DNS, DHCP, DHCPv6, QUIC: each flow's record has its names, and unreadable payloads are counted |
//! | `captures::names_of_all_captures_are_those_of_tshark` | SNI, ALPN, HTTP, SSH, DNS and DHCP of each flow are tshark's; each deviation has its reason |
//! | `without_names_no_payload_is_read` | the columns are null, and no other tables are written |
//! | `live` | third-party clients and servers on a live interface: names are those that the clients were given, and those that tshark reads from the file |

mod captures;
mod live;

use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};
use wqcap_tests::{
    Dir, Finished, Program, Wqcap, binaries, files,
    frames::{self, Ends, Frame},
    ledger::number,
    need,
    oracles::duckdb::Duckdb,
};

/// Returns a run with names on one queue, so that frames keep their order.
pub(super) fn run<'d>(dir: &'d Dir, name: &str, file: &Path) -> Wqcap<'d> {
    let records = dir.folder(&format!("{name}.flows"));
    // The wire is slow enough for the thread that reads names, even on a busy machine.
    Wqcap::run(dir, name)
        .model(&format!("pcap:{},pps=20000", file.display()))
        .queues(1)
        .set("capture.buffer=128KiB")
        .set("capture.ring=32")
        .set(&format!("flows.dir={}", records.display()))
        .set("flows.names=true")
}

/// Returns the DuckDB expression that reads a run's Parquet files.
pub(super) fn table(files: &Value) -> String {
    let files = files.as_array().expect("a list of files").iter();
    let names: Vec<_> = files
        .map(|it| format!("'{}'", it.as_str().expect("a path is text")))
        .collect();
    format!("read_parquet([{}])", names.join(", "))
}

pub(super) fn summary(finished: &Finished) -> &Value {
    &finished.summary.json["flows"]
}

/// Returns the addresses and ports of a flow from client port `port` to server port `service`.
pub(super) fn ends(port: u16, service: u16) -> Ends {
    Ends {
        from: 1,
        to: 2,
        sport: port,
        dport: service,
    }
}

/// Returns a TCP segment of the client or, if `back` is set, of the server. `sequence` is the
/// offset of `payload` in the stream.
pub(super) fn segment(ends: Ends, back: bool, sequence: usize, payload: &[u8]) -> Vec<u8> {
    let ends = if back { ends.back() } else { ends };
    let frame = Frame::ethernet(&[], frames::IPV4).ipv4(ends, 6, 0);
    let mut frame = frame.tcp(ends).bytes(payload).done();
    let sequence = u32::try_from(1 + sequence)
        .expect("the stream is short")
        .to_be_bytes();
    frame[38..42].copy_from_slice(&sequence);
    frame
}

pub(super) fn datagram(ends: Ends, back: bool, payload: &[u8]) -> Vec<u8> {
    let ends = if back { ends.back() } else { ends };
    let frame = Frame::ethernet(&[], frames::IPV4).ipv4(ends, 17, 0);
    frame.udp(ends).bytes(payload).done()
}

/// Python program that performs a TLS handshake in memory with the given version and server name,
/// and prints the first messages of client and server in hex.
const HELLOS: &str = r#"
import ssl, sys
version, name, key = sys.argv[1:]
client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain(key)
server.set_alpn_protocols(["http/1.1"])
client.set_alpn_protocols(["h2", "http/1.1"])
client.maximum_version = ssl.TLSVersion[version]
there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
ends = [client.wrap_bio(back, there, server_hostname=name or None), server.wrap_bio(there, back, server_side=True)]
for end, out in zip(ends, [there, back]):
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        pass
    hello = out.read()
    print(hello.hex())
    out.write(hello)
"#;

/// Returns the first messages of OpenSSL's client and server.
fn hellos(dir: &Dir, version: &str, name: &str) -> Result<[Vec<u8>; 2], String> {
    let key = dir.join("key.pem");
    if !key.exists() {
        let done = Program::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
            .args(["ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x"])
            .args(["-keyout", "-", "-out", "-"])
            .run();
        if !done.status.success() {
            return Err(format!("openssl cannot create a certificate: {done}"));
        }
        fs::write(&key, &done.stdout).expect("the key is written");
    }
    let done = Program::new("python3")
        .args(["-c", HELLOS, version, name])
        .arg(&key)
        .run();
    if !done.status.success() {
        return Err(format!("Python's OpenSSL cannot create a hello: {done}"));
    }
    let mut lines = done.stdout.lines().map(bytes);
    Ok([(); 2].map(|()| lines.next().expect("the program prints two lines")))
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter_map(|it| it.to_digit(16)).collect();
    let pairs = digits.chunks_exact(2);
    pairs.map(|it| (it[0] * 16 + it[1]) as u8).collect()
}

/// Returns a sample of the fuzz targets' corpus without its first byte, the sample's type.
pub(super) fn sample(name: &str) -> Vec<u8> {
    let path = binaries::root().join("fuzz/corpus/names").join(name);
    let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    bytes[1..].to_vec()
}

#[test]
fn records_have_the_names_of_known_flows() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let [new, new_back] = need!(hellos(&dir, "TLSv1_3", "new.example"));
    let [old, old_back] = need!(hellos(&dir, "TLSv1_2", "old.example"));
    let [bare, bare_back] = need!(hellos(&dir, "TLSv1_3", ""));
    let web = |port| ends(port, 443);
    let mut sent = vec![
        // Port 1: one segment. Port 2: three segments, with others in between. Port 3: without a
        // name. Port 4: the end is missing.
        segment(web(1), false, 0, &new),
        segment(web(2), false, 0, &old[..40]),
        segment(web(3), false, 0, &bare),
        segment(web(2), false, 40, &old[40..100]),
        segment(web(4), false, 0, &new[..100]),
        segment(web(1), true, 0, &new_back),
        segment(web(3), true, 0, &bare_back),
        segment(web(2), false, 100, &old[100..]),
        segment(web(2), true, 0, &old_back),
        // Port 5: a hello whose extensions are longer than the hello.
        segment(web(5), false, 0, &broken(&new)),
    ];
    let http = ends(6, 8000);
    sent.push(segment(http, false, 0, &sample("request")));
    sent.push(segment(http, true, 0, &sample("response")));
    let ssh = ends(7, 2222);
    sent.push(segment(ssh, true, 0, b"SSH-2.0-server\r\n"));
    sent.push(segment(ssh, false, 0, &sample("banner")));
    sent.push(datagram(ends(8, 443), false, &sample("quic-v1")));
    sent.push(datagram(ends(9, 4433), false, &sample("quic-v2")));
    let dns = ends(10, 53);
    let mut query = sample("answer");
    (query[2], query[3]) = (1, 0);
    sent.push(datagram(dns, false, &query));
    sent.push(datagram(dns, true, &sample("answer")));
    sent.push(segment(ends(11, 53), true, 0, &sample("stream")));
    sent.push(datagram(ends(68, 67), false, &sample("dhcp")));
    sent.push(datagram(ends(546, 547), false, &sample("dhcpv6")));
    sent.push(datagram(ends(547, 547), false, &sample("dhcpv6-relay")));
    let file = dir.join("known.pcap");
    files::write(&file, 1_600_000_000, &sent);
    for mode in ["inline", "fanout"] {
        assert_known(&duckdb, &dir, mode, &file, sent.len());
    }
}

/// Asserts that a run in pipeline mode `mode` records the names of
/// `records_have_the_names_of_known_flows`.
fn assert_known(duckdb: &Duckdb, dir: &Dir, mode: &str, file: &Path, sent: usize) {
    let finished = run(dir, mode, file)
        .set(&format!("pipeline.mode={mode}"))
        .set("pipeline.parsers_per_queue=2")
        .finish(0);

    let flows = summary(&finished);
    let columns = "tls_sni, tls_alpn, tls_version, left(ja4, 10), http_method, http_host, http_status, ssh_fwd, ssh_rev";
    let rows = duckdb.query(&format!(
        "SELECT least(src_port, dst_port)::BIGINT, {columns} FROM {}",
        table(&flows["files"])
    ));
    let rows: BTreeMap<_, _> = rows
        .into_iter()
        .map(|row| (number(&row[0]), Value::from(row[1..].to_vec()).to_string()))
        .collect();
    let nothing = "[null,null,null,null,null,null,null,null,null]".to_owned();
    let ja4 = |port: &u64| {
        let row: Vec<Value> = serde_json::from_str(&rows[port]).expect("a row is JSON");
        row[3].as_str().unwrap_or_default().to_owned()
    };
    // The number of ciphers and extensions depends on OpenSSL's version.
    let (new, old, bare) = (ja4(&1), ja4(&2), ja4(&3));
    assert!(new.starts_with("t13d") && new.ends_with("h2"), "{new}");
    assert!(old.starts_with("t12d") && old.ends_with("h2"), "{old}");
    assert!(bare.starts_with("t13i") && bare.ends_with("h2"), "{bare}");
    let expected = [
        (1, format!(r#"["new.example","h2,http/1.1","1.3","{new}",null,null,null,null,null]"#)),
        (2, format!(r#"["old.example","h2,http/1.1","1.2","{old}",null,null,null,null,null]"#)),
        (3, format!(r#"[null,"h2,http/1.1","1.3","{bare}",null,null,null,null,null]"#)),
        (4, nothing.clone()),
        (5, nothing.clone()),
        (6, r#"[null,null,null,null,"GET","www.example.org:8080",302,null,null]"#.into()),
        (7, r#"[null,null,null,null,null,null,null,"SSH-2.0-server","SSH-2.0-OpenSSH_9.2p1 Debian-2"]"#.into()),
        (8, r#"["example.com","alpn",null,"q13d0211an",null,null,null,null,null]"#.into()),
        (9, r#"["example.com","alpn",null,"q13d0211an",null,null,null,null,null]"#.into()),
        (10, nothing.clone()),
        (11, nothing.clone()),
        (67, nothing.clone()),
        (546, nothing.clone()),
        (547, nothing),
    ];
    assert_eq!(rows, BTreeMap::from(expected));

    let names = &flows["names"];
    let counts = ["flows", "dns", "dhcp", "unreadable", "missed", "unwritten"];
    let counts = counts.map(|it| number(&names[it]));
    assert_eq!(counts, [7, 4, 3, 1, 1, 0], "{names}");
    let dns = duckdb.query(&format!(
        "SELECT src_port, protocol, id, name, type, rcode, answers FROM {} ORDER BY src_port, protocol DESC, name DESC",
        table(&names["dns_files"])
    ));
    let dns: Vec<_> = dns
        .into_iter()
        .map(|it| Value::from(it).to_string())
        .collect();
    let expected = [
        r#"[10,17,4660,"www.example.org","AAAA",null,null]"#,
        r#"[53,17,4660,"www.example.org","AAAA","NXDOMAIN",2]"#,
        r#"[53,6,4660,"www.example.org","AAAA","NXDOMAIN",2]"#,
        r#"[53,6,1,".","NS",null,null]"#,
    ];
    assert_eq!(dns, expected);
    let dhcp = duckdb.query(&format!(
        "SELECT type, client, host, requested, address, duid FROM {} ORDER BY time",
        table(&names["dhcp_files"])
    ));
    let dhcp: Vec<_> = dhcp
        .into_iter()
        .map(|it| Value::from(it).to_string())
        .collect();
    let expected = [
        r#"["REQUEST","02:00:00:00:00:09","host","10.0.0.7",null,null]"#,
        r#"["REQUEST","02:00:00:00:00:09","host","2001:db8::7",null,"00:01:00:01:2a:2b:2c:2d:02:00:00:00:00:09"]"#,
        r#"["REQUEST","02:00:00:00:00:08","host","2001:db8::7",null,"00:01:00:01:2a:2b:2c:2d:02:00:00:00:00:09"]"#,
    ];
    assert_eq!(dhcp, expected);
    let total = finished.summary.ledger.total;
    assert_eq!(
        (total.captured, number(&flows["frames"])),
        (sent as u64, sent as u64)
    );
}

/// Returns a copy of `hello` whose first extension is longer than the hello.
fn broken(hello: &[u8]) -> Vec<u8> {
    let mut hello = hello.to_vec();
    // Skips the record and message headers, version and random, session, ciphers, compression and
    // the extensions' length.
    let mut at = 9 + 34;
    at += 1 + usize::from(hello[at]);
    at += 2 + usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    at += 1 + usize::from(hello[at]);
    at += 2;
    // High byte of the first extension's length: the extension now reaches beyond the end.
    hello[at + 2] = 0xff;
    hello
}

#[test]
fn without_names_no_payload_is_read() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let file = dir.join("request.pcap");
    let request = segment(ends(6, 80), false, 0, &sample("request"));
    files::write(&file, 1_600_000_000, &[request]);
    let finished = run(&dir, "off", &file).set("flows.names=false").finish(0);
    let flows = summary(&finished);
    let rows = duckdb.query(&format!(
        "SELECT frames_fwd, http_host FROM {}",
        table(&flows["files"])
    ));
    assert_eq!(rows, [[Value::from(1), Value::Null]]);
    assert!(flows["names"].is_null());
    for table in ["dns", "dhcp"] {
        assert!(!dir.join("off.flows").join(table).exists());
    }
}

/// Table that a comparison with tshark reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Flows,
    Dns,
    /// DHCP table, messages over IPv4.
    Dhcp,
    /// DHCP table, messages over IPv6.
    Dhcpv6,
}

/// Converts a line of tshark's fields to wqcap's form: numbers in decimal, types and codes by name.
fn plain(of: Of, line: &str) -> String {
    let fields: Vec<_> = line.split('|').collect();
    let hex = |number: &str| u32::from_str_radix(number.trim_start_matches("0x"), 16);
    match of {
        Of::Flows => return line.to_owned(),
        Of::Dhcp => {
            let [client, host, kind] = fields[..] else {
                panic!("the line does not have three fields: {line}")
            };
            let types = [
                "", "DISCOVER", "OFFER", "REQUEST", "DECLINE", "ACK", "NAK", "RELEASE", "INFORM",
            ];
            let name = kind.parse().ok().and_then(|it: usize| types.get(it));
            return format!("{client}|{host}|{}", name.unwrap_or(&kind));
        }
        Of::Dhcpv6 => {
            let [transaction, host, kind] = fields[..] else {
                panic!("the line does not have three fields: {line}")
            };
            let types = [
                "",
                "SOLICIT",
                "ADVERTISE",
                "REQUEST",
                "CONFIRM",
                "RENEW",
                "REBIND",
                "REPLY",
                "RELEASE",
                "DECLINE",
                "RECONFIGURE",
                "INFORMATION-REQUEST",
            ];
            let name = kind.parse().ok().and_then(|it: usize| types.get(it));
            let transaction = hex(transaction).unwrap_or_default();
            return format!("{transaction}|{host}|{}", name.unwrap_or(&kind));
        }
        Of::Dns => {}
    }
    let [id, name, rcode, answers] = fields[..] else {
        panic!("the line does not have four fields: {line}")
    };
    let id = hex(id).unwrap_or_default();
    let name = if name == "<Root>" { "." } else { name };
    let codes = [
        "NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED",
    ];
    let (rcode, answers) = match rcode.parse::<usize>() {
        Ok(code) => (codes.get(code).copied().unwrap_or(rcode), answers),
        Err(_) => ("query", "0"),
    };
    format!("{id}|{name}|{rcode}|{answers}")
}

/// Returns a line with the values of `fields` for each frame of a file that tshark's `filter`
/// selects. `occurrence` selects the first (`f`), the last (`l`) or all (`a`) values of a field.
fn tshark(
    file: &Path,
    occurrence: &str,
    filter: &str,
    fields: &[&str],
) -> Result<Vec<String>, String> {
    let done = Program::new("tshark")
        .args(["-n", "-T", "fields", "-E", "separator=|", "-E"])
        .arg(format!("occurrence={occurrence}"))
        .args(["-Y", filter, "-r"])
        .arg(file)
        .args(fields.iter().flat_map(|it| ["-e", *it]))
        .run();
    if !done.status.success() {
        return Err(format!("tshark fails: {done}"));
    }
    Ok(done.stdout.lines().map(str::to_owned).collect())
}
