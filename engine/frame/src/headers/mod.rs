//! The short way through a frame: its 5-tuple, tags, fragment flags and offsets, in one pass.
//!
//! This runs for each frame where a stage of the pipeline wants it, so common frames (tags, IP, TCP, UDP) take a
//! straight path and everything else is kept out of line.

mod plain;
mod tuple;

pub use tuple::FiveTuple;

use crate::{
    ip::{Ah, Esp, Extension, Icmp, Ipv4, Ipv6, Ipv6Fragment},
    link::{Arp, Ethernet, Llc, Mpls, Ppp, Pppoe, Vlan},
    malformed::Malformed,
    next::Next,
    numbers::{ethertype, protocol},
    transport::{Sctp, Tcp, Udp},
    tunnel::{Erspan, Geneve, Gre, Gtp, Vxlan},
};

/// Headers of one frame that are looked at: more than any sane stack has, few enough to bound the work.
pub const MOST_LAYERS: u8 = 32;

/// What there is to know of one packet in a frame: the outermost ([`Headers::parse`]) or the innermost
/// ([`Headers::innermost`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Addresses, ports and protocol.
    pub tuple: FiveTuple,
    /// The last ethertype, behind all tags; for 802.3 frames the length, unless SNAP carries an ethertype.
    pub ethertype: u16,
    /// VLAN tags of the packet's own Ethernet header.
    pub tags: Tags,
    /// Whether the packet is a fragment, and which.
    pub fragment: Fragment,
    /// The first thing that was wrong.
    pub malformed: Option<Malformed>,
    /// Network identifier (24 bits) of the innermost VXLAN or Geneve tunnel that the packet is in.
    pub segment: Option<u32>,
    /// Where things begin; 0 where they are not there, since every frame begins with an Ethernet header.
    l3: u32,
    l4: u32,
    payload: u32,
    /// Where the innermost header that tells a length says that the packet ends.
    end: u32,
    /// Headers that may still be looked at.
    layers: u8,
}

/// VLAN tags: how many, and the two outermost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tags {
    /// How many there are.
    pub count: u8,
    tci: [u16; 2],
}

impl Tags {
    /// VLAN identifier of the outermost (0) or the second (1) tag.
    #[must_use]
    pub fn id(&self, which: u8) -> Option<u16> {
        let tci = self.tci.get(usize::from(which))?;
        (which < self.count).then_some(tci & 0xfff)
    }

    #[inline]
    fn push(&mut self, tci: u16) {
        if let Some(free) = self.tci.get_mut(usize::from(self.count)) {
            *free = tci;
        }
        self.count = self.count.saturating_add(1);
    }
}

/// Fragment flags and offset, in IPv4's form for both versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fragment(u16);

impl Fragment {
    /// Offset in units of 8 bytes.
    #[must_use]
    pub fn offset(self) -> u16 {
        self.0 & 0x1fff
    }

    /// Whether more fragments follow.
    #[must_use]
    pub fn more(self) -> bool {
        self.0 & Ipv4::MORE != 0
    }

    /// Whether IPv4 forbids to fragment it.
    #[must_use]
    pub fn dont(self) -> bool {
        self.0 & Ipv4::DONT != 0
    }

    /// Whether this is part of a datagram only.
    #[inline]
    #[must_use]
    pub fn is_fragment(self) -> bool {
        self.0 & (Ipv4::MORE | 0x1fff) != 0
    }

    /// Whether this is a part without the datagram's first bytes, and so without ports.
    #[inline]
    #[must_use]
    pub fn is_later(self) -> bool {
        self.0 & 0x1fff != 0
    }
}

impl Headers {
    /// Of the frame's outermost packet.
    #[inline]
    #[must_use]
    pub fn parse(frame: &[u8]) -> Self {
        plain::plain(frame).unwrap_or_else(|| Self::followed(frame))
    }

    /// The long way through a frame, header by header.
    #[inline(never)]
    fn followed(frame: &[u8]) -> Self {
        let mut headers = Self::until(frame.len(), MOST_LAYERS);
        headers.ethernet(frame, 0);
        headers
    }

