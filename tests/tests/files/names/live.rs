//! Names of third-party clients and servers on a live interface. They are those that the clients
//! were given, and those that tshark reads for the same connection from the file of the same run.

use super::{Of, plain, table, tshark};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Pair, Program, Running, Wqcap, binaries,
    ledger::number,
    machine::{
        certificate::certificate,
        live::Live,
        netns::{IFACE, Namespace},
    },
    need,
    oracles::{duckdb::Duckdb, ja4, pypi},
    skip,
};

/// Pinned version of aioquic.
const AIOQUIC: &str = "1.7.2";
/// Maximum length of a text in records, in bytes. Longer texts are truncated.
const MOST_TEXT: usize = 255;

/// Returns a capture with names of both directions on the far end.
fn capture<'d>(dir: &'d Dir, pair: &Pair) -> Wqcap<'d> {
    let run = Wqcap::run(dir, "live")
        .model(&format!("af_packet:{IFACE}"))
        .queues(1)
        .set("capture.mode=sniffer")
        .set("capture.ring=4096")
        .set("output.format=pcapng")
        .set(&format!("flows.dir={}", dir.folder("flows").display()))
        .set("flows.names=true");
    Live::on(run, pair)
}

/// Results of a capture: its file and its flow records.
struct Heard {
    duckdb: Duckdb,
    /// Capture file of the run.
    file: PathBuf,
    /// Section `flows` of the summary.
    flows: Value,
}

/// Values of each flow, by the flow's two ends.
type ByFlow = BTreeMap<[String; 2], Vec<String>>;

impl Heard {
    /// Ends a capture, and asserts that it lost no frame and no name.
    #[track_caller]
    fn from_run(duckdb: Duckdb, run: &Wqcap<'_>, live: Live<'_>) -> Self {
        let finished = run.finished(live.stop().wait(), 0);
        for lost in ["wire_dropped", "out_of_buffer"] {
            assert_eq!(finished.summary.nic(lost), 0, "{lost}: {}", finished.done);
        }
        let flows = finished.summary.json["flows"].clone();
        let counts = ["unreadable", "missed", "unwritten"].map(|it| number(&flows["names"][it]));
        assert_eq!(counts, [0; 3], "{flows}");
        let mut files = finished.files();
        assert_eq!(files.len(), 1, "{files:?}");
        let (_, file) = files.remove(0);
        Self {
            duckdb,
            file,
            flows,
        }
    }

    /// Returns columns of the flow records as text. Records in which all of them are empty are left
    /// out.
    #[track_caller]
    fn ours(&self, protocol: &str, columns: &[&str]) -> ByFlow {
        let columns: Vec<_> = columns
            .iter()
            .map(|it| format!("coalesce({it}::VARCHAR, '')"))
            .collect();
        let number = if protocol == "tcp" { 6 } else { 17 };
        let rows = self.duckdb.query(&format!(
            "SELECT src, src_port::VARCHAR, dst, dst_port::VARCHAR, {} FROM {} WHERE protocol = {number}",
            columns.join(", "),
            table(&self.flows["files"])
        ));
        let mut flows = ByFlow::new();
        for row in rows {
            let text = |it: &Value| it.as_str().expect("a column is text").to_owned();
            let row = row.iter().map(text);
            add(&mut flows, &row.collect::<Vec<_>>());
        }
        flows
    }

    /// Returns fields of the frames that tshark's filter selects, by flow. A field has the value of
    /// the flow's first frame with a value.
    fn theirs(&self, protocol: &str, filter: &str, fields: &[&str]) -> Result<ByFlow, String> {
        let ports = ["srcport", "dstport"].map(|it| format!("{protocol}.{it}"));
        let ends = [
            "ip.src", "ipv6.src", &ports[0], "ip.dst", "ipv6.dst", &ports[1],
        ];
        // Packets quoted in ICMP messages are left out.
        let filter = format!("({filter}) && !icmp && !icmpv6");
        let fields = [&ends[..], fields].concat();
        let mut flows = ByFlow::new();
        for line in tshark(&self.file, "a", &filter, &fields)? {
            let mut values: Vec<_> = line.split('|').map(str::to_owned).collect();
            // Either the IPv4 or the IPv6 address is empty.
            for at in [3, 0] {
                let six = values.remove(at + 1);
                values[at].push_str(&six);
            }
            add(&mut flows, &values);
        }
        Ok(flows)
    }

