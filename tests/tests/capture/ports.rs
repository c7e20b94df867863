//! Captures of several ports in one run: `wqcap run -i mon0 -i mon1`, as behind a tap that delivers
//! the two directions of a link on two interfaces. tcpdump, tshark and capinfos are the judges.

use super::interface::all_that_fit;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::{
    path::Path,
    time::{Duration, Instant},
};
use wqcap_tests::{
    Dir, Pair, Program, Running, Summary,
    compare::assert_same,
    ctl::Ctl,
    files,
    frames::{Ends, Frame, IPV4},
    ledger::number,
    machine::netns::{IFACE, until_it_sends},
    need,
    oracles::duckdb::Duckdb,
    wqcap::wqcap,
};

/// Captured interfaces, each with the interface at the other end of its cable.
const CABLES: [[&str; 2]; 2] = [["mon0", "gen0"], ["mon1", "gen1"]];
/// Number of UDP conversations on the link.
const FLOWS: u16 = 5;
/// Number of frames that are sent: an even number in each conversation.
const FRAMES: u16 = 600;

/// Python program that sends the frames of a pcap file over several interfaces in turn.
const SEND: &str = "
import socket, struct, sys, time
file, *ifaces = sys.argv[1:]
data = open(file, 'rb').read()
outs = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW) for _ in ifaces]
for out, iface in zip(outs, ifaces):
    out.bind((iface, 0))
at, sent = 24, 0
while at < len(data):
    kept = struct.unpack('<I', data[at + 8:at + 12])[0]
    outs[sent % len(outs)].send(data[at + 16:at + 16 + kept])
    at += 16 + kept
    sent += 1
    if sent % 7 == 0:
        time.sleep(0.001)
";

/// Two namespaces joined by the two cables of a tap. The interfaces carry no frames but those of
/// the tests.
fn tap() -> Result<Pair, String> {
    let pair = Pair::new()?;
    CABLES.iter().try_for_each(|cable| connect(&pair, cable))?;
    Ok(pair)
}

/// Joins two namespaces by a cable.
fn connect(pair: &Pair, [mon, peer]: &[&str; 2]) -> Result<(), String> {
    let (near, far) = (&pair.near, &pair.far);
    let add = ["link", "add", peer, "type", "veth", "peer", "name", mon];
    let add = [&add[..], &["netns", far.name()]].concat();
    let _ = near.program("ip", &add).run().expect(0);
    for (end, iface) in [(near, peer), (far, mon)] {
        let key = format!("net.ipv6.conf.{iface}.disable_ipv6=1");
        let _ = end.program("sysctl", &["-qw", &key]).run().expect(0);
        let up = ["link", "set", iface, "arp", "off", "up"];
        let _ = end.program("ip", &up).run().expect(0);
    }
    until_it_sends(near.name(), peer)
}

/// Returns the frames of UDP conversations in the order of sending. Frames with an even number are
/// those of the direction that opens its conversation, the others answer.
fn conversations() -> Vec<Vec<u8>> {
    let frame = |number: u16| {
        let ends = Ends {
            from: 1,
            to: 2,
            sport: 1000 + number / 2 % FLOWS,
            dport: 53,
        };
        let ends = if number.is_multiple_of(2) {
            ends
        } else {
            ends.back()
        };
        let frame = Frame::ethernet(&[], IPV4).ipv4(ends, 17, 0).udp(ends);
        frame.payload(40).bytes(&number.to_be_bytes()).done()
    };
    (0..FRAMES).map(frame).collect()
}

/// Capture of the two interfaces of a tap, and a control socket.
struct Capture<'p> {
    pair: &'p Pair,
    run: Running,
    ctl: Ctl,
}

impl<'p> Capture<'p> {
    /// Starts a capture in the namespace behind the tap. `ports` names what it captures.
    fn start(pair: &'p Pair, dir: &Dir, ports: &[&str], args: &[&str]) -> Self {
        let socket = dir.join("control.sock");
        let run = wqcap(["run", "--json"])
            .args(ports)
            .args(args)
            .args(["--set", &format!("control.unix={}", socket.display())])
            .env("RUST_LOG", "info")
            .cwd(dir.path());
        let mut run = pair.far.enter(run).start();
        run.until("the capture is ready", |it| {
            it.stderr().contains("capturing ")
        });
        let ctl = Ctl::at(&socket);
        Self { pair, run, ctl }
    }

