//! Captures of several ports in one run: `wqcap run -i mon0 -i mon1`, as behind a tap that delivers
//! the two directions of a link on two interfaces. tcpdump, tshark and capinfos are the judges.

use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::Path;
use wqcap_tests::{
    Dir, Pair, Program, Running, Summary,
    compare::assert_same,
    ctl::Ctl,
    files,
    frames::{Ends, Frame, IPV4},
    ledger::number,
    machine::netns::until_it_sends,
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
    let (near, far) = (&pair.near, &pair.far);
    for [mon, peer] in CABLES {
        let add = ["link", "add", peer, "type", "veth", "peer", "name", mon];
        let add = [&add[..], &["netns", far.name()]].concat();
        let _ = near.program("ip", &add).run().expect(0);
        for (end, iface) in [(near, peer), (far, mon)] {
            let key = format!("net.ipv6.conf.{iface}.disable_ipv6=1");
            let _ = end.program("sysctl", &["-qw", &key]).run().expect(0);
            let up = ["link", "set", iface, "arp", "off", "up"];
            let _ = end.program("ip", &up).run().expect(0);
        }
        until_it_sends(near.name(), peer)?;
    }
    Ok(pair)
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

/// Captures the conversations with `args` and flow records in the directory `flows`. Returns the
/// summary.
fn capture(pair: &Pair, dir: &Dir, args: &[&str]) -> Summary {
    let input = dir.join("input.pcap");
    files::write(&input, 0, &conversations());
    let socket = dir.join("control.sock");
    let flows = dir.folder("flows");
    let run = wqcap(["run", "-i", "mon0", "-i", "mon1", "--json"])
        .args(args)
        .args(["--set", &format!("control.unix={}", socket.display())])
        .args(["--set", &format!("flows.dir={}", flows.display())])
        .env("RUST_LOG", "info")
        .cwd(dir.path());
    let mut run = pair.far.enter(run).start();
    run.until("the capture is ready", |it| {
        it.stderr().contains("capturing mon0 and mon1 on")
    });
    let [to_mon0, to_mon1] = CABLES.map(|[_, peer]| peer);
    let input = input.to_str().expect("a plain path");
    let send = ["-c", SEND, input, to_mon0, to_mon1];
    let _ = pair.near.program("python3", &send).run().expect(0);
    let received = Ctl::at(&socket).until_counted(&mut run, "received", FRAMES.into());
    assert_eq!(received, u64::from(FRAMES));
    run.signal(Signal::INT);
    Summary::parse(&run.wait().expect(0).stdout)
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
        let half = usize::from(FRAMES / 2);
        judge.until("tcpdump has all frames", |_| {
            files::read_as_it_stands(dump).len() == half
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

/// Without one file in time order, each port has its own records.
#[test]
fn records_of_separate_ports_name_the_port_of_their_queue() {
    let duckdb = need!(Duckdb::install());
    let pair = need!(tap());
    let dir = Dir::new();
    let _ = capture(&pair, &dir, &["--set", "output.format=none"]);
    let of_each = FRAMES / 2 / FLOWS;
    let records = records(&duckdb, &dir, "port_fwd, port_rev, frames_fwd, count(*)");
    let expected = CABLES.map(|[mon, _]| json!([mon, null, of_each, FLOWS]));
    assert_eq!(json!(records), json!(expected));
}
