//! Captures of ordinary network interfaces by AF_XDP sockets (`device.backend = "af_xdp"`).

use super::interface::{Interface, all_that_fit, bytes, numbered, silent_pair};
use rustix::process::Signal;
use std::{
    collections::BTreeSet,
    path::Path,
    thread,
    time::{Duration, Instant, SystemTime},
};
use wqcap_tests::{
    Dir, Done, Pair, Program, Running,
    compare::assert_same,
    files,
    machine::{
        netns::{IFACE, Namespace},
        privileges::{NET_RAW, NONE, as_nobody},
    },
    need,
    process::TICK,
    wqcap::wqcap,
};

/// Setting of all captures.
const XDP: [&str; 2] = ["--set", "device.backend=af_xdp"];
/// Setting of captures without files.
const NO_FILES: [&str; 2] = ["--set", "output.format=none"];
/// Ethertype of numbered frames.
const NUMBERED: &str = "0x1234";

/// Python program that counts the frames of an ethertype that the kernel receives, and prints their
/// number so far for each line of its standard input.
const COUNT: &str = "
import socket, sys, threading
iface, ethertype = sys.argv[1:]
frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(int(ethertype, 0)))
frames.bind((iface, int(ethertype, 0)))
frames.settimeout(0.1)
print('ready', flush=True)
count = 0
for line in sys.stdin:
    try:
        while frames.recv(2048):
            count += 1
    except TimeoutError:
        pass
    print('count', count, line.strip(), flush=True)
";

/// Program in the captured namespace that counts the frames that the kernel receives.
struct KernelCount {
    run: Running,
    asked: usize,
}

impl KernelCount {
    fn start(namespace: &Namespace) -> Self {
        let args = ["-c", COUNT, IFACE, NUMBERED];
        let mut run = namespace.program("python3", &args).told().start();
        run.until("the counter is ready", |it| it.stdout().contains("ready"));
        Self { run, asked: 0 }
    }

    /// Returns the number of frames that the kernel has received since the start.
    fn frames(&mut self) -> u64 {
        self.asked += 1;
        let end = format!(" {}", self.asked);
        self.run.tell(&self.asked.to_string());
        let mut count = None;
        self.run.until("the number of frames", |it| {
            let out = it.stdout();
            let line = out.lines().find_map(|it| it.strip_suffix(&end));
            count = line.and_then(|it| it.strip_prefix("count ")?.parse().ok());
            count.is_some()
        });
        count.expect("the wait has succeeded")
    }
}

/// Returns `args` with the settings of a capture by AF_XDP sockets.
fn with_xdp<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [args, &XDP].concat()
}

/// Returns `true` if the captured interface has an XDP program.
fn has_program(pair: &Pair) -> bool {
    let show = pair.far.program("ip", &["link", "show", IFACE]);
    show.run().expect(0).stdout.contains("prog/xdp")
}

/// Waits until the interface has no XDP program and is not in promiscuous mode. The kernel removes
/// a program of a killed process in the background.
#[track_caller]
fn until_released(pair: &Pair) {
    let began = Instant::now();
    while has_program(pair) || pair.far.promiscuity() != 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "not released");
        thread::sleep(TICK);
    }
}

fn now_ns() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
    u64::try_from(now.as_nanos()).expect("before 2554")
}

/// Gives the captured interface two receive queues, and the sending one two transmit queues.
fn two_queues(pair: &Pair) {
    for (end, kind) in [(&pair.far, "rx"), (&pair.near, "tx")] {
        let set = end.program("ethtool", &["-L", IFACE, kind, "2"]);
        let _ = set.run().expect(0);
    }
}

/// Returns the settings of an interface (`ethtool -k`).
fn features(namespace: &Namespace, interface: &str) -> String {
    let show = namespace.program("ethtool", &["-k", interface]);
    show.run().expect(0).stdout
}

/// Runs `wqcap ARGS` in the captured namespace as `nobody` with capabilities.
fn as_nobody_with(pair: &Pair, capabilities: &[&str], args: &[&str]) -> Done {
    let run = wqcap(args).args(NO_FILES).args(XDP).args(["-i", IFACE]);
    pair.far.enter(as_nobody(run, capabilities)).run().expect(2)
}

