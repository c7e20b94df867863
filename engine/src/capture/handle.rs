//! A running capture as other threads see it: snapshots, and what can be changed without its owner.

use super::{Shared, Snapshot};
use crate::{
    Error,
    device::{clock::system_ns, counters::NicReader},
    filter::Filter,
    sink::Backlog,
    stats::{NicCounters, nic_sum},
};
use serde::Serialize;
use std::{sync::Arc, time::Instant};

/// A running capture, seen from any thread: snapshots, and what can be changed without its owner.
#[derive(Clone)]
pub struct CaptureHandle {
    pub(super) shared: Shared,
    pub(super) nic: Arc<NicReader>,
    pub(super) backlog: Option<Backlog>,
    pub(super) ready: Instant,
}

/// One change of the filter.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct FilterChange {
    /// Nanoseconds since 1970. Each queue follows with its next batch.
    pub ns: u64,
    /// The expression before.
    pub before: String,
    /// The expression from now on.
    pub after: String,
}

impl CaptureHandle {
    /// As [`Capture::snapshot`](super::Capture::snapshot).
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut nic = self.nic.growth();
        if let Some(earlier) = &self.shared.earlier {
            nic = nic_sum(earlier.nic.clone(), nic);
        }
        self.snapshot_beside(nic)
    }

    /// The same with the NIC's counters of another look: reading them takes system calls, the rest a few loads.
    #[must_use]
    pub fn snapshot_beside(&self, nic: NicCounters) -> Snapshot {
        let mut elapsed = self.ready.elapsed();
        let mut queues = self.shared.ledgers();
        if let Some(earlier) = &self.shared.earlier {
            elapsed += earlier.duration;
            for (queue, before) in queues.iter_mut().zip(&earlier.queues) {
                *queue = before.plus(queue);
            }
        }
        Snapshot {
            elapsed,
            queues,
            rings: self.shared.counters.iter().map(|it| it.ring()).collect(),
            nic,
            outages: self.shared.outages.get(),
        }
    }

    /// What the writer has to do; `None`: nothing is written to files.
    #[must_use]
    pub fn backlog(&self) -> Option<&Backlog> {
        self.backlog.as_ref()
    }

    /// The filter that holds; empty: every frame.
    #[must_use]
    pub fn filter(&self) -> String {
        self.shared.filter.get().expression().to_owned()
    }

    /// Lets another filter hold from each queue's next batch on. Notes it in the report; sinks that keep notes are
    /// told between the frames it holds for and those before ([`Consumer::changed`](crate::pipeline::Consumer::changed)).
    ///
    /// # Errors
    /// The expression is none, or the NIC's rules, which were made of the first one, do not take all it keeps; the
    /// filter that held holds on.
    pub fn set_filter(&self, expression: &str) -> Result<FilterChange, Error> {
        let refused =
            |problem: String| Error::config("capture.filter", format!("{expression:?}"), problem);
        let filter = Filter::compile(expression).map_err(|e| refused(e.to_string()))?;
        if let Some(split) = &self.shared.split {
            split.allows(&filter).map_err(refused)?;
        }
        let before = self.shared.filter.set(filter);
        let change = FilterChange {
            ns: system_ns(),
            before: before.expression().to_owned(),
            after: expression.to_owned(),
        };
        self.shared.note(format!(
            "the filter was changed after {:.3} s from {:?} to {:?}",
            self.ready.elapsed().as_secs_f64(),
            change.before,
            change.after
        ));
        Ok(change)
    }
}
