//! Parser of TLS hellos: RFC 5246 section 7.4.1, RFC 8446 section 4.1.

use crate::{PayloadError, ja4::Traits, text::text};
use tls_parser::{
    SNIType, TlsExtension, parse_tls_extension_alpn_content,
    parse_tls_extension_signature_algorithms_content, parse_tls_extension_sni_content,
    parse_tls_extension_supported_versions, parse_tls_extension_unknown,
    parse_tls_handshake_client_hello, parse_tls_handshake_server_hello,
};

/// Content type of a TLS record with handshake messages.
pub(crate) const HANDSHAKE: u8 = 0x16;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
/// Length of a TLS record header in bytes.
const RECORD: usize = 5;

/// Transport that carries a TLS hello: TCP or QUIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Tcp,
    Quic,
}

/// Names and properties found in a TLS hello of a client or server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hello {
    Client {
        /// Server name (SNI) requested in the client hello.
        sni: Option<String>,
        /// Application protocols (ALPN) offered in the client hello, the preferred one first,
        /// separated by commas.
        alpn: Option<String>,
        /// JA4 fingerprint of the client hello.
        ja4: String,
    },
    Server {
        /// TLS version number chosen in the server hello.
        version: u16,
    },
}

/// Parses the hello (first handshake message) in the records at the start of a TLS stream, which
/// may be truncated after the hello. A message may be divided into records of any length: RFC 8446
/// section 5.1.
pub(crate) fn hello(bytes: &[u8]) -> Option<Hello> {
    let (mut rest, mut message) = (bytes, Vec::with_capacity(bytes.len()));
    while let Some((&[HANDSHAKE, _, _, high, low], behind)) = rest.split_first_chunk::<RECORD>() {
        let len = usize::from(u16::from_be_bytes([high, low]));
        let (fragment, behind) = behind.split_at(len.min(behind.len()));
        message.extend_from_slice(fragment);
        rest = behind;
    }
    self::message(&message, Carrier::Tcp)
}

/// Returns the offset at which the hello in the records at the start of a TLS stream ends, `None`
/// if that depends on the next bytes.
///
/// # Errors
/// The stream does not begin with a hello.
pub(crate) fn hello_end(bytes: &[u8]) -> Result<Option<usize>, PayloadError> {
    let (mut rest, mut message, mut len) = (bytes, [0; 4], 0);
    loop {
        let size = match *rest {
            [HANDSHAKE, 3, 0..=4, high, low, ..] => usize::from(u16::from_be_bytes([high, low])),
            []
            | [HANDSHAKE]
            | [HANDSHAKE, 3]
            | [HANDSHAKE, 3, 0..=4]
            | [HANDSHAKE, 3, 0..=4, _] => {
                return Ok(None);
            }
            _ => return Err(PayloadError),
        };
        let begun = &rest[RECORD..];
        let fragment = begun.get(..size).unwrap_or(begun);
        for (to, from) in message.iter_mut().skip(len).zip(fragment) {
            *to = *from;
        }
        let known = (len + fragment.len()).min(message.len());
        let is_hello = match message[..known] {
            [] => size > 0,
            [kind] => matches!(kind, CLIENT_HELLO | SERVER_HELLO),
            [kind, top, ..] => matches!(kind, CLIENT_HELLO | SERVER_HELLO) && top == 0,
        };
        if !is_hello {
            return Err(PayloadError);
        }
        let end =
            message.len() + u32::from_be_bytes([0, message[1], message[2], message[3]]) as usize;
        if known == message.len() && len + size >= end {
            return Ok(Some(bytes.len() - begun.len() + end - len));
        }
        if fragment.len() < size {
            return Ok(None);
        }
        len += size;
        rest = &begun[size..];
    }
}

/// Parses a complete TLS handshake message, which must be a hello; bytes after it are ignored.
pub(crate) fn message(bytes: &[u8], carrier: Carrier) -> Option<Hello> {
    let [kind, a, b, c, rest @ ..] = bytes else {
        return None;
    };
    let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
    let hello = rest.get(..len)?;
    match *kind {
        CLIENT_HELLO => client(hello, carrier),
        SERVER_HELLO => server(hello),
        _ => None,
    }
}

