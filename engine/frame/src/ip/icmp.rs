//! View of ICMP and ICMPv6 headers.

use crate::{field::fixed_header, malformed::Malformed};

fixed_header! {
    /// View of an ICMP header (RFC 792) or ICMPv6 header (RFC 4443 section 2.1).
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0 | type |
    /// | 1 | code |
    /// | 2..4 | checksum |
    /// | 4..8 | depends on the type |
    Icmp: 8, IcmpShort
}

impl Icmp<'_> {
    /// Returns the type field of the ICMP message.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.0[0]
    }

    /// Returns the ICMP message code; its meaning depends on the type.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.0[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_headers_are_rejected() {
        let echo = [128, 0, 0, 0, 0, 1, 0, 2];
        assert_eq!(Icmp::new(&echo).unwrap().kind(), 128);
        assert_eq!(Icmp::new(&echo[..7]).unwrap_err(), Malformed::IcmpShort);
    }
}
