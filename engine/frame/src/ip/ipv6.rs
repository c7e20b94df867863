//! Views of IPv6 headers and extension headers.

use crate::{
    field::{be16, fixed_header},
    malformed::Malformed,
    numbers::protocol,
};

/// View of an IPv6 header: RFC 8200 section 3.
///
/// | bytes | field |
/// |---|---|
/// | 0..4 | version, traffic class, flow label |
/// | 4..6 | payload length |
/// | 6 | next header |
/// | 7 | hop limit |
/// | 8..24 | source address |
/// | 24..40 | destination address |
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    header: &'a [u8; 40],
    available: usize,
}

impl<'a> Ipv6<'a> {
    /// Length of the IPv6 header in bytes.
    pub const LEN: usize = 40;

    /// Checks that an IPv6 header is present and has version 6.
    ///
    /// # Errors
    /// `bytes` ends within the header, or the version is not 6.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        match bytes.first() {
            Some(first) if first >> 4 != 6 => return Err(Malformed::Ipv6Version),
            _ => {}
        }
        let header = bytes.first_chunk().ok_or(Malformed::Ipv6Short)?;
        Ok(Self {
            header,
            available: bytes.len(),
        })
    }

    /// Returns the IPv6 payload length field: bytes after the header, unchecked. It is 0 for
    /// payloads beyond 65535 bytes (jumbograms of RFC 2675, and segmentation offload).
    #[inline]
    #[must_use]
    pub fn payload_len(&self) -> u16 {
        be16(self.header[4], self.header[5])
    }

    /// Returns the protocol number of the header after the IPv6 header.
    #[inline]
    #[must_use]
    pub fn next_header(&self) -> u8 {
        self.header[6]
    }

    /// Returns the source address in the IPv6 header.
    #[inline]
    #[must_use]
    pub fn src(&self) -> [u8; 16] {
        std::array::from_fn(|i| self.header[8 + i])
    }

    /// Returns the destination address in the IPv6 header.
    #[inline]
    #[must_use]
    pub fn dst(&self) -> [u8; 16] {
        std::array::from_fn(|i| self.header[24 + i])
    }

    /// Returns the offset of the end of the IPv6 payload, counted from the start of the header, and
    /// a fault if the payload length exceeds the frame. Such a packet is tolerated: its payload
    /// ends at the end of the frame.
    #[inline]
    #[must_use]
    pub fn extent(&self) -> (usize, Option<Malformed>) {
        let end = Self::LEN + usize::from(self.payload_len());
        if end == Self::LEN {
            (self.available, None)
        } else if end > self.available {
            (self.available, Some(Malformed::Ipv6PayloadLength))
        } else {
            (end, None)
        }
    }
}

/// View of an IPv6 extension header with a length in units of 8 bytes: RFC 8200 section 4, RFC
/// 6275, RFC 7401, RFC 5533.
///
/// | bytes | field |
/// |---|---|
/// | 0 | next header |
/// | 1 | length in units of 8 bytes, not counting the first |
#[derive(Clone, Copy, Debug)]
pub struct ExtensionHeader<'a>(&'a [u8]);

impl<'a> ExtensionHeader<'a> {
    /// Returns `true` if `next_header` is the number of an IPv6 extension header whose length is in
    /// units of 8 bytes.
    #[inline]
    #[must_use]
    pub fn is_announced_by(next_header: u8) -> bool {
        matches!(
            next_header,
            protocol::HOP_BY_HOP
                | protocol::ROUTING
                | protocol::DESTINATION
                | protocol::MOBILITY
                | protocol::HIP
                | protocol::SHIM6
        )
    }

    /// Checks that all bytes of an IPv6 extension header are present.
    ///
    /// # Errors
    /// `bytes` ends within the header.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let len = match bytes {
            [_, units, ..] => 8 + usize::from(*units) * 8,
            _ => return Err(Malformed::Ipv6ExtensionShort),
        };
        bytes
            .get(..len)
            .map(Self)
            .ok_or(Malformed::Ipv6ExtensionShort)
    }

    /// Returns the length of the IPv6 extension header in bytes.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.0.len()
    }

    /// Returns the protocol number of the header after this IPv6 extension header.
    #[inline]
    #[must_use]
    pub fn next_header(&self) -> u8 {
        self.0.first().copied().unwrap_or(protocol::NO_NEXT)
    }
}

fixed_header! {
    /// View of an IPv6 fragment header: RFC 8200 section 4.5.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0 | next header |
    /// | 1 | reserved |
    /// | 2..4 | fragment offset in units of 8 bytes (13 bits), 2 bits reserved, more fragments |
    /// | 4..8 | identification |
    Ipv6Fragment: 8, Ipv6ExtensionShort
}

impl Ipv6Fragment<'_> {
    /// Returns the protocol number of the header after the IPv6 fragment header. In later fragments
    /// it is the first header of the fragmented part of the datagram.
    #[inline]
    #[must_use]
    pub fn next_header(&self) -> u8 {
        self.0[0]
    }

    /// Returns the IPv6 fragment offset in units of 8 bytes.
    #[inline]
    #[must_use]
    pub fn offset(&self) -> u16 {
        be16(self.0[2], self.0[3]) >> 3
    }

    /// Returns `true` if more fragments of the IPv6 datagram follow.
    #[inline]
    #[must_use]
    pub fn more(&self) -> bool {
        self.0[3] & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(payload: u8) -> Vec<u8> {
        let mut bytes = vec![0x60, 0, 0, 0, 0, payload, 17, 64];
        bytes.extend_from_slice(&[0xfd; 16]);
        bytes.extend_from_slice(&[0xfe; 16]);
        bytes.extend_from_slice(&[1, 2, 3, 4]);
        bytes
    }

    #[test]
    fn fields() {
        let bytes = header(3);
        let ip = Ipv6::new(&bytes).unwrap();
        assert_eq!((ip.next_header(), ip.extent()), (17, (43, None)));
        assert_eq!((ip.src(), ip.dst()), ([0xfd; 16], [0xfe; 16]));
        assert_eq!(
            Ipv6::new(&header(5)).unwrap().extent(),
            (44, Some(Malformed::Ipv6PayloadLength))
        );
        assert_eq!(Ipv6::new(&header(0)).unwrap().extent(), (44, None));
        assert_eq!(Ipv6::new(&bytes[..39]).unwrap_err(), Malformed::Ipv6Short);
        assert_eq!(Ipv6::new(&[0x45]).unwrap_err(), Malformed::Ipv6Version);
    }

    #[test]
    fn extension_header_length_is_decoded() {
        let bytes = [17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        let extension = ExtensionHeader::new(&bytes).unwrap();
        assert_eq!((extension.header_len(), extension.next_header()), (16, 17));
        for len in [0, 1, 15] {
            let short = ExtensionHeader::new(&bytes[..len]).unwrap_err();
            assert_eq!(short, Malformed::Ipv6ExtensionShort);
        }
    }

    #[test]
    fn fragment_fields() {
        let fragment = Ipv6Fragment::new(&[6, 0, 0, 0x19, 0, 0, 1, 0]).unwrap();
        assert_eq!((fragment.next_header(), fragment.offset()), (6, 3));
        assert!(fragment.more());
        assert_eq!(
            Ipv6Fragment::new(&[0; 7]).unwrap_err(),
            Malformed::Ipv6ExtensionShort
        );
    }
}
