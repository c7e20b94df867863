//! Decryption secrets blocks: keys with which readers decrypt the traffic of a capture, stored in
//! the capture itself.
//!
//! Source: draft-ietf-opsawg-pcapng, "Decryption Secrets Block"; TLS key log: RFC 9850.

use super::{
    ByteOrder,
    pcapng::{
        DECRYPTION_SECRETS, Options, block,
        code::{OPT_COMMENT, OPT_ENDOFOPT},
        option,
    },
};

/// Secrets type `TLS Key Log` of a pcapng decryption secrets block.
const TLS_KEY_LOG: u32 = 0x544c_534b;
/// Approximate maximum length in bytes of the part of a TLS key log in one pcapng block, far below
/// the limit of readers.
const PIECE: usize = 4 << 20;

/// Content of a pcapng decryption secrets block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Secrets {
    /// Type of the secrets in the decryption secrets block, such as TLS key log.
    kind: u32,
    /// Decryption secrets in the format of their type.
    bytes: Vec<u8>,
    /// Comment options of the decryption secrets block, encoded in this machine's byte order.
    options: Vec<u8>,
}

/// Secrets of a TLS key log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyLog {
    /// Decryption secrets that consist of complete lines; at least one line is a secret.
    pub secrets: Vec<Secrets>,
    /// Lines that do not have the format of a TLS key log, and are therefore in none of the
    /// secrets, such as the last line of a log while a browser writes it.
    pub left_out: Option<LinesLeftOut>,
}

/// Lines of a text file that are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinesLeftOut {
    /// Number of the first of these lines in the file; the first line of the file is number 1.
    pub first: usize,
    /// Number of lines that are left out, at least 1.
    pub count: usize,
}

/// Reason why a TLS key log cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyLogError {
    /// The file contains no secret, and the line with this number does not have the format of a TLS
    /// key log.
    #[error(
        "line {0} is not a line of a TLS key log; write LABEL CLIENT_RANDOM SECRET, the format of SSLKEYLOGFILE"
    )]
    Line(usize),
    /// The TLS key log contains no secret.
    #[error("the file contains no TLS secrets")]
    Empty,
}

impl Secrets {
    /// Decodes the body of a decryption secrets block; `None` if it is shorter than its length
    /// field.
    pub fn decode(body: &[u8], order: ByteOrder) -> Option<Self> {
        const HEADER: usize = 8;
        if body.len() < HEADER {
            return None;
        }
        let len = order.u32(body, 4) as usize;
        let end = HEADER.checked_add(len)?;
        let mut options = Vec::new();
        let behind = body.get(end.next_multiple_of(4)..).unwrap_or_default();
        for (_, comment) in Options::new(behind, order).filter(|it| it.0 == OPT_COMMENT) {
            option(&mut options, OPT_COMMENT, comment);
        }
        if !options.is_empty() {
            option(&mut options, OPT_ENDOFOPT, &[]);
        }
        Some(Self {
            kind: order.u32(body, 0),
            bytes: body.get(HEADER..end)?.to_vec(),
            options,
        })
    }

    /// Appends the decryption secrets as a pcapng block.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        block(out, DECRYPTION_SECRETS, |out| {
            out.extend([self.kind, len].map(u32::to_ne_bytes).as_flattened());
            out.extend_from_slice(&self.bytes);
            out.resize(out.len().next_multiple_of(4), 0);
            out.extend_from_slice(&self.options);
        });
    }

    /// Returns the total length of the decryption secrets and their options in bytes.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.options.len()
    }

    /// Converts a TLS key log to decryption secrets blocks that consist of complete lines. Lines
    /// with another format are left out.
    ///
    /// # Errors
    /// The log contains no secret.
    pub fn from_tls_key_log(log: &[u8]) -> Result<KeyLog, KeyLogError> {
        // Editors of Windows begin a text with a byte order mark.
        let log = log.strip_prefix("\u{feff}".as_bytes()).unwrap_or(log);
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        let mut found = false;
        let mut left_out: Option<LinesLeftOut> = None;
        for (at, line) in (1..).zip(log.split_inclusive(|it| *it == b'\n')) {
            match secret(line) {
                Some(true) => found = true,
                Some(false) => {}
                None => {
                    let first = left_out.map_or(at, |it| it.first);
                    let count = left_out.map_or(1, |it| it.count + 1);
                    left_out = Some(LinesLeftOut { first, count });
                    continue;
                }
            }
            match pieces.last_mut() {
                Some(piece) if piece.len() < PIECE => piece.extend_from_slice(line),
                _ => pieces.push(line.to_vec()),
            }
        }
        if !found {
            return Err(left_out.map_or(KeyLogError::Empty, |it| KeyLogError::Line(it.first)));
        }
        let piece = |bytes| Self {
            kind: TLS_KEY_LOG,
            bytes,
            options: Vec::new(),
        };
        Ok(KeyLog {
            secrets: pieces.into_iter().map(piece).collect(),
            left_out,
        })
    }
}