    /// Asserts that the columns equal tshark's fields in every flow. `convert` brings the fields
    /// into the columns' form.
    #[track_caller]
    fn assert_theirs(
        &self,
        protocol: &str,
        columns: &[&str],
        filter: &str,
        fields: &[&str],
        convert: impl Fn(&[String]) -> Vec<String>,
    ) {
        let theirs = match self.theirs(protocol, filter, fields) {
            Ok(theirs) => theirs,
            Err(reason) => return skip::say(&format!("{columns:?} are not compared: {reason}")),
        };
        let theirs: ByFlow = theirs
            .into_iter()
            .map(|(ends, fields)| (ends, convert(&fields)))
            .collect();
        assert!(!theirs.is_empty(), "tshark finds frames of {filter}");
        assert_eq!(self.ours(protocol, columns), theirs, "{columns:?}");
    }

    /// Asserts that the JA4 fingerprints equal those of ja4plus, and that ja4plus has at least
    /// `least` of them.
    #[track_caller]
    fn assert_fingerprints(&self, protocol: &str, least: usize) {
        let theirs = match ja4::fingerprints(&self.file) {
            Ok(theirs) => theirs,
            Err(reason) => return skip::say(&format!("JA4 is not compared: {reason}")),
        };
        let ours = self.ours(protocol, &["ja4"]).into_iter();
        let ours: BTreeMap<_, _> = ours.map(|(ends, ja4)| (ends, ja4.concat())).collect();
        let (all, compared) = (ours.len(), theirs.len());
        skip::say(&format!(
            "JA4 of {compared} of {all} flows is compared with ja4plus"
        ));
        for (ends, theirs) in &theirs {
            assert_eq!(ours.get(ends), Some(theirs), "{ends:?}");
        }
        assert!(compared >= least, "{theirs:?}");
    }

    /// Returns the rows of a table as sorted lines of text.
    #[track_caller]
    fn rows(&self, files: &str, select: &str) -> Vec<String> {
        let table = table(&self.flows["names"][files]);
        let rows = self
            .duckdb
            .query(&format!("SELECT concat_ws('|', {select}) FROM {table}"));
        let rows = rows
            .iter()
            .map(|it| it[0].as_str().expect("a row is text").to_owned());
        sorted(rows)
    }
}

/// Adds a row of source, source port, destination, destination port and values to the row's flow.
/// Values that the flow already has are kept.
fn add(flows: &mut ByFlow, row: &[String]) {
    let [src, src_port, dst, dst_port, values @ ..] = row else {
        panic!("the row lacks two addresses and ports: {row:?}")
    };
    if values.iter().all(String::is_empty) {
        return;
    }
    let mut ends = [format!("{src} {src_port}"), format!("{dst} {dst_port}")];
    ends.sort();
    let known = flows
        .entry(ends)
        .or_insert_with(|| vec![String::new(); values.len()]);
    for (known, value) in known.iter_mut().zip(values) {
        if known.is_empty() {
            known.clone_from(value);
        }
    }
}

fn sorted(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<_> = lines.collect();
    lines.sort();
    lines
}

/// Truncates a text to the maximum length in records.
fn cut(text: &str) -> String {
    text.get(..MOST_TEXT).unwrap_or(text).to_owned()
}

/// Returns 20 long protocol names and `last`, the server's protocol. A hello with all of them needs
/// two segments or datagrams.
fn many(last: &str) -> Vec<String> {
    let long = (0..20).map(|it| format!("{it:0>100}"));
    long.chain([last.to_owned()]).collect()
}

