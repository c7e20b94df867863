//! Result of a simulation, in the form that `wqcap rss --json` prints.

use crate::stats::traffic::Volume;
use serde::Serialize;
use std::collections::BTreeMap;

/// Configuration that determines how frames are spread over queues.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SimulatedSpread {
    /// Value of `capture.mode` in the simulation.
    pub mode: String,
    /// Number of queues in the simulation: `capture.queues`, or its default if the key is absent.
    pub queues: u16,
    /// Value of `rss.hash` in the simulation.
    pub hash: String,
    /// Value of `rss.inner` in the simulation.
    pub inner: bool,
    /// Value of `rss.key` in the simulation.
    pub key: String,
    /// `true` if the RSS key gives both directions of a flow the same hash.
    pub symmetric: bool,
    /// Value of `rss.table_size` in the simulation.
    pub table_size: u32,
    /// Value of `rss.weights` in the simulation.
    pub weights: Vec<u32>,
    /// Notes for the user on the simulated settings.
    pub notes: Vec<String>,
}

/// Flows and frames that one queue would receive.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SimulatedQueue {
    /// Index of the simulated queue.
    pub queue: u16,
    /// Number of flows with a direction on this queue. A flow whose directions are split counts on
    /// two queues.
    pub flows: u64,
    /// Number of frames and bytes that the queue would receive.
    #[serde(flatten)]
    pub load: Volume,
}

/// Load of the busiest queue divided by the queues' mean load; 1 is even, `None` means no load.
#[derive(Clone, Copy, Debug, Serialize)]
#[non_exhaustive]
pub struct Skew {
    /// Load of the busiest queue divided by the queues' mean, in frames.
    pub frames: Option<f64>,
    /// Load of the busiest queue divided by the queues' mean, in bytes.
    pub bytes: Option<f64>,
}

/// Number of frames and bytes that are not hashed by ports, by reason. Every reason is listed,
/// including those with no frames.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ByReason {
    /// Number of frames and bytes of all reasons together.
    #[serde(flatten)]
    pub load: Volume,
    /// Number of frames and bytes of each reason, by the reason's name.
    pub reasons: BTreeMap<&'static str, Volume>,
}

/// Number of simulated flows seen in both directions, and of those split over two queues.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Directions {
    /// Number of simulated flows seen in both directions.
    pub both: u64,
    /// Number of simulated flows whose two directions are on different queues.
    pub split: u64,
}

/// One of the heaviest flows of a simulation.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct HeaviestFlow {
    /// Protocol and both ends of the heavy flow, as text.
    pub flow: String,
    /// Community ID of the flow. `None` for flows without IP, for fragments, and for ICMP, whose
    /// messages have several IDs.
    pub community_id: Option<String>,
    /// Number of frames and bytes of the heavy flow.
    #[serde(flatten)]
    pub load: Volume,
    /// Queues of the heavy flow: one, or two if its directions are split.
    pub queues: Vec<u16>,
}

/// Suggested value of a configuration key.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SuggestedSetting {
    /// Configuration key, such as `rss.hash`.
    pub key: &'static str,
    /// Suggested value of the configuration key, in the form that `--set` takes.
    pub value: String,
    /// `true` if the suggested value differs from the configured one.
    pub changes: bool,
    /// Reason for the suggested configuration value.
    pub why: String,
}

/// Suggested settings that spread the load of the queues better.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Suggestion {
    /// Suggested value for each configuration key that was considered.
    pub settings: Vec<SuggestedSetting>,
    /// Share of the load on the busiest queue with the present settings, 0 to 1.
    pub busiest_now: f64,
    /// Share of the load on the busiest queue with the suggested settings, 0 to 1.
    pub busiest_then: f64,
}

/// Report of a simulation: how a capture's frames spread over queues.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SimulationReport {
    /// Settings that determined the simulated spread over queues.
    pub spread: SimulatedSpread,
    /// Number of frames that the simulated queues receive.
    pub frames: u64,
    /// Number of bytes on the wire of the frames that the simulated queues receive.
    pub bytes: u64,
    /// Number of simulated flows, both directions together.
    pub flows: u64,
    /// Number of frames and bytes of flows beyond the maximum number. They count for their queues, and
    /// in no number of flows.
    pub further_flows: Volume,
    /// Seconds from the first to the last time stamp of the simulated frames.
    pub seconds: f64,
    /// Number of flows and frames of each simulated queue.
    pub queues: Vec<SimulatedQueue>,
    /// Imbalance of the simulated queues: the busiest queue's load divided by the mean.
    pub skew: Skew,
    /// Number of frames that the NIC does not hash and that therefore go to queue 0, by reason.
    pub catch_all: ByReason,
    /// Number of frames for which the NIC hashes only the addresses, by reason.
    pub addresses_only: ByReason,
    /// Number of frames and bytes that a flow rule drops; they are on no queue.
    pub dropped: Volume,
    /// Number of frames and bytes that match no flow rule and are left to the kernel; they are on
    /// no queue.
    pub left: Volume,
    /// Number of simulated flows seen in both directions, and of those split over two queues.
    pub directions: Directions,
    /// Heaviest flows of the simulation, by bytes.
    pub heaviest: Vec<HeaviestFlow>,
    /// Settings that the simulation suggests; `None` if no suggestion was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<Suggestion>,
}
