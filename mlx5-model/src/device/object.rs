//! Objects that commands create and that do no work: their references and their users.
//!
//! Imports `event`, `memory`, and from `steering` the parts of rules.

use crate::handles::Index;
use crate::process::Errno;
use crate::steering::{Destination, FlowAction, Match, NicSteering, TableId};

use super::event::AsyncSource;
use super::memory::DoorbellRecord;

pub struct PdObject;

/// Object behind the handle of a memory region.
#[derive(Debug)]
pub struct MrObject {
    pub lkey: u32,
    pub pd: Index,
}

/// Object that is only a member of a protection domain: a memory window or an address handle.
#[derive(Debug)]
pub struct PdDependent {
    pub pd: Index,
}

#[derive(Debug)]
pub struct TableObject {
    /// Receive queues of the indirection table; their number is a power of two.
    pub rqs: Box<[Index]>,
}

/// Shared receive queue. On mlx5 RAW_PACKET QPs do not receive from an SRQ, so its WRs stay posted.
pub struct SrqObject {
    pub pd: Index,
    pub max_wr: u32,
    pub max_sge: u32,
    /// Number of WRs below which the SRQ raises one event; 0: no limit is set.
    pub limit: u32,
    /// Doorbell record of the SRQ with the number of WRs posted.
    pub record: DoorbellRecord,
    pub events: AsyncSource,
}

/// Kinds of QPs (RSS or RAW_PACKET), each with its queues.
#[derive(Debug)]
pub enum QpBody {
    /// RSS QP; it has neither its own queues nor a state.
    Rss {
        tir: Index,
        /// Indirection table of the RSS QP, counted as in use.
        table: Index,
    },
    /// RAW_PACKET QP with its own receive or send queue, or both.
    Raw {
        rq: Option<Index>,
        sq: Option<Index>,
        /// CQs of the RAW_PACKET QP: of its receive queue and of its send queue.
        cqs: [Index; 2],
        /// SRQ that the RAW_PACKET QP was created with; the QP receives nothing from it.
        srq: Option<Index>,
    },
}

/// State of a QP (`enum ib_qp_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    SendQueueDrained = 4,
    SendQueueError = 5,
    Error = 6,
}

/// Queue sizes and limits of a QP that CREATE_QP requests and QUERY_QP returns.
#[derive(Debug, Clone, Copy, Default)]
pub struct QpCaps {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub signal_all: bool,
}

pub struct QpObject {
    pub body: QpBody,
    pub pd: Index,
    pub state: QpState,
    /// Port that the QP is bound to, from 1; 0: not bound.
    pub port: u8,
    pub caps: QpCaps,
    pub events: AsyncSource,
}

/// Flow counters: number of packets and bytes that matched the flow rules which name them.
#[derive(Debug, Default)]
pub struct CountersObject {
    pub packets: u64,
    /// Number of bytes of the frames that a flow counters object has counted, without FCS.
    pub bytes: u64,
    /// Layout of the values in a read of flow counters: pairs of a counter (0 packets, 1 bytes) and
    /// the index of its value.
    pub layout: Vec<(u32, u32)>,
}

/// Flow matcher: match criteria that flow rules share.
#[derive(Debug)]
pub struct MatcherObject {
    /// Mask of the bits that a flow matcher compares (PRM "fte_match_param").
    pub mask: Vec<u8>,
    /// Bits of the sections that a flow matcher compares (`match_criteria_enable`).
    pub criteria: u8,
    /// `true` if the flow matcher's rules are NORMAL ones.
    pub is_normal: bool,
    pub priority: u16,
    /// `true` if the flow matcher's rules are for received frames.
    pub receives: bool,
}

pub struct FlowObject {
    pub port: usize,
    pub qp: Option<Index>,
    pub matcher: Option<Index>,
    pub counters: Option<Index>,
    pub rules: FlowRules,
}

/// Entries that a flow rule added to the flow tables.
pub enum FlowRules {
    /// A sniffer rule, which copies every frame.
    Sniffer(Destination),
    /// Entries of flow tables that one flow rule added, all with the same action.
    Entries(Vec<(TableId, Match)>, FlowAction),
}

impl FlowRules {
    /// Adds all entries of the flow rule to the flow tables or, if one fails, none.
    pub fn add_to(&self, steering: &mut NicSteering) -> Result<(), Errno> {
        match self {
            Self::Sniffer(to) => steering.add_sniffer(*to),
            Self::Entries(entries, action) => {
                for (at, (table, rule)) in entries.iter().enumerate() {
                    if let Err(errno) = steering.add(*table, rule, *action) {
                        for (table, rule) in &entries[..at] {
                            steering.remove(*table, rule, *action);
                        }
                        return Err(errno);
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes the flow table entries that [`FlowRules::add_to`] added.
    pub fn remove_from(&self, steering: &mut NicSteering) {
        match self {
            Self::Sniffer(to) => steering.remove_sniffer(*to),
            Self::Entries(entries, action) => {
                for (table, rule) in entries {
                    steering.remove(*table, rule, *action);
                }
            }
        }
    }
}
