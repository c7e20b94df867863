//! Messages that are about addresses: ARP, ICMP, and ICMPv6 with neighbour discovery and multicast listeners.
//!
//! Of a kind of message that is not known, the first four bytes are understood: type, code and checksum.

use super::walk::{Onward, Walk};
use wqcap_frame::{Arp, Icmp, Next, Slice, ethertype, protocol};

/// Bytes of each message that say what it is.
const KIND: usize = 4;

/// Of ICMP: RFC 792, RFC 950, RFC 1256.
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

/// Of ICMPv6: RFC 4443, RFC 2710, RFC 4861, RFC 3810.
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
    pub(super) fn arp(&mut self, at: usize) -> Onward {
        let arp = Arp::new(self.rest(at)).ok()?;
        // Ethernet or IEEE 802, IPv4, and the lengths of their addresses.
        let known = matches!(self.bytes(at)?, [0, 1 | 6, 8, 0, 6, 4]);
        if !known {
            return self.onward(at + Arp::LEN, Next::Payload);
        }
        self.mac(at + 8)?;
        self.v4(at + 14)?;
        self.mac(at + 18)?;
        self.v4(at + 24)?;
        self.onward(at + arp.header_len(), Next::Payload)
    }

    /// How much of a message's body is kept, where that was said.
    fn limit_body(&mut self, at: usize) {
        let body = match self.slice {
            Slice::Whole => return,
            Slice::L3 | Slice::L4 => 0,
            Slice::Payload(most) => most as usize,
        };
        // Of what a message quotes, the message itself has told it.
        self.limit = self.limit.min((at + Icmp::LEN).saturating_add(body));
    }

    /// The packet that a message quotes: of its own accord it is seldom whole.
    fn quoted(&mut self, at: usize, ethertype: u16) -> Onward {
        self.is_whole = false;
        self.onward(at, Next::Ethertype(ethertype))
    }

    pub(super) fn icmp(&mut self, at: usize) -> Onward {
        let [kind, ..] = self.bytes::<KIND>(at)?;
        self.limit_body(at);
        self.checksum(at, 2, None, false);
        self.understand(at + KIND)?;
        let body = at + Icmp::LEN;
        match kind {
            icmp::ECHO_REPLY | icmp::ECHO => {
                self.understand(body)?;
                self.payload(body)
            }
            icmp::UNREACHABLE | icmp::SOURCE_QUENCH | icmp::TIME_EXCEEDED | icmp::PARAMETER => {
                self.quoted(body, ethertype::IPV4)
            }
            icmp::REDIRECT => {
                self.v4(at + KIND)?;
                self.quoted(body, ethertype::IPV4)
            }
            icmp::ADVERTISEMENT => {
                let [count, words] = self.bytes(at + KIND)?;
                self.understand(body)?;
                // Each is an address and a number: two words.
                for entry in (0..usize::from(count)).filter(|_| words == 2) {
                    self.v4(body + entry * 8)?;
                    self.understand(body + (entry + 1) * 8)?;
                }
                None
            }
            icmp::SOLICITATION => self.onward(body, Next::Payload),
            icmp::TIMESTAMP | icmp::TIMESTAMP_REPLY => self.onward(body + 12, Next::Payload),
            icmp::MASK | icmp::MASK_REPLY => self.onward(body + 4, Next::Payload),
            _ => None,
        }
    }

    pub(super) fn icmpv6(&mut self, at: usize) -> Onward {
        let [kind, ..] = self.bytes::<KIND>(at)?;
        self.limit_body(at);
        self.checksum(at, 2, Some(protocol::ICMPV6), false);
        self.understand(at + KIND)?;
        let body = at + Icmp::LEN;
        match kind {
            icmpv6::UNREACHABLE..=icmpv6::PARAMETER => self.quoted(body, ethertype::IPV6),
            icmpv6::ECHO | icmpv6::ECHO_REPLY => {
                self.understand(body)?;
                self.payload(body)
            }
            icmpv6::LISTENER_QUERY | icmpv6::LISTENER_REPORT | icmpv6::LISTENER_DONE => {
                self.addresses(body, 1)?;
                // Version 2 of a query goes on with sources.
                if kind == icmpv6::LISTENER_QUERY {
                    let [_, _, high, low] = self.bytes(body + 16)?;
                    self.understand(body + 20)?;
                    self.addresses(body + 20, u16::from_be_bytes([high, low]))?;
                }
                None
            }
            icmpv6::ROUTER_SOLICITATION => self.neighbours(body, 0),
            icmpv6::ROUTER_ADVERTISEMENT => {
                self.understand(body + 8)?;
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

    /// So many IPv6 addresses, as far as they are there.
    fn addresses(&mut self, at: usize, count: u16) -> Option<()> {
        self.understand(at)?;
        for i in 0..usize::from(count) {
            self.v6(at + i * 16)?;
            self.understand(at + (i + 1) * 16)?;
        }
        Some(())
    }

    /// Addresses, and options of neighbour discovery.
    fn neighbours(&mut self, at: usize, addresses: u16) -> Onward {
        self.addresses(at, addresses)?;
        let redirected = self.neighbour_options(at + usize::from(addresses) * 16)?;
        self.quoted(redirected, ethertype::IPV6)
    }

    /// The records of a listener report: RFC 3810 section 5.2.
    fn listener_records(&mut self, mut at: usize) -> Onward {
        self.understand(at)?;
        // Kind, words of auxiliary data, number of sources; then the group and the sources.
        while let Some([_, auxiliary, high, low]) = self.bytes(at) {
            let sources = u16::from_be_bytes([high, low]);
            self.addresses(at + 4, 1)?;
            self.addresses(at + 20, sources)?;
            let behind = at + 20 + usize::from(sources) * 16;
            at = behind + usize::from(auxiliary) * 4;
            if auxiliary > 0 {
                self.overwrite(behind..at.min(self.end), 0);
            }
            self.understand(at)?;
        }
        None
    }
}
