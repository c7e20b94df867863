//! What a simulation found: the shape that `wqcap rss --json` prints.

use crate::stats::traffic::Volume;
use serde::Serialize;
use std::collections::BTreeMap;

/// How frames are spread.
#[derive(Clone, Debug, Serialize)]
pub struct SimulatedSpread {
    /// `capture.mode`.
    pub mode: String,
    /// `capture.queues`, or what it is by default.
    pub queues: u16,
    /// `rss.hash`.
    pub hash: String,
    /// `rss.inner`.
    pub inner: bool,
    /// `rss.key`.
    pub key: String,
    /// Whether that key gives both directions of a flow one hash.
    pub symmetric: bool,
    /// `rss.table_size`.
    pub table_size: u32,
    /// `rss.weights`.
    pub weights: Vec<u32>,
    /// What to know about the above.
    pub notes: Vec<String>,
}

/// What one queue would get.
#[derive(Clone, Debug, Serialize)]
pub struct SimulatedQueue {
    /// Its number.
    pub queue: u16,
    /// Flows with a direction on it; one whose directions are split is on two queues.
    pub flows: u64,
    /// Its frames.
    #[serde(flatten)]
    pub load: Volume,
}

/// The busiest queue's load over the mean; 1 is even. `None`: there was no load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Skew {
    /// By frames.
    pub frames: Option<f64>,
    /// By bytes.
    pub bytes: Option<f64>,
}

/// A load by reason, with every reason, also those that did not occur.
#[derive(Clone, Debug, Serialize)]
pub struct ByReason {
    /// All of it.
    #[serde(flatten)]
    pub load: Volume,
    /// Its parts.
    pub reasons: BTreeMap<&'static str, Volume>,
}

/// Flows by direction.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Directions {
    /// Flows of which both directions were seen.
    pub both: u64,
    /// Those of them whose directions are on two queues.
    pub split: u64,
}

/// One flow.
#[derive(Clone, Debug, Serialize)]
pub struct HeaviestFlow {
    /// Protocol and both ends.
    pub flow: String,
    /// Its Community ID; `None` without IP, of fragments and of ICMP, whose messages have several.
    pub community_id: Option<String>,
    /// Its frames.
    #[serde(flatten)]
    pub load: Volume,
    /// Its queue; two if its directions are split.
    pub queues: Vec<u16>,
}

/// A configuration key with the value that spreads best.
#[derive(Clone, Debug, Serialize)]
pub struct SuggestedSetting {
    /// The key.
    pub key: &'static str,
    /// The value suggested, as `--set` takes it.
    pub value: String,
    /// Whether that differs from the value now.
    pub changes: bool,
    /// Why.
    pub why: String,
}

/// What would spread better.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestion {
    /// Each key considered.
    pub settings: Vec<SuggestedSetting>,
    /// The busiest queue's part of the load now.
    pub busiest_now: f64,
    /// The same with the suggestion followed.
    pub busiest_then: f64,
}

/// What a simulation found.
#[derive(Clone, Debug, Serialize)]
pub struct SimulationReport {
    /// How frames were spread.
    pub spread: SimulatedSpread,
    /// Frames of all queues.
    pub frames: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Flows, both directions together.
    pub flows: u64,
    /// From the first stamp to the last.
    pub seconds: f64,
    /// Each queue.
    pub queues: Vec<SimulatedQueue>,
    /// How uneven they are.
    pub skew: Skew,
    /// What is not hashed at all: queue 0.
    pub catch_all: ByReason,
    /// What is hashed by its addresses alone.
    pub addresses_only: ByReason,
    /// What a rule drops; on no queue.
    pub dropped: Volume,
    /// What no rule takes, which is left to the kernel; on no queue.
    pub left: Volume,
    /// Whether both directions of flows share a queue.
    pub directions: Directions,
    /// The heaviest flows, by bytes.
    pub heaviest: Vec<HeaviestFlow>,
    /// What would spread better, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<Suggestion>,
}