/// Returns `true` if a line of a TLS key log is a secret, and `false` if it is empty or a comment;
/// `None` for any other line.
fn secret(line: &[u8]) -> Option<bool> {
    let line = str::from_utf8(line).ok()?.trim();
    if line.is_empty() || line.starts_with('#') {
        return Some(false);
    }
    let mut words = line.split_ascii_whitespace();
    let label = words.next()?;
    let is_label = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let is_hex = |word: &str| word.chars().all(|c| c.is_ascii_hexdigit());
    // `RSA` and 16 hex digits, or a label and the client random of 64 hex digits.
    let sound = label.chars().all(is_label)
        && words.next().is_some_and(is_hex)
        && words.next().is_some_and(is_hex)
        && words.next().is_none();
    sound.then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: usize) -> String {
        format!("CLIENT_TRAFFIC_SECRET_0 {number:064x} {:096x}\n", 7)
    }

    #[test]
    fn a_log_is_split_into_pieces_of_complete_lines() {
        let log: String = (0..40_000).map(line).collect();
        let log = format!("# a comment\r\n\n{log}RSA 0123456789abcdef 00ff");
        let marked = format!("\u{feff}{log}");
        let found = Secrets::from_tls_key_log(marked.as_bytes()).unwrap();
        assert_eq!(found.left_out, None);
        let pieces = found.secrets;
        assert_eq!(pieces.len(), 2);
        let all: Vec<u8> = pieces.iter().flat_map(|it| it.bytes.clone()).collect();
        assert!(all == log.as_bytes());
        assert!(pieces[0].bytes.ends_with(b"\n"));
    }

    #[test]
    fn a_log_without_secrets_is_rejected_with_the_line_number() {
        for (log, error) in [
            (&b""[..], KeyLogError::Empty),
            (b"# nothing\n", KeyLogError::Empty),
            (
                b"# a comment\n-----BEGIN PRIVATE KEY-----\n",
                KeyLogError::Line(2),
            ),
            (b"CLIENT_RANDOM 00 zz\n", KeyLogError::Line(1)),
            (b"\xff\xfe\n", KeyLogError::Line(1)),
            (b"CLIENT_RANDOM 00 00 00\n", KeyLogError::Line(1)),
        ] {
            assert_eq!(Secrets::from_tls_key_log(log), Err(error));
        }
    }

    #[test]
    fn lines_of_another_format_are_left_out() {
        let torn = &line(2)[..40];
        let log = format!("{}-----BEGIN PRIVATE KEY-----\n{}{torn}", line(1), line(3));
        let found = Secrets::from_tls_key_log(log.as_bytes()).unwrap();
        assert_eq!(found.left_out, Some(LinesLeftOut { first: 2, count: 2 }));
        let [secrets] = &found.secrets[..] else {
            panic!("one block: {:?}", found.secrets);
        };
        assert!(secrets.bytes == format!("{}{}", line(1), line(3)).as_bytes());
    }

    #[test]
    fn truncated_blocks_are_not_decoded() {
        let secrets = Secrets::from_tls_key_log(line(3).as_bytes())
            .unwrap()
            .secrets
            .remove(0);
        let mut block = Vec::new();
        secrets.encode(&mut block);
        assert!(block.len().is_multiple_of(4));
        let body = &block[8..block.len() - 4];
        let again = Secrets::decode(body, ByteOrder::NATIVE);
        assert_eq!(again.as_ref(), Some(&secrets));
        for len in 0..8 + secrets.bytes.len() {
            assert_eq!(Secrets::decode(&body[..len], ByteOrder::NATIVE), None);
        }
    }
}
