//! Community IDs of flows in all captures, compared with the reference implementation and with
//! Suricata.
//!
//! Each difference must have a known reason. The tests print the number of flows for each reason.

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Mutex,
};
use wqcap_tests::{
    Dir, Finished, Program, Wqcap,
    captures::Captures,
    ledger::number,
    need,
    oracles::{
        community::{self, Tuple},
        duckdb::Duckdb,
    },
    skip,
    wqcap::wqcap,
};

const ICMP: [u64; 2] = [1, 58];
/// Protocols with ports: TCP, UDP and SCTP.
const WITH_PORTS: [u64; 3] = [6, 17, 132];

/// Source address of the only message in the captures that is truncated within its header, after
/// type and code.
const SHORT_MESSAGE: &str = "4f:f829:c:1a1a:1a1a:1a1a:1a37:0";

const NO_PORTS: &str = "the ports are unknown: the reference gets 0";

/// Destination address of the only packet encapsulated in NSH.
const NSH_DESTINATION: &str = "10.13.13.13";

/// Types of ICMP requests and replies.
const TWO_WAY: [u64; 10] = [0, 8, 9, 10, 13, 14, 15, 16, 17, 18];
const TWO_WAY_V6: [u64; 12] = [128, 129, 130, 131, 133, 134, 135, 136, 139, 140, 144, 145];

/// Captures a file with flow records, on one queue, so that the frames keep the order of the file.
fn run(dir: &Dir, file: &Path) -> Finished {
    Wqcap::run(dir, "flows")
        .replay(file)
        .queues(1)
        .set("capture.buffer=128KiB")
        .set(&format!("flows.dir={}", dir.folder("flows").display()))
        .finish(0)
}

/// Protocol and sorted endpoints of a flow, independent of its direction.
type Ends = (u64, [(String, u64); 2]);

fn ends(protocol: u64, ends: [String; 2], ports: [u64; 2]) -> Ends {
    let [one, other] = ends;
    let mut ends = [(one, ports[0]), (other, ports[1])];
    ends.sort();
    (protocol, ends)
}

/// Record of an IP flow.
struct Flow {
    /// Addresses of both endpoints; the first is the sender of the first frame.
    ends: [String; 2],
    protocol: u64,
    ports: Option<[u64; 2]>,
    /// Time stamp of the first frame, in nanoseconds since 1970.
    first_ns: u64,
    id: Option<String>,
    /// Endpoints of the surrounding tunnel, without ports: records hold no ports of the reverse
    /// direction.
    tunnel: Option<Ends>,
}

fn flows(duckdb: &Duckdb, finished: &Finished) -> Vec<Flow> {
    let files = finished.summary.json["flows"]["files"].as_array();
    let files = files.expect("a run with flow records").iter();
    let files: Vec<_> = files
        .map(|it| format!("'{}'", it.as_str().expect("a path")))
        .collect();
    let rows = duckdb.query(&format!(
        "SELECT src, dst, protocol, src_port, dst_port, first_fwd_ns, community_id,
            outer_src, outer_dst, outer_protocol
            FROM read_parquet([{}]) WHERE ip_version IS NOT NULL",
        files.join(", ")
    ));
    let text = |it: &Value| it.as_str().map(str::to_owned);
    let flow = |row: &Vec<Value>| Flow {
        ends: [&row[0], &row[1]].map(|it| text(it).expect("an address")),
        protocol: number(&row[2]),
        ports: row[3].as_u64().zip(row[4].as_u64()).map(|it| [it.0, it.1]),
        first_ns: number(&row[5]),
        id: text(&row[6]),
        tunnel: text(&row[7])
            .zip(text(&row[8]))
            .map(|(src, dst)| ends(number(&row[9]), [src, dst], [0, 0])),
    };
    rows.iter().map(flow).collect()
}

/// Types and codes of ICMP messages that other messages do not quote, according to tshark, by the
/// frame's time stamp and endpoints.
type Messages = BTreeMap<(u64, [String; 2]), [u64; 2]>;

