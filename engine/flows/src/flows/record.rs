//! Flow record: one row of the flows table.

use std::sync::Arc;
use wqcap_frame::FiveTuple;
use wqcap_names::Names;

/// Number of frames and bytes of a flow in one direction, and the times of its first and last
/// frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// Number of frames of the flow in this direction.
    pub frames: u64,
    /// Number of bytes on the wire of the flow in one direction, without FCS.
    pub bytes: u64,
    /// Time stamp of the flow's first frame in one direction, in nanoseconds since 1970; 0 without
    /// frames.
    pub first_ns: u64,
    /// Time stamp of the flow's last frame in one direction, in nanoseconds since 1970.
    pub last_ns: u64,
}

/// Reason for the end of a flow record, written to the column `ended_by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum FlowEndReason {
    /// The flow record ended because no frame arrived for `flows.idle`.
    Idle,
    /// The flow record ended because it lasted for `flows.active`; later frames go into another
    /// record.
    Active,
    /// The flow record ended because a SYN opened another TCP connection with the same addresses
    /// and ports.
    Reused,
    /// The flow record ended because the flow table was full and another flow needed the place.
    Evicted,
    /// The flow record ended because the capture ended.
    Stopped,
}

/// Flow record: one row of the flows table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowRecord {
    /// Addresses, ports and protocol of the flow's innermost packet, in the direction of the first
    /// frame. Without IP: MAC addresses in the first six bytes.
    pub tuple: FiveTuple,
    /// VLAN identifiers of the flow's two outermost tags; [`wqcap_frame::FlowKey::UNTAGGED`] for a
    /// missing tag.
    pub vlans: [u16; 2],
    /// VXLAN or Geneve network identifier of the flow.
    pub network: Option<u32>,
    /// Ethertype of the innermost packet of the flow's first frame.
    pub ethertype: u16,
    /// Type and code of the ICMP message in the flow's first frame; `None` for other protocols.
    pub icmp: Option<[u8; 2]>,
    /// Addresses, ports and protocol of the outermost packet of the flow's first frame, if it is
    /// not the innermost one.
    pub outer: Option<FiveTuple>,
    /// Number of frames and bytes of the flow in the direction of the first frame, and in the
    /// opposite direction.
    pub ways: [Direction; 2],
    /// All TCP control bits of the flow's frames, by direction; `None` for other protocols.
    pub tcp_flags: Option<[u8; 2]>,
    /// Index of the queue that received the flow's frames; 0 if the frames of several ports were
    /// merged.
    pub queue: u16,
    /// Labels of the ports that received the first frame of each direction; `None` for a direction
    /// without frames.
    pub ports: [Option<Arc<str>>; 2],
    /// Reason why the flow record ended.
    pub end: FlowEndReason,
    /// Names read from the flow's first payloads; `None`: no name was found, or names are not read.
    pub names: Option<Box<Names>>,
}

impl FlowRecord {
    /// Returns the time stamp of the flow's first frame, in nanoseconds since 1970.
    pub(super) fn first_ns(&self) -> u64 {
        self.ways[0].first_ns
    }

    /// Returns the number of the flow's frames in both directions.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.ways[0].frames + self.ways[1].frames
    }

    /// Returns the number of bytes on the wire of the flow in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ways[0].bytes + self.ways[1].bytes
    }
}