/// Parses the body of a TLS client hello.
fn client(bytes: &[u8], carrier: Carrier) -> Option<Hello> {
    let (_, hello) = parse_tls_handshake_client_hello(bytes).ok()?;
    let mut traits = Traits {
        transport: match carrier {
            Carrier::Tcp => 't',
            Carrier::Quic => 'q',
        },
        versions: Vec::new(),
        ciphers: hello.ciphers.iter().map(|it| it.0).collect(),
        extensions: Vec::new(),
        algorithms: Vec::new(),
        protocol: None,
    };
    let (mut sni, mut alpn) = (None, None);
    for extension in extensions(hello.ext.unwrap_or_default())? {
        traits.extensions.push(extension.kind);
        match extension.parse() {
            Some(TlsExtension::SNI(names)) => {
                let name = names.iter().find(|(kind, _)| *kind == SNIType::HostName);
                sni = name.map(|(_, name)| text(name));
            }
            Some(TlsExtension::ALPN(protocols)) => {
                traits.protocol = protocols.first().copied();
                alpn = traits.protocol.map(|_| text(&protocols.join(&b',')));
            }
            Some(TlsExtension::SignatureAlgorithms(values)) => traits.algorithms = values,
            Some(TlsExtension::SupportedVersions(values)) => {
                traits.versions = values.iter().map(|it| it.0).collect();
            }
            _ => {}
        }
    }
    if traits.versions.is_empty() {
        traits.versions.push(hello.version.0);
    }
    let ja4 = traits.ja4();
    Some(Hello::Client { sni, alpn, ja4 })
}

/// Parses the body of a TLS server hello.
fn server(bytes: &[u8]) -> Option<Hello> {
    let (_, hello) = parse_tls_handshake_server_hello(bytes).ok()?;
    let mut version = hello.version.0;
    for extension in extensions(hello.ext.unwrap_or_default())? {
        if let Some(TlsExtension::SupportedVersions(chosen)) = extension.parse() {
            version = chosen.first()?.0;
        }
    }
    Some(Hello::Server { version })
}

/// Unparsed TLS extension. Only the needed extensions are parsed, so that a malformed other one
/// does not make the hello unreadable.
struct Extension<'a> {
    /// Type of the TLS extension.
    kind: u16,
    /// Content of the TLS extension, without its type and length fields.
    data: &'a [u8],
    /// TLS extension with its type and length fields.
    whole: &'a [u8],
}

/// Splits a list of TLS extensions; `None` if the last one is truncated.
fn extensions(mut rest: &[u8]) -> Option<Vec<Extension<'_>>> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (behind, extension) = parse_tls_extension_unknown(rest).ok()?;
        let TlsExtension::Unknown(kind, data) = extension else {
            return None;
        };
        all.push(Extension {
            kind: kind.0,
            data,
            whole: &rest[..rest.len() - behind.len()],
        });
        rest = behind;
    }
    Some(all)
}

