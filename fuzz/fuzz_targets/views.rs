//! Fuzz target: each view of `wqcap-frame` alone. The first byte selects the view, the other bytes
//! are its input.
#![cfg_attr(fuzzing, no_main)]

use std::hint::black_box;
use wqcap_frame::{
    Ah, Arp, Capwap, Erspan, Esp, EtherIp, Ethernet, ExtensionHeader, FabricTag, Geneve, Gre, Gtp,
    Icmp, Ipv4, Ipv6, Ipv6Fragment, L2tp, Llc, Mpls, Nsh, Ppp, Pppoe, Sctp, Tcp, Teredo, Tzsp, Udp,
    Vlan, Vxlan, Wlan,
};

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else {
        return;
    };
    match choice % 33 {
        0 => _ = Ethernet::new(bytes).map(|it| black_box((it.dst(), it.src(), it.ethertype()))),
        1 => _ = Llc::new(bytes).map(|it| black_box((it.header_len(), it.next()))),
        2 => _ = Vlan::new(bytes).map(|it| black_box((it.id(), it.ethertype()))),
        3 => _ = Mpls::new(bytes).map(|it| black_box((it.label(), it.next(bytes)))),
        4 => _ = Pppoe::new(bytes).map(|it| black_box((it.session(), it.end(), it.fault()))),
        5 => _ = Ppp::new(bytes).map(|it| black_box((it.header_len(), it.next()))),
        6 => _ = Arp::new(bytes).map(|it| black_box(it.header_len())),
        7 => _ = Ipv4::new(bytes).map(|it| black_box((it.src(), it.dst(), it.extent()))),
        8 => _ = Ipv6::new(bytes).map(|it| black_box((it.src(), it.dst(), it.extent()))),
        9 => {
            _ = ExtensionHeader::new(bytes).map(|it| black_box((it.header_len(), it.next_header())))
        }
        10 => _ = Ipv6Fragment::new(bytes).map(|it| black_box((it.offset(), it.more()))),
        11 => _ = Ah::new(bytes).map(|it| black_box((it.header_len(), it.next_header()))),
        12 => _ = Esp::new(bytes).map(black_box),
        13 => _ = Tcp::new(bytes).map(|it| black_box((it.flags(), it.extent()))),
        14 => _ = Udp::new(bytes).map(|it| black_box((it.fault(), it.next()))),
        15 => _ = Sctp::new(bytes).map(|it| black_box((it.src_port(), it.dst_port()))),
        16 | 17 => _ = Icmp::new(bytes).map(black_box),
        18 => _ = Gre::new(bytes).map(|it| black_box((it.header_len(), it.next()))),
        19 => _ = Erspan::new(bytes, 2).map(|it| black_box((it.header_len(), it.next(bytes)))),
        20 => _ = Erspan::new(bytes, 3).map(|it| black_box((it.header_len(), it.next(bytes)))),
        21 => _ = Vxlan::new(bytes).map(|it| black_box((it.vni(), it.next(choice & 0x80 != 0)))),
        22 => _ = Geneve::new(bytes).map(|it| black_box((it.header_len(), it.next()))),
        23 => _ = Gtp::new(bytes).map(|it| black_box((it.header_len(), it.next(bytes)))),
        24 => {
            // Two bytes are the ethertype that announces the tag.
            if let Some((&[high, low], bytes)) = bytes.split_first_chunk() {
                let tag = FabricTag::new(u16::from_be_bytes([high, low]), bytes);
                _ = tag.map(|it| black_box((it.header_len(), it.next())));
            }
        }
        25 => _ = Nsh::new(bytes).map(|it| black_box((it.header_len(), it.next()))),
        26 => _ = Wlan::new(bytes).map(|it| black_box((it.header_len(), it.next()))),
        27 => _ = Capwap::new(bytes).map(|it| black_box((it.header_len(), it.next()))),
        28 => _ = L2tp::new(bytes, false).map(|it| black_box((it.header_len(), it.next()))),
        29 => _ = L2tp::new(bytes, true).map(|it| black_box((it.header_len(), it.next()))),
        30 => _ = Tzsp::new(bytes).map(|it| black_box((it.header_len(), it.next()))),
        31 => _ = Teredo::new(bytes).map(|it| black_box((it.header_len(), it.next()))),
        _ => _ = EtherIp::new(bytes).map(|it| black_box(it.next())),
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|input: &[u8]| run(input));