fn messages(file: &Path) -> Messages {
    const FIELDS: [&str; 11] = [
        "frame.protocols",
        "frame.time_epoch",
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
        "icmp.type",
        "icmp.code",
        "icmpv6.type",
        "icmpv6.code",
        "frame.number",
    ];
    let done = Program::new("tshark")
        .args(["-n", "-T", "fields", "-E", "separator=|", "-Y"])
        .args(["icmp || icmpv6", "-o", "ip.defragment:FALSE"])
        .args(["-o", "ipv6.defragment:FALSE"])
        .args(["-d", "udp.port==8472,vxlan"])
        .args(FIELDS.iter().flat_map(|it| ["-e", *it]))
        .arg("-r")
        .arg(file)
        .run()
        .expect(0);
    let mut messages = Messages::new();
    for line in done.stdout.lines() {
        let fields: Vec<_> = line.split('|').collect();
        let seconds = fields[1].replace('.', "");
        let ns = seconds.parse().expect("nanoseconds");
        // The endpoints are those of the innermost packet around the message.
        let stack = fields[0].split(':');
        let around = stack.take_while(|it| !["icmp", "icmpv6"].contains(it));
        let around: Vec<_> = around.filter(|it| ["ip", "ipv6"].contains(it)).collect();
        let Some(innermost) = around.last() else {
            continue;
        };
        let of_its_kind = around.iter().filter(|it| *it == innermost).count();
        let (ends, message) = if *innermost == "ip" {
            ([2, 3], [6, 7])
        } else {
            ([4, 5], [8, 9])
        };
        let nth = |at: usize, nth: usize| fields[at].split(',').nth(nth).map(str::to_owned);
        let ends = ends.map(|at| nth(at, of_its_kind - 1).expect("an address"));
        let message = message.map(|at| nth(at, 0).and_then(|it| it.parse().ok()));
        if let [Some(kind), Some(code)] = message {
            messages.entry((ns, ends)).or_insert([kind, code]);
        }
    }
    messages
}

/// Counts of equal IDs and of differences by reason.
#[derive(Default)]
struct Verdict {
    same: usize,
    explained: BTreeMap<&'static str, usize>,
    unexplained: Vec<String>,
}

impl Verdict {
    fn add(&mut self, same: bool, reason: Option<&'static str>, describe: impl FnOnce() -> String) {
        match (same, reason) {
            (true, _) => self.same += 1,
            (false, Some(reason)) => *self.explained.entry(reason).or_default() += 1,
            (false, None) => self.unexplained.push(describe()),
        }
    }

    /// Asserts that every difference has a reason and that at least `floor` IDs are equal.
    #[track_caller]
    fn assert(&self, what: &str, floor: usize) {
        skip::say(&format!("{what}: {} are equal", self.same));
        for (reason, count) in &self.explained {
            skip::say(&format!("  {count:5}  {reason}"));
        }
        let (count, first) = (self.unexplained.len(), self.unexplained.iter().take(20));
        let first: Vec<_> = first.map(String::as_str).collect();
        assert!(count == 0, "{what}: {count} differ\n{}", first.join("\n"));
        assert!(self.same >= floor, "{what}: only {} are equal", self.same);
    }
}

#[test]
fn ids_in_flow_records_are_those_of_the_reference_implementation() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let captures = Captures::find();
    let (file, _) = captures.everything(&dir);
    let finished = run(&dir, &file);
    let (flows, messages) = (flows(&duckdb, &finished), messages(&finished.files()[0].1));
    let tuples: Vec<Tuple> = flows
        .iter()
        .map(|it| {
            let message = messages.get(&(it.first_ns, it.ends.clone()));
            let ports = match ICMP.contains(&it.protocol) {
                true => message.copied(),
                false => it.ports,
            };
            (it.protocol, it.ends.clone(), ports)
        })
        .collect();
    let ids = need!(community::ids(tuples.iter()));
    let (mut verdict, mut none) = (Verdict::default(), 0);
    let mut same_icmp = [0, 0];
    for ((flow, tuple), id) in flows.iter().zip(&tuples).zip(&ids) {
        if flow.id.is_none() && id.is_none() {
            none += 1;
            continue;
        }
        let same = flow.id == *id;
        if let Some(at) = ICMP.iter().position(|it| *it == flow.protocol) {
            same_icmp[at] += usize::from(same);
        }
        let reason = match (&flow.id, tuple.2) {
            (None, Some([0, 0])) => Some(NO_PORTS),
            (None, _) if flow.ends[0] == SHORT_MESSAGE => {
                Some("an ICMPv6 message truncated after six bytes is not parsed")
            }
            _ => None,
        };
        verdict.add(same, reason, || {
            format!("{tuple:?}: {:?}, reference {id:?}", flow.id)
        });
    }
    skip::say(&format!(
        "{none} flows have no ID in either; equal IDs of ICMP and ICMPv6: {same_icmp:?}"
    ));
    verdict.assert(
        "Community IDs of records",
        if captures.real { 470 } else { 100 },
    );
    assert!(same_icmp[0] > 0, "{same_icmp:?}");
    assert!(!captures.real || same_icmp[1] > 20, "{same_icmp:?}");
}

