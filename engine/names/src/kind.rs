//! Classification of payloads for the hot path: whether a payload may contain a name. For most
//! payloads only the first byte is read.

use crate::{MAX_PAYLOAD, PayloadError, dns, http, quic, tls};
use std::ops::Range;

/// Maximum number of bytes of an HTTP response that are parsed; the status is in the first line.
const MOST_RESPONSE: usize = 1024;
/// Maximum length of an SSH identification line in bytes: RFC 4253 section 4.2.
const MOST_SSH: usize = 255;
/// UDP ports of DNS, multicast DNS (RFC 6762) and LLMNR (RFC 4795).
const DNS_PORTS: [u16; 3] = [53, 5353, 5355];
/// Server port of DNS over TCP.
const DNS_PORT: u16 = 53;
/// UDP port of SSDP, which sends HTTP messages in datagrams: UPnP Device Architecture 2.0 section 1.
const SSDP_PORT: u16 = 1900;
/// Minimum length in bytes of a datagram with a client's first Initial packet: RFC 9000 section
/// 14.1.
const LEAST_QUIC: usize = 1200;

/// Kind of a TCP or UDP payload that may contain a name, by its first bytes or its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// First message of a flow, or of a later exchange in the same flow, of this protocol.
    Beginning(Protocol),
    /// DNS message over UDP as the payload.
    Dns,
    /// DNS messages over TCP as the payload, each preceded by its length.
    DnsOverTcp,
    /// DHCP message for IPv4 as the payload.
    Dhcp,
    /// DHCPv6 message as the payload.
    Dhcpv6,
    /// Start of a TCP stream's message that is too short to be classified.
    Undecided,
}

/// Protocol whose first messages contain a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TLS over TCP, recognised by the hello of client or server.
    Tls,
    /// HTTP/1, recognised by a request or response.
    Http,
    /// SSH, recognised by the identification line.
    Ssh,
    /// QUIC, recognised by a datagram that begins with an Initial packet.
    Quic,
}

/// Returns four bytes as a big-endian number.
const fn word(text: &[u8; 4]) -> u32 {
    u32::from_be_bytes(*text)
}

/// Lowest value of the first four bytes of a TLS handshake record, any version: RFC 8446 section
/// 5.1.
const TLS: u32 = 0x1603_0000;
/// Highest value of the first four bytes of a TLS handshake record, any version.
const TLS_END: u32 = 0x1603_04ff;
/// Plausible lengths of a TLS hello in bytes.
const HELLO: Range<usize> = 35..16_384;
/// First four bytes of an SSH identification line, as a big-endian number.
const SSH: u32 = word(b"SSH-");
/// First four bytes of an HTTP response, as a big-endian number.
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
    /// Classifies the payload of a TCP segment between `ports`; `None` if it contains no name.
    #[inline]
    #[must_use]
    pub fn classify_tcp(payload: &[u8], ports: [u16; 2]) -> Option<Self> {
        let [first, ..] = *payload else {
            return None;
        };
        let may_begin = match FIRST_BYTES[usize::from(first)] {
            FirstByte::Other => false,
            FirstByte::Text => is_text(payload),
            FirstByte::Known => true,
        };
        if may_begin || is_dns(ports) {
            return classify_candidate(payload, ports);
        }
        None
    }

    /// Classifies the payload of a UDP datagram between `ports`; `None` if it contains no name.
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
        if ports.contains(&SSDP_PORT) && is_message(payload) {
            return Some(Self::Beginning(Protocol::Http));
        }
        let is_quic = payload.len() >= LEAST_QUIC && quic::is_initial(payload);
        is_quic.then_some(Self::Beginning(Protocol::Quic))
    }

    /// Returns how many bytes from the start of a flow's `payload` the names parser needs, at most
    /// [`MAX_PAYLOAD`]. The result exceeds the length of `payload` if the message continues in the
    /// next segments. A later call with the next segment appended may return less. DNS over TCP is
    /// split by [`PayloadKind::split`] instead.
    #[must_use]
    pub fn wanted(self, payload: &[u8]) -> usize {
        let len = payload.len();
        let wanted = match self {
            Self::Beginning(Protocol::Tls) => match tls::hello_end(payload) {
                Ok(end) => end.unwrap_or(MAX_PAYLOAD),
                Err(PayloadError) => len,
            },
            Self::Beginning(Protocol::Http) if payload.starts_with(b"HTTP") => {
                if http::is_status_pending(payload) {
                    MAX_PAYLOAD
                } else {
                    len.min(MOST_RESPONSE)
                }
            }
            Self::Beginning(Protocol::Http)
                if len < MAX_PAYLOAD && http::is_host_pending(payload) =>
            {
                MAX_PAYLOAD
            }
            Self::Beginning(Protocol::Ssh) if len < MOST_SSH && !payload.contains(&b'\n') => {
                MOST_SSH
            }
            Self::Beginning(Protocol::Ssh) => len.min(MOST_SSH),
            Self::Undecided => MAX_PAYLOAD,
            Self::Beginning(Protocol::Http | Protocol::Quic)
            | Self::Dns
            | Self::DnsOverTcp
            | Self::Dhcp
            | Self::Dhcpv6 => len,
        };
        wanted.min(MAX_PAYLOAD)
    }

    /// Splits a stream of DNS over TCP. Returns how many bytes from the start of `stream` can be
    /// parsed, and how many bytes of the stream after them are not needed, because they belong to a
    /// message longer than [`MAX_PAYLOAD`], whose questions come first.
    #[must_use]
    pub fn split(stream: &[u8]) -> (usize, usize) {
        dns::split(stream)
    }

    /// Returns `true` if each payload of this kind in a flow is parsed for names. Of other kinds, a
    /// flow may have many payloads that contain nothing new, or that only seem to be of their kind.
    #[must_use]
    pub fn is_always_parsed(self, payload: &[u8]) -> bool {
        match self {
            Self::Dns | Self::Dhcp | Self::Dhcpv6 => true,
            Self::DnsOverTcp => dns::is_framed(payload),
            Self::Beginning(_) | Self::Undecided => false,
        }
    }
}

