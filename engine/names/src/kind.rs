//! Classification of payloads for the hot path. For most payloads only the first four bytes are
//! read.

use crate::{http, quic};

/// Maximum number of payload bytes that are parsed for names. A TLS hello with post-quantum keys
/// has about 2000 bytes.
pub const MAX_PAYLOAD: usize = 4096;
/// Maximum number of bytes of an HTTP response that are parsed; the status is in the first line.
const MOST_RESPONSE: usize = 1024;
/// Maximum length of an SSH identification line in bytes: RFC 4253 section 4.2.
const MOST_SSH: usize = 255;
/// UDP ports of DNS, multicast DNS (RFC 6762) and LLMNR (RFC 4795).
const DNS_PORTS: [u16; 3] = [53, 5353, 5355];
/// TCP port of DNS.
const DNS_PORT: u16 = 53;
/// Minimum length in bytes of a datagram with a client's first Initial packet: RFC 9000 section
/// 14.1.
const LEAST_QUIC: usize = 1200;

/// Kind of a TCP or UDP payload, by its first bytes or its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// The payload is the first message of a flow, or of a later exchange in the same flow.
    Beginning(Protocol),
    /// The payload is a DNS message over UDP.
    Dns,
    /// The payload is DNS messages over TCP, each preceded by its length.
    DnsOverTcp,
    /// The payload is a DHCP message for IPv4.
    Dhcp,
    /// The payload is a DHCPv6 message.
    Dhcpv6,
}

/// Protocol whose first messages contain a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TLS over TCP, by the hello of client or server.
    Tls,
    /// HTTP/1, by a request or response.
    Http,
    /// SSH, by the identification line.
    Ssh,
    /// QUIC, by a datagram that begins with an Initial packet.
    Quic,
}

/// Returns four bytes as a big-endian number.
const fn word(text: &[u8; 4]) -> u32 {
    u32::from_be_bytes(*text)
}

/// Lowest value of the first four bytes of a TLS handshake record, any version: RFC 8446 section
/// 5.1.
const TLS: u32 = 0x1603_0000;
/// Highest value of the first four bytes of a TLS handshake record.
const TLS_END: u32 = 0x1603_04ff;
/// First four bytes of an SSH identification line.
const SSH: u32 = word(b"SSH-");
/// First four bytes of an HTTP response.
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

impl PayloadKind {
    /// Classifies the payload of a TCP segment; `None` if it contains no name.
    #[inline]
    #[must_use]
    pub fn classify_tcp(payload: &[u8], ports: [u16; 2]) -> Option<Self> {
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

    /// Classifies the payload of a UDP datagram; `None` if it contains no name.
    #[inline]
    #[must_use]
    pub fn classify_udp(payload: &[u8], ports: [u16; 2]) -> Option<Self> {
        if ports.iter().any(|it| DNS_PORTS.contains(it)) {
            return Some(Self::Dns);
        }
        // Server port 67 and client port 68; servers and relays use port 67 on both ends.
        if matches!(ports, [67 | 68, 67 | 68]) {
            return Some(Self::Dhcp);
        }
        // Client port 546, server and relay port 547.
        if matches!(ports, [546 | 547, 546 | 547]) {
            return Some(Self::Dhcpv6);
        }
        let is_quic = payload.len() >= LEAST_QUIC && quic::is_initial(payload);
        is_quic.then_some(Self::Beginning(Protocol::Quic))
    }

    /// Returns how many bytes from the start of a flow's `payload` are needed, at most
    /// [`MAX_PAYLOAD`]. The result exceeds the length of `payload` if the message continues in the
    /// next segments. A later call with the next segment appended may return less.
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
            Self::Beginning(Protocol::Http)
                if len < MAX_PAYLOAD && http::is_host_pending(payload) =>
            {
                MAX_PAYLOAD
            }
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
        wanted.min(MAX_PAYLOAD)
    }
}

/// Returns `true` if a TLS record begins with a hello of plausible length. Some encrypted records
/// look like a hello by chance; the length check excludes most of them.
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
    fn payloads_are_classified_by_first_bytes_and_ports() {
        let web = [40_000, 443];
        let tls = |kind, len: u8| [0x16, 3, 1, 0, len + 4, kind, 0, 0, len];
        let begins = |protocol| Some(PayloadKind::Beginning(protocol));
        for (payload, kind) in [
            (&tls(1, 200)[..], begins(Protocol::Tls)),
            (&tls(2, 70), begins(Protocol::Tls)),
            // A certificate, a hello too short for its fields, and application data.
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
            assert_eq!(
                PayloadKind::classify_tcp(payload, web),
                kind,
                "{payload:x?}"
            );
        }
        assert_eq!(
            PayloadKind::classify_tcp(b"\0\x1d\0\0", [53, 9]),
            Some(PayloadKind::DnsOverTcp)
        );
        assert_eq!(
            PayloadKind::classify_udp(b"", [5353, 5353]),
            Some(PayloadKind::Dns)
        );
        assert_eq!(
            PayloadKind::classify_udp(b"", [68, 67]),
            Some(PayloadKind::Dhcp)
        );
        assert_eq!(PayloadKind::classify_udp(b"", [67, 4000]), None);
        assert_eq!(
            PayloadKind::classify_udp(b"", [547, 546]),
            Some(PayloadKind::Dhcpv6)
        );
        assert_eq!(PayloadKind::classify_udp(b"", [547, 4000]), None);
        let mut initial = vec![0xc3, 0, 0, 0, 1];
        initial.resize(1200, 0);
        assert_eq!(
            PayloadKind::classify_udp(&initial, web),
            begins(Protocol::Quic)
        );
        assert_eq!(PayloadKind::classify_udp(&initial[..1199], web), None);
        initial[0] = 0x43;
        assert_eq!(PayloadKind::classify_udp(&initial, web), None);
    }

    #[test]
    fn bytes_of_the_next_segments_are_wanted_too() {
        let hello = [0x16, 3, 1, 6, 4, 1, 0, 6, 0];
        let tls = PayloadKind::Beginning(Protocol::Tls);
        assert_eq!(tls.wanted(&hello), 9 + 0x600);
        assert_eq!(
            tls.wanted(&[0x16, 3, 1, 0xff, 0, 1, 0, 0xff, 0, 9]),
            MAX_PAYLOAD
        );
        assert_eq!(PayloadKind::DnsOverTcp.wanted(&[1, 0, 7]), 258);
        assert_eq!(PayloadKind::DnsOverTcp.wanted(&[0, 1, 7, 0, 1, 7]), 6);
        let http = PayloadKind::Beginning(Protocol::Http);
        assert_eq!(http.wanted(b"GET / HTTP/1.1\r\nAccept: *"), MAX_PAYLOAD);
        let named = b"GET / HTTP/1.1\r\nHost: a\r\nAcc";
        assert_eq!(http.wanted(named), named.len());
        assert_eq!(http.wanted(&[b'x'; 9000]), MAX_PAYLOAD);
        let response = [&b"HTTP/1.1 200 OK\r\nA: "[..], &[b'x'; 9000]].concat();
        assert_eq!(http.wanted(&response), 1024);
        assert_eq!(PayloadKind::Dns.wanted(&[0; 9000]), MAX_PAYLOAD);
    }
}
