//! The 5-tuple.

use std::{
    fmt,
    hint::select_unpredictable,
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
    /// Of addresses as [`FiveTuple::src_bytes`] gives them, and ports, the source's first.
    #[inline]
    #[must_use]
    pub fn of_parts(
        [src, dst]: [[u8; 16]; 2],
        [src_port, dst_port]: [u16; 2],
        protocol: u8,
        version: u8,
    ) -> Self {
        Self {
            src,
            dst,
            src_port,
            dst_port,
            protocol,
            version,
        }
    }

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

    /// The same for both directions: the lower of (address, port) as its source. And whether it was so already.
    #[inline]
    #[must_use]
    pub fn ordered(&self) -> (Self, bool) {
        // As numbers they compare in a few instructions.
        let src = u128::from_be_bytes(self.src);
        let dst = u128::from_be_bytes(self.dst);
        let is_ordered = (src < dst) | ((src == dst) & (self.src_port <= self.dst_port));
        // Which end sends is chance: a branch would be mispredicted every other time.
        let lower = |a, b| select_unpredictable(is_ordered, a, b);
        let ports = [self.src_port, self.dst_port];
        let ordered = Self {
            src: lower(src, dst).to_be_bytes(),
            dst: lower(dst, src).to_be_bytes(),
            src_port: ports[usize::from(!is_ordered)],
            dst_port: ports[usize::from(is_ordered)],
            ..*self
        };
        (ordered, is_ordered)
    }

    /// A copy that does not wait for what parsing has just written: loads wider than those stores would stall until the
    /// stores have left the core.
    #[inline]
    #[must_use]
    pub fn fresh_copy(&self) -> Self {
        if self.version != 4 {
            return *self;
        }
        let address = |bytes: &[u8; 16]| {
            let [a, b, c, d, ..] = *bytes;
            widened([a, b, c, d])
        };
        Self {
            src: address(&self.src),
            dst: address(&self.dst),
            ..*self
        }
    }
}

/// An IPv4 address as a tuple keeps it.
#[inline]
pub(super) fn widened(address: [u8; 4]) -> [u8; 16] {
    u128::from(u32::from_le_bytes(address)).to_le_bytes()
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
