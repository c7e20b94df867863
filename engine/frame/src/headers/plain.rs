//! Fast parser for the most common frames: at most one VLAN tag, IP without options or extension
//! headers, TCP or UDP, and no fault. It writes the result once, at the end; the general parser
//! writes each field as it parses.

use super::{FiveTuple, Fragment, Headers, MAX_HEADERS, Tags, offset, tuple::widened};
use crate::{
    ip::{Ipv4, Ipv6},
    link::{Ethernet, Vlan},
    numbers::{ethertype, protocol},
    transport::{Tcp, Udp},
};

/// Parses the headers of a plain frame with the same result as the general parser. Returns `None`
/// for any other frame, which the general parser must handle.
#[inline(always)]
pub(super) fn parse_plain(frame: &[u8]) -> Option<Headers> {
    let mut l3 = Ethernet::LEN;
    let mut tags = Tags::default();
    let mut ethertype = Ethernet::new(frame).ok()?.ethertype();
    if ethertype == ethertype::VLAN {
        let vlan = Vlan::new(frame.get(l3..)?).ok()?;
        l3 += Vlan::LEN;
        tags.push(vlan.tci());
        ethertype = vlan.ethertype();
    }
    let rest = frame.get(l3..)?;
    let (src, dst, version, protocol, fragment, start, packet_len);
    match ethertype {
        ethertype::IPV4 => {
            let ip = Ipv4::new(rest).ok()?;
            (src, dst) = (widened(ip.src()), widened(ip.dst()));
            (version, protocol) = (4, ip.protocol());
            fragment = Fragment(ip.fragment_field() & 0x7fff);
            if ip.header_len() != Ipv4::LEN || fragment.is_fragment() {
                return None;
            }
            (start, packet_len) = (Ipv4::LEN, usize::from(ip.total_len()));
        }
        ethertype::IPV6 => {
            let ip = Ipv6::new(rest).ok()?;
            (src, dst) = (ip.src(), ip.dst());
            (version, protocol) = (6, ip.next_header());
            fragment = Fragment::default();
            (start, packet_len) = (Ipv6::LEN, Ipv6::LEN + usize::from(ip.payload_len()));
        }
        _ => return None,
    }
    // Lengths that are 0 or wrong are left to the general parser.
    let above = rest.get(start..packet_len)?;
    let (src_port, dst_port, header_len);
    match protocol {
        protocol::TCP => {
            let tcp = Tcp::new(above).ok()?;
            (src_port, dst_port) = (tcp.src_port(), tcp.dst_port());
            header_len = tcp.extent().ok()?;
        }
        protocol::UDP => {
            let udp = Udp::new(above).ok()?;
            (src_port, dst_port) = (udp.src_port(), udp.dst_port());
            header_len = Udp::LEN;
            if udp.fault().is_some() {
                return None;
            }
        }
        _ => return None,
    }
    let l4 = offset(l3 + start);
    Some(Headers {
        tuple: FiveTuple {
            src,
            dst,
            src_port,
            dst_port,
            protocol,
            version,
        },
        ethertype,
        tags,
        fragment,
        malformed: None,
        segment: None,
        l3: offset(l3),
        l4,
        payload: l4 + offset(header_len),
        end: offset(l3) + offset(packet_len),
        // Counted headers: Ethernet, IP and transport, and the tag.
        layers: MAX_HEADERS - 3 - tags.count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPV4: [u8; 20] = [
        0x45, 0, 0, 44, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    const IPV6: [u8; 40] = {
        let mut ip = [0xfd; 40];
        ip[0] = 0x60;
        (ip[4], ip[5], ip[6]) = (0, 24, 17);
        ip
    };
    const TCP: [u8; 24] = [
        4, 1, 1, 187, 0, 0, 0, 1, 0, 0, 0, 0, 0x60, 0x10, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0,
    ];
    const UDP: [u8; 24] = {
        let mut udp = [0; 24];
        (udp[1], udp[3], udp[5]) = (9, 53, 24);
        udp
    };

    /// Asserts that the fast and the general parser agree on a frame. Returns `true` if the fast
    /// parser handled it.
    fn agree(frame: &[u8]) -> bool {
        let plain = parse_plain(frame);
        assert!(
            plain.is_none_or(|it| it == Headers::parse_any(frame)),
            "{frame:02x?}"
        );
        plain.is_some()
    }

    #[test]
    fn both_parsers_agree_on_plain_frames_and_on_frames_with_one_byte_changed() {
        let mut udp4 = IPV4;
        udp4[9] = protocol::UDP;
        let mut tcp6 = IPV6;
        tcp6[6] = protocol::TCP;
        for (ethertype, packet) in [
            (ethertype::IPV4, [&IPV4[..], &TCP].concat()),
            (ethertype::IPV4, [&udp4[..], &UDP].concat()),
            (ethertype::IPV6, [&IPV6[..], &UDP].concat()),
            (ethertype::IPV6, [&tcp6[..], &TCP].concat()),
        ] {
            for tag in [&[][..], &[0x81, 0, 0x20, 7]] {
                // Two bytes of padding.
                let parts = [
                    &[2; 12][..],
                    tag,
                    &ethertype.to_be_bytes(),
                    &packet,
                    &[0; 2],
                ];
                let frame = parts.concat();
                assert!(agree(&frame), "{frame:02x?}");
                for len in 0..frame.len() {
                    assert_eq!(agree(&frame[..len]), len + 2 >= frame.len(), "{len}");
                }
                for at in 12..frame.len() {
                    let mut changed = frame.clone();
                    for value in 0..=255 {
                        changed[at] = value;
                        agree(&changed);
                    }
                }
            }
        }
    }
}