    /// Sends the frames of a file over the cables in turn.
    fn send(&self, file: &Path, cables: &[[&str; 2]]) {
        let _ = self.sender(file, cables).run().expect(0);
    }

    /// Returns the program that sends the frames of a file over the cables in turn.
    fn sender(&self, file: &Path, cables: &[[&str; 2]]) -> Program {
        let peers = cables.iter().map(|[_, peer]| *peer);
        let file = file.to_str().expect("a plain path");
        let args: Vec<_> = ["-c", SEND, file].into_iter().chain(peers).collect();
        self.pair.near.program("python3", &args)
    }

    /// Waits until the capture has received `count` frames.
    fn until_received(&mut self, count: u64) {
        let received = self.ctl.until_counted(&mut self.run, "received", count);
        assert_eq!(received, count);
    }

    /// Waits until the capture has received `count` frames, ends it, and returns its summary.
    fn stop_after(mut self, count: u64) -> Summary {
        self.until_received(count);
        self.run.signal(Signal::INT);
        Summary::parse(&self.run.wait().expect(0).stdout)
    }
}

/// Options for the two interfaces of a tap.
const BOTH: [&str; 4] = ["-i", "mon0", "-i", "mon1"];

/// Captures the conversations with `args` and flow records in the directory `flows`. Returns the
/// summary.
fn capture(pair: &Pair, dir: &Dir, args: &[&str]) -> Summary {
    let input = dir.join("input.pcap");
    files::write(&input, 0, &conversations());
    let flows = format!("flows.dir={}", dir.folder("flows").display());
    let args = [args, &["--set", &flows]].concat();
    let capture = Capture::start(pair, dir, &BOTH, &args);
    capture.send(&input, &CABLES);
    capture.stop_after(FRAMES.into())
}

/// Returns the rows of a query on the flow records, grouped by its columns without an aggregate.
fn records(duckdb: &Duckdb, dir: &Dir, columns: &str) -> Vec<Vec<Value>> {
    let files = dir.join("flows/*.parquet");
    duckdb.query(&format!(
        "SELECT {columns} FROM '{}' GROUP BY ALL ORDER BY ALL",
        files.display()
    ))
}

/// Returns tcpdump on an interface of the captured namespace, once it listens.
fn tcpdump(pair: &Pair, iface: &str, file: &Path) -> Running {
    let args = ["-i", iface, "--time-stamp-precision=nano", "-U", "-w"];
    let mut tcpdump = pair.far.program("tcpdump", &args).arg(file).start();
    tcpdump.until("tcpdump listens", |it| it.stderr().contains("listening on"));
    tcpdump
}

