//! Packets behind headers of switches, fabrics, pseudowires and tunnels.

use std::net::IpAddr;
use wqcap_frame::Headers;
use wqcap_testkit::frames::encapsulated::{encapsulated, not_encapsulated};

/// Returns the address of host `host` of the generated frames.
fn address(host: u16, is_v6: bool) -> Option<IpAddr> {
    let [high, low] = host.to_be_bytes();
    Some(if is_v6 {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, host])
    } else {
        IpAddr::from([10, 0, high, low])
    })
}

#[test]
fn packets_behind_all_headers_are_found() {
    for case in encapsulated() {
        let name = case.name;
        let outer = Headers::parse(&case.frame);
        let inner = Headers::innermost(&case.frame);
        let tuple = inner.tuple;
        assert_eq!(inner.malformed, None, "{name}");
        assert_eq!(
            (tuple.src_port, tuple.dst_port),
            (case.ends.sport, 2222),
            "{name}"
        );
        assert_eq!(tuple.src(), address(3, case.is_v6), "{name}");
        assert_eq!(tuple.dst(), address(4, case.is_v6), "{name}");
        let vlans = [0, 1].map(|i| outer.tags.id(i).unwrap_or(0));
        assert_eq!(vlans, case.vlans, "{name}");
        assert_eq!(outer.l3() != inner.l3(), case.has_tunnel, "{name}");
        if case.has_tunnel {
            assert_eq!(outer.tuple.src(), address(1, false), "{name}");
        } else {
            // A label stack keeps its ethertype.
            let ethertype = if name == "MPLS" { 0x8847 } else { 0x0800 };
            assert_eq!(outer.ethertype, ethertype, "{name}");
        }
    }
}

#[test]
fn truncated_headers_leave_the_outermost_packet() {
    for case in encapsulated() {
        let whole = Headers::parse(&case.frame);
        for len in 0..case.frame.len() {
            let frame = &case.frame[..len];
            let (outer, inner) = (Headers::parse(frame), Headers::innermost(frame));
            assert!(outer.end() <= len && inner.end() <= len, "{}", case.name);
            if case.has_tunnel && len >= 34 {
                assert_eq!(outer.tuple.src(), whole.tuple.src(), "{}", case.name);
            }
        }
    }
}

#[test]
fn announced_packets_that_are_absent_are_not_found() {
    for (name, frame) in not_encapsulated() {
        let outer = Headers::parse(&frame);
        let inner = Headers::innermost(&frame);
        assert_eq!((outer.l3(), inner.malformed), (inner.l3(), None), "{name}");
        let is_mpls = frame[12..14] == [0x88, 0x47];
        assert_eq!(outer.l3().is_none(), is_mpls, "{name}");
        if is_mpls {
            assert_eq!(
                (inner.tuple.version, inner.ethertype),
                (0, 0x8847),
                "{name}"
            );
        }
    }
}