    /// Of the innermost packet that tunnels lead to: VXLAN, Geneve, GTP-U, GRE, ERSPAN, MPLS and IP in IP. Where the
    /// way ends at something else than IP, or in a fragment, the packet before it is the innermost.
    #[must_use]
    pub fn innermost(frame: &[u8]) -> Self {
        let outer = Self::parse(frame);
        outer.descend(frame).unwrap_or(outer)
    }

    /// As [`Headers::innermost`], from what [`Headers::parse`] has found in the same frame: for those who want both.
    /// `None`: nothing else, since it is in no tunnel.
    #[inline]
    #[must_use]
    pub fn descend(&self, frame: &[u8]) -> Option<Self> {
        let above = self.above(frame)?;
        Some(self.descended(frame, above))
    }

    /// Where that begins which IP, GRE or UDP carries, and what it is; `None`: no tunnel, sound or not.
    #[inline]
    fn above(&self, frame: &[u8]) -> Option<(usize, Next)> {
        if self.fragment.is_fragment() {
            return None;
        }
        let l4 = self.l4()?;
        let (at, next) = match (self.tuple.protocol, self.payload()) {
            (protocol::IPV4, _) => (l4, Next::Ethertype(ethertype::IPV4)),
            (protocol::IPV6, _) => (l4, Next::Ethertype(ethertype::IPV6)),
            (protocol::MPLS, _) => (l4, Next::Mpls),
            (protocol::ETHERNET, _) => (l4, Next::Ethernet),
            (protocol::GRE, Some(at)) => (at, Gre::new(self.rest(frame, l4)).ok()?.next()),
            (protocol::UDP, Some(at)) => (at, Udp::new(self.rest(frame, l4)).ok()?.next()),
            _ => return None,
        };
        (!matches!(next, Next::Payload)).then_some((at, next))
    }

    #[inline(never)]
    fn descended(mut self, frame: &[u8], mut above: (usize, Next)) -> Self {
        while let Some(Passage { at, next, segment }) = self.tunnel(frame, above) {
            let mut inner = Self::until(self.end as usize, self.layers);
            inner.segment = segment;
            inner.follow(frame, at, next);
            inner.malformed = self.malformed.or(inner.malformed);
            if inner.l3 == 0 {
                self.malformed = inner.malformed;
                break;
            }
            self = inner;
            match self.above(frame) {
                Some(it) => above = it,
                None => break,
            }
        }
        self
    }

    /// Where the IP header begins.
    #[inline]
    #[must_use]
    pub fn l3(&self) -> Option<usize> {
        some(self.l3)
    }

    /// Where what IP carries begins: behind options and extension headers.
    #[inline]
    #[must_use]
    pub fn l4(&self) -> Option<usize> {
        some(self.l4)
    }

