//! Frames of each kind, shared by the benches.
//!
//! The crate imports nothing from the engine, so that the benches' input does not depend on the code
//! that they measure.

/// TCP header without options, from port 1025 to 443.
const TCP: [u8; 20] = [
    4, 1, 1, 187, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0,
];
/// Bytes of payload behind the last header.
const PAYLOAD: usize = 64;

fn ethernet(ethertype: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend_from_slice(&ethertype.to_be_bytes());
    frame
}

fn udp(port: u16, of: &[u8]) -> Vec<u8> {
    let mut bytes = vec![4, 1];
    bytes.extend_from_slice(&port.to_be_bytes());
    bytes.extend_from_slice(&length(8 + of.len()));
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(of);
    bytes
}

fn ipv4(protocol: u8, fragment: u16, of: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0];
    bytes.extend_from_slice(&length(20 + of.len()));
    bytes.extend_from_slice(&[0, 1]);
    bytes.extend_from_slice(&fragment.to_be_bytes());
    bytes.extend_from_slice(&[64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend_from_slice(of);
    bytes
}

fn ipv6(next: u8, of: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend_from_slice(&length(of.len()));
    bytes.extend_from_slice(&[next, 64]);
    for host in [1, 2] {
        bytes.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
    }
    bytes.extend_from_slice(of);
    bytes
}

fn length(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

/// Returns a frame of each kind with its name.
#[must_use]
pub fn kinds() -> Vec<(&'static str, Vec<u8>)> {
    let payload = [0x55; PAYLOAD];
    let tcp = joined(&[&TCP, &payload]);
    let v4 = ipv4(6, 0, &tcp);
    let v6 = ipv6(6, &tcp);
    let inner = joined(&[&ethernet(0x0800), &v4]);
    // Hop-by-hop and destination options, 8 bytes each.
    let options = [[60, 0, 1, 4, 0, 0, 0, 0], [17, 0, 1, 4, 0, 0, 0, 0]].concat();
    let extended = ipv6(0, &joined(&[&options, &udp(53, &payload)]));
    let vxlan = joined(&[&[8, 0, 0, 0, 0, 0, 7, 0], &inner]);
    let geneve = joined(&[&[1, 0, 0x65, 0x58, 0, 0, 7, 0, 0, 0, 0, 0], &inner]);
    let gtp = joined(&[&[0x30, 255], &length(v4.len()), &[0, 0, 0, 9], &v4]);
    let tunnel = |port, of: &[u8]| joined(&[&ethernet(0x0800), &ipv4(17, 0, &udp(port, of))]);
    let pppoe = joined(&[&[0x11, 0, 0, 7], &length(v4.len() + 2), &[0, 0x21], &v4]);
    vec![
        ("ipv4_tcp", inner.clone()),
        ("ipv4_udp", tunnel(53, &payload)),
        ("ipv6_tcp", joined(&[&ethernet(0x86dd), &v6])),
        ("ipv6_options_udp", joined(&[&ethernet(0x86dd), &extended])),
        (
            "vlan_ipv4_tcp",
            joined(&[&ethernet(0x8100), &[0, 100, 8, 0], &v4]),
        ),
        (
            "qinq_ipv4_tcp",
            joined(&[&ethernet(0x88a8), &[0, 7, 0x81, 0, 0, 100, 8, 0], &v4]),
        ),
        (
            "ipv4_later_fragment",
            joined(&[&ethernet(0x0800), &ipv4(17, 3, &payload)]),
        ),
        (
            "mpls_ipv4_tcp",
            joined(&[&ethernet(0x8847), &[0, 1, 0, 64, 0, 2, 1, 64], &v4]),
        ),
        ("pppoe_ipv4_tcp", joined(&[&ethernet(0x8864), &pppoe])),
        ("arp", joined(&[&ethernet(0x0806), &[0; 46]])),
        ("vxlan", tunnel(4789, &vxlan)),
        ("geneve", tunnel(6081, &geneve)),
        ("gtp", tunnel(2152, &gtp)),
        (
            "gre",
            joined(&[
                &ethernet(0x0800),
                &ipv4(47, 0, &joined(&[&[0, 0, 8, 0], &v4])),
            ]),
        ),
    ]
}
