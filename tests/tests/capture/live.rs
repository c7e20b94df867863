//! Live traffic of ordinary programs between two network namespaces, captured on the far end by a
//! software NIC on AF_PACKET.

use std::{collections::BTreeMap, fs, net::IpAddr, path::Path};
use wqcap_tests::{
    Dir, Pair, Program, Running, Wqcap,
    compare::assert_bytes,
    files::Record,
    machine::{
        live::Live,
        netns::{IFACE, Namespace},
    },
    need,
};

/// TCP port of the web server on the near end.
const HTTP: u16 = 8080;

/// Returns a capture of the far end on two queues, not started yet.
fn capture<'d>(dir: &'d Dir, pair: &Pair) -> Wqcap<'d> {
    let run = Wqcap::run(dir, "live")
        // Either queue has room for all of the traffic: on a busy machine the NIC, a loop or a disk
        // may be delayed.
        .model(&format!("af_packet:{IFACE},ring=256MiB"))
        .queues(2)
        .set("capture.ring=32768")
        .set("output.buffer=64MiB");
    Live::on(run, pair)
}

/// Python program that answers the last two of every N numbered datagrams to a port.
const ECHO: &str = "
import select, socket, struct, sys
port, every = int(sys.argv[1]), int(sys.argv[2])
there = [socket.socket(family, socket.SOCK_DGRAM) for family in (socket.AF_INET, socket.AF_INET6)]
there[1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
for it, host in zip(there, ('10.77.0.2', 'fd77::2')):
    it.bind((host, port))
print('ready', flush=True)
while True:
    for it in select.select(there, [], [])[0]:
        data, sender = it.recvfrom(2048)
        if struct.unpack('<I', data[5:9])[0] % every >= every - 2:
            it.sendto(data[5:9], sender)
";

/// Python program that sends numbered datagrams, alternately over IPv4 and IPv6. After every N of
/// them it waits until the last two are answered.
const SEND: &str = "
import socket, struct, sys
count, port, every = (int(it) for it in sys.argv[1:])
to = [(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), '10.77.0.2'), (socket.socket(socket.AF_INET6, socket.SOCK_DGRAM), 'fd77::2')]
for i in range(count):
    sender, host = to[i % 2]
    sender.sendto(b'wqcap' + struct.pack('<I', i) + bytes(i % 1000), (host, port))
    if i % every == every - 1:
        for sender, _ in to:
            sender.recv(16)
";

/// Sends `count` numbered datagrams to the far end, and waits until they have arrived.
fn send_datagrams(pair: &Pair, count: u32, port: u16) {
    // Fewer datagrams than any buffer on the path holds: none is lost, even on a busy machine.
    const EVERY: u32 = 50;
    assert!(
        count.is_multiple_of(EVERY),
        "`count` is a multiple of {EVERY}, so that the last datagram is answered"
    );
    let (port, every) = (port.to_string(), EVERY.to_string());
    // During neighbour resolution the sender's kernel queues only a few datagrams, and drops the
    // others before they are on the wire. A ping resolves the neighbour first.
    for host in ["10.77.0.2", "fd77::2"] {
        let ping = ["-q", "-c", "1", "-W", "60", host];
        let _ = pair.near.program("ping", &ping).run().expect(0);
    }
    let echo = ["-c", ECHO, &port, &every];
    let mut echo = pair.far.program("python3", &echo).start();
    echo.until("the echo program listens", |it| {
        it.stdout().contains("ready")
    });
    let send = ["-c", SEND, &count.to_string(), &port, &every];
    let _ = pair.near.program("python3", &send).run().expect(0);
}

/// IP and transport fields of a frame that these tests need.
struct Packet<'r> {
    protocol: u8,
    source: IpAddr,
    /// Transport header and payload, up to the length in the IP header.
    transport: &'r [u8],
    /// Pseudo-header of the transport checksum.
    pseudo_header: Vec<u8>,
}

impl<'r> Packet<'r> {
    fn parse(frame: &'r [u8]) -> Option<Self> {
        let packet = &frame[14..];
        match frame[12..14] {
            [0x08, 0x00] => {
                let header = usize::from(packet[0] & 15) * 4;
                let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
                let transport = &packet[header..total];
                let length =
                    u16::try_from(transport.len()).expect("the packet's length has 16 bits");
                let pseudo_header =
                    [&packet[12..20], &[0, packet[9]], &length.to_be_bytes()].concat();
                assert_eq!(sum(&packet[..header]), 0xffff, "IPv4 header checksum");
                let source: [u8; 4] = packet[12..16].try_into().expect("four bytes");
                Some(Self {
                    protocol: packet[9],
                    source: source.into(),
                    transport,
                    pseudo_header,
                })
            }
            [0x86, 0xdd] => {
                let length = u16::from_be_bytes([packet[4], packet[5]]);
                let transport = &packet[40..40 + usize::from(length)];
                let pseudo_header = [
                    &packet[8..40],
                    &[0, 0],
                    &length.to_be_bytes(),
                    &[0, 0, 0, packet[6]],
                ]
                .concat();
                let source: [u8; 16] = packet[8..24].try_into().expect("sixteen bytes");
                Some(Self {
                    protocol: packet[6],
                    source: source.into(),
                    transport,
                    pseudo_header,
                })
            }
            _ => None,
        }
    }

