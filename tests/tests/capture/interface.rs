//! Captures of ordinary network interfaces by packet sockets: `wqcap run -i IFACE`, without any RDMA
//! device. tcpdump on the same interface is the judge of time stamps and of numbers.

use rustix::process::Signal;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Done, Pair, Program, Running,
    captures::Captures,
    compare::assert_same,
    ctl::Ctl,
    files::{self, Record},
    machine::netns::IFACE,
    need, skip,
    wqcap::wqcap,
};

/// Python program that sends the frames of a pcap file, of nanosecond or microsecond stamps, over an
/// interface. A frame that the interface refuses as too long is left out. Prints the number sent.
const SEND: &str = "
import socket, struct, sys, time
iface, file = sys.argv[1:]
data = open(file, 'rb').read()
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((iface, 0))
at, sent = 24, 0
while at < len(data):
    kept = struct.unpack('<I', data[at + 8:at + 12])[0]
    try:
        out.send(data[at + 16:at + 16 + kept])
        sent += 1
    except OSError:
        pass
    at += 16 + kept
    if sent % 64 == 0:
        time.sleep(0.001)
print(sent)
";

/// Longest frame that the interfaces take: their MTU and an Ethernet header.
const LONGEST: usize = 1514;
/// Longest frame with a VLAN tag in it.
const LONGEST_TAGGED: usize = LONGEST + 4;

/// Two namespaces whose interfaces carry no frames but those of the tests.
pub(super) fn silent_pair() -> Result<Pair, String> {
    let pair = Pair::new()?;
    for end in [&pair.near, &pair.far] {
        let key = format!("net.ipv6.conf.{IFACE}.disable_ipv6=1");
        let _ = end.program("sysctl", &["-qw", &key]).run().expect(0);
        let off = ["link", "set", IFACE, "arp", "off"];
        let _ = end.program("ip", &off).run().expect(0);
    }
    Ok(pair)
}

/// Capture of the far interface with `args`, and a control socket.
pub(super) struct Interface<'p> {
    pub(super) pair: &'p Pair,
    pub(super) run: Running,
    pub(super) ctl: Ctl,
}

impl<'p> Interface<'p> {
    pub(super) fn start(pair: &'p Pair, dir: &Dir, args: &[&str]) -> Self {
        let socket = dir.join("control.sock");
        let run = wqcap(["run", "-i", IFACE, "--json"])
            .args(args)
            .args(["--set", &format!("control.unix={}", socket.display())])
            .env("RUST_LOG", "info")
            .cwd(dir.path());
        let mut run = pair.far.enter(run).start();
        run.until("the capture is ready", |run| {
            run.stderr().contains(&format!("capturing {IFACE} on"))
        });
        let ctl = Ctl::at(&socket);
        Self { pair, run, ctl }
    }

    /// Sends the frames of a file from the near end, and returns their number.
    pub(super) fn send(&self, file: &Path) -> u64 {
        let file = file.to_str().expect("a plain path");
        let send = self
            .pair
            .near
            .program("python3", &["-c", SEND, IFACE, file]);
        let done = send.run().expect(0);
        done.stdout.trim().parse().expect("a number")
    }

    /// Waits until each of `sent` frames is received or counted as dropped by the sockets, some of
    /// them as dropped, and ends the capture. Its summary must have the same sum.
    pub(super) fn stop_after_drops(self, sent: u64) {
        let Self { mut run, ctl, .. } = self;
        let counts = |it: &serde_json::Value| {
            let dropped = it["nic"]["socket_dropped"].as_u64();
            dropped.zip(it["ledger"]["total"]["received"].as_u64())
        };
        run.until("every frame is received or counted", |_| {
            let (dropped, received) = counts(&ctl.json(&["stats"])).unwrap_or_default();
            received + dropped == sent && dropped > 0
        });
        run.signal(Signal::INT);
        let done = run.wait().expect(0);
        let summary: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        let sum = counts(&summary).map(|(dropped, received)| dropped + received);
        assert_eq!(sum, Some(sent), "{done}");
    }

    /// Waits until the capture has received `count` frames, and ends it.
    pub(super) fn stop_after(mut self, count: u64) -> Done {
        self.ctl.until_counted(&mut self.run, "received", count);
        self.run.signal(Signal::INT);
        self.run.wait().expect(0)
    }
}

