//! The way through a frame, and its headers around IP: Ethernet, tags, labels, sessions, tunnels.
//!
//! A header is understood as a whole or not at all, but for the beginnings of transport headers, which hold no address. The way
//! ends behind the last one that is. A port or a label may announce what is not there, so what they lead to is
//! looked at more closely than a parser does.

use super::{
    Ciphers,
    checksum::{Checksum, Sum},
    mac,
};
use std::ops::Range;
use wqcap_frame::{
    Erspan, Ethernet, Geneve, Gtp, Ipv4, Ipv6, Llc, MOST_LAYERS, Mpls, Next, Ppp, Pppoe, Slice,
    Vlan, Vxlan, ethertype, protocol,
};

/// Where a header leads: `None`: nowhere that is understood.
pub(super) type Onward = Option<(usize, Next)>;

/// The extension header of GTP-U with QoS flows: 3GPP TS 38.415. All others are overwritten.
const PDU_SESSION_CONTAINER: u8 = 0x85;

/// The IP packet that the way is in, as far as what it carries has to know.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Packet {
    pub(super) is_v6: bool,
    /// All that it carries is there.
    pub(super) is_whole: bool,
    /// Where it ends by its own account, or what it carries does.
    pub(super) told_end: usize,
    /// Sums of the addresses that a pseudo-header has, before and after.
    pub(super) src: (Sum, Sum),
    pub(super) dst: (Sum, Sum),
}

pub(super) struct Walk<'f> {
    pub(super) ciphers: &'f Ciphers,
    pub(super) slice: Slice,
    /// The frame as it was.
    pub(super) old: &'f [u8],
    /// The frame as it will be; as long.
    pub(super) new: &'f mut [u8],
    pub(super) checksums: &'f mut Vec<Checksum>,
    /// All of the frame is there.
    pub(super) is_whole: bool,
    /// Where the packet ends that the way is in.
    pub(super) end: usize,
    /// Everything before is understood.
    understood: usize,
    /// Where the innermost IP packet's header ends.
    pub(super) behind_l3: Option<usize>,
    /// Nothing behind is kept, though it may be understood.
    pub(super) limit: usize,
    /// The packet that the way is in.
    pub(super) packet: Packet,
    /// Where the Ethernet header right in front of an IP header begins.
    ethernet: Option<usize>,
    pub(super) options_overwritten: u64,
    pub(super) has_payload: bool,
}

impl<'f> Walk<'f> {
    pub(super) fn new(
        ciphers: &'f Ciphers,
        slice: Slice,
        old: &'f [u8],
        new: &'f mut [u8],
        checksums: &'f mut Vec<Checksum>,
        is_whole: bool,
    ) -> Self {
        Self {
            ciphers,
            slice,
            old,
            new,
            checksums,
            is_whole,
            end: old.len(),
            understood: 0,
            behind_l3: None,
            limit: usize::MAX,
            packet: Packet::default(),
            ethernet: None,
            options_overwritten: 0,
            has_payload: false,
        }
    }

    /// Goes the way; tells where the frame is to be cut.
    pub(super) fn run(&mut self) -> usize {
        let mut onward = Some((0, Next::Ethernet));
        for _ in 0..MOST_LAYERS {
            onward = onward.and_then(|(at, next)| self.header(at, next));
        }
        let cut = self.understood.min(self.limit);
        match (self.slice, self.behind_l3) {
            (Slice::L3, Some(end)) => cut.min(end),
            _ => cut,
        }
    }

    fn header(&mut self, at: usize, next: Next) -> Onward {
        match next {
            Next::Ethernet => self.ethernet(at),
            Next::Ethertype(ethertype) => self.by_ethertype(at, ethertype),
            Next::Mpls => self.mpls(at),
            Next::Ppp => {
                let ppp = Ppp::new(self.rest(at)).ok()?;
                self.onward(at + ppp.header_len(), ppp.next())
            }
            Next::AboveIpv4(protocol) | Next::AboveIpv6(protocol) => self.above_ip(at, protocol),
            Next::Erspan(kind) => self.erspan(at, kind),
            Next::Vxlan(extended) => self.vxlan(at, extended),
            Next::Geneve => self.geneve(at),
            Next::Gtp => self.gtp(at),
            Next::Payload => None,
        }
    }

