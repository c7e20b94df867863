//! UDP headers, and the tunnels identified by UDP ports.

use crate::{
    field::{be16, ports},
    malformed::Malformed,
    next::Next,
};

/// View of a UDP header: RFC 768.
///
/// | bytes | field |
/// |---|---|
/// | 0..2 | source port |
/// | 2..4 | destination port |
/// | 4..6 | length of header and payload |
/// | 6..8 | checksum |
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    header: &'a [u8; 8],
    available: usize,
}

impl<'a> Udp<'a> {
    /// Length of the UDP header in bytes.
    pub const LEN: usize = 8;

    /// Checks that all bytes of the UDP header are present.
    ///
    /// # Errors
    /// `bytes` ends within the header.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = bytes.first_chunk().ok_or(Malformed::UdpShort)?;
        Ok(Self {
            header,
            available: bytes.len(),
        })
    }

    /// Returns the UDP length field: bytes of header and payload, unchecked.
    #[inline]
    #[must_use]
    pub fn length(&self) -> u16 {
        be16(self.header[4], self.header[5])
    }

    /// Returns a fault if the UDP length is below 8 or exceeds the packet. Length 0 is valid: it
    /// stands for lengths above 65535 (RFC 2675).
    #[inline]
    #[must_use]
    pub fn fault(&self) -> Option<Malformed> {
        match usize::from(self.length()) {
            0 => None,
            length if length < Self::LEN || length > self.available => Some(Malformed::UdpLength),
            _ => None,
        }
    }

    /// Returns the type of the UDP payload. The destination port identifies most tunnels, because
    /// the sender may choose any source port. With CAPWAP, L2TP and Teredo, the answers of the end
    /// with the known port go to a chosen one.
    #[inline]
    #[must_use]
    pub fn next(&self) -> Next {
        match self.dst_port() {
            // RFC 8926.
            6081 => Next::Geneve,
            // RFC 7348, and the port that Linux used before a port was assigned.
            4789 | 8472 => Next::Vxlan(false),
            // draft-ietf-nvo3-vxlan-gpe.
            4790 => Next::Vxlan(true),
            // 3GPP TS 29.281 section 4.4.2.
            2152 => Next::Gtp,
            // RFC 7510.
            6635 => Next::Mpls,
            port if is_candidate(port) | is_candidate(self.src_port()) => self.rare_next(),
            _ => Next::Payload,
        }
    }

    /// Returns the type of the UDP payload for the tunnels that few networks have.
    #[cold]
    #[inline(never)]
    fn rare_next(&self) -> Next {
        let of_either = |port| match port {
            // RFC 2661 section 8.1, RFC 3931 section 4.1.2.
            L2TP => Some(Next::L2tp(false)),
            // RFC 4380 section 2.7.
            TEREDO => Some(Next::Teredo),
            // RFC 5415 section 14.1: the data channel.
            CAPWAP => Some(Next::Capwap),
            _ => None,
        };
        match self.dst_port() {
            // RFC 8086.
            GRE => Next::Gre,
            // Registered with IANA as "tzsp".
            TZSP => Next::Tzsp,
            port => of_either(port)
                .or_else(|| of_either(self.src_port()))
                .unwrap_or(Next::Payload),
        }
    }
}

const GRE: u16 = 4754;
const TZSP: u16 = 37008;
const L2TP: u16 = 1701;
const TEREDO: u16 = 3544;
const CAPWAP: u16 = 5247;

/// Returns `true` for the UDP ports of [`Udp::rare_next`], and for a few others: only the last six
/// bits are compared, all at once.
#[inline]
fn is_candidate(port: u16) -> bool {
    const LAST_BITS: u64 = 1 << (GRE % 64)
        | 1 << (TZSP % 64)
        | 1 << (L2TP % 64)
        | 1 << (TEREDO % 64)
        | 1 << (CAPWAP % 64);
    LAST_BITS >> (port % 64) & 1 != 0
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

    #[test]
    fn answers_in_some_tunnels_have_the_known_port_as_source() {
        let next = |src: u16, dst: u16| {
            let ports = [src.to_be_bytes(), dst.to_be_bytes(), [0; 2], [0; 2]];
            Udp::new(ports.as_flattened()).unwrap().next()
        };
        for (port, tunnel) in [
            (1701, Next::L2tp(false)),
            (3544, Next::Teredo),
            (5247, Next::Capwap),
        ] {
            assert_eq!([next(port, 9), next(9, port)], [tunnel; 2]);
        }
        for (port, tunnel) in [(4754, Next::Gre), (37008, Next::Tzsp)] {
            assert_eq!([next(port, 9), next(9, port)], [Next::Payload, tunnel]);
        }
    }
}