    /// Where the payload of TCP, UDP, SCTP, ICMP, GRE or ESP begins. None behind other protocols, in later fragments,
    /// and behind a header that is not whole.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> Option<usize> {
        some(self.payload)
    }

    /// Where the packet ends; what is behind it in the frame is padding.
    #[must_use]
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// The control bits of a TCP segment; none without a whole header of TCP in this frame.
    #[inline]
    #[must_use]
    pub fn tcp_flags(&self, frame: &[u8]) -> u8 {
        if self.tuple.protocol != protocol::TCP || self.fragment.is_later() {
            return 0;
        }
        let header = self.l4().and_then(|at| frame.get(at..self.end()));
        header.map_or(0, |it| Tcp::new(it).map_or(0, |tcp| tcp.flags()))
    }

    #[inline]
    fn until(end: usize, layers: u8) -> Self {
        Self {
            end: offset(end),
            layers,
            ..Self::default()
        }
    }

    /// The packet's bytes from `at` on.
    #[inline]
    fn rest<'f>(&self, frame: &'f [u8], at: usize) -> &'f [u8] {
        frame.get(at..self.end as usize).unwrap_or_default()
    }

    /// Notes what is wrong, if it is the first.
    #[inline]
    fn fault(&mut self, fault: Malformed) {
        self.malformed.get_or_insert(fault);
    }

    /// The same if something is wrong. What is right is not even looked up: a load right behind the store of the whole
    /// structure waits for it.
    #[inline]
    fn faults(&mut self, fault: Option<Malformed>) {
        if let Some(fault) = fault {
            self.fault(fault);
        }
    }

    /// Counts a header; false: that was too many.
    #[inline]
    fn step(&mut self) -> bool {
        match self.layers.checked_sub(1) {
            Some(left) => {
                self.layers = left;
                true
            }
            None => {
                self.fault(Malformed::TooDeep);
                false
            }
        }
    }

    #[inline]
    fn ethernet(&mut self, frame: &[u8], at: usize) {
        if !self.step() {
            return;
        }
        match Ethernet::new(self.rest(frame, at)) {
            Ok(ethernet) => self.link(frame, at + Ethernet::LEN, ethernet.ethertype()),
            Err(fault) => self.fault(fault),
        }
    }

    /// From the ethertype on.
    #[inline]
    fn link(&mut self, frame: &[u8], mut at: usize, mut ethertype: u16) {
        while Vlan::is_announced_by(ethertype) {
            if !self.step() {
                return;
            }
            match Vlan::new(self.rest(frame, at)) {
                Ok(vlan) => {
                    self.tags.push(vlan.tci());
                    ethertype = vlan.ethertype();
                    at += Vlan::LEN;
                }
                Err(fault) => {
                    self.ethertype = ethertype;
                    return self.fault(fault);
                }
            }
        }
        self.ethertype = ethertype;
        match ethertype {
            ethertype::IPV4 => self.ipv4(frame, at),
            ethertype::IPV6 => self.ipv6(frame, at),
            _ => self.rare(frame, at, Next::Ethertype(ethertype)),
        }
    }

    #[inline]
    fn ipv4(&mut self, frame: &[u8], at: usize) {
        if !self.step() {
            return;
        }
        let ip = match Ipv4::new(self.rest(frame, at)) {
            Ok(ip) => ip,
            Err(fault) => return self.fault(fault),
        };
        self.l3 = offset(at);
        self.tuple.version = 4;
        self.tuple.protocol = ip.protocol();
        self.tuple.src[..4].copy_from_slice(&ip.src());
        self.tuple.dst[..4].copy_from_slice(&ip.dst());
        self.fragment = Fragment(ip.fragment_field() & 0x7fff);
        let start = match ip.extent() {
            Ok((start, end, fault)) => {
                self.end = offset(at + end);
                self.faults(fault);
                at + start
            }
            Err(fault) => return self.fault(fault),
        };
        self.l4 = offset(start);
        if !self.fragment.is_later() {
            self.transport(frame, start, ip.protocol());
        }
    }

    #[inline]
    fn ipv6(&mut self, frame: &[u8], at: usize) {
        if !self.step() {
            return;
        }
        let ip = match Ipv6::new(self.rest(frame, at)) {
            Ok(ip) => ip,
            Err(fault) => return self.fault(fault),
        };
        self.l3 = offset(at);
        self.tuple.version = 6;
        self.tuple.src = ip.src();
        self.tuple.dst = ip.dst();
        let (end, fault) = ip.extent();
        self.end = offset(at + end);
        self.faults(fault);
        self.chain(frame, at + Ipv6::LEN, ip.next_header());
    }

    /// Along the extension headers.
    #[inline]
    fn chain(&mut self, frame: &[u8], mut at: usize, mut next: u8) {
        // A chain that breaks off has no end, even if AH stood in it.
        self.l4 = 0;
        loop {
            self.tuple.protocol = next;
            if Extension::is_announced_by(next) {
                if !self.step() {
                    return;
                }
                match Extension::new(self.rest(frame, at)) {
                    Ok(extension) => {
                        next = extension.next_header();
                        at += extension.header_len();
                    }
                    Err(fault) => return self.fault(fault),
                }
            } else if next == protocol::FRAGMENT {
                if !self.step() {
                    return;
                }
                match Ipv6Fragment::new(self.rest(frame, at)) {
                    Ok(fragment) => {
                        let more = if fragment.more() { Ipv4::MORE } else { 0 };
                        self.fragment = Fragment(fragment.offset() | more);
                        next = fragment.next_header();
                        at += Ipv6Fragment::LEN;
                    }
                    Err(fault) => return self.fault(fault),
                }
                if self.fragment.is_later() {
                    self.tuple.protocol = next;
                    self.l4 = offset(at);
                    return;
                }
            } else {
                break;
            }
        }
        self.l4 = offset(at);
        self.transport(frame, at, next);
    }

    /// What IP carries.
    #[inline]
    fn transport(&mut self, frame: &[u8], at: usize, protocol: u8) {
        let rest = self.rest(frame, at);
        let (ports, len) = match protocol {
            protocol::TCP => match Tcp::new(rest) {
                Ok(tcp) => ((tcp.src_port(), tcp.dst_port()), tcp.extent()),
                Err(fault) => return self.cut_ports(rest, fault),
            },
            protocol::UDP => match Udp::new(rest) {
                Ok(udp) => {
                    self.malformed = self.malformed.or(udp.fault());
                    ((udp.src_port(), udp.dst_port()), Ok(Udp::LEN))
                }
                Err(fault) => return self.cut_ports(rest, fault),
            },
            _ => return self.rare_transport(frame, at, protocol),
        };
        if !self.step() {
            return;
        }
        (self.tuple.src_port, self.tuple.dst_port) = ports;
        match len {
            Ok(len) => self.payload = offset(at + len),
            Err(fault) => self.fault(fault),
        }
    }

    /// A header that is not whole may still have its ports.
    #[cold]
    fn cut_ports(&mut self, rest: &[u8], fault: Malformed) {
        if !self.step() {
            return;
        }
        if let [a, b, c, d, ..] = *rest {
            self.tuple.src_port = u16::from_be_bytes([a, b]);
            self.tuple.dst_port = u16::from_be_bytes([c, d]);
        }
        self.fault(fault);
    }

    /// Protocols that few frames have.
    #[inline(never)]
    fn rare_transport(&mut self, frame: &[u8], at: usize, protocol: u8) {
        let rest = self.rest(frame, at);
        let len = match (protocol, self.tuple.version) {
            (protocol::SCTP, _) => match Sctp::new(rest) {
                Ok(sctp) => {
                    (self.tuple.src_port, self.tuple.dst_port) = (sctp.src_port(), sctp.dst_port());
                    Ok(Sctp::LEN)
                }
                Err(fault) => return self.cut_ports(rest, fault),
            },
            (protocol::ICMP, 4) | (protocol::ICMPV6, 6) => Icmp::new(rest).map(|_| Icmp::LEN),
            (protocol::ESP, _) => Esp::new(rest).map(|_| Esp::LEN),
            (protocol::GRE, _) => Gre::new(rest).map(|gre| gre.header_len()),
            (protocol::AH, version) => {
                if !self.step() {
                    return;
                }
                return match Ah::new(rest) {
                    // Behind AH, IPv6 may go on with extension headers.
                    Ok(ah) if version == 6 => {
                        self.chain(frame, at + ah.header_len(), ah.next_header());
                    }
                    Ok(ah) => {
                        self.tuple.protocol = ah.next_header();
                        self.l4 = offset(at + ah.header_len());
                        self.transport(frame, at + ah.header_len(), ah.next_header());
                    }
                    Err(fault) => self.fault(fault),
                };
            }
            _ => return,
        };
        if !self.step() {
            return;
        }
        match len {
            Ok(len) => self.payload = offset(at + len),
            Err(fault) => self.fault(fault),
        }
    }

    /// What lies between Ethernet and IP in few frames.
    #[inline(never)]
    fn rare(&mut self, frame: &[u8], mut at: usize, mut next: Next) {
        loop {
            let rest = self.rest(frame, at);
            let step = match next {
                Next::Ethertype(ethertype::IPV4) => return self.ipv4(frame, at),
                Next::Ethertype(ethertype::IPV6) => return self.ipv6(frame, at),
                Next::Ethertype(ethertype::MPLS | ethertype::MPLS_MULTICAST) | Next::Mpls => {
                    Mpls::new(rest).map(|mpls| {
                        let behind = rest.get(Mpls::LEN..).unwrap_or_default();
                        (Mpls::LEN, mpls.next(behind))
                    })
                }
                Next::Ethertype(ethertype::PPPOE) => Pppoe::new(rest).map(|pppoe| {
                    self.end = offset(at + pppoe.end());
                    self.malformed = self.malformed.or(pppoe.fault());
                    (Pppoe::LEN, pppoe.next())
                }),
                Next::Ppp => Ppp::new(rest).map(|ppp| (ppp.header_len(), ppp.next())),
                Next::Ethertype(ethertype::ARP) => {
                    Arp::new(rest).map(|arp| (arp.header_len(), Next::Payload))
                }
                Next::Ethertype(length) if length <= ethertype::LONGEST_LENGTH => Llc::new(rest)
                    .map(|llc| {
                        self.ethertype = llc.ethertype().unwrap_or(length);
                        (llc.header_len(), llc.next())
                    }),
                // A tag behind SNAP or in a tunnel.
                Next::Ethertype(tpid) if Vlan::is_announced_by(tpid) => {
                    return self.link(frame, at, tpid);
                }
                _ => return,
            };
            if !self.step() {
                return;
            }
            match step {
                Ok((len, then)) => (at, next) = (at + len, then),
                Err(fault) => return self.fault(fault),
            }
        }
    }

    /// Where this packet leads on, if what is above it is a sound tunnel.
    fn tunnel(&mut self, frame: &[u8], (at, next): (usize, Next)) -> Option<Passage> {
        let mut segment = self.segment;
        let to = |at, next, segment| Some(Passage { at, next, segment });
        let rest = self.rest(frame, at);
        let behind = |len: usize| rest.get(len..).unwrap_or_default();
        let header = match next {
            Next::Vxlan(extended) => Vxlan::new(rest).map(|vxlan| {
                segment = Some(vxlan.vni());
                (at + Vxlan::LEN, vxlan.next(extended))
            }),
            Next::Geneve => Geneve::new(rest).map(|geneve| {
                segment = Some(geneve.vni());
                (at + geneve.header_len(), geneve.next())
            }),
            Next::Gtp => Gtp::new(rest).map(|gtp| {
                let len = gtp.header_len();
                (at + len, gtp.next(behind(len)))
            }),
            Next::Erspan(kind) => Erspan::new(rest, kind).map(|it| {
                let len = it.header_len();
                (at + len, it.next(behind(len)))
            }),
            _ => return to(at, next, segment),
        };
        if !self.step() {
            return None;
        }
        match header {
            Ok((_, Next::Payload)) => None,
            Ok((at, next)) => to(at, next, segment),
            Err(fault) => {
                self.fault(fault);
                None
            }
        }
    }

    /// Goes on at `at` with what a tunnel carries.
    fn follow(&mut self, frame: &[u8], at: usize, next: Next) {
        match next {
            Next::Ethernet => self.ethernet(frame, at),
            Next::Ethertype(ethertype) => self.link(frame, at, ethertype),
            _ => self.rare(frame, at, next),
        }
    }
}

/// Where a tunnel leads.
struct Passage {
    at: usize,
    next: Next,
    segment: Option<u32>,
}

/// An offset as it is kept. Frames are far shorter than 4 GiB; what is not would only lose its offsets.
#[inline]
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[inline]
fn some(at: u32) -> Option<usize> {
    (at != 0).then_some(at as usize)
}
