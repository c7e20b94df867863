//! One line of the flow records.

use wqcap_frame::FiveTuple;
use wqcap_names::Names;

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
    /// VLAN identifiers of the two outermost tags; [`wqcap_frame::FlowKey::UNTAGGED`] where there is none.
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