#[test]
fn every_frame_of_all_captures_arrives_in_native_mode_unchanged_and_in_order() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let (input, frames) = all_that_fit(&dir);
    let before = features(&pair.far, IFACE);
    let capture = Interface::start(&pair, &dir, &with_xdp(&["-w", "out.pcapng"]));
    assert_eq!(features(&pair.far, IFACE), before);
    let began = now_ns();
    let sent = capture.send(&input);
    let done = capture.stop_after(sent);
    let ended = now_ns();
    done.says(&["the XDP program runs in the driver, with one copy"]);
    assert_eq!(sent, frames.len() as u64, "{done}");
    let records = files::read(&dir.join("out.pcapng"));
    assert!(records.is_sorted_by_key(|it| it.ts), "{done}");
    let stamps = records.first().zip(records.last()).expect("frames");
    assert!(stamps.0.ts >= began && stamps.1.ts <= ended, "{stamps:?}");
    assert_same("frames", &bytes(records), &frames);
    until_released(&pair);
    assert_eq!(features(&pair.far, IFACE), before);
}

/// Each number is sent after its time is read, and the next one a millisecond later.
#[test]
fn a_time_stamp_is_not_before_its_frame_is_sent() {
    const SEND: &str = "
import socket, sys, time
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind((sys.argv[1], 0))
for number in range(300):
    now = time.time_ns()
    out.send(bytes([2] * 12) + b'\\x12\\x34' + now.to_bytes(8, 'big') + bytes(40))
    time.sleep(0.001)
";
    /// Error of the difference between the system's clock and the kernel's monotonic clock.
    const ERROR_NS: u64 = 50_000;
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let capture = Interface::start(&pair, &dir, &with_xdp(&["-w", "out.pcapng"]));
    let send = pair.near.program("python3", &["-c", SEND, IFACE]);
    let _ = send.run().expect(0);
    let done = capture.stop_after(300);
    let mut late = Vec::new();
    for record in files::read(&dir.join("out.pcapng")) {
        let sent = record.bytes[14..].first_chunk().expect("8 bytes");
        let sent = u64::from_be_bytes(*sent);
        assert!(record.ts + ERROR_NS >= sent, "{} {sent}", record.ts);
        late.push(record.ts.saturating_sub(sent));
    }
    late.sort_unstable();
    assert_eq!(late.len(), 300, "{done}");
    // Most frames are stamped before the next one is sent. The loop is woken much later.
    assert!(late[150] < 1_000_000, "{late:?}");
}

#[test]
fn the_kernel_gets_no_frame_during_the_capture_and_every_frame_after_its_end() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let input = numbered(&dir, 100, 64);
    let mut kernel = KernelCount::start(&pair.far);
    let mut expected = 0;
    for end in [Signal::INT, Signal::KILL] {
        let mut capture = Interface::start(&pair, &dir, &with_xdp(&NO_FILES));
        assert_eq!((pair.far.promiscuity(), has_program(&pair)), (1, true));
        assert_eq!(capture.send(&input), 100);
        capture.ctl.until_counted(&mut capture.run, "received", 100);
        assert_eq!(kernel.frames(), expected);
        capture.run.signal(end);
        let done = capture.run.wait();
        assert_eq!(done.status.success(), end == Signal::INT, "{done}");
        until_released(&pair);
        let capture = Interface::start(&pair, &dir, &NO_FILES);
        assert_eq!(capture.send(&input), 100);
        let _ = capture.stop_after(100);
        expected += 100;
        assert_eq!(kernel.frames(), expected);
    }
    let capture = Interface::start(&pair, &dir, &with_xdp(&[&["-p"][..], &NO_FILES].concat()));
    assert_eq!(pair.far.promiscuity(), 0);
    let _ = capture.stop_after(0);
}

#[test]
fn a_capture_is_drained_stopped_and_started_again_inside_its_sandbox() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let input = numbered(&dir, 10, 64);
    let mut kernel = KernelCount::start(&pair.far);
    let args = with_xdp(&["-w", "out.pcapng", "--set", "process.sandbox=require"]);
    let mut capture = Interface::start(&pair, &dir, &args);
    let mut left = 0;
    for (command, receives) in [
        ("drain", false),
        ("start", true),
        ("stop", false),
        ("start", true),
    ] {
        let done = capture.ctl.run(&[command]).expect(0);
        assert_eq!(capture.send(&input), 10, "{done}");
        if receives {
            // A capture that is started counts from 0; the summary has the sum.
            let received = capture.ctl.until_counted(&mut capture.run, "received", 10);
            assert_eq!(received, 10, "{done}");
        } else {
            left += 10;
        }
        assert_eq!(kernel.frames(), left, "{done}");
    }
    let done = capture.stop_after(10);
    let summary: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(summary["ledger"]["total"]["captured"], 20, "{done}");
}