#[test]
fn two_directions_on_two_ports_are_one_file_in_order_and_one_record_a_flow() {
    let duckdb = need!(Duckdb::install());
    let pair = need!(tap());
    let dir = Dir::new();
    let dumps = CABLES.map(|[mon, _]| dir.join(format!("{mon}.pcap")));
    let mut judges = [0, 1].map(|at| tcpdump(&pair, CABLES[at][0], &dumps[at]));
    let summary = capture(&pair, &dir, &["-w", "tap.pcapng"]);
    let file = dir.join("tap.pcapng");

    // The frames are complete and in the order of sending, and each has the kernel's time stamp.
    let found = files::read(&file);
    let bytes: Vec<_> = found.iter().map(|it| it.bytes.clone()).collect();
    assert_same("frames", &bytes, &conversations());
    for (at, (judge, dump)) in judges.iter_mut().zip(&dumps).enumerate() {
        // Bytes of a pcap file: its header, and for each frame a header and the frame.
        let ours = conversations().into_iter().skip(at).step_by(2);
        let len = 24 + ours.map(|it| 16 + it.len() as u64).sum::<u64>();
        judge.until("tcpdump has all frames", |_| {
            dump.metadata().is_ok_and(|it| it.len() == len)
        });
        judge.signal(Signal::INT);
        let stamps: Vec<_> = files::read_as_it_stands(dump)
            .iter()
            .map(|it| it.ts)
            .collect();
        let ours: Vec<_> = found.iter().skip(at).step_by(2).map(|it| it.ts).collect();
        assert_same("stamps", &ours, &stamps);
    }

    // Each port is an interface of the file.
    let names = Program::new("tshark")
        .args(["-T", "fields", "-e", "frame.interface_name", "-r"])
        .arg(&file)
        .run()
        .expect(0);
    let names: Vec<_> = names.stdout.lines().collect();
    let expected: Vec<_> = (0..FRAMES)
        .map(|it| CABLES[usize::from(it % 2)][0])
        .collect();
    assert_same("interfaces", &names, &expected);
    let facts = Program::new("capinfos").arg(&file).run().expect(0).stdout;
    let facts: Vec<_> = facts
        .lines()
        .filter_map(|it| it.trim().split_once(" = "))
        .filter(|(key, _)| ["Name", "Number of packets"].contains(key))
        .collect();
    let half = (FRAMES / 2).to_string();
    let expected = [
        ("Name", "mon0"),
        ("Number of packets", &half),
        ("Name", "mon1"),
        ("Number of packets", &half),
    ];
    assert_eq!(facts, expected);

    // The summary has the ledger of each port, and the run's is their sum.
    let ports = summary.json["ports"].as_array().expect("a list of ports");
    let ports: Vec<_> = ports
        .iter()
        .map(|it| (it["label"].as_str(), number(&it["ledger"]["captured"])))
        .collect();
    let of_port = |[mon, _]: [&'static str; 2]| (Some(mon), u64::from(FRAMES / 2));
    assert_eq!(ports, CABLES.map(of_port));
    assert_eq!(summary.ledger.total.captured, u64::from(FRAMES));

    // One record for each flow.
    let of_each = FRAMES / 2 / FLOWS;
    let record = |it| json!([1000 + it, 53, of_each, of_each, "mon0", "mon1", 1]);
    let expected: Vec<_> = (0..FLOWS).map(record).collect();
    let columns = "src_port, dst_port, frames_fwd, frames_rev, port_fwd, port_rev, count(*)";
    assert_eq!(json!(records(&duckdb, &dir, columns)), json!(expected));
}

/// Without one loop or one file in time order, each port has its own records.
#[test]
fn records_of_separate_ports_name_the_port_of_their_queue() {
    let duckdb = need!(Duckdb::install());
    let pair = need!(tap());
    let dir = Dir::new();
    let none = ["--set", "output.format=none"];
    let separate = ["--set", "capture.loops=separate"];
    let _ = capture(&pair, &dir, &[none, separate].concat());
    let of_each = FRAMES / 2 / FLOWS;
    let records = records(&duckdb, &dir, "port_fwd, port_rev, frames_fwd, count(*)");
    let expected = CABLES.map(|[mon, _]| json!([mon, null, of_each, FLOWS]));
    assert_eq!(json!(records), json!(expected));
}

/// One loop sees both directions of a flow, also without files. `separate` has one file in the same
/// order, and the same records.
#[test]
fn one_loop_of_all_ports_has_the_records_and_frames_of_separate_loops() {
    let duckdb = need!(Duckdb::install());
    let pair = need!(tap());
    let of_each = FRAMES / 2 / FLOWS;
    let expected = json!([["mon0", "mon1", of_each, of_each, FLOWS]]);
    for (args, loops) in [
        (["output.format=none", "capture.loops=paired"], 1),
        (["output.name=tap", "capture.loops=paired"], 1),
        (["output.name=tap", "capture.loops=separate"], 2),
    ] {
        let dir = Dir::new();
        let input = dir.join("input.pcap");
        files::write(&input, 0, &conversations());
        let flows = format!("flows.dir={}", dir.folder("flows").display());
        let set = [args[0], args[1], &flows, "output.dir=."].map(|it| ["--set", it]);
        let set = match args[0] {
            "output.format=none" => set[..3].concat(),
            _ => set.concat(),
        };
        let mut capture = Capture::start(&pair, &dir, &BOTH, &set);
        capture.send(&input, &CABLES);
        // A thread gets its name when it begins to run. All loops have run when all frames came.
        capture.until_received(FRAMES.into());
        let threads = format!("/proc/{}/task", capture.run.pid());
        let names = std::fs::read_dir(threads).expect("a folder of threads");
        let names =
            names.filter_map(|it| std::fs::read_to_string(it.ok()?.path().join("comm")).ok());
        let of_loops = names.filter(|it| it.starts_with("wqcap-q")).count();
        assert_eq!(of_loops, loops, "{args:?}");
        let summary = capture.stop_after(FRAMES.into());
        assert_eq!(summary.ledger.total.captured, u64::from(FRAMES));
        let columns = "port_fwd, port_rev, frames_fwd, frames_rev, count(*)";
        assert_eq!(json!(records(&duckdb, &dir, columns)), expected, "{args:?}");
        if args[0] == "output.name=tap" {
            let found = files::read(&dir.join("tap.pcapng")).into_iter();
            let found: Vec<_> = found.map(|it| it.bytes).collect();
            assert_same("frames", &found, &conversations());
        }
    }
}

/// Columns of flow records that do not depend on the time, the queue or the port of frames.
const TIMELESS: &str = "src, dst, src_port, dst_port, protocol, ethertype, vlan, vlan2, vni, \
    outer_src, outer_dst, outer_protocol, outer_src_port, outer_dst_port, frames_fwd, frames_rev, \
    bytes_fwd, bytes_rev, tcp_flags_fwd, tcp_flags_rev, community_id, tls_sni, tls_alpn, \
    tls_version, ja4, http_method, http_host, http_status, ssh_fwd, ssh_rev";

/// Real captures, whose frames go to one cable or the other, give the same file and the same flow
/// records as a replay of all frames on one port.
#[test]
fn real_conversations_over_two_ports_are_recorded_as_over_one() {
    let duckdb = need!(Duckdb::install());
    let pair = need!(tap());
    let dir = Dir::new();
    let (input, frames) = all_that_fit(&dir);
    let flows = format!("flows.dir={}", dir.folder("flows").display());
    let args = [
        "-w",
        "tap.pcapng",
        "--set",
        &flows,
        "--set",
        "flows.names=true",
    ];
    let capture = Capture::start(&pair, &dir, &BOTH, &args);
    capture.send(&input, &CABLES);
    let summary = capture.stop_after(frames.len() as u64);
    assert_eq!(summary.ledger.total.captured, frames.len() as u64);
    let found = files::read(&dir.join("tap.pcapng"));
    let bytes: Vec<_> = found.into_iter().map(|it| it.bytes).collect();
    assert_same("frames", &bytes, &frames);
    let of_tap = records(&duckdb, &dir, TIMELESS);

    let alone = Dir::new();
    let flows = format!("flows.dir={}", alone.folder("flows").display());
    let wire = format!("pcap:{}", input.display());
    let replay = [
        "run",
        "--model",
        &wire,
        "--set",
        "output.format=none",
        "--set",
        "capture.queues=1",
    ];
    let replay = wqcap(replay).args(["--set", &flows, "--set", "flows.names=true"]);
    let _ = replay.cwd(alone.path()).run().expect(0);
    let of_one = records(&duckdb, &alone, TIMELESS);
    assert!(of_one.len() > 100, "{} records", of_one.len());
    assert_same("records", &of_tap, &of_one);
}

#[test]
fn a_port_that_is_down_or_removed_does_not_stop_the_other() {
    // With `stop`, a port that is down is noted and is no outage.
    for (on_port_down, outages) in [("wait", 2), ("stop", 1)] {
        loses_a_port(need!(tap()), on_port_down, outages);
    }
}

/// Captures two ports with the `on_port_down` setting, and asserts the number of outages. One of the
/// ports is down for a while, and is removed later.
fn loses_a_port(pair: Pair, on_port_down: &str, outages: u64) {
    let dir = Dir::new();
    let on_port_down = format!("capture.on_port_down={on_port_down}");
    let input = dir.join("input.pcap");
    files::write(&input, 0, &conversations()[..20]);
    let mut capture = Capture::start(
        &pair,
        &dir,
        &BOTH,
        &["-w", "tap.pcapng", "--set", &on_port_down],
    );
    capture.send(&input, &CABLES);
    capture.until_received(20);
    let [one, other] = CABLES;
    let set = |state| {
        let args = ["link", "set", other[1], state];
        let _ = pair.near.program("ip", &args).run().expect(0);
    };
    set("down");
    capture.run.until("the loss is noted", |it| {
        it.stderr().contains("port mon1 went down")
    });
    capture.send(&input, &[one]);
    capture.until_received(40);
    set("up");
    capture.run.until("the return is noted", |it| {
        it.stderr().contains("port mon1 came up")
    });
    until_it_sends(pair.near.name(), other[1]).expect("comes up");
    capture.send(&input, &CABLES);
    capture.until_received(60);
    let delete = ["link", "del", other[0]];
    let _ = pair.far.program("ip", &delete).run().expect(0);
    capture.run.until("the removal is noted", |it| {
        it.stderr().contains("port mon1 was removed")
    });
    capture.send(&input, &[one]);
    let summary = capture.stop_after(80);
    assert_eq!(summary.json["end"], "stopped");
    let count = &summary.json["outages"]["count"];
    assert_eq!(*count, outages, "{}", summary.json);
    let ports = summary.json["ports"].as_array().expect("a list of ports");
    let captured: Vec<_> = ports
        .iter()
        .map(|it| number(&it["ledger"]["captured"]))
        .collect();
    assert_eq!(captured, [60, 20]);
}

/// The interface of a port is removed, as when its driver is loaded again. The other port continues,
/// and all frames that are sent before and after are in one file in order.
#[test]
fn a_removed_interface_is_captured_again_when_it_is_back() {
    let xdp = r#"port=[{interface="mon0"},{interface="mon1",backend="af_xdp"}]"#;
    let mtu = ["link", "set", "mon1", "mtu", "1500"];
    for ports in [&BOTH[..], &["--set", xdp]] {
        let pair = need!(tap());
        let dir = Dir::new();
        let input = dir.join("input.pcap");
        files::write(&input, 0, &conversations()[..20]);
        let args = ["-w", "tap.pcapng", "--set", "device.on_loss=retry"];
        let _ = pair.far.program("ip", &mtu).run().expect(0);
        let mut capture = Capture::start(&pair, &dir, ports, &args);
        capture.send(&input, &CABLES);
        capture.until_received(20);
        let [one, other] = CABLES;
        for round in 0..2 {
            let delete = ["link", "del", other[0]];
            let _ = pair.far.program("ip", &delete).run().expect(0);
            let says = "port mon1 was removed; the other ports continue, and this one is captured \
                        again as soon as it is back";
            let back = "port mon1 is back, and is captured again";
            let until = |capture: &mut Capture<'_>, says: &str| {
                capture
                    .run
                    .until(says, |it| it.stderr().matches(says).count() == round + 1);
            };
            until(&mut capture, says);
            let before = 20 + 40 * round as u64;
            capture.send(&input, &[one]);
            capture.until_received(before + 20);
            connect(&pair, &other).expect("a new cable");
            until(&mut capture, back);
            capture.send(&input, &CABLES);
            capture.until_received(before + 40);
        }
        let summary = capture.stop_after(100);
        assert_eq!(summary.json["end"], "stopped");
        assert_eq!(summary.json["outages"]["count"], 2, "{}", summary.json);
        assert!(summary.json["outages"]["last"][1]["to_ns"].is_u64());
        let ports = summary.json["ports"].as_array().expect("a list of ports");
        let captured = ports.iter().map(|it| number(&it["ledger"]["captured"]));
        assert_eq!(captured.collect::<Vec<_>>(), [70, 30]);
        let found = std::fs::read_dir(dir.path()).expect("a folder");
        let mut found: Vec<_> = found
            .filter_map(|it| Some(it.ok()?.path()))
            .filter(|it| it.extension().is_some_and(|it| it == "pcapng"))
            .flat_map(|it| files::read(&it))
            .collect();
        found.sort_by_key(|it| it.ts);
        let found: Vec<_> = found.into_iter().map(|it| it.bytes).collect();
        let sent = [&conversations()[..20]; 5].concat();
        assert_same("frames", &found, &sent);
    }
}

