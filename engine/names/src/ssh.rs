//! SSH identification lines: RFC 4253 section 4.2.

use crate::text::text;

/// Returns the SSH identification line at the start of a payload without its line end; `None` if
/// the line is incomplete.
pub(crate) fn banner(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|it| *it == b'\n')?;
    let line = &bytes[..end];
    Some(text(line.strip_suffix(b"\r").unwrap_or(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_banner_is_a_complete_line() {
        let both = ["SSH-2.0-x_1 y\r\nrest", "SSH-2.0-x_1 y\n"];
        for bytes in both {
            assert_eq!(banner(bytes.as_bytes()).as_deref(), Some("SSH-2.0-x_1 y"));
        }
        assert_eq!(banner(b"SSH-2.0-cut off"), None);
    }
}
