//! What tshark says of every frame, field by field.
//!
//! Reassembly is off, so that tshark too sees frames one by one. tshark looks further than the engine does: into what
//! ICMP quotes, and into tunnels that are not in the engine's list. So what the engine says of a field must be the
//! beginning of what tshark says, and where the two are not the same, [`REASONS`] must have a reason, by what the frame
//! is. A difference without a reason fails; how many frames each reason explains is printed.

use super::Sample;
use super::layers::{Layer, Layers};
use std::{collections::BTreeMap, net::IpAddr, process::Command};
use wqcap_frame::{Malformed, Next, protocol};
use wqcap_tests::{Dir, skip};

/// tshark's names for what both tell.
const FIELDS: [&str; 28] = [
    "eth.type",
    "vlan.etype",
    "vlan.id",
    "ieee8021ad.id",
    "mpls.label",
    "pppoe.session_id",
    "ip.src",
    "ip.dst",
    "ip.proto",
    "ip.flags.df",
    "ip.flags.mf",
    "ip.frag_offset",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.nxt",
    "ipv6.hopopts.nxt",
    "ipv6.routing.nxt",
    "ipv6.dstopts.nxt",
    "ipv6.fraghdr.nxt",
    "ah.next_header",
    "ipv6.fraghdr.offset",
    "ipv6.fraghdr.more",
    "tcp.srcport",
    "tcp.dstport",
    "udp.srcport",
    "udp.dstport",
    "sctp.srcport",
    "sctp.dstport",
];

/// Values by field.
type Facts = BTreeMap<&'static str, Vec<String>>;

/// What the engine says.
fn ours(frame: &[u8]) -> Facts {
    let mut facts = Facts::new();
    let mut tpids = Vec::new();
    for located in Layers::of(frame) {
        let mut add = |field: &'static str, value: String| {
            facts.entry(field).or_default().push(value);
        };
        let hex = |value: u16| format!("0x{value:04x}");
        let bit = |value: bool| u8::from(value).to_string();
        match located.layer {
            Layer::Ethernet(it) => {
                tpids.push(it.ethertype());
                if it.ethertype() > 1500 {
                    add("eth.type", hex(it.ethertype()));
                }
            }
            Layer::Vlan(it) => {
                let service = tpids.last() == Some(&0x88a8);
                let field = if service { "ieee8021ad.id" } else { "vlan.id" };
                add(field, it.id().to_string());
                if it.ethertype() > 1500 {
                    add("vlan.etype", hex(it.ethertype()));
                }
                tpids.push(it.ethertype());
            }
            Layer::Mpls(it) => add("mpls.label", it.label().to_string()),
            Layer::Pppoe(it) => add("pppoe.session_id", hex(it.session())),
            Layer::Ipv4(it) => {
                add("ip.src", IpAddr::from(it.src()).to_string());
                add("ip.dst", IpAddr::from(it.dst()).to_string());
                add("ip.proto", it.protocol().to_string());
                add("ip.flags.df", bit(it.fragment_field() & 0x4000 != 0));
                add("ip.flags.mf", bit(it.fragment_field() & 0x2000 != 0));
                add("ip.frag_offset", (it.fragment_field() & 0x1fff).to_string());
            }
            Layer::Ipv6(it) => {
                add("ipv6.src", IpAddr::from(it.src()).to_string());
                add("ipv6.dst", IpAddr::from(it.dst()).to_string());
                add("ipv6.nxt", it.next_header().to_string());
            }
            Layer::Extension(it) => {
                let next = it.next_header().to_string();
                match located.announced {
                    Next::AboveIpv6(protocol::HOP_BY_HOP) => add("ipv6.hopopts.nxt", next),
                    Next::AboveIpv6(protocol::ROUTING) => add("ipv6.routing.nxt", next),
                    Next::AboveIpv6(protocol::DESTINATION) => add("ipv6.dstopts.nxt", next),
                    _ => {}
                }
            }
            Layer::Ah(it) => add("ah.next_header", it.next_header().to_string()),
            Layer::Ipv6Fragment(it) => {
                add("ipv6.fraghdr.nxt", it.next_header().to_string());
                add("ipv6.fraghdr.offset", it.offset().to_string());
                add("ipv6.fraghdr.more", bit(it.more()));
            }
            Layer::Tcp(it) => {
                add("tcp.srcport", it.src_port().to_string());
                add("tcp.dstport", it.dst_port().to_string());
            }
            Layer::Udp(it) => {
                add("udp.srcport", it.src_port().to_string());
                add("udp.dstport", it.dst_port().to_string());
            }
            Layer::Sctp(it) => {
                add("sctp.srcport", it.src_port().to_string());
                add("sctp.dstport", it.dst_port().to_string());
            }
            _ => {}
        }
    }
    facts
}

