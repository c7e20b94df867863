//! Comparison of `Headers` with the layer iterator, on captures and on mutated frames.

use super::layers::{Layer, Layers};
use std::net::IpAddr;
use wqcap_frame::{ExtensionHeader, FlowKey, Headers, Malformed, Next, ethertype, protocol};
use wqcap_testkit::skip;

/// Default number of mutated frames; `scripts/soak` sets more.
const MUTATED: u64 = 200_000;

/// Fields of one packet that both parsers report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Packet {
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
    protocol: u8,
    ports: (u16, u16),
    tags: Vec<u16>,
    ethertype: u16,
    fragment: (u16, bool, bool),
    l3: Option<usize>,
    l4: Option<usize>,
    payload: Option<usize>,
}

impl Packet {
    fn from_headers(headers: &Headers) -> Self {
        Self {
            src: headers.tuple.src(),
            dst: headers.tuple.dst(),
            protocol: headers.tuple.protocol,
            ports: (headers.tuple.src_port, headers.tuple.dst_port),
            tags: (0..2).filter_map(|i| headers.tags.id(i)).collect(),
            ethertype: headers.ethertype,
            fragment: (
                headers.fragment.offset(),
                headers.fragment.more(),
                headers.fragment.dont(),
            ),
            l3: headers.l3(),
            l4: headers.l4(),
            payload: headers.payload(),
        }
    }
}

/// Parses a frame with the layer iterator and splits the headers into packets at each tunnel.
/// Returns the packets, the fault of the first packet, and the first fault of all packets.
fn packets(frame: &[u8]) -> (Vec<Packet>, Option<Malformed>, Option<Malformed>) {
    let mut layers = Layers::new(frame);
    let mut packets = vec![Packet::default()];
    let mut first_fault = None;
    loop {
        let (announced, fault) = (layers.announced(), layers.malformed());
        let packet = packets.last_mut().expect("the list starts with one packet");
        let leaves = packet.l3.is_some() && !is_of_ip(announced);
        if leaves && packets.len() == 1 {
            first_fault.get_or_insert(fault);
        }
        let Some(located) = layers.next() else {
            if !leaves {
                let packet = packets.last_mut().expect("the list starts with one packet");
                cut_off(packet, announced, layers.remaining());
            }
            break;
        };
        let carries = matches!(
            located.layer,
            Layer::Vxlan | Layer::Geneve | Layer::Gtp | Layer::Erspan | Layer::Tunnel
        );
        if leaves && !carries {
            packets.push(Packet {
                ethertype: match announced {
                    Next::Ethertype(ethertype) => ethertype,
                    Next::AboveIpv4(protocol::IPV4) | Next::AboveIpv6(protocol::IPV4) => {
                        ethertype::IPV4
                    }
                    Next::AboveIpv4(protocol::IPV6) | Next::AboveIpv6(protocol::IPV6) => {
                        ethertype::IPV6
                    }
                    _ => 0,
                },
                ..Packet::default()
            });
        }
        let packet = packets.last_mut().expect("the list starts with one packet");
        describe(packet, located.at, located.layer);
    }
    let all = layers.malformed();
    (packets, first_fault.unwrap_or(all), all)
}

/// Returns `true` if the announced header belongs to the current IP packet, not to a packet in a
/// tunnel.
fn is_of_ip(next: Next) -> bool {
    match next {
        Next::AboveIpv4(number) | Next::AboveIpv6(number) => !matches!(
            number,
            protocol::IPV4
                | protocol::IPV6
                | protocol::MPLS
                | protocol::ETHERNET
                | protocol::ETHERIP
                | protocol::L2TP
        ),
        Next::Payload => true,
        _ => false,
    }
}

/// Adds to `packet` the fields that `Headers` reports for a truncated header: its ports.
fn cut_off(packet: &mut Packet, announced: Next, rest: &[u8]) {
    let (number, ipv6) = match announced {
        Next::AboveIpv4(number) => (number, false),
        Next::AboveIpv6(number) => (number, true),
        _ => return,
    };
    match number {
        protocol::TCP | protocol::UDP | protocol::SCTP => {
            if let [a, b, c, d, ..] = *rest {
                packet.ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            }
        }
        protocol::FRAGMENT => packet.l4 = packet.l4.filter(|_| !ipv6),
        number if ipv6 && ExtensionHeader::is_announced_by(number) => packet.l4 = None,
        _ => {}
    }
}

