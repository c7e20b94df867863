//! The counters of a moment.

use super::{NicCounters, QueueLedger, Total, traffic::TrafficSnapshot};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The counters of a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Seconds since the first WQ was ready.
    pub elapsed_s: f64,
    /// The ledger.
    pub ledger: LedgerSnapshot,
    /// What the NIC lost before delivery, by the names of its counters, at most a second old.
    pub nic: NicCounters,
    /// Use of the write buffers; absent: nothing is written to files now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<WriteBuffers>,
    /// The current traffic; absent: `capture.statistics` is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<TrafficSnapshot>,
}

/// The write buffers of all queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WriteBuffers {
    /// Their size in bytes (`output.buffer`).
    pub buffer: u64,
    /// Bytes in use: being filled, compressed or written. At the full size, frames are dropped or loops wait.
    pub used: u64,
}

/// The ledger by queue and in total.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerSnapshot {
    /// All queues together.
    pub total: Total,
    /// By queue.
    pub queues: Vec<QueueLedger>,
}