/// What tshark tells of these fields, a line for each frame, fields apart by `|`. More arguments go before the file's.
pub fn told(samples: &[Sample], args: &[&str], fields: &[&str]) -> Result<Vec<String>, String> {
    let dir = Dir::new();
    let file = dir.join("all.pcap");
    super::write(&file, samples);
    let mut command = Command::new("tshark");
    command.args([
        "-n",
        "-T",
        "fields",
        "-E",
        "separator=|",
        "-E",
        "aggregator=;",
    ]);
    for off in [
        "ip.defragment",
        "ipv6.defragment",
        "tcp.desegment_tcp_streams",
    ] {
        command.args(["-o", &format!("{off}:FALSE")]);
    }
    // Large segments are ordinary, and so is the port that Linux has used for VXLAN.
    command.args(["-o", "ipv6.tso_support:TRUE", "-d", "udp.port==8472,vxlan"]);
    command.args(args);
    for field in fields {
        command.args(["-e", field]);
    }
    let out = command.arg("-r").arg(&file).output();
    let out = out.map_err(|e| format!("tshark cannot be run: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    if lines.len() == samples.len() {
        Ok(lines)
    } else {
        Err(format!(
            "tshark told of {} frames of {}: {}",
            lines.len(),
            samples.len(),
            String::from_utf8_lossy(&out.stderr)
        ))
    }
}

/// What tshark says: of each frame its stack of protocols and its fields.
fn theirs(samples: &[Sample]) -> Result<Vec<(String, Facts)>, String> {
    let fields: Vec<_> = ["frame.protocols"].into_iter().chain(FIELDS).collect();
    let lines = told(samples, &[], &fields)?;
    Ok(lines.iter().map(|it| read(it)).collect())
}

fn read(line: &str) -> (String, Facts) {
    let mut columns = line.split('|');
    let stack = columns.next().unwrap_or_default().to_owned();
    let facts = FIELDS
        .into_iter()
        .zip(columns)
        .filter(|(_, values)| !values.is_empty())
        .map(|(field, values)| (field, values.split(';').map(plain).collect()))
        .collect();
    (stack, facts)
}

/// Addresses in Rust's notation.
fn plain(value: &str) -> String {
    let address: Result<IpAddr, _> = value.parse();
    address.map_or_else(|_| value.to_owned(), |it| it.to_string())
}

/// One frame on which the two differ.
struct Difference<'a> {
    /// tshark's protocols, `eth:ethertype:ip:udp`.
    stack: &'a str,
    malformed: Option<Malformed>,
}

impl Difference<'_> {
    fn passes(&self, protocols: &str) -> bool {
        format!("{}:", self.stack).contains(&format!(":{protocols}:"))
    }

    fn is(&self, classes: &[Malformed]) -> bool {
        self.malformed.is_some_and(|it| classes.contains(&it))
    }
}

/// Who tells more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    Engine,
    Tshark,
    /// They differ in this field alone.
    Field(&'static str),
}

