//! Filters, held to tcpdump: for each expression, exactly the frames that `tcpdump -r FILE EXPR -w -` selects, over
//! every frame of every capture; our interpreter, held to libpcap's own; and the rules that a NIC gets of an expression,
//! which take all it keeps.

use engine::{
    config::Config,
    filter::Filter,
    plan::steering::Steering,
    verbs::{FlowSpec, Masked},
};
use rss::{FrameClass, L3, L4};
use std::{collections::HashSet, fs, path::Path, process::Command, thread};
use wqcap_tests::{
    Dir,
    captures::Captures,
    files::{self, Record},
    skip,
};

/// What people type, and what is hard: tags, stacks, fragments, arithmetic, lengths, other layers.
const EXPRESSIONS: [&str; 44] = [
    "ip",
    "ip6",
    "arp",
    "not ip and not ip6",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "sctp",
    "tcp port 80",
    "udp port 53",
    "port 179 or port 22",
    "tcp dst port 445",
    "src port 67 and dst port 68",
    "portrange 1-1023",
    "host 192.168.1.1",
    "net 10.0.0.0/8",
    "src net 192.168.0.0/16 and not dst net 192.168.0.0/16",
    "ip6 net fe80::/10",
    "dst host ff02::1",
    "ether broadcast",
    "ether multicast and not broadcast",
    "ether host 01:80:c2:00:00:00",
    "ether proto 0x88cc",
    "ether[12:2] > 1500 and ether[0] & 1 != 0",
    "vlan",
    "vlan and ip",
    "vlan 100",
    "vlan and vlan",
    "vlan and tcp port 80 or udp port 53",
    "mpls",
    "mpls and ip",
    "pppoes",
    "pppoes and not ip",
    "geneve",
    "greater 1000",
    "less 64 or len = 114",
    "ip[6:2] & 0x1fff != 0",
    "ip[6:2] & 0x3fff != 0 or ip6 proto 44",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0 and not src and dst net 127.0.0.0/8",
    "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
    "ip proto 47 or ip proto ospf or ip6 protochain 58",
    "stp or isis or ether proto 0x8137 or llc xid",
    "udp[4:2] * 2 - 16 > ip[2:2] % 100 and (ip[8] << 2) / 3 != 7",
];

fn frames() -> Vec<Record> {
    let captures = Captures::find();
    let all = captures.files.iter();
    all.flat_map(|file| files::read_as_it_stands(file))
        .collect()
}

/// Writes records, the second of each stamp being its number.
fn write(path: &Path, records: &[Record]) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 1 << 18, 1] {
        file.extend_from_slice(&u32::to_le_bytes(word));
    }
    for (i, record) in (0u32..).zip(records) {
        for word in [i, 0, record.caplen, wire(record)] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&record.bytes);
    }
    fs::write(path, file).expect("the folder is writable");
}

/// Some captures say less of the wire than they hold.
fn wire(record: &Record) -> u32 {
    record.len.max(record.caplen)
}

