//! Compilation of filter expressions to programs by libpcap.
//!
//! libpcap traverses the graph of an expression's tests recursively. The recursion is as deep as
//! the longest sequence of tests, and the time grows with the square of their number. A compilation
//! therefore needs a stack that is large enough for every expression within the limits.

use super::{
    error::{DEEPEST_NESTING, FilterError, LONGEST_EXPRESSION},
    program::{Instruction, Program, ProgramError},
};

/// Link type of Ethernet: LINKTYPE_ETHERNET.
pub(super) const ETHERNET: u32 = 1;
/// Maximum number of BPF instructions that are optimised. libpcap needs about a second for this
/// many, and its time grows with more than the square. A longer program runs unoptimised: slower
/// per frame, but available sooner.
pub(super) const MOST_OPTIMISED: usize = 8192;

/// Link types with tests of pcap-filter(7) that Ethernet does not have: IEEE 802.11 with radiotap,
/// PFLOG, Linux cooked v2, SunATM and MTP2 with its pseudo header. Others have no further ones:
/// `gencode.c` of libpcap.
const WITH_OWN_TESTS: [u32; 5] = [127, 117, 276, 123, 139];

/// Expression that libpcap rejects, except if it cannot read the names of protocols: it then takes every
/// name for protocol 0 (`pcap_nametoproto` in `nametoaddr.c`).
const UNKNOWN_PROTOCOL: &str = "ip proto wqcap-unknown";
/// Qualifiers in front of `proto` with which libpcap has the names itself (`lookup_proto` in
/// `gencode.c`).
const WITH_OWN_NAMES: [&str; 7] = ["ether", "link", "fddi", "tr", "wlan", "iso", "isis"];
/// Words that begin another test behind a protocol number.
const NEXT_TEST: [&str; 32] = [
    "ah",
    "arp",
    "broadcast",
    "dst",
    "esp",
    "ether",
    "gateway",
    "geneve",
    "greater",
    "host",
    "icmp",
    "icmp6",
    "igmp",
    "inbound",
    "ip",
    "ip6",
    "len",
    "less",
    "link",
    "mpls",
    "multicast",
    "net",
    "outbound",
    "port",
    "portrange",
    "pppoes",
    "proto",
    "sctp",
    "src",
    "tcp",
    "udp",
    "vlan",
];

/// Checks that a filter expression is within the limits of length and nesting that keep libpcap
/// within its stack.
pub(super) fn check_limits(expression: &str) -> Result<(), FilterError> {
    if expression.len() > LONGEST_EXPRESSION {
        return Err(FilterError::TooLong(expression.len()));
    }
    let nesting = nesting(expression);
    if nesting > DEEPEST_NESTING {
        return Err(FilterError::TooDeep(nesting));
    }
    Ok(())
}

/// Returns the maximum nesting depth of parentheses and brackets in a filter expression.
fn nesting(expression: &str) -> usize {
    let (mut open, mut most) = (0usize, 0);
    for byte in expression.bytes() {
        match byte {
            b'(' | b'[' => open += 1,
            b')' | b']' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

/// Returns `true` if a filter expression may name a protocol that libpcap looks up in the system's list
/// of protocols: behind `proto` or `protochain`, directly or after other protocols.
fn may_name_protocol(expression: &str) -> bool {
    let is_separator = |it: char| !it.is_ascii_alphanumeric() && !"\\-_.:/".contains(it);
    let words = expression.split(is_separator).filter(|it| !it.is_empty());
    let words: Vec<_> = words.collect();
    let is_named = |at: usize| {
        let is_list = matches!(words[at], "proto" | "protochain");
        let has_own_names = at > 0 && WITH_OWN_NAMES.contains(&words[at - 1]);
        let mut behind = words[at + 1..].iter().filter(|it| {
            !matches!(**it, "and" | "or" | "not") && !it.starts_with(|it: char| it.is_ascii_digit())
        });
        let is_name = |it: &&str| !NEXT_TEST.contains(it);
        is_list && !has_own_names && behind.next().is_some_and(is_name)
    };
    (0..words.len()).any(is_named)
}

/// Compiles a filter expression for frames of a link type with libpcap in the current thread, which
/// needs a large stack.
pub(super) fn compile(expression: &str, link_type: u32) -> Result<Program, FilterError> {
    if may_name_protocol(expression) && instructions(UNKNOWN_PROTOCOL, ETHERNET, false).is_ok() {
        return Err(FilterError::NoProtocolNames);
    }
    let mut code =
        instructions(expression, link_type, false).map_err(|e| of_link_type(e, expression))?;
    if code.len() <= MOST_OPTIMISED {
        code = instructions(expression, link_type, true)?;
    }
    Program::new(&code).map_err(|e| of_link_type(e.into(), expression))
}

/// Marks the reason why an expression is refused for a link type if it is defined for another one.
fn of_link_type(reason: FilterError, expression: &str) -> FilterError {
    let is_defined = |link_type: &u32| {
        let code = instructions(expression, *link_type, false);
        code.is_ok_and(|it| Program::new(&it).is_ok())
    };
    match WITH_OWN_TESTS.iter().any(is_defined) {
        true => FilterError::OtherLinkType(Box::new(reason)),
        false => reason,
    }
}

/// Returns the number that libpcap uses in programs on Linux for a link type of capture files: its
/// `pcap-common.c` maps those whose numbers differ between platforms.
fn data_link(link_type: u32) -> pcap::Linktype {
    pcap::Linktype(match link_type {
        14 | 101 => 12,
        100 => 11,
        102 => 15,
        103 => 16,
        106 => 19,
        other => i32::try_from(other).unwrap_or(i32::MAX),
    })
}

fn instructions(
    expression: &str,
    link_type: u32,
    optimise: bool,
) -> Result<Vec<Instruction>, FilterError> {
    let words = |e: pcap::Error| match e {
        pcap::Error::PcapError(words) => FilterError::Libpcap(words),
        other => FilterError::Libpcap(other.to_string()),
    };
    let dead = pcap::Capture::dead(data_link(link_type)).map_err(words)?;
    let compiled = dead.compile(expression, optimise).map_err(words)?;
    let read = |instruction: &pcap::BpfInstruction| {
        // The pcap crate exposes an instruction only as text.
        let text = instruction.to_string();
        let mut fields = text.split(' ').map(str::parse::<u32>);
        let mut next = || fields.next()?.ok();
        Some((
            u16::try_from(next()?).ok()?,
            u8::try_from(next()?).ok()?,
            u8::try_from(next()?).ok()?,
            next()?,
        ))
    };
    let instructions = compiled.get_instructions().iter().map(read);
    instructions
        .collect::<Option<_>>()
        .ok_or_else(|| ProgramError::Instruction.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_names_are_found_in_expressions() {
        let named = [
            r"ip proto \tcp",
            r"proto(\udp)",
            "ip6 protochain ospf",
            "vlan and not ip proto 6 or ospf",
            r"ip proto 47||\tcp",
        ];
        assert!(named.iter().all(|it| may_name_protocol(it)));
        let others = [
            "",
            "tcp port 80",
            "ip proto 47",
            "ip proto 6 or 17 and not port 53",
            "(ip proto 47) and host 10.0.0.1 and portrange 1-2",
            r"ether proto \arp or link proto 0x88cc",
        ];
        assert!(!others.iter().any(|it| may_name_protocol(it)));
    }
}