/// An interface that is the only port.
#[test]
fn a_run_of_one_removed_interface_continues_when_it_is_back() {
    let pair = need!(tap());
    let dir = Dir::new();
    let input = dir.join("input.pcap");
    files::write(&input, 0, &conversations()[..20]);
    let args = ["-w", "tap.pcapng", "--set", "device.on_loss=retry"];
    let mut capture = Capture::start(&pair, &dir, &["-i", "mon1"], &args);
    let [_, other] = CABLES;
    capture.send(&input, &[other]);
    capture.until_received(20);
    let delete = ["link", "del", other[0]];
    let _ = pair.far.program("ip", &delete).run().expect(0);
    capture.run.until("the search", |it| {
        it.stderr().contains("searches for it again")
    });
    connect(&pair, &other).expect("a new cable");
    capture.run.until("the return", |it| {
        it.stderr().contains("the lost device is available again")
    });
    capture.send(&input, &[other]);
    let summary = capture.stop_after(40);
    assert_eq!(summary.json["end"], "stopped");
    let outages = summary.json["outages"]["last"].as_array().expect("a list");
    let is_lost = |it: &&Value| it["cause"] == "device_lost";
    let (lost, waits): (Vec<_>, Vec<_>) = outages.iter().partition(is_lost);
    assert!(lost.len() == 1 && lost[0]["to_ns"].is_u64(), "{outages:?}");
    // The kernel takes an interface down before it removes it, and the interface may be found before the
    // other end of its cable is up.
    let is_wait = |it: &&Value| it["cause"] == "port_down";
    assert!(waits.len() <= 2 && waits.iter().all(is_wait), "{outages:?}");
}

