//! Handle to a running capture for other threads: snapshots, and changes that do not need the
//! owner.

use super::{SharedRun, Snapshot};
use crate::{
    Error,
    device::counters::NicReaders,
    filter::{Filter, quoted_expression},
    plan,
    sink::{Backlog, RetentionGauge, SinkRequests},
    stats::{NicCounters, nic_sum},
    time::system_ns,
};
use serde::Serialize;
use std::sync::Arc;

/// Handle to a running capture for any thread: snapshots of its counters, and changes that do not
/// need the capture's owner thread.
#[derive(Clone)]
pub struct CaptureHandle {
    pub(super) shared: SharedRun,
    pub(super) nic: Arc<NicReaders>,
    /// Fill level of the write buffers of all queues; `None`: no files are written.
    pub(super) backlog: Option<Backlog>,
    /// Requests to the sinks that write the capture files, such as to rotate or to flush; `None`:
    /// no files are written.
    pub(super) requests: Option<Arc<SinkRequests>>,
    /// Gauge with the results of the retention's last check of the output directory; `None`: no
    /// files are written.
    pub(super) retention: Option<RetentionGauge>,
}

/// Result of a change of the capture filter: the time of the change, and the old and the new filter
/// expression.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilterChange {
    /// Time of the filter change in nanoseconds since 1970. Each queue applies the new filter from
    /// its next batch.
    pub ns: u64,
    /// Capture filter before the change, as an expression.
    pub before: String,
    /// Capture filter after the change, as an expression.
    pub after: String,
}

impl CaptureHandle {
    /// Returns the fill level of the write buffers of all queues; `None`: no files are written.
    #[must_use]
    pub fn backlog(&self) -> Option<&Backlog> {
        self.backlog.as_ref()
    }

    /// Returns the handle for requests to the sinks that write the capture files; `None`: no files
    /// are written.
    #[must_use]
    pub fn requests(&self) -> Option<&Arc<SinkRequests>> {
        self.requests.as_ref()
    }

    /// Returns the gauge of the retention of capture files; `None`: retention is off, or no files
    /// are written.
    #[must_use]
    pub fn retention(&self) -> Option<&RetentionGauge> {
        self.retention.as_ref().filter(|it| it.is_on())
    }

    /// Returns the capture's current counters, like
    /// [`Capture::snapshot`](super::Capture::snapshot).
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut nic = self.nic.growth();
        if let Some(earlier) = &self.shared.earlier {
            nic = nic_sum(earlier.nic.clone(), nic);
        }
        self.snapshot_with_nic(nic)
    }

    /// Returns a snapshot of the capture's counters, with NIC counters that the caller read
    /// earlier: reading them takes system calls, the other counters only loads.
    #[must_use]
    pub fn snapshot_with_nic(&self, nic: NicCounters) -> Snapshot {
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
            ports: self.shared.ports.to_vec(),
            rings: self.shared.counters.iter().map(|it| it.ring()).collect(),
            nic,
            outages: self.shared.outages.get(),
        }
    }

    /// Returns the current capture filter as an expression; empty: every frame is kept.
    #[must_use]
    pub fn filter(&self) -> String {
        self.current_filter().expression().to_owned()
    }

    /// Returns the current capture filter in compiled form.
    pub fn current_filter(&self) -> Arc<Filter> {
        self.shared.filter.get()
    }

    /// Replaces the capture filter from each queue's next batch, and adds a note to the report.
    /// Consumers are notified between the last frame of the old filter and the first of the new one
    /// ([`Consumer::filter_changed`](crate::pipeline::Consumer::filter_changed)).
    ///
    /// # Errors
    /// The expression does not compile, or keeps frames that the NIC's rules, derived from the
    /// first filter, do not capture. The filter then stays unchanged.
    pub fn set_filter(&self, expression: &str) -> Result<FilterChange, Error> {
        self.set_compiled_filter(plan::compile_filter(
            &self.shared.filters,
            "capture.filter",
            expression,
        )?)
    }

    /// Replaces the capture filter by a compiled one, like [`CaptureHandle::set_filter`] but
    /// without waiting for libpcap.
    ///
    /// # Errors
    /// The filter keeps frames that the NIC's rules do not capture.
    pub fn set_compiled_filter(&self, filter: Filter) -> Result<FilterChange, Error> {
        if let Some(split) = &self.shared.split {
            let allowed = split.allows(&filter);
            allowed.map_err(|problem| {
                Error::config(
                    "capture.filter",
                    quoted_expression(filter.expression()),
                    problem,
                )
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
            "the capture filter was changed from {:?} to {:?}",
            change.before, change.after
        ));
        Ok(change)
    }
}
