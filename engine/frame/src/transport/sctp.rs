//! SCTP's common header.

use crate::{field::be16, malformed::Malformed};

/// The common header: RFC 9260 section 3.1.
///
/// | bytes | field |
/// |---|---|
/// | 0..2 | source port |
/// | 2..4 | destination port |
/// | 4..8 | verification tag |
/// | 8..12 | checksum |
#[derive(Clone, Copy, Debug)]
pub struct Sctp<'a>(&'a [u8; 12]);

impl<'a> Sctp<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 12;

    /// Checks that the header is whole.
    ///
    /// # Errors
    /// It is not.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        bytes.first_chunk().map(Self).ok_or(Malformed::SctpShort)
    }

    /// Source port.
    #[must_use]
    pub fn src_port(&self) -> u16 {
        be16(self.0[0], self.0[1])
    }

    /// Destination port.
    #[must_use]
    pub fn dst_port(&self) -> u16 {
        be16(self.0[2], self.0[3])
    }

    /// Verification tag.
    #[must_use]
    pub fn tag(&self) -> u32 {
        u32::from_be_bytes([self.0[4], self.0[5], self.0[6], self.0[7]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let bytes = [0x0b, 0x59, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0];
        let sctp = Sctp::new(&bytes).unwrap();
        assert_eq!((sctp.src_port(), sctp.dst_port(), sctp.tag()), (2905, 1, 9));
        assert_eq!(Sctp::new(&bytes[..11]).unwrap_err(), Malformed::SctpShort);
    }
}
