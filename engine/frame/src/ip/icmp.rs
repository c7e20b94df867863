//! ICMP for both versions of IP: where it lies and what it is. Messages are `etherparse`'s to read.

use crate::malformed::Malformed;
use etherparse::{Icmpv4Slice, Icmpv6Slice};

/// A header of ICMP, RFC 792, or of ICMPv6, RFC 4443 section 2.1.
///
/// | bytes | field |
/// |---|---|
/// | 0 | type |
/// | 1 | code |
/// | 2..4 | checksum |
/// | 4..8 | by type |
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a> {
    header: &'a [u8; 8],
    bytes: &'a [u8],
}

impl<'a> Icmp<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Checks that the header is whole.
    ///
    /// # Errors
    /// It is not.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = bytes.first_chunk().ok_or(Malformed::IcmpShort)?;
        Ok(Self { header, bytes })
    }

    /// Type.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.header[0]
    }

    /// Code.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.header[1]
    }

    /// The message, if it is ICMP's.
    #[must_use]
    pub fn message(&self) -> Option<Icmpv4Slice<'a>> {
        Icmpv4Slice::from_slice(self.bytes).ok()
    }

    /// The message, if it is ICMPv6's.
    #[must_use]
    pub fn message_v6(&self) -> Option<Icmpv6Slice<'a>> {
        Icmpv6Slice::from_slice(self.bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{Icmpv4Type, Icmpv6Type};

    #[test]
    fn fields() {
        let echo = [8, 0, 0, 0, 0, 1, 0, 2];
        let icmp = Icmp::new(&echo).unwrap();
        assert_eq!((icmp.kind(), icmp.code()), (8, 0));
        let message = icmp.message().unwrap().icmp_type();
        assert!(matches!(message, Icmpv4Type::EchoRequest(echo) if echo.seq == 2));
        let echo = [128, 0, 0, 0, 0, 1, 0, 2];
        let message = Icmp::new(&echo).unwrap().message_v6().unwrap().icmp_type();
        assert!(matches!(message, Icmpv6Type::EchoRequest(echo) if echo.id == 1));
        assert_eq!(Icmp::new(&echo[..7]).unwrap_err(), Malformed::IcmpShort);
    }
}
