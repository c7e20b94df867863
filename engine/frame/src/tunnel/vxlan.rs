//! VXLAN headers, with the generic protocol extension (VXLAN-GPE).

use crate::{field::fixed_header, malformed::Malformed, next::Next, numbers::ethertype};

fixed_header! {
    /// View of a VXLAN header: RFC 7348 section 5; extension: draft-ietf-nvo3-vxlan-gpe section 3.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0 | flags: 0x08, network identifier is valid; 0x04 (extension), next protocol is valid |
    /// | 3 | extension: next protocol |
    /// | 4..7 | network identifier |
    /// | 7 | reserved |
    Vxlan: 8, VxlanShort
}

impl Vxlan<'_> {
    /// Returns the virtual network identifier (24 bits) of the VXLAN header.
    #[must_use]
    pub fn vni(&self) -> u32 {
        u32::from_be_bytes([0, self.0[4], self.0[5], self.0[6]])
    }

    /// Returns the type of the packet that VXLAN encapsulates; `extended` is set for the UDP port
    /// of VXLAN-GPE.
    #[must_use]
    pub fn next(&self, extended: bool) -> Next {
        match (extended, self.0[0] & 0x04 != 0, self.0[3]) {
            (false, ..) | (true, true, 3) => Next::Ethernet,
            (true, true, 1) => Next::Ethertype(ethertype::IPV4),
            (true, true, 2) => Next::Ethertype(ethertype::IPV6),
            (true, true, 4) => Next::Ethertype(ethertype::NSH),
            (true, true, 5) => Next::Mpls,
            (true, ..) => Next::Payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let bytes = [0x0c, 0, 0, 1, 0, 1, 2, 0];
        let vxlan = Vxlan::new(&bytes).unwrap();
        assert_eq!(vxlan.vni(), 258);
        assert_eq!(vxlan.next(false), Next::Ethernet);
        assert_eq!(vxlan.next(true), Next::Ethertype(ethertype::IPV4));
        assert_eq!(Vxlan::new(&bytes[..7]).unwrap_err(), Malformed::VxlanShort);
    }
}
