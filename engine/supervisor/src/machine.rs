//! Machine of the supervisor: the only place where an event takes effect.
//!
//! [`Supervisor::handle`] looks up the transition of an event in the table, executes its action, and
//! publishes the phase that follows to the control service, metrics and the host.
//!
//! Invariant: the phase that follows has the state that the table gives. If an action failed, it is
//! the phase before ([`Action::can_fail`]).

use super::{
    Supervisor,
    answers::{failed, replaced, same},
    device_recovery::{DeviceSearch, continue_capture},
    host::Host,
    order::{Occurrence, Outcome, Work},
    run::{Backoff, LiveCapture, Run, SnapshotTimer},
    transitions::{Action, Event, transition},
};
use wqcap_control::protocol::{CaptureState, Refusal, RefusalCode};
use wqcap_engine::{
    Error,
    capture::{Capture, End, Report},
    plan::Plan,
};

/// Phase of the supervisor after an action, and the answer to the command; `None`: no answer is
/// sent now.
type Step = (Phase, Option<Outcome>);

/// Phase of the supervisor, with the capture or the reports that exist in it.
pub(super) enum Phase {
    /// Phase in which a capture receives frames.
    Running(Box<LiveCapture>),
    /// Phase in which a capture lets no frames in.
    Drained(Box<LiveCapture>),
    /// Phase in which the device is lost and the supervisor searches for it.
    Lost(Box<DeviceSearch>),
    /// Phase in which no capture exists, and the command `start` starts one.
    Stopped(Box<RunReports>),
    /// Phase in which the supervisor has ended.
    Ended(Box<RunReports>),
}

impl Phase {
    /// Returns the phase's state in the table of transitions; `None`: the supervisor has ended.
    fn state(&self) -> Option<CaptureState> {
        match self {
            Self::Running(_) => Some(CaptureState::Running),
            Self::Drained(_) => Some(CaptureState::Drained),
            Self::Lost(_) => Some(CaptureState::Lost),
            Self::Stopped(_) => Some(CaptureState::Stopped),
            Self::Ended(_) => None,
        }
    }

    /// Returns the capture of the phase and its plan; `None`: no capture exists.
    fn capture(&mut self) -> Option<(&mut Capture, &Plan)> {
        match self {
            Self::Running(live) | Self::Drained(live) => Some((&mut live.capture, &live.run.plan)),
            Self::Lost(_) | Self::Stopped(_) | Self::Ended(_) => None,
        }
    }
}

/// Reports of all capture runs of this process so far.
pub(super) struct RunReports {
    /// Report of the last capture run, which the control service publishes.
    pub(super) last: Report,
    /// Combined report of all earlier capture runs; `None`: the last run is the first.
    before: Option<Report>,
}

impl RunReports {
    /// Returns the combined report of all capture runs of this process.
    pub(super) fn merge(self) -> Report {
        match self.before {
            None => self.last,
            Some(before) => before.merge(self.last),
        }
    }
}

impl Supervisor {
    /// Returns the phase after the start of `capture`, the first of a new run; `before` is the
    /// report of earlier runs.
    pub(super) fn begin_run(&self, capture: Capture, before: Option<Report>) -> Phase {
        let ready = capture.ready();
        let run = Run {
            plan: self.plan.clone(),
            began: ready,
            ready,
            backoff: Backoff::new(),
            before,
        };
        self.begin_capture(capture, run)
    }

    fn begin_capture(&self, capture: Capture, run: Run) -> Phase {
        capture.discard_pending_when(&self.signals.at_once);
        Phase::Running(Box::new(LiveCapture {
            capture,
            run,
            timer: SnapshotTimer::new(),
            flushing: None,
        }))
    }

    /// Handles an event: executes its action, answers its command, and publishes the phase that
    /// follows.
    pub(super) fn handle(
        &mut self,
        phase: Phase,
        mut it: Occurrence,
        host: &mut impl Host,
    ) -> Phase {
        let Some(before) = phase.state() else {
            return phase;
        };
        let (action, next) = transition(before, it.event);
        if next.is_none() {
            host.ending();
        }
        let (phase, outcome) = self.execute(action, phase, next, &mut it, host);
        let after = phase.state();
        debug_assert!(
            after == next || action.can_fail() && after == Some(before),
            "{:?} in {before:?}: {action:?} leads to {after:?}",
            it.event
        );
        if after != Some(before) {
            self.publish(before, &phase, host);
        }
        if let (Some(reply), Some(outcome)) = (it.reply, outcome) {
            reply.send(outcome);
        }
        phase
    }

