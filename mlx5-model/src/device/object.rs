//! Objects that commands create and that do no work of their own: what they refer to, and who uses them.
//!
//! Imports `event`, `memory`, and of `steering` what rules are made of.

use crate::handles::Index;
use crate::process::Errno;
use crate::steering::{Destination, FlowAction, Match, NicSteering, TableId};

use super::event::AsyncSource;
use super::memory::DoorbellRecord;

pub struct PdObject;

/// A memory region's handle.
#[derive(Debug)]
pub struct MrObject {
    pub lkey: u32,
    pub pd: Index,
}

/// An object that is only a member of a protection domain: a memory window, an address handle.
#[derive(Debug)]
pub struct PdMember {
    pub pd: Index,
}

#[derive(Debug)]
pub struct TableObject {
    /// 2^n receive queues.
    pub rqs: Box<[Index]>,
}

/// A shared receive queue. On mlx5 RAW_PACKET QPs do not receive from one, so its WRs stay.
pub struct SrqObject {
    pub pd: Index,
    pub max_wr: u32,
    pub max_sge: u32,
    /// The number of WRs below which an event is raised, once; 0: none is set.
    pub limit: u32,
    /// Its doorbell record, with the number of WRs posted.
    pub record: DoorbellRecord,
    pub events: AsyncSource,
}

/// The kinds of QP.
#[derive(Debug)]
pub enum QpBody {
    /// An RSS QP: no queues of its own, no state.
    Rss {
        tir: Index,
        /// The table, counted as in use.
        table: Index,
    },
    /// A RAW_PACKET QP.
    Raw {
        rq: Option<Index>,
        sq: Option<Index>,
        /// The CQs of its receive and of its send queue.
        cqs: [Index; 2],
        /// The SRQ it was created with, from which it receives nothing.
        srq: Option<Index>,
    },
}

/// States of a QP (`enum ib_qp_state`).
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

/// What CREATE_QP asks for and QUERY_QP answers.
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
    /// The port it is bound to, from 1; 0: none yet.
    pub port: u8,
    pub caps: QpCaps,
    pub events: AsyncSource,
}

/// Flow counters: what rules count their frames in.
#[derive(Debug, Default)]
pub struct CountersObject {
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// What a read returns: which of the two, and at which index.
    pub layout: Vec<(u32, u32)>,
}

/// Match criteria that rules share.
#[derive(Debug)]
pub struct MatcherObject {
    /// The bits to compare (PRM "fte_match_param").
    pub mask: Vec<u8>,
    /// The sections to compare (`match_criteria_enable`).
    pub criteria: u8,
    /// Whether its rules are NORMAL ones.
    pub is_normal: bool,
    pub priority: u16,
    /// Whether its rules are for received frames.
    pub receives: bool,
}

pub struct FlowObject {
    pub port: usize,
    pub qp: Option<Index>,
    pub matcher: Option<Index>,
    pub counters: Option<Index>,
    pub rules: FlowRules,
}

/// What a flow rule added to the tables.
pub enum FlowRules {
    /// A sniffer: copies of every frame.
    Sniffer(Destination),
    /// Entries, all with one action.
    Entries(Vec<(TableId, Match)>, FlowAction),
}

impl FlowRules {
    /// Adds all entries or, if one fails, none.
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

    /// Removes what [`FlowRules::add_to`] added.
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
