//! View of VLAN tags, single and stacked.

use crate::{
    field::{be16, fixed_header},
    malformed::Malformed,
    numbers::ethertype,
};

fixed_header! {
    /// View of a VLAN tag without its TPID, which is the ethertype of the header before it: IEEE
    /// 802.1Q clause 9.6.
    ///
    /// | bits | field |
    /// |---|---|
    /// | 0..3 | priority code point |
    /// | 3 | drop eligible indicator |
    /// | 4..16 | VLAN identifier |
    /// | 16..32 | ethertype of the next header |
    Vlan: 4, VlanShort
}

impl Vlan<'_> {
    /// Returns `true` if `ethertype` is a TPID, so that a VLAN tag follows.
    #[inline]
    #[must_use]
    pub fn is_announced_by(ethertype: u16) -> bool {
        matches!(
            ethertype,
            ethertype::VLAN | ethertype::SERVICE_VLAN | ethertype::OLD_QINQ
        )
    }

    /// Returns the tag control information of the VLAN tag: priority, drop eligibility and
    /// identifier.
    #[inline]
    #[must_use]
    pub fn tci(&self) -> u16 {
        be16(self.0[0], self.0[1])
    }

    /// Returns the VLAN identifier (12 bits) in the tag.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.tci() & 0xfff
    }

    /// Returns the ethertype of the header after the VLAN tag, or an 802.3 length.
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
        assert_eq!((vlan.tci(), vlan.id()), (0xb064, 100));
        assert_eq!(vlan.ethertype(), ethertype::IPV4);
        assert_eq!(Vlan::new(&[0; 3]).unwrap_err(), Malformed::VlanShort);
    }

    #[test]
    fn tpids_are_those_of_libpcap() {
        for tpid in [0x8100, 0x88a8, 0x9100] {
            assert!(Vlan::is_announced_by(tpid));
        }
        assert!(!Vlan::is_announced_by(0x9200));
    }
}
