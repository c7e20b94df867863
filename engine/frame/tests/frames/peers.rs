//! Comparison of the outermost packet with crate `etherparse`.
//!
//! `etherparse` does not parse MPLS, PPPoE, SNAP or tags of fabrics, and it stops at faults that the
//! engine tolerates. Only the headers that it reached are compared. The engine must report the same
//! values, with three exceptions, besides IPv6 extension headers that `etherparse` does not
//! support:
//!
//! - `etherparse` parses the content of MACsec without encryption.
//! - It uses the version of an IP header even if the ethertype contradicts it; the engine reports
//!   such a frame as malformed.
//! - It reads ports after an IPv4 header whose total length leaves no space for them.

use etherparse::{LaxLinkExtSlice, LaxNetSlice, LaxSlicedPacket, LinkSlice, TransportSlice};
use std::net::IpAddr;
use wqcap_frame::{FabricTag, Headers, Malformed, ethertype};

/// Returns `true` if `ethertype` announces a header that the engine goes through to the packet's own
/// ethertype, and at which `etherparse` stops.
fn is_unknown(ethertype: u16) -> bool {
    FabricTag::is_announced_by(ethertype)
        || [ethertype::NSH, ethertype::MPLS, ethertype::MPLS_MULTICAST].contains(&ethertype)
}

/// Compares the headers of one frame with `etherparse`. Returns `true` if `etherparse` found an IP
/// header.
pub fn check(frame: &[u8]) -> Result<bool, String> {
    let ours = Headers::parse(frame);
    let Ok(theirs) = LaxSlicedPacket::from_ethernet(frame) else {
        return Ok(false);
    };
    let macsec = |it: &LaxLinkExtSlice<'_>| matches!(it, LaxLinkExtSlice::Macsec(_));
    let version = matches!(
        ours.malformed,
        Some(Malformed::Ipv4Version | Malformed::Ipv6Version)
    );
    if version || theirs.link_exts.iter().any(macsec) {
        return Ok(false);
    }
    let same = |what: &str, same: bool| {
        let difference = || format!("{what}: {ours:?}\n  etherparse: {theirs:?}");
        if same { Ok(()) } else { Err(difference()) }
    };
    if let Some(LinkSlice::Ethernet2(link)) = &theirs.link {
        let tagged = ours.tags.count > 0;
        let theirs = link.ether_type().0;
        let untagged = theirs == ours.ethertype || ours.ethertype == 0 || is_unknown(theirs);
        // With SNAP the engine reports the ethertype and `etherparse` the length.
        same(
            "ethertype",
            tagged || untagged || link.ether_type().0 <= 1500,
        )?;
    }
    let ids: Vec<_> = theirs
        .vlan_ids()
        .iter()
        .map(|id| id.value())
        .take(2)
        .collect();
    let tags: Vec<_> = (0..2).filter_map(|i| ours.tags.id(i)).collect();
    same("tags", tags.starts_with(&ids))?;
    let addresses: (IpAddr, IpAddr) = match &theirs.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let fragment = (
                header.fragments_offset().value(),
                header.more_fragments(),
                header.dont_fragment(),
            );
            let it = ours.fragment;
            same("fragment", (it.offset(), it.more(), it.dont()) == fragment)?;
            (
                header.source_addr().into(),
                header.destination_addr().into(),
            )
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            same(
                "fragment",
                ours.malformed.is_some()
                    || ours.fragment.is_fragment()
                    || !ip.is_payload_fragmented(),
            )?;
            (
                header.source_addr().into(),
                header.destination_addr().into(),
            )
        }
        _ => return Ok(false),
    };
    same(
        "addresses",
        (ours.tuple.src(), ours.tuple.dst()) == (Some(addresses.0), Some(addresses.1)),
    )?;
    let ports = match &theirs.transport {
        Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
        _ => return Ok(true),
    };
    if ours.l4().is_none() && ours.malformed == Some(Malformed::Ipv4TotalLength) {
        return Ok(true);
    }
    same("ports", ports == (ours.tuple.src_port, ours.tuple.dst_port))?;
    same("a payload", ours.payload().is_some())?;
    Ok(true)
}

#[test]
fn on_every_frame_of_every_capture() {
    let (mut with_ip, mut failed) = (0, Vec::new());
    for sample in super::samples() {
        match check(&sample.bytes) {
            Ok(ip) => with_ip += usize::from(ip),
            Err(difference) => failed.push(format!("{}: {difference}", sample.name)),
        }
    }
    assert!(failed.is_empty(), "{}: {}", failed.len(), failed.join("\n"));
    assert!(with_ip > 0, "etherparse found no IP header in any capture");
}
