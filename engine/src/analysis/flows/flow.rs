//! One flow as it is kept while it lasts.

use super::seen::SeenFrame;
use crate::{
    analysis::flow_table::{Entry, Key},
    frame::{FiveTuple, protocol},
};
use wqcap_names::{Kind, Names};

/// Payloads of a flow that are read for names, each way: who keeps a connection asks for many things.
const SHARE: u8 = 4;

/// What went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// Frames.
    pub frames: u64,
    /// Their bytes on the wire, without FCS.
    pub bytes: u64,
    /// Stamp of the first, in nanoseconds since 1970; 0 where there are no frames.
    pub first_ns: u64,
    /// Stamp of the last.
    pub last_ns: u64,
}

impl Direction {
    #[inline]
    fn count(&mut self, len: u32, ns: u64) {
        if self.frames == 0 {
            self.first_ns = ns;
        }
        self.frames += 1;
        self.bytes += u64::from(len);
        self.last_ns = ns;
    }
}

/// A flow, as far as its frames touch it: two cache lines, and both of one pair, which some processors fetch together.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(super) struct FlowEntry {
    key: Key,
    hash: u32,
    /// Whether its first frame went from the lower end to the other.
    upward: bool,
    /// Whether it came in a tunnel.
    tunnel: bool,
    flags: [u8; 2],
    /// Ethertype of the first frame's innermost packet.
    ethertype: u16,
    /// Type and code of the first frame's ICMP message.
    icmp: Option<[u8; 2]>,
    /// Payloads that were read for names, by way.
    read: [u8; 2],
    _pad: u8,
    /// As the first frame went, and the other way.
    ways: [Direction; 2],
}

impl Entry for FlowEntry {
    #[inline]
    fn key(&self) -> &Key {
        &self.key
    }

    #[inline]
    fn hash(&self) -> u32 {
        self.hash
    }
}

impl FlowEntry {
    /// A flow without any frame yet, not even this first one.
    pub(super) fn begin(first: &SeenFrame) -> Self {
        Self {
            key: first.key,
            hash: first.hash,
            upward: first.upward,
            tunnel: first.tunnel,
            flags: [0; 2],
            ethertype: first.ethertype,
            icmp: first.icmp,
            read: [0; 2],
            _pad: 0,
            ways: [Direction::default(); 2],
        }
    }

    /// Counts a frame.
    #[inline]
    pub(super) fn count(&mut self, frame: &SeenFrame) {
        let way = usize::from(frame.upward != self.upward);
        self.flags[way] |= frame.flags;
        self.ways[way].count(frame.len, frame.ns);
    }

    /// The way of a payload that may tell a name, if it is to be read; `None`: the flow has had its share. Each message of DNS
    /// and of DHCP is read.
    pub(super) fn share(&mut self, upward: bool, kind: Kind) -> Option<usize> {
        let way = usize::from(upward != self.upward);
        if !matches!(kind, Kind::Dns | Kind::Dhcp | Kind::Dhcpv6) {
            if self.read[way] == SHARE {
                return None;
            }
            self.read[way] += 1;
        }
        Some(way)
    }

    /// Stamp of its first frame.
    #[inline]
    pub(super) fn first_ns(&self) -> u64 {
        self.ways[0].first_ns
    }

    /// Stamp of its last frame.
    #[inline]
    pub(super) fn last_ns(&self) -> u64 {
        self.ways[0].last_ns.max(self.ways[1].last_ns)
    }

    /// As it is written, with its first frame's outermost packet.
    pub(super) fn record(&self, outer: FiveTuple, queue: u16, end: FlowEndReason) -> FlowRecord {
        let ends = self.key.ends();
        FlowRecord {
            tuple: if self.upward { ends } else { ends.reversed() },
            vlans: self.key.vlans(),
            network: self.key.network(),
            ethertype: self.ethertype,
            icmp: self.icmp,
            outer: self.tunnel.then_some(outer),
            ways: self.ways,
            tcp_flags: (ends.version != 0 && ends.protocol == protocol::TCP).then_some(self.flags),
            queue,
            end,
            names: None,
        }
    }
}

/// Why a record was written: a word of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum FlowEndReason {
    /// Nothing came for `flows.idle`.
    Idle,
    /// It lasted for `flows.active`; what comes goes into another record.
    Active,
    /// Another flow needed its place.
    Evicted,
    /// The capture ended.
    Stopped,
}

/// One line of the flow records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// The innermost packet's ends as the first frame went. Without IP: MAC addresses in the first six bytes.
    pub tuple: FiveTuple,
    /// VLAN identifiers of the two outermost tags; [`crate::frame::FlowKey::UNTAGGED`] where there is none.
    pub vlans: [u16; 2],
    /// VXLAN or Geneve network identifier.
    pub network: Option<u32>,
    /// Ethertype of the first frame's innermost packet.
    pub ethertype: u16,
    /// Type and code of the first frame's ICMP message; `None` of other protocols.
    pub icmp: Option<[u8; 2]>,
    /// The first frame's outermost packet, if that is another than the innermost.
    pub outer: Option<FiveTuple>,
    /// As the first frame went, and the other way.
    pub ways: [Direction; 2],
    /// All control bits that were seen, by way; of TCP alone.
    pub tcp_flags: Option<[u8; 2]>,
    /// The queue that it came on.
    pub queue: u16,
    /// Why it ended here.
    pub end: FlowEndReason,
    /// What its first bytes told; `None`: nothing, or nobody asked.
    pub names: Option<Box<Names>>,
}

impl FlowRecord {
    /// Stamp of its first frame.
    pub(super) fn first_ns(&self) -> u64 {
        self.ways[0].first_ns
    }

    /// Frames both ways.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.ways[0].frames + self.ways[1].frames
    }

    /// Bytes both ways.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ways[0].bytes + self.ways[1].bytes
    }
}