/// Checks that a program is installed; the error is a reason to skip the test.
fn has(program: &str, package: &str) -> Result<(), String> {
    let find = ["-c", r#"command -v "$0""#, program];
    if Program::new("sh").args(find).run().status.success() {
        return Ok(());
    }
    Err(format!(
        "{program} is not installed (Debian package {package})"
    ))
}

/// Waits until the kernel's socket table has a listening TCP socket or a bound UDP socket of the
/// server's port.
fn until_bound(server: &mut Running, end: &Namespace, protocol: &str, port: u16) {
    let state = if protocol == "tcp" { "0A" } else { "07" };
    let wanted = format!(":{port:04X}");
    let files = ["", "6"].map(|it| format!("/proc/net/{protocol}{it}"));
    server.until("the server's port is bound", |_| {
        let sockets = end.program("cat", &[&files[0], &files[1]]).run().stdout;
        sockets.lines().any(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            matches!(words[..], [_, local, _, at, ..] if local.ends_with(&wanted) && at == state)
        })
    });
}

#[test]
fn hellos_of_openssl_give_names() {
    let duckdb = need!(Duckdb::install());
    let pair = need!(Pair::without_offloads());
    let dir = Dir::new();
    let [certificate, key] = certificate(&dir);
    let servers = ["10.77.0.2:443", "[fd77::2]:443"].map(|address| {
        let server = Program::new("openssl")
            .args(["s_server", "-www", "-alpn", "http/1.1,h2", "-accept"])
            .args([address, "-cert"])
            .arg(&certificate)
            .arg("-key")
            .arg(&key);
        let mut server = pair.far.enter(server).start();
        server.until("the server listens", |it| it.stdout().contains("ACCEPT"));
        server
    });
    let run = capture(&dir, &pair);
    let live = Live::start(&run, &pair);
    let many = many("h2").join(",");
    let hellos = [
        ("10.77.0.2:443", "1.3", "new.example", "h2,http/1.1"),
        ("10.77.0.2:443", "1.2", "old.example", "http/1.1"),
        ("[fd77::2]:443", "1.3", "six.example", "h2"),
        ("10.77.0.2:443", "1.3", "many.example", many.as_str()),
        ("10.77.0.2:443", "1.3", "", ""),
    ];
    for (address, version, name, protocols) in hellos {
        let version = version.replace("1.", "-tls1_");
        let mut client = Program::new("openssl")
            .args(["s_client", "-connect", address])
            .arg(version);
        if !protocols.is_empty() {
            client = client.args(["-alpn", protocols]);
        }
        client = if name.is_empty() {
            client.arg("-noservername")
        } else {
            client.args(["-servername", name])
        };
        let _ = pair.near.enter(client).run().expect(0);
    }
    let heard = Heard::from_run(duckdb, &run, live);
    drop(servers);

    let columns = ["tls_version", "tls_sni", "tls_alpn"];
    let ours = heard.ours("tcp", &columns);
    let ours = sorted(ours.into_values().map(|it| it.join("|")));
    let wanted =
        hellos.map(|(_, version, name, protocols)| format!("{version}|{name}|{}", cut(protocols)));
    assert_eq!(ours, sorted(wanted.into_iter()));
    heard.assert_theirs(
        "tcp",
        &columns[1..],
        "tls.handshake.type == 1",
        &[
            "tls.handshake.extensions_server_name",
            "tls.handshake.extensions_alpn_str",
        ],
        |fields| vec![fields[0].clone(), cut(&fields[1])],
    );
    heard.assert_theirs(
        "tcp",
        &columns[..1],
        "tls.handshake.type == 2",
        &[
            "tls.handshake.extensions.supported_version",
            "tls.handshake.version",
        ],
        |fields| {
            let number = fields.iter().find(|it| !it.is_empty());
            let version = match number.map(String::as_str) {
                Some("0x0304") => "1.3",
                Some("0x0303") => "1.2",
                other => panic!("unexpected TLS version from tshark: {other:?}"),
            };
            vec![version.to_owned()]
        },
    );
    heard.assert_fingerprints("tcp", 5);
    // tshark has this field since Wireshark 4.2.
    heard.assert_theirs(
        "tcp",
        &["ja4"],
        "tls.handshake.type == 1",
        &["tls.handshake.ja4"],
        <[String]>::to_vec,
    );
}

