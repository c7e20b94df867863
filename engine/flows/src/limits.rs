//! Limits of a cutoff: how much of each flow is kept, independent of the table that counts the
//! flows' frames.
//!
//! Flow records and the cutoff define a flow in the same way. If both are on, the table of the
//! records follows the limits too, so that each frame's flow is searched once. Otherwise the cutoff
//! has a separate table.
//!
//! May import: [`wqcap_frame::filter`], the flow table.

use crate::flow_table;
use derive_more::AddAssign;
use serde::Serialize;
use wqcap_core::consumer::Frame;
use wqcap_frame::{Tcp, filter::Filter};

/// Cutoff settings: limits on how much of each flow is captured.
#[derive(Clone, Debug, Serialize)]
pub struct CutoffPlan {
    /// Flow limits in the order of the configuration: the first one whose filter matches a flow's
    /// first frame applies. A flow without a match is kept whole.
    pub limits: Vec<FlowLimit>,
    /// Nanoseconds without a frame after which a flow counts as new.
    pub idle_ns: u64,
    /// Maximum number of flows in the flow table of each queue or parser.
    pub capacity: usize,
}

impl CutoffPlan {
    /// Bytes of a flow in the cutoff's flow table and of its share of the hash index, at the
    /// index's lowest load.
    pub const FLOW_BYTES: u64 = 128;

    /// Returns the number of flows that fit into a cutoff's flow table of `memory` bytes.
    #[must_use]
    pub fn capacity_of(memory: u64) -> usize {
        flow_table::capacity(memory, Self::FLOW_BYTES)
    }
}

/// Limit on how much of each flow that matches a filter is captured.
#[derive(Clone, Debug, Serialize)]
pub struct FlowLimit {
    /// Filter that selects the limited flows by their first frame.
    pub filter: Filter,
    /// Maximum number of bytes on the wire that are kept of a flow in each direction; `None` means
    /// no limit.
    pub bytes: Option<u64>,
    /// Maximum number of packets that are kept of a flow in each direction; `None` means no limit.
    pub packets: Option<u64>,
}

/// Counters of frames that the cutoff left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign)]
pub struct CutoffReport {
    /// Number of flows from which the cutoff left out frames.
    pub flows: u64,
    /// Number of bytes on the wire of the frames that the cutoff left out.
    pub bytes: u64,
    /// Number of frames kept because the cutoff's flow table had no room for their flows.
    pub untracked_frames: u64,
}

/// Number of frames and bytes in one direction of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowVolume {
    /// Number of bytes on the wire of the flow in one direction.
    pub bytes: u64,
    /// Number of frames of the flow in one direction.
    pub packets: u64,
}

impl FlowVolume {
    /// Flow volume that no flow reaches, which means no limit.
    const ENDLESS: Self = Self {
        bytes: u64::MAX,
        packets: u64::MAX,
    };

    /// Returns `true` if the flow's frames or bytes reach the limit `most`.
    #[cfg(feature = "records")]
    #[inline]
    pub fn reaches(self, most: Self) -> bool {
        self.bytes >= most.bytes || self.packets >= most.packets
    }
}

/// Cutoff limits of a run, which select how much of each flow is kept.
pub struct CutoffLimits {
    /// Flow limits in the order of the configuration; the last one is for flows that no filter
    /// matches.
    each: Box<[Limit]>,
    /// Time without a frame after which a flow starts again, in nanoseconds.
    pub idle_ns: u64,
}

/// Cutoff limit for the flows that a filter selects: how much of them is kept.
struct Limit {
    filter: Filter,
    /// Number of frames and bytes that the limit keeps of a flow in each direction.
    most: FlowVolume,
}

impl CutoffLimits {
    /// Creates the cutoff limits of a run from its settings.
    pub fn new(plan: &CutoffPlan) -> Self {
        let limits = plan.limits.iter().map(|it| Limit {
            filter: it.filter.clone(),
            most: FlowVolume {
                bytes: it.bytes.unwrap_or(FlowVolume::ENDLESS.bytes),
                packets: it.packets.unwrap_or(FlowVolume::ENDLESS.packets),
            },
        });
        let none = Limit {
            filter: Filter::default(),
            most: FlowVolume::ENDLESS,
        };
        Self {
            each: limits.chain([none]).collect(),
            idle_ns: plan.idle_ns,
        }
    }

    /// Returns the index of the cutoff limit for a flow whose first frame is `bytes`, of `len`
    /// bytes on the wire.
    pub fn for_first_frame(&self, bytes: &[u8], len: u32) -> u16 {
        let takes = |it: &Limit| it.filter.accepts(bytes, len);
        let at = self.each.iter().position(takes);
        // A configuration has at most 1000 limits.
        at.unwrap_or(self.each.len() - 1) as u16
    }

    /// Returns the number of frames and bytes that the limit with index `limit` keeps of a flow in
    /// each direction.
    #[inline]
    pub fn most(&self, limit: u16) -> FlowVolume {
        self.each[usize::from(limit)].most
    }

    /// Returns `true` if a frame received at `ns` starts a new flow with the key of an earlier one:
    /// the flow was silent for too long, or its connection has ended and the frame opens another
    /// one.
    #[inline]
    pub fn restarts(&self, last_ns: u64, ended: bool, ns: u64, tcp_flags: u8) -> bool {
        self.is_silent(last_ns, ns) || ended && opens(tcp_flags)
    }

    /// Returns `true` if a flow with its last frame at `last_ns` was silent for so long that a
    /// frame at `ns` starts a new flow.
    #[inline]
    pub fn is_silent(&self, last_ns: u64, ns: u64) -> bool {
        ns.saturating_sub(last_ns) >= self.idle_ns
    }
}

/// Returns `true` if a segment with these TCP control bits opens a TCP connection.
#[inline]
pub fn opens(tcp_flags: u8) -> bool {
    tcp_flags & (Tcp::SYN | Tcp::ACK) == Tcp::SYN
}

/// Returns `true` if a segment with these TCP control bits ends a TCP connection.
#[inline]
pub fn ends(tcp_flags: u8) -> bool {
    tcp_flags & (Tcp::FIN | Tcp::RST) != 0
}

/// Returns `true` if a segment with these TCP control bits is kept even beyond the flow's cutoff
/// limit.
#[inline]
pub fn is_control(tcp_flags: u8) -> bool {
    tcp_flags & (Tcp::SYN | Tcp::FIN | Tcp::RST) != 0
}

impl CutoffReport {
    /// Counts a frame that the cutoff leaves out; `is_first` is `true` for the first such frame of
    /// its flow.
    #[inline]
    pub fn count(&mut self, frame: &Frame<'_>, is_first: bool) {
        self.flows += u64::from(is_first);
        self.bytes += u64::from(frame.len);
    }
}
