//! What a capture tells while it runs and when it has ended.

use crate::{
    analysis::{flows::FlowsReport, limits::CutoffReport, live},
    file_list::FileList,
    pipeline::reduce::FcsReport,
    sink::{Deleted, EncryptionReport, HookReport, PinnedFiles, Written},
    stats::ClockReport,
    stats::{NicCounters, QueueLedger, RingState, nic_sum, outage::Outages},
};
use serde::Serialize;
use std::{collections::BTreeMap, ops::AddAssign, time::Duration};

/// Counters of a moment, for progress lines.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Since the first WQ was ready, without the time in which the device was lost.
    pub elapsed: Duration,
    /// By queue.
    pub queues: Vec<QueueLedger>,
    /// By queue.
    pub rings: Vec<RingState>,
    /// What the NIC lost, by the counters' own names.
    pub nic: NicCounters,
    /// Times in which nothing could be received.
    #[serde(skip)]
    pub outages: Outages,
}

/// Why a run ended.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Asked to: a signal, a command.
    Stopped,
    /// [`Limits::count`](super::Limits::count) reached.
    Count,
    /// [`Limits::duration`](super::Limits::duration) over.
    Duration,
    /// [`Limits::bytes`](super::Limits::bytes) reached.
    Bytes,
    /// [`Limits::files`](super::Limits::files) reached.
    Files,
    /// The port went down and the configuration says to stop there; a finite wire has ended.
    PortDown,
    /// The device is gone; the text says how it was noticed.
    DeviceLost(String),
    /// Files can no longer be written; the text names the file and the error.
    Storage(String),
    /// A queue could not be recovered.
    Failed(String),
    /// Whoever read the stream on stdout has gone.
    ReaderLeft,
}

impl End {
    /// Whether this is a failure: exit status 1.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::DeviceLost(_) | Self::Storage(_) | Self::Failed(_)
        )
    }

    /// Whether another capture can go on from here once the device is back.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::DeviceLost(_))
    }
}

/// What a finished run tells; the source of `--summary`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Why it ended.
    pub end: End,
    /// By queue.
    pub queues: Vec<QueueLedger>,
    /// What the NIC lost during the run.
    pub nic: NicCounters,
    /// Malformed frames by class, of those that were parsed; `None`: nothing in this run parses.
    pub malformed: Option<BTreeMap<&'static str, u64>>,
    /// Live statistics as they were at the end; `None`: they were off.
    pub statistics: Option<live::TrafficSnapshot>,
    /// Frames whose FCS was checked; `None`: `capture.verify_fcs` is off.
    pub fcs: Option<FcsReport>,
    /// What was cut off; `None`: there is no `[[cutoff]]`.
    pub cutoff: Option<CutoffReport>,
    /// Flow records; `None`: there were none to write.
    pub flows: Option<FlowsReport>,
    /// What went into files, if there is a limit for that ([`Limits::bytes`](super::Limits::bytes)).
    #[serde(skip)]
    pub written: Written,
    /// Finished files that are still there, in name order.
    pub files: FileList,
    /// Old files deleted to keep within limits; `None`: nothing is ever deleted.
    pub deleted: Option<Deleted>,
    /// What pins hold of the files; `None`: nothing is ever deleted.
    pub pinned: Option<PinnedFiles>,
    /// What was encrypted; `None`: nothing was to be.
    pub encryption: Option<EncryptionReport>,
    /// How the hooks went; `None`: there are none.
    pub hooks: Option<HookReport>,
    /// Times in which nothing could be received.
    #[serde(skip)]
    pub outages: Outages,
    /// From the first WQ ready to the last file synced and closed, without the time in which the device was lost.
    pub duration: Duration,
    /// From start to the first WQ ready.
    pub startup: Duration,
    /// How the device's clock went; `None` with software stamps.
    pub clock: Option<ClockReport>,
    /// What happened on the way that a reader of the files should know, a line each.
    pub notes: Vec<String>,
}

impl Report {
    /// Two runs of one plan told as one: what was counted is added up, and the later one says how it ended.
    #[must_use]
    pub fn followed_by(self, later: Self) -> Self {
        let queues = self.queues.iter().zip(&later.queues);
        let mut files = self.files;
        files.absorb(later.files);
        if later.deleted.is_some() {
            // The later run may have deleted files of the earlier one.
            files.keep_existing();
        }
        Self {
            end: later.end,
            queues: queues.map(|(a, b)| a.plus(b)).collect(),
            nic: nic_sum(self.nic, later.nic),
            malformed: added(self.malformed, later.malformed, |sum, more| {
                for (class, n) in more {
                    *sum.entry(class).or_default() += n;
                }
            }),
            statistics: later.statistics,
            fcs: added(self.fcs, later.fcs, FcsReport::add_assign),
            cutoff: added(self.cutoff, later.cutoff, CutoffReport::add_assign),
            flows: added(self.flows, later.flows, FlowsReport::absorb),
            written: self.written.plus(later.written),
            files,
            deleted: added(self.deleted, later.deleted, Deleted::add_assign),
            pinned: later.pinned,
            encryption: added(
                self.encryption,
                later.encryption,
                EncryptionReport::add_assign,
            ),
            hooks: added(self.hooks, later.hooks, HookReport::add_assign),
            outages: self.outages.plus(later.outages),
            duration: self.duration + later.duration,
            startup: self.startup,
            clock: match (self.clock, later.clock) {
                (Some(earlier), Some(later)) => Some(later.after(&earlier)),
                (earlier, later) => later.or(earlier),
            },
            notes: [self.notes, later.notes].concat(),
        }
    }
}

/// What two runs have of something, where both have it.
fn added<T>(one: Option<T>, other: Option<T>, add: impl FnOnce(&mut T, T)) -> Option<T> {
    match (one, other) {
        (Some(mut sum), Some(more)) => {
            add(&mut sum, more);
            Some(sum)
        }
        (one, other) => one.or(other),
    }
}

impl End {
    /// Lets a failure's own words replace an end that is none, or a failure still without words. Gives back what a
    /// reader should know beside the failure that there is already.
    pub(super) fn explain(&mut self, failure: Self) -> Option<String> {
        match (&*self, failure) {
            (
                Self::Failed(words) | Self::Storage(words) | Self::DeviceLost(words),
                Self::Failed(more) | Self::Storage(more),
            ) if !words.is_empty() => Some(more),
            (_, failure) => {
                *self = failure;
                None
            }
        }
    }
}