/// Python program that requests a file. A long header moves the host into the second segment.
const LATE: &str = "
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]))
connection.putrequest('GET', '/file', skip_host=True)
connection.putheader('Cookie', 'x' * 2000)
connection.putheader('Host', 'late.example')
connection.endheaders()
connection.getresponse().read()
";

#[test]
fn requests_of_curl_and_python_give_names() {
    const PORT: u16 = 8080;
    let duckdb = need!(Duckdb::install());
    let pair = need!(Pair::without_offloads());
    let dir = Dir::new();
    dir.write("file", "x");
    let port = PORT.to_string();
    let serve = ["-m", "http.server", &port, "--bind", "::", "--protocol"];
    let server = pair.far.program("python3", &serve).arg("HTTP/1.1");
    let mut server = server.cwd(dir.path()).start();
    until_bound(&mut server, &pair.far, "tcp", PORT);
    let run = capture(&dir, &pair);
    let live = Live::start(&run, &pair);
    let url = format!("http://10.77.0.2:{PORT}");
    let (file, missing) = (format!("{url}/file"), format!("{url}/missing"));
    let quiet = ["-sS", "-o", "/dev/null"];
    let curl = |args: &[&str]| {
        let _ = pair.near.program("curl", args).run().expect(0);
    };
    // Two requests on one connection: the record has the host of the first.
    let first = [&quiet[..], &["-H", "Host: first.example", &file, "--next"]].concat();
    curl(
        &[
            &first[..],
            &quiet,
            &["-H", "Host: second.example", &missing],
        ]
        .concat(),
    );
    curl(&[&quiet[..], &["-I", &missing]].concat());
    let six = format!("http://[fd77::2]:{PORT}/file");
    curl(&[&quiet[..], &["-X", "DELETE", &six]].concat());
    let late = ["-c", LATE, "10.77.0.2", &port];
    let _ = pair.near.program("python3", &late).run().expect(0);
    let heard = Heard::from_run(duckdb, &run, live);
    drop(server);

    let ours = heard.ours("tcp", &["http_method", "http_host", "http_status"]);
    let ours = sorted(ours.into_values().map(|it| it.join(" ")));
    let wanted = [
        "DELETE [fd77::2]:8080 501",
        "GET first.example 200",
        "GET late.example 200",
        "HEAD 10.77.0.2:8080 404",
    ];
    assert_eq!(ours, wanted);
    heard.assert_theirs(
        "tcp",
        &["http_method", "http_host"],
        "http.request",
        &["http.request.method", "http.host"],
        <[String]>::to_vec,
    );
    heard.assert_theirs(
        "tcp",
        &["http_status"],
        "http.response",
        &["http.response.code"],
        <[String]>::to_vec,
    );
}

