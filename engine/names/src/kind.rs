//! What a payload seems to be: for the hot path, so of most payloads only the first four bytes are looked at.

use crate::{http, quic};

/// Bytes of a payload that are read, at most. A hello of TLS with keys that withstand quantum computers has about two
/// thousand.
pub const MOST: usize = 4096;
/// Bytes of an HTTP response that are read, at most: its status is in the first line.
const MOST_RESPONSE: usize = 1024;
/// Bytes of a line of SSH, at most: RFC 4253 section 4.2.
const MOST_SSH: usize = 255;
/// Ports on which UDP carries DNS, multicast DNS (RFC 6762) and LLMNR (RFC 4795).
const DNS_PORTS: [u16; 3] = [53, 5353, 5355];
/// The port on which TCP carries DNS.
const DNS_PORT: u16 = 53;
/// Bytes of a datagram with a client's first Initial packet, at least: RFC 9000 section 14.1.
const LEAST_QUIC: usize = 1200;

/// What a payload seems to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The beginning of a flow, or of what follows in the same one.
    Beginning(Protocol),
    /// A message of DNS.
    Dns,
    /// Messages of DNS over TCP, each behind its length.
    DnsOverTcp,
    /// A message of DHCP for IPv4.
    Dhcp,
    /// A message of DHCPv6.
    Dhcpv6,
}

/// What begins with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A client's or server's hello of TLS over TCP.
    Tls,
    /// A request or response of HTTP/1.
    Http,
    /// The line with which SSH begins.
    Ssh,
    /// A datagram that begins with an Initial packet of QUIC.
    Quic,
}

const fn word(text: &[u8; 4]) -> u32 {
    u32::from_be_bytes(*text)
}

/// A record of a handshake, in any version of TLS: RFC 8446 section 5.1.
const TLS: u32 = 0x1603_0000;
const TLS_END: u32 = 0x1603_04ff;
const SSH: u32 = word(b"SSH-");
const HTTP: u32 = word(b"HTTP");
const GET: u32 = word(b"GET ");
const HEAD: u32 = word(b"HEAD");
const POST: u32 = word(b"POST");
const PUT: u32 = word(b"PUT ");
const DELETE: u32 = word(b"DELE");
const CONNECT: u32 = word(b"CONN");
const OPTIONS: u32 = word(b"OPTI");
const TRACE: u32 = word(b"TRAC");
const PATCH: u32 = word(b"PATC");

impl Kind {
    /// Of a TCP segment's payload; `None`: there is nothing to be read in it.
    #[inline]
    #[must_use]
    pub fn of_tcp(payload: &[u8], ports: [u16; 2]) -> Option<Self> {
        let head = u32::from_be_bytes(*payload.first_chunk()?);
        let protocol = match head {
            TLS..=TLS_END => return is_hello(payload).then_some(Self::Beginning(Protocol::Tls)),
            SSH => Protocol::Ssh,
            HTTP | GET | HEAD | POST | PUT | DELETE | CONNECT | OPTIONS | TRACE | PATCH => {
                Protocol::Http
            }
            _ => return ports.contains(&DNS_PORT).then_some(Self::DnsOverTcp),
        };
        Some(Self::Beginning(protocol))
    }

    /// Of a UDP datagram's payload; `None`: there is nothing to be read in it.
    #[inline]
    #[must_use]
    pub fn of_udp(payload: &[u8], ports: [u16; 2]) -> Option<Self> {
        if ports.iter().any(|it| DNS_PORTS.contains(it)) {
            return Some(Self::Dns);
        }
        // Ports 67 and 68: servers talk with relays from 67 to 67.
        if matches!(ports, [67 | 68, 67 | 68]) {
            return Some(Self::Dhcp);
        }
        // Ports of clients, and of servers and relays.
        if matches!(ports, [546 | 547, 546 | 547]) {
            return Some(Self::Dhcpv6);
        }
        let is_quic = payload.len() >= LEAST_QUIC && quic::is_initial(payload);
        is_quic.then_some(Self::Beginning(Protocol::Quic))
    }

