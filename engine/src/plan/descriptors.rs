//! File descriptors that a run may have at the same time, and the process's limit on them.
//!
//! May import: the plan's parts, and the limits of those who open files.

use super::{Plan, PortPlan};
use crate::sink::MOST_UNCLOSED;
use rustix::process::{Resource, getrlimit};

/// Number of file descriptors of a captured port by any backend, without those of its queues:
/// devices, event channels, netlink, clocks, programs and maps.
const OF_PORT: u64 = 24;
/// Number of file descriptors of a queue by any backend: sockets, event channels and shared memory.
const OF_QUEUE: u64 = 4;
/// Number of file descriptors of a sequence of capture files: the current file, the next one, and
/// those whose last blocks are being written.
const OF_FILES: u64 = 8;
/// Number of file descriptors of a writer of flow records.
const OF_RECORDS: u64 = 4;
/// Number of file descriptors of the connections of the control service and of the metrics, and of
/// the rest of the process.
const OF_SERVICES: u64 = 192;

/// Number of file descriptors that a run may have at the same time, by their use. It is an upper
/// bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DescriptorPlan {
    /// Number of descriptors of devices, sockets and event channels of ports and queues.
    pub ports: u64,
    /// Number of descriptors of capture files and files with flow records.
    pub files: u64,
    /// Number of descriptors of clients of the control service and of the metrics, of logs, and of
    /// the rest of the process.
    pub services: u64,
}

impl DescriptorPlan {
    /// Counts the file descriptors that a run of `plan` may have at the same time.
    pub(super) fn of(plan: &Plan) -> Self {
        let port = |it: &PortPlan| OF_PORT + OF_QUEUE * it.queues as u64;
        let sequences = match plan.output.is_ordered() || plan.is_paired() {
            true => 1,
            false => plan.queues.len() as u64,
        };
        let captures = match plan.output.dir {
            Some(_) => OF_FILES * sequences + MOST_UNCLOSED as u64,
            None => 0,
        };
        let records = plan.flows.as_ref().map_or(0, |_| OF_RECORDS);
        Self {
            ports: plan.ports().map(port).sum(),
            files: captures + records,
            services: OF_SERVICES,
        }
    }

    /// Returns the number of file descriptors of all uses together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ports + self.files + self.services
    }

    /// Returns the number of file descriptors that the process may have, after a run has raised its
    /// soft limit to the hard one. `None`: there is no limit.
    #[must_use]
    pub fn limit() -> Option<u64> {
        getrlimit(Resource::Nofile).maximum
    }

    /// Returns a note if the process may have fewer file descriptors than the run may need.
    pub(super) fn note(&self) -> Option<String> {
        let (total, limit) = (self.total(), Self::limit()?);
        (limit < total).then(|| {
            format!(
                "the run may need {total} file descriptors, and the process may have {limit}: raise the hard limit \
                 (ulimit -Hn, LimitNOFILE= of a unit)"
            )
        })
    }
}
