//! JA4 fingerprint of a client's TLS hello, specified by FoxIO:
//! <https://github.com/FoxIO-LLC/ja4/blob/main/technical_details/JA4.md>. JA4 has the licence
//! BSD-3-Clause. The other methods of the JA4+ suite have another licence and are not implemented.

use sha2::{Digest, Sha256};
use std::fmt::Write as _;

const SNI: u16 = 0;
const ALPN: u16 = 16;

/// Fields of a TLS client hello that are part of its JA4 fingerprint, in the order of the hello.
#[derive(Debug)]
pub(crate) struct Traits<'a> {
    /// Transport of the client hello: `t` for TCP, `q` for QUIC.
    pub(crate) transport: char,
    /// TLS versions offered in the client hello, or the version of the hello if it has no such
    /// extension.
    pub(crate) versions: Vec<u16>,
    /// Cipher suites offered in the client hello.
    pub(crate) ciphers: Vec<u16>,
    /// Types of the extensions in the client hello.
    pub(crate) extensions: Vec<u16>,
    /// Signature algorithms offered in the client hello.
    pub(crate) algorithms: Vec<u16>,
    /// First application protocol (ALPN) offered in the client hello.
    pub(crate) protocol: Option<&'a [u8]>,
}

impl Traits<'_> {
    /// Returns the JA4 fingerprint of the client hello.
    pub(crate) fn ja4(mut self) -> String {
        for list in [
            &mut self.versions,
            &mut self.ciphers,
            &mut self.extensions,
            &mut self.algorithms,
        ] {
            list.retain(|it| !is_grease(*it));
        }
        let server = if self.extensions.contains(&SNI) {
            'd'
        } else {
            'i'
        };
        let [first, last] = ends(self.protocol.unwrap_or_default());
        let mut text = format!(
            "{}{}{server}{:02}{:02}{first}{last}",
            self.transport,
            version(&self.versions),
            self.ciphers.len().min(99),
            self.extensions.len().min(99),
        );
        self.ciphers.sort_unstable();
        self.extensions.retain(|it| ![SNI, ALPN].contains(it));
        self.extensions.sort_unstable();
        let mut extensions = hex(&self.extensions);
        if !extensions.is_empty() && !self.algorithms.is_empty() {
            extensions += "_";
            extensions += &hex(&self.algorithms);
        }
        for list in [hex(&self.ciphers), extensions] {
            text.push('_');
            text += &digest(&list);
        }
        text
    }
}

/// Returns `true` for a TLS GREASE value, which is reserved and has no meaning: RFC 8701.
fn is_grease(value: u16) -> bool {
    value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff
}

/// Returns the JA4 code of the highest offered TLS version.
fn version(offered: &[u16]) -> &'static str {
    match offered.iter().max() {
        Some(0x0304) => "13",
        Some(0x0303) => "12",
        Some(0x0302) => "11",
        Some(0x0301) => "10",
        Some(0x0300) => "s3",
        Some(0x0002) => "s2",
        _ => "00",
    }
}

/// Returns the first and last character of an ALPN protocol name, or of its hex digits if the first
/// or last byte is neither a letter nor a digit.
fn ends(protocol: &[u8]) -> [char; 2] {
    let (Some(&first), Some(&last)) = (protocol.first(), protocol.last()) else {
        return ['0'; 2];
    };
    if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() {
        return [first.into(), last.into()];
    }
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
    [digit(first >> 4), digit(last & 0xf)]
}

/// Returns TLS code points as 4-digit hex numbers, separated by commas.
fn hex(values: &[u16]) -> String {
    let values: Vec<_> = values.iter().map(|it| format!("{it:04x}")).collect();
    values.join(",")
}

/// Returns the first 12 hex digits of the SHA-256 of a JA4 list, or zeros for an empty list.
fn digest(list: &str) -> String {
    if list.is_empty() {
        return "0".repeat(12);
    }
    let mut text = String::with_capacity(12);
    for byte in &Sha256::digest(list.as_bytes())[..6] {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the hello fields of the example in the JA4 specification, with added GREASE values.
    fn example() -> Traits<'static> {
        Traits {
            transport: 't',
            versions: vec![0x7a7a, 0x0304, 0x0303],
            ciphers: vec![
                0x0a0a, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8,
                0xc013, 0xc014, 0x009c, 0x009d, 0x002f, 0x0035,
            ],
            extensions: vec![
                0xfafa, 0x001b, 0x0000, 0x0033, 0x0010, 0x4469, 0x0017, 0x002d, 0x000d, 0x0005,
                0x0023, 0x0012, 0x002b, 0xff01, 0x000b, 0x000a, 0x0015,
            ],
            algorithms: vec![
                0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601,
            ],
            protocol: Some(b"h2"),
        }
    }

    #[test]
    fn examples_of_the_specification() {
        assert_eq!(example().ja4(), "t13d1516h2_8daaf6152771_e5627efa2ab1");
        let unsigned = Traits {
            algorithms: Vec::new(),
            ..example()
        };
        assert_eq!(unsigned.ja4(), "t13d1516h2_8daaf6152771_6d807ffa2a79");
    }

    #[test]
    fn lists_that_are_empty_or_long() {
        let empty = Traits {
            transport: 'q',
            versions: vec![0x7f17],
            ciphers: vec![0x2a2a],
            extensions: vec![ALPN],
            protocol: None,
            ..example()
        };
        assert_eq!(empty.ja4(), "q00i000100_000000000000_000000000000");
        let long = Traits {
            ciphers: (0x1000..0x1100).collect(),
            ..example()
        };
        assert!(long.ja4().starts_with("t13d9916h2_"));
    }

    #[test]
    fn ends_of_protocols() {
        for (protocol, expected) in [
            (&b"h2"[..], "h2"),
            (b"http/1.1", "h1"),
            (b"h", "hh"),
            (b"", "00"),
            (&[0xab], "ab"),
            (&[0x20], "20"),
            (&[0xab, 0xcd], "ad"),
            (&[0x20, 0x61], "21"),
            (&[0x30, 0xab], "3b"),
            (&[0x61, 0x20], "60"),
            (&[0x30, 0x31, 0xab, 0xcd], "3d"),
            (&[0x30, 0xab, 0xcd, 0x31], "01"),
        ] {
            assert_eq!(String::from_iter(ends(protocol)), expected);
        }
    }

    #[test]
    fn grease_values_have_two_equal_bytes() {
        assert!(is_grease(0x0a0a) && is_grease(0xfafa));
        assert!(!is_grease(0x0a1a) && !is_grease(0x1301));
    }
}