    /// Executes an action. Returns the phase that follows, and the answer to the command.
    fn execute(
        &mut self,
        action: Action,
        phase: Phase,
        next: Option<CaptureState>,
        it: &mut Occurrence,
        host: &mut impl Host,
    ) -> Step {
        match (action, phase) {
            (Action::Same(now), phase) => (phase, Some(Ok(same(now)))),
            (Action::Refuse(why), phase) => {
                let refusal = Refusal::new(RefusalCode::State, why);
                (phase, Some(Err(refusal)))
            }
            (Action::Change, phase) => self.change(phase, it.work.take()),
            (Action::Reload, phase) => {
                if let Some(reply) = it.reply.take() {
                    self.reload(host, reply);
                }
                (phase, None)
            }
            (Action::Pause, Phase::Running(live)) => pause(live),
            (Action::Resume, Phase::Drained(live)) => resume(live),
            (Action::StartCapture, Phase::Stopped(reports)) => self.start_again(reports),
            (Action::Finish, Phase::Running(live)) => {
                self.finish(*live, CaptureState::Running, it.event, next, host)
            }
            (Action::Finish, Phase::Drained(live)) => {
                self.finish(*live, CaptureState::Drained, it.event, next, host)
            }
            (Action::GiveUp, Phase::Lost(search)) => self.give_up(*search, it.event, next),
            (Action::Recover, Phase::Lost(search)) => (self.recover(search, host), None),
            (Action::End, Phase::Stopped(reports)) => {
                let outcome = Ok(replaced(CaptureState::Stopped, "the process ends"));
                (Phase::Ended(reports), Some(outcome))
            }
            (Action::Ignore, phase) => (phase, None),
            // The table has none of these actions in another state; a test checks that.
            (
                Action::Pause
                | Action::Resume
                | Action::StartCapture
                | Action::Finish
                | Action::GiveUp
                | Action::Recover
                | Action::End,
                phase,
            ) => (phase, None),
        }
    }

    /// Executes the change of the capture that comes with an event.
    fn change(&mut self, mut phase: Phase, work: Option<Work>) -> Step {
        let outcome = work.map(|work| work(self, phase.capture()));
        if let Some((capture, _)) = phase.capture() {
            // A respread that failed half way has moved rules nevertheless.
            self.backend.follow(capture);
        }
        (phase, outcome)
    }

    /// Starts a capture after the command `start` in the phase `Stopped`.
    fn start_again(&self, reports: Box<RunReports>) -> Step {
        match self.start_capture() {
            Ok(capture) => {
                let outcome = Ok(replaced(CaptureState::Stopped, "running"));
                let phase = self.begin_run(capture, Some(reports.merge()));
                (phase, Some(outcome))
            }
            Err(e) => (Phase::Stopped(reports), Some(Err(failed(e.to_string())))),
        }
    }

    pub(super) fn start_capture(&self) -> Result<Capture, Error> {
        Capture::start(
            &self.plan,
            &self.resources,
            self.limits,
            &self.signals.owner,
        )
    }

    /// Ends a capture because of `event`. Returns the phase that follows.
    fn finish(
        &mut self,
        live: LiveCapture,
        was: CaptureState,
        event: Event,
        next: Option<CaptureState>,
        host: &mut impl Host,
    ) -> Step {
        let LiveCapture {
            capture,
            mut run,
            flushing,
            ..
        } = live;
        if let Some(flushing) = flushing {
            flushing.report_run_ended();
        }
        host.finishing(event);
        run.plan = capture.current_plan(&run.plan);
        self.backend.follow(&capture);
        if !capture.has_lost_its_device() {
            // The end may take long if the capture waits for a disk or a reader.
            self.backend.store_nic_counters(&capture.snapshot());
        }
        let mut report = capture.finish();
        if next == Some(CaptureState::Lost) {
            let search = DeviceSearch::new(report, run);
            return (Phase::Lost(Box::new(search)), None);
        }
        if event == Event::DeviceLost {
            tracing::warn!(
                "the device was lost while the capture was drained; `start` a new capture once the device is back"
            );
            report.end = End::Stopped;
        } else if event == Event::Signal && report.end.is_loss() && self.retries() {
            // The loss is detected during an end that was requested.
            report.end = End::Stopped;
        }
        conclude(report, run, was, next)
    }