/// Writes the frames of all captures that the interface takes into a file. Returns its path and the
/// frames.
pub(super) fn all_that_fit(dir: &Dir) -> (PathBuf, Vec<Vec<u8>>) {
    let is_tagged = |frame: &[u8]| matches!(frame[12..14], [0x81, 0x00] | [0x88, 0xa8]);
    let fits = |frame: &&Vec<u8>| {
        let longest = if is_tagged(frame) {
            LONGEST_TAGGED
        } else {
            LONGEST
        };
        frame.len() > 14 && frame.len() <= longest
    };
    let (_, all) = Captures::find().everything(dir);
    let frames: Vec<_> = all.iter().filter(fits).cloned().collect();
    let input = dir.join("input.pcap");
    files::write(&input, 0, &frames);
    (input, frames)
}

/// Writes `count` numbered frames with payloads of `len` bytes into a file, and returns its path.
pub(super) fn numbered(dir: &Dir, count: u32, len: usize) -> PathBuf {
    let frame = |number: u32| {
        let padding = vec![0; len - 4];
        [&[2; 12][..], &[0x12, 0x34], &number.to_be_bytes(), &padding].concat()
    };
    let file = dir.join("input.pcap");
    files::write(&file, 0, &(0..count).map(frame).collect::<Vec<_>>());
    file
}

pub(super) fn bytes(records: Vec<Record>) -> Vec<Vec<u8>> {
    records.into_iter().map(|record| record.bytes).collect()
}

#[test]
fn every_frame_of_all_captures_arrives_unchanged_and_in_order() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let (input, frames) = all_that_fit(&dir);
    let capture = Interface::start(&pair, &dir, &["-w", "out.pcapng"]);
    let sent = capture.send(&input);
    let done = capture.stop_after(sent);
    assert_eq!(sent, frames.len() as u64, "{done}");
    let file = dir.join("out.pcapng");
    assert_same("frames", &bytes(files::read(&file)), &frames);
    let done = Program::new("capinfos").arg(&file).run().expect(0);
    let facts = done.stdout;
    assert!(facts.contains(&format!("Name = {IFACE}")), "{facts}");
    assert!(
        !facts.contains("ConnectX") && !facts.contains("mlx5"),
        "{facts}"
    );
}

/// A block of a packet socket has thousands of small frames, so that the share of a parser is not
/// measured in blocks.
#[test]
fn parser_threads_take_the_frames_of_whole_blocks() {
    let pair = need!(silent_pair());
    for parsers in ["1", "4"] {
        let dir = Dir::new();
        let parsers = format!("pipeline.parsers_per_queue={parsers}");
        let args = ["--set", "pipeline.mode=fanout", "--set", &parsers];
        let capture = Interface::start(&pair, &dir, &[&args[..], &["-w", "out.pcap"]].concat());
        let sent = capture.send(&numbered(&dir, 3000, 50));
        let done = capture.stop_after(sent);
        let summary: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        let total = &summary["ledger"]["total"];
        assert_eq!(total["captured"], 3000, "{parsers}: {total}");
        assert_eq!(files::read(&dir.join("out.pcap")).len(), 3000);
    }
}

#[test]
fn four_queues_receive_each_frame_once_and_both_directions_of_a_flow_on_one_queue() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let (input, frames) = all_that_fit(&dir);
    let args = [
        "-o",
        "out",
        "--set",
        "capture.queues=4",
        "--set",
        "output.format=pcap",
    ];
    std::fs::create_dir(dir.join("out")).expect("a new folder");
    let capture = Interface::start(&pair, &dir, &args);
    let sent = capture.send(&input);
    let done = capture.stop_after(sent);
    let mut queues: BTreeMap<(u8, [Vec<u8>; 2]), usize> = BTreeMap::new();
    let mut received = Vec::new();
    for entry in std::fs::read_dir(dir.join("out")).expect("a folder") {
        let path = entry.expect("an entry").path();
        let queue = files::queue_of(&path);
        for frame in bytes(files::read(&path)) {
            // Whole IPv4 packets of UDP and TCP without options: the kernel hashes their ports.
            if frame.len() >= 38
                && frame[12..15] == [8, 0, 0x45]
                && matches!(frame[23], 6 | 17)
                && frame[20] & 0x3f == 0
            {
                let mut ends = [
                    [&frame[26..30], &frame[34..36]].concat(),
                    [&frame[30..34], &frame[36..38]].concat(),
                ];
                ends.sort();
                let first = *queues.entry((frame[23], ends.clone())).or_insert(queue);
                assert_eq!(first, queue, "{ends:?}");
            }
            received.push(frame);
        }
    }
    let mut wanted = frames;
    wanted.sort();
    received.sort();
    assert_same("frames", &received, &wanted);
    let used: BTreeSet<_> = queues.values().collect();
    assert_eq!(used.len(), 4, "{done}");
}

