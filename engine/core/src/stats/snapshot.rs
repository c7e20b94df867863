//! Counters of the capture and of the NIC at one moment.

use super::{NicCounters, QueueLedger, Total, traffic::TrafficSnapshot};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counters of the capture and of the NIC at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Seconds since the first WQ of the capture was ready.
    pub elapsed_s: f64,
    /// Ledger of the capture, by queue and in total.
    pub ledger: LedgerSnapshot,
    /// Frames that the NIC lost before delivery, by the names of its counters; at most a second
    /// old.
    pub nic: NicCounters,
    /// Use of the write buffers; absent if no files are being written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<WriteBuffers>,
    /// Number of rounds that the receive loop of each queue has made, including idle ones. A count
    /// that does not change for seconds is that of a loop that is stuck.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beats: Vec<u64>,
    /// Statistics of the current traffic; absent if `capture.statistics` is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<TrafficSnapshot>,
}

/// Size and use of the write buffers of all queues together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WriteBuffers {
    /// Size of the write buffers in bytes (`output.buffer`).
    pub buffer: u64,
    /// Bytes of the write buffers in use: being filled, compressed or written. When all are in use,
    /// frames are dropped or loops wait.
    pub used: u64,
    /// Milliseconds for which the oldest frames that are not on the disk have been waiting for it; 0:
    /// none wait.
    #[serde(default)]
    pub waiting_ms: u64,
}

/// Ledger of a capture, by queue and in total.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LedgerSnapshot {
    /// Sum of the ledgers of all queues.
    pub total: Total,
    /// Ledger of each queue.
    pub queues: Vec<QueueLedger>,
    /// Names of the captured ports, if there are several; else absent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
}
