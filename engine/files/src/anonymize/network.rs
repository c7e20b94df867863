//! Anonymizer's walk over IPv4 and IPv6 headers, IPv6 extension headers, and the headers above IP.

use super::{
    checksum::{Checksum, PseudoHeader, Sum},
    walk::{IpPacket, NextHeader, Walk},
};
use wqcap_frame::{
    Ah, Esp, ExtensionHeader, Gre, Ipv4, Ipv6, Ipv6Fragment, Next, Sctp, Slice, Tcp, Udp,
    ethertype, protocol,
};

/// Recognised types of the IPv6 routing header, by the position of the final destination.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Routing {
    /// Routing header of type 0 (RFC 2460): the last address is the destination.
    Source,
    /// Routing header of type 2 (RFC 6275): the only address is the destination.
    Home,
    /// Routing header of type 4, segment routing (RFC 8754): the first address is the destination.
    Segments,
}

impl Walk<'_> {
    /// Anonymizes the IPv4 header at offset `at` of the frame.
    pub(super) fn ipv4(&mut self, at: usize) -> NextHeader {
        let ip = Ipv4::new(self.bytes_from(at)).ok()?;
        let (start, end, fault) = ip.extent().ok()?;
        let (field, total) = (ip.fragment_field(), usize::from(ip.total_len()));
        let is_fragment = field & (Ipv4::MORE | 0x1fff) != 0;
        self.replace_v4(at + 12)?;
        self.replace_v4(at + 16)?;
        self.replace_group_mac(at + 16..at + 20);
        self.packet = IpPacket {
            is_v6: false,
            is_whole: !is_fragment && fault.is_none() && (total != 0 || self.is_whole),
            declared_end: if total == 0 { self.end } else { at + total },
            src: self.sums(at + 12, 4),
            dst: self.sums(at + 16, 4),
        };
        if let Some(last) = self.ipv4_options(at + Ipv4::LEN, at + start) {
            // The source route is overwritten. The sum before replacement uses its last address,
            // the destination in the pseudo-header.
            self.packet.dst.0 = Sum::of_bytes(&last);
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

    /// Anonymizes the IPv6 header at offset `at` of the frame.
    pub(super) fn ipv6(&mut self, at: usize) -> NextHeader {
        let ip = Ipv6::new(self.bytes_from(at)).ok()?;
        let (end, fault) = ip.extent();
        let len = usize::from(ip.payload_len());
        self.replace_v6(at + 8)?;
        self.replace_v6(at + 24)?;
        self.replace_group_mac(at + 24..at + 40);
        self.packet = IpPacket {
            is_v6: true,
            is_whole: fault.is_none() && (len != 0 || self.is_whole),
            declared_end: if len == 0 {
                self.end
            } else {
                at + Ipv6::LEN + len
            },
            src: self.sums(at + 8, 16),
            dst: self.sums(at + 24, 16),
        };
        self.end = at + end;
        self.behind_l3 = Some(at + Ipv6::LEN);
        self.onward(at + Ipv6::LEN, Next::AboveIpv6(ip.next_header()))
    }

    /// Anonymizes the header after IP at offset `at`, which is of protocol `number`, and may be an
    /// IPv6 extension header.
    pub(super) fn above_ip(&mut self, at: usize, number: u8) -> NextHeader {
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
            // The following protocols carry no further packet.
            _ if self.slice == Slice::L3 => None,
            protocol::TCP => self.tcp(at),
            protocol::ICMP if !is_v6 => self.icmp(at),
            protocol::ICMPV6 if is_v6 => self.icmpv6(at),
            protocol::SCTP => {
                self.keep_available(at + Sctp::LEN);
                None
            }
            protocol::ESP => {
                self.keep_available(at + Esp::LEN);
                None
            }
            _ => None,
        }
    }

    /// Marks a header between IP and transport that ends at offset `to` as recognised, and
    /// continues with protocol `number`.
    fn next_above_ip(&mut self, to: usize, number: u8) -> NextHeader {
        self.keep_all(to)?;
        self.behind_l3 = Some(to);
        let next = if self.packet.is_v6 {
            Next::AboveIpv6(number)
        } else {
            Next::AboveIpv4(number)
        };
        Some((to, next))
    }

    /// Anonymizes the authentication header (AH) at offset `at` of the frame.
    fn authentication(&mut self, at: usize) -> NextHeader {
        let ah = Ah::new(self.bytes_from(at)).ok()?;
        let end = at + ah.header_len();
        // The integrity check value covers the original addresses.
        self.overwrite(at + Ah::LEN..end, 0);
        self.next_above_ip(end, ah.next_header())
    }

    /// Anonymizes the IPv6 hop-by-hop or destination options header at offset `at` of the frame.
    fn extension(&mut self, at: usize) -> NextHeader {
        let extension = ExtensionHeader::new(self.bytes_from(at)).ok()?;
        let end = at + extension.header_len();
        if let Some(home) = self.ipv6_options(at + 2, end) {
            // The option is overwritten. The sum before replacement uses its address, the source in
            // the pseudo-header: RFC 6275 section 6.3.
            self.packet.src.0 = Sum::of_bytes(&home);
        }
        self.next_above_ip(end, extension.next_header())
    }

    /// Anonymizes the IPv6 routing header at offset `at` of the frame.
    fn routing(&mut self, at: usize) -> NextHeader {
        const HEADER: usize = 8;
        const ADDRESS: usize = 16;
        let extension = ExtensionHeader::new(self.bytes_from(at)).ok()?;
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
            self.replace_v6(addresses + i * ADDRESS)?;
        }
        let (rest, end) = (addresses + count * ADDRESS, at + extension.header_len());
        if rest < end {
            // TLV options of the header are replaced by padding.
            self.overwrite(rest..end, 0);
        }
        if left > 0 && count > 0 {
            let which = match routing {
                Routing::Source => count - 1,
                Routing::Home | Routing::Segments => 0,
            };
            self.packet.dst = self.sums(addresses + which * ADDRESS, ADDRESS);
        }
        self.next_above_ip(end, extension.next_header())
    }

    /// Anonymizes the IPv6 fragment header at offset `at` of the frame.
    fn fragment(&mut self, at: usize) -> NextHeader {
        let fragment = Ipv6Fragment::new(self.bytes_from(at)).ok()?;
        let end = at + Ipv6Fragment::LEN;
        self.packet.is_whole &= fragment.offset() == 0 && !fragment.more();
        let onward = self.next_above_ip(end, fragment.next_header());
        onward.filter(|_| fragment.offset() == 0)
    }

    /// Adds a checksum to those that are updated after the walk, over the bytes from `start` to the
    /// end of the packet. `field` is its offset from `start`, `pseudo` is the protocol number in
    /// the pseudo-header, and `optional` is `true` if 0 means no checksum.
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
        let IpPacket {
            src,
            dst,
            declared_end,
            ..
        } = self.packet;
        let pseudo = pseudo.map(|number| {
            let same = Sum::of_number(declared_end.saturating_sub(start))
                .add(Sum::of_number(number.into()));
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

    /// Anonymizes the TCP header at offset `at` of the frame.
    fn tcp(&mut self, at: usize) -> NextHeader {
        self.checksum(at, 16, Some(protocol::TCP), false);
        self.keep_available(at + Tcp::LEN);
        let len = Tcp::new(self.bytes_from(at)).ok()?.extent().ok()?;
        self.tcp_options(at + Tcp::LEN, at + len);
        self.keep_all(at + len)?;
        self.payload(at + len)
    }

    /// Anonymizes the UDP header at offset `at` of the frame.
    fn udp(&mut self, at: usize) -> NextHeader {
        self.keep_available(at + Udp::LEN);
        let udp = Udp::new(self.bytes_from(at)).ok()?;
        // Length 0 means that the datagram extends to the end of the packet, RFC 2675.
        if udp.length() != 0 {
            self.packet.declared_end = at + usize::from(udp.length());
            match udp.fault() {
                None => self.end = self.packet.declared_end,
                Some(_) => self.packet.is_whole = false,
            }
        }
        self.checksum(at, 6, Some(protocol::UDP), true);
        match udp.next() {
            Next::Payload => self.payload(at + Udp::LEN),
            // A port may have other traffic, whose bytes must not be kept as labels.
            Next::Mpls if !self.is_label_stack(at + Udp::LEN) => None,
            next => Some((at + Udp::LEN, next)),
        }
    }

    /// Anonymizes the GRE header at offset `at` of the frame.
    fn gre(&mut self, at: usize) -> NextHeader {
        let gre = Gre::new(self.bytes_from(at)).ok()?;
        if gre.flags() & 0x8000 != 0 {
            self.checksum(at, 4, None, false);
        }
        self.onward(at + gre.header_len(), gre.next())
    }
}
