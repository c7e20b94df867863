//! Live interfaces through AF_XDP: received frames, effects on the kernel's network stack, and
//! cleanup.
//!
//! Two network namespaces are joined by veth. The capture runs in the far one.

use rustix::process::Signal;
use std::path::Path;
use wqcap_tests::{
    Dir, Pair, Program, Running, Wqcap,
    captures::{Captures, SHORTEST},
    compare::assert_frames,
    files,
    machine::netns::{IFACE, Namespace},
    machine::privileges::{ForAll, NET_RAW, as_nobody},
    need, skip,
};

/// MTU of both interfaces: the maximum that the kernel allows.
const MTU: usize = 65_535;
/// Number of frames sent at once, fewer than any buffer between the two ends holds.
const BATCH: usize = 100;

/// Python program that sends frames of a capture file. It reads a count per line, sends that many
/// frames, and prints the totals of sent and refused frames.
const SEND: &str = "
import errno, socket, struct, sys
data = open(sys.argv[2], 'rb').read()
frames, at = [], 24
while at < len(data):
    size, = struct.unpack_from('<I', data, at + 8)
    frames.append(data[at + 16:at + 16 + size])
    at += 16 + size
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
out.bind((sys.argv[1], 0))
sent = refused = 0
print('ready', flush=True)
for line in sys.stdin:
    for frame in frames[sent + refused:sent + refused + int(line)]:
        try:
            out.send(frame)
            sent += 1
        except OSError as e:
            if e.errno != errno.EMSGSIZE:
                raise
            refused += 1
    print('so far', sent, refused, flush=True)
";

/// Disables IPv6, addresses, ARP and multicast in both namespaces, so that only the test sends
/// frames, and sets the MTU.
fn silence(pair: &Pair) {
    for end in [&pair.near, &pair.far] {
        for args in [
            &["sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1"][..],
            &["ip", "address", "flush", "dev", IFACE],
            &["ip", "link", "set", IFACE, "arp", "off", "multicast", "off"],
            &["ip", "link", "set", IFACE, "mtu", &MTU.to_string()],
        ] {
            let _ = end.program(args[0], &args[1..]).run().expect(0);
        }
    }
}

/// Returns a capture with `wire` in the far namespace of `pair`.
fn capture<'d>(dir: &'d Dir, name: &str, pair: &Pair, wire: &str) -> Wqcap<'d> {
    Wqcap::run(dir, name)
        .model(wire)
        .queues(1)
        .set("capture.buffer=128KiB")
        .control()
        .wrapped(&["ip", "netns", "exec", pair.far.name()])
}

fn wait_until_capturing(run: &mut Running) {
    run.until("the capture is ready", |run| {
        run.stderr().contains("capturing mlx5_0")
    });
}

/// Returns a frame with an EtherType for local experiments (IEEE 802).
fn experiment(len: usize) -> Vec<u8> {
    let head = [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0x88, 0xb5];
    head.into_iter().chain(vec![7; len - head.len()]).collect()
}

/// Program that sends the frames of a file in the near namespace.
struct Sender {
    program: Running,
    batches: usize,
}

impl Sender {
    fn new(pair: &Pair, file: &Path) -> Self {
        let args = ["-c", SEND, IFACE, file.to_str().expect("a UTF-8 path")];
        Self {
            program: pair.near.program("python3", &args).told().start(),
            batches: 0,
        }
    }

    /// Sends the next `count` frames. Returns the numbers of frames sent and refused so far.
    fn send(&mut self, count: usize) -> (u64, u64) {
        self.program.tell(&count.to_string());
        self.batches += 1;
        let totals = |program: &Running| {
            let stdout = program.stdout();
            let mut lines = stdout.lines().filter_map(|it| it.strip_prefix("so far "));
            let (sent, refused) = lines.nth(self.batches - 1)?.split_once(' ')?;
            sent.parse().ok().zip(refused.parse().ok())
        };
        let mut found = None;
        self.program.until("a batch is sent", |it| {
            found = totals(it);
            found.is_some()
        });
        found.expect("the totals were printed")
    }
}

/// Returns `true` if the interface has an XDP program (ip-link(8)).
fn has_program(end: &Namespace) -> bool {
    let done = end.program("ip", &["link", "show", "dev", IFACE]);
    done.run().expect(0).stdout.contains("xdp")
}

