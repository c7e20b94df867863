//! View of IPv4 headers with options.

use crate::{field::be16, malformed::Malformed};

/// View of an IPv4 header: RFC 791 section 3.1.
///
/// | bytes | field |
/// |---|---|
/// | 0 | version; header length in words |
/// | 1 | differentiated services, RFC 2474; congestion notification, RFC 3168 |
/// | 2..4 | total length |
/// | 4..6 | identification |
/// | 6..8 | flags (reserved, don't fragment, more fragments); fragment offset in units of 8 bytes |
/// | 8 | time to live |
/// | 9 | protocol |
/// | 10..12 | header checksum |
/// | 12..16 | source address |
/// | 16..20 | destination address |
/// | 20.. | options |
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a> {
    header: &'a [u8; 20],
    bytes: &'a [u8],
}

impl<'a> Ipv4<'a> {
    /// Length in bytes of an IPv4 header without options.
    pub const LEN: usize = 20;
    /// Flag "more fragments" of the IPv4 header in [`Ipv4::fragment_field`].
    pub const MORE: u16 = 0x2000;
    /// Flag "don't fragment" of the IPv4 header in [`Ipv4::fragment_field`].
    pub const DONT: u16 = 0x4000;

    /// Checks that the fixed part of an IPv4 header is present and has version 4. Addresses and
    /// protocol are valid then, even if [`Ipv4::extent`] fails.
    ///
    /// # Errors
    /// `bytes` ends within the fixed part, or the version is not 4.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        match bytes.first() {
            Some(first) if first >> 4 != 4 => return Err(Malformed::Ipv4Version),
            _ => {}
        }
        let header = bytes.first_chunk().ok_or(Malformed::Ipv4Short)?;
        Ok(Self { header, bytes })
    }

    /// Returns the IPv4 header length field in bytes, unchecked.
    #[inline]
    #[must_use]
    pub fn header_len(&self) -> usize {
        usize::from(self.header[0] & 15) * 4
    }

    /// Returns the IPv4 total length field: bytes of the packet, unchecked. Senders with
    /// segmentation offload write 0, which is common though no RFC defines it.
    #[inline]
    #[must_use]
    pub fn total_len(&self) -> u16 {
        be16(self.header[2], self.header[3])
    }

    /// Returns the raw 16-bit field of flags and fragment offset in the IPv4 header.
    #[inline]
    #[must_use]
    pub fn fragment_field(&self) -> u16 {
        be16(self.header[6], self.header[7])
    }

    /// Returns the protocol number of the IPv4 payload.
    #[inline]
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.header[9]
    }

    /// Returns the source address in the IPv4 header.
    #[inline]
    #[must_use]
    pub fn src(&self) -> [u8; 4] {
        [12, 13, 14, 15].map(|i: usize| self.header[i])
    }

    /// Returns the destination address in the IPv4 header.
    #[inline]
    #[must_use]
    pub fn dst(&self) -> [u8; 4] {
        [16, 17, 18, 19].map(|i: usize| self.header[i])
    }

    /// Returns the offsets of start and end of the IPv4 payload, counted from the start of the
    /// header, and a fault if the total length exceeds the frame. Such a packet is tolerated: its
    /// payload ends at the end of the frame.
    ///
    /// # Errors
    /// The lengths leave the start of the payload undefined: the header length is below 20 bytes or
    /// beyond the end of the frame, or the total length is below the header length.
    #[inline]
    pub fn extent(&self) -> Result<(usize, usize, Option<Malformed>), Malformed> {
        let (start, total) = (self.header_len(), usize::from(self.total_len()));
        let available = self.bytes.len();
        if start < Self::LEN {
            return Err(Malformed::Ipv4HeaderLength);
        }
        if start > available {
            return Err(Malformed::Ipv4Short);
        }
        if total == 0 {
            return Ok((start, available, None));
        }
        if total < start {
            return Err(Malformed::Ipv4TotalLength);
        }
        if total > available {
            return Ok((start, available, Some(Malformed::Ipv4TotalLength)));
        }
        Ok((start, total, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(first: u8, total: u8) -> Vec<u8> {
        let mut bytes = vec![
            first, 0, 0, total, 0, 7, 0x20, 1, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        bytes.extend_from_slice(&[1, 1, 1, 0, 0xaa, 0xbb]);
        bytes
    }

    #[test]
    fn fields() {
        let bytes = header(0x46, 25);
        let ip = Ipv4::new(&bytes).unwrap();
        assert_eq!(ip.protocol(), 6);
        assert_eq!(ip.fragment_field(), Ipv4::MORE | 1);
        assert_eq!((ip.src(), ip.dst()), ([10, 0, 0, 1], [10, 0, 0, 2]));
        assert_eq!(ip.extent(), Ok((24, 25, None)));
    }

    #[test]
    fn contradicting_lengths_are_reported() {
        let extent = |bytes: &[u8]| Ipv4::new(bytes).unwrap().extent();
        assert_eq!(extent(&header(0x44, 25)), Err(Malformed::Ipv4HeaderLength));
        assert_eq!(extent(&header(0x4f, 25)), Err(Malformed::Ipv4Short));
        assert_eq!(extent(&header(0x46, 23)), Err(Malformed::Ipv4TotalLength));
        assert_eq!(
            extent(&header(0x45, 200)),
            Ok((20, 26, Some(Malformed::Ipv4TotalLength)))
        );
        assert_eq!(extent(&header(0x45, 0)), Ok((20, 26, None)));
        assert_eq!(
            Ipv4::new(&header(0x65, 25)).unwrap_err(),
            Malformed::Ipv4Version
        );
        assert_eq!(
            Ipv4::new(&header(0x45, 25)[..19]).unwrap_err(),
            Malformed::Ipv4Short
        );
        assert_eq!(Ipv4::new(&[]).unwrap_err(), Malformed::Ipv4Short);
    }
}
