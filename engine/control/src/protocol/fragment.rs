//! Splitting of messages into fragments of one packet each, and their reassembly.
//!
//! A fragment begins with 8 bytes, little endian. Byte 0: [`FORMAT`]. Byte 1: 1 for the last
//! fragment of a message, otherwise 0. Bytes 2..4: the fragment's number, from 0. Bytes 4..8: the
//! message's number, so that fragments of two messages are never joined.

/// First byte of every fragment of a control message.
pub const FORMAT: u8 = 0x57;
/// Length in bytes of the header of a message fragment.
pub const HEADER: usize = 8;

/// Returns the maximum length in bytes of a message fragment on a path with this `ibv_mtu`: one
/// packet, at most the largest path MTU of InfiniBand and RoCE.
#[must_use]
pub fn longest(mtu: u32) -> u32 {
    128 << mtu.clamp(1, 5)
}

/// Splits the message `text` into fragments of at most `size` bytes, header included, and passes
/// each to `send`.
///
/// # Panics
/// Panics if `size` leaves no room after the header.
pub fn split(message: u32, text: &[u8], size: usize, mut send: impl FnMut(Vec<u8>)) {
    let room = size
        .checked_sub(HEADER)
        .filter(|room| *room > 0)
        .expect("room after the header");
    let count = text.len().div_ceil(room).max(1);
    for number in 0..count {
        let piece = &text[number * room..text.len().min((number + 1) * room)];
        let mut bytes = Vec::with_capacity(HEADER + piece.len());
        bytes.push(FORMAT);
        bytes.push(u8::from(number + 1 == count));
        // The length limit keeps a message far below 2^16 fragments; reassembly rejects a longer
        // one.
        bytes.extend(u16::try_from(number).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(message.to_le_bytes());
        bytes.extend(piece);
        send(bytes);
    }
}

/// Error of the reassembly of a control message from its fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FragmentError {
    /// The received bytes are not a message fragment.
    #[error("the received bytes are not a fragment of a control message")]
    Format,
    /// A fragment of a message is missing or repeated.
    #[error("a fragment of the control message is missing or repeated")]
    Order,
    /// The reassembled message is longer than the receiver accepts.
    #[error("the control message is longer than the {0} bytes that the receiver accepts")]
    TooLarge(usize),
}

/// Reassembler of the control messages of one peer from their fragments. It never holds more bytes
/// than its limit.
#[derive(Debug)]
pub struct Reassembler {
    limit: usize,
    text: Vec<u8>,
    fragments: u16,
    message: u32,
}

impl Reassembler {
    /// Creates a reassembler of control messages of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            text: Vec::new(),
            fragments: 0,
            message: 0,
        }
    }

    /// Returns `true` if some fragments of a message have arrived and its last one has not.
    #[must_use]
    pub fn is_midway(&self) -> bool {
        self.fragments > 0
    }

    /// Takes a message fragment. Returns the message after its last fragment, before that `None`.
    ///
    /// # Errors
    /// The fragment does not follow the previous ones, or the message is too long. The fragments
    /// collected so far are discarded.
    pub fn push(&mut self, fragment: &[u8]) -> Result<Option<Vec<u8>>, FragmentError> {
        let outcome = self.append(fragment);
        if outcome.is_err() {
            self.clear();
        }
        outcome
    }

    fn append(&mut self, fragment: &[u8]) -> Result<Option<Vec<u8>>, FragmentError> {
        let [FORMAT, last @ (0 | 1), n0, n1, m0, m1, m2, m3, text @ ..] = fragment else {
            return Err(FragmentError::Format);
        };
        let (number, message) = (
            u16::from_le_bytes([*n0, *n1]),
            u32::from_le_bytes([*m0, *m1, *m2, *m3]),
        );
        if number != self.fragments || (number > 0 && message != self.message) || number == u16::MAX
        {
            return Err(FragmentError::Order);
        }
        if self.text.len() + text.len() > self.limit {
            return Err(FragmentError::TooLarge(self.limit));
        }
        self.text.extend_from_slice(text);
        self.message = message;
        if *last == 0 {
            self.fragments += 1;
            return Ok(None);
        }
        let whole = std::mem::take(&mut self.text);
        self.clear();
        Ok(Some(whole))
    }

    fn clear(&mut self) {
        self.text = Vec::new();
        self.fragments = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragments(message: u32, text: &[u8], size: usize) -> Vec<Vec<u8>> {
        let mut fragments = Vec::new();
        split(message, text, size, |fragment| fragments.push(fragment));
        fragments
    }

    #[test]
    fn a_message_of_any_length_is_reassembled() {
        for length in [0, 1, 91, 92, 93, 184, 1000] {
            let text: Vec<u8> = (0..=u8::MAX).cycle().take(length).collect();
            let fragments = fragments(9, &text, 100);
            assert_eq!(fragments.len(), length.div_ceil(92).max(1));
            assert!(fragments.iter().all(|it| it.len() <= 100));
            let mut reassembler = Reassembler::new(1000);
            let (last, first) = fragments.split_last().unwrap();
            for fragment in first {
                assert_eq!(reassembler.push(fragment), Ok(None));
                assert!(reassembler.is_midway());
            }
            assert_eq!(reassembler.push(last), Ok(Some(text)));
            assert!(!reassembler.is_midway());
        }
    }

    #[test]
    fn a_fragment_out_of_order_is_refused_and_the_message_dropped() {
        let (one, other) = (fragments(1, &[1; 300], 100), fragments(2, &[2; 300], 100));
        let mut reassembler = Reassembler::new(1000);
        for wrong in [&one[2], &one[0], &other[1]] {
            assert_eq!(reassembler.push(&one[0]), Ok(None));
            assert_eq!(reassembler.push(wrong), Err(FragmentError::Order));
            assert!(!reassembler.is_midway());
        }
        for garbage in [
            &b""[..],
            b"{}",
            &[FORMAT, 2, 0, 0, 0, 0, 0, 0],
            &one[0][..7],
        ] {
            assert_eq!(reassembler.push(garbage), Err(FragmentError::Format));
        }
    }

    #[test]
    fn a_message_beyond_the_limit_is_refused() {
        let mut reassembler = Reassembler::new(150);
        let fragments = fragments(1, &[1; 300], 100);
        assert_eq!(reassembler.push(&fragments[0]), Ok(None));
        assert_eq!(
            reassembler.push(&fragments[1]),
            Err(FragmentError::TooLarge(150))
        );
    }
}