/// Returns `true` if a UDP payload that begins like HTTP is a whole message.
#[cold]
#[inline(never)]
fn is_message(payload: &[u8]) -> bool {
    payload.starts_with(b"HTTP") || http::is_request(payload) == Some(true)
}

/// Possible contents of a TCP payload, by its first byte.
#[derive(Clone, Copy)]
enum FirstByte {
    /// First byte with which no TLS handshake, SSH line or HTTP message begins.
    Other,
    /// First byte with which an HTTP request or an empty line before it may begin.
    Text,
    /// First byte of a TLS handshake record, or of one of the words of [`classify_candidate`].
    Known,
}

static FIRST_BYTES: [FirstByte; 256] = {
    let mut all = [FirstByte::Other; 256];
    let mut byte = 0;
    loop {
        all[byte as usize] = match byte {
            tls::HANDSHAKE | b'C' | b'D' | b'G' | b'H' | b'O' | b'P' | b'S' | b'T' => {
                FirstByte::Known
            }
            _ if byte.is_ascii_whitespace() || http::is_token(byte) => FirstByte::Text,
            _ => FirstByte::Other,
        };
        if byte == u8::MAX {
            break;
        }
        byte += 1;
    }
    all
};

/// Bit mask of the highest bit of each of eight bytes.
const HIGHEST: u64 = 0x8080_8080_8080_8080;

/// Returns `true` if a payload may be text that begins with an HTTP method: a space or a line end
/// is near, and the first four bytes are ASCII. The function loads the first bytes without a loop;
/// a shorter payload is not excluded.
#[inline]
fn is_text(payload: &[u8]) -> bool {
    let Some(([a, b, c], [])) = payload
        .first_chunk::<{ http::MOST_METHOD + 1 }>()
        .map(|it| it.as_chunks())
    else {
        return true;
    };
    // The highest bit of a byte is set if the byte is at most a space, or follows such a byte.
    let low = |it: &[u8; 8]| {
        let it = u64::from_le_bytes(*it);
        it.wrapping_sub(0x2121_2121_2121_2121) & !it
    };
    let is_ascii = u64::from_le_bytes(*a) as u32 & HIGHEST as u32 == 0;
    is_ascii && (low(a) | low(b) | low(c)) & HIGHEST != 0
}

/// Returns `true` if one of the two ports of a TCP connection is that of a DNS server.
#[inline]
fn is_dns([a, b]: [u16; 2]) -> bool {
    (a == DNS_PORT) | (b == DNS_PORT)
}

