//! View of TCP headers.

use crate::{
    field::{be16, ports},
    malformed::Malformed,
};

/// View of a TCP header: RFC 9293 section 3.1.
///
/// | bytes | field |
/// |---|---|
/// | 0..2 | source port |
/// | 2..4 | destination port |
/// | 4..8 | sequence number |
/// | 8..12 | acknowledgement number |
/// | 12 | data offset in words (4 bits), reserved |
/// | 13 | control bits: CWR, ECE, URG, ACK, PSH, RST, SYN, FIN |
/// | 14..16 | window |
/// | 16..18 | checksum |
/// | 18..20 | urgent pointer |
/// | 20.. | options |
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    header: &'a [u8; 20],
    bytes: &'a [u8],
}

impl<'a> Tcp<'a> {
    /// Length in bytes of a TCP header without options.
    pub const LEN: usize = 20;
    /// FIN, the TCP control bit for the end of the sender's data.
    pub const FIN: u8 = 1;
    /// SYN, the TCP control bit for the start of a connection.
    pub const SYN: u8 = 1 << 1;
    /// RST, the TCP control bit for the reset of a connection.
    pub const RST: u8 = 1 << 2;
    /// ACK, the TCP control bit for a valid acknowledgement number.
    pub const ACK: u8 = 1 << 4;

    /// Checks that the fixed part of a TCP header is present. Ports and flags are valid then, even
    /// if [`Tcp::extent`] fails.
    ///
    /// # Errors
    /// `bytes` ends within the fixed part.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = bytes.first_chunk().ok_or(Malformed::TcpShort)?;
        Ok(Self { header, bytes })
    }

    /// Returns the sequence number of the TCP segment.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> u32 {
        let [_, _, _, _, a, b, c, d, ..] = *self.header;
        u32::from_be_bytes([a, b, c, d])
    }

    /// Returns the acknowledgement number of the TCP segment, which is valid with [`Tcp::ACK`].
    #[inline]
    #[must_use]
    pub fn acknowledgement(&self) -> u32 {
        let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = *self.header;
        u32::from_be_bytes([a, b, c, d])
    }

    /// Returns the control bits (flags) of the TCP header.
    #[inline]
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.header[13]
    }

    /// Returns the length of the TCP header in bytes, options included.
    ///
    /// # Errors
    /// The data offset is below the length of the fixed part, or beyond the end of the packet.
    #[inline]
    pub fn extent(&self) -> Result<usize, Malformed> {
        let len = usize::from(self.header[12] >> 4) * 4;
        if len < Self::LEN {
            Err(Malformed::TcpHeaderLength)
        } else if len > self.bytes.len() {
            Err(Malformed::TcpShort)
        } else {
            Ok(len)
        }
    }
}

ports!(Tcp.header);

#[cfg(test)]
mod tests {
    use super::*;

    fn header(offset: u8) -> Vec<u8> {
        let mut bytes = vec![0, 80, 1, 0, 0, 0, 0, 1, 0, 0, 0, 2, offset << 4, 0x12];
        bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 2, 4, 5, 0xb4]);
        bytes
    }

    #[test]
    fn fields() {
        let bytes = header(6);
        let tcp = Tcp::new(&bytes).unwrap();
        assert_eq!((tcp.src_port(), tcp.dst_port()), (80, 256));
        assert_eq!((tcp.flags(), tcp.extent()), (0x12, Ok(24)));
        assert_eq!((tcp.sequence(), tcp.acknowledgement()), (1, 2));
    }

    #[test]
    fn contradicting_lengths_are_reported() {
        let extent = |offset| Tcp::new(&header(offset)).unwrap().extent();
        assert_eq!(extent(4), Err(Malformed::TcpHeaderLength));
        assert_eq!(extent(7), Err(Malformed::TcpShort));
        assert_eq!(Tcp::new(&header(5)[..19]).unwrap_err(), Malformed::TcpShort);
    }
}