/// The second of two software NICs is lost, and returns before the wire of the first ends, if the run
/// waits for it.
#[test]
fn a_lost_rdma_device_does_not_stop_the_other_port() {
    const EACH: u64 = 20_000;
    const UNTIL_LOSS: u64 = 2000;
    for (on_loss, pipeline, of_second) in [
        ("retry", "inline", EACH),
        ("stop", "inline", UNTIL_LOSS),
        ("stop", "fanout", UNTIL_LOSS),
    ] {
        let dir = Dir::new();
        let wire = format!("synth:size=100,flows=64,count={EACH}");
        let run = wqcap(["run", "-w", "tap.pcapng", "--json", "--model"])
            .args([&format!("{wire},pps=5000"), "--model", &wire])
            .args(["--set", &format!("device.on_loss={on_loss}")])
            .args(["--set", &format!("pipeline.mode={pipeline}")])
            .args(["--set", "capture.queues=2", "--set"])
            .args([&format!(
                "model.mlx5_1.fault=device_fatal:for=300@frames={UNTIL_LOSS}"
            )])
            .env("RUST_LOG", "info")
            .cwd(dir.path());
        let done = run.run().expect(0);
        done.says(&["port mlx5_1 was lost: ", "; the other ports continue"]);
        let summary = Summary::parse(&done.stdout);
        assert_eq!(summary.json["end"], "port_down", "{done}");
        let ports = summary.json["ports"].as_array().expect("a list of ports");
        let captured = ports.iter().map(|it| number(&it["ledger"]["captured"]));
        assert_eq!(captured.collect::<Vec<_>>(), [EACH, of_second], "{done}");
        let outages = &summary.json["outages"];
        assert_eq!(outages["count"], 1, "{outages}");
        assert_eq!(outages["last"][0]["to_ns"].is_u64(), on_loss == "retry");
    }
}

