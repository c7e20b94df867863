//! Bytes of the wire as text.

/// Bytes of a text, at most: a host's name has 253.
const MOST_TEXT: usize = 255;

/// What is no UTF-8 is replaced, and what is longer than any name is cut.
pub(crate) fn text(bytes: &[u8]) -> String {
    let bytes = bytes.get(..MOST_TEXT).unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}