    /// The packet's bytes from `at` on, as they were.
    pub(super) fn rest(&self, at: usize) -> &'f [u8] {
        self.old.get(at..self.end).unwrap_or_default()
    }

    /// The first bytes of that, if they are all there.
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.rest(at).first_chunk().copied()
    }

    /// Everything up to there is understood; `None`: it is not all there, and nothing of it is.
    pub(super) fn understand(&mut self, to: usize) -> Option<()> {
        (to <= self.end).then(|| self.understood = self.understood.max(to))
    }

    /// The same for a header that is understood as far as it is there.
    pub(super) fn understand_most(&mut self, to: usize) {
        self.understood = self.understood.max(to.min(self.end));
    }

    /// A header that ends at `to` is understood, and leads to `next`.
    pub(super) fn onward(&mut self, to: usize, next: Next) -> Onward {
        self.understand(to)?;
        Some((to, next))
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.new.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    /// Overwrites what is not known to be without addresses.
    pub(super) fn overwrite(&mut self, range: Range<usize>, with: u8) {
        if let Some(to) = self.new.get_mut(range) {
            to.fill(with);
        }
        self.options_overwritten += 1;
    }

    /// Replaces a MAC address.
    pub(super) fn mac(&mut self, at: usize) -> Option<()> {
        let mac = self.bytes(at)?;
        let Ciphers { addresses, macs } = self.ciphers;
        self.write(at, &macs.replaced(mac, addresses));
        Some(())
    }

    /// Replaces an IPv4 address.
    pub(super) fn v4(&mut self, at: usize) -> Option<()> {
        let address = self.bytes(at)?;
        self.write(at, &self.ciphers.addresses.v4(address));
        Some(())
    }

    /// Replaces an IPv6 address.
    pub(super) fn v6(&mut self, at: usize) -> Option<()> {
        let address = self.bytes(at)?;
        self.write(at, &self.ciphers.addresses.v6(address));
        Some(())
    }

    /// The sums of `len` bytes before and after.
    pub(super) fn sums(&self, at: usize, len: usize) -> (Sum, Sum) {
        let range = at..at + len;
        let of = |bytes: &[u8]| Sum::of(bytes.get(range.clone()).unwrap_or_default());
        (of(self.old), of(self.new))
    }

    /// Replaces the address of frames to an IP group by that of the group that stands in its place.
    pub(super) fn group_mac(&mut self, group: Range<usize>) {
        let Some(at) = self.ethernet else { return };
        let mac = self.old.get(at..).and_then(|it| it.first_chunk());
        if let (Some(mac), Some(was), Some(is)) =
            (mac, self.old.get(group.clone()), self.new.get(group))
            && let Some(mac) = mac::group_of(*mac, was, is)
        {
            self.write(at, &mac);
        }
    }

    /// Keeps what was asked for of a payload, as it was.
    pub(super) fn payload(&mut self, at: usize) -> Onward {
        if let Slice::Payload(most) = self.slice {
            let before = self.understood;
            self.understand_most(at.saturating_add(most as usize));
            self.has_payload |= self.understood > before;
        }
        None
    }

    fn ethernet(&mut self, at: usize) -> Onward {
        let ethernet = Ethernet::new(self.rest(at)).ok()?;
        self.mac(at)?;
        self.mac(at + 6)?;
        self.ethernet = Some(at);
        self.onward(at + Ethernet::LEN, Next::Ethertype(ethernet.ethertype()))
    }

    fn by_ethertype(&mut self, at: usize, ethertype: u16) -> Onward {
        match ethertype {
            ethertype::IPV4 => self.ipv4(at),
            ethertype::IPV6 => self.ipv6(at),
            ethertype::ARP => self.arp(at),
            ethertype::MPLS | ethertype::MPLS_MULTICAST => self.mpls(at),
            ethertype::PPPOE => self.pppoe(at),
            tpid if Vlan::is_announced_by(tpid) => {
                let vlan = Vlan::new(self.rest(at)).ok()?;
                self.onward(at + Vlan::LEN, Next::Ethertype(vlan.ethertype()))
            }
            length if length <= ethertype::LONGEST_LENGTH => {
                let llc = Llc::new(self.rest(at)).ok()?;
                self.onward(at + llc.header_len(), llc.next())
            }
            _ => None,
        }
    }

    fn mpls(&mut self, at: usize) -> Onward {
        let mpls = Mpls::new(self.rest(at)).ok()?;
        let behind = at + Mpls::LEN;
        let next = mpls.next(self.rest(behind));
        self.understand(behind)?;
        match next {
            Next::Ethertype(_) if !self.is_surely_ip(behind) => None,
            next => Some((behind, next)),
        }
    }

    /// Labels do not tell what is behind them, and a MAC address may begin as IP does: it must not be kept as a part of an IP
    /// header.
    fn is_surely_ip(&self, at: usize) -> bool {
        let rest = self.rest(at);
        match rest.first().map(|it| it >> 4) {
            Some(4) => Ipv4::new(rest).is_ok_and(|ip| {
                let header = rest.get(..ip.header_len()).unwrap_or_default();
                header.len() >= Ipv4::LEN && Sum::of(header).is_complete()
            }),
            Some(6) => Ipv6::new(rest).is_ok_and(|ip| {
                let known = matches!(
                    ip.next_header(),
                    protocol::HOP_BY_HOP
                        | protocol::TCP
                        | protocol::UDP
                        | protocol::ROUTING
                        | protocol::FRAGMENT
                        | protocol::ICMPV6
                        | protocol::SCTP
                );
                let told = Ipv6::LEN + usize::from(ip.payload_len());
                known && ip.payload_len() > 0 && (told <= rest.len() || !self.is_whole)
            }),
            _ => false,
        }
    }

    fn pppoe(&mut self, at: usize) -> Onward {
        let rest = self.rest(at);
        let pppoe = Pppoe::new(rest).ok()?;
        // Another version than there is.
        if rest.first() != Some(&0x11) {
            return None;
        }
        self.end = at + pppoe.end();
        self.onward(at + Pppoe::LEN, pppoe.next())
    }

    fn erspan(&mut self, at: usize, kind: u8) -> Onward {
        const WITHOUT_PLATFORM: usize = 12;
        let rest = self.rest(at);
        let erspan = Erspan::new(rest, kind).ok()?;
        let len = erspan.header_len();
        if len > WITHOUT_PLATFORM {
            self.overwrite(at + WITHOUT_PLATFORM..at + len, 0);
        }
        let next = erspan.next(rest.get(len..).unwrap_or_default());
        self.onward(at + len, next)
    }

    fn vxlan(&mut self, at: usize, extended: bool) -> Onward {
        let rest = self.rest(at);
        let vxlan = Vxlan::new(rest).ok()?;
        // The identifier is valid, what is reserved is zero; policies and the extension use some of it.
        match *rest {
            [0x08, 0, 0, 0, _, _, _, 0, ..] if !extended => {}
            [flags, _, _, _, _, _, _, 0, ..] if flags & 0x08 != 0 && flags != 0x08 => {}
            _ => return None,
        }
        self.onward(at + Vxlan::LEN, vxlan.next(extended))
    }

    fn geneve(&mut self, at: usize) -> Onward {
        let rest = self.rest(at);
        let geneve = Geneve::new(rest).ok()?;
        let end = at + geneve.header_len();
        // Version 0, and nothing in what is reserved.
        match *rest {
            [0..=0x3f, flags, _, _, _, _, _, 0, ..] if flags & 0x3f == 0 => {}
            _ => return None,
        }
        // Each has a class, a type, and a length in words: RFC 8926 section 3.5.
        let mut option = at + Geneve::LEN;
        while let Some([_, _, _, len]) = self.bytes(option).filter(|_| option < end) {
            let next = option + 4 + usize::from(len & 0x1f) * 4;
            if next > end {
                return None;
            }
            if next > option + 4 {
                self.overwrite(option + 4..next, 0);
            }
            option = next;
        }
        self.onward(end, geneve.next())
    }

    fn gtp(&mut self, at: usize) -> Onward {
        let rest = self.rest(at);
        let gtp = Gtp::new(rest).ok()?;
        let (len, flags) = (gtp.header_len(), *rest.first()?);
        let next = gtp.next(rest.get(len..).unwrap_or_default());
        // Another version, a message about addresses, or no GTP at all.
        if next == Next::Payload {
            return None;
        }
        let mut extension = Gtp::LEN + 4;
        while flags & 0x04 != 0 && extension < len {
            let kind = *rest.get(extension - 1)?;
            let behind = extension + usize::from((*rest.get(extension)?).max(1)) * 4;
            if kind != PDU_SESSION_CONTAINER {
                self.overwrite(at + extension + 1..at + behind - 1, 0);
            }
            extension = behind;
        }
        self.onward(at + len, next)
    }
}
