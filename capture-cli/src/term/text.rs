//! Text from other sources (names of files and interfaces, comments, answers of a store) in a form
//! that cannot control a terminal or forge a line of a log.
//!
//! Invariant: everything that is written to stderr, and every text on stdout, passes [`escaped`].
//! Text that belongs on one line is wrapped in [`Text`] where the line is made.

use std::{
    borrow::Cow,
    fmt::{self, Display, Write},
    ops::RangeInclusive,
};

/// Characters that control a terminal or that a reader does not see: separators of lines and
/// paragraphs, marks that change the direction of text, and invisible characters, which have the
/// Unicode property `Default_Ignorable_Code_Point` (DerivedCoreProperties.txt). The joiners U+200C
/// and U+200D and the variation selectors U+FE00 to U+FE0F are not among them: emoji and some
/// scripts use them.
const OBEYED: [RangeInclusive<char>; 17] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{61c}'..='\u{61c}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200b}',
    '\u{200e}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

/// Returns `true` for controls (C0, C1, DEL) and for the characters of [`OBEYED`].
fn is_obeyed(c: char) -> bool {
    c.is_control() || (!c.is_ascii() && OBEYED.iter().any(|range| range.contains(&c)))
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
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String does not fail.
                    let _ = write!(safe, "\\u{unit:04x}");
                }
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
            (
                "ad\u{ad}min\u{e0041}\u{feff}".as_bytes(),
                r"ad\u{ad}min\u{e0041}\u{feff}",
            ),
            (
                "a\u{180e}\u{1d173}\u{fff9}\u{e0100}".as_bytes(),
                r"a\u{180e}\u{1d173}\u{fff9}\u{e0100}",
            ),
            (
                "größe 文 👩\u{200d}🚀 ❤\u{fe0f}".as_bytes(),
                "größe 文 👩\u{200d}🚀 ❤\u{fe0f}",
            ),
        ] {
            assert_eq!(String::from_utf8_lossy(&escaped(text)), shown);
        }
    }

    #[test]
    fn json_stays_json() {
        let value = "a\u{e0041}\u{202e}\u{9b}b";
        let json = escaped_json(&serde_json::to_string(value).expect("JSON"));
        assert_eq!(json, r#""a\udb40\udc41\u202e\u009bb""#);
        assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), value);
    }

    #[test]
    fn one_line_stays_one_line() {
        assert_eq!(
            Text("a\nerror: b\t\u{85}").to_string(),
            r"a\nerror: b\t\u{85}"
        );
    }
}