/// Adds the fields of a header to its packet.
fn describe(packet: &mut Packet, at: usize, layer: Layer<'_>) {
    let behind = |len: usize| Some(at + len);
    match layer {
        Layer::Ethernet(it) => packet.ethertype = it.ethertype(),
        Layer::Vlan(it) => {
            if packet.tags.len() < 2 {
                packet.tags.push(it.id());
            }
            packet.ethertype = it.ethertype();
        }
        Layer::Tag(Next::Ethertype(ethertype)) => packet.ethertype = ethertype,
        Layer::Llc(it) => packet.ethertype = it.ethertype().unwrap_or(packet.ethertype),
        Layer::Ipv4(it) => {
            (packet.src, packet.dst) = (Some(it.src().into()), Some(it.dst().into()));
            packet.protocol = it.protocol();
            packet.l3 = Some(at);
            packet.l4 = it.extent().ok().map(|(start, ..)| at + start);
            let field = it.fragment_field();
            packet.fragment = (field & 0x1fff, field & 0x2000 != 0, field & 0x4000 != 0);
        }
        Layer::Ipv6(it) => {
            (packet.src, packet.dst) = (Some(it.src().into()), Some(it.dst().into()));
            packet.protocol = it.next_header();
            packet.l3 = Some(at);
            packet.l4 = behind(40);
        }
        Layer::Extension(it) => {
            packet.protocol = it.next_header();
            packet.l4 = behind(it.header_len());
        }
        Layer::Ipv6Fragment(it) => {
            packet.protocol = it.next_header();
            packet.fragment = (it.offset(), it.more(), false);
            packet.l4 = behind(8);
        }
        Layer::Ah(it) => {
            packet.protocol = it.next_header();
            packet.l4 = behind(it.header_len());
        }
        Layer::Tcp(it) => {
            packet.ports = (it.src_port(), it.dst_port());
            packet.payload = it.extent().ok().map(|len| at + len);
        }
        Layer::Udp(it) => {
            packet.ports = (it.src_port(), it.dst_port());
            packet.payload = behind(8);
        }
        Layer::Sctp(it) => {
            packet.ports = (it.src_port(), it.dst_port());
            packet.payload = behind(12);
        }
        Layer::Icmp | Layer::Icmpv6 | Layer::Esp => packet.payload = behind(8),
        Layer::Gre(it) => packet.payload = behind(it.header_len()),
        _ => {}
    }
}

/// Compares `Headers` of one frame, outermost and innermost, with the layer iterator.
pub fn check(frame: &[u8]) -> Result<(), String> {
    let (packets, first_fault, all_faults) = packets(frame);
    let outer = Headers::parse(frame);
    let differs = |what: &str, a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug| {
        Err(format!("{what}: Headers {a:?}, layer iterator {b:?}"))
    };
    // The limit on headers stops both parsers, but not necessarily at the same header.
    if all_faults == Some(Malformed::TooDeep) {
        return Ok(());
    }
    if outer.malformed != first_fault {
        return differs("outer fault", &outer.malformed, &first_fault);
    }
    if Packet::from_headers(&outer) != packets[0] {
        return differs("outer", &Packet::from_headers(&outer), &packets[0]);
    }
    for offset in [outer.l3(), outer.l4(), outer.payload(), Some(outer.end())] {
        if offset.is_some_and(|offset| offset > frame.len()) {
            return Err(format!("an offset is outside the frame: {outer:?}"));
        }
    }
    let inner = Headers::innermost(frame);
    let reached: Vec<_> = packets.iter().filter(|p| p.l3.is_some()).collect();
    let fragment = reached
        .iter()
        .position(|p| p.fragment.0 != 0 || p.fragment.1);
    let last = fragment.map_or(reached.last(), |i| reached.get(i));
    if let Some(last) = last {
        if Packet::from_headers(&inner) != **last {
            return differs("innermost", &Packet::from_headers(&inner), last);
        }
        if fragment.is_none() && inner.malformed != all_faults {
            return differs("innermost fault", &inner.malformed, &all_faults);
        }
    }
    let key = FlowKey::from_headers(frame, &inner);
    if key.ends != inner.tuple && key.ends != inner.tuple.reversed() && inner.l3().is_some() {
        return Err(format!("{key:?} does not match {inner:?}"));
    }
    Ok(())
}

