//! What a forecast tells: the shape that `wqcap rss --json` prints.

use super::{
    CatchAllReason, Forecast, HostsReason, Limits, Load,
    flows::{FlowKey, FlowLoad},
};
use serde::Serialize;
use std::{cmp::Reverse, collections::BTreeMap};

/// Flows listed among the heaviest.
const HEAVIEST: usize = 10;

/// How frames are spread.
#[derive(Clone, Debug, Serialize)]
pub struct Spread {
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
    /// What to know of the above.
    pub notes: Vec<String>,
}

/// What one queue would get.
#[derive(Clone, Debug, Serialize)]
pub struct QueueLoad {
    /// Its number.
    pub queue: u16,
    /// Flows with a direction on it; one whose directions part is on two queues.
    pub flows: u64,
    /// Frames.
    pub frames: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
}

/// The busiest queue's load over the mean; 1 is even. `None`: there was no load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Skew {
    /// By frames.
    pub frames: Option<f64>,
    /// By bytes.
    pub bytes: Option<f64>,
}

/// A load and its reasons, all of them, also those that did not occur.
#[derive(Clone, Debug, Serialize)]
pub struct ByReason {
    /// All of it.
    #[serde(flatten)]
    pub load: Load,
    /// Its parts.
    pub reasons: BTreeMap<&'static str, Load>,
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
pub struct Flow {
    /// Protocol and both ends.
    pub flow: String,
    /// Frames.
    pub frames: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Its queue; two if its directions part.
    pub queues: Vec<u16>,
}

/// One key that might be set otherwise, or is best as it is.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// The key.
    pub key: &'static str,
    /// The value suggested, as `--set` takes it.
    pub value: String,
    /// Whether that is another than now.
    pub changes: bool,
    /// Why.
    pub why: String,
}

/// What would help.
#[derive(Clone, Debug, Serialize)]
pub struct Suggestion {
    /// Each key looked at.
    pub settings: Vec<Setting>,
    /// The busiest queue's part of all load now.
    pub busiest_now: f64,
    /// The same, were the suggestion followed.
    pub busiest_then: f64,
}

/// What came of a forecast.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How frames were spread.
    pub spread: Spread,
    /// Frames of all queues.
    pub frames: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
    /// Flows, both directions together.
    pub flows: u64,
    /// From the first stamp to the last.
    pub seconds: f64,
    /// Each queue.
    pub queues: Vec<QueueLoad>,
    /// How uneven they are.
    pub skew: Skew,
    /// What nothing is hashed of: queue 0.
    pub catch_all: ByReason,
    /// What is hashed by its addresses alone.
    pub addresses_only: ByReason,
    /// What a rule drops; on no queue.
    pub dropped: Load,
    /// What no rule takes, which is left to the kernel; on no queue.
    pub left: Load,
    /// Whether both directions of flows meet.
    pub directions: Directions,
    /// The heaviest flows, by bytes.
    pub heaviest: Vec<Flow>,
    /// What would help, if that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<Suggestion>,
}

pub(super) fn report(forecast: Forecast, limits: Limits) -> Report {
    let mut total = Load::default();
    for load in &forecast.queues {
        total += *load;
    }
    let mut flows = vec![0u64; forecast.queues.len()];
    let mut directions = Directions::default();
    for flow in forecast.flows.0.values() {
        let queues = queues_of(flow);
        for queue in &queues {
            if let Some(count) = flows.get_mut(usize::from(*queue)) {
                *count += 1;
            }
        }
        directions.both += u64::from(flow.queues.iter().all(Option::is_some));
        directions.split += u64::from(queues.len() == 2);
    }
    let queues: Vec<_> = (0u16..)
        .zip(forecast.queues.iter().zip(&flows))
        .map(|(queue, (load, flows))| QueueLoad {
            queue,
            flows: *flows,
            frames: load.frames,
            bytes: load.bytes,
        })
        .collect();
    let skew = |of: fn(&QueueLoad) -> u64| {
        let sum: u64 = queues.iter().map(of).sum();
        let most = queues.iter().map(of).max().unwrap_or(0);
        (sum > 0).then(|| most as f64 * queues.len() as f64 / sum as f64)
    };
    let heaviest = heaviest(forecast.flows.0.iter());
    let top = heaviest.first().map_or(Load::default(), |flow| Load {
        frames: flow.frames,
        bytes: flow.bytes,
    });
    Report {
        frames: total.frames,
        bytes: total.bytes,
        flows: forecast.flows.0.len() as u64,
        seconds: forecast.last_ns.saturating_sub(forecast.first_ns) as f64 / 1e9,
        skew: Skew {
            frames: skew(|q| q.frames),
            bytes: skew(|q| q.bytes),
        },
        queues,
        catch_all: by_reason(
            CatchAllReason::ALL
                .iter()
                .zip(forecast.catch_all)
                .map(|((_, name), load)| (*name, load)),
        ),
        addresses_only: by_reason(
            HostsReason::ALL
                .iter()
                .zip(forecast.hosts)
                .map(|((_, name), load)| (*name, load)),
        ),
        dropped: forecast.dropped,
        left: forecast.left,
        directions,
        heaviest,
        suggestion: forecast.candidates.and_then(|candidates| {
            candidates.suggest(&forecast.spread, directions, forecast.hosts, top, limits)
        }),
        spread: forecast.spread,
    }
}

/// The queues of a flow, each once.
fn queues_of(flow: &FlowLoad) -> Vec<u16> {
    let mut queues: Vec<_> = flow.queues.iter().flatten().copied().collect();
    queues.sort_unstable();
    queues.dedup();
    queues
}

/// The heaviest flows; of equal ones, the first by name, so that two runs tell the same.
fn heaviest<'a>(flows: impl Iterator<Item = (&'a FlowKey, &'a FlowLoad)>) -> Vec<Flow> {
    let mut all: Vec<_> = flows.collect();
    let rank = |(key, flow): &(&FlowKey, &FlowLoad)| {
        (Reverse(flow.load.bytes), Reverse(flow.load.frames), **key)
    };
    if all.len() > HEAVIEST {
        all.select_nth_unstable_by_key(HEAVIEST - 1, rank);
        all.truncate(HEAVIEST);
    }
    all.sort_by_key(rank);
    all.into_iter()
        .map(|(key, flow)| Flow {
            flow: key.to_string(),
            frames: flow.load.frames,
            bytes: flow.load.bytes,
            queues: queues_of(flow),
        })
        .collect()
}

fn by_reason(parts: impl Iterator<Item = (&'static str, Load)>) -> ByReason {
    let mut load = Load::default();
    let reasons = parts
        .inspect(|(_, part)| load += *part)
        .collect::<BTreeMap<_, _>>();
    ByReason { load, reasons }
}