/// Parses a flow in the output of `wqcap rss`, such as `udp 10.0.0.1:53 - [fd00::1]:53`; `None` if
/// it is not IP.
fn parse_flow(flow: &str) -> Option<Tuple> {
    let (protocol, rest) = match flow.split_once(' ')? {
        ("ip", rest) => {
            let (number, rest) = rest.strip_prefix("protocol ")?.split_once(' ')?;
            (number.parse().ok()?, rest)
        }
        (name, rest) => {
            let names = [("tcp", 6), ("udp", 17), ("icmp", 1), ("gre", 47)];
            let others = [("esp", 50), ("icmpv6", 58), ("sctp", 132)];
            let mut names = names.iter().chain(&others);
            (names.find(|it| it.0 == name)?.1, rest)
        }
    };
    let rest = rest.strip_prefix("fragments ").unwrap_or(rest);
    let (one, other) = rest.split_once(" - ")?;
    let end = |text: &str| match text.parse::<SocketAddr>() {
        Ok(it) => (it.ip().to_string(), Some(u64::from(it.port()))),
        Err(_) => (text.to_owned(), None),
    };
    let (one, other) = (end(one), end(other));
    let ports = one.1.zip(other.1).map(|it| [it.0, it.1]);
    Some((protocol, [one.0, other.0], ports))
}

#[test]
fn ids_in_the_report_of_rss_are_those_of_the_reference_implementation() {
    let captures = Captures::find();
    let found = Mutex::new(BTreeSet::new());
    captures.each(|file| {
        let done = wqcap(["rss", "--json"]).arg(file).run().expect(0);
        let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
        let heaviest = report["heaviest"].as_array().expect("flows");
        let mut found = found.lock().expect("no panic");
        for flow in heaviest {
            let id = flow["community_id"].as_str().map(str::to_owned);
            found.insert((flow["flow"].as_str().expect("a text").to_owned(), id));
        }
    });
    let found = found.into_inner().expect("no panic");
    let (flows, tuples): (Vec<_>, Vec<_>) = found
        .into_iter()
        .filter_map(|it| Some((parse_flow(&it.0)?, it)).map(|it| (it.1, it.0)))
        .unzip();
    let ids = need!(community::ids(tuples.iter()));
    let (mut verdict, mut none) = (Verdict::default(), 0);
    for (((flow, id), tuple), theirs) in flows.iter().zip(&tuples).zip(&ids) {
        if id.is_none() && theirs.is_none() {
            none += 1;
            continue;
        }
        let reason = (id.is_none() && tuple.2 == Some([0, 0])).then_some(NO_PORTS);
        verdict.add(id == theirs, reason, || {
            format!("{flow}: {id:?}, reference {theirs:?}")
        });
    }
    skip::say(&format!("{none} flows have no ID in either"));
    verdict.assert(
        "Community IDs of the heaviest flows",
        if captures.real { 400 } else { 50 },
    );
}

/// Configuration of Suricata that logs only flows, with Community IDs.
const SURICATA: &str = "%YAML 1.1
---
vars: {address-groups: {HOME_NET: any, EXTERNAL_NET: any}}
outputs:
  - eve-log:
      enabled: yes
      filetype: regular
      filename: eve.json
      community-id: true
      community-id-seed: 0
      types: [flow]
