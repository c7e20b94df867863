//! L2TP data headers of versions 2 and 3.

use crate::{
    field::{be16, parsed_header},
    link::{Ethernet, Ppp},
    malformed::Malformed,
    next::Next,
    numbers::ethertype,
};

parsed_header! {
    /// Parsed L2TP data header: RFC 2661 section 3.1 (version 2), RFC 3931 section 4.1 (version 3).
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0..2 | control message (0x8000); length (0x4000), sequence numbers (0x0800) and offset (0x0200) present; version (4 bits) |
    /// | 2.. | version 2: length, 2 bytes if present; tunnel and session (4 bytes); sequence numbers, 4 bytes if present; offset and padding if present; PPP |
    /// | 2..8 | version 3 over UDP: reserved, session (4 bytes) |
    ///
    /// Over IP, a header of version 3 is the session alone; session 0 is a control message.
    ///
    /// After a session of version 3 follow a cookie of 0, 4 or 8 bytes and a sublayer of 0 or 4 bytes,
    /// and the content is Ethernet, PPP or another protocol. Control messages negotiate all three;
    /// tshark asks for them (preferences of packet-l2tp.c). Here the first of the possible offsets at
    /// which a frame begins with certainty is used. Without one, the content is not parsed.
    L2tp
}

impl L2tp {
    /// Possible total lengths in bytes of cookie and sublayer in an L2TP header of version 3.
    const OPTIONAL: [usize; 4] = [0, 4, 8, 12];

    /// Parses an L2TP data header; `over_ip` is `true` if it is directly over IP instead of UDP.
    ///
    /// # Errors
    /// `bytes` ends within the header.
    pub fn new(bytes: &[u8], over_ip: bool) -> Result<Self, Malformed> {
        let header: &[u8; 4] = bytes.first_chunk().ok_or(Malformed::TunnelShort)?;
        if over_ip {
            return match *header {
                [0, 0, 0, 0] => Ok(Self::with_payload(4)),
                _ => Ok(Self::version_3(bytes, 4)),
            };
        }
        match be16(header[0], header[1]) {
            // Reserved bits must be 0; a control message carries no packet.
            flags if flags & !0x4b0f != 0 => Ok(Self::with_payload(2)),
            flags if flags & 0x0f == 2 => Self::version_2(bytes, flags),
            3 if bytes.len() >= 8 => Ok(Self::version_3(bytes, 8)),
            3 => Err(Malformed::TunnelShort),
            _ => Ok(Self::with_payload(2)),
        }
    }

    fn with_payload(len: usize) -> Self {
        let next = Next::Payload;
        Self { len, next }
    }

    fn version_2(bytes: &[u8], flags: u16) -> Result<Self, Malformed> {
        let has = |bit: u16, len: usize| if flags & bit != 0 { len } else { 0 };
        let mut len = 6 + has(0x4000, 2) + has(0x0800, 4);
        if flags & 0x0200 != 0 {
            let offset = bytes.get(len..len + 2).ok_or(Malformed::TunnelShort)?;
            len += 2 + usize::from(be16(offset[0], offset[1]));
        }
        let next = Next::Ppp;
        (len <= bytes.len())
            .then_some(Self { len, next })
            .ok_or(Malformed::TunnelShort)
    }

    /// Finds the content of an L2TP packet of version 3, whose session field ends at offset
    /// `session_end`.
    fn version_3(bytes: &[u8], session_end: usize) -> Self {
        let find = |begins: fn(&[u8]) -> bool| {
            let mut offsets = Self::OPTIONAL.into_iter().map(|it| session_end + it);
            offsets.find(|at| bytes.get(*at..).is_some_and(begins))
        };
        if let Some(len) = find(Ethernet::surely_begins) {
            let next = Next::Ethernet;
            return Self { len, next };
        }
        match find(begins_ppp) {
            Some(len) => Self {
                len,
                next: Next::Ppp,
            },
            None => Self::with_payload(session_end),
        }
    }
}

/// Returns `true` if `bytes` certainly begin with PPP and an IP packet: a protocol field of two
/// bytes and the version that it announces.
fn begins_ppp(bytes: &[u8]) -> bool {
    let Ok(ppp) = Ppp::new(bytes) else {
        return false;
    };
    let version = bytes.get(ppp.header_len()).map(|it| it >> 4);
    ppp.header_len() > 1
        && match ppp.next() {
            Next::Ethertype(ethertype::IPV4) => version == Some(4),
            Next::Ethertype(ethertype::IPV6) => version == Some(6),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8], over_ip: bool) -> Result<(usize, Next), Malformed> {
        L2tp::new(bytes, over_ip).map(|it| (it.header_len(), it.next()))
    }

    #[test]
    fn optional_fields_of_version_2_are_counted() {
        for (flags, len) in [
            (0x0002_u16, 6),
            (0x4002, 8),
            (0x0802, 10),
            (0x4802, 12),
            (0x0202, 11),
            (0x4b02, 17),
        ] {
            let mut bytes = flags.to_be_bytes().to_vec();
            bytes.resize(20, 0);
            let offset = len - 5;
            if flags & 0x0200 != 0 {
                bytes[offset..offset + 2].copy_from_slice(&[0, 3]);
            }
            assert_eq!(parse(&bytes, false), Ok((len, Next::Ppp)), "{flags:04x}");
            assert_eq!(parse(&bytes[..len - 1], false), Err(Malformed::TunnelShort));
        }
        // Control messages, version 1, reserved bits.
        for flags in [0xc802_u16, 0x0001, 0x1002, 0x8003] {
            let [high, low] = flags.to_be_bytes();
            let bytes = [high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(parse(&bytes, false).unwrap().1, Next::Payload);
        }
    }

    #[test]
    fn content_of_version_3_is_found_after_cookie_and_sublayer() {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45];
        frame.resize(40, 0);
        let ppp = [0xff, 3, 0, 0x21, 0x45, 0, 0, 0];
        for skipped in [0, 4, 8, 12] {
            let optional = &[0x40, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9][..skipped];
            for (header, over_ip) in [
                (&[0, 3, 0, 0, 0, 0, 0, 7][..], false),
                (&[0, 0, 0, 7], true),
            ] {
                let bytes = [header, optional, &frame].concat();
                let len = header.len() + skipped;
                assert_eq!(parse(&bytes, over_ip), Ok((len, Next::Ethernet)));
                let bytes = [header, optional, &ppp].concat();
                assert_eq!(parse(&bytes, over_ip), Ok((len, Next::Ppp)));
            }
        }
        let control = [0; 20];
        assert_eq!(parse(&control, true), Ok((4, Next::Payload)));
        assert_eq!(parse(&[0, 0, 0, 7, 1, 2, 3], true), Ok((4, Next::Payload)));
        assert_eq!(parse(&[0, 0, 0], true), Err(Malformed::TunnelShort));
        assert_eq!(parse(&[0, 3, 0, 0, 0], false), Err(Malformed::TunnelShort));
    }
}
