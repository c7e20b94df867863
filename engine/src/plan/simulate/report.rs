//! Result of a simulation, in the form that `wqcap rss --json` prints.

use crate::stats::traffic::Volume;
use serde::Serialize;
use std::collections::BTreeMap;

/// Settings that determine how frames are spread over queues.
#[derive(Clone, Debug, Serialize)]
pub struct SimulatedSpread {
    /// Value of `capture.mode`.
    pub mode: String,
    /// Value of `capture.queues`, or its default.
    pub queues: u16,
    /// Value of `rss.hash`.
    pub hash: String,
    /// Value of `rss.inner`.
    pub inner: bool,
    /// Value of `rss.key`.
    pub key: String,
    /// `true` if the key gives both directions of a flow the same hash.
    pub symmetric: bool,
    /// Value of `rss.table_size`.
    pub table_size: u32,
    /// Value of `rss.weights`.
    pub weights: Vec<u32>,
    /// Notes on these settings for the user.
    pub notes: Vec<String>,
}

/// Flows and frames that one queue would receive.
#[derive(Clone, Debug, Serialize)]
pub struct SimulatedQueue {
    /// Queue index.
    pub queue: u16,
    /// Number of flows with a direction on this queue. A flow whose directions are split counts on
    /// two queues.
    pub flows: u64,
    /// Frames and bytes of the queue.
    #[serde(flatten)]
    pub load: Volume,
}

/// Load of the busiest queue divided by the mean load; 1 is even, `None` means no load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Skew {
    /// Load of the busiest queue divided by the mean, in frames.
    pub frames: Option<f64>,
    /// Load of the busiest queue divided by the mean, in bytes.
    pub bytes: Option<f64>,
}

/// Load by reason. Every reason is listed, including those with no frames.
#[derive(Clone, Debug, Serialize)]
pub struct ByReason {
    /// Load of all reasons together.
    #[serde(flatten)]
    pub load: Volume,
    /// Load of each reason, by the reason's name.
    pub reasons: BTreeMap<&'static str, Volume>,
}

/// Number of flows seen in both directions, and of those split over two queues.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Directions {
    /// Number of flows seen in both directions.
    pub both: u64,
    /// Number of flows whose two directions are on different queues.
    pub split: u64,
}

/// One of the heaviest flows.
#[derive(Clone, Debug, Serialize)]
pub struct HeaviestFlow {
    /// Protocol and both ends of the flow.
    pub flow: String,
    /// Community ID of the flow. `None` for flows without IP, for fragments, and for ICMP, whose
    /// messages have several IDs.
    pub community_id: Option<String>,
    /// Frames and bytes of the flow.
    #[serde(flatten)]
    pub load: Volume,
    /// Queues of the flow: one, or two if its directions are split.
    pub queues: Vec<u16>,
}

/// Suggested value of a configuration key.
#[derive(Clone, Debug, Serialize)]
pub struct SuggestedSetting {
    /// Configuration key, such as `rss.hash`.
    pub key: &'static str,
    /// Suggested value, in the form that `--set` takes.
    pub value: String,
    /// `true` if the suggested value differs from the present one.
    pub changes: bool,
    /// Reason for the suggestion.
    pub why: String,
}

/// Suggested settings that spread the load better.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestion {
    /// Suggestion for each key that was considered.
    pub settings: Vec<SuggestedSetting>,
    /// Share of the load on the busiest queue with the present settings, 0 to 1.
    pub busiest_now: f64,
    /// Share of the load on the busiest queue with the suggested settings, 0 to 1.
    pub busiest_then: f64,
}

/// Result of a simulation.
#[derive(Clone, Debug, Serialize)]
pub struct SimulationReport {
    /// Settings that determined the spread.
    pub spread: SimulatedSpread,
    /// Number of frames on all queues.
    pub frames: u64,
    /// Bytes on the wire of the frames on all queues.
    pub bytes: u64,
    /// Number of flows, both directions together.
    pub flows: u64,
    /// Seconds from the first time stamp to the last.
    pub seconds: f64,
    /// Flows and frames of each queue.
    pub queues: Vec<SimulatedQueue>,
    /// Imbalance of the queues.
    pub skew: Skew,
    /// Frames that are not hashed and therefore go to queue 0.
    pub catch_all: ByReason,
    /// Frames that are hashed by their addresses only.
    pub addresses_only: ByReason,
    /// Frames that a rule drops; they are on no queue.
    pub dropped: Volume,
    /// Frames that match no rule and are left to the kernel; they are on no queue.
    pub left: Volume,
    /// Number of flows seen in both directions, and of those split over two queues.
    pub directions: Directions,
    /// Heaviest flows, by bytes.
    pub heaviest: Vec<HeaviestFlow>,
    /// Suggested settings, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<Suggestion>,
}
