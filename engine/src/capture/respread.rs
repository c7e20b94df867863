//! Live respreading: moves entries of the indirection table when a queue receives much more than
//! its share.

use super::Capture;
use crate::{
    Error,
    plan::{
        Plan,
        respread::{Load, Proposal, even_out, skew},
    },
    rx::{Hashing, LoadSampler, QueueLoad, SamplingRate},
};
use serde::Serialize;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use wqcap_rss::{IndirectionTable, Toeplitz};

/// Interval at which the load of the queues is measured.
const EVERY: Duration = Duration::from_secs(1);
/// Ratio of a receive queue's load to its share above which the queue is overloaded.
const MAX_SKEW: f64 = 1.5;
/// Number of consecutive load measurements with an overloaded queue before the indirection table is
/// changed.
const IN_A_ROW: u32 = 2;
/// Minimum number of sampled frames in a load measurement. Fewer are random, or a load too small to
/// matter.
const LEAST_SAMPLES: u64 = 256;
/// Number of load measurements after a change of the indirection table before the next change, so
/// that flows do not move repeatedly.
const PAUSE: u32 = 5;

/// Source from which a new RSS indirection table is derived: the measured load, or new shares of
/// the queues.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Respread {
    /// RSS indirection table derived from the load of the last seconds; the shares of the queues
    /// stay.
    ByLoad,
    /// RSS indirection table derived from new shares of the queues, with the minimum number of
    /// moved entries.
    Weights(Vec<u32>),
}

/// Result of a change of the RSS indirection table: how many entries moved, and how even the load
/// is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Respreading {
    /// Number of RSS indirection table entries that lead to another queue than before; 0: the table
    /// is unchanged.
    pub moved: usize,
    /// Number of entries in the RSS indirection table.
    pub entries: usize,
    /// Load of the busiest queue divided by its share, before the indirection table changes; 0
    /// without samples.
    pub skew_before: f64,
    /// Load of the busiest queue divided by its share, computed for the new indirection table.
    pub skew_after: f64,
}

/// Load of the queues and of the RSS indirection table's entries, kept by the owner of a capture.
pub(super) struct Spreading {
    hashing: Arc<Hashing>,
    /// Counters of the sampled frames of each queue, by entry of the RSS indirection table.
    loads: Vec<Arc<QueueLoad>>,
    /// Sampled frames at the last load measurement, by queue and entry of the RSS indirection
    /// table; the last element counts those without an entry.
    seen: Vec<Vec<u64>>,
    /// Loads of the queues in the last two measurements, the older first.
    recent: [Load; 2],
    pub(super) table: Vec<u16>,
    shares: Vec<f64>,
    auto: bool,
    next: Instant,
    strained: u32,
    pause: u32,
}

impl Spreading {
    pub(super) fn new(plan: &Plan) -> Self {
        let size = plan.port.table.len();
        let queues = plan.queues.len();
        // Ports have tables of their own, which do not change while several ports are captured.
        let auto = plan.respread && !plan.has_several_ports();
        Self {
            hashing: Arc::new(Hashing {
                toeplitz: Toeplitz::new(&plan.port.key),
                depth: plan.port.depth,
            }),
            loads: (0..queues)
                .map(|_| Arc::new(QueueLoad::new(size)))
                .collect(),
            seen: vec![vec![0; size + 1]; queues],
            recent: [Load::default(), Load::default()],
            table: plan.port.table.clone(),
            shares: shares(&plan.port.table, queues),
            auto,
            next: Instant::now() + EVERY,
            strained: 0,
            pause: 0,
        }
    }

    /// Returns the sampler with which a queue's receive loop counts some of its frames for the
    /// load.
    pub(super) fn sampler(&self, queue: usize) -> LoadSampler {
        let watch = match (self.loads.len(), self.auto) {
            (1, _) => SamplingRate::Never,
            (_, true) => SamplingRate::Closely,
            (_, false) => SamplingRate::Loosely,
        };
        LoadSampler::new(
            Arc::clone(&self.hashing),
            Arc::clone(&self.loads[queue]),
            watch,
        )
    }

    /// Returns the load of the queues since the last measurement. A sample that arrives on another
    /// queue than that of its indirection table entry does not count for the entry: a flow rule led
    /// it there.
    fn take_load(&mut self) -> Load {
        let mut load = Load {
            entries: vec![0; self.table.len()],
            fixed: vec![0; self.loads.len()],
        };
        for (queue, (samples, seen)) in self.loads.iter().zip(&mut self.seen).enumerate() {
            let now = samples.entries().chain([samples.others()]);
            for (entry, (now, seen)) in now.zip(seen).enumerate() {
                let new = now - std::mem::replace(seen, now);
                match self.table.get(entry) {
                    Some(owner) if usize::from(*owner) == queue => load.entries[entry] += new,
                    _ => load.fixed[queue] += new,
                }
            }
        }
        load
    }

