//! Headers that switches and fabrics add between the Ethernet header and the packet.

use crate::{
    field::{be16, parsed_header},
    malformed::Malformed,
    next::Next,
    numbers::ethertype::{
        self, ARISTA_TIME, BACKBONE_SERVICE, CISCO_METADATA, CISCO_TTAG, ETAG, FABRICPATH, HSR,
        RTAG, VNTAG,
    },
};

parsed_header! {
    /// Parsed header of a switch or a fabric. The ethertype of the header before it announces it.
    ///
    /// | ethertype | header | bytes | layout |
    /// |---|---|---|---|
    /// | 8926 | Cisco VN-Tag | 6 | direction, pointer, interfaces (4 bytes); ethertype |
    /// | 893f | E-Tag, IEEE 802.1BR clause 11.4 | 8 | priority, ECIDs (6 bytes); ethertype |
    /// | 8909 | Cisco metadata | 4 + 4 for each option | version 1; number of options; options; ethertype, which is first in GRE |
    /// | 8988 | Cisco TTag | 8 | time stamp (6 bytes); ethertype |
    /// | 892f | HSR, IEC 62439-3 | 6 | path and size; sequence number; ethertype |
    /// | f1c1 | R-TAG, IEEE 802.1CB clause 7.8 | 6 | reserved; sequence number; ethertype |
    /// | d28b | Arista time stamp | 14 or 12 | subtype 1; scale of the time; version 10 (8 bytes) or 20 (6 bytes); time stamp; ethertype |
    /// | 88e7 | I-TAG of a provider backbone bridge, IEEE 802.1Q clause 9.7 | 4 | priority, service identifier; an Ethernet header follows |
    /// | 8903 | Cisco FabricPath | 2 | tree (10 bits), time to live (6 bits); an Ethernet header follows |
    ///
    /// The layouts without a standard are those of tshark's packet-vntag.c, packet-cisco-metadata.c,
    /// packet-pa-hbbackup.c, packet-arista-vendor.c and packet-cisco-fp-mim.c. The trailer of the
    /// parallel redundancy protocol needs no parser, since it follows the packet.
    FabricTag
}

impl FabricTag {
    /// Returns `true` if `ethertype` announces a header of a switch or a fabric.
    #[must_use]
    pub fn is_announced_by(ethertype: u16) -> bool {
        matches!(
            ethertype,
            VNTAG
                | ETAG
                | CISCO_METADATA
                | CISCO_TTAG
                | HSR
                | RTAG
                | ARISTA_TIME
                | BACKBONE_SERVICE
                | FABRICPATH
        )
    }

    /// Parses the header of a switch or fabric that `ethertype` announces.
    ///
    /// # Errors
    ///
    /// `bytes` ends within the header.
    pub fn new(ethertype: u16, bytes: &[u8]) -> Result<Self, Malformed> {
        let len = match (ethertype, bytes) {
            (VNTAG | HSR | RTAG, _) => 6,
            (ETAG | CISCO_TTAG, _) => 8,
            (CISCO_METADATA, [1, options, ..] | [_, _, 1, options, ..]) => {
                4 + 4 * usize::from(*options)
            }
            (ARISTA_TIME, [0, 1, 0 | 1, 0x10, ..]) => 14,
            (ARISTA_TIME, [0, 1, 0 | 1, 0x20, ..]) => 12,
            // Another subtype or version, whose length is unknown.
            (ARISTA_TIME | CISCO_METADATA, [_, _, _, _, ..]) => {
                let next = Next::Payload;
                return Ok(Self { len: 4, next });
            }
            (BACKBONE_SERVICE, _) => 4,
            (FABRICPATH, _) => 2,
            _ => return Err(Malformed::TagShort),
        };
        let header = bytes.get(..len).ok_or(Malformed::TagShort)?;
        let next = match (ethertype, header) {
            (BACKBONE_SERVICE | FABRICPATH, _) => Next::Ethernet,
            (CISCO_METADATA, [high, low, ..]) if *high > 1 => Next::Ethertype(be16(*high, *low)),
            (_, [.., high, low]) => Next::Ethertype(be16(*high, *low)),
            _ => Next::Payload,
        };
        Ok(Self { len, next })
    }
}

parsed_header! {
    /// Parsed network service header (NSH): RFC 8300 section 2.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0..2 | version (2 bits), OAM, unassigned, time to live (6 bits), length in words (6 bits) |
    /// | 2 | unassigned (4 bits), type of the metadata (4 bits) |
    /// | 3 | next protocol |
    /// | 4..8 | service path identifier, service index |
    /// | 8.. | metadata |
    Nsh
}

impl Nsh {
    /// Length in bytes of a network service header without metadata.
    pub const LEN: usize = 8;

