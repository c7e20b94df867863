//! Formatting of times and numbers in messages.

use jiff::Timestamp;
use std::{borrow::Cow, fmt::Display};

/// Formats nanoseconds since 1970 as ISO 8601 in UTC, with `digits` digits of the second's
/// fraction.
pub fn iso_8601(ns: u64, digits: usize) -> String {
    let time = Timestamp::from_nanosecond(ns.into()).unwrap_or_default();
    format!("{time:.digits$}")
}

/// Formats a number with its noun in the singular or plural: `1 queue`, `2 queues`.
pub fn counted<N: Display + PartialEq + From<u8>>(n: N, one: &str) -> String {
    let plural = if n == N::from(1) { "" } else { "s" };
    format!("{n} {one}{plural}")
}

/// Shortens a text to at most `most` bytes for a message. A longer text is cut there and followed
/// by the number of bytes that were left out.
#[must_use]
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let kept = &text[..text.floor_char_boundary(most)];
    let left_out = counted((text.len() - kept.len()) as u64, "more byte");
    Cow::Owned(format!("{kept}... ({left_out})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_ends_with_the_number_of_bytes_left_out() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcd", 3), "abc... (1 more byte)");
        // A character is kept or left out as a whole.
        assert_eq!(shortened("abéd", 3), "ab... (3 more bytes)");
    }

    #[test]
    fn times_are_in_utc() {
        let ns = 1_772_366_400_000_000_001;
        assert_eq!(iso_8601(ns, 9), "2026-03-01T12:00:00.000000001Z");
        assert_eq!(iso_8601(ns, 3), "2026-03-01T12:00:00.000Z");
    }

    #[test]
    fn one_is_singular() {
        let queues = [0usize, 1, 2].map(|n| counted(n, "queue"));
        assert_eq!(queues, ["0 queues", "1 queue", "2 queues"]);
    }
}
