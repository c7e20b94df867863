//! Flow record: one row of the flows table.

use wqcap_frame::FiveTuple;
use wqcap_names::Names;

/// Frames of a flow in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// Number of frames in this direction.
    pub frames: u64,
    /// Bytes on the wire in this direction, without FCS.
    pub bytes: u64,
    /// Time stamp of the first frame in nanoseconds since 1970; 0 without frames.
    pub first_ns: u64,
    /// Time stamp of the last frame in nanoseconds since 1970.
    pub last_ns: u64,
}

/// Reason for the end of a record, written to the column `ended_by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum FlowEndReason {
    /// No frame arrived for `flows.idle`.
    Idle,
    /// The flow lasted for `flows.active`; later frames go into another record.
    Active,
    /// The table was full, and another flow needed the place.
    Evicted,
    /// The capture ended while the flow was open.
    Stopped,
}

/// Flow record: one row of the flows table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Ends of the innermost packet, in the direction of the first frame. Without IP: MAC addresses
    /// in the first six bytes.
    pub tuple: FiveTuple,
    /// VLAN identifiers of the two outermost tags; [`wqcap_frame::FlowKey::UNTAGGED`] for a
    /// missing tag.
    pub vlans: [u16; 2],
    /// VXLAN or Geneve network identifier.
    pub network: Option<u32>,
    /// Ethertype of the first frame's innermost packet.
    pub ethertype: u16,
    /// Type and code of the first frame's ICMP message; `None` for other protocols.
    pub icmp: Option<[u8; 2]>,
    /// Outermost packet of the first frame, if it is not the innermost one.
    pub outer: Option<FiveTuple>,
    /// Frames in the direction of the first frame, and in the other.
    pub ways: [Direction; 2],
    /// All TCP control bits that were seen, by direction; `None` for other protocols.
    pub tcp_flags: Option<[u8; 2]>,
    /// Queue that received the flow's frames.
    pub queue: u16,
    /// Reason for the end of the record.
    pub end: FlowEndReason,
    /// Names read from the first payloads; `None`: no name was found, or names are not read.
    pub names: Option<Box<Names>>,
}

impl FlowRecord {
    /// Time stamp of the flow's first frame, in nanoseconds since 1970.
    pub(super) fn first_ns(&self) -> u64 {
        self.ways[0].first_ns
    }

    /// Number of frames in both directions.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.ways[0].frames + self.ways[1].frames
    }

    /// Bytes in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ways[0].bytes + self.ways[1].bytes
    }
}
