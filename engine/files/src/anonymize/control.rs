//! Anonymizer's walk over messages that contain addresses: ARP, ICMP, and ICMPv6 with neighbour
//! discovery and multicast listener reports.
//!
//! Of an unknown message type, only the first four bytes are kept: type, code and checksum.

use super::walk::{NextHeader, Walk};
use wqcap_frame::{Arp, Icmp, Next, Slice, ethertype, protocol};

/// Length in bytes of type, code and checksum at the start of an ICMP message.
const KIND: usize = 4;

/// Message types of ICMP: RFC 792, RFC 950, RFC 1256.
mod icmp {
    pub(super) const ECHO_REPLY: u8 = 0;
    pub(super) const UNREACHABLE: u8 = 3;
    pub(super) const SOURCE_QUENCH: u8 = 4;
    pub(super) const REDIRECT: u8 = 5;
    pub(super) const ECHO: u8 = 8;
    pub(super) const ADVERTISEMENT: u8 = 9;
    pub(super) const SOLICITATION: u8 = 10;
    pub(super) const TIME_EXCEEDED: u8 = 11;
    pub(super) const PARAMETER: u8 = 12;
    pub(super) const TIMESTAMP: u8 = 13;
    pub(super) const TIMESTAMP_REPLY: u8 = 14;
    pub(super) const MASK: u8 = 17;
    pub(super) const MASK_REPLY: u8 = 18;
}

/// Message types of ICMPv6: RFC 4443, RFC 2710, RFC 4861, RFC 3810.
mod icmpv6 {
    pub(super) const UNREACHABLE: u8 = 1;
    pub(super) const PARAMETER: u8 = 4;
    pub(super) const ECHO: u8 = 128;
    pub(super) const ECHO_REPLY: u8 = 129;
    pub(super) const LISTENER_QUERY: u8 = 130;
    pub(super) const LISTENER_REPORT: u8 = 131;
    pub(super) const LISTENER_DONE: u8 = 132;
    pub(super) const ROUTER_SOLICITATION: u8 = 133;
    pub(super) const ROUTER_ADVERTISEMENT: u8 = 134;
    pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
    pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    pub(super) const REDIRECT: u8 = 137;
    pub(super) const LISTENER_REPORT_2: u8 = 143;
}