    fn port(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.transport[at], self.transport[at + 1]])
    }

    /// Asserts that the transport checksum is correct.
    fn assert_checksum(&self) {
        if matches!(self.protocol, 6 | 17 | 58) {
            let all = [&self.pseudo_header, self.transport].concat();
            assert_eq!(
                sum(&all),
                0xffff,
                "checksum of protocol {} from {}",
                self.protocol,
                self.source
            );
        }
        if self.protocol == 1 {
            assert_eq!(
                sum(self.transport),
                0xffff,
                "checksum of ICMP from {}",
                self.source
            );
        }
    }
}

/// Returns the one's complement sum of the Internet checksum: 0xffff if the checksum is correct.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

/// Starts a web server for `folder` on the near end, over IPv4 and IPv6.
fn serve(near: &Namespace, folder: &Path) -> Running {
    let port = HTTP.to_string();
    let server = near.program(
        "python3",
        &[
            "-m",
            "http.server",
            &port,
            "--bind",
            "::",
            "--protocol",
            "HTTP/1.1",
        ],
    );
    let mut server = server.cwd(folder).start();
    server.until("the web server listens", |_| {
        let probe = near
            .program(
                "curl",
                &["-s", "-o", "/dev/null", &format!("http://[::1]:{HTTP}/")],
            )
            .run();
        probe.status.success()
    });
    server
}

/// Reassembles the TCP streams that the web server at `from` sent, by client port.
fn streams(queues: &[Vec<Record>], from: IpAddr) -> BTreeMap<u16, Vec<u8>> {
    let mut starts = BTreeMap::new();
    let mut streams: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
    let packets: Vec<_> = queues
        .iter()
        .flatten()
        .filter_map(|record| Packet::parse(&record.bytes))
        .collect();
    let segments = || {
        packets
            .iter()
            .filter(|p| p.protocol == 6 && p.source == from && p.port(0) == HTTP)
    };
    let number =
        |p: &Packet<'_>| u32::from_be_bytes(p.transport[4..8].try_into().expect("four bytes"));
    for syn in segments().filter(|p| p.transport[13] & 2 != 0) {
        starts.insert(syn.port(2), number(syn).wrapping_add(1));
    }
    for segment in segments().filter(|p| p.transport[13] & 2 == 0) {
        let Some(start) = starts.get(&segment.port(2)) else {
            continue;
        };
        let payload = &segment.transport[usize::from(segment.transport[12] >> 4) * 4..];
        let at = number(segment).wrapping_sub(*start) as usize;
        let stream = streams.entry(segment.port(2)).or_default();
        if stream.len() < at + payload.len() {
            stream.resize(at + payload.len(), 0);
        }
        stream[at..at + payload.len()].copy_from_slice(payload);
    }
    streams
}