flow: {memcap: 256mb, hash-size: 65536, prealloc: 1000}
vlan: {use-for-tracking: true}
";

/// Returns the flow events that Suricata logs for a file.
fn suricata(dir: &Dir, file: &Path) -> Result<Vec<Value>, String> {
    let find = ["-c", "command -v suricata"];
    if !Program::new("sh").args(find).run().status.success() {
        return Err("suricata is not installed (package suricata, from Debian 13)".to_owned());
    }
    let log = dir.folder("suricata");
    let config = dir.write("suricata.yaml", SURICATA);
    let done = Program::new("suricata")
        .args(["-k", "none", "-S", "/dev/null", "-c"])
        .arg(config)
        .arg("-l")
        .arg(&log)
        .arg("-r")
        .arg(file)
        .run()
        .expect(0);
    let eve = std::fs::read_to_string(log.join("eve.json"));
    let eve = eve.unwrap_or_else(|e| panic!("{e}: {done}"));
    let line = |it: &str| serde_json::from_str(it).expect("a line of JSON");
    Ok(eve.lines().map(line).collect())
}

#[test]
fn ids_in_flow_records_are_those_of_suricata() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let captures = Captures::find();
    let (file, _) = captures.everything(&dir);
    let events = need!(suricata(&dir, &file));
    let finished = run(&dir, &file);
    let mut tunnels = BTreeSet::new();
    let mut ours: BTreeMap<Ends, BTreeSet<String>> = BTreeMap::new();
    for flow in flows(&duckdb, &finished) {
        tunnels.extend(flow.tunnel);
        let ports = flow.ports.unwrap_or_default();
        let ends = ends(flow.protocol, flow.ends, ports);
        ours.entry(ends).or_default().extend(flow.id);
    }
    let mut verdict = Verdict::default();
    for event in events {
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let protocol = match text("proto").as_str() {
            "TCP" => 6,
            "UDP" => 17,
            "SCTP" => 132,
            "ICMP" => 1,
            "IPv6-ICMP" => 58,
            "ESP" => 50,
            other => panic!("{other}: {event}"),
        };
        let address = |key| text(key).parse::<IpAddr>().expect("an address");
        let pair = ["src_ip", "dest_ip"].map(|it| address(it).to_string());
        let ports = match WITH_PORTS.contains(&protocol) {
            true => ["src_port", "dest_port"].map(|it| number(&event[it])),
            false => [0, 0],
        };
        let (is_loop, is_nsh) = (pair[0] == pair[1], pair[1] == NSH_DESTINATION);
        let theirs = text("community_id");
        let tunnel = ends(protocol, pair.clone(), [0, 0]);
        let found = ours.get(&ends(protocol, pair, ports));
        let kind = event["icmp_type"].as_u64().unwrap_or_default();
        let reason = match (protocol, found) {
            (_, None) if tunnels.contains(&tunnel) => {
                Some("a tunnel's outer flow: records describe the inner packets")
            }
            (_, None) if is_nsh => Some("packets in NSH are not parsed"),
            (1, Some(_)) if !TWO_WAY.contains(&kind) => Some(
                "a one-way ICMP message: Suricata sorts the endpoints, the specification does not",
            ),
            (58, Some(_)) if !TWO_WAY_V6.contains(&kind) => {
                Some("a one-way ICMPv6 message: Suricata uses code 0 and sorts the endpoints")
            }
            (1, Some(_)) if kind == 0 && event["flow"]["pkts_toclient"] == 0 => {
                Some("an echo reply without a request: Suricata treats it as a one-way message")
            }
            (50, Some(_)) => Some(
                "ESP: Suricata has one ID per SPI, the specification one per pair of endpoints",
            ),
            (_, Some(_)) if is_loop => {
                Some("both endpoints have the same address: Suricata does not sort the ports")
            }
            _ => None,
        };
        let same = found.is_some_and(|ids| ids.contains(&theirs));
        verdict.add(same, reason, || format!("{event}: ours {found:?}"));
    }
    verdict.assert(
        "Community IDs of Suricata's flows",
        if captures.real { 240 } else { 50 },
    );
}