impl Walk<'_> {
    /// Anonymizes the ARP packet at offset `at` of the frame.
    pub(super) fn arp(&mut self, at: usize) -> NextHeader {
        let arp = Arp::new(self.bytes_from(at)).ok()?;
        // Recognised are Ethernet or IEEE 802 with IPv4 and matching address lengths.
        let known = matches!(self.bytes(at)?, [0, 1 | 6, 8, 0, 6, 4]);
        if !known {
            return self.onward(at + Arp::LEN, Next::Payload);
        }
        self.replace_mac(at + 8)?;
        self.replace_v4(at + 14)?;
        self.replace_mac(at + 18)?;
        self.replace_v4(at + 24)?;
        self.onward(at + arp.header_len(), Next::Payload)
    }

    /// Limits the number of bytes that are kept of the body of an ICMP message, if the slice (the
    /// part of a frame to keep) has a limit.
    fn limit_body(&mut self, at: usize) {
        let body = match self.slice {
            Slice::Whole => return,
            Slice::L3 | Slice::L4 => 0,
            Slice::Payload(most) => most as usize,
        };
        // For messages in a quoted packet, the outer message has set the limit already.
        self.limit = self.limit.min((at + Icmp::LEN).saturating_add(body));
    }

    /// Continues with the packet that an ICMP message quotes; a quoted packet is usually truncated.
    fn quoted(&mut self, at: usize, ethertype: u16) -> NextHeader {
        self.is_whole = false;
        self.onward(at, Next::Ethertype(ethertype))
    }

    /// Anonymizes the ICMP message at offset `at` of the frame.
    pub(super) fn icmp(&mut self, at: usize) -> NextHeader {
        let [kind, ..] = self.bytes::<KIND>(at)?;
        self.limit_body(at);
        self.checksum(at, 2, None, false);
        self.keep_all(at + KIND)?;
        let body = at + Icmp::LEN;
        match kind {
            icmp::ECHO_REPLY | icmp::ECHO => {
                self.keep_all(body)?;
                self.payload(body)
            }
            icmp::UNREACHABLE | icmp::SOURCE_QUENCH | icmp::TIME_EXCEEDED | icmp::PARAMETER => {
                self.quoted(body, ethertype::IPV4)
            }
            icmp::REDIRECT => {
                self.replace_v4(at + KIND)?;
                self.quoted(body, ethertype::IPV4)
            }
            icmp::ADVERTISEMENT => {
                let [count, words] = self.bytes(at + KIND)?;
                self.keep_all(body)?;
                // Each entry has two words: an address and a preference.
                for entry in (0..usize::from(count)).filter(|_| words == 2) {
                    self.replace_v4(body + entry * 8)?;
                    self.keep_all(body + (entry + 1) * 8)?;
                }
                None
            }
            icmp::SOLICITATION => self.onward(body, Next::Payload),
            icmp::TIMESTAMP | icmp::TIMESTAMP_REPLY => self.onward(body + 12, Next::Payload),
            icmp::MASK | icmp::MASK_REPLY => self.onward(body + 4, Next::Payload),
            _ => None,
        }
    }

    /// Anonymizes the ICMPv6 message at offset `at` of the frame.
    pub(super) fn icmpv6(&mut self, at: usize) -> NextHeader {
        let [kind, ..] = self.bytes::<KIND>(at)?;
        self.limit_body(at);
        self.checksum(at, 2, Some(protocol::ICMPV6), false);
        self.keep_all(at + KIND)?;
        let body = at + Icmp::LEN;
        match kind {
            icmpv6::UNREACHABLE..=icmpv6::PARAMETER => self.quoted(body, ethertype::IPV6),
            icmpv6::ECHO | icmpv6::ECHO_REPLY => {
                self.keep_all(body)?;
                self.payload(body)
            }
            icmpv6::LISTENER_QUERY | icmpv6::LISTENER_REPORT | icmpv6::LISTENER_DONE => {
                self.addresses(body, 1)?;
                // A query of version 2 has source addresses after the group.
                if kind == icmpv6::LISTENER_QUERY {
                    let [_, _, high, low] = self.bytes(body + 16)?;
                    self.keep_all(body + 20)?;
                    self.addresses(body + 20, u16::from_be_bytes([high, low]))?;
                }
                None
            }
            icmpv6::ROUTER_SOLICITATION => self.neighbours(body, 0),
            icmpv6::ROUTER_ADVERTISEMENT => {
                self.keep_all(body + 8)?;
                self.neighbours(body + 8, 0)
            }
            icmpv6::NEIGHBOUR_SOLICITATION | icmpv6::NEIGHBOUR_ADVERTISEMENT => {
                self.neighbours(body, 1)
            }
            icmpv6::REDIRECT => self.neighbours(body, 2),
            icmpv6::LISTENER_REPORT_2 => self.listener_records(body),
            _ => None,
        }
    }

    /// Replaces `count` IPv6 addresses from offset `at` of the frame on, as far as they are in the
    /// frame.
    fn addresses(&mut self, at: usize, count: u16) -> Option<()> {
        self.keep_all(at)?;
        for i in 0..usize::from(count) {
            self.replace_v6(at + i * 16)?;
            self.keep_all(at + (i + 1) * 16)?;
        }
        Some(())
    }

    /// Anonymizes a message of neighbour discovery (ICMPv6): `addresses` IPv6 addresses, then
    /// options.
    fn neighbours(&mut self, at: usize, addresses: u16) -> NextHeader {
        self.addresses(at, addresses)?;
        let redirected = self.neighbour_options(at + usize::from(addresses) * 16)?;
        self.quoted(redirected, ethertype::IPV6)
    }

    /// Anonymizes the records of a multicast listener report (ICMPv6): RFC 3810 section 5.2. Their
    /// number is in the header, which ends at `at`.
    fn listener_records(&mut self, mut at: usize) -> NextHeader {
        let [high, low] = self.bytes(at - 2)?;
        self.keep_all(at)?;
        // A record has type, length of auxiliary data in words, number of sources; then the group
        // and the sources.
        for _ in 0..u16::from_be_bytes([high, low]) {
            let [_, auxiliary, high, low] = self.bytes(at)?;
            let sources = u16::from_be_bytes([high, low]);
            self.addresses(at + 4, 1)?;
            self.addresses(at + 20, sources)?;
            let behind = at + 20 + usize::from(sources) * 16;
            at = behind + usize::from(auxiliary) * 4;
            if auxiliary > 0 {
                self.overwrite(behind..at.min(self.end), 0);
            }
            self.keep_all(at)?;
        }
        None
    }
}
