//! GTP-U headers: tunnels for user packets in mobile networks.

use crate::{malformed::Malformed, next::Next};

/// View of a GTP-U header: 3GPP TS 29.281 section 5.1; extension headers: section 5.2.
///
/// | bytes | field |
/// |---|---|
/// | 0 | version (1), protocol type (1), then: extension header, sequence number, N-PDU number present |
/// | 1 | message type; 255 carries a user packet |
/// | 2..4 | length in bytes after the first 8 bytes |
/// | 4..8 | tunnel endpoint identifier |
/// | 8..12 | sequence number, N-PDU number, type of the first extension header, if any of the three is present |
/// | 12.. | extension headers: length in words, content, type of the next |
#[derive(Clone, Copy, Debug)]
pub struct Gtp<'a> {
    header: &'a [u8; 8],
    len: usize,
}

impl<'a> Gtp<'a> {
    /// Length in bytes of a GTP-U header without optional fields.
    pub const LEN: usize = 8;

    /// Checks that all bytes of the GTP-U header are present, extension headers included.
    ///
    /// # Errors
    /// `bytes` ends within the header.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header: &[u8; 8] = bytes.first_chunk().ok_or(Malformed::GtpShort)?;
        let mut len = Self::LEN;
        if header[0] & 0xf0 == 0x30 && header[0] & 0x07 != 0 {
            len += 4;
            let mut next = *bytes.get(len - 1).ok_or(Malformed::GtpShort)?;
            // Each extension header counts as at least one word, so the loop ends with the bytes.
            while header[0] & 0x04 != 0 && next != 0 {
                let words = *bytes.get(len).ok_or(Malformed::GtpShort)?;
                len += usize::from(words.max(1)) * 4;
                next = *bytes.get(len - 1).ok_or(Malformed::GtpShort)?;
            }
        }
        Ok(Self { header, len })
    }

    /// Returns the length of the GTP-U header in bytes, extension headers included.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.len
    }

    /// Returns the message type in the GTP-U header.
    #[must_use]
    pub fn message(&self) -> u8 {
        self.header[1]
    }

    /// Returns the type of the user packet that GTP-U encapsulates; `behind` are the bytes after
    /// the header.
    #[must_use]
    pub fn next(&self, behind: &[u8]) -> Next {
        if self.header[0] & 0xf0 == 0x30 && self.message() == 255 {
            Next::ip_by_version(behind)
        } else {
            Next::Payload
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_packet() {
        let bytes = [0x30, 255, 0, 4, 0, 0, 0, 9, 0x45];
        let gtp = Gtp::new(&bytes).unwrap();
        assert_eq!(gtp.header_len(), 8);
        assert_eq!(gtp.next(&bytes[8..]), Next::Ethertype(0x0800));
        assert_eq!(Gtp::new(&bytes[..7]).unwrap_err(), Malformed::GtpShort);
    }

    #[test]
    fn extension_headers_are_followed() {
        let bytes = [
            0x34, 255, 0, 4, 0, 0, 0, 9, 0, 0, 0, 0x85, 1, 0, 0, 0x40, 2, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(Gtp::new(&bytes).unwrap().header_len(), 24);
        for len in 8..24 {
            let short = Gtp::new(&bytes[..len]).unwrap_err();
            assert_eq!(short, Malformed::GtpShort, "{len}");
        }
        // A length of 0 words must not loop forever.
        let mut endless = bytes;
        endless[12] = 0;
        assert_eq!(Gtp::new(&endless).unwrap().header_len(), 24);
    }

    #[test]
    fn signalling_messages_carry_no_packet() {
        let echo = [0x32, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Gtp::new(&echo).unwrap().next(&[0x45]), Next::Payload);
    }
}
