//! The 5-tuple.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Addresses, ports and protocol of one direction of a flow. Where there are no ports (ICMP, later fragments) they
/// are 0; where there is no IP, everything is.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FiveTuple {
    pub(crate) src: [u8; 16],
    pub(crate) dst: [u8; 16],
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// The last protocol number that was reached: behind extension headers and AH.
    pub protocol: u8,
    /// Of IP: 4, 6, or 0 for none.
    pub version: u8,
}

impl FiveTuple {
    /// Source address.
    #[must_use]
    pub fn src(&self) -> Option<IpAddr> {
        self.address(self.src)
    }

    /// Destination address.
    #[must_use]
    pub fn dst(&self) -> Option<IpAddr> {
        self.address(self.dst)
    }

    /// Source address in network order: the first 4 bytes of IPv4, all 16 of IPv6, zeros where there is no IP.
    #[inline]
    #[must_use]
    pub fn src_bytes(&self) -> [u8; 16] {
        self.src
    }

    /// Destination address, as [`FiveTuple::src_bytes`].
    #[inline]
    #[must_use]
    pub fn dst_bytes(&self) -> [u8; 16] {
        self.dst
    }

    fn address(&self, bytes: [u8; 16]) -> Option<IpAddr> {
        let [a, b, c, d, ..] = bytes;
        match self.version {
            4 => Some(Ipv4Addr::new(a, b, c, d).into()),
            6 => Some(Ipv6Addr::from(bytes).into()),
            _ => None,
        }
    }

    /// The other direction.
    #[inline]
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            ..*self
        }
    }
}

impl fmt::Debug for FiveTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.src(), self.dst()) {
            (Some(src), Some(dst)) => write!(
                f,
                "{src}:{} > {dst}:{} proto {}",
                self.src_port, self.dst_port, self.protocol
            ),
            _ => f.write_str("no IP"),
        }
    }
}
