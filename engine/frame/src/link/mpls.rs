//! MPLS label stacks.

use crate::{
    field::{be16, fixed_header},
    malformed::Malformed,
    next::Next,
};

fixed_header! {
    /// View of an MPLS label stack entry: RFC 3032 section 2.1.
    ///
    /// | bits | field |
    /// |---|---|
    /// | 0..20 | label |
    /// | 20..23 | traffic class, RFC 5462 |
    /// | 23 | bottom of stack |
    /// | 24..32 | time to live |
    Mpls: 4, MplsShort
}

impl Mpls<'_> {
    /// Returns the MPLS label (20 bits).
    #[must_use]
    pub fn label(&self) -> u32 {
        u32::from(be16(self.0[0], self.0[1])) << 4 | u32::from(self.0[2] >> 4)
    }

    /// Returns `true` for the last entry of the MPLS label stack.
    #[must_use]
    pub fn is_bottom(&self) -> bool {
        self.0[2] & 1 == 1
    }

    /// Returns the type of the header after an MPLS label stack entry; `behind` are the bytes after
    /// this entry.
    ///
    /// A label does not state the payload's protocol. The first four bits are taken as the IP
    /// version (RFC 4928 section 3), so a pseudowire without a control word is mistaken for IP if
    /// its first MAC address begins with 4 or 6. Other payloads are not parsed.
    #[must_use]
    pub fn next(&self, behind: &[u8]) -> Next {
        if self.is_bottom() {
            Next::ip_by_version(behind)
        } else {
            Next::Mpls
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let top = Mpls::new(&[0x12, 0x34, 0x50, 64]).unwrap();
        assert_eq!((top.label(), top.is_bottom()), (0x12345, false));
        assert_eq!(top.next(&[0x45]), Next::Mpls);
        let bottom = Mpls::new(&[0, 0, 1, 64]).unwrap();
        assert_eq!(bottom.next(&[0x45]), Next::Ethertype(0x0800));
        assert_eq!(bottom.next(&[0x60]), Next::Ethertype(0x86dd));
        assert_eq!(bottom.next(&[0x00]), Next::Payload);
        assert_eq!(bottom.next(&[]), Next::Payload);
        assert_eq!(Mpls::new(&[0; 3]).unwrap_err(), Malformed::MplsShort);
    }
}
