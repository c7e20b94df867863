//! Fuzz target: payloads that may contain names, preceded by a byte that selects the protocol. The
//! memory of a flow is bounded.
#![cfg_attr(fuzzing, no_main)]

use wqcap_names::{DhcpMessage, DnsMessage, FlowNames, MAX_PAYLOAD, PayloadKind, Protocol};

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let Some((choice, payload)) = input.split_first() else {
        return;
    };
    for ports in [[0, 1], [53, 1], [546, 547]] {
        for kind in [
            PayloadKind::classify_tcp(payload, ports),
            PayloadKind::classify_udp(payload, ports),
        ] {
            assert!(kind.is_none_or(|it| it.wanted(payload) <= MAX_PAYLOAD));
        }
    }
    let (ready, skip) = PayloadKind::split(payload);
    assert!(ready <= payload.len() && skip <= usize::from(u16::MAX));
    // A full buffer of a DNS stream is parsed.
    assert!(ready > 0 || payload.len() < MAX_PAYLOAD);
    let protocol = match choice % 8 {
        0 => Protocol::Tls,
        1 => Protocol::Http,
        2 => Protocol::Ssh,
        3 => Protocol::Quic,
        4 => return drop(DnsMessage::read(payload)),
        5 => return drop(DhcpMessage::read(payload)),
        6 => return drop(DnsMessage::read_all(payload)),
        _ => return drop(DhcpMessage::read_v6(payload)),
    };
    let mut flow = FlowNames::default();
    for way in [0, 1, 0] {
        let _ = flow.read(protocol, way, payload);
        assert!(flow.bytes() <= 64 << 10);
    }
    if let Some(names) = flow.into_names() {
        let longest = |text: Option<String>| text.map_or(0, |it| it.len());
        // A byte that is not UTF-8 is replaced by three bytes.
        assert!(longest(names.tls_sni) <= 3 * 255);
        assert!(longest(names.ja4) <= 36);
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
