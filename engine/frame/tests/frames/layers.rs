//! Reference parser for the tests: an iterator over all headers of a frame, tunnels included, each
//! as a view with accessors.

use wqcap_frame::{
    Ah, Arp, Capwap, Erspan, Esp, EtherIp, Ethernet, ExtensionHeader, FabricTag, Geneve, Gre, Gtp,
    Icmp, Ipv4, Ipv6, Ipv6Fragment, L2tp, Llc, MAX_HEADERS, Malformed, Mpls, Next, Nsh, Ppp, Pppoe,
    Sctp, Tcp, Teredo, Tzsp, Udp, Vlan, Vxlan, Wlan, ethertype, protocol,
};

/// Header of a frame, as a view.
#[derive(Clone, Copy, Debug)]
#[allow(
    missing_docs,
    reason = "each variant has the name of its view, and contains the view if a test reads it"
)]
pub enum Layer<'a> {
    Ethernet(Ethernet<'a>),
    Llc(Llc<'a>),
    Vlan(Vlan<'a>),
    /// Tag of a fabric, or a network service header, with the type of the header that follows.
    Tag(Next),
    Mpls(Mpls<'a>),
    ControlWord,
    Wlan,
    Pppoe(Pppoe<'a>),
    Ppp,
    Arp,
    Ipv4(Ipv4<'a>),
    Ipv6(Ipv6<'a>),
    Extension(ExtensionHeader<'a>),
    Ipv6Fragment(Ipv6Fragment<'a>),
    Ah(Ah<'a>),
    Esp,
    Tcp(Tcp<'a>),
    Udp(Udp<'a>),
    Sctp(Sctp<'a>),
    Icmp,
    Icmpv6,
    Gre(Gre<'a>),
    Erspan,
    Vxlan,
    Geneve,
    Gtp,
    /// Header of another tunnel, which a UDP port or a protocol number announces.
    Tunnel,
}

/// Header with its offset in the frame.
#[derive(Clone, Copy, Debug)]
pub struct Located<'a> {
    /// Offset of the header.
    pub at: usize,
    /// Ethertype or protocol number that announced the header.
    pub announced: Next,
    /// View of the header.
    pub layer: Layer<'a>,
}

/// Iterator over the headers of a frame, from the outermost to the innermost.
///
/// Iteration ends at the payload, at an unknown header or at a fault. [`Layers::malformed`] returns
/// the fault.
#[derive(Clone, Debug)]
pub struct Layers<'a> {
    frame: &'a [u8],
    at: usize,
    end: usize,
    next: Next,
    left: u8,
    malformed: Option<Malformed>,
}

/// Converts an IP protocol number to the type that other headers use for the same next header.
fn without_ip(next: Next) -> Next {
    match next {
        Next::AboveIpv4(protocol::IPV4) | Next::AboveIpv6(protocol::IPV4) => {
            Next::Ethertype(ethertype::IPV4)
        }
        Next::AboveIpv4(protocol::IPV6) | Next::AboveIpv6(protocol::IPV6) => {
            Next::Ethertype(ethertype::IPV6)
        }
        Next::AboveIpv4(protocol::MPLS) | Next::AboveIpv6(protocol::MPLS) => Next::Mpls,
        Next::AboveIpv4(protocol::ETHERNET) | Next::AboveIpv6(protocol::ETHERNET) => Next::Ethernet,
        Next::AboveIpv4(protocol::ETHERIP) | Next::AboveIpv6(protocol::ETHERIP) => Next::EtherIp,
        Next::AboveIpv4(protocol::L2TP) | Next::AboveIpv6(protocol::L2TP) => Next::L2tp(true),
        other => other,
    }
}

/// Parsed header: its view, its length in bytes, and the type of the next header.
type Taken<'a> = Result<(Layer<'a>, usize, Next), Malformed>;

impl<'a> Layers<'a> {
    /// Creates an iterator over an Ethernet frame.
    #[must_use]
    pub fn new(frame: &'a [u8]) -> Self {
        Self {
            frame,
            at: 0,
            end: frame.len(),
            next: Next::Ethernet,
            left: MAX_HEADERS,
            malformed: None,
        }
    }

    /// Returns the first fault in the headers that have been returned so far.
    #[must_use]
    pub fn malformed(&self) -> Option<Malformed> {
        self.malformed
    }

    /// Returns the bytes after the headers that have been returned so far, without padding.
    #[must_use]
    pub fn remaining(&self) -> &'a [u8] {
        self.frame.get(self.at..self.end).unwrap_or_default()
    }

    /// Returns the type of the header after the last returned one.
    #[must_use]
    pub fn announced(&self) -> Next {
        self.next
    }

    /// Limits the frame to the end of the packet that begins at the current offset.
    fn ends_at(&mut self, end: usize, fault: Option<Malformed>) {
        self.end = self.end.min(self.at + end);
        self.malformed = self.malformed.or(fault);
    }

    fn take(&mut self) -> Option<Taken<'a>> {
        let rest = self.remaining();
        Some(match without_ip(self.next) {
            Next::Ethernet => Ethernet::new(rest).map(|it| {
                let next = Next::Ethertype(it.ethertype());
                (Layer::Ethernet(it), Ethernet::LEN, next)
            }),
            Next::Ethertype(ethertype) => return self.take_by_ethertype(rest, ethertype),
            Next::Mpls => mpls(rest),
            Next::Ppp => Ppp::new(rest).map(|it| (Layer::Ppp, it.header_len(), it.next())),
            Next::AboveIpv4(protocol) => return take_above_ip(rest, protocol, Next::AboveIpv4),
            Next::AboveIpv6(protocol) => {
                return take_extension(rest, protocol)
                    .or_else(|| take_above_ip(rest, protocol, Next::AboveIpv6));
            }
            Next::Erspan(kind) => Erspan::new(rest, kind).map(|it| {
                let behind = rest.get(it.header_len()..).unwrap_or_default();
                (Layer::Erspan, it.header_len(), it.next(behind))
            }),
            Next::Vxlan(extended) => {
                Vxlan::new(rest).map(|it| (Layer::Vxlan, Vxlan::LEN, it.next(extended)))
            }
            Next::Geneve => Geneve::new(rest).map(|it| (Layer::Geneve, it.header_len(), it.next())),
            Next::Gtp => Gtp::new(rest).map(|it| {
                let behind = rest.get(it.header_len()..).unwrap_or_default();
                (Layer::Gtp, it.header_len(), it.next(behind))
            }),
            Next::ControlWord => Ok((Layer::ControlWord, 4, Next::Ethernet)),
            Next::Wlan => Wlan::new(rest).map(|it| (Layer::Wlan, it.header_len(), it.next())),
            // ERSPAN follows as another header.
            Next::Gre => tunnel(Gre::new(rest), |it| (it.header_len(), it.next())),
            Next::EtherIp => tunnel(EtherIp::new(rest), |it| (EtherIp::LEN, it.next())),
            Next::Capwap => tunnel(Capwap::new(rest), |it| (it.header_len(), it.next())),
            Next::L2tp(over_ip) => {
                tunnel(L2tp::new(rest, over_ip), |it| (it.header_len(), it.next()))
            }
            Next::Tzsp => tunnel(Tzsp::new(rest), |it| (it.header_len(), it.next())),
            Next::Teredo => tunnel(Teredo::new(rest), |it| (it.header_len(), it.next())),
            Next::Payload => return None,
        })
    }

    fn take_by_ethertype(&mut self, rest: &'a [u8], ethertype: u16) -> Option<Taken<'a>> {
        Some(match ethertype {
            ethertype::IPV4 => Ipv4::new(rest).map(|it| self.ipv4(it)),
            ethertype::IPV6 => Ipv6::new(rest).map(|it| {
                let (end, fault) = it.extent();
                self.ends_at(end, fault);
                (
                    Layer::Ipv6(it),
                    Ipv6::LEN,
                    Next::AboveIpv6(it.next_header()),
                )
            }),
            ethertype::ARP => Arp::new(rest).map(|it| (Layer::Arp, it.header_len(), Next::Payload)),
            ethertype::MPLS | ethertype::MPLS_MULTICAST => mpls(rest),
            ethertype::PPPOE => Pppoe::new(rest).map(|it| {
                self.ends_at(it.end(), it.fault());
                (Layer::Pppoe(it), Pppoe::LEN, it.next())
            }),
            tpid if Vlan::is_announced_by(tpid) => Vlan::new(rest).map(|it| {
                let next = Next::Ethertype(it.ethertype());
                (Layer::Vlan(it), Vlan::LEN, next)
            }),
            ethertype::NSH => {
                Nsh::new(rest).map(|it| (Layer::Tag(it.next()), it.header_len(), it.next()))
            }
            tag if FabricTag::is_announced_by(tag) => FabricTag::new(tag, rest)
                .map(|it| (Layer::Tag(it.next()), it.header_len(), it.next())),
            length if length <= ethertype::LONGEST_LENGTH => {
                Llc::new(rest).map(|it| (Layer::Llc(it), it.header_len(), it.next()))
            }
            _ => return None,
        })
    }

    fn ipv4(&mut self, ip: Ipv4<'a>) -> (Layer<'a>, usize, Next) {
        let (len, next) = match ip.extent() {
            Ok((start, end, fault)) => {
                self.ends_at(end, fault);
                let later = ip.fragment_field() & 0x1fff != 0;
                let above = Next::AboveIpv4(ip.protocol());
                (start, if later { Next::Payload } else { above })
            }
            Err(fault) => {
                self.malformed.get_or_insert(fault);
                (Ipv4::LEN, Next::Payload)
            }
        };
        (Layer::Ipv4(ip), len, next)
    }
}

fn mpls(rest: &[u8]) -> Taken<'_> {
    Mpls::new(rest).map(|it| {
        let behind = rest.get(Mpls::LEN..).unwrap_or_default();
        (Layer::Mpls(it), Mpls::LEN, it.next(behind))
    })
}

fn tunnel<'a, H>(header: Result<H, Malformed>, end: impl FnOnce(H) -> (usize, Next)) -> Taken<'a> {
    header.map(|it| {
        let (len, next) = end(it);
        (Layer::Tunnel, len, next)
    })
}

/// Parses an IPv6 extension or fragment header.
fn take_extension(rest: &[u8], number: u8) -> Option<Taken<'_>> {
    if ExtensionHeader::is_announced_by(number) {
        return Some(ExtensionHeader::new(rest).map(|it| {
            let next = Next::AboveIpv6(it.next_header());
            (Layer::Extension(it), it.header_len(), next)
        }));
    }
    (number == protocol::FRAGMENT).then(|| {
        Ipv6Fragment::new(rest).map(|it| {
            let above = Next::AboveIpv6(it.next_header());
            let next = if it.offset() == 0 {
                above
            } else {
                Next::Payload
            };
            (Layer::Ipv6Fragment(it), Ipv6Fragment::LEN, next)
        })
    })
}

/// Parses a header after IPv4 or IPv6; `above` builds the type of the next header for this IP
/// version.
fn take_above_ip(rest: &[u8], number: u8, above: fn(u8) -> Next) -> Option<Taken<'_>> {
    let version = above(number);
    Some(match number {
        protocol::TCP => {
            Tcp::new(rest).map(|it| (Layer::Tcp(it), it.extent().unwrap_or(0), Next::Payload))
        }
        protocol::UDP => Udp::new(rest).map(|it| (Layer::Udp(it), Udp::LEN, it.next())),
        protocol::SCTP => Sctp::new(rest).map(|it| (Layer::Sctp(it), Sctp::LEN, Next::Payload)),
        protocol::ICMP if version == Next::AboveIpv4(number) => {
            Icmp::new(rest).map(|_| (Layer::Icmp, Icmp::LEN, Next::Payload))
        }
        protocol::ICMPV6 if version == Next::AboveIpv6(number) => {
            Icmp::new(rest).map(|_| (Layer::Icmpv6, Icmp::LEN, Next::Payload))
        }
        protocol::ESP => Esp::new(rest).map(|_| (Layer::Esp, Esp::LEN, Next::Payload)),
        protocol::AH => {
            Ah::new(rest).map(|it| (Layer::Ah(it), it.header_len(), above(it.next_header())))
        }
        protocol::GRE => Gre::new(rest).map(|it| (Layer::Gre(it), it.header_len(), it.next())),
        _ => return None,
    })
}

impl<'a> Iterator for Layers<'a> {
    type Item = Located<'a>;

    fn next(&mut self) -> Option<Located<'a>> {
        let (at, announced, before) = (self.at, self.next, self.malformed);
        let taken = self.take()?;
        let Some(left) = self.left.checked_sub(1) else {
            self.malformed = before.or(Some(Malformed::TooDeep));
            self.next = Next::Payload;
            return None;
        };
        self.left = left;
        match taken {
            Ok((layer, len, next)) => {
                let fault = match &layer {
                    Layer::Tcp(tcp) => tcp.extent().err(),
                    Layer::Udp(udp) => udp.fault(),
                    _ => None,
                };
                self.malformed = self.malformed.or(fault);
                (self.at, self.next) = (at + len, next);
                Some(Located {
                    at,
                    announced,
                    layer,
                })
            }
            Err(fault) => {
                self.malformed.get_or_insert(fault);
                self.next = Next::Payload;
                None
            }
        }
    }
}