    /// Parses a network service header.
    ///
    /// # Errors
    /// `bytes` ends within the header, or its length field is below the length of the fixed part.
    pub fn new(bytes: &[u8]) -> Result<Self, Malformed> {
        let header: &[u8; 8] = bytes.first_chunk().ok_or(Malformed::TagShort)?;
        let len = usize::from(header[1] & 0x3f) * 4;
        if len < Self::LEN || len > bytes.len() {
            return Err(Malformed::TagShort);
        }
        // RFC 8300 section 9.1.4 ("IANA: NSH Next Protocol"); only version 0 is defined.
        let next = match header[3] {
            _ if header[0] >> 6 != 0 => Next::Payload,
            1 => Next::Ethertype(ethertype::IPV4),
            2 => Next::Ethertype(ethertype::IPV6),
            3 => Next::Ethernet,
            4 => Next::Ethertype(ethertype::NSH),
            5 => Next::Ethertype(ethertype::MPLS),
            _ => Next::Payload,
        };
        Ok(Self { len, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_ends_with_an_ethertype_or_before_a_frame() {
        let ip = Next::Ethertype(ethertype::IPV4);
        let cases: [(u16, &[u8], Next); 13] = [
            (VNTAG, &[0, 0, 0, 0x14, 8, 0], ip),
            (ETAG, &[0, 0, 0, 0, 0, 0, 8, 0], ip),
            (CISCO_METADATA, &[1, 1, 0, 1, 0, 5, 8, 0], ip),
            (CISCO_METADATA, &[1, 2, 0, 1, 0, 5, 0, 2, 0, 7, 8, 0], ip),
            (CISCO_METADATA, &[8, 0, 1, 1, 0, 1, 0, 5], ip),
            (CISCO_TTAG, &[0, 0, 0, 1, 0, 0, 8, 0], ip),
            (HSR, &[0, 0x52, 0, 1, 8, 0], ip),
            (RTAG, &[0, 0, 0, 1, 8, 0], ip),
            (
                ARISTA_TIME,
                &[0, 1, 0, 0x10, 1, 1, 1, 1, 2, 2, 2, 2, 8, 0],
                ip,
            ),
            (ARISTA_TIME, &[0, 1, 0, 0x20, 1, 1, 2, 2, 2, 2, 8, 0], ip),
            (ARISTA_TIME, &[0, 1, 1, 0x20, 1, 1, 2, 2, 2, 2, 8, 0], ip),
            (BACKBONE_SERVICE, &[0, 0, 1, 2], Next::Ethernet),
            (FABRICPATH, &[0, 0x40], Next::Ethernet),
        ];
        for (ethertype, bytes, next) in cases {
            assert!(FabricTag::is_announced_by(ethertype));
            let tag = FabricTag::new(ethertype, bytes).unwrap();
            assert_eq!((tag.header_len(), tag.next()), (bytes.len(), next));
            for len in 0..bytes.len() {
                let short = FabricTag::new(ethertype, &bytes[..len]);
                assert_eq!(short.unwrap_err(), Malformed::TagShort, "{ethertype:x}");
            }
        }
        for (ethertype, bytes) in [
            (ARISTA_TIME, [0, 1, 0, 0x11]),
            (CISCO_METADATA, [2, 1, 0, 1]),
        ] {
            let unknown = FabricTag::new(ethertype, &bytes).unwrap();
            assert_eq!(unknown.next(), Next::Payload);
        }
        assert!(!FabricTag::is_announced_by(ethertype::IPV4));
    }

    #[test]
    fn a_service_header_has_metadata_of_any_length() {
        let header = |words: u8, protocol: u8| {
            let mut bytes = vec![0x0f, 0xc0 | words, 1, protocol, 0, 0, 1, 0xff];
            bytes.resize(24, 0);
            bytes
        };
        for (protocol, next) in [
            (1, Next::Ethertype(ethertype::IPV4)),
            (2, Next::Ethertype(ethertype::IPV6)),
            (3, Next::Ethernet),
            (4, Next::Ethertype(ethertype::NSH)),
            (5, Next::Ethertype(ethertype::MPLS)),
            (6, Next::Payload),
        ] {
            for words in [2, 6] {
                let bytes = header(words, protocol);
                let nsh = Nsh::new(&bytes).unwrap();
                assert_eq!(nsh.header_len(), usize::from(words) * 4);
                assert_eq!(nsh.next(), next);
            }
        }
        for words in [0, 1, 7] {
            let short = Nsh::new(&header(words, 1)).unwrap_err();
            assert_eq!(short, Malformed::TagShort);
        }
        let mut version = header(2, 1);
        version[0] |= 0x40;
        assert_eq!(Nsh::new(&version).unwrap().next(), Next::Payload);
        assert_eq!(Nsh::new(&version[..7]).unwrap_err(), Malformed::TagShort);
    }
}