    /// Returns the load of the queues in the last two measurements and since the last one.
    fn last_seconds(&mut self) -> Load {
        let mut sum = self.take_load();
        self.recent.iter().for_each(|load| sum.add(load));
        self.recent = [Load::default(), Load::default()];
        sum
    }

    /// Measures the load of the queues once per second. Returns `true` if the RSS indirection table
    /// should change.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        self.next = now + EVERY;
        let load = self.take_load();
        let samples: u64 = load.entries.iter().chain(&load.fixed).sum();
        let strained =
            samples >= LEAST_SAMPLES && skew(&self.table, &load, &self.shares) > MAX_SKEW;
        self.strained = if strained { self.strained + 1 } else { 0 };
        self.pause = self.pause.saturating_sub(1);
        self.recent.rotate_left(1);
        self.recent[1] = load;
        self.auto && self.pause == 0 && self.strained >= IN_A_ROW
    }

    /// Returns the RSS indirection table to install instead of the present one; `None`: the present
    /// one is good enough.
    fn propose(&mut self, how: &Respread) -> Result<Option<Proposal>, Error> {
        let load = self.last_seconds();
        let weights = match how {
            Respread::ByLoad => return Ok(even_out(&self.table, &load, &self.shares)),
            Respread::Weights(weights) => weights,
        };
        let size = u32::try_from(self.table.len()).unwrap_or(u32::MAX);
        let queues = u16::try_from(self.loads.len()).unwrap_or(u16::MAX);
        let table = IndirectionTable::new(size, queues, weights)
            .map_err(|e| Error::config("rss.weights", format!("{weights:?}"), e))?
            .with_fewest_moves_from(&self.table)
            .entries()
            .to_vec();
        self.shares = shares(&table, self.loads.len());
        let before = skew(&self.table, &load, &self.shares);
        // Each entry keeps its load when it moves to another queue.
        Ok(Some(Proposal {
            moved: table
                .iter()
                .zip(&self.table)
                .filter(|(a, b)| a != b)
                .count(),
            skew: (before, skew(&table, &load, &self.shares)),
            table,
        }))
    }
}

/// Returns the fraction of the RSS indirection table's entries that each queue has.
fn shares(table: &[u16], queues: usize) -> Vec<f64> {
    (0..queues)
        .map(|queue| {
            let entries = table.iter().filter(|it| usize::from(**it) == queue).count();
            entries as f64 / table.len().max(1) as f64
        })
        .collect()
}

impl Capture {
    /// Returns the shared RSS indirection table, as the queue number in each entry.
    #[must_use]
    pub fn table(&self) -> &[u16] {
        &self.spreading.table
    }

    /// Rebuilds the indirection table on new QPs and moves the rules to them while frames are
    /// received: no frame is lost or duplicated. A flow that moves continues in the file of another
    /// queue.
    ///
    /// # Errors
    /// The weights do not fit into a table, or a verb fails. After a failed verb, rules moved until
    /// then lead to the new QPs and the others to the old ones; every frame still arrives once.
    pub fn respread(&mut self, how: &Respread) -> Result<Respreading, Error> {
        let proposal = self.spreading.propose(how)?;
        let entries = self.spreading.table.len();
        let Some(proposal) = proposal.filter(|it| it.moved > 0) else {
            return Ok(Respreading {
                moved: 0,
                entries,
                skew_before: 0.0,
                skew_after: 0.0,
            });
        };
        self.sources
            .port_mut("rss.respread")?
            .respread(&proposal.table)?;
        self.spreading.table = proposal.table;
        let done = Respreading {
            moved: proposal.moved,
            entries,
            skew_before: proposal.skew.0,
            skew_after: proposal.skew.1,
        };
        self.shared.note(format!(
            "re-spread: {} of {} entries of the indirection table moved; the busiest queue had {:.2} times its share, now \
             expected: {:.2}",
            done.moved,
            done.entries,
            done.skew_before,
            done.skew_after
        ));
        Ok(done)
    }

    /// Rebuilds the RSS indirection table if the load of the queues requires it.
    pub(super) fn respread_if_due(&mut self) {
        if !self.spreading.is_due() {
            return;
        }
        self.spreading.pause = PAUSE;
        if let Err(e) = self.respread(&Respread::ByLoad) {
            self.shared.note(format!(
                "rss.respread is turned off, because a change of the indirection table failed: {e}"
            ));
            self.spreading.auto = false;
        }
    }
}
