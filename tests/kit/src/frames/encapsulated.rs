//! Packets behind headers that switches, fabrics, pseudowires and tunnels add.

use super::{Ends, Frame, IPV4, IPV6};

/// Source port of the packet in the first frame of [`encapsulated`]; the following frames count up.
pub const FIRST_PORT: u16 = 1000;

/// Frame with a UDP packet behind other headers.
#[derive(Clone, Debug)]
pub struct Encapsulated {
    /// Name of the case.
    pub name: &'static str,
    /// Bytes of the frame.
    pub frame: Vec<u8>,
    /// Ends of the innermost packet. Its addresses are of IPv6 if `is_v6` is set.
    pub ends: Ends,
    /// `true` if the innermost packet is IPv6.
    pub is_v6: bool,
    /// VLAN identifiers of the frame's two outermost tags, 0 for a missing one.
    pub vlans: [u16; 2],
    /// `true` if an IPv4 packet from host 1 to host 2 carries the tunnel.
    pub has_tunnel: bool,
}

/// Returns the ends of the innermost packet of case `i`.
fn inner(i: usize) -> Ends {
    let sport = FIRST_PORT + u16::try_from(i).expect("a port");
    Ends {
        from: 3,
        to: 4,
        sport,
        dport: 2222,
    }
}

/// Returns an Ethernet frame from a station of a vendor, with the packet of case `i`. `first` is
/// the first byte of the destination.
fn frame(i: usize, first: u8, tags: &[(u16, u16)]) -> Vec<u8> {
    let frame = Frame::ethernet(tags, IPV4).ipv4(inner(i), 17, 0);
    let mut frame = frame.udp(inner(i)).payload(24).done();
    frame[..12].copy_from_slice(&[first, 0, 0x5e, 0, 0x53, 2, 0, 0, 0x5e, 0, 0x53, 1]);
    frame
}

/// Returns the IPv4 packet of case `i`.
fn packet(i: usize) -> Vec<u8> {
    frame(i, 0, &[]).split_off(14)
}

/// Returns the IPv6 packet of case `i`.
fn packet_v6(i: usize) -> Vec<u8> {
    let frame = Frame::ethernet(&[], IPV6).ipv6(inner(i), 17);
    let mut frame = frame.udp(inner(i)).payload(24).done();
    frame.split_off(14)
}

/// Returns a frame with `headers` after its ethertype.
fn link(tags: &[(u16, u16)], ethertype: u16, headers: &[&[u8]]) -> Vec<u8> {
    let frame = Frame::ethernet(tags, ethertype);
    frame.bytes(&headers.concat()).done()
}

/// Returns an IPv4 packet of this protocol with `headers`.
fn over_ip(protocol: u8, headers: &[&[u8]]) -> Vec<u8> {
    let ends = Ends {
        from: 1,
        to: 2,
        sport: 0,
        dport: 0,
    };
    let frame = Frame::ethernet(&[], IPV4).ipv4(ends, protocol, 0);
    frame.bytes(&headers.concat()).done()
}

/// Returns a UDP datagram between these ports with `headers`.
fn over_udp(sport: u16, dport: u16, headers: &[&[u8]]) -> Vec<u8> {
    let ends = Ends {
        from: 1,
        to: 2,
        sport,
        dport,
    };
    let frame = Frame::ethernet(&[], IPV4).ipv4(ends, 17, 0).udp(ends);
    frame.bytes(&headers.concat()).done()
}

/// 802.11 header of a data frame to the distribution system, with its LLC header.
fn wlan(control: &[u8], qos: &[u8]) -> Vec<u8> {
    let addresses = [2; 18];
    let llc = [0xaa, 0xaa, 3, 0, 0, 0, 8, 0];
    [control, &[0, 0], &addresses, &[0, 0], qos, &llc].concat()
}

