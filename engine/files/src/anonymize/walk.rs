//! Anonymizer's walk over the headers of a frame, and the headers around IP: Ethernet, VLAN, MPLS,
//! PPPoE, tunnels.
//!
//! A header is kept as a whole or not at all, except for the start of transport headers, which
//! contains no address. The walk ends after the last recognised header. A port or a label may
//! announce a header that is not present, so the walk checks such headers more strictly than a
//! parser.

use super::{
    Ciphers,
    checksum::{Checksum, Sum},
    mac,
};
use std::ops::Range;
use wqcap_frame::{
    Erspan, Ethernet, Geneve, Gtp, Ipv4, Ipv6, Llc, MAX_HEADERS, Mpls, Next, Ppp, Pppoe, Slice,
    Vlan, Vxlan, ethertype, protocol,
};

/// Offset in the frame and type of the next header; `None` if no recognised header follows.
pub(super) type NextHeader = Option<(usize, Next)>;

/// GTP-U extension header with QoS flow identifiers: 3GPP TS 38.415. All other extension headers
/// are overwritten.
const PDU_SESSION_CONTAINER: u8 = 0x85;

/// Maximum number of entries of an MPLS label stack that only a port announces.
const MOST_LABELS: usize = 8;

/// Properties of the current IP packet that its payload's headers need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IpPacket {
    /// `true` if the current IP packet is IPv6.
    pub(super) is_v6: bool,
    /// `true` if the whole payload of the IP packet is in the frame.
    pub(super) is_whole: bool,
    /// End in the frame of the IP packet or of its payload, by its length fields.
    pub(super) declared_end: usize,
    /// Checksum sums of the source address in the pseudo-header, before and after replacement.
    pub(super) src: (Sum, Sum),
    /// Checksum sums of the destination address in the pseudo-header, before and after replacement.
    pub(super) dst: (Sum, Sum),
}

/// Walk of the anonymizer over the headers of one frame.
pub(super) struct Walk<'f> {
    /// Ciphers that replace IP and MAC addresses.
    pub(super) ciphers: &'f Ciphers,
    /// Part of the frame that the anonymizer keeps, given as the last layer or a number of payload
    /// bytes.
    pub(super) slice: Slice,
    /// Original frame, which the anonymizer's walk parses.
    pub(super) old: &'f [u8],
    /// Anonymized frame, with the length of the original frame.
    pub(super) new: &'f mut [u8],
    /// Checksums in the frame that are updated after the walk, outermost first.
    pub(super) checksums: &'f mut Vec<Checksum>,
    /// `true` if the whole frame was captured, not only its beginning.
    pub(super) is_whole: bool,
    /// Offset in the frame of the end of the current packet.
    pub(super) end: usize,
    /// Offset in the frame of the end of the part that the anonymizer recognises.
    kept_end: usize,
    /// Offset in the frame of the end of the innermost IP header.
    pub(super) behind_l3: Option<usize>,
    /// Offset in the frame after which the anonymizer keeps no byte, even if recognised.
    pub(super) limit: usize,
    /// Properties of the current IP packet in the walk over headers.
    pub(super) packet: IpPacket,
    /// Offset in the frame of the Ethernet header that precedes the current header.
    ethernet: Option<usize>,
    /// Number of header options of the frame that were overwritten.
    pub(super) options_overwritten: u64,
    /// `true` if payload bytes of the frame are kept unchanged.
    pub(super) has_payload: bool,
}

