//! State of the capture and of the control service.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wqcap_core::stats::{Outlook, Total};

/// State of the capture and of the control service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The capture.
    pub capture: CaptureStatus,
    /// The service.
    pub control: ControlStatus,
}

/// State of the capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureStatus {
    /// Version of the program.
    pub wqcap: String,
    /// Its process ID.
    pub pid: u32,
    /// What it is doing.
    pub state: CaptureState,
    /// The RDMA device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// Receive queues.
    pub queues: u16,
    /// Seconds since the first WQ was ready.
    pub elapsed_s: f64,
    /// The filter in force.
    pub filter: String,
    /// The log level in force.
    pub log: String,
    /// All queues together.
    pub ledger: Total,
    /// How long the disk holds what is captured; absent: that is not known, or no old files are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Outlook>,
}

/// What a capture is doing.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::Display,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CaptureState {
    /// It captures.
    Running,
    /// It lets no frames in, after `drain`.
    Drained,
    /// It has ended, after `stop`; or there was none yet.
    #[default]
    Stopped,
    /// The device is gone; the capture continues by itself once it is back (`device.on_loss = "retry"`).
    Lost,
}

/// State of the control service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControlStatus {
    /// The Unix socket; absent: not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<TransportStatus>,
    /// RDMA; absent: not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaStatus>,
}

/// Counters of a transport since the service started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TransportStatus {
    /// Clients connected now.
    pub clients: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections rejected: too many, no right to connect, or no proof of a key.
    pub refused: u64,
    /// Clients disconnected by the service: malformed or oversized requests, stalled, flooding.
    pub expelled: u64,
    /// Requests received.
    pub requests: u64,
}

/// The same for RDMA, with its SRQ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RdmaStatus {
    /// Counters.
    #[serde(flatten)]
    pub transport: TransportStatus,
    /// The shared receive queue.
    pub srq: SrqStatus,
}

/// The one shared receive queue of all RDMA clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SrqStatus {
    /// WRs it can hold now (`ibv_query_srq`), which may be more than requested.
    pub max_wr: u32,
    /// WRs posted now.
    pub posted: u32,
    /// The armed limit (low watermark); 0: none is armed.
    pub limit: u32,
    /// WRs it may grow to.
    pub cap: u32,
    /// Whether the device resizes SRQs; if not, this one has had its full size from the start.
    pub resizes: bool,
    /// `IBV_EVENT_SRQ_LIMIT_REACHED` events.
    pub limit_events: u64,
    /// Times the limit was armed.
    pub armed: u64,
    /// Times the SRQ grew.
    pub grown: u64,
    /// Times the SRQ shrank.
    pub shrunk: u64,
    /// Resizes that the device refused.
    pub resize_refused: u64,
    /// Sends answered with receiver-not-ready because no receive was posted, where the device counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiver_not_ready: Option<u64>,
    /// Queue pairs attached now.
    pub qps: u64,
}
