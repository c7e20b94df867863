//! VLAN tags, single and stacked.

use crate::{field::be16, malformed::Malformed, numbers::ethertype};

/// A tag without its TPID, which stands where an ethertype stands: IEEE 802.1Q clause 9.6.
///
/// | bits | field |
/// |---|---|
/// | 0..3 | priority code point |
/// | 3 | drop eligible indicator |
/// | 4..16 | VLAN identifier |
/// | 16..32 | ethertype of what follows |
#[derive(Clone, Copy, Debug)]
pub struct Vlan<'a>(&'a [u8; 4]);

impl<'a> Vlan<'a> {
    /// Bytes from the tag's control information to the next ethertype.
    pub const LEN: usize = 4;

    /// Whether this ethertype announces a tag.
    #[inline]
    #[must_use]
    pub fn is_announced_by(ethertype: u16) -> bool {
        matches!(
            ethertype,
            ethertype::VLAN | ethertype::SERVICE_VLAN | ethertype::OLD_QINQ
        )
    }

    /// Checks that the tag is whole.
    ///
    /// # Errors
    /// It is not.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        bytes.first_chunk().map(Self).ok_or(Malformed::VlanShort)
    }

    /// Priority, drop eligibility and identifier.
    #[inline]
    #[must_use]
    pub fn tci(&self) -> u16 {
        be16(self.0[0], self.0[1])
    }

    /// VLAN identifier.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.tci() & 0xfff
    }

    /// Priority code point.
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.0[0] >> 5
    }

    /// Ethertype, or length, of what follows.
    #[inline]
    #[must_use]
    pub fn ethertype(&self) -> u16 {
        be16(self.0[2], self.0[3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let vlan = Vlan::new(&[0xb0, 0x64, 8, 0]).unwrap();
        assert_eq!((vlan.tci(), vlan.id(), vlan.priority()), (0xb064, 100, 5));
        assert_eq!(vlan.ethertype(), ethertype::IPV4);
        assert_eq!(Vlan::new(&[0; 3]).unwrap_err(), Malformed::VlanShort);
    }

    #[test]
    fn the_tpids_that_libpcap_knows_too() {
        for tpid in [0x8100, 0x88a8, 0x9100] {
            assert!(Vlan::is_announced_by(tpid));
        }
        assert!(!Vlan::is_announced_by(0x9200));
    }
}
