//! Live interfaces by way of AF_XDP: what comes, who else gets it, and what is left behind.
//!
//! Two network namespaces are joined by veth, and the program is on the far end.

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

/// The longest that both ends may send: every capture's frames fit, but for those that no interface carries.
const MTU: usize = 65_535;
/// Frames that are under way at once: fewer than find room anywhere between the two ends.
const BATCH: usize = 100;

/// Sends the frames of a capture file, each time it is told so many of them, and says how many were sent and refused.
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

/// Silences both ends, so that nothing but what is sent on purpose is on the cable, and lets long frames through.
fn only_what_is_sent(pair: &Pair) {
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

/// A capture on the far end of `pair`.
fn capture<'d>(dir: &'d Dir, name: &str, pair: &Pair, wire: &str) -> Wqcap<'d> {
    Wqcap::run(dir, name)
        .model(wire)
        .queues(1)
        .set("capture.buffer=128KiB")
        .control()
        .wrapped(&["ip", "netns", "exec", pair.far.name()])
}

fn until_it_captures(run: &mut Running) {
    run.until("its first frame can come", |run| {
        run.stderr().contains("capturing mlx5_0")
    });
}

/// A frame of an ethertype for experiments (IEEE 802).
fn experiment(len: usize) -> Vec<u8> {
    let head = [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0x88, 0xb5];
    head.into_iter().chain(vec![7; len - head.len()]).collect()
}

/// Who sends the frames of a file, at the near end.
struct Sender {
    program: Running,
    batches: usize,
}

impl Sender {
    fn new(pair: &Pair, file: &Path) -> Self {
        let args = ["-c", SEND, IFACE, file.to_str().expect("plain")];
        Self {
            program: pair.near.program("python3", &args).told().start(),
            batches: 0,
        }
    }

    /// Sends the next `count` frames; gives how many were sent and refused so far.
    fn send(&mut self, count: usize) -> (u64, u64) {
        self.program.tell(&count.to_string());
        self.batches += 1;
        let said = |program: &Running| {
            let stdout = program.stdout();
            let mut lines = stdout.lines().filter_map(|it| it.strip_prefix("so far "));
            let (sent, refused) = lines.nth(self.batches - 1)?.split_once(' ')?;
            sent.parse().ok().zip(refused.parse().ok())
        };
        let mut told = None;
        self.program.until("a batch is sent", |it| {
            told = said(it);
            told.is_some()
        });
        told.expect("waited for")
    }
}

/// Whether the far end has an XDP program (ip-link(8)).
fn has_program(end: &Namespace) -> bool {
    let done = end.program("ip", &["link", "show", "dev", IFACE]);
    done.run().expect(0).stdout.contains("xdp")
}