/// A killed run leaves a file whose whole records are the first frames that were sent, from both
/// ports, with none missing in between. The run is killed while it captures more.
fn killed_captures_lose_only_their_end(rounds: u64) {
    let pair = need!(tap());
    for round in 0..rounds {
        let dir = Dir::new();
        let input = dir.join("input.pcap");
        let sent = conversations();
        files::write(&input, 0, &sent);
        let mut capture = Capture::start(&pair, &dir, &BOTH, &["-w", "tap.pcap"]);
        capture.send(&input, &CABLES);
        capture.until_received(FRAMES.into());
        capture.run.signal(Signal::USR2);
        let part = dir.join("tap.pcap.part");
        capture.run.until("the frames can be read", |_| {
            let read = Program::new("tcpdump").args(["-n", "-r"]).arg(&part);
            read.arg("udp").run().stdout.lines().count() == sent.len()
        });
        let sending = capture.sender(&input, &CABLES).start();
        let more = u64::from(FRAMES) * (round + 1) / rounds;
        let Capture { run, ctl, .. } = &mut capture;
        ctl.until_counted(run, "received", u64::from(FRAMES) + more);
        capture.run.signal(Signal::KILL);
        let _ = capture.run.wait();
        let _ = sending.wait();
        let _ = wqcap(["recover"]).arg(dir.path()).run().expect(0);
        let found = files::read(&dir.join("tap.pcap"));
        let found: Vec<_> = found.into_iter().map(|it| it.bytes).collect();
        let twice = [&sent[..], &sent[..]].concat();
        assert!(found.len() >= sent.len(), "{} frames", found.len());
        assert_same("frames", &found, &twice[..found.len()]);
    }
}

