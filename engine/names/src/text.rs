//! Conversion of bytes from the wire to text.

/// Maximum length in bytes of a name parsed from a payload; a host name has at most 253.
const MOST_TEXT: usize = 255;

/// Returns bytes of a payload as text. Invalid UTF-8 is replaced, and text longer than 255 bytes is
/// truncated.
pub(crate) fn text(bytes: &[u8]) -> String {
    let bytes = bytes.get(..MOST_TEXT).unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}
