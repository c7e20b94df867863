//! TIRs, the NIC's part of RSS QPs: a hash over chosen fields, and the table that the hash indexes.
//!
//! Imports `frame`, `tunnel` and the crate `wqcap-rss`. Invariant: the table has 2^n entries.

use std::sync::Arc;

use wqcap_rss::{HashFields, L3, L4, Selection, Toeplitz};

use crate::frame::ParsedFrame;
use crate::handles::Index;

use super::tunnel::InnerFrame;

/// Header fields that a TIR hashes in frames of one kind, such as TCP over IPv4.
#[derive(Clone, Copy)]
struct HashInput {
    selection: Selection,
    /// Value of `rss_hash_type` in the CQE of a frame.
    hash_type: u8,
}

/// Transport interface receive object (PRM "TIR"): hash and indirection table of an RSS QP.
pub struct Tir {
    /// RSS hash function (Toeplitz), shared by all QPs with the same key.
    toeplitz: Arc<Toeplitz>,
    /// Header fields that RSS hashes, by network layer and transport.
    hashed: [[Option<HashInput>; 3]; 3],
    /// Set when RSS hashes the inner headers (`MLX5_RX_HASH_INNER`).
    inner: bool,
    /// Indirection table of an RSS QP: receive queues, indexed by the hash.
    table: Box<[Index]>,
}

/// Receive queue that RSS selects for a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RssResult {
    pub rq: Index,
    /// RSS hash of a frame; 0 if nothing is hashed.
    pub hash: u32,
    /// Value of `rss_hash_type` in the CQE of the frame.
    pub hash_type: u8,
}

impl Tir {
    /// Creates a TIR over the indirection table `table` that hashes `fields`, of the inner headers
    /// if `inner`.
    pub fn new(
        toeplitz: Arc<Toeplitz>,
        fields: HashFields,
        inner: bool,
        table: Box<[Index]>,
    ) -> Self {
        let hashed = |l3, l4| {
            let selection = Selection::for_fields(fields, l3, l4)?;
            let hash_type = hash_type(fields, l3, l4);
            Some(HashInput {
                selection,
                hash_type,
            })
        };
        // Indexed by the discriminants of `L3` and `L4`.
        let hashed = [L3::None, L3::Ipv4, L3::Ipv6]
            .map(|l3| [L4::None, L4::Tcp, L4::Udp].map(|l4| hashed(l3, l4)));
        Self {
            toeplitz,
            hashed,
            inner,
            table,
        }
    }

    /// Selects the receive queue of a frame by RSS. On hardware the hash of a frame without the
    /// fields is unspecified; the model uses 0, the first entry of the indirection table.
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
        InnerFrame::parse(frame).map_or((0, 0), |inner| self.hash(&inner.parsed()))
    }
}

/// Encodes `rss_hash_type` of a CQE with two bits each for source and destination address (1 IPv4,
/// 2 IPv6) and source and destination port (1 TCP, 2 UDP).
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