/// Returns file content without repetitions, so that a misplaced piece is detected.
fn content(size: u32) -> Vec<u8> {
    (0..size / 4)
        .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

#[test]
fn ordinary_traffic_is_captured_completely() {
    let pair = need!(Pair::without_offloads());
    let dir = Dir::new();
    let (folder, file) = (dir.folder("www"), content(4 << 20));
    fs::write(folder.join("file"), &file).expect("room for a file");
    let server = serve(&pair.near, &folder);

    let run = capture(&dir, &pair);
    let live = Live::start(&run, &pair);
    for host in ["10.77.0.2", "fd77::2"] {
        let ping = ["-q", "-c", "20", "-i", "0.01", host];
        let _ = pair.near.program("ping", &ping).run().expect(0);
    }
    for host in ["10.77.0.1", "[fd77::1]"] {
        let got = dir.join("got");
        let url = format!("http://{host}:{HTTP}/file");
        let _ = pair
            .far
            .program(
                "curl",
                &["-sS", "-o", got.to_str().expect("the path is UTF-8"), &url],
            )
            .run()
            .expect(0);
        assert_bytes("download", &fs::read(&got).expect("downloaded"), &file);
    }
    send_datagrams(&pair, 2000, 5353);
    let finished = run.finished(live.stop().wait(), 0);
    drop(server);

    let summary = &finished.summary;
    assert_eq!(summary.nic("wire_dropped"), 0, "{}", finished.done);
    assert_eq!(summary.nic("out_of_buffer"), 0, "{}", finished.done);
    let total = summary.ledger.total;
    assert_eq!(
        total.captured + total.filtered,
        total.received,
        "{}",
        finished.done
    );
    assert_eq!(count_by_tcpdump(&finished), summary.ledger.total.captured);

    let queues = finished.records();
    for record in queues.iter().flatten() {
        assert!(
            record.bytes.len() <= 1514,
            "a frame of {} bytes at an MTU of 1500",
            record.bytes.len()
        );
        if let Some(packet) = Packet::parse(&record.bytes) {
            packet.assert_checksum();
        }
    }
    for host in ["10.77.0.1", "fd77::1"] {
        let from: IpAddr = host.parse().expect("an address");
        let sent = streams(&queues, from);
        let complete = sent
            .values()
            .filter(|stream| stream.ends_with(&file))
            .count();
        assert_eq!(
            complete,
            1,
            "the download from {host} is captured once and completely; stream lengths: {:?}",
            lengths(&sent)
        );
        // 20 pings of this test, and one of `send_datagrams`.
        assert_eq!(echo_requests(&queues, from), 21, "pings from {host}");
    }
    assert_datagrams(&queues, 5353, 2000);
}

fn lengths(streams: &BTreeMap<u16, Vec<u8>>) -> Vec<usize> {
    streams.values().map(Vec::len).collect()
}

fn echo_requests(queues: &[Vec<Record>], from: IpAddr) -> usize {
    let packets = queues
        .iter()
        .flatten()
        .filter_map(|record| Packet::parse(&record.bytes));
    packets
        .filter(|p| p.source == from && matches!((p.protocol, p.transport[0]), (1, 8) | (58, 128)))
        .count()
}

/// Asserts that each of the datagrams 0 to `count` - 1 to `port` was captured exactly once.
fn assert_datagrams(queues: &[Vec<Record>], port: u16, count: u32) {
    let numbers = datagrams(queues, port);
    let missing: Vec<_> = (0..count)
        .filter(|number| numbers.binary_search(number).is_err())
        .collect();
    assert!(
        missing.is_empty(),
        "{} of {count} datagrams are missing, the first is {}",
        missing.len(),
        missing[0]
    );
    assert_eq!(
        numbers.len(),
        count as usize,
        "no datagram is captured twice"
    );
}

/// Returns the sorted numbers of the captured datagrams to `port`.
fn datagrams(queues: &[Vec<Record>], port: u16) -> Vec<u32> {
    let packets = queues
        .iter()
        .flatten()
        .filter_map(|record| Packet::parse(&record.bytes));
    let ours = packets.filter(|p| {
        p.protocol == 17 && p.port(2) == port && p.transport[8..].starts_with(b"wqcap")
    });
    let mut numbers: Vec<_> = ours
        .map(|p| u32::from_le_bytes(p.transport[13..17].try_into().expect("four bytes")))
        .collect();
    numbers.sort_unstable();
    numbers
}

fn count_by_tcpdump(finished: &wqcap_tests::Finished) -> u64 {
    let count = |(_, path): (usize, std::path::PathBuf)| -> u64 {
        let done = Program::new("tcpdump")
            .args(["-n", "--count", "-r"])
            .arg(path)
            .run()
            .expect(0);
        let first = done
            .stdout
            .split_whitespace()
            .next()
            .and_then(|number| number.parse().ok());
        first.unwrap_or_else(|| panic!("tcpdump prints no count: {done}"))
    };
    finished.files().into_iter().map(count).sum()
}

#[test]
fn an_interface_that_is_deleted_ends_the_run_in_order() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    let run = capture(&dir, &pair);
    let mut live = Live::start(&run, &pair);
    send_datagrams(&pair, 500, 5353);
    live.until_all_came();
    pair.far.delete_interface();
    let finished = run.finished(live.run.wait(), 1);
    finished.done.says(&["the device was lost"]);
    assert_eq!(
        finished.summary.json["end"], "device_lost",
        "{}",
        finished.done
    );
    assert_datagrams(&finished.records(), 5353, 500);
    assert_eq!(
        count_by_tcpdump(&finished),
        finished.summary.ledger.total.captured
    );
}

#[test]
fn a_capture_survives_an_interface_that_goes_down_and_up() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    let run = capture(&dir, &pair);
    let mut live = Live::start(&run, &pair);
    send_datagrams(&pair, 200, 5353);
    live.until_all_came();
    for state in ["down", "up"] {
        let set = ["link", "set", IFACE, state];
        let _ = pair.far.program("ip", &set).run().expect(0);
        assert_eq!(live.ctl.capture()["state"], "running");
    }
    // The kernel removes IPv6 addresses when the link goes down, and does not restore them.
    let _ = pair
        .far
        .program(
            "ip",
            &["addr", "replace", "fd77::2/64", "dev", IFACE, "nodad"],
        )
        .run()
        .expect(0);
    send_datagrams(&pair, 200, 5354);
    let finished = run.finished(live.stop().wait(), 0);
    let records = finished.records();
    assert_datagrams(&records, 5353, 200);
    assert_datagrams(&records, 5354, 200);
}

#[test]
fn the_kernel_still_receives_frames_and_promiscuous_mode_ends_with_the_run() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    assert_eq!(pair.far.promiscuity(), 0);
    let run = capture(&dir, &pair);
    let live = Live::start(&run, &pair);
    assert_ne!(
        pair.far.promiscuity(),
        0,
        "the interface is promiscuous during the capture"
    );
    let _ = pair
        .near
        .program("ping", &["-q", "-c", "5", "-i", "0.01", "10.77.0.2"])
        .run()
        .expect(0);
    let _ = run.finished(live.stop().wait(), 0);
    assert_eq!(pair.far.promiscuity(), 0);
}