#[test]
fn a_second_capture_of_an_interface_is_refused_and_the_first_one_continues() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let input = numbered(&dir, 10, 64);
    let capture = Interface::start(&pair, &dir, &with_xdp(&NO_FILES));
    let second = wqcap(["run", "-i", IFACE, "--duration", "1"])
        .args(NO_FILES)
        .args(XDP);
    pair.far.enter(second).run().expect(2).says(&[
        "veth0 has an XDP program already",
        "end its process, or remove the program with `ip link set dev veth0 xdp off`",
    ]);
    assert_eq!(capture.send(&input), 10);
    let _ = capture.stop_after(10);
}

#[test]
fn what_af_xdp_cannot_do_is_refused_with_a_remedy() {
    let pair = need!(silent_pair());
    let not_applicable =
        "veth0 is captured by AF_XDP sockets, and this key does not apply to them; remove the key";
    let rule = Path::new("rule.toml");
    let dir = Dir::new();
    let _ = dir.write("rule.toml", "[[rule]]\nproto = \"udp\"\n");
    for (args, says) in [
        (
            &["-i", "none0"][..],
            "-i none0: there is no such device or interface",
        ),
        (
            &["-i", IFACE, "--set", "capture.queues=2"],
            "capture.queues = 2: veth0 supports 1 to 1",
        ),
        (
            &["-i", "lo"],
            "an MTU of 65536 is too large for AF_XDP with chunks of 4096 bytes: the limit is 3818; use `ip link set dev \
             lo mtu 3818`, or the backend af_packet",
        ),
        (
            &["-i", IFACE, "--set", "capture.direction=out"],
            "capture.direction = \"out\"",
        ),
        (
            &["-i", IFACE, "--set", "capture.mode=sniffer"],
            not_applicable,
        ),
        (&["-i", IFACE, "--set", "capture.ring=512"], not_applicable),
        (
            &["-i", IFACE, "-c", rule.to_str().expect("a plain path")],
            not_applicable,
        ),
        (
            &["--set", "device.name=mlx5_0"],
            "mlx5_0 is an RDMA device; name its network interface in device.netdev",
        ),
        (
            &["--model", "synth"],
            "device.backend = \"af_xdp\": no network interface is named; set device.netdev",
        ),
    ] {
        for command in [&["check"][..], &["run", "--duration", "1"]] {
            let run = wqcap(command).args(args).args(NO_FILES).args(XDP);
            let run = pair.far.enter(run.cwd(dir.path()));
            if command == ["check"] && args == ["-i", "none0"] {
                // A check plans for another machine if this one has no such interface.
                let _ = run.run().expect(0);
                continue;
            }
            let done = run.run().expect(2);
            done.says(&[says]);
            assert!(!done.stderr.contains("capture.buffer"), "{done}");
        }
    }
    let ip = |args: &str| {
        let args: Vec<_> = args.split(' ').collect();
        let _ = pair.far.program("ip", &args).run().expect(0);
    };
    let run = wqcap(["check", "-i", IFACE]).args(NO_FILES).args(XDP);
    // The default route may be two halves, or in another table.
    for (routes, clear) in [
        (
            &[
                "route add 0.0.0.0/1 via 10.77.0.1",
                "route add 128.0.0.0/1 via 10.77.0.1",
            ][..],
            "route flush root 0.0.0.0/0 proto boot",
        ),
        (
            &[
                "route add default via 10.77.0.1 table 100",
                "rule add from all lookup 100",
            ],
            "rule del lookup 100",
        ),
        (&["route add default via 10.77.0.1"], ""),
    ] {
        let _ = pair.far.enter(run.clone()).run().expect(0);
        routes.iter().for_each(|it| ip(it));
        pair.far.enter(run.clone()).run().expect(2).says(&[
            "the default route of this machine leads through veth0",
            "use another interface, backend \"af_packet\", or set capture.steal_management = true",
        ]);
        if !clear.is_empty() {
            ip(clear);
        }
    }
    let run = run.args(["--set", "capture.steal_management=true"]);
    let _ = pair.far.enter(run).run().expect(0);
}

