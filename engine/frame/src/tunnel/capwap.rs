//! CAPWAP data headers: tunnels between access points and their controllers.

use crate::{field::parsed_header, malformed::Malformed, next::Next};

parsed_header! {
    /// Parsed CAPWAP header of the data channel: RFC 5415 section 4.3.
    ///
    /// | bits | field |
    /// |---|---|
    /// | 0..8 | preamble: version, type; 0 for a header in clear |
    /// | 8..13 | length of the header in words |
    /// | 13..18 | radio |
    /// | 18..23 | wireless binding: 1 for 802.11, RFC 5416 |
    /// | 23..29 | native frame format, fragment, last fragment, wireless information, radio address, keep-alive |
    /// | 32..64 | fragment |
    /// | 64.. | radio address and wireless information |
    Capwap
}

impl Capwap {
    /// Length in bytes of a CAPWAP header without optional fields.
    pub const LEN: usize = 8;

    /// Parses a CAPWAP header. Encrypted packets, fragments and keep-alives carry no packet that
    /// can be parsed.
    ///
    /// # Errors
    /// `bytes` ends within the header.
    pub fn new(bytes: &[u8]) -> Result<Self, Malformed> {
        const NATIVE: u8 = 0x01;
        const FRAGMENT_OR_KEEP_ALIVE: u8 = 0x80 | 0x08;
        let header: &[u8; 8] = bytes.first_chunk().ok_or(Malformed::TunnelShort)?;
        let len = usize::from(header[1] >> 3) * 4;
        let next = match (header[2] & NATIVE, header[2] >> 1 & 0x1f) {
            _ if header[0] != 0 || len < Self::LEN => Next::Payload,
            _ if header[3] & FRAGMENT_OR_KEEP_ALIVE != 0 => Next::Payload,
            (0, _) => Next::Ethernet,
            (_, 1) => Next::Wlan,
            _ => Next::Payload,
        };
        if next != Next::Payload && len > bytes.len() {
            return Err(Malformed::TunnelShort);
        }
        Ok(Self { len, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_of_the_frame() {
        let parse = |words: u8, binding: u8, native: u8, flags: u8| {
            let header = [
                0,
                words << 3,
                1 << 6 | binding << 1 | native,
                flags,
                0,
                0,
                0,
                0,
            ];
            let bytes = [&header[..], &[0; 8]].concat();
            Capwap::new(&bytes).map(|it| (it.header_len(), it.next()))
        };
        assert_eq!(parse(2, 1, 0, 0), Ok((8, Next::Ethernet)));
        assert_eq!(parse(4, 1, 0, 0x10), Ok((16, Next::Ethernet)));
        assert_eq!(parse(2, 1, 1, 0), Ok((8, Next::Wlan)));
        assert_eq!(parse(2, 2, 1, 0), Ok((8, Next::Payload)));
        // A fragment, a keep-alive, and a length below the fixed part.
        assert_eq!(parse(2, 1, 0, 0x80), Ok((8, Next::Payload)));
        assert_eq!(parse(2, 1, 0, 0x08), Ok((8, Next::Payload)));
        assert_eq!(parse(1, 1, 0, 0), Ok((4, Next::Payload)));
        assert_eq!(parse(5, 1, 0, 0), Err(Malformed::TunnelShort));
        let encrypted = Capwap::new(&[1, 0, 0, 0, 0x17, 0xfe, 0xfd, 0]).unwrap();
        assert_eq!(encrypted.next(), Next::Payload);
        assert_eq!(Capwap::new(&[0; 7]).unwrap_err(), Malformed::TunnelShort);
    }
}
