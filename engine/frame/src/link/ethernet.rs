//! Ethernet II headers, and IEEE 802.3 headers with LLC and SNAP.

use super::Vlan;
use crate::{
    field::{be16, fixed_header},
    malformed::Malformed,
    next::Next,
    numbers::ethertype,
};

fixed_header! {
    /// View of an Ethernet header: IEEE 802.3 clause 3.1.1.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0..6 | destination address |
    /// | 6..12 | source address |
    /// | 12..14 | length (up to 1500) or ethertype |
    Ethernet: 14, EthernetShort
}

impl Ethernet<'_> {
    /// Returns the destination MAC address of the Ethernet header.
    #[must_use]
    pub fn dst(&self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = *self.0;
        [a, b, c, d, e, f]
    }

    /// Returns the source MAC address of the Ethernet header.
    #[must_use]
    pub fn src(&self) -> [u8; 6] {
        let [_, _, _, _, _, _, a, b, c, d, e, f, ..] = *self.0;
        [a, b, c, d, e, f]
    }

    /// Returns `true` if an Ethernet header begins with certainty: its source is the address of a
    /// single station, and the packet that it announces begins as that packet must. This is for
    /// content whose type no header states. Headers of less common packets are not recognised.
    pub(crate) fn surely_begins(bytes: &[u8]) -> bool {
        let Ok(ethernet) = Ethernet::new(bytes) else {
            return false;
        };
        let (mut at, mut ethertype) = (Ethernet::LEN, ethernet.ethertype());
        for _ in 0..4 {
            let rest = bytes.get(at..).unwrap_or_default();
            let Ok(vlan) = Vlan::new(rest) else { break };
            if !Vlan::is_announced_by(ethertype) {
                break;
            }
            (at, ethertype) = (at + Vlan::LEN, vlan.ethertype());
        }
        let begins = match (ethertype, bytes.get(at..).unwrap_or_default()) {
            (ethertype::IPV4, [0x45..=0x4f, ..]) | (ethertype::IPV6, [0x60..=0x6f, ..]) => true,
            (ethertype::ARP, [0, 1, 8, 0, 6, 4, ..]) | (ethertype::PPPOE, [0x11, 0, ..]) => true,
            (ethertype::MPLS, [_, _, entry, _, 0x45..=0x4f | 0x60..=0x6f, ..]) => entry & 1 == 1,
            (length, rest @ [0xaa, 0xaa, 3, ..] | rest @ [0x42, 0x42, 3, ..]) => {
                length <= ethertype::LONGEST_LENGTH && usize::from(length) <= rest.len()
            }
            _ => false,
        };
        begins && ethernet.src()[0] & 1 == 0
    }

    /// Returns the ethertype of the Ethernet header, or the 802.3 length if the value is at most
    /// 1500.
    #[inline]
    #[must_use]
    pub fn ethertype(&self) -> u16 {
        be16(self.0[12], self.0[13])
    }
}

/// View of an LLC header (IEEE 802.2), with SNAP (RFC 1042) if present.
///
/// | bytes | field |
/// |---|---|
/// | 0 | DSAP |
/// | 1 | SSAP |
/// | 2 | control; 3 is an unnumbered information frame |
/// | 3..6 | SNAP: organisation, 0 for an ethertype |
/// | 6..8 | SNAP: ethertype |
#[derive(Clone, Copy, Debug)]
pub struct Llc<'a>(&'a [u8]);

impl<'a> Llc<'a> {
    /// Length in bytes of an LLC header with SNAP.
    pub const SNAP_LEN: usize = 8;

    /// Checks that all bytes of the LLC header are present.
    ///
    /// # Errors
    /// `bytes` ends within the header.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        match bytes {
            [0xaa, 0xaa, 0x03, rest @ ..] if rest.len() < 5 => Err(Malformed::LlcShort),
            [0xaa, 0xaa, 0x03, ..] => Ok(Self(&bytes[..Self::SNAP_LEN])),
            [_, _, _, ..] => Ok(Self(&bytes[..3])),
            _ => Err(Malformed::LlcShort),
        }
    }

    /// Returns the length of the LLC header in bytes.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.0.len()
    }

    /// Returns the ethertype in the SNAP header; `None` without SNAP, or with an organisation other
    /// than 0.
    #[must_use]
    pub fn ethertype(&self) -> Option<u16> {
        match *self.0 {
            [_, _, _, 0, 0, 0, high, low] => Some(be16(high, low)),
            _ => None,
        }
    }

    /// Returns the type of the header after the LLC header.
    #[must_use]
    pub fn next(&self) -> Next {
        match self.ethertype() {
            // A length would mean LLC in LLC, which is not parsed.
            Some(ethertype) if ethertype > ethertype::LONGEST_LENGTH => Next::Ethertype(ethertype),
            _ => Next::Payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xdd];
        let ethernet = Ethernet::new(&bytes).unwrap();
        assert_eq!(ethernet.dst(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(ethernet.src(), [7, 8, 9, 10, 11, 12]);
        assert_eq!(ethernet.ethertype(), ethertype::IPV6);
        assert_eq!(
            Ethernet::new(&bytes[..13]).unwrap_err(),
            Malformed::EthernetShort
        );
    }

    #[test]
    fn a_frame_that_no_header_announces() {
        let begins = |source: u8, rest: &[u8]| {
            let mut frame = vec![2; 12];
            frame[6] = source;
            frame.extend_from_slice(rest);
            Ethernet::surely_begins(&frame)
        };
        for rest in [
            &[8, 0, 0x45][..],
            &[0x86, 0xdd, 0x60],
            &[0x81, 0, 0, 7, 8, 0, 0x46],
            &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8, 0x86, 0xdd, 0x60],
            &[8, 6, 0, 1, 8, 0, 6, 4],
            &[0x88, 0x64, 0x11, 0],
            &[0x88, 0x47, 0, 0, 1, 64, 0x45],
            &[0, 3, 0x42, 0x42, 3],
        ] {
            assert!(begins(0, rest), "{rest:02x?}");
            assert!(!begins(1, rest), "a group sends no frame");
            assert!(!begins(0, &rest[..rest.len() - 1]), "{rest:02x?}");
        }
        for rest in [
            &[8, 0, 0x60][..],
            &[0x86, 0xdd, 0x45],
            &[8, 6, 0, 2, 8, 0, 6, 4],
            &[0, 4, 0x42, 0x42, 3],
            &[0x12, 0x34, 0x45],
        ] {
            assert!(!begins(0, rest), "{rest:02x?}");
        }
    }

    #[test]
    fn snap_carries_an_ethertype_only_with_organisation_0() {
        let snap = [0xaa, 0xaa, 3, 0, 0, 0, 8, 0];
        assert_eq!(Llc::new(&snap).unwrap().next(), Next::Ethertype(0x800));
        assert_eq!(Llc::new(&snap[..7]).unwrap_err(), Malformed::LlcShort);
        let cisco = [0xaa, 0xaa, 3, 0, 0, 0xc, 1, 0xb];
        assert_eq!(Llc::new(&cisco).unwrap().next(), Next::Payload);
        let spanning_tree = Llc::new(&[0x42, 0x42, 3]).unwrap();
        assert_eq!(
            (spanning_tree.header_len(), spanning_tree.next()),
            (3, Next::Payload)
        );
        assert_eq!(Llc::new(&[0x42, 0x42]).unwrap_err(), Malformed::LlcShort);
    }
}
