//! Views of GRE headers, and of ERSPAN headers of mirrored ports.

use crate::{field::be16, malformed::Malformed, next::Next, numbers::ethertype};

/// View of a GRE header: RFC 2784 with RFC 2890; version 1 for PPTP, RFC 2637.
///
/// | bytes | field |
/// |---|---|
/// | 0..2 | checksum, routing (RFC 1701), key and sequence number present; acknowledgement present (version 1); version |
/// | 2..4 | ethertype |
/// | .. | checksum and reserved; key; sequence number; acknowledgement number: 4 bytes each, if present |
#[derive(Clone, Copy, Debug)]
pub struct Gre<'a>(&'a [u8; 4]);

impl<'a> Gre<'a> {
    /// Length in bytes of a GRE header without optional fields.
    pub const LEN: usize = 4;

    /// Checks that all bytes of the GRE header are present, optional fields included.
    ///
    /// # Errors
    /// `bytes` ends within the header.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let gre = bytes.first_chunk().map(Self).ok_or(Malformed::GreShort)?;
        if gre.header_len() > bytes.len() {
            return Err(Malformed::GreShort);
        }
        Ok(gre)
    }

    /// Returns the 16-bit field of flags and version in the GRE header.
    #[must_use]
    pub fn flags(&self) -> u16 {
        be16(self.0[0], self.0[1])
    }

    /// Returns the GRE version: 0, or 1 for PPTP.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.0[1] & 7
    }

    /// Returns the ethertype of the packet that GRE encapsulates.
    #[must_use]
    pub fn ethertype(&self) -> u16 {
        be16(self.0[2], self.0[3])
    }

    /// Returns the length of the GRE header in bytes, without source routes (RFC 1701).
    #[must_use]
    pub fn header_len(&self) -> usize {
        let has = |bit| usize::from(self.flags() & bit != 0) * 4;
        let acknowledgement = if self.version() == 1 { 0x0080 } else { 0 };
        Self::LEN + has(0xc000) + has(0x2000) + has(0x1000) + has(acknowledgement)
    }

    /// Returns the type of the packet that GRE encapsulates.
    #[must_use]
    pub fn next(&self) -> Next {
        // Source routes precede the payload and are practically unused, so they are not parsed.
        if self.flags() & 0x4000 != 0 || self.version() > 1 {
            return Next::Payload;
        }
        match self.ethertype() {
            ethertype::ETHERNET => Next::Ethernet,
            ethertype::PPP => Next::Ppp,
            // ERSPAN without a sequence number is type I, which has no header.
            ethertype::ERSPAN if self.flags() & 0x1000 == 0 => Next::Ethernet,
            ethertype::ERSPAN => Next::Erspan(2),
            ethertype::ERSPAN_III => Next::Erspan(3),
            ethertype if ethertype <= ethertype::LONGEST_LENGTH => Next::Payload,
            ethertype => Next::Ethertype(ethertype),
        }
    }
}

/// Parsed ERSPAN header of type II or III: draft-foschiano-erspan sections 4.2 and 4.3.
///
/// | bytes | field |
/// |---|---|
/// | 0..2 | version (1: type II, 2: type III), VLAN |
/// | 2..4 | class of service, encapsulation, truncated, session |
/// | 4..8 | type II: index; type III: time stamp |
/// | 8..12 | type III: group tag (16 bits), protocol flag, frame type (5 bits; 0 Ethernet, 2 IP), hardware (6 bits), direction, granularity (2 bits), 8 bytes for the platform follow |
#[derive(Clone, Copy, Debug)]
pub struct Erspan {
    len: usize,
    frame_type: u8,
}

impl Erspan {
    /// Parses an ERSPAN header; `kind` is 2 or 3.
    ///
    /// # Errors
    /// `bytes` ends within the header.
    pub fn new(bytes: &[u8], kind: u8) -> Result<Self, Malformed> {
        bytes.first_chunk::<8>().ok_or(Malformed::GreShort)?;
        let (len, frame_type) = match (kind, bytes.get(10..12)) {
            (3, Some([high, low])) => (12 + usize::from(low & 1) * 8, high >> 2 & 0x1f),
            (3, _) => return Err(Malformed::GreShort),
            _ => (8, 0),
        };
        if len > bytes.len() {
            return Err(Malformed::GreShort);
        }
        Ok(Self { len, frame_type })
    }

    /// Returns the length of the ERSPAN header in bytes.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.len
    }

    /// Returns the type of the packet that ERSPAN mirrors; `behind` are the bytes after the header.
    #[must_use]
    pub fn next(&self, behind: &[u8]) -> Next {
        match self.frame_type {
            0 => Next::Ethernet,
            2 => Next::ip_by_version(behind),
            _ => Next::Payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_fields_are_counted() {
        let bytes = |flags: u16| {
            let mut bytes = flags.to_be_bytes().to_vec();
            bytes.extend_from_slice(&[8, 0]);
            bytes.resize(20, 0);
            bytes
        };
        for (flags, len) in [
            (0, 4),
            (0x8000, 8),
            (0x2000, 8),
            (0x1000, 8),
            (0xb000, 16),
            (0x3081, 16),
        ] {
            let bytes = bytes(flags);
            let gre = Gre::new(&bytes).unwrap();
            assert_eq!(gre.header_len(), len, "{flags:04x}");
            assert_eq!(gre.next(), Next::Ethertype(0x0800));
            let short = Gre::new(&bytes[..len - 1]).unwrap_err();
            assert_eq!(short, Malformed::GreShort);
        }
        assert_eq!(Gre::new(&bytes(0x4000)).unwrap().next(), Next::Payload);
    }

    #[test]
    fn erspan_types() {
        let gre = |flags: u8, kind: [u8; 2]| {
            let bytes = [flags, 0, kind[0], kind[1], 0, 0, 0, 0];
            Gre::new(&bytes).unwrap().next()
        };
        assert_eq!(gre(0x00, [0x88, 0xbe]), Next::Ethernet);
        assert_eq!(gre(0x10, [0x88, 0xbe]), Next::Erspan(2));
        assert_eq!(gre(0x10, [0x22, 0xeb]), Next::Erspan(3));
        let bytes = [
            0x10, 0, 0xfc, 0x05, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        let erspan = Erspan::new(&bytes, 2).unwrap();
        assert_eq!(erspan.header_len(), 8);
        let long = Erspan::new(&bytes, 3).unwrap();
        assert_eq!((long.header_len(), long.next(&[])), (20, Next::Ethernet));
        let mut ip = bytes;
        ip[10] = 2 << 2;
        let ip = Erspan::new(&ip, 3).unwrap();
        assert_eq!(ip.next(&[0x45]), Next::Ethertype(ethertype::IPV4));
        assert_eq!(
            Erspan::new(&bytes[..19], 3).unwrap_err(),
            Malformed::GreShort
        );
    }
}
