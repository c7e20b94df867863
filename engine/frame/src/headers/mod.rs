//! Single-pass parser of a frame's headers: 5-tuple, VLAN tags, fragment flags and offsets.
//!
//! The parser runs for every frame if a pipeline stage needs headers. Common frames (tags, IP, TCP,
//! UDP) therefore take a straight path, and all other cases are kept out of line.

mod plain;
mod tuple;

pub use tuple::FiveTuple;

use crate::{
    ip::{Ah, Esp, ExtensionHeader, Icmp, Ipv4, Ipv6, Ipv6Fragment},
    link::{Arp, Ethernet, FabricTag, Llc, Mpls, Nsh, Ppp, Pppoe, Vlan, Wlan},
    malformed::Malformed,
    next::Next,
    numbers::{ethertype, protocol},
    transport::{Sctp, Tcp, Udp},
    tunnel::{Capwap, Erspan, EtherIp, Geneve, Gre, Gtp, L2tp, Teredo, Tzsp, Vxlan},
};

/// Maximum number of headers parsed per frame. The limit bounds the work; real frames have fewer.
pub const MAX_HEADERS: u8 = 32;

/// Parsed headers of one packet in a frame: the outermost ([`Headers::parse`]) or the innermost
/// ([`Headers::innermost`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Addresses, ports and protocol of the packet.
    pub tuple: FiveTuple,
    /// Ethertype of the packet after all VLAN tags and tags of fabrics. For 802.3 frames it is the
    /// length, unless SNAP carries an ethertype.
    pub ethertype: u16,
    /// VLAN tags before the packet, those between other headers included.
    pub tags: Tags,
    /// IP fragment flags and fragment offset of the packet.
    pub fragment: Fragment,
    /// First fault found while parsing the frame's headers.
    pub malformed: Option<Malformed>,
    /// Network identifier (24 bits) of the innermost VXLAN or Geneve tunnel around the packet.
    pub segment: Option<u32>,
    /// Offset in the frame of the packet's IP header; 0 for none, since every frame begins with an
    /// Ethernet header.
    l3: u32,
    /// Offset in the frame of the header after the packet's IP header; 0 for none.
    l4: u32,
    /// Offset in the frame of the packet's payload; 0 for none.
    payload: u32,
    /// Offset in the frame of the packet's end, by the innermost header that has a length field.
    end: u32,
    /// Number of headers of the frame that may still be parsed.
    layers: u8,
}

/// VLAN tags of a packet: their number, and the two outermost tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tags {
    /// Number of VLAN tags in front of the packet.
    pub count: u8,
    /// Tag control information of the packet's two outermost VLAN tags.
    tci: [u16; 2],
}

impl Tags {
    /// Returns the VLAN identifier of the outermost (0) or the second (1) VLAN tag.
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

/// IP fragment flags and offset, in the format of the IPv4 header for both IP versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fragment(u16);

impl Fragment {
    /// Returns the IP fragment offset in units of 8 bytes.
    #[must_use]
    pub fn offset(self) -> u16 {
        self.0 & 0x1fff
    }

    /// Returns `true` if more fragments of the IP datagram follow.
    #[must_use]
    pub fn more(self) -> bool {
        self.0 & Ipv4::MORE != 0
    }

    /// Returns `true` if the "don't fragment" flag of IPv4 is set.
    #[must_use]
    pub fn dont(self) -> bool {
        self.0 & Ipv4::DONT != 0
    }

    /// Returns `true` if the packet is a fragment of an IP datagram.
    #[inline]
    #[must_use]
    pub fn is_fragment(self) -> bool {
        self.0 & (Ipv4::MORE | 0x1fff) != 0
    }

    /// Returns `true` for an IP fragment after the first one, which therefore has no ports.
    #[inline]
    #[must_use]
    pub fn is_later(self) -> bool {
        self.0 & 0x1fff != 0
    }
}

impl Headers {
    /// Parses the headers of the outermost packet of a frame.
    #[inline]
    #[must_use]
    pub fn parse(frame: &[u8]) -> Self {
        plain::parse_plain(frame).unwrap_or_else(|| Self::parse_any(frame))
    }

    /// Parses the headers of the outermost packet of any frame, one header after the other.
    #[inline(never)]
    fn parse_any(frame: &[u8]) -> Self {
        let mut headers = Self::with_end(frame.len(), MAX_HEADERS);
        headers.ethernet(frame, 0);
        headers
    }

