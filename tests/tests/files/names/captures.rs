//! Names of all captures: flow records and the DNS and DHCP tables have the values that tshark
//! reads. Each deviation has its reason.

use super::{Of, plain, run, summary, table, tshark};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
};
use wqcap_tests::{Dir, captures::Captures, ledger::number, need, oracles::duckdb::Duckdb, skip};

/// Comparison of a kind of names with tshark.
struct Comparison {
    /// Kind of names, for messages.
    what: &'static str,
    /// SQL expression of wqcap's value.
    value: &'static str,
    /// SQL condition that selects the rows.
    rows: &'static str,
    /// Table with wqcap's values.
    of: Of,
    /// Display filter of tshark.
    filter: &'static str,
    /// Fields of tshark that make up the value.
    fields: &'static [&'static str],
}

const COMPARISONS: &[Comparison] = &[
    Comparison {
        what: "SNI",
        value: "tls_sni",
        rows: "TRUE",
        of: Of::Flows,
        filter: "tls.handshake.type == 1",
        fields: &["tls.handshake.extensions_server_name"],
    },
    Comparison {
        what: "ALPN",
        value: "tls_alpn",
        rows: "TRUE",
        of: Of::Flows,
        filter: "tls.handshake.type == 1",
        fields: &["tls.handshake.extensions_alpn_str"],
    },
    Comparison {
        what: "HTTP requests",
        value: "concat_ws('|', http_method, coalesce(http_host, ''))",
        rows: "http_method IS NOT NULL",
        of: Of::Flows,
        filter: "http.request",
        fields: &["http.request.method", "http.host"],
    },
    Comparison {
        what: "HTTP responses",
        value: "http_status::VARCHAR",
        rows: "TRUE",
        of: Of::Flows,
        filter: "http.response",
        fields: &["http.response.code"],
    },
    Comparison {
        what: "SSH",
        value: "unnest([ssh_fwd, ssh_rev])",
        rows: "TRUE",
        of: Of::Flows,
        filter: "ssh.protocol",
        fields: &["ssh.protocol"],
    },
    Comparison {
        what: "DNS",
        value: "concat_ws('|', id, coalesce(name, ''), coalesce(rcode, 'query'), coalesce(answers, 0), coalesce(type, ''))",
        rows: "TRUE",
        of: Of::Dns,
        filter: "dns || mdns || llmnr",
        fields: &[
            "dns.id",
            "dns.qry.name",
            "dns.flags.rcode",
            "dns.count.answers",
            "dns.qry.type",
        ],
    },
    Comparison {
        what: "DHCP",
        value: "concat_ws('|', coalesce(client, ''), coalesce(host, ''), coalesce(type, ''))",
        rows: "duid IS NULL AND NOT contains(src, ':')",
        of: Of::Dhcp,
        filter: "dhcp",
        fields: &[
            "dhcp.hw.mac_addr",
            "dhcp.option.hostname",
            "dhcp.option.dhcp",
        ],
    },
    Comparison {
        what: "DHCPv6",
        value: "concat_ws('|', transaction, coalesce(host, ''), coalesce(type, ''))",
        rows: "duid IS NOT NULL OR contains(src, ':')",
        of: Of::Dhcpv6,
        filter: "dhcpv6",
        fields: &["dhcpv6.xid", "dhcpv6.client_domain", "dhcpv6.msgtype"],
    },
];

const ENDLESS: &str = "tshark waits for the rest of a response that is not in the capture";
const EDNS: &str = "tshark's response code lacks the upper bits, which are in the OPT record";
const PORT: &str = "DNS on another port than 53: tshark recognizes it by its content";
const BROKEN: &str = "a name longer than DNS allows: the message is unreadable";
const ODD: &str = "DHCP from another port than 67 and 68, or 546 and 547";
const RELAYED: &str = "a relay's message that contains no message of a client or a server";
/// Expected deviations: values that only wqcap or only tshark has. Each is the kind of names, the
/// value (with its flow if other flows may have the same value), and the reason.
const KNOWN: &[(&str, &str, &str)] = &[
    (
        "HTTP responses",
        "200 of 31.133.146.248 16433 - 66.228.43.12 80",
        ENDLESS,
    ),
    ("DNS", "36787|.|BADVERS|0|TXT", EDNS),
    ("DNS", "36787|.|NOERROR|0|TXT", EDNS),
    ("DNS", "323|www.tcpdump.org|query|0|A", PORT),
    ("DNS", "323|www.tcpdump.org|NOERROR|1|A", PORT),
    ("DNS", "65535||NOERROR|48|", PORT),
    ("DNS", "65535||NOERROR|64|", PORT),
    ("DNS", "51584|<Name too long>|15|507|0", BROKEN),
    ("DNS", "51584|<Name too long>|15|507|507", BROKEN),
    ("DHCP", "||", ODD),
    ("DHCPv6", "6304513||REBIND", ODD),
    ("DHCPv6", "0||13", RELAYED),
];

/// Names of the DNS record types that occur in the captures, by number.
const TYPES: &[(&str, &str)] = &[
    ("1", "A"),
    ("2", "NS"),
    ("5", "CNAME"),
    ("6", "SOA"),
    ("12", "PTR"),
    ("13", "HINFO"),
    ("15", "MX"),
    ("16", "TXT"),
    ("28", "AAAA"),
    ("33", "SRV"),
    ("35", "NAPTR"),
    ("41", "OPT"),
    ("43", "DS"),
    ("44", "SSHFP"),
    ("46", "RRSIG"),
    ("48", "DNSKEY"),
    ("64", "SVCB"),
    ("65", "HTTPS"),
    ("255", "ANY"),
    ("256", "URI"),
];

