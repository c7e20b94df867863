//! TIRs, which RSS QPs are in the NIC: a hash over chosen fields, and the table that it indexes.
//!
//! Imports `frame`, `tunnel` and the crate `wqcap-rss`. Invariant: the table has 2^n entries.

use std::sync::Arc;

use wqcap_rss::{HashFields, L3, L4, Selection, Toeplitz};

use crate::frame::ParsedFrame;
use crate::handles::Index;

use super::tunnel::InnerFrame;

/// What a TIR hashes of one kind of frame.
#[derive(Clone, Copy)]
struct HashInput {
    selection: Selection,
    /// `rss_hash_type` of the CQE.
    hash_type: u8,
}

/// A transport interface receive object (PRM "TIR").
pub struct Tir {
    /// Shared by all QPs with the key.
    toeplitz: Arc<Toeplitz>,
    /// What is hashed, by network layer and transport.
    hashed: [[Option<HashInput>; 3]; 3],
    /// Whether inner headers are hashed (`MLX5_RX_HASH_INNER`).
    inner: bool,
    /// Receive queues.
    table: Box<[Index]>,
}

/// The queue that RSS selects for a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RssResult {
    pub rq: Index,
    /// The hash; 0 if there is none.
    pub hash: u32,
    /// `rss_hash_type` of the CQE.
    pub hash_type: u8,
}

impl Tir {
    /// A TIR over `table` with a hash of `fields`, of the inner headers if `inner`.
    pub fn new(
        toeplitz: Arc<Toeplitz>,
        fields: HashFields,
        inner: bool,
        table: Box<[Index]>,
    ) -> Self {
        let hashed = |l3, l4| {
            let selection = Selection::of(fields, l3, l4)?;
            let hash_type = hash_type(fields, l3, l4);
            Some(HashInput {
                selection,
                hash_type,
            })
        };
        // In the order of their discriminants.
        let hashed = [L3::None, L3::Ipv4, L3::Ipv6]
            .map(|l3| [L4::None, L4::Tcp, L4::Udp].map(|l4| hashed(l3, l4)));
        Self {
            toeplitz,
            hashed,
            inner,
            table,
        }
    }

    /// The queue of a frame. The hash of one without the fields is unspecified on hardware; here it is 0, the table's
    /// first entry.
    #[inline(always)]
    pub fn select(&self, frame: &ParsedFrame<'_>) -> RssResult {
        let (hash, hash_type) = if self.inner {
            self.hash_inner(frame)
        } else {
            self.hash(frame)
        };
        let entry = hash as usize & self.table.len().wrapping_sub(1);
        RssResult {
            rq: self.table.get(entry).copied().unwrap_or(Index::MAX),
            hash,
            hash_type,
        }
    }

    #[inline(always)]
    fn hash(&self, frame: &ParsedFrame<'_>) -> (u32, u8) {
        let class = frame.class;
        let Some(hashed) = &self.hashed[class.l3 as usize][class.l4 as usize] else {
            return (0, 0);
        };
        match hashed.selection.hash(frame.bytes, class, &self.toeplitz) {
            Some(hash) => (hash, hashed.hash_type),
            None => (0, 0),
        }
    }

    #[cold]
    fn hash_inner(&self, frame: &ParsedFrame<'_>) -> (u32, u8) {
        InnerFrame::of(frame).map_or((0, 0), |inner| self.hash(&inner.parsed()))
    }
}

/// Two bits each: source and destination address (1 IPv4, 2 IPv6), source and destination port (1 TCP, 2 UDP).
fn hash_type(fields: HashFields, l3: L3, l4: L4) -> u8 {
    let (source, destination, ip) = match l3 {
        L3::None => return 0,
        L3::Ipv4 => (HashFields::SRC_IPV4, HashFields::DST_IPV4, 1),
        L3::Ipv6 => (HashFields::SRC_IPV6, HashFields::DST_IPV6, 2),
    };
    let two = |chosen: HashFields, value: u8| {
        if fields.intersects(chosen) { value } else { 0 }
    };
    let addresses = two(source, ip) | two(destination, ip << 2);
    let (source, destination, transport) = match l4 {
        L4::None => return addresses,
        L4::Tcp => (HashFields::SRC_PORT_TCP, HashFields::DST_PORT_TCP, 1u8),
        L4::Udp => (HashFields::SRC_PORT_UDP, HashFields::DST_PORT_UDP, 2),
    };
    addresses | two(source, transport << 4) | two(destination, transport << 6)
}
