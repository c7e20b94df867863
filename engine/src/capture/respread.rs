//! Live re-spreading: when a queue carries far more than its share, entries of the indirection table move.

use super::Capture;
use crate::{
    Error,
    plan::{
        Plan,
        respread::{Load, Proposal, even_out, skew},
    },
    rx::{Hashing, QueueLoad, Sampler, Watch},
};
use serde::Serialize;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use wqcap_rss::{IndirectionTable, Toeplitz};

/// How often the load is measured.
const EVERY: Duration = Duration::from_secs(1);
/// A queue carries far more than its share from here on.
const FAR_MORE: f64 = 1.5;
/// Measurements in a row that must find so.
const IN_A_ROW: u32 = 2;
/// Fewer samples in a measurement are chance, or a load that no queue minds.
const LEAST_SAMPLES: u64 = 256;
/// Measurements without a change after one, so that flows do not wander about.
const REST: u32 = 5;

/// How the new table is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Respread {
    /// From the load of the last seconds, keeping the queues' shares.
    ByLoad,
    /// These shares of the queues, moving no more entries than they take.
    Weights(Vec<u32>),
}

/// One change of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Respreading {
    /// Entries that name another queue than before; 0: the table stayed as it was.
    pub moved: usize,
    /// Entries of the table.
    pub entries: usize,
    /// The busiest queue's load over its share before; 0 where nothing was seen.
    pub skew_before: f64,
    /// The same as the new table would have had it.
    pub skew_after: f64,
}

/// What the owner of a capture knows of the spread.
pub(super) struct Spreading {
    hashing: Arc<Hashing>,
    /// By queue.
    loads: Vec<Arc<QueueLoad>>,
    /// Samples by queue and entry, and of others at the end, at the last measurement.
    seen: Vec<Vec<u64>>,
    /// The load of the last measurement but one, and of the last.
    recent: [Load; 2],
    pub(super) table: Vec<u16>,
    shares: Vec<f64>,
    auto: bool,
    next: Instant,
    strained: u32,
    rest: u32,
}

impl Spreading {
    pub(super) fn of(plan: &Plan) -> Self {
        let size = plan.table.len();
        let queues = plan.queues.len();
        Self {
            hashing: Arc::new(Hashing {
                toeplitz: Toeplitz::new(&plan.key),
                depth: plan.depth,
            }),
            loads: (0..queues)
                .map(|_| Arc::new(QueueLoad::new(size)))
                .collect(),
            seen: vec![vec![0; size + 1]; queues],
            recent: [Load::default(), Load::default()],
            table: plan.table.clone(),
            shares: shares(&plan.table, queues),
            auto: plan.respread,
            next: Instant::now() + EVERY,
            strained: 0,
            rest: 0,
        }
    }

    /// A sampler for a queue's loop.
    pub(super) fn sampler(&self, queue: usize) -> Sampler {
        let watch = match (self.loads.len(), self.auto) {
            (1, _) => Watch::Never,
            (_, true) => Watch::Closely,
            (_, false) => Watch::Loosely,
        };
        Sampler::new(
            Arc::clone(&self.hashing),
            Arc::clone(&self.loads[queue]),
            watch,
        )
    }

    /// The load since the last measurement. An entry whose samples are on another queue than the table's is no
    /// entry's load: a rule has led them there.
    fn take(&mut self) -> Load {
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

    /// The load of the last two measurements and since.
    fn last_seconds(&mut self) -> Load {
        let mut sum = self.take();
        self.recent.iter().for_each(|load| sum.add(load));
        self.recent = [Load::default(), Load::default()];
        sum
    }

    /// Once a second: whether the table should change by itself.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        self.next = now + EVERY;
        let load = self.take();
        let samples: u64 = load.entries.iter().chain(&load.fixed).sum();
        let strained =
            samples >= LEAST_SAMPLES && skew(&self.table, &load, &self.shares) > FAR_MORE;
        self.strained = if strained { self.strained + 1 } else { 0 };
        self.rest = self.rest.saturating_sub(1);
        self.recent.rotate_left(1);
        self.recent[1] = load;
        self.auto && self.rest == 0 && self.strained >= IN_A_ROW
    }

    /// The table that is wanted.
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
            .reached_from(&self.table)
            .entries()
            .to_vec();
        self.shares = shares(&table, self.loads.len());
        let before = skew(&self.table, &load, &self.shares);
        // Each entry keeps its load, whichever queue it names.
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

/// Each queue's part of a table.
fn shares(table: &[u16], queues: usize) -> Vec<f64> {
    (0..queues)
        .map(|queue| {
            let entries = table.iter().filter(|it| usize::from(**it) == queue).count();
            entries as f64 / table.len().max(1) as f64
        })
        .collect()
}

impl Capture {
    /// The shared indirection table as it is: a queue for each entry.
    #[must_use]
    pub fn table(&self) -> &[u16] {
        &self.spreading.table
    }

    /// Rebuilds the indirection table on new QPs and swaps the rules over to them, frames flowing: none is lost and
    /// none comes twice. A flow that moves goes on in another queue's file.
    ///
    /// # Errors
    /// The weights fit no table, or a verb's: then rules that were swapped lead to the new QPs and the others to the
    /// old, and every frame still arrives once.
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
        self.port.respread(&proposal.table)?;
        self.spreading.table = proposal.table;
        let done = Respreading {
            moved: proposal.moved,
            entries,
            skew_before: proposal.skew.0,
            skew_after: proposal.skew.1,
        };
        self.shared.note(format!(
            "re-spread: {} of {} entries of the table moved; the busiest queue had {:.2} times its share, and is to \
             have {:.2}",
            done.moved,
            done.entries,
            done.skew_before,
            done.skew_after
        ));
        Ok(done)
    }

    /// Re-spreads if the load asks for it.
    pub(super) fn respread_if_due(&mut self) {
        if !self.spreading.is_due() {
            return;
        }
        self.spreading.rest = REST;
        if let Err(e) = self.respread(&Respread::ByLoad) {
            self.shared.note(format!("rss.respread: {e}"));
            self.spreading.auto = false;
        }
    }
}