impl<'a> Extension<'a> {
    /// Parses a TLS extension if its type is needed for the names or the fingerprint, and its
    /// content is valid.
    fn parse(&self) -> Option<TlsExtension<'a>> {
        let parsed = match self.kind {
            0 => parse_tls_extension_sni_content(self.data),
            13 => parse_tls_extension_signature_algorithms_content(self.data),
            16 => parse_tls_extension_alpn_content(self.data),
            43 => parse_tls_extension_supported_versions(self.whole),
            _ => return None,
        };
        parsed.ok().map(|(_, extension)| extension)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
        let len = u16::try_from(data.len()).unwrap();
        [&kind.to_be_bytes()[..], &len.to_be_bytes(), data].concat()
    }

    /// Builds a TLS handshake message with a hello of the given fields and extensions.
    fn build(kind: u8, fields: &[u8], extensions: &[Vec<u8>]) -> Vec<u8> {
        let extensions = extensions.concat();
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(0);
        body.extend(fields);
        body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend(extensions);
        let len = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[kind][..], &len[1..], &body].concat()
    }

    /// Divides a TLS handshake message into records of at most `size` bytes.
    fn in_records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(in_record).collect()
    }

    fn in_record(message: &[u8]) -> Vec<u8> {
        let len = u16::try_from(message.len()).unwrap().to_be_bytes();
        [&[0x16, 3, 1][..], &len, message].concat()
    }

    /// Fields of a TLS client hello: two cipher suites, no compression.
    const CIPHERS: [u8; 8] = [0, 4, 0x13, 1, 0x13, 2, 1, 0];

    fn client_hello() -> Vec<u8> {
        build(
            CLIENT_HELLO,
            &CIPHERS,
            &[
                extension(0x3a3a, &[]),
                extension(0, b"\0\x0e\0\0\x0bexample.org"),
                extension(16, b"\0\x0c\x02h2\x08http/1.1"),
                extension(43, &[4, 3, 4, 3, 3]),
                extension(13, &[0, 2, 4, 3]),
                // A malformed extension of a type that is not needed.
                extension(22, &[1]),
            ],
        )
    }

    #[test]
    fn a_client_hello_has_server_name_protocols_and_fingerprint() {
        let message = client_hello();
        let found = hello(&in_record(&message));
        let Some(Hello::Client { sni, alpn, ja4 }) = found else {
            panic!("{found:?}")
        };
        assert_eq!(sni.as_deref(), Some("example.org"));
        assert_eq!(alpn.as_deref(), Some("h2,http/1.1"));
        assert!(ja4.starts_with("t13d0205h2_"), "{ja4}");
        let quic = super::message(&message, Carrier::Quic);
        assert!(matches!(quic, Some(Hello::Client { ja4, .. }) if ja4.starts_with("q13d")));
        // A record with more messages, truncated after the hello, is parsed too.
        let mut more = in_record(&[&message[..], &[11, 0, 9, 0]].concat());
        more[3] += 1;
        assert!(hello(&more).is_some());
    }

    #[test]
    fn a_hello_without_extensions_has_a_fingerprint() {
        let found = message(&build(CLIENT_HELLO, &CIPHERS, &[]), Carrier::Tcp);
        let Some(Hello::Client { sni, alpn, ja4 }) = found else {
            panic!("{found:?}")
        };
        assert_eq!((sni, alpn), (None, None));
        assert!(ja4.starts_with("t12i020000_") && ja4.ends_with("_000000000000"));
    }

    #[test]
    fn a_server_hello_has_the_version() {
        let chosen = [0x13, 1, 0];
        for (extensions, version) in [
            (vec![], 0x0303),
            (vec![extension(43, &[3, 4])], 0x0304),
            (
                vec![extension(51, &[0; 36]), extension(43, &[3, 4])],
                0x0304,
            ),
        ] {
            let message = build(SERVER_HELLO, &chosen, &extensions);
            let found = hello(&in_record(&message));
            assert_eq!(found, Some(Hello::Server { version }));
        }
    }

    #[test]
    fn a_hello_in_records_of_any_length() {
        for message in [client_hello(), build(SERVER_HELLO, &[0x13, 1, 0], &[])] {
            let expected = hello(&in_record(&message));
            assert!(expected.is_some());
            for size in 1..message.len() {
                let mut records = in_records(&message, size);
                let end = records.len();
                // Another message follows the hello.
                records.extend(in_record(&[11, 0, 0]));
                assert_eq!(hello(&records), expected, "{size}");
                assert_eq!(hello_end(&records), Ok(Some(end)), "{size}");
                for len in 0..end {
                    let known = hello_end(&records[..len]);
                    assert!(
                        matches!(known, Ok(None)) || known == Ok(Some(end)),
                        "{size}, {len}"
                    );
                    assert_eq!(hello(&records[..len]), None, "{size}, {len}");
                }
            }
        }
        for other in [
            &[0x17][..],
            &[HANDSHAKE, 4],
            &[HANDSHAKE, 3, 5],
            &[HANDSHAKE, 3, 1, 0, 0],
            &[HANDSHAKE, 3, 1, 0, 9, 11],
            &[HANDSHAKE, 3, 1, 0, 9, 1, 1],
            &[HANDSHAKE, 3, 1, 0, 1, 1, 0x15],
        ] {
            assert_eq!(hello_end(other), Err(PayloadError), "{other:x?}");
        }
    }

    #[test]
    fn truncated_hellos_are_unreadable() {
        let whole = in_record(&client_hello());
        for len in 0..whole.len() {
            assert_eq!(hello(&whole[..len]), None, "{len}");
        }
        let mut broken = client_hello();
        let last = broken.len() - 2;
        broken[last] = 9;
        assert_eq!(message(&broken, Carrier::Tcp), None);
        assert_eq!(message(&[11, 0, 0, 1, 0], Carrier::Tcp), None);
    }
}
