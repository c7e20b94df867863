//! View of ARP packets.

use crate::malformed::Malformed;

/// View of an ARP packet: RFC 826.
///
/// | bytes | field |
/// |---|---|
/// | 0..2 | hardware address space |
/// | 2..4 | protocol address space |
/// | 4 | length of a hardware address in bytes |
/// | 5 | length of a protocol address in bytes |
/// | 6..8 | operation |
/// | 8.. | sender's and target's addresses |
#[derive(Clone, Copy, Debug)]
pub struct Arp<'a>(&'a [u8]);

impl<'a> Arp<'a> {
    /// Length in bytes of an ARP packet's part before the addresses.
    pub const LEN: usize = 8;

    /// Checks that all bytes of the ARP packet are present, addresses included.
    ///
    /// # Errors
    /// `bytes` ends within the packet.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let fixed: &[u8; 8] = bytes.first_chunk().ok_or(Malformed::ArpShort)?;
        let len = Self::LEN + 2 * (usize::from(fixed[4]) + usize::from(fixed[5]));
        bytes.get(..len).map(Self).ok_or(Malformed::ArpShort)
    }

    /// Returns the length of the ARP packet in bytes.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let mut bytes = vec![0, 1, 8, 0, 6, 4, 0, 2];
        bytes.extend_from_slice(&[2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        bytes.extend_from_slice(&[2, 0, 0, 0, 0, 2, 10, 0, 0, 2, 0xee]);
        let arp = Arp::new(&bytes).unwrap();
        assert_eq!(arp.header_len(), 28);
        assert_eq!(Arp::new(&bytes[..27]).unwrap_err(), Malformed::ArpShort);
        assert_eq!(Arp::new(&bytes[..7]).unwrap_err(), Malformed::ArpShort);
    }
}
