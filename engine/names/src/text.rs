//! Conversion of bytes of a payload to text.

use domain::base::name::UncertainName;

/// Maximum length in bytes of a name parsed from a payload; a host name has at most 253.
const MOST_TEXT: usize = 255;

/// Returns bytes of a payload as text. Invalid UTF-8 is replaced, and text longer than 255 bytes is
/// truncated.
pub(crate) fn text(bytes: &[u8]) -> String {
    let bytes = bytes.get(..MOST_TEXT).unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

/// Decodes a client's fully qualified or partial domain name: RFC 4704 section 4.2, for IPv4 RFC 4702
/// section 2.3.1. Returns `None` for an invalid name, such as that of Windows Vista.
pub(crate) fn host(bytes: &[u8]) -> Option<String> {
    let name = match UncertainName::from_octets(bytes).ok()? {
        UncertainName::Absolute(name) if name.is_root() => return None,
        UncertainName::Absolute(name) => name.to_string(),
        UncertainName::Relative(name) => name.to_string(),
    };
    Some(text(name.as_bytes()))
}