    /// Bytes from the beginning of `payload` on that are to be read, [`MOST`] at most: more than it has where the rest
    /// comes in the next segments. Asked again with one of them behind it, it may be less.
    #[must_use]
    pub fn wanted(self, payload: &[u8]) -> usize {
        let len = payload.len();
        let wanted = match self {
            // Record header, handshake header, hello.
            Self::Beginning(Protocol::Tls) => match *payload {
                [_, _, _, _, _, _, a, b, c, ..] => 9 + u32::from_be_bytes([0, a, b, c]) as usize,
                _ => len,
            },
            Self::Beginning(Protocol::Http) if payload.starts_with(b"HTTP") => {
                len.min(MOST_RESPONSE)
            }
            Self::Beginning(Protocol::Http) if len < MOST && http::goes_on(payload) => MOST,
            Self::Beginning(Protocol::Ssh) => len.min(MOST_SSH),
            Self::Beginning(Protocol::Http | Protocol::Quic)
            | Self::Dns
            | Self::Dhcp
            | Self::Dhcpv6 => len,
            Self::DnsOverTcp => match *payload {
                [high, low, ..] => len.max(2 + usize::from(u16::from_be_bytes([high, low]))),
                _ => len,
            },
        };
        wanted.min(MOST)
    }
}

/// Whether a record begins with a hello that is not absurdly long. Encrypted records, of which one in many looks like a
/// hello so far, are as long as they say only by chance.
#[inline]
fn is_hello(payload: &[u8]) -> bool {
    let [_, _, _, high, low, kind, top, a, b, ..] = *payload else {
        return false;
    };
    let record = u16::from_be_bytes([high, low]);
    let hello = u16::from_be_bytes([a, b]);
    matches!(kind, 1 | 2) && top == 0 && record > 4 && hello > 34 && hello < 16_384
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_and_ports_tell() {
        let web = [40_000, 443];
        let tls = |kind, len: u8| [0x16, 3, 1, 0, len + 4, kind, 0, 0, len];
        let begins = |protocol| Some(Kind::Beginning(protocol));
        for (payload, kind) in [
            (&tls(1, 200)[..], begins(Protocol::Tls)),
            (&tls(2, 70), begins(Protocol::Tls)),
            // A certificate, a hello without room for its own fields, and application data.
            (&tls(11, 200), None),
            (&tls(1, 30), None),
            (&[0x17, 3, 3, 0, 40, 1, 0, 0, 36], None),
            (&tls(1, 200)[..8], None),
            (b"GET / HTTP/1.1\r\n", begins(Protocol::Http)),
            (b"HTTP/1.1 200 OK\r\n", begins(Protocol::Http)),
            (b"GETTING", None),
            (b"SSH-2.0-x\r\n", begins(Protocol::Ssh)),
            (b"SSH", None),
            (b"", None),
        ] {
            assert_eq!(Kind::of_tcp(payload, web), kind, "{payload:x?}");
        }
        assert_eq!(Kind::of_tcp(b"\0\x1d\0\0", [53, 9]), Some(Kind::DnsOverTcp));
        assert_eq!(Kind::of_udp(b"", [5353, 5353]), Some(Kind::Dns));
        assert_eq!(Kind::of_udp(b"", [68, 67]), Some(Kind::Dhcp));
        assert_eq!(Kind::of_udp(b"", [67, 4000]), None);
        assert_eq!(Kind::of_udp(b"", [547, 546]), Some(Kind::Dhcpv6));
        assert_eq!(Kind::of_udp(b"", [547, 4000]), None);
        let mut initial = vec![0xc3, 0, 0, 0, 1];
        initial.resize(1200, 0);
        assert_eq!(Kind::of_udp(&initial, web), begins(Protocol::Quic));
        assert_eq!(Kind::of_udp(&initial[..1199], web), None);
        initial[0] = 0x43;
        assert_eq!(Kind::of_udp(&initial, web), None);
    }

    #[test]
    fn what_comes_in_the_next_segments_is_wanted_too() {
        let hello = [0x16, 3, 1, 6, 4, 1, 0, 6, 0];
        let tls = Kind::Beginning(Protocol::Tls);
        assert_eq!(tls.wanted(&hello), 9 + 0x600);
        assert_eq!(tls.wanted(&[0x16, 3, 1, 0xff, 0, 1, 0, 0xff, 0, 9]), MOST);
        assert_eq!(Kind::DnsOverTcp.wanted(&[1, 0, 7]), 258);
        assert_eq!(Kind::DnsOverTcp.wanted(&[0, 1, 7, 0, 1, 7]), 6);
        let http = Kind::Beginning(Protocol::Http);
        assert_eq!(http.wanted(b"GET / HTTP/1.1\r\nAccept: *"), MOST);
        let named = b"GET / HTTP/1.1\r\nHost: a\r\nAcc";
        assert_eq!(http.wanted(named), named.len());
        assert_eq!(http.wanted(&[b'x'; 9000]), MOST);
        let response = [&b"HTTP/1.1 200 OK\r\nA: "[..], &[b'x'; 9000]].concat();
        assert_eq!(http.wanted(&response), 1024);
        assert_eq!(Kind::Dns.wanted(&[0; 9000]), MOST);
    }
}
