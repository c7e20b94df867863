//! Comparison of header fields with tshark, on every frame of the test captures.
//!
//! Reassembly is disabled, so that tshark also parses each frame alone. tshark parses more than the
//! engine: packets quoted by ICMP, and tunnels that the engine does not support. The engine's
//! values of a field must therefore be a prefix of tshark's values. If the values differ,
//! [`REASONS`] must have a reason for this kind of frame. A difference without a reason fails the
//! test. The number of frames per reason is printed.

use super::Sample;
use super::layers::{Layer, Layers};
use std::{collections::BTreeMap, net::IpAddr, process::Command};
use wqcap_frame::{Malformed, Next, protocol};
use wqcap_testkit::{Dir, skip};

/// Compared fields, by their tshark names.
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

/// Values of each field, outermost header first.
type Facts = BTreeMap<&'static str, Vec<String>>;

/// Returns the field values that the engine parses from a frame.
fn ours(frame: &[u8]) -> Facts {
    let mut facts = Facts::new();
    let mut tpids = Vec::new();
    for located in Layers::new(frame) {
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

/// Runs tshark on the frames and returns one line per frame: the values of `fields`, separated by
/// `|`. `args` are additional arguments.
pub fn fields(samples: &[Sample], args: &[&str], fields: &[&str]) -> Result<Vec<String>, String> {
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
    // Accept large segments, and the UDP port that Linux uses for VXLAN.
    command.args(["-o", "ipv6.tso_support:TRUE", "-d", "udp.port==8472,vxlan"]);
    command.args(args);
    for field in fields {
        command.args(["-e", field]);
    }
    let out = command.arg("-r").arg(&file).output();
    let out = out.map_err(|e| format!("cannot run tshark: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let lines: Vec<_> = text.lines().map(str::to_owned).collect();
    if lines.len() == samples.len() {
        Ok(lines)
    } else {
        Err(format!(
            "tshark printed {} lines for {} frames: {}",
            lines.len(),
            samples.len(),
            String::from_utf8_lossy(&out.stderr)
        ))
    }
}

/// Returns the protocol stack and the field values that tshark reports for each frame.
fn theirs(samples: &[Sample]) -> Result<Vec<(String, Facts)>, String> {
    let columns: Vec<_> = ["frame.protocols"].into_iter().chain(FIELDS).collect();
    let lines = fields(samples, &[], &columns)?;
    Ok(lines.iter().map(|it| read(it)).collect())
}

fn read(line: &str) -> (String, Facts) {
    let mut columns = line.split('|');
    let stack = columns.next().unwrap_or_default().to_owned();
    let facts = FIELDS
        .into_iter()
        .zip(columns)
        .filter(|(_, values)| !values.is_empty())
        .map(|(field, values)| (field, values.split(';').map(normalised).collect()))
        .collect();
    (stack, facts)
}

/// Returns an address in the notation of Rust's standard library, and other values unchanged.
fn normalised(value: &str) -> String {
    let address: Result<IpAddr, _> = value.parse();
    address.map_or_else(|_| value.to_owned(), |it| it.to_string())
}

/// Frame for which the engine and tshark have different values.
struct Difference<'a> {
    /// Protocol stack reported by tshark, such as `eth:ethertype:ip:udp`.
    stack: &'a str,
    /// Fault reported by the engine.
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

/// Program that reports more values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    Engine,
    Tshark,
    /// The values differ only in these fields.
    Fields(&'static [&'static str]),
    /// Each program reports a header that the other does not.
    Both,
}

/// Reason for differences in one kind of frame.
struct Reason {
    /// Text that is printed.
    text: &'static str,
    /// Program that reports more values.
    more: More,
    /// Returns `true` for frames of this kind.
    applies: fn(&Difference<'_>) -> bool,
}

/// Known reasons for differences; the first that applies is counted.
#[rustfmt::skip]
const REASONS: &[Reason] = &[
    Reason {
        text: "ICMP and ICMPv6 quote the packet that caused them; the engine treats it as payload",
        more: More::Tshark,
        applies: |it| it.passes("icmp:ip") || it.passes("icmpv6:ipv6"),
    },
    Reason {
        text: "PIM register messages carry a packet to the rendezvous point; the engine does not parse PIM",
        more: More::Tshark,
        applies: |it| it.passes("pim:ip") || it.passes("pim:ipv6"),
    },
    Reason {
        text: "NHRP errors quote a packet",
        more: More::Tshark,
        applies: |it| it.passes("nhrp:ip"),
    },
    Reason {
        text: "sFlow and OpenFlow carry sampled frames; the engine treats them as payload",
        more: More::Tshark,
        applies: |it| it.passes("sflow:eth") || it.passes("openflow_v1:eth"),
    },
    Reason {
        text: "the engine does not parse MACsec, not even without encryption",
        more: More::Tshark,
        applies: |it| it.passes("macsec:ethertype"),
    },
    Reason {
        text: "encapsulations that the engine does not parse: WCCP's redirect header",
        more: More::Tshark,
        applies: |it| it.passes("gre:ip"),
    },
    Reason {
        text: "Cisco metadata with several options, and NSH in NSH: tshark expects one of each",
        more: More::Engine,
        applies: |it| it.passes("cmd") || it.passes("nsh:nsh"),
    },
    Reason {
        text: "a pseudowire without a control word: tshark takes an address that begins with 4, 6 or 1 for IP or an associated \
              channel, and others for data",
        more: More::Both,
        applies: |it| it.malformed.is_none() && ["ip", "ipv6", "pwach", "data"].iter().any(|next| it.passes(&format!("mpls:{next}"))),
    },
    Reason {
        text: "a pseudowire whose content is not Ethernet: tshark takes it for Ethernet",
        more: More::Tshark,
        applies: |it| it.malformed.is_none() && it.passes("mpls:pwethheuristic"),
    },
    Reason {
        text: "L2TP version 3 without control messages: tshark does not guess the content",
        more: More::Engine,
        applies: |it| it.passes("l2tp:data"),
    },
    Reason {
        text: "EtherIP requires version 3: RFC 3378",
        more: More::Tshark,
        applies: |it| it.passes("etherip:eth"),
    },
    Reason {
        text: "PPPoE's discovery stage carries no packets; the engine does not parse it",
        more: More::Tshark,
        applies: |it| it.passes("pppoed"),
    },
    Reason {
        text: "tshark has no field for the ethertype after a service tag; the fields of the next layers show it",
        more: More::Fields(&["vlan.etype"]),
        applies: |it| it.passes("ieee8021ad"),
    },
    Reason {
        text: "tshark has other fields for the ethertypes of provider backbone bridges and FabricPath",
        more: More::Fields(&["eth.type", "vlan.etype"]),
        applies: |it| it.passes("ieee8021ad") || it.passes("ieee8021ah") || it.passes("cfp:eth"),
    },
    Reason {
        text: "802.11 in CAPWAP: tshark expects the first two bytes exchanged, unless a preference is set",
        more: More::Engine,
        applies: |it| it.stack.ends_with(":capwap.data:wlan"),
    },
    Reason {
        text: "UDP length 0 in a segment too large for the field: tshark stops, the engine continues to the end of the frame",
        more: More::Engine,
        applies: |it| it.malformed.is_none() && it.stack.ends_with(":udp"),
    },
    Reason {
        text: "lengths contradict each other: the engine reads the addresses before it detects that, tshark stops first",
        more: More::Engine,
        applies: |it| it.is(&[Malformed::Ipv4HeaderLength, Malformed::Ipv4TotalLength, Malformed::Ipv4Short]),
    },
    Reason {
        text: "IPv6 payload length 0 without the jumbo option: tshark stops, the engine continues to the end of the frame",
        more: More::Engine,
        applies: |it| it.malformed.is_none() && it.stack.ends_with(":ipv6.hopopts"),
    },
    Reason {
        text: "a truncated header: tshark reports the fields that are present, the engine only complete headers \
              (`Headers` still reads ports)",
        more: More::Tshark,
        applies: |it| it.is(&[
            Malformed::Ipv4Short, Malformed::Ipv6Short, Malformed::Ipv6ExtensionShort, Malformed::AhShort,
            Malformed::Ipv4TotalLength, Malformed::Ipv6PayloadLength,
        ]),
    },
    Reason {
        text: "the IP version differs from the announced one: tshark reads the fields nevertheless",
        more: More::Tshark,
        applies: |it| it.is(&[Malformed::Ipv4Version, Malformed::Ipv6Version]),
    },
];

/// Returns `true` if for each field the values in `less` are a prefix of those in `more`.
fn extends(more: &Facts, less: &Facts) -> bool {
    less.iter()
        .all(|(field, values)| more.get(field).is_some_and(|it| it.starts_with(values)))
}

fn holds(more: More, ours: &Facts, theirs: &Facts) -> bool {
    match more {
        More::Engine => extends(ours, theirs),
        More::Tshark => extends(theirs, ours),
        More::Fields(fields) => {
            let without = |facts: &Facts| {
                let mut facts = facts.clone();
                facts.retain(|field, _| !fields.contains(field));
                facts
            };
            without(ours) == without(theirs)
        }
        More::Both => true,
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
        let mut layers = Layers::new(&sample.bytes);
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
            "  {count:4}  {} ({:?} reports more)",
            reason.text, reason.more
        ));
    }
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
}
