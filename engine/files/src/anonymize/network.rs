//! IP of both versions, what it has for headers of its own, and what it carries.

use super::{
    checksum::{Checksum, PseudoHeader, Sum},
    walk::{Onward, Packet, Walk},
};
use wqcap_frame::{
    Ah, Esp, Extension, Gre, Ipv4, Ipv6, Ipv6Fragment, Next, Sctp, Slice, Tcp, Udp, ethertype,
    protocol,
};

/// Routing headers that are understood: of type 0 (RFC 2460), of type 2 (RFC 6275), with segments (RFC 8754).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Routing {
    /// The last address is the destination's.
    Source,
    /// The only one is.
    Home,
    /// The first one is.
    Segments,
}

impl Walk<'_> {
    pub(super) fn ipv4(&mut self, at: usize) -> Onward {
        let ip = Ipv4::new(self.rest(at)).ok()?;
        let (start, end, fault) = ip.extent().ok()?;
        let (field, told) = (ip.fragment_field(), usize::from(ip.total_len()));
        let is_fragment = field & (Ipv4::MORE | 0x1fff) != 0;
        self.v4(at + 12)?;
        self.v4(at + 16)?;
        self.group_mac(at + 16..at + 20);
        self.packet = Packet {
            is_v6: false,
            is_whole: !is_fragment && fault.is_none() && (told != 0 || self.is_whole),
            told_end: if told == 0 { self.end } else { at + told },
            src: self.sums(at + 12, 4),
            dst: self.sums(at + 16, 4),
        };
        if let Some(last) = self.ipv4_options(at + Ipv4::LEN, at + start) {
            // The route is gone, and with it what a pseudo-header had for a destination.
            self.packet.dst.0 = Sum::of(&last);
        }
        self.checksums.push(Checksum {
            field: at + 10,
            start: at,
            end: at + start,
            whole: true,
            pseudo: None,
            optional: false,
        });
        self.end = at + end;
        self.behind_l3 = Some(at + start);
        let is_later = field & 0x1fff != 0;
        let next = if is_later {
            Next::Payload
        } else {
            Next::AboveIpv4(ip.protocol())
        };
        self.onward(at + start, next)
    }

    pub(super) fn ipv6(&mut self, at: usize) -> Onward {
        let ip = Ipv6::new(self.rest(at)).ok()?;
        let (end, fault) = ip.extent();
        let told = usize::from(ip.payload_len());
        self.v6(at + 8)?;
        self.v6(at + 24)?;
        self.group_mac(at + 24..at + 40);
        self.packet = Packet {
            is_v6: true,
            is_whole: fault.is_none() && (told != 0 || self.is_whole),
            told_end: if told == 0 {
                self.end
            } else {
                at + Ipv6::LEN + told
            },
            src: self.sums(at + 8, 16),
            dst: self.sums(at + 24, 16),
        };
        self.end = at + end;
        self.behind_l3 = Some(at + Ipv6::LEN);
        self.onward(at + Ipv6::LEN, Next::AboveIpv6(ip.next_header()))
    }

    /// What IP carries, its own extension headers included.
    pub(super) fn above_ip(&mut self, at: usize, number: u8) -> Onward {
        let is_v6 = self.packet.is_v6;
        match number {
            protocol::IPV4 => Some((at, Next::Ethertype(ethertype::IPV4))),
            protocol::IPV6 => Some((at, Next::Ethertype(ethertype::IPV6))),
            protocol::MPLS => Some((at, Next::Mpls)),
            protocol::ETHERNET => Some((at, Next::Ethernet)),
            protocol::GRE => self.gre(at),
            protocol::UDP => self.udp(at),
            protocol::AH => self.authentication(at),
            protocol::HOP_BY_HOP | protocol::DESTINATION if is_v6 => self.extension(at),
            protocol::ROUTING if is_v6 => self.routing(at),
            protocol::FRAGMENT if is_v6 => self.fragment(at),
            // All of these end the way to the innermost packet.
            _ if self.slice == Slice::L3 => None,
            protocol::TCP => self.tcp(at),
            protocol::ICMP if !is_v6 => self.icmp(at),
            protocol::ICMPV6 if is_v6 => self.icmpv6(at),
            protocol::SCTP => {
                self.understand_most(at + Sctp::LEN);
                None
            }
            protocol::ESP => {
                self.understand_most(at + Esp::LEN);
                None
            }
            _ => None,
        }
    }

    /// A header of IP's own is understood, and leads to another.
    fn above(&mut self, to: usize, number: u8) -> Onward {
        self.understand(to)?;
        self.behind_l3 = Some(to);
        let next = if self.packet.is_v6 {
            Next::AboveIpv6(number)
        } else {
            Next::AboveIpv4(number)
        };
        Some((to, next))
    }

    fn authentication(&mut self, at: usize) -> Onward {
        let ah = Ah::new(self.rest(at)).ok()?;
        let end = at + ah.header_len();
        // It is over addresses that are gone.
        self.overwrite(at + Ah::LEN..end, 0);
        self.above(end, ah.next_header())
    }

    fn extension(&mut self, at: usize) -> Onward {
        let extension = Extension::new(self.rest(at)).ok()?;
        let end = at + extension.header_len();
        if let Some(home) = self.ipv6_options(at + 2, end) {
            // The option is gone, and with it what a pseudo-header had for a source: RFC 6275 section 6.3.
            self.packet.src.0 = Sum::of(&home);
        }
        self.above(end, extension.next_header())
    }

    fn routing(&mut self, at: usize) -> Onward {
        const HEADER: usize = 8;
        const ADDRESS: usize = 16;
        let extension = Extension::new(self.rest(at)).ok()?;
        let [_, _, kind, left, last, ..] = self.bytes::<HEADER>(at)?;
        let room = (extension.header_len() - HEADER) / ADDRESS;
        let (routing, count) = match kind {
            0 => (Routing::Source, room),
            2 if room == 1 => (Routing::Home, 1),
            4 if usize::from(last) < room => (Routing::Segments, usize::from(last) + 1),
            _ => return None,
        };
        let addresses = at + HEADER;
        for i in 0..count {
            self.v6(addresses + i * ADDRESS)?;
        }
        let (rest, end) = (addresses + count * ADDRESS, at + extension.header_len());
        if rest < end {
            // As options without a meaning.
            self.overwrite(rest..end, 0);
        }
        if left > 0 && count > 0 {
            let which = match routing {
                Routing::Source => count - 1,
                Routing::Home | Routing::Segments => 0,
            };
            self.packet.dst = self.sums(addresses + which * ADDRESS, ADDRESS);
        }
        self.above(end, extension.next_header())
    }

    fn fragment(&mut self, at: usize) -> Onward {
        let fragment = Ipv6Fragment::new(self.rest(at)).ok()?;
        let end = at + Ipv6Fragment::LEN;
        self.packet.is_whole &= fragment.offset() == 0 && !fragment.more();
        let onward = self.above(end, fragment.next_header());
        onward.filter(|_| fragment.offset() == 0)
    }

    /// A checksum of what IP carries from `start` on, up to the packet's end.
    pub(super) fn checksum(
        &mut self,
        start: usize,
        field: usize,
        pseudo: Option<u8>,
        optional: bool,
    ) {
        if start + field + 2 > self.end {
            return;
        }
        let Packet {
            src, dst, told_end, ..
        } = self.packet;
        let pseudo = pseudo.map(|number| {
            let same =
                Sum::of_number(told_end.saturating_sub(start)).add(Sum::of_number(number.into()));
            PseudoHeader {
                before: src.0.add(dst.0).add(same),
                after: src.1.add(dst.1).add(same),
            }
        });
        self.checksums.push(Checksum {
            field: start + field,
            start,
            end: self.end,
            whole: self.packet.is_whole,
            pseudo,
            optional,
        });
    }

    fn tcp(&mut self, at: usize) -> Onward {
        self.checksum(at, 16, Some(protocol::TCP), false);
        self.understand_most(at + Tcp::LEN);
        let len = Tcp::new(self.rest(at)).ok()?.extent().ok()?;
        self.tcp_options(at + Tcp::LEN, at + len);
        self.understand(at + len)?;
        self.payload(at + len)
    }

    fn udp(&mut self, at: usize) -> Onward {
        self.understand_most(at + Udp::LEN);
        let udp = Udp::new(self.rest(at)).ok()?;
        // 0: as long as the packet, RFC 2675.
        if udp.length() != 0 {
            self.packet.told_end = at + usize::from(udp.length());
            match udp.fault() {
                None => self.end = self.packet.told_end,
                Some(_) => self.packet.is_whole = false,
            }
        }
        self.checksum(at, 6, Some(protocol::UDP), true);
        match udp.next() {
            Next::Payload => self.payload(at + Udp::LEN),
            next => Some((at + Udp::LEN, next)),
        }
    }

    fn gre(&mut self, at: usize) -> Onward {
        let gre = Gre::new(self.rest(at)).ok()?;
        if gre.flags() & 0x8000 != 0 {
            self.checksum(at, 4, None, false);
        }
        self.onward(at + gre.header_len(), gre.next())
    }
}