#[test]
fn all_captures_arrive_as_they_were_sent() {
    let dir = Dir::new();
    let (file, frames) = Captures::find().everything(&dir);
    // The kernel refuses longer frames (`packet_snd`, net/packet/af_packet.c): more than an MTU
    // after the Ethernet header and a VLAN tag.
    let fits = |frame: &[u8]| {
        let tag = if frame[12..14] == [0x81, 0] { 4 } else { 0 };
        frame.len() <= MTU + SHORTEST + tag
    };
    let (fit, long): (Vec<_>, Vec<_>) = frames.iter().partition(|it| fits(it));
    assert!(
        fit.iter().any(|it| it.len() > 4096),
        "some frames need several buffers"
    );
    for (name, wire) in [
        ("packet", "af_packet:veth0"),
        ("skb", "af_xdp:veth0,mode=skb"),
        ("native", "af_xdp:veth0,mode=native"),
        ("auto", "af_xdp:veth0"),
    ] {
        let pair = need!(Pair::new());
        silence(&pair);
        let run = capture(&dir, name, &pair, wire);
        let (mut running, ctl) = (run.start(), run.ctl());
        wait_until_capturing(&mut running);
        let mut sender = Sender::new(&pair, &file);
        let (mut sent, mut refused) = (0, 0);
        while sent + refused < frames.len() as u64 {
            (sent, refused) = sender.send(BATCH);
            ctl.until_counted(&mut running, "received", sent);
        }
        running.signal(Signal::INT);
        let finished = run.finished(running.wait(), 0);
        assert_eq!(
            (sent, refused),
            (fit.len() as u64, long.len() as u64),
            "{name}: sent and refused"
        );
        let got: Vec<_> = finished.records().remove(0);
        let got: Vec<_> = got.iter().map(|it| it.bytes.as_slice()).collect();
        assert_frames(name, &got, &fit);
        assert_eq!(finished.summary.nic("wire_dropped"), 0, "{name}");
        assert_eq!(finished.summary.nic("wire_dropped_fill"), 0, "{name}");
    }
    skip::say(&format!(
        "both wires: {} frames, {} too long for an MTU of {MTU}",
        fit.len(),
        long.len()
    ));
}

#[test]
fn the_kernel_gets_no_frame_during_the_capture_and_all_frames_afterwards() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    // Waits for `count` answers, or for one second after the last request.
    let ping = |count: &str, [wait, seconds]: [&str; 2]| {
        let ping = ["-q", "-i", "0.01", "-c", count, wait, seconds, "10.77.0.2"];
        pair.near.program("ping", &ping).run()
    };
    let until_answered = ["-w", "60"];
    let _ = ping("1", until_answered).expect(0);
    for mode in ["skb", "native"] {
        let wire = format!("af_xdp:{IFACE},mode={mode}");
        let run = capture(&dir, mode, &pair, &wire);
        let (mut running, ctl) = (run.start(), run.ctl());
        wait_until_capturing(&mut running);
        assert!(has_program(&pair.far));
        assert_ne!(pair.far.promiscuity(), 0);
        // The kernel does not get the requests, so no answer comes.
        let _ = ping("5", ["-W", "1"]).expect(1);
        ctl.until_counted(&mut running, "received", 5);
        running.signal(Signal::INT);
        let finished = run.finished(running.wait(), 0);
        finished.done.says(&[
            "the kernel gets no frame",
            &format!("{mode} mode"),
            "on 1 of 1 receive queues",
        ]);
        assert!(!has_program(&pair.far));
        assert_eq!(pair.far.promiscuity(), 0);
        let _ = ping("5", until_answered).expect(0);
    }
}

#[test]
fn a_killed_capture_leaves_no_xdp_program() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    for mode in ["skb", "native"] {
        let run = capture(&dir, mode, &pair, &format!("af_xdp:{IFACE},mode={mode}"));
        let mut running = run.start();
        wait_until_capturing(&mut running);
        assert!(has_program(&pair.far));
        running.signal(Signal::KILL);
        let _ = running.wait();
        assert!(!has_program(&pair.far), "{mode}");
    }
}

/// The sandbox must allow the capture to remove its XDP program and sockets and to create them
/// again.
#[test]
fn a_capture_restarts_inside_the_sandbox() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    silence(&pair);
    let file = dir.join("frames.pcap");
    files::write(&file, 1_600_000_000, &vec![experiment(100); 10]);
    let run = capture(&dir, "boxed", &pair, &format!("af_xdp:{IFACE}"));
    let (mut running, ctl) = (run.start(), run.ctl());
    wait_until_capturing(&mut running);
    let mut sender = Sender::new(&pair, &file);
    let _ = sender.send(5);
    ctl.until_counted(&mut running, "received", 5);
    let _ = ctl.run(&["stop"]).expect(0);
    assert!(!has_program(&pair.far));
    let _ = ctl.run(&["start"]).expect(0);
    assert!(has_program(&pair.far));
    let _ = sender.send(5);
    // The counters start at 0 again.
    ctl.until_counted(&mut running, "received", 5);
    running.signal(Signal::INT);
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn a_second_capture_of_an_interface_is_refused() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    let first = capture(&dir, "first", &pair, &format!("af_xdp:{IFACE},mode=skb"));
    let mut running = first.start();
    wait_until_capturing(&mut running);
    for (name, options) in [
        ("any", ""),
        ("skb", ",mode=skb"),
        ("native", ",mode=native"),
    ] {
        let second = capture(&dir, name, &pair, &format!("af_xdp:{IFACE}{options}"));
        let done = second.done().expect(2);
        done.says(&["has an XDP program already", "xdp off"]);
    }
    assert!(
        has_program(&pair.far),
        "the program of the first capture stays"
    );
    running.signal(Signal::INT);
    let _ = first.finished(running.wait(), 0);
}