/// tcpdump gets its stamps from the same kernel, which stamps a frame once for all sockets.
#[test]
fn time_stamps_are_those_of_the_kernel() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let input = numbered(&dir, 200, 64);
    let dump = dir.join("tcpdump.pcap");
    let mut tcpdump = pair.far.program(
        "tcpdump",
        &["-i", IFACE, "--time-stamp-precision=nano", "-U", "-w"],
    );
    tcpdump = tcpdump.arg(&dump);
    let mut tcpdump = tcpdump.start();
    tcpdump.until("tcpdump listens", |it| it.stderr().contains("listening on"));
    let capture = Interface::start(&pair, &dir, &["-w", "out.pcapng"]);
    let sent = capture.send(&input);
    let _ = capture.stop_after(sent);
    tcpdump.until("tcpdump has all frames", |_| {
        files::read_as_it_stands(&dump).len() == 200
    });
    tcpdump.signal(Signal::INT);
    let _ = tcpdump.wait();
    let stamps =
        |path: &Path| -> Vec<u64> { files::read(path).iter().map(|record| record.ts).collect() };
    assert_same("stamps", &stamps(&dir.join("out.pcapng")), &stamps(&dump));
}

#[test]
fn promiscuous_mode_and_sockets_end_with_a_killed_run() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    assert_eq!(pair.far.promiscuity(), 0);
    let capture = Interface::start(&pair, &dir, &["--set", "output.format=none"]);
    assert_eq!(pair.far.promiscuity(), 1);
    capture.run.signal(Signal::KILL);
    let _ = capture.run.wait();
    assert_eq!(pair.far.promiscuity(), 0);
    let capture = Interface::start(&pair, &dir, &["-p", "--set", "output.format=none"]);
    assert_eq!(pair.far.promiscuity(), 0);
    let _ = capture.stop_after(0);
}

/// A stopped process polls nothing, so that the ring overflows.
#[test]
fn frames_without_room_in_the_ring_are_counted() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let input = numbered(&dir, 60_000, 1404);
    let capture = Interface::start(&pair, &dir, &["--set", "output.format=none"]);
    capture.run.signal(Signal::STOP);
    let sent = capture.send(&input);
    capture.run.signal(Signal::CONT);
    capture.stop_after_drops(sent);
}

#[test]
fn an_interface_that_goes_down_and_up_is_an_outage_and_a_deleted_one_ends_the_run() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let input = numbered(&dir, 10, 64);
    let mut capture = Interface::start(&pair, &dir, &["-w", "out.pcapng"]);
    assert_eq!(capture.send(&input), 10);
    capture.ctl.until_counted(&mut capture.run, "received", 10);
    for (state, says) in [("down", "port 1 went down"), ("up", "port 1 came up")] {
        let set = ["link", "set", IFACE, state];
        let _ = pair.far.program("ip", &set).run().expect(0);
        capture.run.until(says, |run| run.stderr().contains(says));
    }
    // The sender's interface takes a moment until it sends again.
    wqcap_tests::machine::netns::until_it_sends(pair.near.name(), IFACE).expect("comes up");
    assert_eq!(capture.send(&input), 10);
    capture.ctl.until_counted(&mut capture.run, "received", 20);
    pair.far.delete_interface();
    let done = capture.run.wait().expect(1);
    done.says(&["the device was lost: the network interface was removed"]);
    let summary: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(summary["end"], "device_lost", "{done}");
    assert_eq!(summary["ledger"]["total"]["captured"], 20, "{done}");
}

