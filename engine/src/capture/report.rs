//! Counters of a running capture, and the report of a finished one.

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
use wqcap_core::notes::RunNotes;

/// Counters of a capture at one moment, for progress lines.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Time since the capture's first WQ was ready, without the time in which the device was lost.
    pub elapsed: Duration,
    /// Ledger of each queue: number of its frames by what became of them, such as captured or
    /// dropped.
    pub queues: Vec<QueueLedger>,
    /// Names of the captured ports, if there are several; else empty.
    pub ports: Vec<String>,
    /// State of each queue's receive ring.
    pub rings: Vec<RingState>,
    /// Frames that the NIC lost so far, under the names that the NIC's driver gives its counters.
    pub nic: NicCounters,
    /// Outages of the capture: periods in which nothing could be received.
    #[serde(skip)]
    pub outages: Outages,
}

/// Reason for the end of a capture run.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The capture run was stopped by a signal or a command.
    Stopped,
    /// The capture reached its limit on frames, [`Limits::count`](super::Limits::count).
    Count,
    /// The capture reached its limit on time, [`Limits::duration`](super::Limits::duration).
    Duration,
    /// The capture reached its limit on written bytes, [`Limits::bytes`](super::Limits::bytes).
    Bytes,
    /// The capture reached its limit on full files, [`Limits::files`](super::Limits::files).
    Files,
    /// The port went down with `capture.on_port_down = "stop"`, for example because a finite wire
    /// ended.
    PortDown,
    /// The RDMA device is lost; the text is the event or error that showed it.
    DeviceLost(String),
    /// Capture files cannot be written any more; the text names the file and the error.
    Storage(String),
    /// A receive queue failed and could not be recovered; the text is the error.
    Failed(String),
    /// The program that reads the capture stream from stdout has closed it.
    ReaderLeft,
}

impl End {
    /// Returns `true` for an end of a capture that is a failure: exit status 1.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::DeviceLost(_) | Self::Storage(_) | Self::Failed(_)
        )
    }

    /// Returns `true` if the capture ended because its device was lost, so that another capture can
    /// continue it.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::DeviceLost(_))
    }
}

/// Report of a finished capture run; the source of `--summary`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Reason for the end of the capture run.
    pub end: End,
    /// Ledger of each queue: number of its frames by what became of them, such as captured or
    /// dropped.
    pub queues: Vec<QueueLedger>,
    /// Names of the captured ports, if there are several; else empty.
    pub ports: Vec<String>,
    /// Frames that the NIC lost during the run, under the names that the NIC's driver gives its
    /// counters.
    pub nic: NicCounters,
    /// Number of malformed frames by class; `None`: this run parses no frames.
    pub malformed: Option<BTreeMap<&'static str, u64>>,
    /// Live traffic statistics at the end of the run; `None`: statistics were off.
    pub statistics: Option<live::TrafficSnapshot>,
    /// Counts of frames whose FCS was checked; `None`: `capture.verify_fcs` is off.
    pub fcs: Option<FcsReport>,
    /// Counters of frames left out by `[[cutoff]]`; `None`: no `[[cutoff]]` is configured.
    pub cutoff: Option<CutoffReport>,
    /// Counters of flow records; `None`: flow records were off.
    pub flows: Option<FlowsReport>,
    /// Bytes and files that the run has written, counted only with a limit on them
    /// ([`Limits::bytes`](super::Limits::bytes)).
    #[serde(skip)]
    pub written: Written,
    /// Finished capture files that still exist, in the order of their names.
    pub files: FileList,
    /// Old capture files deleted by retention; `None`: retention is off.
    pub deleted: Option<Deleted>,
    /// Capture files protected from retention by pins; `None`: retention is off.
    pub pinned: Option<PinnedFiles>,
    /// Counters of encrypted capture files; `None`: encryption is off.
    pub encryption: Option<EncryptionReport>,
    /// Results of the hooks run on finished files; `None`: no hook is configured.
    pub hooks: Option<HookReport>,
    /// Outages of the run: periods in which nothing could be received.
    #[serde(skip)]
    pub outages: Outages,
    /// Duration of the run: from the first WQ ready to the last capture file synced and closed,
    /// without the time in which the device was lost.
    pub duration: Duration,
    /// Time from the start of the capture to the first WQ ready.
    pub startup: Duration,
    /// Report on the NIC's clock; `None` with software time stamps.
    pub clock: Option<ClockReport>,
    /// Notes on events during the run that matter to readers of the capture files, one line each.
    pub notes: RunNotes,
}

impl Report {
    /// Combines the reports of two runs of one plan: counters are added up, and the end is that of
    /// the later run.
    #[must_use]
    pub fn merge(self, later: Self) -> Self {
        let queues = self.queues.iter().zip(&later.queues);
        let mut notes = self.notes;
        notes.absorb(later.notes);
        let mut files = self.files;
        files.absorb(later.files);
        if later.deleted.is_some() {
            // The later run may have deleted files of the earlier one.
            files.keep_existing();
        }
        Self {
            end: later.end,
            queues: queues.map(|(a, b)| a.plus(b)).collect(),
            ports: later.ports,
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
            outages: self.outages.followed_by(later.outages),
            duration: self.duration + later.duration,
            startup: self.startup,
            clock: match (self.clock, later.clock) {
                (Some(earlier), Some(later)) => Some(later.after(&earlier)),
                (earlier, later) => later.or(earlier),
            },
            notes,
        }
    }
}

/// Returns the sum of the optional counters of two runs, or the only counter if one run has none.
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
    /// Replaces the end of a capture by `failure`. If the end already is a failure with text, keeps
    /// it instead and returns the text of `failure` as a note.
    pub(super) fn merge_failure(&mut self, failure: Self) -> Option<String> {
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