/// Values of a comparison. Each has both ends of its flow or message, in the same order for both
/// directions.
type Told = BTreeSet<(String, String)>;

/// Queries wqcap's values of a comparison.
fn ours(duckdb: &Duckdb, it: &Comparison, files: &Value) -> Told {
    let end = |end: &str| match it.of {
        Of::Flows | Of::Dns => format!("concat({end}, ' ', {end}_port)"),
        Of::Dhcp | Of::Dhcpv6 => end.to_owned(),
    };
    let query = format!(
        "SELECT array_to_string(list_sort([{}, {}]), ' - '), {} FROM {} WHERE {}",
        end("src"),
        end("dst"),
        it.value,
        table(files),
        it.rows
    );
    let rows = duckdb.query(&query);
    let text = |it: &Value| it.as_str().map(str::to_owned);
    let rows = rows
        .iter()
        .filter_map(|row| text(&row[0]).zip(text(&row[1])));
    rows.collect()
}

/// Source and destination of the innermost packet of each TCP or UDP frame, by frame number. Frames
/// of ICMP are left out.
type Frames = BTreeMap<String, [(IpAddr, String); 2]>;

fn ends_of_frames(file: &Path) -> Result<Frames, String> {
    const FIELDS: [&str; 10] = [
        "frame.number",
        "frame.protocols",
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
        "tcp.srcport",
        "tcp.dstport",
        "udp.srcport",
        "udp.dstport",
    ];
    let filter = "(tcp || udp) && !icmp && !icmpv6";
    let lines = tshark(file, "l", filter, &FIELDS)?;
    let ends = lines.iter().map(|line| {
        let fields: Vec<_> = line.split('|').collect();
        let last = |of: [&str; 2]| fields[1].split(':').rfind(|it| of.contains(it));
        let six = last(["ip", "ipv6"]) == Some("ipv6");
        let udp = last(["tcp", "udp"]) == Some("udp");
        let end = |way: usize| {
            let address = fields[2 + 2 * usize::from(six) + way];
            let port = fields[6 + 2 * usize::from(udp) + way];
            (
                address.parse().expect("tshark prints an address"),
                port.to_owned(),
            )
        };
        (fields[0].to_owned(), [end(0), end(1)])
    });
    Ok(ends.collect())
}

/// Returns tshark's values of a comparison.
fn theirs(file: &Path, it: &Comparison, frames: &Frames) -> Result<Told, String> {
    // In a relayed DHCPv6 message, the last occurrence of a field is that of the innermost message.
    let occurrence = if it.of == Of::Dhcpv6 { "l" } else { "f" };
    let fields = [&["frame.number"], it.fields].concat();
    let mut values = Told::new();
    for line in tshark(file, occurrence, it.filter, &fields)? {
        let (frame, value) = line.split_once('|').expect("a line has a frame number");
        // A packet quoted in an ICMP message was not sent in this flow.
        let Some(ends) = frames.get(frame) else {
            continue;
        };
        let mut ends = ends.each_ref().map(|(address, port)| match it.of {
            Of::Flows | Of::Dns => format!("{address} {port}"),
            Of::Dhcp | Of::Dhcpv6 => address.to_string(),
        });
        ends.sort();
        let value = match (it.of, value.rsplit_once('|')) {
            (Of::Dns, Some((value, number))) => {
                let kind = TYPES.iter().find(|it| it.0 == number);
                format!("{}|{}", plain(it.of, value), kind.map_or(number, |it| it.1))
            }
            _ => plain(it.of, value),
        };
        if !value.is_empty() {
            values.insert((ends.join(" - "), value));
        }
    }
    Ok(values)
}

#[test]
fn names_of_all_captures_are_those_of_tshark() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let captures = Captures::find();
    let (file, frames) = captures.everything(&dir);
    let finished = run(&dir, "all", &file).finish(0);
    let flows = summary(&finished);
    assert_eq!(number(&flows["frames"]), frames.len() as u64);
    let names = &flows["names"];
    skip::say(&format!("names of {} frames: {names}", frames.len()));
    let their_ends = need!(ends_of_frames(&file));
    let (mut compared, mut unexplained) = (0, Vec::new());
    for it in COMPARISONS {
        let files = match it.of {
            Of::Flows => &flows["files"],
            Of::Dns => &names["dns_files"],
            Of::Dhcp | Of::Dhcpv6 => &names["dhcp_files"],
        };
        if files.as_array().is_none_or(Vec::is_empty) {
            skip::say(&format!("{}: wqcap wrote no files", it.what));
            continue;
        }
        let ours = ours(&duckdb, it, files);
        let theirs = need!(theirs(&file, it, &their_ends));
        for (one, other, only_in) in [(&ours, &theirs, "wqcap"), (&theirs, &ours, "tshark")] {
            for (ends, value) in one.difference(other) {
                let with_flow = format!("{value} of {ends}");
                let same = |known: &&(&str, &str, &str)| {
                    known.0 == it.what && (known.1 == value || known.1 == with_flow)
                };
                let line = format!("{}: only {only_in} has {with_flow}", it.what);
                match KNOWN.iter().find(same) {
                    Some((_, _, reason)) => skip::say(&format!("{line}: {reason}")),
                    None => unexplained.push(line),
                }
            }
        }
        let both = ours.intersection(&theirs).count();
        skip::say(&format!(
            "{}: {both} of {} values are also tshark's for the same flow",
            it.what,
            ours.len()
        ));
        compared += both;
    }
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
    assert!(
        !captures.real || compared > 100,
        "only {compared} values compared"
    );
}
