//! UDP, and the tunnels that ports announce.

use crate::{
    field::{be16, ports},
    malformed::Malformed,
    next::Next,
};

/// A UDP header: RFC 768.
///
/// | bytes | field |
/// |---|---|
/// | 0..2 | source port |
/// | 2..4 | destination port |
/// | 4..6 | length, the header's included |
/// | 6..8 | checksum |
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    header: &'a [u8; 8],
    available: usize,
}

impl<'a> Udp<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    /// Checks that the header is whole.
    ///
    /// # Errors
    /// It is not.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = bytes.first_chunk().ok_or(Malformed::UdpShort)?;
        Ok(Self {
            header,
            available: bytes.len(),
        })
    }

    /// Bytes of header and payload, as told.
    #[inline]
    #[must_use]
    pub fn length(&self) -> u16 {
        be16(self.header[4], self.header[5])
    }

    /// What the length contradicts. 0 stands for more than the field can tell (RFC 2675).
    #[inline]
    #[must_use]
    pub fn fault(&self) -> Option<Malformed> {
        match usize::from(self.length()) {
            0 => None,
            told if told < Self::LEN || told > self.available => Some(Malformed::UdpLength),
            _ => None,
        }
    }

    /// What follows. Only the destination port announces a tunnel: the source port is the sender's to choose.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Next {
        match self.dst_port() {
            // RFC 8926.
            6081 => Next::Geneve,
            // RFC 7348, and the port that Linux had before one was assigned.
            4789 | 8472 => Next::Vxlan(false),
            // draft-ietf-nvo3-vxlan-gpe.
            4790 => Next::Vxlan(true),
            // 3GPP TS 29.281 section 4.4.2.
            2152 => Next::Gtp,
            // RFC 7510.
            6635 => Next::Mpls,
            _ => Next::Payload,
        }
    }
}

ports!(Udp.header);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let bytes = [0x12, 0xb5, 0x17, 0xc1, 0, 9, 0, 0, 1];
        let udp = Udp::new(&bytes).unwrap();
        assert_eq!((udp.src_port(), udp.dst_port()), (4789, 6081));
        assert_eq!((udp.fault(), udp.next()), (None, Next::Geneve));
        assert_eq!(Udp::new(&bytes[..7]).unwrap_err(), Malformed::UdpShort);
        let short = Udp::new(&bytes[..8]).unwrap();
        assert_eq!(short.fault(), Some(Malformed::UdpLength));
    }
}
