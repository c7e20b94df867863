//! PPPoE headers, and the PPP protocol field in PPPoE and GRE.

use crate::{field::be16, malformed::Malformed, next::Next, numbers::ethertype};

/// View of a PPPoE header: RFC 2516 section 4.
///
/// | bytes | field |
/// |---|---|
/// | 0 | version and type, both 1 |
/// | 1 | code; 0 is session data |
/// | 2..4 | session |
/// | 4..6 | payload length |
#[derive(Clone, Copy, Debug)]
pub struct Pppoe<'a> {
    header: &'a [u8; 6],
    available: usize,
}

impl<'a> Pppoe<'a> {
    /// Length of the PPPoE header in bytes.
    pub const LEN: usize = 6;

    /// Checks that all bytes of the PPPoE header are present.
    ///
    /// # Errors
    /// `bytes` ends within the header.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = bytes.first_chunk().ok_or(Malformed::PppShort)?;
        Ok(Self {
            header,
            available: bytes.len(),
        })
    }

    /// Returns the PPPoE session identifier.
    #[must_use]
    pub fn session(&self) -> u16 {
        be16(self.header[2], self.header[3])
    }

    /// Returns the PPPoE payload length field in bytes, unchecked.
    #[must_use]
    pub fn length(&self) -> u16 {
        be16(self.header[4], self.header[5])
    }

    /// Returns the offset of the end of the PPPoE payload, counted from the start of the header.
    #[must_use]
    pub fn end(&self) -> usize {
        self.available.min(Self::LEN + usize::from(self.length()))
    }

    /// Returns a fault if the PPPoE version or type is not 1, or if the payload length exceeds the
    /// frame.
    #[must_use]
    pub fn fault(&self) -> Option<Malformed> {
        let end = Self::LEN + usize::from(self.length());
        (self.header[0] != 0x11 || end > self.available).then_some(Malformed::PppoeHeader)
    }

    /// Returns the type of the PPPoE payload: PPP for session data (code 0), else payload that is
    /// not parsed.
    #[must_use]
    pub fn next(&self) -> Next {
        if self.header[1] == 0 {
            Next::Ppp
        } else {
            Next::Payload
        }
    }
}

/// Parsed PPP protocol field, with the address and control fields before it if present: RFC 1661
/// section 2 and RFC 1662 section 3.1. The first byte of the protocol field may be omitted
/// (compression).
#[derive(Clone, Copy, Debug)]
pub struct Ppp {
    len: usize,
    protocol: u16,
}

impl Ppp {
    /// Parses the PPP protocol field.
    ///
    /// # Errors
    /// `bytes` ends within the field.
    pub fn new(bytes: &[u8]) -> Result<Self, Malformed> {
        let (skipped, bytes) = match bytes {
            [0xff, 0x03, rest @ ..] => (2, rest),
            _ => (0, bytes),
        };
        match *bytes {
            // The last byte of the protocol field is odd, and all bytes before it are even.
            [odd, ..] if odd & 1 == 1 => Ok(Self {
                len: skipped + 1,
                protocol: u16::from(odd),
            }),
            [high, low, ..] => Ok(Self {
                len: skipped + 2,
                protocol: be16(high, low),
            }),
            _ => Err(Malformed::PppShort),
        }
    }

    /// Returns the length of the PPP protocol field in bytes, including address and control fields.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.len
    }

    /// Returns the number of the protocol that PPP carries.
    #[must_use]
    pub fn protocol(&self) -> u16 {
        self.protocol
    }

    /// Returns the type of the header after the PPP protocol field.
    #[must_use]
    pub fn next(&self) -> Next {
        match self.protocol {
            // RFC 1332, RFC 5072, RFC 3032.
            0x0021 => Next::Ethertype(ethertype::IPV4),
            0x0057 => Next::Ethertype(ethertype::IPV6),
            0x0281 | 0x0283 => Next::Mpls,
            _ => Next::Payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let bytes = [0x11, 0, 0x12, 0x34, 0, 2, 0, 0x21, 0xff];
        let pppoe = Pppoe::new(&bytes).unwrap();
        assert_eq!(
            (pppoe.session(), pppoe.length(), pppoe.end()),
            (0x1234, 2, 8)
        );
        assert_eq!((pppoe.fault(), pppoe.next()), (None, Next::Ppp));
        let short = Pppoe::new(&bytes[..7]).unwrap();
        assert_eq!(
            (short.fault(), short.end()),
            (Some(Malformed::PppoeHeader), 7)
        );
        assert_eq!(Pppoe::new(&bytes[..5]).unwrap_err(), Malformed::PppShort);
    }

    #[test]
    fn the_protocol_field_may_be_compressed() {
        for (bytes, len) in [
            (&[0, 0x21][..], 2),
            (&[0x21], 1),
            (&[0xff, 3, 0, 0x21], 4),
            (&[0xff, 3, 0x21], 3),
        ] {
            let ppp = Ppp::new(bytes).unwrap();
            assert_eq!(
                (ppp.header_len(), ppp.protocol(), ppp.next()),
                (len, 0x21, Next::Ethertype(0x0800))
            );
        }
        assert_eq!(Ppp::new(&[0xff, 3, 0]).unwrap_err(), Malformed::PppShort);
        assert_eq!(Ppp::new(&[0xc0, 0x21]).unwrap().next(), Next::Payload);
    }
}