/// Why the two differ: a kind of frame, and who tells more of it.
struct Reason {
    why: &'static str,
    more: More,
    applies: fn(&Difference<'_>) -> bool,
}

/// Every difference there is. The first that applies is taken.
#[rustfmt::skip]
const REASONS: &[Reason] = &[
    Reason {
        why: "ICMP and ICMPv6 quote the packet they complain of; a quotation is payload",
        more: More::Tshark,
        applies: |it| it.passes("icmp:ip") || it.passes("icmpv6:ipv6"),
    },
    Reason {
        why: "PIM registers carry a packet to the rendezvous point; PIM is not looked into",
        more: More::Tshark,
        applies: |it| it.passes("pim:ip") || it.passes("pim:ipv6"),
    },
    Reason {
        why: "NHRP errors quote a packet",
        more: More::Tshark,
        applies: |it| it.passes("nhrp:ip"),
    },
    Reason {
        why: "sFlow and OpenFlow report samples of frames; a report is payload",
        more: More::Tshark,
        applies: |it| it.passes("sflow:eth") || it.passes("openflow_v1:eth"),
    },
    Reason {
        why: "MACsec is not followed, not even where it leaves the packet readable",
        more: More::Tshark,
        applies: |it| it.passes("macsec:ethertype"),
    },
    Reason {
        why: "encapsulations that are not followed: NSH, Cisco metadata, Arista's time stamps, WCCP's redirect header",
        more: More::Tshark,
        applies: |it| it.passes("nsh:ip") || it.passes("cmd:ip") || it.passes("avsp:ethertype") || it.passes("gre:ip"),
    },
    Reason {
        why: "PPPoE's discovery stage carries no packets and is not looked into",
        more: More::Tshark,
        applies: |it| it.passes("pppoed"),
    },
    Reason {
        why: "tshark has no field for the ethertype behind a service tag; that of the next layers shows it",
        more: More::Field("vlan.etype"),
        applies: |it| it.passes("ieee8021ad"),
    },
    Reason {
        why: "UDP length 0 in a segment too large for the field: tshark stops, the engine goes on to the frame's end",
        more: More::Engine,
        applies: |it| it.malformed.is_none() && it.stack.ends_with(":udp"),
    },
    Reason {
        why: "lengths contradict each other: the engine has read the addresses before it sees that, tshark gives up first",
        more: More::Engine,
        applies: |it| it.is(&[Malformed::Ipv4HeaderLength, Malformed::Ipv4TotalLength, Malformed::Ipv4Short]),
    },
    Reason {
        why: "IPv6 payload length 0 without the jumbo option: tshark stops, the engine goes on to the frame's end",
        more: More::Engine,
        applies: |it| it.malformed.is_none() && it.stack.ends_with(":ipv6.hopopts"),
    },
    Reason {
        why: "a header that is cut off: tshark tells the fields that are left, the engine takes whole headers only \
              (the short way still takes ports)",
        more: More::Tshark,
        applies: |it| it.is(&[
            Malformed::Ipv4Short, Malformed::Ipv6Short, Malformed::Ipv6ExtensionShort, Malformed::AhShort,
            Malformed::Ipv4TotalLength, Malformed::Ipv6PayloadLength,
        ]),
    },
    Reason {
        why: "another version than the announced one: tshark reads the fields nevertheless",
        more: More::Tshark,
        applies: |it| it.is(&[Malformed::Ipv4Version, Malformed::Ipv6Version]),
    },
];

/// Whether `more` says in each field what `less` says, and perhaps something behind it.
fn extends(more: &Facts, less: &Facts) -> bool {
    less.iter()
        .all(|(field, values)| more.get(field).is_some_and(|it| it.starts_with(values)))
}

fn holds(more: More, ours: &Facts, theirs: &Facts) -> bool {
    match more {
        More::Engine => extends(ours, theirs),
        More::Tshark => extends(theirs, ours),
        More::Field(field) => {
            let without = |facts: &Facts| {
                let mut facts = facts.clone();
                facts.remove(field);
                facts
            };
            without(ours) == without(theirs)
        }
    }
}

#[test]
fn every_field_of_every_frame() {
    let samples = super::samples();
    let theirs = match theirs(&samples) {
        Ok(theirs) => theirs,
        Err(reason) => skip!("{reason}"),
    };
    let mut explained = vec![0; REASONS.len()];
    let mut unexplained = Vec::new();
    for (sample, (stack, theirs)) in samples.iter().zip(&theirs) {
        let ours = ours(&sample.bytes);
        if ours == *theirs {
            continue;
        }
        let mut layers = Layers::of(&sample.bytes);
        layers.by_ref().for_each(drop);
        let difference = Difference {
            stack,
            malformed: layers.malformed(),
        };
        let reason = REASONS
            .iter()
            .position(|it| (it.applies)(&difference) && holds(it.more, &ours, theirs));
        match reason {
            Some(i) => explained[i] += 1,
            None => {
                unexplained.push(format!(
                    "{} {stack} {:?}\n  engine {ours:?}\n  tshark {theirs:?}",
                    sample.name,
                    layers.malformed()
                ));
            }
        }
    }
    let differing: usize = explained.iter().sum();
    skip::say(&format!(
        "tshark: {} frames, {} agree in {} fields, {differing} differ for a reason:",
        samples.len(),
        samples.len() - differing - unexplained.len(),
        FIELDS.len()
    ));
    for (reason, count) in REASONS.iter().zip(&explained) {
        skip::say(&format!(
            "  {count:4}  {} ({:?} tells more)",
            reason.why, reason.more
        ));
    }
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
}
