//! What an RSS QP is in the NIC: a hash over chosen fields, and the table it leads into.
//!
//! May import `rss`, `frame`, `tunnel`, `objects`. Invariant: the table has 2^n entries, so that every
//! hash has a place in it.

use std::sync::Arc;

use rss::{HashFields, L3, L4, Toeplitz};

use crate::frame::Arrival;
use crate::objects::Index;

use super::tunnel::Inner;

/// A transport interface receive object (PRM "TIR").
pub struct Tir {
    /// Shared by all QPs with the key.
    pub toeplitz: Arc<Toeplitz>,
    /// What is hashed.
    pub fields: HashFields,
    /// Whether inner headers are (`MLX5_RX_HASH_INNER`).
    pub inner: bool,
    /// Receive queues.
    pub table: Box<[Index]>,
}

/// Where a frame goes, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spread {
    /// The receive queue.
    pub rq: Index,
    /// The hash; 0 if there is none.
    pub hash: u32,
    /// `rss_hash_type` of the CQE.
    pub hash_type: u8,
}

impl Tir {
    /// Where a frame goes. The hash of one that has not the fields is unspecified on hardware; here it
    /// is 0, the table's first entry.
    #[inline(always)]
    pub fn spread(&self, frame: &Arrival<'_>) -> Spread {
        let (hash, hash_type) = if self.inner {
            self.hash_inner(frame)
        } else {
            self.hash(frame)
        };
        let entry = hash as usize & self.table.len().wrapping_sub(1);
        Spread {
            rq: self.table.get(entry).copied().unwrap_or(Index::MAX),
            hash,
            hash_type,
        }
    }

    #[inline(always)]
    fn hash(&self, frame: &Arrival<'_>) -> (u32, u8) {
        match frame.class.hash(frame.bytes, self.fields, &self.toeplitz) {
            Some(hash) => (hash, self.hash_type(frame)),
            None => (0, 0),
        }
    }

    #[cold]
    fn hash_inner(&self, frame: &Arrival<'_>) -> (u32, u8) {
        Inner::of(frame).map_or((0, 0), |inner| self.hash(&inner.arrival()))
    }

    /// Two bits each: source and destination address (1 IPv4, 2 IPv6), source and destination port (1 TCP,
    /// 2 UDP).
    #[inline(always)]
    fn hash_type(&self, frame: &Arrival<'_>) -> u8 {
        let (source, destination, ip) = match frame.class.l3 {
            L3::None => return 0,
            L3::Ipv4 => (HashFields::SRC_IPV4, HashFields::DST_IPV4, 1),
            L3::Ipv6 => (HashFields::SRC_IPV6, HashFields::DST_IPV6, 2),
        };
        let two = |fields: HashFields, value: u8| {
            if self.fields.intersects(fields) {
                value
            } else {
                0
            }
        };
        let addresses = two(source, ip) | two(destination, ip << 2);
        let (source, destination, transport) = match frame.class.l4 {
            L4::None => return addresses,
            L4::Tcp => (HashFields::SRC_PORT_TCP, HashFields::DST_PORT_TCP, 1u8),
            L4::Udp => (HashFields::SRC_PORT_UDP, HashFields::DST_PORT_UDP, 2),
        };
        addresses | two(source, transport << 4) | two(destination, transport << 6)
    }
}