#[test]
fn the_dns_table_has_the_messages_of_dnsmasq() {
    const TYPES: [(&str, &str); 3] = [("A", "1"), ("AAAA", "28"), ("MX", "15")];
    need!(has("dnsmasq", "dnsmasq-base"));
    let duckdb = need!(Duckdb::install());
    let pair = need!(Pair::without_offloads());
    let dir = Dir::new();
    let options = [
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--log-facility=-",
        "--pid-file",
        "--user=root",
        "--no-resolv",
        "--no-hosts",
        "--bind-interfaces",
        "--listen-address=10.77.0.2",
        "--local=/known.example/",
        "--host-record=www.known.example,10.9.8.7,fd09::7",
        "--mx-host=known.example,www.known.example",
    ];
    let mut server = pair.far.program("dnsmasq", &options).start();
    until_bound(&mut server, &pair.far, "udp", 53);
    let run = capture(&dir, &pair);
    let live = Live::start(&run, &pair);
    let lookups = [
        ("www.known.example", "A", "NOERROR", 1),
        ("www.known.example", "AAAA", "NOERROR", 1),
        ("known.example", "MX", "NOERROR", 1),
        ("no.known.example", "A", "NXDOMAIN", 0),
        // dnsmasq has no upstream server.
        ("elsewhere.example", "A", "REFUSED", 0),
    ];
    for (name, kind, _, _) in lookups {
        let kind = format!("-type={}", kind.to_lowercase());
        let ask = ["nslookup", &kind, name, "10.77.0.2"];
        // The exit status of nslookup depends on the answer and is ignored.
        let _ = pair.near.program("busybox", &ask).run();
    }
    let heard = Heard::from_run(duckdb, &run, live);
    drop(server);

    let answers = "name, type, coalesce(rcode, 'query'), coalesce(answers, 0)";
    let found: BTreeSet<_> = heard.rows("dns_files", answers).into_iter().collect();
    let wanted = lookups.iter().flat_map(|(name, kind, rcode, answers)| {
        let answer = format!("{name}|{kind}|{rcode}|{answers}");
        [format!("{name}|{kind}|query|0"), answer]
    });
    let wanted: BTreeSet<_> = wanted.collect();
    assert_eq!(found, wanted);
    let ours = heard.rows(
        "dns_files",
        &format!("id, {}, type", &answers.replace("type, ", "")),
    );
    let fields = [
        "dns.id",
        "dns.qry.name",
        "dns.flags.rcode",
        "dns.count.answers",
        "dns.qry.type",
    ];
    let theirs = need!(tshark(&heard.file, "f", "dns", &fields));
    let theirs = theirs.iter().map(|line| {
        let (line, number) = line.rsplit_once('|').expect("a line has a type");
        let kind = TYPES.iter().find(|it| it.1 == number);
        format!(
            "{}|{}",
            plain(Of::Dns, line),
            kind.map_or(number, |it| it.0)
        )
    });
    assert_eq!(ours, sorted(theirs));
}

#[test]
fn ssh_banners_of_dropbear_give_names() {
    need!(has("dropbear", "dropbear-bin"));
    let duckdb = need!(Duckdb::install());
    let pair = need!(Pair::without_offloads());
    let dir = Dir::new();
    let at = |name: &str| {
        dir.join(name)
            .to_str()
            .expect("the path is UTF-8")
            .to_owned()
    };
    let (key, pid) = (at("key"), at("pid"));
    let _ = Program::new("dropbearkey")
        .args(["-t", "ed25519", "-f", &key])
        .run()
        .expect(0);
    let serve = [
        "-F",
        "-E",
        "-s",
        "-r",
        &key,
        "-P",
        &pid,
        "-p",
        "10.77.0.2:22",
    ];
    let mut server = pair.far.program("dropbear", &serve).start();
    until_bound(&mut server, &pair.far, "tcp", 22);
    let run = capture(&dir, &pair);
    let live = Live::start(&run, &pair);
    // The login is refused. The client has sent its banner before that.
    let client = ["-y", "-y", "nobody@10.77.0.2", "true"];
    let client = pair.near.program("dbclient", &client);
    let _ = client.env("HOME", dir.path()).run();
    if has("ssh-keyscan", "openssh-client").is_ok() {
        let _ = pair.near.program("ssh-keyscan", &["10.77.0.2"]).run();
    }
    let heard = Heard::from_run(duckdb, &run, live);
    drop(server);

    let ours = heard.ours("tcp", &["ssh_fwd", "ssh_rev"]);
    let is_dropbear = |it: &String| it.starts_with("SSH-2.0-dropbear");
    assert!(
        ours.values().any(|it| it.iter().all(is_dropbear)),
        "{ours:?}"
    );
    assert!(ours.values().all(|it| is_dropbear(&it[1])), "{ours:?}");
    for (column, end) in [("ssh_fwd", "dst"), ("ssh_rev", "src")] {
        let filter = format!("ssh.protocol && tcp.{end}port == 22");
        let fields = ["ssh.protocol"];
        heard.assert_theirs("tcp", &[column], &filter, &fields, <[String]>::to_vec);
    }
}