#[test]
fn a_killed_capture_of_two_ports_loses_only_its_end() {
    killed_captures_lose_only_their_end(3);
}

#[test]
#[ignore = "takes minutes: scripts/soak runs it"]
fn a_hundred_killed_captures_of_two_ports_lose_only_their_ends() {
    killed_captures_lose_only_their_end(100);
}

/// A frame that both ports of an aggregated link deliver is kept once.
#[test]
fn repetitions_on_another_port_are_left_out() {
    let pair = need!(tap());
    let dir = Dir::new();
    let input = dir.join("input.pcap");
    let sent = conversations();
    let doubled: Vec<_> = sent
        .iter()
        .flat_map(|it| [it.clone(), it.clone()])
        .collect();
    files::write(&input, 0, &doubled);
    let args = ["-w", "tap.pcapng", "--set", "capture.dedup=1s"];
    let capture = Capture::start(&pair, &dir, &BOTH, &args);
    capture.send(&input, &CABLES);
    let summary = capture.stop_after(doubled.len() as u64);
    let total = summary.ledger.total;
    assert_eq!(
        (total.captured, total.deduplicated),
        (FRAMES.into(), FRAMES.into())
    );
    let found = files::read(&dir.join("tap.pcapng"));
    let found: Vec<_> = found.into_iter().map(|it| it.bytes).collect();
    assert_same("frames", &found, &sent);
}

/// Two software NICs, each with the frames of one direction and four queues.
#[test]
fn two_rdma_devices_are_ports_of_one_run() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let wires = [0, 1].map(|at| {
        let file = dir.join(format!("{at}.pcap"));
        let frames: Vec<_> = conversations().into_iter().skip(at).step_by(2).collect();
        files::write(&file, 0, &frames);
        format!("pcap:{}", file.display())
    });
    let flows = format!("flows.dir={}", dir.folder("flows").display());
    let run = [
        "run",
        "--model",
        &wires[0],
        "--model",
        &wires[1],
        "-w",
        "tap.pcapng",
        "--json",
    ];
    let run = wqcap(run)
        .args(["--set", &flows, "--set", "capture.queues=4"])
        .cwd(dir.path());
    let done = run.run().expect(0);
    let summary = Summary::parse(&done.stdout);
    assert_eq!(summary.ledger.total.captured, u64::from(FRAMES));
    let ports = summary.json["ports"].as_array().expect("a list of ports");
    let ports: Vec<_> = ports
        .iter()
        .map(|it| (it["device"].as_str(), number(&it["ledger"]["captured"])))
        .collect();
    let half = u64::from(FRAMES / 2);
    assert_eq!(ports, [(Some("mlx5_0"), half), (Some("mlx5_1"), half)]);
    let found = files::read(&dir.join("tap.pcapng"));
    assert!(
        found.is_sorted_by_key(|it| it.ts),
        "not in the order of time"
    );
    let of_each = FRAMES / 2 / FLOWS;
    let expected: Vec<_> = (0..FLOWS).map(|_| json!([of_each, of_each])).collect();
    let columns = "frames_fwd, frames_rev";
    let files = dir.join("flows/*.parquet");
    let rows = duckdb.query(&format!("SELECT {columns} FROM '{}'", files.display()));
    assert_eq!(json!(rows), json!(expected));
}

