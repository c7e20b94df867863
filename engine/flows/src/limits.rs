//! How much of each flow is kept: the rules of a cutoff, whichever table follows the flows.
//!
//! Flow records and the cutoff call the same thing a flow. Where there are both, the table of the records follows the
//! limits too, so that a frame's flow is looked for once; otherwise the cutoff has a table of its own.
//!
//! May import: [`wqcap_frame::filter`], the flow table.

use crate::flow_table;
use derive_more::AddAssign;
use serde::Serialize;
use wqcap_core::consumer::Frame;
use wqcap_frame::{Tcp, filter::Filter};

/// How much of flows is kept.
#[derive(Clone, Debug, Serialize)]
pub struct CutoffPlan {
    /// The first that takes a flow's first frame holds for the flow; without one all of it is kept.
    pub limits: Vec<FlowLimit>,
    /// A flow that was silent for so many nanoseconds begins anew.
    pub idle_ns: u64,
    /// Flows that the table of each queue or parser holds.
    pub capacity: usize,
}

impl CutoffPlan {
    /// Bytes of a flow and its share of the index, when that is as sparse as it gets.
    pub const FLOW_BYTES: u64 = 128;

    /// Flows that fit so many bytes.
    #[must_use]
    pub fn capacity_of(memory: u64) -> usize {
        flow_table::capacity(memory, Self::FLOW_BYTES)
    }
}

/// How much of some flows is kept.
#[derive(Clone, Debug, Serialize)]
pub struct FlowLimit {
    /// Of which flows, by their first frames.
    pub filter: Filter,
    /// Bytes on the wire, each way; `None`: however many there are.
    pub bytes: Option<u64>,
    /// Packets, each way; `None`: however many there are.
    pub packets: Option<u64>,
}

/// What was cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign)]
pub struct CutoffReport {
    /// Flows of which frames were cut off.
    pub flows: u64,
    /// Bytes of these frames, as on the wire.
    pub bytes: u64,
    /// Frames that were kept since the table had no room for their flows.
    pub untracked_frames: u64,
}

/// Frames of one direction of a flow, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Volume {
    /// Bytes on the wire.
    pub bytes: u64,
    /// Frames.
    pub packets: u64,
}

impl Volume {
    /// More than any flow has.
    const ENDLESS: Self = Self {
        bytes: u64::MAX,
        packets: u64::MAX,
    };

    /// Whether as much has come as is kept.
    #[cfg(feature = "records")]
    #[inline]
    pub fn reaches(self, most: Self) -> bool {
        self.bytes >= most.bytes || self.packets >= most.packets
    }
}

/// The limits of a run.
pub struct Limits {
    /// The last one is that of flows which no filter takes.
    each: Box<[Limit]>,
    /// Silence after which a flow starts again, in nanoseconds.
    pub idle_ns: u64,
}

struct Limit {
    filter: Filter,
    /// Each way.
    most: Volume,
}

impl Limits {
    /// Creates the limits of a plan.
    pub fn new(plan: &CutoffPlan) -> Self {
        let limits = plan.limits.iter().map(|it| Limit {
            filter: it.filter.clone(),
            most: Volume {
                bytes: it.bytes.unwrap_or(Volume::ENDLESS.bytes),
                packets: it.packets.unwrap_or(Volume::ENDLESS.packets),
            },
        });
        let none = Limit {
            filter: Filter::default(),
            most: Volume::ENDLESS,
        };
        Self {
            each: limits.chain([none]).collect(),
            idle_ns: plan.idle_ns,
        }
    }

    /// Which limit a flow with this first frame has.
    pub fn of_first(&self, bytes: &[u8], len: u32) -> u16 {
        let takes = |it: &Limit| it.filter.accepts(bytes, len);
        let at = self.each.iter().position(takes);
        // A configuration has at most a thousand.
        at.unwrap_or(self.each.len() - 1) as u16
    }

    /// What is kept of each direction.
    #[inline]
    pub fn most(&self, limit: u16) -> Volume {
        self.each[usize::from(limit)].most
    }

    /// Whether a frame that comes at `ns` begins another flow between the same ends: this one was silent for too long, or
    /// has ended, and a connection is made again.
    #[inline]
    pub fn begins_anew(&self, last_ns: u64, ended: bool, ns: u64, tcp_flags: u8) -> bool {
        self.is_silent(last_ns, ns) || ended && opens(tcp_flags)
    }

    /// Whether a flow was silent for too long.
    #[inline]
    pub fn is_silent(&self, last_ns: u64, ns: u64) -> bool {
        ns.saturating_sub(last_ns) >= self.idle_ns
    }
}

/// Whether a segment with these control bits makes a connection.
#[inline]
pub fn opens(tcp_flags: u8) -> bool {
    tcp_flags & (Tcp::SYN | Tcp::ACK) == Tcp::SYN
}

/// Whether a segment with these control bits ends a connection.
#[inline]
pub fn ends(tcp_flags: u8) -> bool {
    tcp_flags & (Tcp::FIN | Tcp::RST) != 0
}

/// Whether a segment with these control bits is kept even beyond the limit.
#[inline]
pub fn is_control(tcp_flags: u8) -> bool {
    tcp_flags & (Tcp::SYN | Tcp::FIN | Tcp::RST) != 0
}

impl CutoffReport {
    /// Counts a frame that is cut off; of a flow of which none was before, if it is the first.
    #[inline]
    pub fn count(&mut self, frame: &Frame<'_>, is_first: bool) {
        self.flows += u64::from(is_first);
        self.bytes += u64::from(frame.len);
    }
}