#[test]
fn the_dhcp_table_has_the_messages_of_busybox() {
    need!(has("busybox", "busybox-static"));
    let duckdb = need!(Duckdb::install());
    let pair = need!(Pair::without_offloads());
    let dir = Dir::new();
    let [leases, pid] = ["leases", "pid"].map(|it| dir.write(it, ""));
    let config = format!(
        "interface {IFACE}\nstart 10.77.0.100\nend 10.77.0.100\nmax_leases 1\nlease_file {}\npidfile {}\n",
        leases.display(),
        pid.display()
    );
    let config = dir.write("udhcpd.conf", config);
    let serve = ["udhcpd", "-f", config.to_str().expect("the path is UTF-8")];
    let mut server = pair.far.program("busybox", &serve).start();
    until_bound(&mut server, &pair.far, "udp", 67);
    let run = capture(&dir, &pair);
    let live = Live::start(&run, &pair);
    // The interface gets no address: the client's script is /bin/true.
    let ask = ["udhcpc", "-f", "-q", "-n", "-i", IFACE, "-s", "/bin/true"];
    let ask = [&ask[..], &["-t", "20", "-x", "hostname:laptop"]].concat();
    let _ = pair.near.program("busybox", &ask).run().expect(0);
    let heard = Heard::from_run(duckdb, &run, live);
    drop(server);

    let columns = "type, coalesce(host, ''), coalesce(address, '')";
    let found: BTreeSet<_> = heard.rows("dhcp_files", columns).into_iter().collect();
    let given = ["OFFER||10.77.0.100", "ACK||10.77.0.100"];
    let asked = ["DISCOVER|laptop|", "REQUEST|laptop|"];
    let wanted: BTreeSet<_> = given.into_iter().chain(asked).map(str::to_owned).collect();
    assert_eq!(found, wanted);
    let ours = "client, coalesce(host, ''), type, printf('0x%08x', transaction), coalesce(address, '0.0.0.0')";
    let fields = [
        "dhcp.hw.mac_addr",
        "dhcp.option.hostname",
        "dhcp.option.dhcp",
        "dhcp.id",
        "dhcp.ip.your",
    ];
    let theirs = need!(tshark(&heard.file, "f", "dhcp", &fields));
    let theirs = theirs.iter().map(|line| {
        let fields: Vec<_> = line.splitn(4, '|').collect();
        let message = plain(Of::Dhcp, &fields[..3].join("|"));
        format!("{message}|{}", fields[3])
    });
    assert_eq!(heard.rows("dhcp_files", ours), sorted(theirs));
}

/// Returns the command `tests/clients/quic.py ARGS` in the namespace `end`.
fn quic(packages: &Path, end: &Namespace, args: &[&str]) -> Program {
    let program = binaries::root().join("tests/clients/quic.py");
    let program = Program::new("python3").arg(program).args(args);
    end.enter(program.env("PYTHONPATH", packages))
}

