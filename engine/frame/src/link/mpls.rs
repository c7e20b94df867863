//! View of MPLS label stacks.

use super::Ethernet;
use crate::{
    field::{be16, fixed_header},
    ip::{Ipv4, Ipv6},
    malformed::Malformed,
    next::Next,
    numbers::ethertype,
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
    /// Returns the label (20 bits) of the MPLS label stack entry.
    #[must_use]
    pub fn label(&self) -> u32 {
        u32::from(be16(self.0[0], self.0[1])) << 4 | u32::from(self.0[2] >> 4)
    }

    /// Returns `true` for the last entry of the MPLS label stack.
    #[must_use]
    pub fn is_bottom(&self) -> bool {
        self.0[2] & 1 == 1
    }

    /// Length in bytes of a pseudowire's control word: RFC 4385 section 3.
    pub const CONTROL_WORD_LEN: usize = 4;
    /// MPLS label of the generic associated channel: RFC 5586 section 4.
    const ASSOCIATED_CHANNEL: u32 = 13;

    /// Returns the type of the header after an MPLS label stack entry; `behind` are the bytes after
    /// this entry.
    ///
    /// A label does not state the payload's protocol. The first four bits decide as in RFC 4928
    /// section 3, RFC 4385 and tshark's `dissect_mpls` (packet-mpls.c): 4 and 6 are the versions of
    /// IP, 0 is the control word of a pseudowire, and 1 an associated channel. A pseudowire without
    /// a control word (RFC 4448 section 4.6, RFC 8469) may begin with any of these, since it begins
    /// with a MAC address. tshark recognises it by addresses of known vendors. Here it is recognised
    /// by a whole Ethernet header with the beginning of a packet; with 4 and 6, only if the bytes
    /// are not a valid IP header. Other payloads, such as an associated channel, are not parsed.
    #[inline]
    #[must_use]
    pub fn next(&self, behind: &[u8]) -> Next {
        if !self.is_bottom() {
            return Next::Mpls;
        }
        match *behind {
            // The length of most packets fits.
            [0x45, _, high, low, ..] if usize::from(be16(high, low)) == behind.len() => {
                Next::Ethertype(ethertype::IPV4)
            }
            _ => self.next_by_content(behind),
        }
    }

    #[inline(never)]
    fn next_by_content(&self, behind: &[u8]) -> Next {
        let by_version = Next::ip_by_version(behind);
        let is_ip = || by_version != Next::Payload && is_valid_ip(behind);
        match behind {
            _ if self.label() == Self::ASSOCIATED_CHANNEL => Next::Payload,
            [0x10, 0, ..] => Next::Payload,
            _ if Ethernet::surely_begins(behind) => {
                if is_ip() {
                    by_version
                } else {
                    Next::Ethernet
                }
            }
            [0..=0x0f, _, _, _, frame @ ..] if Ethernet::surely_begins(frame) => Next::ControlWord,
            _ => by_version,
        }
    }
}

/// Returns `true` if `bytes` begin with a valid header of IPv4 or IPv6: a right checksum, or a
/// length that fits.
fn is_valid_ip(bytes: &[u8]) -> bool {
    if let Ok(ip) = Ipv4::new(bytes) {
        let header = bytes.get(..ip.header_len()).unwrap_or_default();
        let words = header
            .chunks_exact(2)
            .map(|it| u32::from(be16(it[0], it[1])));
        let sum: u32 = words.sum();
        return header.len() >= Ipv4::LEN && (sum & 0xffff) + (sum >> 16) == 0xffff;
    }
    Ipv6::new(bytes).is_ok_and(|ip| {
        let end = Ipv6::LEN + usize::from(ip.payload_len());
        // A short frame is padded, and some captures have the FCS.
        let padding = if bytes.len() <= 46 { 6 } else { 4 };
        (end..=end + padding).contains(&bytes.len())
    })
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

    /// Returns a frame to a MAC address that begins with `first`, with an IPv4 packet.
    fn frame(first: u8) -> Vec<u8> {
        let mut frame = vec![first, 0, 0x5e, 0, 0x53, 2, 0, 0, 0x5e, 0, 0x53, 1, 8, 0];
        frame.extend_from_slice(&[
            0x45, 0, 0, 20, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        frame
    }

    fn next(label: u32, behind: &[u8]) -> Next {
        let entry = (label << 12 | 0x140).to_be_bytes();
        Mpls::new(&entry).unwrap().next(behind)
    }

    #[test]
    fn pseudowires_with_and_without_a_control_word() {
        for first in 0..=0xff {
            // A group address and any vendor, even one whose first digit is an IP version.
            assert_eq!(
                next(200, &frame(first)),
                if first == 0x10 {
                    Next::Payload
                } else {
                    Next::Ethernet
                },
                "{first:02x}"
            );
            for word in [[0, 0, 0, 0], [0, 0, 0xab, 0xcd], [0x0f, 0xff, 0, 1]] {
                let behind = [&word[..], &frame(first)].concat();
                assert_eq!(next(200, &behind), Next::ControlWord, "{first:02x}");
            }
        }
    }

    #[test]
    fn payloads_that_are_not_ethernet() {
        // An associated channel, by its first bits and by its label.
        let channel = [&[0x10, 0, 0, 0x21][..], &frame(2)[14..]].concat();
        assert_eq!(next(200, &channel), Next::Payload);
        assert_eq!(next(13, &frame(2)), Next::Payload);
        // A pseudowire with a control word for another content.
        assert_eq!(next(200, &[0; 64]), Next::Payload);
        assert_eq!(next(200, &[0x5a; 64]), Next::Payload);
        let truncated = [&[0; 4][..], &frame(2)[..14]].concat();
        assert_eq!(next(200, &truncated), Next::Payload);
    }

    #[test]
    fn ip_is_not_mistaken_for_a_pseudowire() {
        // The source address 8.0.69.1 looks like an ethertype and the beginning of IPv4.
        let mut ip = vec![
            0x45, 0, 0, 20, 0, 1, 0, 0, 64, 17, 0, 0, 8, 0, 0x45, 1, 10, 0, 0, 2,
        ];
        let sum: u32 = ip.chunks(2).map(|it| u32::from(be16(it[0], it[1]))).sum();
        let checksum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        assert_eq!(next(200, &ip), Next::Ethertype(0x0800));
        let mut ip = vec![0x60, 0, 0, 0, 0, 0, 17, 64, 8, 0, 0, 0, 8, 0, 0x45, 0];
        ip.resize(40, 1);
        assert_eq!(next(200, &ip), Next::Ethertype(0x86dd));
    }
}