#[test]
fn a_capture_is_drained_stopped_and_started_again_inside_its_sandbox() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let input = numbered(&dir, 10, 64);
    let args = ["-w", "out.pcapng", "--set", "process.sandbox=require"];
    let mut capture = Interface::start(&pair, &dir, &args);
    for (command, receives) in [
        ("drain", false),
        ("start", true),
        ("stop", false),
        ("start", true),
    ] {
        let done = capture.ctl.run(&[command]);
        assert_eq!(capture.send(&input), 10, "{done}");
        if receives {
            // A capture that is started counts from 0; the summary has the sum.
            let received = capture.ctl.until_counted(&mut capture.run, "received", 10);
            assert_eq!(received, 10, "{done}");
        }
    }
    let done = capture.stop_after(10);
    let summary: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(summary["ledger"]["total"]["captured"], 20, "{done}");
}

#[test]
fn what_an_interface_cannot_do_is_refused_with_a_remedy() {
    let pair = need!(silent_pair());
    let tun = ["tuntap", "add", "tun0", "mode", "tun"];
    let _ = pair.far.program("ip", &tun).run().expect(0);
    for (args, says) in [
        (
            &["-i", "none0"][..],
            "-i none0: there is no such device or interface",
        ),
        (
            &["--set", "device.netdev=none0"],
            "device.netdev = \"none0\": there is no such network interface",
        ),
        (
            &["-i", "tun0"],
            "has hardware type 65534 and no Ethernet header; capture it with tcpdump -i tun0",
        ),
        (
            &["-i", IFACE, "--set", "capture.mode=sniffer"],
            "capture.mode = \"sniffer\": veth0 is captured by packet sockets",
        ),
        (
            &["-i", IFACE, "--set", "rss.inner=true"],
            "rss: veth0 is captured by packet sockets",
        ),
        (
            &["-i", IFACE, "--set", "device.backend=mlx5"],
            "there is no RDMA device on this machine",
        ),
        (
            &["-i", IFACE, "--set", "capture.queues=257"],
            "supports 1 to 256",
        ),
    ] {
        let run = wqcap(["run", "--set", "output.format=none", "--duration", "1"]).args(args);
        let done = pair.far.enter(run).run().expect(2);
        done.says(&[says]);
        assert_eq!(done.stderr.matches("error: ").count(), 1, "{done}");
    }
    let run = wqcap([
        "run",
        "-i",
        IFACE,
        "--set",
        "output.format=none",
        "--duration",
        "1",
    ])
    .wrapped(["setpriv", "--reuid=65534", "--clear-groups"]);
    let done = pair.far.enter(run).run().expect(2);
    done.says(&["cannot create a packet socket", "grant CAP_NET_RAW"]);
}