#[test]
fn impossible_settings_are_refused_with_a_remedy() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    for (wire, parts) in [
        ("af_xdp:nosuchif0", &["nosuchif0", "ip link"][..]),
        (
            "af_xdp:veth0,queues=7",
            &["7 receive queues", "veth0 has 1", "ethtool -L"],
        ),
        ("af_xdp:veth0,zerocopy=on", &["zerocopy=auto"]),
        ("af_xdp:veth0,mode=skb,zerocopy=on", &["mode=native"]),
        ("af_xdp:veth0,mode=driver", &["mode", "auto, native or skb"]),
        ("af_xdp:veth0,queues=0", &["queues", "1 to 1024"]),
        ("af_xdp:veth0,ring=1KiB", &["ring", "2MiB"]),
    ] {
        let done = capture(&dir, "refused", &pair, wire).done();
        done.expect(2).says(parts);
        assert!(!has_program(&pair.far), "{wire}");
    }
    let _ = pair
        .far
        .program("ip", &["route", "add", "default", "via", "10.77.0.1"])
        .run()
        .expect(0);
    let wire = format!("af_xdp:{IFACE}");
    let done = capture(&dir, "route", &pair, &wire).done().expect(2);
    done.says(&["default route", "af_xdp", "capture.steal_management"]);
    for mode in ["sniffer", "filtered"] {
        let run = capture(&dir, mode, &pair, &wire).set(&format!("capture.mode={mode}"));
        let _ = run.done().expect(2);
    }
    refused_without_capabilities(&pair, &dir);
}

/// In switchdev mode the interface of the port is unknown and may be the management interface.
#[test]
fn a_port_of_an_unknown_interface_is_taken_only_with_permission() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    let wire = format!("af_xdp:{IFACE}");
    let switchdev = |name: &str| {
        capture(&dir, name, &pair, &wire)
            .set("model.switchdev=true")
            .set("model.vfs=2")
    };
    let done = switchdev("refused").done().expect(2);
    done.says(&[
        "network interface of port 1 of mlx5_0 is unknown",
        "af_xdp cuts it off",
        "capture.steal_management = true",
    ]);
    assert!(
        !has_program(&pair.far),
        "no XDP program is attached: {done}"
    );
    let permitted = switchdev("permitted").set("capture.steal_management=true");
    let mut running = permitted.start();
    wait_until_capturing(&mut running);
    running.signal(Signal::INT);
    let finished = permitted.finished(running.wait(), 0);
    finished
        .done
        .says(&["capture.steal_management: the network interface of port 1"]);
}

/// Asserts that CAP_NET_RAW alone, which suffices for all other wires, is refused.
fn refused_without_capabilities(pair: &Pair, dir: &Dir) {
    let place = ForAll::new();
    let out = format!("output.dir={}", place.dir().path().display());
    let wire = format!("af_xdp:{IFACE}");
    let run = ["run", "--model", &wire, "--set", &out];
    let program = Program::new(place.wqcap()).args(run).cwd(dir.path());
    let done = pair.far.enter(as_nobody(program, NET_RAW)).run().expect(2);
    done.says(&["CAP_NET_RAW", "CAP_BPF", "CAP_NET_ADMIN"]);
}

#[test]
fn losses_of_full_rings_are_counted_by_cause() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    silence(&pair);
    // With an MTU of 64 KiB each buffer has 4096 bytes.
    let buffers = (2 << 20) / 4096;
    let sent = 3 * buffers;
    let file = dir.join("frames.pcap");
    files::write(&file, 1_600_000_000, &vec![experiment(400); sent]);
    let run = capture(&dir, "full", &pair, &format!("af_xdp:{IFACE},ring=2MiB"));
    let (mut running, ctl) = (run.start(), run.ctl());
    wait_until_capturing(&mut running);
    // The stopped process takes no frames from the sockets.
    running.freeze();
    let mut sender = Sender::new(&pair, &file);
    for _ in 0..sent / BATCH {
        let _ = sender.send(BATCH);
    }
    let _ = sender.send(sent % BATCH);
    running.thaw();
    let lost = |stats: &serde_json::Value| stats["nic"]["wire_dropped"].as_u64().unwrap_or(0);
    let received =
        |stats: &serde_json::Value| stats["ledger"]["total"]["received"].as_u64().unwrap_or(0);
    let all = sent as u64;
    let _ = ctl.until(&mut running, "stats", "every frame is counted", |stats| {
        lost(stats) + received(stats) >= all
    });
    running.signal(Signal::INT);
    let summary = run.finished(running.wait(), 0).summary;
    let of = |cause: &str| summary.nic(&format!("wire_dropped_{cause}"));
    assert_eq!(
        summary.ledger.total.received + summary.nic("wire_dropped"),
        all
    );
    assert!(summary.nic("wire_dropped") >= all - buffers as u64);
    assert_eq!(of("size"), 0);
    let causes = of("ring") + of("fill") + of("driver");
    assert_eq!(causes, summary.nic("wire_dropped"));
    assert!(of("fill") > 0, "{:?}", summary.nic);
    // Frames for which the queue, with half as many buffers, has no room wait in the sockets.
    assert_eq!(summary.nic("out_of_buffer"), 0);
}
