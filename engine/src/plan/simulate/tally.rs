//! Counts of simulated frames by destination, and the report on them.

use super::{
    flows::{FlowLoad, Flows, SimulatedFlow},
    nic_view::{CatchAllReason, HostsReason, NicFrame},
    report::{
        ByReason, Directions, HeaviestFlow, SimulatedQueue, SimulatedSpread, SimulationReport, Skew,
    },
    suggest::Candidates,
};
use crate::stats::traffic::Volume;
use std::cmp::Reverse;
use strum::VariantNames;

/// Number of flows in a simulation's list of the heaviest flows.
const HEAVIEST: usize = 10;

/// Counts of simulated frames by destination: queue, drop or kernel.
pub(super) struct Tally {
    /// Number of frames and bytes of each simulated queue.
    queues: Vec<Volume>,
    /// Number of frames and bytes that a flow rule drops.
    pub(super) dropped: Volume,
    /// Number of frames and bytes that no flow rule takes and that are left to the kernel.
    pub(super) left: Volume,
    /// Number of frames and bytes that the NIC does not hash, by reason.
    catch_all: [Volume; CatchAllReason::VARIANTS.len()],
    /// Number of frames and bytes for which the NIC hashes only the addresses, by reason.
    hosts: [Volume; HostsReason::VARIANTS.len()],
    /// Simulated flows with the load and the queues of each.
    pub(super) flows: Flows,
    /// Earliest time stamp of the simulated frames, in nanoseconds since 1970.
    first_ns: u64,
    /// Latest time stamp of the simulated frames, in nanoseconds since 1970.
    last_ns: u64,
}

impl Tally {
    /// Creates empty counts of simulated frames for this many queues.
    pub(super) fn new(queues: u16) -> Self {
        Self {
            queues: vec![Volume::default(); usize::from(queues)],
            dropped: Volume::default(),
            left: Volume::default(),
            catch_all: Default::default(),
            hosts: Default::default(),
            flows: Flows::default(),
            first_ns: u64::MAX,
            last_ns: 0,
        }
    }

    /// Extends the time range of the simulated frames by a time stamp.
    pub(super) fn stamp(&mut self, ns: u64) {
        self.first_ns = self.first_ns.min(ns);
        self.last_ns = self.last_ns.max(ns);
    }

    /// Counts a simulated frame for its queue and its flow.
    pub(super) fn count(&mut self, seen: &NicFrame<'_>, queue: u16, len: u32) {
        if let Some(load) = self.queues.get_mut(usize::from(queue)) {
            load.count(len);
        }
        self.flows.count(seen, queue, len);
    }

    /// Counts a simulated frame that goes to queue 0 because it is not hashed.
    pub(super) fn count_catch_all(&mut self, seen: &NicFrame<'_>, len: u32) {
        self.catch_all[seen.catch_all_reason() as usize].count(len);
    }

    /// Counts a simulated frame that is hashed by its addresses only.
    pub(super) fn count_hosts(&mut self, seen: &NicFrame<'_>, len: u32) {
        self.hosts[seen.hosts_reason() as usize].count(len);
    }

    /// Returns the report of the simulation, with a suggestion if `candidates` were measured.
    pub(super) fn report(
        self,
        spread: SimulatedSpread,
        candidates: Option<Candidates>,
        most_queues: u16,
    ) -> SimulationReport {
        let mut total = Volume::default();
        for load in &self.queues {
            total += *load;
        }
        let mut flows = vec![0u64; self.queues.len()];
        let mut directions = Directions::default();
        for flow in self.flows.table.values() {
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
            .zip(self.queues.iter().zip(&flows))
            .map(|(queue, (load, flows))| SimulatedQueue {
                queue,
                flows: *flows,
                load: *load,
            })
            .collect();
        let skew = |of: fn(&SimulatedQueue) -> u64| {
            let sum: u64 = queues.iter().map(of).sum();
            let most = queues.iter().map(of).max().unwrap_or(0);
            (sum > 0).then(|| most as f64 * queues.len() as f64 / sum as f64)
        };
        let heaviest = heaviest(self.flows.table.iter());
        let top = heaviest.first().map(|flow| flow.load).unwrap_or_default();
        SimulationReport {
            frames: total.frames,
            bytes: total.bytes,
            flows: self.flows.table.len() as u64,
            further_flows: self.flows.further,
            seconds: self.last_ns.saturating_sub(self.first_ns) as f64 / 1e9,
            skew: Skew {
                frames: skew(|q| q.load.frames),
                bytes: skew(|q| q.load.bytes),
            },
            queues,
            catch_all: by_reason(CatchAllReason::VARIANTS, &self.catch_all),
            addresses_only: by_reason(HostsReason::VARIANTS, &self.hosts),
            dropped: self.dropped,
            left: self.left,
            directions,
            heaviest,
            suggestion: candidates.and_then(|candidates| {
                candidates.suggest(&spread, directions, self.hosts, top, most_queues)
            }),
            spread,
        }
    }
}

/// Returns the distinct queues of a simulated flow.
fn queues_of(flow: &FlowLoad) -> Vec<u16> {
    let mut queues: Vec<_> = flow.queues.iter().flatten().copied().collect();
    queues.sort_unstable();
    queues.dedup();
    queues
}

/// Returns the heaviest flows of the simulation by bytes. Equal flows are ordered by key, so that
/// the result is deterministic.
fn heaviest<'a>(
    flows: impl Iterator<Item = (&'a SimulatedFlow, &'a FlowLoad)>,
) -> Vec<HeaviestFlow> {
    let mut all: Vec<_> = flows.collect();
    let rank = |(key, flow): &(&SimulatedFlow, &FlowLoad)| {
        (Reverse(flow.load.bytes), Reverse(flow.load.frames), **key)
    };
    if all.len() > HEAVIEST {
        all.select_nth_unstable_by_key(HEAVIEST - 1, rank);
        all.truncate(HEAVIEST);
    }
    all.sort_by_key(rank);
    all.into_iter()
        .map(|(key, flow)| HeaviestFlow {
            flow: key.to_string(),
            community_id: key.community_id(),
            load: flow.load,
            queues: queues_of(flow),
        })
        .collect()
}

/// Returns the frames and bytes of each reason, and the sum over all reasons.
fn by_reason(names: &[&'static str], loads: &[Volume]) -> ByReason {
    let mut load = Volume::default();
    loads.iter().for_each(|part| load += *part);
    let reasons = names.iter().copied().zip(loads.iter().copied());
    ByReason {
        load,
        reasons: reasons.collect(),
    }
}