#[test]
fn all_captures_come_as_they_were_sent() {
    let dir = Dir::new();
    let (file, frames) = Captures::find().everything(&dir);
    // What no interface carries (`packet_snd`, net/packet/af_packet.c): an MTU's worth behind the Ethernet header, and
    // behind a VLAN tag too.
    let fits = |frame: &[u8]| {
        let tag = if frame[12..14] == [0x81, 0] { 4 } else { 0 };
        frame.len() <= MTU + SHORTEST + tag
    };
    let (fit, long): (Vec<_>, Vec<_>) = frames.iter().partition(|it| fits(it));
    assert!(
        fit.iter().any(|it| it.len() > 4096),
        "frames of several buffers"
    );
    for (name, wire) in [
        ("packet", "af_packet:veth0"),
        ("skb", "af_xdp:veth0,mode=skb"),
        ("native", "af_xdp:veth0,mode=native"),
        ("auto", "af_xdp:veth0"),
    ] {
        let pair = need!(Pair::new());
        only_what_is_sent(&pair);
        let run = capture(&dir, name, &pair, wire);
        let (mut running, ctl) = (run.start(), run.ctl());
        until_it_captures(&mut running);
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
fn the_kernel_gets_nothing_while_it_lasts_and_all_afterwards() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    // Until so many are answered, or for a second after the last.
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
        until_it_captures(&mut running);
        assert!(has_program(&pair.far));
        assert_ne!(pair.far.promiscuity(), 0);
        // Nobody answers.
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
fn a_killed_capture_leaves_no_program() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    for mode in ["skb", "native"] {
        let run = capture(&dir, mode, &pair, &format!("af_xdp:{IFACE},mode={mode}"));
        let mut running = run.start();
        until_it_captures(&mut running);
        assert!(has_program(&pair.far));
        running.signal(Signal::KILL);
        let _ = running.wait();
        assert!(!has_program(&pair.far), "{mode}");
    }
}

/// Everything is taken down and made again inside the sandbox, which then has to let it.
#[test]
fn it_works_inside_the_sandbox_from_one_start_to_the_next() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    only_what_is_sent(&pair);
    let file = dir.join("frames.pcap");
    files::write(&file, 1_600_000_000, &vec![experiment(100); 10]);
    let run = capture(&dir, "boxed", &pair, &format!("af_xdp:{IFACE}"));
    let (mut running, ctl) = (run.start(), run.ctl());
    until_it_captures(&mut running);
    let mut sender = Sender::new(&pair, &file);
    let _ = sender.send(5);
    ctl.until_counted(&mut running, "received", 5);
    let _ = ctl.run(&["stop"]).expect(0);
    assert!(!has_program(&pair.far));
    let _ = ctl.run(&["start"]).expect(0);
    assert!(has_program(&pair.far));
    let _ = sender.send(5);
    // It counts anew.
    ctl.until_counted(&mut running, "received", 5);
    running.signal(Signal::INT);
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn two_at_once_are_refused() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    let first = capture(&dir, "first", &pair, &format!("af_xdp:{IFACE},mode=skb"));
    let mut running = first.start();
    until_it_captures(&mut running);
    for (name, options) in [
        ("any", ""),
        ("skb", ",mode=skb"),
        ("native", ",mode=native"),
    ] {
        let second = capture(&dir, name, &pair, &format!("af_xdp:{IFACE}{options}"));
        let done = second.done().expect(2);
        done.says(&["has an XDP program already", "xdp off"]);
    }
    assert!(has_program(&pair.far), "the first one's is where it was");
    running.signal(Signal::INT);
    let _ = first.finished(running.wait(), 0);
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
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
    refused_for_rights(&pair, &dir);
}

/// In switchdev mode the port's interface is unknown, and the machine may be reached by it.
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
    assert!(!has_program(&pair.far), "nothing is taken: {done}");
    let permitted = switchdev("permitted").set("capture.steal_management=true");
    let mut running = permitted.start();
    until_it_captures(&mut running);
    running.signal(Signal::INT);
    let finished = permitted.finished(running.wait(), 0);
    finished
        .done
        .says(&["capture.steal_management: the network interface of port 1"]);
}

/// With CAP_NET_RAW, which suffices for every other wire.
fn refused_for_rights(pair: &Pair, dir: &Dir) {
    let place = ForAll::new();
    let out = format!("output.dir={}", place.dir().path().display());
    let wire = format!("af_xdp:{IFACE}");
    let run = ["run", "--model", &wire, "--set", &out];
    let program = Program::new(place.wqcap()).args(run).cwd(dir.path());
    let done = pair.far.enter(as_nobody(program, NET_RAW)).run().expect(2);
    done.says(&["CAP_NET_RAW", "CAP_BPF", "CAP_NET_ADMIN"]);
}

#[test]
fn rings_that_are_full_are_counted_by_cause() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    only_what_is_sent(&pair);
    // With an MTU of 64 KiB a buffer has 4096 bytes.
    let buffers = (2 << 20) / 4096;
    let sent = 3 * buffers;
    let file = dir.join("frames.pcap");
    files::write(&file, 1_600_000_000, &vec![experiment(400); sent]);
    let run = capture(&dir, "full", &pair, &format!("af_xdp:{IFACE},ring=2MiB"));
    let (mut running, ctl) = (run.start(), run.ctl());
    until_it_captures(&mut running);
    // Nobody takes frames from the sockets.
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
    // What a queue of half as many buffers has no room for waits in the sockets.
    assert_eq!(summary.nic("out_of_buffer"), 0);
}
