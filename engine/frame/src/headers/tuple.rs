//! The 5-tuple of a packet: addresses, ports and protocol.

use std::{
    fmt,
    hint::select_unpredictable,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Addresses, ports and protocol of one direction of a flow. Ports are 0 if the packet has none
/// (ICMP, later fragments). All fields are 0 without IP.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FiveTuple {
    /// Source address of the 5-tuple in network order; IPv4 uses the first 4 bytes.
    pub(crate) src: [u8; 16],
    /// Destination address of the 5-tuple in network order; IPv4 uses the first 4 bytes.
    pub(crate) dst: [u8; 16],
    /// Source port of the 5-tuple; 0 if the packet has none.
    pub src_port: u16,
    /// Destination port of the 5-tuple; 0 if the packet has none.
    pub dst_port: u16,
    /// IP protocol number of the 5-tuple, after extension headers and AH.
    pub protocol: u8,
    /// IP version of the 5-tuple: 4, 6, or 0 for none.
    pub version: u8,
}

impl FiveTuple {
    /// Builds a 5-tuple from addresses in the format of [`FiveTuple::src_bytes`] and ports, source
    /// first.
    #[inline]
    #[must_use]
    pub fn from_parts(
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

    /// Returns the source address of the 5-tuple; `None` without IP.
    #[must_use]
    pub fn src(&self) -> Option<IpAddr> {
        self.address(self.src)
    }

    /// Returns the destination address of the 5-tuple; `None` without IP.
    #[must_use]
    pub fn dst(&self) -> Option<IpAddr> {
        self.address(self.dst)
    }

    /// Returns the source address of the 5-tuple in network order: IPv4 in the first 4 bytes, IPv6
    /// in all 16, zeros without IP.
    #[inline]
    #[must_use]
    pub fn src_bytes(&self) -> [u8; 16] {
        self.src
    }

    /// Returns the destination address of the 5-tuple in the format of [`FiveTuple::src_bytes`].
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

    /// Returns the 5-tuple of the flow's opposite direction.
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

    /// Returns the 5-tuple with the lower (address, port) pair as its source, so that both
    /// directions of a flow are equal; and `true` if it already had this order.
    #[inline]
    #[must_use]
    pub fn ordered(&self) -> (Self, bool) {
        // Addresses compared as integers take a few instructions.
        let src = u128::from_be_bytes(self.src);
        let dst = u128::from_be_bytes(self.dst);
        let is_ordered = (src < dst) | ((src == dst) & (self.src_port <= self.dst_port));
        // The direction is random, so half of all branches would be mispredicted.
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

    /// Returns a copy of the 5-tuple that avoids a store-forwarding stall: loads wider than the
    /// parser's recent stores would wait until those stores have left the core.
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

/// Returns an IPv4 address in the 16-byte format of [`FiveTuple`], zeros after its 4 bytes.
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