#[test]
fn hellos_of_aioquic_give_names() {
    let packages = need!(pypi::installed("aioquic", "", AIOQUIC));
    let duckdb = need!(Duckdb::install());
    let pair = need!(Pair::without_offloads());
    let dir = Dir::new();
    let files = certificate(&dir);
    let [certificate, key] = files
        .each_ref()
        .map(|it| it.to_str().expect("the path is UTF-8"));
    let serve = ["server", "::", "443", certificate, key];
    let mut server = quic(&packages, &pair.far, &serve).start();
    server.until("the server listens", |it| it.stdout().contains("ready"));
    let run = capture(&dir, &pair);
    let live = Live::start(&run, &pair);
    let (few, many) = (vec!["h3".to_owned(), "hq-29".to_owned()], many("h3"));
    let hellos = [
        ("10.77.0.2", "1", "one.example", &few),
        ("10.77.0.2", "2", "two.example", &few),
        ("fd77::2", "1", "six.example", &few),
        ("10.77.0.2", "1", "many.example", &many),
        ("10.77.0.2", "2", "both.example", &many),
        ("10.77.0.2", "1", "-", &few),
    ];
    for (address, version, name, protocols) in hellos {
        let ask = ["client", address, "443", version, name];
        let client = quic(&packages, &pair.near, &ask).args(protocols);
        let _ = client.run().expect(0);
    }
    let heard = Heard::from_run(duckdb, &run, live);
    drop(server);

    let columns = ["tls_sni", "tls_alpn"];
    let ours = heard.ours("udp", &columns);
    let expected = hellos.map(|(_, version, name, protocols)| {
        let name = name.trim_start_matches('-');
        (version, format!("{name}|{}", cut(&protocols.join(","))))
    });
    let names = sorted(ours.values().map(|it| it.join("|")));
    assert_eq!(names, sorted(expected.iter().map(|it| it.1.clone())));

    // The hellos use these QUIC versions, and some hellos take several packets.
    let versions = need!(heard.theirs("udp", "quic.version", &["quic.version"]));
    let number = |ends: &[String; 2]| versions.get(ends).and_then(|it| it[0].split(',').next());
    let numbers: BTreeSet<_> = ours
        .iter()
        .map(|(ends, it)| (number(ends).expect("tshark prints a version"), it.join("|")))
        .collect();
    let wanted = expected.iter().map(|(version, names)| {
        let number = if *version == "1" {
            "0x00000001"
        } else {
            "0x6b3343cf"
        };
        (number, names.clone())
    });
    let wanted: BTreeSet<_> = wanted.collect();
    assert_eq!(numbers, wanted);
    let later = "udp.dstport == 443 && quic.crypto.offset > 0";
    let several = need!(heard.theirs("udp", later, &["quic.crypto.offset"]));
    let is_several = |name: &str| {
        ours.iter()
            .any(|(ends, it)| it[0] == name && several.contains_key(ends))
    };
    assert!(is_several("many.example"), "{several:?}");

    // tshark prints nothing for a hello that it cannot decrypt: some releases implement another
    // version 2, or expect the whole hello in one packet.
    let fields = [
        "tls.handshake.extensions_server_name",
        "tls.handshake.extensions_alpn_str",
    ];
    let theirs = need!(heard.theirs("udp", "quic && tls.handshake.type == 1", &fields));
    let mut names = BTreeSet::new();
    for (ends, fields) in &theirs {
        let fields = vec![fields[0].clone(), cut(&fields[1])];
        assert_eq!(ours.get(ends), Some(&fields), "{ends:?}");
        names.insert(fields[0].clone());
    }
    for must in ["one.example", "six.example"] {
        assert!(names.contains(must), "tshark reads {names:?}");
    }
    skip::say(&format!("of {} hellos tshark reads {names:?}", ours.len()));
    // ja4plus supports only version 1.
    heard.assert_fingerprints("udp", 4);
    let ja4 = heard.theirs(
        "udp",
        "quic && tls.handshake.type == 1",
        &["tls.handshake.ja4"],
    );
    match ja4 {
        Ok(theirs) => {
            let ours = heard.ours("udp", &["ja4"]);
            for (ends, ja4) in &theirs {
                assert_eq!(ours.get(ends), Some(ja4), "{ends:?}");
            }
        }
        Err(reason) => skip::say(&format!("JA4 is not compared: {reason}")),
    }
}