    /// Parses the headers of the innermost packet in a frame, through VXLAN, Geneve, GTP-U, GRE,
    /// ERSPAN, MPLS, IP-in-IP, CAPWAP, L2TP, TZSP, Teredo and EtherIP tunnels. If a tunnel carries
    /// no IP packet, or its packet is a fragment, the packet that carries the tunnel is the
    /// innermost.
    #[must_use]
    pub fn innermost(frame: &[u8]) -> Self {
        let outer = Self::parse(frame);
        outer.descend(frame).unwrap_or(outer)
    }

    /// Parses the headers of the innermost packet, given the headers that [`Headers::parse`]
    /// returned for the same frame. This is for callers that need both packets. Returns `None` if
    /// the outermost packet carries no tunnel.
    #[inline]
    #[must_use]
    pub fn descend(&self, frame: &[u8]) -> Option<Self> {
        let above = self.tunnel_start(frame)?;
        Some(self.descend_from(frame, above))
    }

    /// Returns offset and type of the tunnel header or packet that is carried in IP, GRE or UDP;
    /// `None` without a tunnel.
    #[inline]
    fn tunnel_start(&self, frame: &[u8]) -> Option<(usize, Next)> {
        // TCP is the most common, and is checked first.
        if self.tuple.protocol == protocol::TCP || self.fragment.is_fragment() {
            return None;
        }
        let l4 = self.l4()?;
        let (at, next) = match (self.tuple.protocol, self.payload()) {
            (protocol::UDP, Some(at)) => (at, Udp::new(self.bytes_from(frame, l4)).ok()?.next()),
            (protocol::GRE, Some(at)) => (at, Gre::new(self.bytes_from(frame, l4)).ok()?.next()),
            (protocol::IPV4, _) => (l4, Next::Ethertype(ethertype::IPV4)),
            (protocol::IPV6, _) => (l4, Next::Ethertype(ethertype::IPV6)),
            (protocol::MPLS, _) => (l4, Next::Mpls),
            (protocol::ETHERNET, _) => (l4, Next::Ethernet),
            (protocol::ETHERIP, _) => (l4, Next::EtherIp),
            (protocol::L2TP, _) => (l4, Next::L2tp(true)),
            _ => return None,
        };
        (!matches!(next, Next::Payload)).then_some((at, next))
    }

    #[inline(never)]
    fn descend_from(mut self, frame: &[u8], mut above: (usize, Next)) -> Self {
        while let Some(TunnelExit { at, next, segment }) = self.enter_tunnel(frame, above) {
            let mut inner = Self::with_end(self.end as usize, self.layers);
            inner.segment = segment;
            inner.tunnelled_packet(frame, at, next);
            inner.malformed = self.malformed.or(inner.malformed);
            if inner.l3 == 0 {
                self.malformed = inner.malformed;
                break;
            }
            self = inner;
            match self.tunnel_start(frame) {
                Some(it) => above = it,
                None => break,
            }
        }
        self
    }

    /// Returns the offset of the packet's IP header in the frame.
    #[inline]
    #[must_use]
    pub fn l3(&self) -> Option<usize> {
        nonzero(self.l3)
    }

    /// Returns the offset in the frame of the packet's header after IP, its options and extension
    /// headers.
    #[inline]
    #[must_use]
    pub fn l4(&self) -> Option<usize> {
        nonzero(self.l4)
    }

    /// Returns the offset in the frame of the payload of TCP, UDP, SCTP, ICMP, GRE or ESP. `None`
    /// for other protocols, later fragments and truncated headers.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> Option<usize> {
        nonzero(self.payload)
    }

    /// Returns the offset in the frame of the end of the packet. Bytes after it are padding.
    #[must_use]
    pub fn end(&self) -> usize {
        self.end as usize
    }

    /// Returns the TCP control bits (flags) of the packet in a frame; 0 if it has no complete TCP
    /// header.
    #[inline]
    #[must_use]
    pub fn tcp_flags(&self, frame: &[u8]) -> u8 {
        match self.tcp(frame) {
            Some(tcp) => tcp.flags(),
            None => 0,
        }
    }