/// Returns frames with a packet behind each kind of header, in most of its forms.
#[must_use]
pub fn encapsulated() -> Vec<Encapsulated> {
    let mut cases: Vec<Encapsulated> = Vec::new();
    let mut add = |name, vlans, has_tunnel, make: &dyn Fn(usize) -> Vec<u8>| {
        let i = cases.len();
        cases.push(Encapsulated {
            name,
            frame: make(i),
            ends: inner(i),
            is_v6: false,
            vlans,
            has_tunnel,
        });
    };
    let none = [0, 0];
    fabrics(&mut |name, vlans, make| add(name, vlans, false, make));
    pseudowires(&mut |name, vlans, has_tunnel, make| add(name, vlans, has_tunnel, make));
    tunnels(&mut |name, make| add(name, none, true, make));
    let v6: [(&str, &[u8]); 3] = [
        ("Teredo", &[]),
        ("Teredo with an origin", &[0, 0, 0xe0, 0x10, 1, 2, 3, 4]),
        (
            "Teredo with authentication",
            &[0, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0],
        ),
    ];
    for (name, header) in v6 {
        let i = cases.len();
        cases.push(Encapsulated {
            name,
            frame: over_udp(50_000, 3544, &[header, &packet_v6(i)]),
            ends: inner(i),
            is_v6: true,
            vlans: none,
            has_tunnel: true,
        });
    }
    cases
}