    /// Ends the search for a lost device because of `event`. Returns the phase that follows.
    fn give_up(&self, search: DeviceSearch, event: Event, next: Option<CaptureState>) -> Step {
        let DeviceSearch {
            mut report, run, ..
        } = search;
        let limits = self.limits.after(&report, run.began.elapsed());
        report.end = match (event, limits) {
            (Event::LimitReached, Err(end)) => end,
            _ => End::Stopped,
        };
        conclude(report, run, CaptureState::Lost, next)
    }

    /// Attempts to find the lost device, and to continue the capture on it.
    fn recover(&self, mut search: Box<DeviceSearch>, host: &mut impl Host) -> Phase {
        let elapsed = search.run.began.elapsed();
        let Ok(limits) = self.limits.after(&search.report, elapsed) else {
            // `Event::LimitReached` follows.
            return Phase::Lost(search);
        };
        let (resources, owner) = (&self.resources, &self.signals.owner);
        match continue_capture(host, &search, resources, limits, owner) {
            Ok((capture, plan)) => {
                let mut run = search.run;
                (run.plan, run.ready) = (plan, capture.ready());
                self.begin_capture(capture, run)
            }
            Err(why) => {
                search.record_failure(&why);
                Phase::Lost(search)
            }
        }
    }

    /// Publishes the phase that the supervisor has entered from the state `before` to the control
    /// service, metrics and the host.
    pub(super) fn publish(&self, before: CaptureState, phase: &Phase, host: &mut impl Host) {
        let state = phase.state().unwrap_or(CaptureState::Stopped);
        match phase {
            Phase::Running(live) | Phase::Drained(live) => {
                let is_new = matches!(before, CaptureState::Stopped | CaptureState::Lost);
                if is_new {
                    self.backend.begin_capture(&live.capture, &live.run.plan);
                }
                self.backend.publish_capture(&live.capture, state);
                if is_new {
                    host.running(&live.run.plan);
                }
            }
            Phase::Lost(search) => {
                self.backend.publish_end(&search.report, state);
                search.log_loss();
            }
            Phase::Stopped(reports) | Phase::Ended(reports) => {
                self.backend.reset(&self.config, &self.plan);
                self.backend.publish_end(&reports.last, state);
            }
        }
    }
}

/// Removes the flow rules of a running capture, and completes its files, so that it is drained.
fn pause(mut live: Box<LiveCapture>) -> Step {
    live.capture.pause();
    let now = "no more frames are received, and files are completed; `start` receives frames again";
    let outcome = Ok(replaced(CaptureState::Running, now));
    (Phase::Drained(live), Some(outcome))
}

/// Installs the flow rules of a drained capture again, so that it runs.
fn resume(mut live: Box<LiveCapture>) -> Step {
    match live.capture.resume(&live.run.plan) {
        Ok(()) => {
            let outcome = Ok(replaced(CaptureState::Drained, "running"));
            (Phase::Running(live), Some(outcome))
        }
        Err(e) => (Phase::Drained(live), Some(Err(failed(e.to_string())))),
    }
}

/// Returns the phase that follows the end of a capture run, and the answer to the command that
/// ended the run.
fn conclude(report: Report, run: Run, was: CaptureState, next: Option<CaptureState>) -> Step {
    let outcome = match &report.end {
        End::DeviceLost(why) | End::Storage(why) | End::Failed(why) => {
            Err(failed(format!("the capture ended with a failure: {why}")))
        }
        End::Stopped
        | End::Count
        | End::Duration
        | End::Bytes
        | End::Files
        | End::PortDown
        | End::ReaderLeft => Ok(replaced(was, "stopped, and files are closed")),
    };
    let reports = Box::new(RunReports {
        last: report,
        before: run.before,
    });
    let phase = match next {
        Some(_) => Phase::Stopped(reports),
        None => Phase::Ended(reports),
    };
    (phase, Some(outcome))
}
