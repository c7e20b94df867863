//! ICMP for both versions of IP: where it lies.

use crate::{field::fixed_header, malformed::Malformed};

fixed_header! {
    /// A header of ICMP, RFC 792, or of ICMPv6, RFC 4443 section 2.1.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0 | type |
    /// | 1 | code |
    /// | 2..4 | checksum |
    /// | 4..8 | by type |
    Icmp: 8, IcmpShort
}

impl Icmp<'_> {
    /// Type.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.0[0]
    }

    /// Code, by type.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.0[1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_whole_or_not() {
        let echo = [128, 0, 0, 0, 0, 1, 0, 2];
        assert_eq!(Icmp::new(&echo).unwrap().kind(), 128);
        assert_eq!(Icmp::new(&echo[..7]).unwrap_err(), Malformed::IcmpShort);
    }
}