type AddLink<'a> = &'a mut dyn FnMut(&'static str, [u16; 2], &dyn Fn(usize) -> Vec<u8>);
type AddWire<'a> = &'a mut dyn FnMut(&'static str, [u16; 2], bool, &dyn Fn(usize) -> Vec<u8>);
type AddTunnel<'a> = &'a mut dyn FnMut(&'static str, &dyn Fn(usize) -> Vec<u8>);

fn fabrics(add: AddLink<'_>) {
    let tags: [(&str, u16, &[u8]); 10] = [
        ("VN-Tag", 0x8926, &[0, 0, 0, 0x14]),
        ("E-Tag", 0x893f, &[0; 6]),
        ("Cisco metadata", 0x8909, &[1, 1, 0, 1, 0, 5]),
        (
            "Cisco metadata with two options",
            0x8909,
            &[1, 2, 0, 1, 0, 5, 0, 2, 0, 7],
        ),
        ("TTag", 0x8988, &[0, 0, 0, 1, 0, 0]),
        ("HSR", 0x892f, &[0, 0x52, 0, 1]),
        ("R-TAG", 0xf1c1, &[0, 0, 0, 1]),
        (
            "Arista time stamp",
            0xd28b,
            &[0, 1, 0, 0x10, 1, 1, 1, 1, 2, 2, 2, 2],
        ),
        (
            "short Arista time stamp",
            0xd28b,
            &[0, 1, 0, 0x20, 1, 1, 2, 2, 2, 2],
        ),
        ("NSH in NSH", 0x894f, &[0x0f, 0xc2, 2, 4, 0, 0, 1, 9]),
    ];
    for (name, ethertype, tag) in tags {
        if ethertype == 0x894f {
            let nsh = [0x0f, 0xc2, 2, 1, 0, 0, 1, 8];
            add(name, [0, 0], &|i| {
                link(&[], ethertype, &[tag, &nsh, &packet(i)])
            });
            continue;
        }
        add(name, [0, 0], &|i| {
            link(&[], ethertype, &[tag, &[8, 0], &packet(i)])
        });
        // VLAN tags before and after the header.
        add(name, [5, 7], &|i| {
            let rest: &[&[u8]] = &[tag, &[0x81, 0, 0, 7, 8, 0], &packet(i)];
            link(&[(0x88a8, 5)], ethertype, rest)
        });
    }
    add("PBB", [5, 9], &|i| {
        link(
            &[(0x88a8, 5)],
            0x88e7,
            &[&[0, 0, 1, 2], &frame(i, 0, &[(0x8100, 9)])],
        )
    });
    add("FabricPath", [0, 0], &|i| {
        link(&[], 0x8903, &[&[0, 0x40], &frame(i, 0, &[])])
    });
    add("NSH with a frame", [0, 0], &|i| {
        let metadata = [0; 16];
        let nsh = [0x0f, 0xc6, 1, 3, 0, 0, 1, 0xff];
        link(&[], 0x894f, &[&nsh, &metadata, &frame(i, 0, &[])])
    });
    add("PRP", [0, 0], &|i| {
        let mut frame = frame(i, 0, &[]);
        frame.extend_from_slice(&[0, 1, 0xa0, 0x52, 0x88, 0xfb]);
        frame
    });
}

fn pseudowires(add: AddWire<'_>) {
    // Label 200, the bottom of the stack.
    const LABEL: [u8; 4] = [0, 0x0c, 0x81, 0x40];
    let stack = [&[0, 6, 0x40, 0x40][..], &LABEL].concat();
    let words: [(&str, &[u8]); 3] = [
        ("pseudowire without a control word", &[]),
        ("pseudowire with a control word", &[0, 0, 0, 0]),
        ("pseudowire with a sequence number", &[0, 0, 0xab, 0xcd]),
    ];
    for (name, word) in words {
        // Destinations of vendors whose first digit is also a version of IP.
        for first in [0x00, 0x44, 0x64, 0x18, 0xf8] {
            add(name, [0, 0], false, &|i| {
                link(&[], 0x8847, &[&LABEL, word, &frame(i, first, &[])])
            });
        }
        add(name, [7, 0], false, &|i| {
            link(&[], 0x8847, &[&stack, word, &frame(i, 0, &[(0x8100, 7)])])
        });
        let udp = |i| over_udp(50_000, 6635, &[&LABEL, word, &frame(i, 0, &[])]);
        add(name, [0, 0], true, &udp);
        let gre = [0, 0, 0x88, 0x47];
        add(name, [0, 0], true, &|i| {
            over_ip(47, &[&gre, &stack, word, &frame(i, 0, &[])])
        });
        add(name, [0, 0], true, &|i| {
            over_ip(137, &[&stack, word, &frame(i, 0, &[])])
        });
    }
    add("MPLS", [0, 0], false, &|i| {
        link(&[], 0x8847, &[&stack, &packet(i)])
    });
}

fn tunnels(add: AddTunnel<'_>) {
    const CAPWAP: [u8; 8] = [0, 0x10, 0x42, 0, 0, 0, 0, 0];
    const NATIVE: [u8; 8] = [0, 0x10, 0x43, 0, 0, 0, 0, 0];
    let udp: [(&str, u16, u16, Vec<u8>, bool); 13] = [
        ("CAPWAP", 50_000, 5247, CAPWAP.into(), true),
        ("answer in CAPWAP", 5247, 50_000, CAPWAP.into(), true),
        (
            "CAPWAP with the radio's address",
            50_000,
            5247,
            vec![0, 0x20, 0x42, 0x10, 0, 0, 0, 0, 6, 2, 0, 0, 0, 0, 1, 0],
            true,
        ),
        (
            "802.11 in CAPWAP",
            50_000,
            5247,
            [&NATIVE[..], &wlan(&[8, 1], &[])].concat(),
            false,
        ),
        (
            "802.11 with QoS in CAPWAP, bytes exchanged",
            5247,
            50_000,
            [&NATIVE[..], &wlan(&[2, 0x88], &[0, 0])].concat(),
            false,
        ),
        (
            "L2TP",
            50_000,
            1701,
            vec![0, 2, 0, 1, 0, 2, 0xff, 3, 0, 0x21],
            false,
        ),
        (
            "answer in L2TP with sequence numbers",
            1701,
            50_000,
            vec![0x08, 2, 0, 1, 0, 2, 0, 3, 0, 4, 0, 0x21],
            false,
        ),
        (
            "L2TP version 3",
            1701,
            1701,
            vec![0, 3, 0, 0, 0, 0, 0, 7, 0x40, 0, 0, 1],
            true,
        ),
        ("TZSP", 50_000, 37_008, vec![1, 0, 0, 1, 1], true),
        (
            "TZSP with tagged fields",
            50_000,
            37_008,
            vec![1, 1, 0, 1, 10, 1, 0xc4, 0, 18, 1, 11, 1],
            true,
        ),
        (
            "802.11 in TZSP",
            50_000,
            37_008,
            [&[1, 0, 0, 18, 1][..], &wlan(&[8, 2], &[])].concat(),
            false,
        ),
        ("GRE in UDP", 50_000, 4754, vec![0, 0, 8, 0], false),
        (
            "GRE with Ethernet in UDP",
            50_000,
            4754,
            vec![0, 0, 0x65, 0x58],
            true,
        ),
    ];
    for (name, sport, dport, header, is_frame) in udp {
        add(name, &|i| {
            let content = if is_frame {
                frame(i, 0, &[])
            } else {
                packet(i)
            };
            over_udp(sport, dport, &[&header, &content])
        });
    }
    add("L2TP version 3 with PPP", &|i| {
        let header = [0, 3, 0, 0, 0, 0, 0, 7, 0xff, 3, 0, 0x21];
        over_udp(1701, 1701, &[&header, &packet(i)])
    });
    for (name, cookie) in [
        ("L2TP over IP", &[][..]),
        ("L2TP over IP with a cookie", &[9, 8, 7, 6, 5, 4, 3, 2]),
    ] {
        add(name, &|i| {
            over_ip(115, &[&[0, 0, 0, 7], cookie, &frame(i, 0, &[])])
        });
    }
    add("EtherIP", &|i| {
        over_ip(97, &[&[0x30, 0], &frame(i, 0, &[])])
    });
    add("NSH in VXLAN-GPE", &|i| {
        let vxlan = [0x0c, 0, 0, 4, 0, 0, 9, 0];
        let nsh = [0x0f, 0xc2, 2, 3, 0, 0, 1, 0xff];
        over_udp(50_000, 4790, &[&vxlan, &nsh, &frame(i, 0, &[])])
    });
}

/// Returns frames in which a port or a label announces a packet that they do not have, or not in a
/// form that is parsed.
#[must_use]
pub fn not_encapsulated() -> Vec<(&'static str, Vec<u8>)> {
    const LABEL: [u8; 4] = [0, 0x0c, 0x81, 0x40];
    let packet = packet(0);
    let frame = frame(0, 0, &[]);
    vec![
        (
            "associated channel",
            link(&[], 0x8847, &[&LABEL, &[0x10, 0, 0, 0x21], &packet]),
        ),
        (
            "generic associated channel",
            link(
                &[],
                0x8847,
                &[&[0, 0, 0xd1, 0x40], &[0x10, 0, 0, 7], &packet],
            ),
        ),
        (
            "ATM cells in a pseudowire",
            link(&[], 0x8847, &[&LABEL, &[0, 0, 0, 1], &[0x5a; 54]]),
        ),
        (
            "encrypted CAPWAP",
            over_udp(50_000, 5247, &[&[1, 0, 0, 0], &frame]),
        ),
        (
            "fragment of CAPWAP",
            over_udp(50_000, 5247, &[&[0, 0x10, 0x42, 0x80, 0, 1, 0, 0], &frame]),
        ),
        (
            "keep-alive of CAPWAP",
            over_udp(50_000, 5247, &[&[0, 0x10, 0x42, 8, 0, 0, 0, 0], &frame]),
        ),
        (
            "control message of L2TP",
            over_udp(1701, 1701, &[&[0xc8, 2, 0, 12, 0, 1, 0, 0, 0, 0, 0, 0]]),
        ),
        (
            "LCP in L2TP",
            over_udp(
                1701,
                1701,
                &[&[0, 2, 0, 1, 0, 2, 0xff, 3, 0xc0, 0x21, 1, 1, 0, 4]],
            ),
        ),
        (
            "keep-alive of TZSP",
            over_udp(50_000, 37_008, &[&[1, 4, 0, 0, 1]]),
        ),
        (
            "DNS from port 5247",
            over_udp(
                5247,
                53,
                &[&[0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]],
            ),
        ),
        ("EtherIP of version 2", over_ip(97, &[&[0x20, 0], &frame])),
        (
            "L2TP over IP without a known content",
            over_ip(115, &[&[0, 0, 0, 7], &[0x5a; 60]]),
        ),
    ]
}