/// The numbers of the frames that tcpdump selects.
fn selected(file: &Path, expression: &str, out: &Path) -> Result<HashSet<u64>, String> {
    let mut command = Command::new("tcpdump");
    command
        .arg("-n")
        .arg("-r")
        .arg(file)
        .arg("-w")
        .arg(out)
        .arg(expression);
    let done = command.output();
    let done = done.map_err(|e| format!("tcpdump cannot be run: {e}"))?;
    assert!(
        done.status.success(),
        "{expression}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    let records = files::read_as_it_stands(out);
    Ok(records.iter().map(|it| it.ts / 1_000_000_000).collect())
}

#[test]
fn exactly_the_frames_that_tcpdump_selects() {
    let records = frames();
    let dir = Dir::new();
    let file = dir.join("all.pcap");
    write(&file, &records);
    if let Err(reason) = selected(&file, "ip", &dir.join("probe.pcap")) {
        skip!("{reason}");
    }
    let halves = EXPRESSIONS.split_at(EXPRESSIONS.len() / 2);
    thread::scope(|scope| {
        for expressions in [halves.0, halves.1] {
            let (dir, file, records) = (&dir, &file, &records);
            scope.spawn(move || {
                for expression in expressions {
                    hold(expression, dir, file, records);
                }
            });
        }
    });
    skip::say(&format!(
        "filter: {} expressions select tcpdump's frames of {}",
        EXPRESSIONS.len(),
        records.len()
    ));
}

fn hold(expression: &str, dir: &Dir, file: &Path, records: &[Record]) {
    let out = dir.join(format!("{:?}.pcap", thread::current().id()));
    let theirs = selected(file, expression, &out).expect("it could be run before");
    let filter = Filter::compile(expression).expect(expression);
    for (i, record) in (0u64..).zip(records) {
        let ours = filter.accepts(&record.bytes, wire(record));
        assert_eq!(
            ours,
            theirs.contains(&i),
            "{expression}: frame {i}, {:02x?}",
            record.bytes
        );
    }
    let real = Captures::find().real;
    assert!(
        !real || !theirs.is_empty() || ["vlan and vlan"].contains(&expression),
        "{expression} selects nothing, so it shows nothing"
    );
}

#[test]
fn the_interpreter_is_libpcaps() {
    let records = frames();
    for expression in EXPRESSIONS {
        let ours = Filter::compile(expression).expect(expression);
        let theirs = pcap::Capture::dead(pcap::Linktype::ETHERNET).expect("memory");
        let theirs = theirs.compile(expression, true).expect(expression);
        for record in &records {
            assert_eq!(
                ours.accepts(&record.bytes, record.caplen),
                theirs.filter(&record.bytes),
                "{expression}: {:02x?}",
                record.bytes
            );
        }
    }
}

fn matches<T: Copy>(asked: Masked<T>, there: T) -> bool
where
    u128: std::convert::From<T>,
{
    let number = u128::from;
    (number(asked.value) ^ number(there)) & number(asked.mask) == 0
}

/// A number in a frame; what is behind its end is zero.
fn number(frame: &[u8], at: usize, len: usize) -> u128 {
    let bytes = (at..at + len).map(|at| frame.get(at).copied().unwrap_or(0));
    bytes.fold(0, |n, byte| n << 8 | u128::from(byte))
}

/// Whether a NIC that has made this of a frame lets a rule's spec take it.
fn takes(spec: &FlowSpec, frame: &[u8], class: &FrameClass) -> bool {
    let (l3, l4) = (usize::from(class.l3_offset), usize::from(class.l4_offset));
    let wide = |it: Masked<u32>| Masked {
        value: u128::from(it.value),
        mask: u128::from(it.mask),
    };
    let ports = |src, dst| {
        let port = |at| u16::try_from(number(frame, at, 2)).unwrap();
        matches(src, port(l4)) && matches(dst, port(l4 + 2))
    };
    match *spec {
        FlowSpec::Ethernet {
            dst,
            ethertype,
            vlan,
        } => {
            let cvlan = number(frame, 12, 2) == 0x8100 && class.vlan_tags > 0;
            (0..6).all(|i| (dst.value[i] ^ frame[i]) & dst.mask[i] == 0)
                && matches(ethertype, class.ethertype)
                && (vlan.mask == 0 || cvlan && matches(vlan, class.vlan.unwrap_or(0)))
        }
        FlowSpec::Ipv4 { src, dst, proto } => {
            class.l3 == L3::Ipv4
                && matches(wide(src), number(frame, l3 + 12, 4))
                && matches(wide(dst), number(frame, l3 + 16, 4))
                && matches(proto, class.ip_protocol)
        }
        FlowSpec::Ipv6 { src, dst, proto } => {
            class.l3 == L3::Ipv6
                && matches(src, number(frame, l3 + 8, 16))
                && matches(dst, number(frame, l3 + 24, 16))
                && matches(proto, class.ip_protocol)
        }
        FlowSpec::Tcp { src, dst } => class.l4 == L4::Tcp && ports(src, dst),
        FlowSpec::Udp { src, dst } => class.l4 == L4::Udp && ports(src, dst),
        ref other => panic!("rules that are made of filters have no {other:?}"),
    }
}

/// Rules take all that an expression keeps, but what no NIC parses. Those frames are the kernel's.
#[test]
fn what_the_rules_take_is_all_that_the_expression_keeps() {
    let records = frames();
    let (mut split, mut whole, mut kept, mut broken) = (0, 0, 0, 0);
    for expression in EXPRESSIONS {
        let settings = [("capture.mode", "filtered"), ("capture.filter", expression)];
        let config = Config::with_overrides("", &settings).expect(expression);
        let Ok(steering) = Steering::of(&config, 2) else {
            whole += 1;
            continue;
        };
        split += 1;
        let filter = Filter::compile(expression).expect(expression);
        for record in records.iter().filter(|it| it.bytes.len() >= 14) {
            if !filter.accepts(&record.bytes, wire(record)) {
                continue;
            }
            kept += 1;
            let class = FrameClass::of(&record.bytes);
            let takes = |spec: &FlowSpec| takes(spec, &record.bytes, &class);
            let taken = steering.rules.iter().any(|it| it.specs.iter().all(takes));
            let is_ip = [0x0800, 0x86dd].contains(&class.ethertype);
            let unparsed = class.truncated_l4 || is_ip && class.l3 == L3::None;
            assert!(
                taken || unparsed,
                "{expression}: {:02x?} is kept, and no rule takes it:\n{:#?}",
                record.bytes,
                steering.split
            );
            broken += usize::from(!taken);
        }
    }
    assert!(split > 20 && whole > 5, "{split} in the NIC, {whole} not");
    assert!(
        broken * 20 < kept,
        "{broken} of {kept} frames are not taken"
    );
    skip::say(&format!(
        "filter: rules made of {split} expressions take all but {broken} broken ones of {kept} frames that they keep"
    ));
}
