//! Text from other sources (names of files and interfaces, comments, answers of a store) in a form
//! that cannot control a terminal or forge a line of a log.
//!
//! Invariant: everything that is written to stderr, and every text on stdout, passes [`escaped`].
//! Text that belongs on one line is wrapped in [`Text`] where the line is made.

use std::{
    borrow::Cow,
    fmt::{self, Display, Write},
};

/// Returns `true` for characters that control a terminal: controls (C0, C1, DEL), marks that change
/// the direction of text, and separators of lines and paragraphs.
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes the characters of a text that would control a terminal, as `\u{1b}`, and bytes that are
/// not UTF-8, as `\xff`. Line ends and tabs are kept.
pub fn escaped(text: &[u8]) -> Cow<'_, [u8]> {
    let stays = |c: char| !is_obeyed(c) || c == '\n' || c == '\t';
    if str::from_utf8(text).is_ok_and(|text| text.chars().all(stays)) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match stays(c) {
                true => safe.push(c),
                false => safe.extend(c.escape_default()),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a String does not fail.
            let _ = write!(safe, "\\x{byte:02x}");
        }
    }
    Cow::Owned(safe.into_bytes())
}

/// Escapes the characters of a JSON text that would control a terminal, as JSON does: `\u202e`.
/// JSON has such characters only in strings. Line ends are kept: they are between values, since
/// serde escapes those in strings.
pub fn escaped_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        match is_obeyed(c) && c != '\n' {
            true => {
                // Writing to a String does not fail.
                let _ = write!(safe, "\\u{:04x}", u32::from(c));
            }
            false => safe.push(c),
        }
    }
    safe
}

/// Wrapper that formats a text on one line: characters that would control a terminal, line ends and
/// tabs are escaped.
pub struct Text<T>(pub T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(OneLine(f), "{}", self.0)
    }
}

/// Writer that escapes characters that would control a terminal, including line ends and tabs.
struct OneLine<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match is_obeyed(c) {
                true => write!(self.0, "{}", c.escape_default())?,
                false => self.0.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        for (text, shown) in [
            (&b"eth0\tup\n"[..], "eth0\tup\n"),
            (b"\x1b[31m\r\x07\x7f", r"\u{1b}[31m\r\u{7}\u{7f}"),
            (b"\xc2\x9b31m", r"\u{9b}31m"),
            (b"\x9b\xff", r"\x9b\xff"),
            (
                "a\u{202e}b\u{2066}\u{200f}\u{61c}\u{2028}".as_bytes(),
                r"a\u{202e}b\u{2066}\u{200f}\u{61c}\u{2028}",
            ),
            ("größe 文".as_bytes(), "größe 文"),
        ] {
            assert_eq!(String::from_utf8_lossy(&escaped(text)), shown);
        }
    }

    #[test]
    fn one_line_stays_one_line() {
        assert_eq!(
            Text("a\nerror: b\t\u{85}").to_string(),
            r"a\nerror: b\t\u{85}"
        );
    }
}