#[test]
fn missing_capabilities_are_named() {
    let pair = need!(silent_pair());
    let all = "run as root, or grant CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_IPC_LOCK";
    let with_bpf = [
        "--inh-caps",
        "+net_raw,+bpf",
        "--ambient-caps",
        "+net_raw,+bpf",
    ];
    for capabilities in [NONE, NET_RAW, &with_bpf] {
        let run = ["run", "--duration", "1"];
        as_nobody_with(&pair, capabilities, &run).says(&[all]);
    }
    let done = as_nobody_with(&pair, NONE, &["check", "--privileges", "--json"]);
    let rights: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    let rights = rights["privileges"].as_array().expect("a list");
    let names = rights.iter().filter_map(|it| it["capability"].as_str());
    let names: BTreeSet<_> = names.collect();
    let wanted = ["CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF", "CAP_IPC_LOCK"];
    assert_eq!(names, BTreeSet::from(wanted), "{done}");
    done.says(&["CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF"]);
}

/// A stopped process polls nothing, so that the ring overflows.
#[test]
fn frames_without_a_free_chunk_are_counted() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let input = numbered(&dir, 20_000, 64);
    let capture = Interface::start(&pair, &dir, &with_xdp(&NO_FILES));
    capture.run.freeze();
    let sent = capture.send(&input);
    capture.run.thaw();
    capture.stop_after_drops(sent);
}

#[test]
fn two_queues_receive_each_frame_once() {
    let pair = need!(silent_pair());
    two_queues(&pair);
    let dir = Dir::new();
    let (input, mut wanted) = all_that_fit(&dir);
    std::fs::create_dir(dir.join("out")).expect("a new folder");
    let args = with_xdp(&["-o", "out", "--set", "output.format=pcap"]);
    let capture = Interface::start(&pair, &dir, &args);
    let sent = capture.send(&input);
    let done = capture.stop_after(sent);
    let (mut received, mut queues) = (Vec::new(), BTreeSet::new());
    for entry in std::fs::read_dir(dir.join("out")).expect("a folder") {
        let path = entry.expect("an entry").path();
        queues.insert(files::queue_of(&path));
        let records = files::read(&path);
        assert!(!records.is_empty(), "{}", path.display());
        assert!(records.is_sorted_by_key(|it| it.ts), "{}", path.display());
        received.extend(bytes(records));
    }
    assert_eq!(queues, BTreeSet::from([0, 1]), "{done}");
    wanted.sort();
    received.sort();
    assert_same("frames", &received, &wanted);
    let check = wqcap(["check", "-i", IFACE, "--set", "capture.queues=1"]);
    let check = pair
        .far
        .enter(check.args(NO_FILES).args(XDP))
        .run()
        .expect(0);
    let note = "veth0 has 2 receive queues, of which wqcap captures those before queue 1; the kernel receives the frames of the other queues";
    assert!(check.stdout.contains(note), "{check}");
}

#[test]
fn queues_that_the_interface_gets_during_a_capture_are_named() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let args = with_xdp(&[&NO_FILES[..], &["--set", "process.sandbox=require"]].concat());
    let mut capture = Interface::start(&pair, &dir, &args);
    two_queues(&pair);
    let text = "veth0: the interface got receive queues after the start: it has 2, and had 1";
    capture
        .run
        .until("a warning", |it| it.stderr().contains(text));
    let done = capture.stop_after(0);
    assert!(done.stdout.contains(text), "{done}");
}

/// The loopback interface is captured in the network stack: its driver has no XDP.
#[test]
fn settings_of_the_interface_do_not_change_during_a_capture() {
    let pair = need!(silent_pair());
    let dir = Dir::new();
    let mtu = ["link", "set", "lo", "mtu", "3818"];
    let _ = pair.far.program("ip", &mtu).run().expect(0);
    let before = features(&pair.far, "lo");
    let run = wqcap(["run", "-i", "lo", "-w", "out.pcapng", "--count", "10"]);
    let run = run.args(XDP).env("RUST_LOG", "info").cwd(dir.path());
    let mut run = pair.far.enter(run).start();
    run.until("the capture is ready", |run| {
        run.stderr().contains("capturing lo on")
    });
    assert_eq!(features(&pair.far, "lo"), before);
    let ping = ["-q", "-c", "10", "-i", "0.01", "-W", "0.1", "127.0.0.1"];
    let lost = pair.far.program("ping", &ping).run().expect(1);
    assert!(lost.stdout.contains("100% packet loss"), "{lost}");
    let done = run.wait().expect(0);
    done.says(&["the XDP program runs in the kernel's network stack"]);
    assert_eq!(features(&pair.far, "lo"), before);
    let read = Program::new("tshark").args(["-r", "out.pcapng"]);
    let read = read.cwd(dir.path()).run().expect(0);
    assert_eq!(read.stdout.matches("(ping) request").count(), 10, "{read}");
}
