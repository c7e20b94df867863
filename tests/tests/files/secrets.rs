//! Tests of TLS secrets in captures: `merge --inject-secrets` writes them; `merge`, `extract` and
//! `recover` keep them; tshark decrypts with them.

use std::{fs, path::Path};
use wqcap_tests::{
    Dir, Pair, Program, Wqcap,
    machine::{certificate::certificate, live::Live, netns::IFACE},
    need,
    oracles::capinfos,
    wqcap::wqcap,
};

/// Python program that runs a TLS client and a TLS server in memory, without a network. It writes
/// their data as TCP segments into a pcap file, and their secrets into a key log.
const HANDSHAKE_PROGRAM: &str = "
import ssl, struct, sys
certificate, key, keylog, out = sys.argv[1:]
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain(certificate, key)
client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
client.keylog_filename = keylog
# Each end has one buffer per direction; pump() carries the data between the ends.
bios = [(ssl.MemoryBIO(), ssl.MemoryBIO()) for _ in range(2)]
ends = [client.wrap_bio(*bios[0]), server.wrap_bio(*bios[1], server_side=True)]
sequence, clock = [1000, 5000], [0]
pcap = open(out, 'wb')
pcap.write(struct.pack('<IHHiIII', 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))

def segment(end, payload, flags):
    ports, hosts = (40000, 443), (b'\\x0a\\x00\\x00\\x01', b'\\x0a\\x00\\x00\\x02')
    tcp = struct.pack('>HHIIBBHHH', ports[end], ports[1 - end], sequence[end],
                      sequence[1 - end] if flags & 16 else 0, 5 << 4, flags, 65535, 0, 0) + payload
    ip = struct.pack('>BBHHHBBH', 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + hosts[end] + hosts[1 - end]
    frame = b'\\x02\\0\\0\\0\\0\\x01' + b'\\x02\\0\\0\\0\\0\\x02' + b'\\x08\\x00' + ip + tcp
    clock[0] += 10
    pcap.write(struct.pack('<IIII', 1700000000, clock[0], len(frame), len(frame)) + frame)
    sequence[end] += len(payload) + (1 if flags & 2 else 0)

def pump():
    for end in (0, 1):
        while data := bios[end][1].read(1400):
            segment(end, data, 24)
            bios[1 - end][0].write(data)

for end, flags in ((0, 2), (1, 18), (0, 16)):
    segment(end, b'', flags)
waiting = {0, 1}
while waiting:
    for end in sorted(waiting):
        try:
            ends[end].do_handshake()
            waiting.discard(end)
        except ssl.SSLWantReadError:
            pass
        pump()
ends[0].write(b'GET /a-secret-path HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n')
pump()
ends[1].read(1000)
ends[1].write(b'HTTP/1.1 204 No Content\\r\\n\\r\\n')
pump()
";

/// Returns the HTTP request URIs that tshark finds in a file, one per line.
fn requests(file: &Path) -> String {
    let fields = [
        "-Y",
        "http.request",
        "-T",
        "fields",
        "-e",
        "http.request.uri",
    ];
    let done = Program::new("tshark")
        .arg("-r")
        .arg(file)
        .args(fields)
        .run();
    done.expect(0).stdout.trim().to_owned()
}

#[test]
fn tshark_decrypts_the_output_of_merge_extract_and_recover() {
    let dir = Dir::new();
    let at = |name: &str| dir.join(name);
    let [log, plain] = ["secrets.log", "tls.pcap"].map(at);
    let [certificate, key] = certificate(&dir);
    let _ = Program::new("python3")
        .args(["-c", HANDSHAKE_PROGRAM])
        .args([&certificate, &key, &log, &plain])
        .run()
        .expect(0);
    assert_eq!(requests(&plain), "");

    let merged = at("merged.pcapng");
    let inject = |log: &Path, out: &Path| {
        let merge = wqcap(["merge", "--inject-secrets"]).arg(log).arg("-o");
        merge.arg(out).arg(&plain).run()
    };
    let _ = inject(&log, &merged).expect(0);
    assert_eq!(requests(&merged), "/a-secret-path");
    let frames = capinfos::frames(&plain);
    assert_eq!(capinfos::frames(&merged), frames);

    // A browser is writing the last line of its log.
    let growing = at("growing.log");
    let mut text = fs::read(&log).expect("the log can be read");
    text.extend_from_slice(b"CLIENT_RANDOM 0011");
    fs::write(&growing, text).expect("the log can be written");
    let with_note = at("with-note.pcapng");
    inject(&growing, &with_note).expect(0).says(&[
        "note: --inject-secrets",
        "growing.log",
        "1 line left out",
    ]);
    assert_eq!(requests(&with_note), "/a-secret-path");

    // The secrets survive a second merge, an extraction, and the recovery of an unfinished file.
    let again = at("again.pcapng");
    let _ = wqcap(["merge", "-o"])
        .arg(&again)
        .arg(&merged)
        .run()
        .expect(0);
    assert_eq!(requests(&again), "/a-secret-path");
    assert_eq!(capinfos::frames(&again), frames);
    let folder = dir.folder("folder");
    fs::copy(&merged, folder.join("merged.pcapng")).expect("the file can be copied");
    let extracted = at("extracted.pcapng");
    let extract = wqcap(["extract"]).arg(&folder).arg("-o").arg(&extracted);
    let _ = extract.run().expect(0);
    assert_eq!(requests(&extracted), "/a-secret-path");
    assert_eq!(capinfos::frames(&extracted), frames);
    let torn = dir.folder("torn");
    let whole = fs::read(&merged).expect("the file can be read");
    fs::write(
        torn.join("wqcap-q00-1.pcapng.part"),
        &whole[..whole.len() - 3],
    )
    .expect("the file can be written");
    let _ = wqcap(["recover"]).arg(&torn).run().expect(0);
    assert_eq!(requests(&torn.join("wqcap-q00-1.pcapng")), "/a-secret-path");

    // Mistakes are reported before any output is written.
    let pcap = at("merged.pcap");
    inject(&log, &pcap)
        .expect(2)
        .says(&["pcap cannot hold", ".pcapng"]);
    inject(&key, &at("no.pcapng"))
        .expect(2)
        .says(&["--inject-secrets", "line 1", "SSLKEYLOGFILE"]);
    inject(&at("missing"), &at("no.pcapng")).expect(2).says(&[
        "--inject-secrets",
        "missing",
        "No such file",
    ]);
    assert!(!pcap.exists() && !at("no.pcapng").exists());
    let _ = wqcap(["merge", "-o"])
        .arg(&pcap)
        .arg(&merged)
        .run()
        .expect(0);
    assert_eq!(requests(&pcap), "");
}

/// OpenSSL clients and a server exchange data on a live interface with TLS 1.3 and TLS 1.2.
#[test]
fn tshark_decrypts_openssl_traffic_from_a_live_interface() {
    let pair = need!(Pair::without_offloads());
    let dir = Dir::new();
    let [certificate, key] = certificate(&dir);
    let server = Program::new("openssl")
        .args(["s_server", "-www", "-accept", "10.77.0.2:443", "-cert"])
        .arg(&certificate)
        .arg("-key")
        .arg(&key);
    let mut server = pair.far.enter(server).start();
    server.until("the server listens", |it| it.stdout().contains("ACCEPT"));
    let run = Wqcap::run(&dir, "live")
        .model(&format!("af_packet:{IFACE}"))
        .queues(1)
        .set("capture.mode=sniffer")
        .set("capture.ring=4096")
        .set("output.format=pcapng");
    let run = Live::on(run, &pair);
    let live = Live::start(&run, &pair);
    let log = dir.join("secrets.log");
    for version in ["-tls1_3", "-tls1_2"] {
        let client = Program::new("openssl")
            .args(["s_client", "-connect", "10.77.0.2:443", "-ign_eof"])
            .args([version, "-keylogfile"])
            .arg(&log);
        let mut client = pair.near.enter(client).told().start();
        client.tell(&format!("GET /live{version} HTTP/1.0\r\n\r"));
        let _ = client.wait().expect(0);
    }
    let finished = run.finished(live.stop().wait(), 0);
    drop(server);
    let captured = &finished.files()[0].1;
    assert_eq!(requests(captured), "");
    let merged = dir.join("merged.pcapng");
    let merge = wqcap(["merge", "--inject-secrets"]).arg(&log).arg("-o");
    let _ = merge.arg(&merged).arg(captured).run().expect(0);
    assert_eq!(requests(&merged), "/live-tls1_3\n/live-tls1_2");
    let frames = finished.summary.ledger.total.captured;
    assert_eq!(capinfos::frames(&merged), frames);
}
