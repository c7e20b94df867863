//! A running capture as other threads see it: snapshots, and what can be changed without its owner.

use super::{Shared, Snapshot};
use crate::{
    Error,
    device::counters::NicReader,
    filter::{Filter, shown},
    plan,
    sink::{Backlog, Requests, RetentionGauge},
    stats::{NicCounters, nic_sum},
    time::system_ns,
};
use serde::Serialize;
use std::sync::Arc;

/// A running capture, seen from any thread: snapshots, and what can be changed without its owner.
#[derive(Clone)]
pub struct CaptureHandle {
    pub(super) shared: Shared,
    pub(super) nic: Arc<NicReader>,
    /// What the writer has to do; `None`: nothing is written to files.
    pub(super) backlog: Option<Backlog>,
    /// What sinks are asked; `None`: nothing is written to files.
    pub(super) requests: Option<Arc<Requests>>,
    /// What retention finds; `None`: nothing is ever deleted.
    pub(super) retention: Option<RetentionGauge>,
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

    /// The same with NIC counters that were read before: reading them takes system calls, the rest a few loads.
    #[must_use]
    pub fn snapshot_beside(&self, nic: NicCounters) -> Snapshot {
        let mut elapsed = self.shared.ready.elapsed();
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

    /// The present filter; empty: every frame.
    #[must_use]
    pub fn filter(&self) -> String {
        self.filter_now().expression().to_owned()
    }

    /// The same, compiled.
    pub(super) fn filter_now(&self) -> Arc<Filter> {
        self.shared.filter.get()
    }

    /// Applies another filter from each queue's next batch on, and notes it in the report. Consumers are notified between
    /// the last frame of the old filter and the first of the new one
    /// ([`Consumer::changed`](crate::pipeline::Consumer::changed)).
    ///
    /// # Errors
    /// The expression does not compile, or keeps frames that the NIC's rules, which were made of the first filter, do not
    /// take; then the filter stays as it was.
    pub fn set_filter(&self, expression: &str) -> Result<FilterChange, Error> {
        self.set_compiled_filter(plan::compiled("capture.filter", expression)?)
    }

    /// As [`CaptureHandle::set_filter`], without waiting for libpcap.
    ///
    /// # Errors
    /// The filter keeps frames that the NIC's rules do not take.
    pub(crate) fn set_compiled_filter(&self, filter: Filter) -> Result<FilterChange, Error> {
        if let Some(split) = &self.shared.split {
            let allowed = split.allows(&filter);
            allowed.map_err(|problem| {
                Error::config("capture.filter", shown(filter.expression()), problem)
            })?;
        }
        let after = filter.expression().to_owned();
        let before = self.shared.filter.set(filter);
        let change = FilterChange {
            ns: system_ns(),
            before: before.expression().to_owned(),
            after,
        };
        self.shared.note(format!(
            "the filter was changed from {:?} to {:?}",
            change.before, change.after
        ));
        Ok(change)
    }
}
