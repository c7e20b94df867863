//! IPsec headers: AH, which is parsed and skipped, and ESP, whose payload is encrypted.

use crate::{field::fixed_header, malformed::Malformed};

/// View of an authentication header (AH): RFC 4302 section 2.
///
/// | bytes | field |
/// |---|---|
/// | 0 | next header |
/// | 1 | length in words, minus 2 |
/// | 2..4 | reserved |
/// | 4..8 | security parameters index |
/// | 8..12 | sequence number |
/// | 12.. | integrity check value |
#[derive(Clone, Copy, Debug)]
pub struct Ah<'a> {
    header: &'a [u8; 12],
}

impl<'a> Ah<'a> {
    /// Length in bytes of the AH header's part before the integrity check value.
    pub const LEN: usize = 12;

    /// Checks that all bytes of the AH header are present.
    ///
    /// # Errors
    /// `bytes` ends within the header, or its length field is below the length of the fixed part.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header: &[u8; 12] = bytes.first_chunk().ok_or(Malformed::AhShort)?;
        let ah = Self { header };
        let len = ah.header_len();
        if len < Self::LEN || len > bytes.len() {
            return Err(Malformed::AhShort);
        }
        Ok(ah)
    }

    /// Returns the length of the AH header in bytes.
    #[must_use]
    pub fn header_len(&self) -> usize {
        (usize::from(self.header[1]) + 2) * 4
    }

    /// Returns the protocol number of the header after AH.
    #[must_use]
    pub fn next_header(&self) -> u8 {
        self.header[0]
    }
}

fixed_header! {
    /// View of the unencrypted part of an ESP packet: RFC 4303 section 2.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0..4 | security parameters index |
    /// | 4..8 | sequence number |
    Esp: 8, EspShort
}

impl Esp<'_> {
    /// Returns the security parameters index (SPI) of the ESP packet.
    #[must_use]
    pub fn spi(&self) -> u32 {
        u32::from_be_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authentication_header() {
        let mut bytes = vec![6, 4, 0, 0, 0, 0, 1, 0];
        bytes.resize(24, 0);
        let ah = Ah::new(&bytes).unwrap();
        assert_eq!((ah.header_len(), ah.next_header()), (24, 6));
        assert_eq!(Ah::new(&bytes[..23]).unwrap_err(), Malformed::AhShort);
        bytes[1] = 0;
        assert_eq!(Ah::new(&bytes).unwrap_err(), Malformed::AhShort);
    }

    #[test]
    fn esp() {
        assert_eq!(Esp::new(&[0, 0, 0, 1, 0, 0, 0, 2]).unwrap().spi(), 1);
        assert_eq!(Esp::new(&[0; 7]).unwrap_err(), Malformed::EspShort);
    }
}