/// Classifies the payload of a TCP segment whose first byte or port does not exclude a name. The
/// function is not inlined, since few payloads are of this kind.
#[cold]
#[inline(never)]
fn classify_candidate(payload: &[u8], ports: [u16; 2]) -> Option<PayloadKind> {
    let head = payload.first_chunk().map(|it| u32::from_be_bytes(*it));
    let begins = |protocol| Some(PayloadKind::Beginning(protocol));
    // A hello in very small parts, a request with another method or after empty lines, or fewer
    // than four bytes.
    let (protocol, is_begun) = match head {
        Some(TLS..=TLS_END) if is_hello(payload) => return begins(Protocol::Tls),
        Some(SSH) => return begins(Protocol::Ssh),
        Some(HTTP | GET | HEAD | POST | PUT | DELETE | CONNECT | OPTIONS | TRACE | PATCH) => {
            return begins(Protocol::Http);
        }
        _ if is_dns(ports) => return Some(PayloadKind::DnsOverTcp),
        _ if payload.first() == Some(&tls::HANDSHAKE) => {
            let end = tls::hello_end(payload).ok()?;
            // Without the headers of the first record and of the message.
            (Protocol::Tls, end.map(|it| HELLO.contains(&(it - 9))))
        }
        Some(head) if head & HIGHEST as u32 != 0 => return None,
        _ => (Protocol::Http, http::is_request(payload)),
    };
    match is_begun {
        Some(true) => begins(protocol),
        Some(false) => None,
        None => Some(PayloadKind::Undecided),
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
    matches!(kind, 1 | 2) && top == 0 && record > 4 && HELLO.contains(&hello.into())
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
            // Too short to be classified.
            (&tls(1, 200)[..8], Some(PayloadKind::Undecided)),
            (&[0x16, 3], Some(PayloadKind::Undecided)),
            (&[0x16, 4], None),
            (&[0x16, 3, 3, 0, 40, 20], None),
            // A hello in records of one byte, and one whose length is in the second record.
            (
                &[0x16, 3, 1, 0, 1, 1, 0x16, 3, 1, 0, 1],
                Some(PayloadKind::Undecided),
            ),
            (
                &[0x16, 3, 1, 0, 2, 1, 0, 0x16, 3, 1, 0, 99, 0, 97],
                begins(Protocol::Tls),
            ),
            (&[0x16, 3, 1, 0, 2, 1, 0, 0x17, 3, 1, 0, 99, 0, 97], None),
            (b"GET / HTTP/1.1\r\n", begins(Protocol::Http)),
            (b"HTTP/1.1 200 OK\r\n", begins(Protocol::Http)),
            (b"GETTING on", None),
            (b"GETTING", Some(PayloadKind::Undecided)),
            (b"\r\n\r\nPROPFIND / HTTP/1.1\r\n", begins(Protocol::Http)),
            (b"get / HTTP/1.1\r\n", begins(Protocol::Http)),
            (b"SSH-2.0-x\r\n", begins(Protocol::Ssh)),
            (b"SSH", Some(PayloadKind::Undecided)),
            (b"ssh", None),
            (b"\r\n", None),
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
        for short in [&b"\0"[..], b"GE", &[0x16, 3, 1, 0]] {
            assert_eq!(
                PayloadKind::classify_tcp(short, [9, 53]),
                Some(PayloadKind::DnsOverTcp)
            );
        }
        for (search, kind) in [
            (&b"M-SEARCH * HTTP/1.1\r\n"[..], begins(Protocol::Http)),
            (b"HTTP/1.1 200 OK\r\n", begins(Protocol::Http)),
            (b"TYPE: WM-NOTIFY\r\n", None),
        ] {
            assert_eq!(PayloadKind::classify_udp(search, [40_000, 1900]), kind);
        }
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
    fn checks_before_a_candidate_exclude_no_name() {
        let hello = [3, 1, 0, 204, 1, 0, 0, 200];
        let word = b"-A-WORD-LIKE-THE-LONGEST";
        let tails = [
            &b""[..],
            b"ET",
            b" / HTTP/1.1\r\n",
            b"ET / HTTP/1.1\r\n",
            b"\r\nx /x HTTP/1.1\r\n",
            b"\xe4\xf6\xfc / HTTP/1.1\r\nHost: x\r\n",
            b"SH-2.0-software_1.2_without_a_blank",
            b"TTP/1.1 200 OK\r\n",
            &hello,
            &hello[..3],
        ];
        let words = (20..=word.len()).map(|len| [&word[..len], b" / HTTP/1.1\r\n"].concat());
        let tails = tails.into_iter().map(<[u8]>::to_vec).chain(words);
        let mut begun = 0;
        for (tail, first) in
            tails.flat_map(|it| (0..=u8::MAX).map(move |first| (it.clone(), first)))
        {
            let payload = [&[first][..], &tail].concat();
            for ports in [[40_000, 443], [53, 40_000]] {
                let kind = PayloadKind::classify_tcp(&payload, ports);
                assert_eq!(kind, classify_candidate(&payload, ports), "{payload:02x?}");
                begun += usize::from(kind.is_some() && ports[1] == 443);
            }
        }
        assert!(begun > 300, "{begun}");
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
        // Where the hello ends is known with its last record.
        let records = [0x16, 3, 1, 0, 3, 1, 0, 0, 0x16, 3, 1, 0, 90, 80];
        assert_eq!(tls.wanted(&records), 13 + 81);
        assert_eq!(tls.wanted(&records[..12]), MAX_PAYLOAD);
        let ssh = PayloadKind::Beginning(Protocol::Ssh);
        assert_eq!(
            (ssh.wanted(b"SSH-2"), ssh.wanted(b"SSH-2.0-x\n")),
            (255, 10)
        );
        assert_eq!(PayloadKind::Undecided.wanted(b"SS"), MAX_PAYLOAD);
        let http = PayloadKind::Beginning(Protocol::Http);
        assert_eq!(http.wanted(b"GET / HTTP/1.1\r\nAccept: *"), MAX_PAYLOAD);
        let named = b"GET / HTTP/1.1\r\nHost: a\r\nAcc";
        assert_eq!(http.wanted(named), named.len());
        assert_eq!(http.wanted(&[b'x'; 9000]), MAX_PAYLOAD);
        let response = [&b"HTTP/1.1 200 OK\r\nA: "[..], &[b'x'; 9000]].concat();
        assert_eq!(http.wanted(&response), 1024);
        assert_eq!(http.wanted(&response[..10]), MAX_PAYLOAD);
        assert_eq!(PayloadKind::Dns.wanted(&[0; 9000]), MAX_PAYLOAD);
    }
}