    /// Returns the TCP header of the packet in a frame; `None` if it has no complete one.
    #[inline]
    #[must_use]
    pub fn tcp<'f>(&self, frame: &'f [u8]) -> Option<Tcp<'f>> {
        if self.tuple.protocol != protocol::TCP || self.fragment.is_later() {
            return None;
        }
        Tcp::new(frame.get(self.l4()?..self.end())?).ok()
    }

    #[inline]
    fn with_end(end: usize, layers: u8) -> Self {
        Self {
            end: offset(end),
            layers,
            ..Self::default()
        }
    }

    /// Returns the bytes of the packet from offset `at` of the frame to the packet's end.
    #[inline]
    fn bytes_from<'f>(&self, frame: &'f [u8], at: usize) -> &'f [u8] {
        frame.get(at..self.end as usize).unwrap_or_default()
    }

    /// Records a parsing fault of the frame if it is the first one.
    #[inline]
    fn record_fault(&mut self, fault: Malformed) {
        self.malformed.get_or_insert(fault);
    }

    /// Records the parsing fault `fault` if it is `Some` and the first one. Without a fault,
    /// `self.malformed` is not read: a load directly after the store of the whole structure would
    /// wait for that store.
    #[inline]
    fn record_any_fault(&mut self, fault: Option<Malformed>) {
        if let Some(fault) = fault {
            self.record_fault(fault);
        }
    }

    /// Counts a parsed header of the frame. Returns `false` and records a fault if [`MAX_HEADERS`]
    /// is reached.
    #[inline]
    fn count_header(&mut self) -> bool {
        match self.layers.checked_sub(1) {
            Some(left) => {
                self.layers = left;
                true
            }
            None => {
                self.record_fault(Malformed::TooDeep);
                false
            }
        }
    }

    #[inline]
    fn ethernet(&mut self, frame: &[u8], at: usize) {
        if !self.count_header() {
            return;
        }
        match Ethernet::new(self.bytes_from(frame, at)) {
            Ok(ethernet) => self.link(frame, at + Ethernet::LEN, ethernet.ethertype()),
            Err(fault) => self.record_fault(fault),
        }
    }

    /// Parses VLAN tags and the header that `ethertype` announces at offset `at`.
    #[inline]
    fn link(&mut self, frame: &[u8], mut at: usize, mut ethertype: u16) {
        while Vlan::is_announced_by(ethertype) {
            if !self.count_header() {
                return;
            }
            match Vlan::new(self.bytes_from(frame, at)) {
                Ok(vlan) => {
                    self.tags.push(vlan.tci());
                    ethertype = vlan.ethertype();
                    at += Vlan::LEN;
                }
                Err(fault) => {
                    self.ethertype = ethertype;
                    return self.record_fault(fault);
                }
            }
        }
        self.ethertype = ethertype;
        match ethertype {
            ethertype::IPV4 => self.ipv4(frame, at),
            ethertype::IPV6 => self.ipv6(frame, at),
            _ => self.rare_link(frame, at, Next::Ethertype(ethertype)),
        }
    }

    #[inline]
    fn ipv4(&mut self, frame: &[u8], at: usize) {
        if !self.count_header() {
            return;
        }
        let ip = match Ipv4::new(self.bytes_from(frame, at)) {
            Ok(ip) => ip,
            Err(fault) => return self.record_fault(fault),
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
                self.record_any_fault(fault);
                at + start
            }
            Err(fault) => return self.record_fault(fault),
        };
        self.l4 = offset(start);
        if !self.fragment.is_later() {
            self.transport(frame, start, ip.protocol());
        }
    }

    #[inline]
    fn ipv6(&mut self, frame: &[u8], at: usize) {
        if !self.count_header() {
            return;
        }
        let ip = match Ipv6::new(self.bytes_from(frame, at)) {
            Ok(ip) => ip,
            Err(fault) => return self.record_fault(fault),
        };
        self.l3 = offset(at);
        self.tuple.version = 6;
        self.tuple.src = ip.src();
        self.tuple.dst = ip.dst();
        let (end, fault) = ip.extent();
        self.end = offset(at + end);
        self.record_any_fault(fault);
        self.extension_headers(frame, at + Ipv6::LEN, ip.next_header());
    }

    /// Parses the chain of IPv6 extension headers from offset `at` on, and the transport header
    /// after it.
    #[inline]
    fn extension_headers(&mut self, frame: &[u8], mut at: usize, mut next: u8) {
        // A truncated chain has no L4 offset, even if an AH before it had set one.
        self.l4 = 0;
        loop {
            self.tuple.protocol = next;
            if ExtensionHeader::is_announced_by(next) {
                if !self.count_header() {
                    return;
                }
                match ExtensionHeader::new(self.bytes_from(frame, at)) {
                    Ok(extension) => {
                        next = extension.next_header();
                        at += extension.header_len();
                    }
                    Err(fault) => return self.record_fault(fault),
                }
            } else if next == protocol::FRAGMENT {
                if !self.count_header() {
                    return;
                }
                match Ipv6Fragment::new(self.bytes_from(frame, at)) {
                    Ok(fragment) => {
                        let more = if fragment.more() { Ipv4::MORE } else { 0 };
                        self.fragment = Fragment(fragment.offset() | more);
                        next = fragment.next_header();
                        at += Ipv6Fragment::LEN;
                    }
                    Err(fault) => return self.record_fault(fault),
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

    /// Parses the header after IP at offset `at`, which is of protocol `protocol`.
    #[inline]
    fn transport(&mut self, frame: &[u8], at: usize, protocol: u8) {
        let rest = self.bytes_from(frame, at);
        let (ports, len) = match protocol {
            protocol::TCP => match Tcp::new(rest) {
                Ok(tcp) => ((tcp.src_port(), tcp.dst_port()), tcp.extent()),
                Err(fault) => return self.truncated_ports(rest, fault),
            },
            protocol::UDP => match Udp::new(rest) {
                Ok(udp) => {
                    self.malformed = self.malformed.or(udp.fault());
                    ((udp.src_port(), udp.dst_port()), Ok(Udp::LEN))
                }
                Err(fault) => return self.truncated_ports(rest, fault),
            },
            _ => return self.rare_transport(frame, at, protocol),
        };
        if !self.count_header() {
            return;
        }
        (self.tuple.src_port, self.tuple.dst_port) = ports;
        match len {
            Ok(len) => self.payload = offset(at + len),
            Err(fault) => self.record_fault(fault),
        }
    }

    /// Reads the ports of a truncated transport header, if they are present.
    #[cold]
    fn truncated_ports(&mut self, rest: &[u8], fault: Malformed) {
        if !self.count_header() {
            return;
        }
        if let [a, b, c, d, ..] = *rest {
            self.tuple.src_port = u16::from_be_bytes([a, b]);
            self.tuple.dst_port = u16::from_be_bytes([c, d]);
        }
        self.record_fault(fault);
    }

    /// Parses the header after IP at offset `at` for protocols other than TCP and UDP.
    #[inline(never)]
    fn rare_transport(&mut self, frame: &[u8], at: usize, protocol: u8) {
        let rest = self.bytes_from(frame, at);
        let len = match (protocol, self.tuple.version) {
            (protocol::SCTP, _) => match Sctp::new(rest) {
                Ok(sctp) => {
                    (self.tuple.src_port, self.tuple.dst_port) = (sctp.src_port(), sctp.dst_port());
                    Ok(Sctp::LEN)
                }
                Err(fault) => return self.truncated_ports(rest, fault),
            },
            (protocol::ICMP, 4) | (protocol::ICMPV6, 6) => Icmp::new(rest).map(|_| Icmp::LEN),
            (protocol::ESP, _) => Esp::new(rest).map(|_| Esp::LEN),
            (protocol::GRE, _) => Gre::new(rest).map(|gre| gre.header_len()),
            (protocol::AH, version) => {
                if !self.count_header() {
                    return;
                }
                return match Ah::new(rest) {
                    // After AH, IPv6 may continue with extension headers.
                    Ok(ah) if version == 6 => {
                        self.extension_headers(frame, at + ah.header_len(), ah.next_header());
                    }
                    Ok(ah) => {
                        self.tuple.protocol = ah.next_header();
                        self.l4 = offset(at + ah.header_len());
                        self.transport(frame, at + ah.header_len(), ah.next_header());
                    }
                    Err(fault) => self.record_fault(fault),
                };
            }
            _ => return,
        };
        if !self.count_header() {
            return;
        }
        match len {
            Ok(len) => self.payload = offset(at + len),
            Err(fault) => self.record_fault(fault),
        }
    }

    /// Parses uncommon headers between Ethernet and IP: MPLS, PPPoE, PPP, ARP, LLC, tags of fabrics,
    /// inner Ethernet headers and VLAN tags.
    #[inline(never)]
    fn rare_link(&mut self, frame: &[u8], mut at: usize, mut next: Next) {
        loop {
            let rest = self.bytes_from(frame, at);
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
                // A VLAN tag after SNAP or in a tunnel.
                Next::Ethertype(tpid) if Vlan::is_announced_by(tpid) => {
                    return self.link(frame, at, tpid);
                }
                Next::Payload => return,
                _ => return self.added_header(frame, at, next),
            };
            if !self.count_header() {
                return;
            }
            match step {
                Ok((len, then)) => (at, next) = (at + len, then),
                Err(fault) => return self.record_fault(fault),
            }
        }
    }

    /// Parses a header that switches, fabrics and access points add, or a frame in it, and the
    /// headers after it. Does nothing for other headers.
    #[cold]
    #[inline(never)]
    fn added_header(&mut self, frame: &[u8], at: usize, next: Next) {
        let rest = self.bytes_from(frame, at);
        let step = match next {
            Next::Ethertype(ethertype::NSH) => {
                Nsh::new(rest).map(|nsh| (nsh.header_len(), nsh.next()))
            }
            Next::Ethertype(tag) if FabricTag::is_announced_by(tag) => {
                FabricTag::new(tag, rest).map(|tag| (tag.header_len(), tag.next()))
            }
            Next::Ethernet => {
                Ethernet::new(rest).map(|it| (Ethernet::LEN, Next::Ethertype(it.ethertype())))
            }
            Next::ControlWord => Ok((Mpls::CONTROL_WORD_LEN, Next::Ethernet)),
            Next::Wlan => Wlan::new(rest).map(|it| (it.header_len(), it.next())),
            _ => return,
        };
        if next != Next::Wlan
            && let Ok((_, Next::Ethertype(ethertype))) = step
        {
            self.ethertype = ethertype;
        }
        if !self.count_header() {
            return;
        }
        match step {
            Ok((len, then)) => self.rare_link(frame, at + len, then),
            Err(fault) => self.record_fault(fault),
        }
    }

    /// Parses the tunnel header of type `next` at offset `at` of the frame. Returns the start of
    /// the packet in the tunnel; `None` if the header is malformed or carries no packet.
    fn enter_tunnel(&mut self, frame: &[u8], (at, next): (usize, Next)) -> Option<TunnelExit> {
        let mut segment = self.segment;
        let to = |at, next, segment| Some(TunnelExit { at, next, segment });
        let rest = self.bytes_from(frame, at);
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
            Next::Capwap
            | Next::L2tp(_)
            | Next::Tzsp
            | Next::Teredo
            | Next::EtherIp
            | Next::Gre => other_tunnel(rest, next).map(|(len, next)| (at + len, next)),
            _ => return to(at, next, segment),
        };
        if !self.count_header() {
            return None;
        }
        match header {
            Ok((_, Next::Payload)) => None,
            Ok((at, next)) => to(at, next, segment),
            Err(fault) => {
                self.record_fault(fault);
                None
            }
        }
    }

    /// Parses the packet in a tunnel, which begins at offset `at` of the frame.
    fn tunnelled_packet(&mut self, frame: &[u8], at: usize, next: Next) {
        match next {
            Next::Ethernet => self.ethernet(frame, at),
            Next::Ethertype(ethertype) => self.link(frame, at, ethertype),
            _ => self.rare_link(frame, at, next),
        }
    }
}

/// Parses the header of a less common tunnel at the start of `rest`. Returns its length and the
/// type of the next header.
#[cold]
#[inline(never)]
fn other_tunnel(rest: &[u8], next: Next) -> Result<(usize, Next), Malformed> {
    Ok(match next {
        Next::Capwap => Capwap::new(rest).map(|it| (it.header_len(), it.next()))?,
        Next::L2tp(over_ip) => L2tp::new(rest, over_ip).map(|it| (it.header_len(), it.next()))?,
        Next::Tzsp => Tzsp::new(rest).map(|it| (it.header_len(), it.next()))?,
        Next::Teredo => Teredo::new(rest).map(|it| (it.header_len(), it.next()))?,
        Next::EtherIp => EtherIp::new(rest).map(|it| (EtherIp::LEN, it.next()))?,
        _ => match Gre::new(rest).map(|it| (it.header_len(), it.next()))? {
            // ERSPAN has a header of its own, which is skipped together with GRE.
            (len, Next::Erspan(kind)) => {
                let mirrored = rest.get(len..).unwrap_or_default();
                let erspan = Erspan::new(mirrored, kind)?;
                let end = erspan.header_len();
                let behind = mirrored.get(end..).unwrap_or_default();
                (len + end, erspan.next(behind))
            }
            gre => gre,
        },
    })
}

/// Start of the packet in a tunnel: its offset and type.
struct TunnelExit {
    /// Offset in the frame at which the packet in the tunnel begins.
    at: usize,
    /// Type of the first header of the packet in the tunnel.
    next: Next,
    /// Network identifier (24 bits) of the tunnel, or of a tunnel around it.
    segment: Option<u32>,
}

/// Returns a header offset in its stored form of 32 bits. Frames are far shorter than 4 GiB; in a
/// longer frame, offsets beyond 4 GiB would be wrong but not unsafe.
#[inline]
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Returns a stored header offset, or `None` for 0, which means no header.
#[inline]
fn nonzero(at: u32) -> Option<usize> {
    (at != 0).then_some(at as usize)
}