#[test]
fn on_every_frame_of_every_capture() {
    let samples = super::samples();
    let mut failed = Vec::new();
    for sample in &samples {
        if let Err(difference) = check(&sample.bytes) {
            failed.push(format!("{}: {difference}", sample.name));
        }
    }
    assert!(
        failed.is_empty(),
        "{} frames differ: {:#?}",
        failed.len(),
        &failed[..failed.len().min(20)]
    );
}

#[test]
fn on_mutated_frames() {
    let count = std::env::var("WQCAP_MUTATED").ok();
    let count = count.map_or(MUTATED, |n| n.parse().expect("WQCAP_MUTATED is a number"));
    let seed = std::env::var("WQCAP_SEED").ok();
    let seed = seed.map_or(1, |n| n.parse().expect("WQCAP_SEED is a number"));
    let samples = super::samples();
    let mut random = Random(seed);
    let mut frame = Vec::new();
    for i in 0..count {
        let sample = &samples[random.below(samples.len())];
        frame.clear();
        frame.extend_from_slice(&sample.bytes);
        random.mutate(&mut frame);
        let checked = check(&frame).and_then(|()| super::peers::check(&frame).map(drop));
        if let Err(difference) = checked {
            panic!(
                "seed {seed}, frame {i}, from {}: {difference}\n{frame:02x?}",
                sample.name
            );
        }
    }
    skip::say(&format!("{count} mutated frames, seed {seed}"));
}

/// Repeatable random number generator: xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).expect("small")
    }

    /// Applies one to four random changes, most of them in the headers: known field values, flipped
    /// bits, truncation, removed and repeated pieces.
    fn mutate(&mut self, frame: &mut Vec<u8>) {
        const TOKENS: [&[u8]; 35] = [
            &[0x89, 0x26],
            &[0x89, 0x3f],
            &[0x89, 0x09],
            &[0x89, 0x88],
            &[0x89, 0x2f],
            &[0x89, 0x03],
            &[0x88, 0xe7],
            &[0x89, 0x4f, 0x0f, 0xc2, 1, 3],
            &[0xf1, 0xc1],
            &[0xd2, 0x8b],
            &[97],
            &[115],
            &[0x06, 0xa5],
            &[0x0d, 0xd8],
            &[0x12, 0x92],
            &[0x14, 0x7f],
            &[0x90, 0x90],
            &[0x81, 0x00],
            &[0x88, 0xa8],
            &[0x08, 0x00, 0x45],
            &[0x86, 0xdd, 0x60],
            &[0x88, 0x47],
            &[0x88, 0x64, 0x11, 0x00],
            &[0x08, 0x06],
            &[4],
            &[6],
            &[17],
            &[41],
            &[44],
            &[47],
            &[51],
            &[132],
            &[0x12, 0xb5],
            &[0x17, 0xc1],
            &[0x08, 0x68],
        ];
        for _ in 0..=self.below(4) {
            if frame.is_empty() {
                return;
            }
            let near = frame.len().min(96);
            let at = self.below(near);
            match self.below(6) {
                0 => frame[at] ^= 1 << self.below(8),
                1 => frame[at] = u8::try_from(self.below(256)).expect("a byte"),
                2 => frame.truncate(at),
                3 => {
                    let token = TOKENS[self.below(TOKENS.len())];
                    let at = if self.below(2) == 0 { 12.min(at) } else { at };
                    for (byte, token) in frame[at..].iter_mut().zip(token) {
                        *byte = *token;
                    }
                }
                4 => {
                    // Build header stacks that are deeper than those of real frames.
                    let len = self.below(near - at) + 1;
                    let piece = frame[at..at + len].to_vec();
                    for _ in 0..=self.below(8) {
                        frame.splice(at..at, piece.iter().copied());
                    }
                }
                _ => {
                    let len = self.below(near - at) + 1;
                    frame.drain(at..at + len);
                }
            }
        }
    }
}