impl<'f> Walk<'f> {
    /// Creates a walk of the anonymizer from the start of a frame; `new` is a copy of `old`.
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
            kept_end: 0,
            behind_l3: None,
            limit: usize::MAX,
            packet: IpPacket::default(),
            ethernet: None,
            options_overwritten: 0,
            has_payload: false,
        }
    }

    /// Walks over all headers of the frame and anonymizes them. Returns the offset at which the
    /// anonymized frame is cut.
    pub(super) fn run(&mut self) -> usize {
        let mut onward = Some((0, Next::Ethernet));
        for _ in 0..MAX_HEADERS {
            onward = onward.and_then(|(at, next)| self.header(at, next));
        }
        let cut = self.kept_end.min(self.limit);
        match (self.slice, self.behind_l3) {
            (Slice::L3, Some(end)) => cut.min(end),
            _ => cut,
        }
    }

    /// Anonymizes the header of type `next` at offset `at` of the frame.
    fn header(&mut self, at: usize, next: Next) -> NextHeader {
        match next {
            Next::Ethernet => self.ethernet(at),
            Next::Ethertype(ethertype) => self.by_ethertype(at, ethertype),
            Next::Mpls => self.mpls(at),
            Next::Ppp => {
                let ppp = Ppp::new(self.bytes_from(at)).ok()?;
                self.onward(at + ppp.header_len(), ppp.next())
            }
            Next::AboveIpv4(protocol) | Next::AboveIpv6(protocol) => self.above_ip(at, protocol),
            Next::Erspan(kind) => self.erspan(at, kind),
            Next::Vxlan(extended) => self.vxlan(at, extended),
            Next::Geneve => self.geneve(at),
            Next::Gtp => self.gtp(at),
            // Headers that the anonymizer does not recognise.
            _ => None,
        }
    }

    /// Returns the original bytes of the packet from offset `at` to its end.
    pub(super) fn bytes_from(&self, at: usize) -> &'f [u8] {
        self.old.get(at..self.end).unwrap_or_default()
    }

    /// Returns the `N` original bytes at offset `at` of the frame; `None` if the packet ends before
    /// their end.
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes_from(at).first_chunk().copied()
    }

    /// Marks all bytes of the frame up to `to` as recognised. Returns `None` and marks none if the
    /// packet ends before.
    pub(super) fn keep_all(&mut self, to: usize) -> Option<()> {
        (to <= self.end).then(|| self.kept_end = self.kept_end.max(to))
    }

    /// Marks the bytes of the frame up to `to` or the end of the packet as recognised.
    pub(super) fn keep_available(&mut self, to: usize) {
        self.kept_end = self.kept_end.max(to.min(self.end));
    }

    /// Marks the header that ends at `to` as recognised, and continues with the header type `next`.
    pub(super) fn onward(&mut self, to: usize, next: Next) -> NextHeader {
        self.keep_all(to)?;
        Some((to, next))
    }

    /// Writes `bytes` to offset `at` of the anonymized frame.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.new.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    /// Overwrites bytes of a header option that may contain addresses, and counts the option.
    pub(super) fn overwrite(&mut self, range: Range<usize>, with: u8) {
        if let Some(to) = self.new.get_mut(range) {
            to.fill(with);
        }
        self.options_overwritten += 1;
    }

    /// Replaces the MAC address at offset `at` of the frame.
    pub(super) fn replace_mac(&mut self, at: usize) -> Option<()> {
        let mac = self.bytes(at)?;
        let Ciphers { addresses, macs } = self.ciphers;
        self.write(at, &macs.replaced(mac, addresses));
        Some(())
    }

    /// Replaces the IPv4 address at offset `at` of the frame.
    pub(super) fn replace_v4(&mut self, at: usize) -> Option<()> {
        let address = self.bytes(at)?;
        self.write(at, &self.ciphers.addresses.v4(address));
        Some(())
    }

    /// Replaces the IPv6 address at offset `at` of the frame.
    pub(super) fn replace_v6(&mut self, at: usize) -> Option<()> {
        let address = self.bytes(at)?;
        self.write(at, &self.ciphers.addresses.v6(address));
        Some(())
    }

    /// Returns the checksum sums of `len` bytes at offset `at` of the frame, before and after
    /// replacement.
    pub(super) fn sums(&self, at: usize, len: usize) -> (Sum, Sum) {
        let range = at..at + len;
        let sum = |bytes: &[u8]| Sum::of_bytes(bytes.get(range.clone()).unwrap_or_default());
        (sum(self.old), sum(self.new))
    }

    /// Replaces the destination MAC address of a multicast frame by that of the replaced IP group.
    pub(super) fn replace_group_mac(&mut self, group: Range<usize>) {
        let Some(at) = self.ethernet else { return };
        let mac = self.old.get(at..).and_then(|it| it.first_chunk());
        if let (Some(mac), Some(was), Some(is)) =
            (mac, self.old.get(group.clone()), self.new.get(group))
            && let Some(mac) = mac::group_of(*mac, was, is)
        {
            self.write(at, &mac);
        }
    }

    /// Keeps as many payload bytes from offset `at` on unchanged as the slice (the part of a frame
    /// to keep) requests.
    pub(super) fn payload(&mut self, at: usize) -> NextHeader {
        if let Slice::Payload(most) = self.slice {
            let before = self.kept_end;
            self.keep_available(at.saturating_add(most as usize));
            self.has_payload |= self.kept_end > before;
        }
        None
    }

    /// Anonymizes the Ethernet header at offset `at` of the frame.
    fn ethernet(&mut self, at: usize) -> NextHeader {
        let ethernet = Ethernet::new(self.bytes_from(at)).ok()?;
        self.replace_mac(at)?;
        self.replace_mac(at + 6)?;
        self.ethernet = Some(at);
        self.onward(at + Ethernet::LEN, Next::Ethertype(ethernet.ethertype()))
    }

    /// Anonymizes the header at offset `at` that `ethertype` announces.
    fn by_ethertype(&mut self, at: usize, ethertype: u16) -> NextHeader {
        match ethertype {
            ethertype::IPV4 => self.ipv4(at),
            ethertype::IPV6 => self.ipv6(at),
            ethertype::ARP => self.arp(at),
            ethertype::MPLS | ethertype::MPLS_MULTICAST => self.mpls(at),
            ethertype::PPPOE => self.pppoe(at),
            tpid if Vlan::is_announced_by(tpid) => {
                let vlan = Vlan::new(self.bytes_from(at)).ok()?;
                self.onward(at + Vlan::LEN, Next::Ethertype(vlan.ethertype()))
            }
            length if length <= ethertype::LONGEST_LENGTH => {
                let llc = Llc::new(self.bytes_from(at)).ok()?;
                self.onward(at + llc.header_len(), llc.next())
            }
            _ => None,
        }
    }

    /// Anonymizes the MPLS label stack entry at offset `at` of the frame.
    fn mpls(&mut self, at: usize) -> NextHeader {
        let mpls = Mpls::new(self.bytes_from(at)).ok()?;
        let behind = at + Mpls::LEN;
        let next = mpls.next(self.bytes_from(behind));
        self.keep_all(behind)?;
        match next {
            Next::Mpls => Some((behind, next)),
            Next::Ethertype(_) if self.is_surely_ip(behind) => Some((behind, next)),
            _ => None,
        }
    }

    /// Returns `true` if at most [`MOST_LABELS`] MPLS label stack entries with an IP header behind
    /// them begin with certainty at offset `at`.
    pub(super) fn is_label_stack(&self, at: usize) -> bool {
        let entries = (0..MOST_LABELS).map(|i| at + i * Mpls::LEN);
        let bottom = entries
            .map_while(|at| Some((at, Mpls::new(self.bytes_from(at)).ok()?.is_bottom())))
            .find(|(_, is_bottom)| *is_bottom);
        bottom.is_some_and(|(at, _)| self.is_surely_ip(at + Mpls::LEN))
    }

    /// Returns `true` if an IP header begins with certainty at offset `at`, after an MPLS label. A
    /// label does not state the payload's protocol, and a MAC address that looks like the start of
    /// an IP header must not be kept.
    fn is_surely_ip(&self, at: usize) -> bool {
        let rest = self.bytes_from(at);
        match rest.first().map(|it| it >> 4) {
            Some(4) => Ipv4::new(rest).is_ok_and(|ip| {
                let header = rest.get(..ip.header_len()).unwrap_or_default();
                header.len() >= Ipv4::LEN && Sum::of_bytes(header).is_complete()
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
                let declared = Ipv6::LEN + usize::from(ip.payload_len());
                known && ip.payload_len() > 0 && (declared <= rest.len() || !self.is_whole)
            }),
            _ => false,
        }
    }

    /// Anonymizes the PPPoE header at offset `at` of the frame.
    fn pppoe(&mut self, at: usize) -> NextHeader {
        let rest = self.bytes_from(at);
        let pppoe = Pppoe::new(rest).ok()?;
        // Only version 1 and type 1 are defined.
        if rest.first() != Some(&0x11) {
            return None;
        }
        self.end = at + pppoe.end();
        self.onward(at + Pppoe::LEN, pppoe.next())
    }

    /// Anonymizes the ERSPAN header at offset `at` of the frame; `kind` is its type.
    fn erspan(&mut self, at: usize, kind: u8) -> NextHeader {
        const WITHOUT_PLATFORM: usize = 12;
        let rest = self.bytes_from(at);
        let erspan = Erspan::new(rest, kind).ok()?;
        let len = erspan.header_len();
        if len > WITHOUT_PLATFORM {
            self.overwrite(at + WITHOUT_PLATFORM..at + len, 0);
        }
        let next = erspan.next(rest.get(len..).unwrap_or_default());
        self.onward(at + len, next)
    }

    /// Anonymizes the VXLAN header at offset `at` of the frame.
    fn vxlan(&mut self, at: usize, extended: bool) -> NextHeader {
        let rest = self.bytes_from(at);
        let vxlan = Vxlan::new(rest).ok()?;
        // The identifier must be valid and reserved fields 0. The group policy and GPE extensions
        // use some of the reserved fields.
        match *rest {
            [0x08, 0, 0, 0, _, _, _, 0, ..] if !extended => {}
            [flags, _, _, _, _, _, _, 0, ..] if flags & 0x08 != 0 && flags != 0x08 => {}
            _ => return None,
        }
        self.onward(at + Vxlan::LEN, vxlan.next(extended))
    }

    /// Anonymizes the Geneve header at offset `at` of the frame; the data of its options are
    /// overwritten.
    fn geneve(&mut self, at: usize) -> NextHeader {
        let rest = self.bytes_from(at);
        let geneve = Geneve::new(rest).ok()?;
        let end = at + geneve.header_len();
        // The version and all reserved fields must be 0.
        match *rest {
            [0..=0x3f, flags, _, _, _, _, _, 0, ..] if flags & 0x3f == 0 => {}
            _ => return None,
        }
        // Each option has class, type, and length in words: RFC 8926 section 3.5.
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

    /// Anonymizes the GTP-U header at offset `at` of the frame; unknown extension headers are
    /// overwritten.
    fn gtp(&mut self, at: usize) -> NextHeader {
        let rest = self.bytes_from(at);
        let gtp = Gtp::new(rest).ok()?;
        let (len, flags) = (gtp.header_len(), *rest.first()?);
        let next = gtp.next(rest.get(len..).unwrap_or_default());
        // Another version, a message that contains addresses, or not GTP at all.
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
