//! Test of the flow rules derived from a filter expression: they match all frames that the filter
//! accepts.

use wqcap_engine::{
    config::Config,
    filter::Filter,
    plan::steering::Steering,
    verbs::{FlowSpec, Masked},
};
use wqcap_rss::{FrameClass, L3, L4};
use wqcap_testkit::{captures::Captures, frames::filters::EXPRESSIONS, skip};

fn matches<T: Copy>(asked: Masked<T>, there: T) -> bool
where
    u128: std::convert::From<T>,
{
    let number = u128::from;
    (number(asked.value) ^ number(there)) & number(asked.mask) == 0
}

/// Returns the `len` bytes at offset `at` of a frame as a number. Bytes behind the frame's end are zero.
fn number(frame: &[u8], at: usize, len: usize) -> u128 {
    let bytes = (at..at + len).map(|at| frame.get(at).copied().unwrap_or(0));
    bytes.fold(0, |n, byte| n << 8 | u128::from(byte))
}

/// Returns `true` if a NIC that parsed a frame as `class` matches it with a rule's spec.
fn takes(spec: &FlowSpec, frame: &[u8], class: &FrameClass) -> bool {
    let (l3, l4) = (usize::from(class.l3_offset), usize::from(class.l4_offset));
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
                && matches(src.widen(), number(frame, l3 + 12, 4))
                && matches(dst.widen(), number(frame, l3 + 16, 4))
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
        ref other => panic!("unexpected spec in a rule derived from a filter: {other:?}"),
    }
}

/// The rules match all frames that the expression accepts, except frames that no NIC parses. Those
/// frames go to the kernel.
#[test]
fn the_rules_match_all_frames_that_the_expression_accepts() {
    let records = Captures::find().records();
    let (mut split, mut whole, mut kept, mut broken) = (0, 0, 0, 0);
    for expression in EXPRESSIONS {
        let settings = [("capture.mode", "filtered"), ("capture.filter", expression)];
        let config = Config::with_overrides("", &settings).expect(expression);
        let Ok(steering) = Steering::from_config(&config, 2) else {
            whole += 1;
            continue;
        };
        split += 1;
        let filter = Filter::compile(expression).expect(expression);
        for record in records.iter().filter(|it| it.bytes.len() >= 14) {
            if !filter.accepts(&record.bytes, record.wire_len()) {
                continue;
            }
            kept += 1;
            let class = FrameClass::from_frame(&record.bytes);
            let takes = |spec: &FlowSpec| takes(spec, &record.bytes, &class);
            let taken = steering.rules.iter().any(|it| it.specs.iter().all(takes));
            let is_ip = [0x0800, 0x86dd].contains(&class.ethertype);
            let unparsed = class.truncated_l4 || is_ip && class.l3 == L3::None;
            assert!(
                taken || unparsed,
                "{expression}: no rule matches the accepted frame {:02x?}:\n{:#?}",
                record.bytes,
                steering.split
            );
            broken += usize::from(!taken);
        }
    }
    assert!(
        split > 20 && whole > 5,
        "{split} expressions became rules, {whole} did not"
    );
    assert!(
        broken * 20 < kept,
        "{broken} of {kept} frames match no rule"
    );
    skip::say(&format!(
        "filter: rules of {split} expressions match all of {kept} accepted frames but {broken} malformed ones"
    ));
}
