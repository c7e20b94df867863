//! Decryption secrets: what readers need to decrypt a capture's traffic, as blocks of the capture itself.
//!
//! Source: draft-ietf-opsawg-pcapng, "Decryption Secrets Block"; the log of TLS secrets is RFC 9850's.

use super::{
    ByteOrder,
    pcapng::{
        DECRYPTION_SECRETS, Options, block,
        code::{OPT_COMMENT, OPT_ENDOFOPT},
        option,
    },
};

/// `TLS Key Log`, in the draft's list of secrets types.
const TLS_KEY_LOG: u32 = 0x544c_534b;
/// Bytes of a log in one block, about: far below what readers take.
const PIECE: usize = 4 << 20;

/// The secrets of one block.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Secrets {
    /// What they are.
    kind: u32,
    bytes: Vec<u8>,
    /// Comments, encoded in this machine's byte order.
    options: Vec<u8>,
}

/// A log of secrets that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyLogError {
    /// A line is none of a log's.
    #[error(
        "line {0} is no line of a TLS key log, which is LABEL CLIENT_RANDOM SECRET as SSLKEYLOGFILE has them"
    )]
    Line(usize),
    /// There is no secret in it.
    #[error("holds no TLS secrets")]
    Empty,
}

impl Secrets {
    /// From a block's body; `None`: it does not hold what it says.
    pub(crate) fn decode(body: &[u8], order: ByteOrder) -> Option<Self> {
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

    /// Appends their block.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let len = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        block(out, DECRYPTION_SECRETS, |out| {
            out.extend([self.kind, len].map(u32::to_ne_bytes).as_flattened());
            out.extend_from_slice(&self.bytes);
            out.resize(out.len().next_multiple_of(4), 0);
            out.extend_from_slice(&self.options);
        });
    }

    /// Bytes that they take.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.options.len()
    }

    /// From a log of TLS secrets, in pieces of whole lines.
    ///
    /// # Errors
    /// It is none, or is empty.
    pub fn of_tls_key_log(log: &[u8]) -> Result<Vec<Self>, KeyLogError> {
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        let mut found = false;
        for (at, line) in (1..).zip(log.split_inclusive(|it| *it == b'\n')) {
            match secret(line) {
                Some(true) => found = true,
                Some(false) => {}
                None => return Err(KeyLogError::Line(at)),
            }
            match pieces.last_mut() {
                Some(piece) if piece.len() < PIECE => piece.extend_from_slice(line),
                _ => pieces.push(line.to_vec()),
            }
        }
        if !found {
            return Err(KeyLogError::Empty);
        }
        let of = |bytes| Self {
            kind: TLS_KEY_LOG,
            bytes,
            options: Vec::new(),
        };
        Ok(pieces.into_iter().map(of).collect())
    }
}

/// Whether a line of a TLS key log is a secret, or one of those that mean nothing; `None`: it is of something else.
fn secret(line: &[u8]) -> Option<bool> {
    let line = str::from_utf8(line).ok()?.trim();
    if line.is_empty() || line.starts_with('#') {
        return Some(false);
    }
    let mut words = line.split_ascii_whitespace();
    let label = words.next()?;
    let is_label = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let is_hex = |word: &str| word.chars().all(|c| c.is_ascii_hexdigit());
    // `RSA` and 16 digits, or a label and the client's random of 64.
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
    fn a_log_is_kept_byte_for_byte_in_pieces_of_whole_lines() {
        let log: String = (0..40_000).map(line).collect();
        let log = format!("# a comment\r\n\n{log}RSA 0123456789abcdef 00ff");
        let pieces = Secrets::of_tls_key_log(log.as_bytes()).unwrap();
        assert_eq!(pieces.len(), 2);
        let all: Vec<u8> = pieces.iter().flat_map(|it| it.bytes.clone()).collect();
        assert!(all == log.as_bytes());
        assert!(pieces[0].bytes.ends_with(b"\n"));
    }

    #[test]
    fn what_is_no_log_is_refused_with_its_line() {
        let bad = format!("{}-----BEGIN PRIVATE KEY-----\n", line(1));
        for (log, error) in [
            (&b""[..], KeyLogError::Empty),
            (b"# nothing\n", KeyLogError::Empty),
            (bad.as_bytes(), KeyLogError::Line(2)),
            (b"CLIENT_RANDOM 00 zz\n", KeyLogError::Line(1)),
            (b"\xff\xfe\n", KeyLogError::Line(1)),
            (b"CLIENT_RANDOM 00 00 00\n", KeyLogError::Line(1)),
        ] {
            assert_eq!(Secrets::of_tls_key_log(log), Err(error));
        }
    }

    #[test]
    fn a_block_holds_what_it_says_or_is_none() {
        let secrets = Secrets::of_tls_key_log(line(3).as_bytes())
            .unwrap()
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
