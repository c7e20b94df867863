//! Selection of the frame bytes that enter a hash. It is computed once per kind of frame, so that
//! hashing a frame only reads bytes.
//!
//! **May import** `input`, `profile`, `toeplitz`, and `core`/`std`.
//!
//! **Invariant**: a selection exists exactly where hardware specifies the hash, and hashing does
//! not panic on any frame.

use crate::input::{FrameClass, L3, L4};
use crate::profile::HashFields;
use crate::toeplitz::Toeplitz;

/// Range of header bytes that enter a hash, at a fixed offset from the start of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ByteRun {
    at: u8,
    len: u8,
}

impl ByteRun {
    /// Returns the byte run of the selected ones of two adjacent header fields of `len` bytes, the
    /// first of which is at `at`.
    const fn of_pair(at: u8, len: u8, source: bool, destination: bool) -> Self {
        match (source, destination) {
            (true, true) => Self { at, len: len * 2 },
            (true, false) => Self { at, len },
            (false, true) => Self { at: at + len, len },
            (false, false) => Self { at, len: 0 },
        }
    }

    /// Returns the byte run in `frame` for a header at `offset`; `None` if the frame is too short.
    #[inline(always)]
    fn bytes_in(self, frame: &[u8], offset: u16) -> Option<&[u8]> {
        let at = usize::from(offset) + usize::from(self.at);
        frame.get(at..at + usize::from(self.len))
    }
}

/// Header bytes that an RSS QP hashes in frames of one L3 and L4 type. They are in Microsoft's
/// order (source address, destination address, source port, destination port), without gaps for
/// unselected fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    addresses: ByteRun,
    ports: ByteRun,
    /// `true` if both addresses and both ports enter the RSS hash.
    is_whole: bool,
    /// Length in bytes of an IP header that ends with its addresses: 20 for IPv4, 40 for IPv6.
    header: u8,
}

impl Selection {
    /// Returns the header bytes that `fields` select for the RSS hash of a frame of these L3 and L4
    /// types.
    ///
    /// `None` where hardware leaves the hash unspecified: no fields; fields of an L3 or L4 type
    /// that the frame does not have, or of two such types at once; fields other than outer
    /// addresses and ports. Ports without addresses are valid with either IP version.
    #[must_use]
    pub const fn for_fields(fields: HashFields, l3: L3, l4: L4) -> Option<Self> {
        // Field bits of the addresses, their offset in the IP header, and the bytes of one address.
        let (source, destination, at, len) = match l3 {
            L3::None => return None,
            L3::Ipv4 => (HashFields::SRC_IPV4, HashFields::DST_IPV4, 12, 4),
            L3::Ipv6 => (HashFields::SRC_IPV6, HashFields::DST_IPV6, 8, 16),
        };
        let (source_port, destination_port) = match l4 {
            L4::None => (HashFields::NONE, HashFields::NONE),
            L4::Tcp => (HashFields::SRC_PORT_TCP, HashFields::DST_PORT_TCP),
            L4::Udp => (HashFields::SRC_PORT_UDP, HashFields::DST_PORT_UDP),
        };
        let all = source
            .union(destination)
            .union(source_port)
            .union(destination_port);
        if fields.is_empty() || !all.contains(fields) {
            return None;
        }
        Some(Self {
            is_whole: fields.contains(all) && !matches!(l4, L4::None),
            header: at + 2 * len,
            addresses: ByteRun::of_pair(
                at,
                len,
                fields.intersects(source),
                fields.intersects(destination),
            ),
            ports: ByteRun::of_pair(
                0,
                2,
                fields.intersects(source_port),
                fields.intersects(destination_port),
            ),
        })
    }

    /// Returns the Toeplitz hash of a frame that has the L3 and L4 types of the selection; `None`
    /// if its L4 header is truncated.
    #[inline(always)]
    #[must_use]
    pub fn hash(&self, frame: &[u8], class: &FrameClass, toeplitz: &Toeplitz) -> Option<u32> {
        if class.truncated_l4 {
            return None;
        }
        // Fast path for nearly every frame: both addresses, directly followed by both ports.
        if self.is_whole && class.l4_offset.wrapping_sub(class.l3_offset) == u16::from(self.header)
        {
            let at = usize::from(class.l3_offset) + usize::from(self.addresses.at);
            let fields = frame.get(at..)?;
            return Some(match self.addresses.len {
                8 => toeplitz.hash_all::<12>(fields.first_chunk()?),
                _ => toeplitz.hash_all::<36>(fields.first_chunk()?),
            });
        }
        let addresses = self.addresses.bytes_in(frame, class.l3_offset)?;
        let ports = self.ports.bytes_in(frame, class.l4_offset)?;
        Some(toeplitz.update(toeplitz.hash(addresses), addresses.len(), ports))
    }
}

impl FrameClass {
    /// Returns the Toeplitz hash that an RSS QP with `fields` computes for the frame that this
    /// class was made from. `None` where hardware leaves it unspecified: [`Selection::for_fields`]
    /// selects nothing, or the L4 header is truncated.
    #[inline]
    #[must_use]
    pub fn hash(&self, frame: &[u8], fields: HashFields, toeplitz: &Toeplitz) -> Option<u32> {
        Selection::for_fields(fields, self.l3, self.l4)?.hash(frame, self, toeplitz)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_choose_bytes_where_the_frame_has_them() {
        let run = |at, len| ByteRun { at, len };
        let of = |fields| Selection::for_fields(fields, L3::Ipv4, L4::Udp);
        let all = Selection {
            addresses: run(12, 8),
            ports: run(0, 4),
            is_whole: true,
            header: 20,
        };
        assert_eq!(of(HashFields::IPV4 | HashFields::UDP_PORTS), Some(all));
        let some = Selection {
            addresses: run(16, 4),
            ports: run(0, 2),
            is_whole: false,
            header: 20,
        };
        assert_eq!(
            of(HashFields::DST_IPV4 | HashFields::SRC_PORT_UDP),
            Some(some)
        );
        assert_eq!(of(HashFields::NONE), None);
        assert_eq!(of(HashFields::IPV4 | HashFields::TCP_PORTS), None);
        assert_eq!(of(HashFields::IPV4 | HashFields::IPSEC_SPI), None);
        let six = Selection::for_fields(HashFields::SRC_IPV6, L3::Ipv6, L4::None);
        assert_eq!(
            six,
            Some(Selection {
                addresses: run(8, 16),
                ports: run(0, 0),
                is_whole: false,
                header: 40,
            })
        );
        assert_eq!(
            Selection::for_fields(HashFields::IPV4, L3::None, L4::None),
            None
        );
    }
}
