//! Splitting a message into parts that fit a receive buffer, and joining them again.
//!
//! A part begins with 8 bytes, little endian: 0: [`FORMAT`]; 1: 1 if it is the message's last, else 0; 2..4: the
//! part's number, from 0; 4..8: the message's number, so that parts of two messages are never joined where the
//! transport may lose one.

/// The first byte of every part.
pub const FORMAT: u8 = 0x57;
/// Bytes before a part's text.
pub const HEADER: usize = 8;

/// Cuts `text` into parts of at most `size` bytes, header included, and gives each to `send`.
///
/// # Panics
/// When `size` leaves no room behind the header.
pub fn split(message: u32, text: &[u8], size: usize, mut send: impl FnMut(Vec<u8>)) {
    let room = size
        .checked_sub(HEADER)
        .filter(|room| *room > 0)
        .expect("room behind the header");
    let count = text.len().div_ceil(room).max(1);
    for part in 0..count {
        let piece = &text[part * room..text.len().min((part + 1) * room)];
        let mut bytes = Vec::with_capacity(HEADER + piece.len());
        bytes.push(FORMAT);
        bytes.push(u8::from(part + 1 == count));
        // A message has no more parts than its limit allows, far below 2^16; a longer one fails to join.
        bytes.extend(u16::try_from(part).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(message.to_le_bytes());
        bytes.extend(piece);
        send(bytes);
    }
}

/// Why parts do not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// No part at all.
    #[error("not a part of a message")]
    Format,
    /// One is missing, or came twice.
    #[error("a part of a message is missing or repeated")]
    Order,
    /// Longer than the receiver takes.
    #[error("a message of more than {0} bytes")]
    TooLarge(usize),
}

/// Joins the parts of one peer's messages. Holds no more than the limit, whatever comes.
#[derive(Debug)]
pub struct Joiner {
    limit: usize,
    text: Vec<u8>,
    parts: u16,
    message: u32,
}

impl Joiner {
    /// Of messages of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            text: Vec::new(),
            parts: 0,
            message: 0,
        }
    }

    /// Whether a message has begun and not ended.
    #[must_use]
    pub fn is_midway(&self) -> bool {
        self.parts > 0
    }

    /// Takes a part; gives the message when it was the last.
    ///
    /// # Errors
    /// The part does not follow the ones before it. What was joined so far is dropped.
    pub fn take(&mut self, part: &[u8]) -> Result<Option<Vec<u8>>, JoinError> {
        let outcome = self.append(part);
        if outcome.is_err() {
            self.clear();
        }
        outcome
    }

    fn append(&mut self, part: &[u8]) -> Result<Option<Vec<u8>>, JoinError> {
        let [FORMAT, last @ (0 | 1), n0, n1, m0, m1, m2, m3, text @ ..] = part else {
            return Err(JoinError::Format);
        };
        let (number, message) = (
            u16::from_le_bytes([*n0, *n1]),
            u32::from_le_bytes([*m0, *m1, *m2, *m3]),
        );
        if number != self.parts || (number > 0 && message != self.message) || number == u16::MAX {
            return Err(JoinError::Order);
        }
        if self.text.len() + text.len() > self.limit {
            return Err(JoinError::TooLarge(self.limit));
        }
        self.text.extend_from_slice(text);
        self.message = message;
        if *last == 0 {
            self.parts += 1;
            return Ok(None);
        }
        let whole = std::mem::take(&mut self.text);
        self.clear();
        Ok(Some(whole))
    }

    fn clear(&mut self) {
        self.text = Vec::new();
        self.parts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(message: u32, text: &[u8], size: usize) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        split(message, text, size, |part| parts.push(part));
        parts
    }

    #[test]
    fn any_length_comes_back_whole() {
        for length in [0, 1, 91, 92, 93, 184, 1000] {
            let text: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
            let parts = parts(9, &text, 100);
            assert_eq!(parts.len(), length.div_ceil(92).max(1));
            assert!(parts.iter().all(|part| part.len() <= 100));
            let mut joiner = Joiner::new(1000);
            let (last, first) = parts.split_last().unwrap();
            for part in first {
                assert_eq!(joiner.take(part), Ok(None));
                assert!(joiner.is_midway());
            }
            assert_eq!(joiner.take(last), Ok(Some(text)));
            assert!(!joiner.is_midway());
        }
    }

    #[test]
    fn what_does_not_follow_is_refused_and_forgotten() {
        let (one, other) = (parts(1, &[1; 300], 100), parts(2, &[2; 300], 100));
        let mut joiner = Joiner::new(1000);
        for wrong in [&one[2], &one[0], &other[1]] {
            assert_eq!(joiner.take(&one[0]), Ok(None));
            assert_eq!(joiner.take(wrong), Err(JoinError::Order));
            assert!(!joiner.is_midway());
        }
        for garbage in [
            &b""[..],
            b"{}",
            &[FORMAT, 2, 0, 0, 0, 0, 0, 0],
            &one[0][..7],
        ] {
            assert_eq!(joiner.take(garbage), Err(JoinError::Format));
        }
    }

    #[test]
    fn nothing_grows_beyond_the_limit() {
        let mut joiner = Joiner::new(150);
        let parts = parts(1, &[1; 300], 100);
        assert_eq!(joiner.take(&parts[0]), Ok(None));
        assert_eq!(joiner.take(&parts[1]), Err(JoinError::TooLarge(150)));
    }
}
