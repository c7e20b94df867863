//! What crate `etherparse` says of the outermost packet.
//!
//! It knows no MPLS, PPPoE or SNAP, and it stops at what the engine tolerates, so it is asked for what it reached:
//! whatever it tells, the engine tells the same, but for three things (and IPv6 extension headers it does not know). `etherparse` follows MACsec that does not
//! encrypt; it believes the version of an IP header, whatever the ethertype says, which the engine calls malformed; and
//! it looks for ports behind an IPv4 header whose total length leaves no room for any.

use etherparse::{LaxLinkExtSlice, LaxNetSlice, LaxSlicedPacket, LinkSlice, TransportSlice};
use std::net::IpAddr;
use wqcap_frame::{Headers, Malformed};

/// Holds one frame's short way to `etherparse`; true when it had something to say of IP.
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
        let told = || format!("{what}: {ours:?}\n  etherparse: {theirs:?}");
        if same { Ok(()) } else { Err(told()) }
    };
    if let Some(LinkSlice::Ethernet2(link)) = &theirs.link {
        let tagged = ours.tags.count > 0;
        let untagged = link.ether_type().0 == ours.ethertype || ours.ethertype == 0;
        // Behind SNAP there is another ethertype than the length.
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
    assert!(with_ip > 0, "etherparse found IP nowhere");
}
