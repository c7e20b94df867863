//! View of Geneve headers.

use crate::{field::be16, malformed::Malformed, next::Next, numbers::ethertype};

/// View of a Geneve header: RFC 8926 section 3.4.
///
/// | bytes | field |
/// |---|---|
/// | 0 | version (2 bits), length of the options in words (6 bits) |
/// | 1 | control packet, critical options |
/// | 2..4 | ethertype |
/// | 4..7 | network identifier |
/// | 7 | reserved |
/// | 8.. | options |
#[derive(Clone, Copy, Debug)]
pub struct Geneve<'a>(&'a [u8; 8]);

impl<'a> Geneve<'a> {
    /// Length in bytes of a Geneve header without options.
    pub const LEN: usize = 8;

    /// Checks that all bytes of the Geneve header are present, options included.
    ///
    /// # Errors
    /// `bytes` ends within the header.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let geneve = bytes.first_chunk().map(Self);
        geneve
            .filter(|it| it.header_len() <= bytes.len())
            .ok_or(Malformed::GeneveShort)
    }

    /// Returns the length of the Geneve header in bytes, options included.
    #[must_use]
    pub fn header_len(&self) -> usize {
        Self::LEN + usize::from(self.0[0] & 0x3f) * 4
    }

    /// Returns the virtual network identifier (24 bits) of the Geneve header.
    #[must_use]
    pub fn vni(&self) -> u32 {
        u32::from_be_bytes([0, self.0[4], self.0[5], self.0[6]])
    }

    /// Returns the type of the packet that Geneve encapsulates.
    #[must_use]
    pub fn next(&self) -> Next {
        match be16(self.0[2], self.0[3]) {
            // Only version 0 is defined.
            _ if self.0[0] >> 6 != 0 => Next::Payload,
            ethertype::ETHERNET => Next::Ethernet,
            ethertype if ethertype <= ethertype::LONGEST_LENGTH => Next::Payload,
            ethertype => Next::Ethertype(ethertype),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let bytes = [1, 0, 0x65, 0x58, 0, 1, 2, 0, 0, 0, 0, 0];
        let geneve = Geneve::new(&bytes).unwrap();
        assert_eq!((geneve.header_len(), geneve.vni()), (12, 258));
        assert_eq!(geneve.next(), Next::Ethernet);
        assert_eq!(
            Geneve::new(&bytes[..11]).unwrap_err(),
            Malformed::GeneveShort
        );
    }
}
