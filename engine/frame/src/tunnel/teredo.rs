//! Teredo headers (IPv6 through NATs), and EtherIP.

use crate::{
    field::{be16, fixed_header, parsed_header},
    ip::Ipv6,
    malformed::Malformed,
    next::Next,
    numbers::ethertype,
};

parsed_header! {
    /// Parsed headers of a Teredo packet before IPv6: RFC 4380 section 5.1.1.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0..2 | 1 for an authentication header, 0 for an origin indication |
    /// | 2.. | authentication: lengths of identifier and value, both, nonce (8 bytes), confirmation |
    /// | 2..8 | origin: port, address |
    Teredo
}

impl Teredo {
    /// Parses the headers of a Teredo packet before IPv6; both are optional.
    ///
    /// # Errors
    /// `bytes` is empty or ends within a header.
    pub fn new(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.is_empty() {
            return Err(Malformed::TunnelShort);
        }
        let mut len = 0;
        if let [0, 1, identifier, value, ..] = *bytes {
            len = 4 + usize::from(identifier) + usize::from(value) + 9;
        }
        let rest = bytes.get(len..).ok_or(Malformed::TunnelShort)?;
        if let [0, 0, ..] = rest {
            len += 8;
        }
        let rest = bytes.get(len..).ok_or(Malformed::TunnelShort)?;
        let next = match Ipv6::new(rest) {
            Ok(_) => Next::Ethertype(ethertype::IPV6),
            Err(_) => Next::Payload,
        };
        Ok(Self { len, next })
    }
}

fixed_header! {
    /// View of an EtherIP header: RFC 3378 section 3.
    ///
    /// | bits | field |
    /// |---|---|
    /// | 0..4 | version, 3 |
    /// | 4..16 | reserved |
    EtherIp: 2, TunnelShort
}

impl EtherIp<'_> {
    /// Returns the type of the frame that EtherIP carries: Ethernet in version 3.
    #[must_use]
    pub fn next(&self) -> Next {
        match be16(self.0[0], self.0[1]) >> 12 {
            3 => Next::Ethernet,
            _ => Next::Payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_headers_are_optional() {
        let authentication = [0, 1, 2, 1, 7, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0];
        let origin = [0, 0, 0xe0, 0x10, 1, 2, 3, 4];
        let mut ip = [0; 40];
        ip[0] = 0x60;
        for headers in [
            &[][..],
            &authentication,
            &origin,
            &[&authentication[..], &origin].concat(),
        ] {
            let bytes = [headers, &ip].concat();
            let teredo = Teredo::new(&bytes).unwrap();
            assert_eq!(teredo.header_len(), headers.len());
            assert_eq!(teredo.next(), Next::Ethertype(ethertype::IPV6));
        }
        assert_eq!(Teredo::new(&[4; 40]).unwrap().next(), Next::Payload);
        let short = Teredo::new(&authentication[..9]).unwrap_err();
        assert_eq!(short, Malformed::TunnelShort);
    }

    #[test]
    fn ether_ip_has_version_3() {
        assert_eq!(EtherIp::new(&[0x30, 0, 9]).unwrap().next(), Next::Ethernet);
        assert_eq!(EtherIp::new(&[0x20, 0]).unwrap().next(), Next::Payload);
        assert_eq!(EtherIp::new(&[0x30]).unwrap_err(), Malformed::TunnelShort);
    }
}