#[test]
fn an_interface_with_an_odd_name_does_not_hide_the_others() {
    let pair = need!(silent_pair());
    let far = &pair.far;
    // The second name has a character that a string of TOML cannot have.
    let line = "ip link add $'n\\xff' type veth peer name n0; ip link add $'d\\x7f' type veth peer name d0; ip link set $'d\\x7f' up";
    let _ = far.program("bash", &["-c", line]).run().expect(0);
    let listed = far.enter(wqcap(["devices"])).run().expect(0);
    assert!(listed.stdout.contains(IFACE), "{listed}");
    let check = |name| {
        let check = ["check", "-i", name, "--set", "output.format=none"];
        far.enter(wqcap(check)).run().expect(0)
    };
    let _ = check(IFACE);
    check("any").says(&[r#""n\xFF" is left out: its name is not UTF-8"#]);
}

/// Python program that sends a megabyte over TCP to itself through the loopback interface.
const STREAM: &str = "
import socket, threading
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
other = server.accept()[0]
threading.Thread(target=client.sendall, args=(bytes(1 << 20),)).start()
left = 1 << 20
while left:
    left -= len(other.recv(left))
";

/// The loopback interface carries TCP in super-frames, unless its offloads are off.
#[test]
fn super_frames_are_recorded_and_counted() {
    let pair = need!(silent_pair());
    let mtu = ["link", "set", "lo", "mtu", "1500"];
    let _ = pair.far.program("ip", &mtu).run().expect(0);
    for offloads in ["on", "off"] {
        let set = [
            "-K", "lo", "tso", offloads, "gso", offloads, "gro", offloads,
        ];
        let _ = pair.far.program("ethtool", &set).run().expect(0);
        let dir = Dir::new();
        let run = wqcap(["run", "-i", "lo", "-w", "out.pcapng", "--json"]).cwd(dir.path());
        let mut run = pair.far.enter(run).start();
        run.until("the capture is ready", |run| {
            run.stderr().contains("capturing lo on")
        });
        let _ = pair.far.program("python3", &["-c", STREAM]).run().expect(0);
        run.signal(Signal::INT);
        let done = run.wait().expect(0);
        let records = files::read(&dir.join("out.pcapng"));
        let long = records.iter().filter(|it| it.bytes.len() > LONGEST).count();
        let summary: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        let notes = summary["notes"].to_string();
        if offloads == "off" {
            assert!(long == 0 && !notes.contains("super-frames"), "{done}");
            continue;
        }
        assert!(long > 0, "{done}");
        let counted = format!("lo: {long} super-frames");
        let remedy = "`ethtool -K lo gro off lro off tso off gso off`";
        assert!(notes.contains(&counted) && notes.contains(remedy), "{done}");
    }
}

/// Python program that sends 32 MiB over TCP and IPv6 to itself through the loopback interface.
const LARGE_STREAM: &str = "
import socket, threading
size = 32 << 20
server = socket.create_server(('::1', 0), family=socket.AF_INET6)
client = socket.create_connection(server.getsockname()[:2])
other = server.accept()[0]
threading.Thread(target=client.sendall, args=(bytes(size),)).start()
while size:
    size -= len(other.recv(min(size, 4 << 20)))
";

/// With BIG TCP, the kernel has super-frames that no block of a packet socket's ring holds.
#[test]
fn super_frames_longer_than_a_block_are_counted_and_explained() {
    let pair = need!(silent_pair());
    let large = ["link", "set", "lo", "gso_max_size", "500000"];
    if pair.far.program("ip", &large).run().status.code() != Some(0) {
        skip!("this kernel or its `ip` has no BIG TCP on the loopback interface");
    }
    let dir = Dir::new();
    let run = wqcap(["run", "-i", "lo", "-w", "out.pcapng", "--json"]).cwd(dir.path());
    let mut run = pair.far.enter(run).start();
    run.until("the capture is ready", |run| {
        run.stderr().contains("capturing lo on")
    });
    let stream = pair.far.program("python3", &["-c", LARGE_STREAM]);
    let _ = stream.run().expect(0);
    run.signal(Signal::INT);
    let done = run.wait().expect(0);
    let summary: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    let total = &summary["ledger"]["total"];
    let count = |line: &str| total[line].as_u64().expect("a number");
    assert!(count("errors") > 0, "{done}");
    assert_eq!(count("received"), count("captured") + count("errors"));
    let frames = files::read(&dir.join("out.pcapng")).len() as u64;
    assert_eq!(frames, count("captured"));
    let said = format!("lo: {} frames are not recorded", count("errors"));
    let notes = summary["notes"].to_string();
    assert!(notes.contains(&said), "{said}: {notes}");
}

#[test]
fn the_loopback_interface_shows_each_frame_once() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let run = wqcap(["run", "-i", "lo", "-w", "out.pcapng", "--count", "20"]).cwd(dir.path());
    let mut run = pair.far.enter(run).start();
    run.until("the capture is ready", |run| {
        run.stderr().contains("capturing lo on")
    });
    let ping = ["-q", "-c", "10", "-i", "0.01", "127.0.0.1"];
    let _ = pair.far.program("ping", &ping).run().expect(0);
    let _ = run.wait().expect(0);
    let done = Program::new("tshark")
        .args([
            "-r",
            "out.pcapng",
            "-T",
            "fields",
            "-e",
            "icmp.type",
            "-e",
            "icmp.seq",
        ])
        .cwd(dir.path())
        .run()
        .expect(0);
    let mut lines: Vec<_> = done.stdout.lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 20, "ten requests and ten answers: {done}");
}