/// A port of an RDMA device and an ordinary interface, with four queues each: both directions of a
/// flow are in one record, whatever the queues.
#[test]
fn an_rdma_device_and_an_interface_are_ports_of_one_run() {
    let duckdb = need!(Duckdb::install());
    let pair = need!(tap());
    let dir = Dir::new();
    let [one, other] = [0, 1].map(|at| {
        let file = dir.join(format!("{at}.pcap"));
        let frames: Vec<_> = conversations().into_iter().skip(at).step_by(2).collect();
        files::write(&file, 0, &frames);
        file
    });
    let flows = format!("flows.dir={}", dir.folder("flows").display());
    let wire = format!("af_packet:{}", CABLES[0][0]);
    let ports = ["--model", &wire, "-i", "mlx5_0", "-i", "mon1"];
    let args = [
        "-w",
        "tap.pcapng",
        "--set",
        &flows,
        "--set",
        "capture.queues=4",
    ];
    let capture = Capture::start(&pair, &dir, &ports, &args);
    capture.send(&one, &CABLES[..1]);
    capture.send(&other, &CABLES[1..]);
    let summary = capture.stop_after(FRAMES.into());
    assert_eq!(summary.ledger.total.captured, u64::from(FRAMES));
    let backends: Vec<_> = summary.json["ports"]
        .as_array()
        .expect("a list of ports")
        .iter()
        .map(|it| it["backend"].as_str())
        .collect();
    assert_eq!(backends, [Some("mlx5"), Some("af_packet")]);
    let of_each = FRAMES / 2 / FLOWS;
    let rows = records(&duckdb, &dir, "frames_fwd, frames_rev, port_rev, count(*)");
    assert_eq!(json!(rows), json!([[of_each, of_each, "mon1", FLOWS]]));
}

/// `-i any` captures each frame once: not on a bridge and on its port.
#[test]
fn any_is_every_interface_that_is_up_but_not_those_above_others() {
    let pair = need!(tap());
    let dir = Dir::new();
    let bridge = ["link", "add", "br0", "type", "bridge"];
    let _ = pair.far.program("ip", &bridge).run().expect(0);
    let quiet = ["-qw", "net.ipv6.conf.br0.disable_ipv6=1"];
    let _ = pair.far.program("sysctl", &quiet).run().expect(0);
    for args in [
        ["mon0", "master", "br0"].as_slice(),
        &["br0", "up"],
        &["lo", "down"],
        &[IFACE, "down"],
    ] {
        let set = [&["link", "set"], args].concat();
        let _ = pair.far.program("ip", &set).run().expect(0);
    }
    let mut capture = Capture::start(&pair, &dir, &["-i", "any"], &["-w", "any.pcapng"]);
    for says in [
        "note: -i any: br0 is left out: the frames of this interface also arrive on mon0",
        "note: -i any: lo is left out: it is down",
    ] {
        capture.run.until(says, |it| it.stderr().contains(says));
    }
    let input = dir.join("input.pcap");
    files::write(&input, 0, &conversations()[..20]);
    capture.send(&input, &CABLES);
    // The bridge may send frames of its own.
    capture.run.until("each port has its frames", |_| {
        let queues = capture.ctl.json(&["stats"])["ledger"]["queues"].clone();
        let queues = queues.as_array().expect("a list of queues").iter();
        queues.filter(|it| number(&it["received"]) >= 10).count() == 2
    });
    capture.run.signal(Signal::INT);
    let summary = Summary::parse(&capture.run.wait().expect(0).stdout);
    let ports = summary.json["ports"].as_array().expect("a list of ports");
    let labels: Vec<_> = ports.iter().map(|it| it["label"].as_str()).collect();
    assert_eq!(labels, CABLES.map(|[mon, _]| Some(mon)));
    let sent = &conversations()[..20];
    let found = files::read(&dir.join("any.pcapng"));
    let found = found.into_iter().map(|it| it.bytes);
    let found: Vec<_> = found.filter(|it| sent.contains(it)).collect();
    assert_same("frames", &found, sent);
}

/// A queue without traffic must not hold back the others when the run ends: with `hold` and a small
/// buffer, their loops wait for it.
#[test]
fn a_queue_that_ends_without_a_frame_does_not_delay_the_end() {
    let dir = Dir::new();
    let out = format!("output.dir={}", dir.folder("out").display());
    let run = wqcap(["run", "--json"])
        .args(["--model", "synth:size=200,flows=1,count=100000"])
        .args(["--model", "synth:size=1514,flows=1000,count=100000"])
        .args(["--set", &out, "--set", "output.buffer=8MiB"])
        .args(["--set", "output.order=time", "--set", "output.on_full=hold"])
        .args([
            "--set",
            "capture.queues=2",
            "--set",
            "capture.loops=separate",
        ]);
    let mut running = run.start();
    let part = dir.join("out");
    running.until("the first frames in a file", |_| {
        let files = std::fs::read_dir(&part).into_iter().flatten().flatten();
        files
            .filter_map(|it| it.metadata().ok())
            .any(|it| it.len() > 0)
    });
    running.signal(Signal::TERM);
    let begun = Instant::now();
    let _ = running.wait().expect(0);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}
