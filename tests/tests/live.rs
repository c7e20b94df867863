//! Live traffic of ordinary programs, between two namespaces, captured on the far end by way of AF_PACKET.

use rustix::process::Signal;
use std::{collections::BTreeMap, fs, net::IpAddr, path::Path, thread, time::Instant};
use wqcap_tests::{
    Dir, Pair, Program, Running, Wqcap,
    compare::assert_bytes,
    files::Record,
    machine::{
        live::Live,
        netns::{IFACE, Namespace},
    },
    need,
    process::{HANG, TICK},
    skip,
};

/// What the near end's web server listens on.
const HTTP: u16 = 8080;

/// A capture to be, on two queues.
fn capture<'d>(dir: &'d Dir, pair: &Pair) -> Wqcap<'d> {
    let run = Wqcap::run(dir, "live")
        // Room for all of the traffic, on either queue: on a busy machine the NIC, a loop or a disk may not run for a
        // while.
        .model(&format!("af_packet:{IFACE},ring=256MiB"))
        .queues(2)
        .set("capture.ring=32768")
        .set("output.buffer=64MiB");
    Live::on(run, pair)
}

/// Answers some of the numbered datagrams to a port.
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

/// Sends numbered datagrams, over IPv4 and IPv6 in turn, and no more before the last two are answered.
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

/// Sends `count` numbered datagrams to the far end, and waits until they have come there.
fn send_datagrams(pair: &Pair, count: u32, port: u16) {
    // Fewer than wait anywhere on the way: none is lost, however busy the machine is.
    const EVERY: u32 = 50;
    assert!(count.is_multiple_of(EVERY), "the last one is answered");
    let (port, every) = (port.to_string(), EVERY.to_string());
    // While a neighbour is sought the sender keeps a few datagrams only: what it drops then no capture can see.
    for host in ["10.77.0.2", "fd77::2"] {
        let ping = ["-q", "-c", "1", "-W", "60", host];
        let _ = pair.near.program("ping", &ping).run().expect(0);
    }
    let echo = ["-c", ECHO, &port, &every];
    let mut echo = pair.far.program("python3", &echo).start();
    echo.until("it listens", |it| it.stdout().contains("ready"));
    let send = ["-c", SEND, &count.to_string(), &port, &every];
    let _ = pair.near.program("python3", &send).run().expect(0);
}

/// A frame's IP and transport headers, as far as these tests need them.
struct Packet<'r> {
    protocol: u8,
    source: IpAddr,
    /// From the transport header on, to the end that the IP header names.
    transport: &'r [u8],
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
                let length = u16::try_from(transport.len()).expect("a datagram");
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

    /// The sender left checksums to its hardware, as it may on a veth; on a wire they are there.
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

/// The Internet checksum's sum: 0xffff over what is right.
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

/// Starts a web server on the near end, on both IP versions.
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
    server.until("it listens", |_| {
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

/// What the server at `from` has sent to each client port, put together from the captured segments.
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

/// A file that differs everywhere, so that a piece in the wrong place shows.
fn content(size: u32) -> Vec<u8> {
    (0..size / 4)
        .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

#[test]
fn ordinary_traffic_is_captured_whole() {
    let pair = need!(Pair::new());
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
            .program("curl", &["-sS", "-o", got.to_str().expect("plain"), &url])
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
        // Merged segments are split before they come to a NIC.
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
            "the download from {host} cannot be put together: {:?}",
            lengths(&sent)
        );
        // One more came before the datagrams.
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

/// Each of the datagrams 0 to `count` - 1 to `port` was captured, once.
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
    assert_eq!(numbers.len(), count as usize, "datagrams twice");
}

/// The numbers of the datagrams captured, in order of number.
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
        first.unwrap_or_else(|| panic!("no count: {done}"))
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
fn an_interface_that_goes_down_and_up_is_waited_for() {
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
    // IPv6 addresses go with the link, and come back only by hand.
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
fn the_kernel_still_gets_its_frames_and_the_interface_its_settings() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    assert_eq!(pair.far.promiscuity(), 0);
    let run = capture(&dir, &pair);
    let live = Live::start(&run, &pair);
    assert_ne!(
        pair.far.promiscuity(),
        0,
        "a capture sees what is addressed to others too"
    );
    let _ = pair
        .near
        .program("ping", &["-q", "-c", "5", "-i", "0.01", "10.77.0.2"])
        .run()
        .expect(0);
    let _ = run.finished(live.stop().wait(), 0);
    assert_eq!(pair.far.promiscuity(), 0);
}

/// Whether the kernel merges what the interface receives; `None`: it cannot be told or set.
fn merges(end: &Namespace, set: Option<&str>) -> Option<bool> {
    if let Some(value) = set {
        let done = end.program("ethtool", &["-K", IFACE, "gro", value]).run();
        if !done.status.success() {
            return None;
        }
    }
    let done = end.program("ethtool", &["-k", IFACE]).run();
    let is_on = done.stdout.contains("generic-receive-offload: on");
    done.status.success().then_some(is_on)
}

/// The capture has given up the right to change the interface by the time it ends, and a killed one does nothing more.
#[test]
fn merging_is_on_again_after_the_end_and_after_a_kill() {
    let pair = need!(Pair::new());
    if merges(&pair.far, Some("on")).is_none() {
        skip!("ethtool cannot be run, or cannot set GRO");
    }
    let dir = Dir::new();
    for wire in ["af_packet", "af_xdp"] {
        for signal in [Signal::INT, Signal::KILL] {
            let name = format!("{wire}-{}", signal.as_raw());
            let mut run = Wqcap::run(&dir, &name)
                .model(&format!("{wire}:{IFACE}"))
                .queues(1)
                .set("output.format=none")
                .wrapped(&["ip", "netns", "exec", pair.far.name()])
                .start();
            run.until("its first frame can come", |run| {
                run.stderr().contains("capturing mlx5_0")
            });
            assert_eq!(merges(&pair.far, None), Some(false), "{name}");
            run.signal(signal);
            let done = run.wait();
            let began = Instant::now();
            while merges(&pair.far, None) != Some(true) {
                assert!(began.elapsed() < HANG, "{name}: still off: {done}");
                thread::sleep(TICK);
            }
        }
    }
}
