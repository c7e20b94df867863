//! State of the capture and of the control service.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use wqcap_core::stats::{Outlook, Total};

/// State of the capture and of the control service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// State of the capture.
    pub capture: CaptureStatus,
    /// State of the control service.
    pub control: ControlStatus,
}

/// State of the capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CaptureStatus {
    /// Version of wqcap that runs the capture.
    pub wqcap: String,
    /// Process ID of the capture.
    pub pid: u32,
    /// Activity of the capture: running, drained, stopped or lost.
    pub state: CaptureState,
    /// Name of the RDMA device that captures.
    pub device: String,
    /// Number of the device's port that captures.
    pub port: u8,
    /// Number of the capture's receive queues.
    pub queues: u16,
    /// Seconds since the first WQ of the capture was ready.
    pub elapsed_s: f64,
    /// Filter of captured frames in force, as a pcap-filter(7) expression.
    pub filter: String,
    /// Log level of the process in force.
    pub log: String,
    /// Ledger of all queues together.
    pub ledger: Total,
    /// Estimated time that the disk holds captured files; absent if it is not known, or if no old
    /// files are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Outlook>,
}

/// Activity of a capture: running, drained, stopped or lost.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::Display,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CaptureState {
    /// The capture is running.
    Running,
    /// The capture lets no frames in, after `drain`.
    Drained,
    /// The capture has ended, after `stop`, or has not started yet.
    #[default]
    Stopped,
    /// The device is gone; the capture continues automatically when the device is back
    /// (`device.on_loss = "retry"`).
    Lost,
}

/// State of the control service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ControlStatus {
    /// State of the Unix socket transport; absent if it is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix: Option<TransportStatus>,
    /// State of the RDMA transport; absent if it is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaStatus>,
}

/// Counters of a transport of the control service since the service started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TransportStatus {
    /// Number of clients connected over the transport now.
    pub clients: u64,
    /// Number of client connections accepted.
    pub accepted: u64,
    /// Number of client connections rejected: too many clients, no right to connect, or no proof of
    /// a key.
    pub refused: u64,
    /// Number of clients disconnected by the service: malformed or oversized requests, stalls, or
    /// too many requests.
    pub expelled: u64,
    /// Number of requests received from clients.
    pub requests: u64,
}

/// Counters of the control service's RDMA transport since the service started, and the state of its
/// SRQ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RdmaStatus {
    /// Counters of the RDMA transport.
    #[serde(flatten)]
    pub transport: TransportStatus,
    /// State of the RDMA transport's shared receive queue (SRQ).
    pub srq: SrqStatus,
}

/// State of the shared receive queue (SRQ) of all RDMA clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SrqStatus {
    /// Number of WRs that the SRQ can hold now (`ibv_query_srq`), which may be more than requested.
    pub max_wr: u32,
    /// Number of receive WRs posted to the SRQ now.
    pub posted: u32,
    /// Armed limit (low watermark) of the SRQ, in WRs; 0 if none is armed.
    pub limit: u32,
    /// Number of WRs to which the SRQ may grow.
    pub cap: u32,
    /// Set if the device resizes SRQs. If not, the SRQ has its full size from the start.
    pub resizes: bool,
    /// Number of `IBV_EVENT_SRQ_LIMIT_REACHED` events of the SRQ.
    pub limit_events: u64,
    /// Number of times that the limit of the SRQ was armed.
    pub armed: u64,
    /// Number of times that the SRQ grew.
    pub grown: u64,
    /// Number of times that the SRQ shrank.
    pub shrunk: u64,
    /// Number of resizes of the SRQ that the device refused.
    pub resize_refused: u64,
    /// Number of sends of clients answered with receiver-not-ready because no receive WR was
    /// posted; absent if the device does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiver_not_ready: Option<u64>,
    /// Number of queue pairs (QPs) attached to the SRQ now.
    pub qps: u64,
}
