//! Supervisor of a capture: running, drained, stopped, its device lost and back.
//!
//! One table ([`transition`]) defines the states and the effect of each event. Events are control
//! commands, signals, the capture's own end and the loss of its device. A [`Supervisor`] belongs to
//! the thread that owns the capture. The control service and metrics use the [`CaptureBackend`],
//! which reads snapshots and queues commands for the owner.
//!
//! The trait [`Host`] covers what differs between programs: the source of the configuration, and
//! the reports on the capture.
//!
//! Invariant: the threads of the control service and of metrics never wait for the capture.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod backend;
mod commands;
mod compilations;
mod device_recovery;
mod mark;
mod present;
mod reload;
mod signals;
mod snapshot_timer;
mod transitions;

pub use backend::{CaptureBackend, Presenter, StatusSnapshot};
pub use present::{CurrentPlan, ValueChange};
pub use signals::Signals;
pub use snapshot_timer::Interval;
pub use transitions::{Action, Event, transition};

use device_recovery::Backoff;
use signals::Flushing;
use snapshot_timer::SnapshotTimer;
use std::{
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{Receiver, sync_channel},
    },
    time::{Duration, Instant},
};
use wqcap_control::{
    audit,
    protocol::{CaptureState, Changed, Command, Refusal, RefusalCode},
    server::ChangeReply,
};
use wqcap_engine::{
    Error,
    capture::{Capture, End, Limits, Report, Resources},
    config::{Config, OnLoss},
    filter::Filter,
    plan::Plan,
};

/// Capacity of the queue of orders to the capture's owner. Far above the number that all clients
/// may have outstanding.
const ORDERS: usize = 4096;
/// Maximum delay until the supervisor notices a signal while no capture exists.
const TICK: Duration = Duration::from_millis(100);

/// Functions that the program around a supervisor provides to it. Only the first two are required.
pub trait Host {
    /// Reads the configuration again, for the command `reload` and SIGHUP.
    ///
    /// # Errors
    /// Reason why the configuration cannot be read.
    fn load_config(&mut self) -> Result<Config, String>;

    /// Makes a new plan for the RDMA device in its present state. Called repeatedly while the
    /// device is lost, until it succeeds.
    ///
    /// # Errors
    /// The device is not present, or does not support the configuration.
    fn find_device(&mut self) -> Result<Plan, String>;

    /// Called by the supervisor when a capture of this plan starts to run.
    fn running(&mut self, _plan: &Plan) {}

    /// Called by the supervisor once per second while a capture runs.
    fn snapshot(&mut self, _interval: &Interval) {}

    /// Called by the supervisor before queues are drained and files closed; `why` is the event that
    /// ends the capture.
    fn finishing(&mut self, _why: Event) {}

    /// Called by the supervisor before it ends.
    fn ending(&mut self) {}

    /// Called repeatedly by the supervisor while the capture is stopped.
    fn stopped(&mut self) {}

    /// Called repeatedly by the supervisor while the device is lost, after `tries` attempts to find
    /// it; the next one follows after `wait`.
    fn searching(&mut self, _device: &str, _tries: u32, _wait: Duration) {}
}

/// Order that is queued for the capture's owner.
enum QueuedOrder {
    /// Control command for the capture's owner to execute.
    Command {
        command: Command,
        reply: ChangeReply,
    },
    /// Reloaded configuration with its compiled capture filter, for the owner to apply.
    Apply {
        config: Box<Config>,
        filter: Filter,
        reply: ChangeReply,
    },
}

/// Owner of a capture and of its restarts: handles orders, signals and the loss of the device.
pub struct Supervisor {
    backend: Arc<CaptureBackend>,
    orders: Receiver<QueuedOrder>,
    signals: Signals,
    /// Configuration as loaded from the file; reloads are compared with it.
    config: Config,
    plan: Plan,
    resources: Resources,
    limits: Limits,
    /// Replies to the commands that ordered the end of the capture that is in progress.
    waiting: Vec<ChangeReply>,
}

/// Phase of the supervisor, with the objects that exist in it.
enum Phase {
    /// Phase in which a capture runs or is drained.
    Capturing(Box<Capture>, Box<Run>),
    /// Phase in which the device is lost; holds the capture's report so far.
    Lost(Report, Box<Run>),
    /// Phase in which the capture is stopped; holds the report so far.
    Stopped(Report),
    /// Phase in which the supervisor ends; holds the final report.
    Ended(Report),
}

/// Capture run from a start to the next stop, including all losses of the device in between.
struct Run {
    plan: Plan,
    /// Time at which the first WQ of the capture run was ready.
    began: Instant,
    /// Time at which the first WQ of the present capture was ready.
    ready: Instant,
    backoff: Backoff,
    /// Combined report of the capture runs before this one.
    before: Option<Report>,
}

impl Run {
    fn new(capture: &Capture, plan: &Plan, before: Option<Report>) -> Box<Self> {
        Box::new(Self {
            plan: plan.clone(),
            began: capture.ready(),
            ready: capture.ready(),
            backoff: Backoff::new(),
            before,
        })
    }
}

impl Supervisor {
    /// Creates a supervisor for captures of `plan`, made from the loaded `config`, each within
    /// `limits`. No capture object is created yet.
    pub fn new(
        config: Config,
        plan: Plan,
        resources: Resources,
        limits: Limits,
        signals: Signals,
        presenter: impl Presenter + 'static,
    ) -> Self {
        let (sender, orders) = sync_channel(ORDERS);
        let owner = signals.owner.clone();
        let backend = CaptureBackend::new(&config, &plan, sender, owner, Box::new(presenter));
        Self {
            backend: Arc::new(backend),
            orders,
            signals,
            config,
            plan,
            resources,
            limits,
            waiting: Vec::new(),
        }
    }

    /// Returns the backend for the control service and metrics of the supervised capture.
    #[must_use]
    pub fn backend(&self) -> Arc<CaptureBackend> {
        Arc::clone(&self.backend)
    }

    /// Starts the supervisor's first capture.
    ///
    /// # Errors
    /// The errors of [`Capture::start`].
    pub fn start(self) -> Result<Supervised, Error> {
        let capture = Capture::start(
            &self.plan,
            &self.resources,
            self.limits,
            &self.signals.owner,
        )?;
        Ok(Supervised {
            supervisor: self,
            capture,
        })
    }

    /// Reloads the configuration if a signal requested it. The result goes to the audit trail.
    fn reload_on_signal(&mut self, host: &mut impl Host) {
        let Some(who) = self.signals.reload.take() else {
            return;
        };
        let reply = ChangeReply::new(move |outcome: Result<Changed, Refusal>| {
            audit::log_outcome(&who, "SIGHUP: reload", &outcome);
            if let Err(e) = outcome {
                tracing::error!(
                    "SIGHUP: the reload failed, and the configuration is unchanged: {}",
                    e.message
                );
            }
        });
        self.reload(host, reply);
    }

    fn is_stop_requested(&self) -> bool {
        self.signals.stop.load(Ordering::Relaxed)
    }

    /// Executes an order within the supervisor's present phase. Returns the event and the reply if
    /// the order ends the phase.
    fn carry_out(
        &mut self,
        order: QueuedOrder,
        host: &mut impl Host,
        capture: Option<(&mut Capture, &Plan)>,
    ) -> Option<(Event, ChangeReply)> {
        let (command, reply) = match order {
            QueuedOrder::Command { command, reply } => (command, reply),
            QueuedOrder::Apply {
                config,
                filter,
                reply,
            } => {
                reply.send(self.apply_reload(*config, filter, capture));
                return None;
            }
        };
        let event = match command {
            Command::Start => Event::Start,
            Command::Drain => Event::Drain,
            Command::Stop => Event::Stop,
            Command::Shutdown => Event::Shutdown,
            Command::Reload => Event::Reload,
            _ => Event::Change,
        };
        let (action, _) = transition(self.backend.state(), event);
        let outcome = match (action, capture) {
            (Action::Same(so), _) => Ok(same(so)),
            (Action::Refuse(why), _) => Err(Refusal::new(RefusalCode::State, why)),
            (Action::Reload, _) => {
                self.reload(host, reply);
                return None;
            }
            (Action::Change, Some((capture, plan))) => self.change(&command, capture, plan),
            (Action::Pause, Some((capture, _))) => Ok(self.drain(capture)),
            (Action::Resume, Some((capture, plan))) => self.resume(capture, plan),
            _ => return Some((event, reply)),
        };
        reply.send(outcome);
        None
    }

    /// Runs a capture, already published in [`CaptureBackend`], until an event ends it; then
    /// finishes it.
    fn run_capture(
        &mut self,
        mut capture: Capture,
        mut run: Box<Run>,
        host: &mut impl Host,
    ) -> Phase {
        capture.discard_pending_when(&self.signals.at_once);
        host.running(&run.plan);
        let why = self.watch(&mut capture, &run.plan, host);
        let (_, next) = transition(self.backend.state(), why);
        host.finishing(why);
        if next.is_none() {
            host.ending();
        }
        let plan = capture.current_plan(&run.plan);
        self.backend.follow(&capture);
        if !capture.has_lost_its_device() {
            // The end may take long if the capture waits for a disk or a reader.
            self.backend.store_nic_counters(&capture.snapshot());
        }
        let mut report = capture.finish();
        if next == Some(CaptureState::Lost) {
            self.backend.publish_end(&report, CaptureState::Lost);
            run.plan = plan;
            return Phase::Lost(report, run);
        }
        if why == Event::DeviceLost {
            tracing::warn!(
                "the device of a drained capture was lost; `start` a new capture once it is back"
            );
            report.end = End::Stopped;
        } else if why == Event::Signal && report.end.is_loss() && self.retries() {
            // The loss is detected during an end that was requested.
            report.end = End::Stopped;
        }
        self.conclude(report, run, next, host)
    }

    /// Concludes a capture run: answers the waiting commands, and adds the run's report to those of
    /// earlier runs.
    fn conclude(
        &mut self,
        report: Report,
        run: Box<Run>,
        next: Option<CaptureState>,
        host: &mut impl Host,
    ) -> Phase {
        let was = self.backend.state();
        self.backend.reset(&self.config, &self.plan);
        self.backend.publish_end(&report, CaptureState::Stopped);
        for reply in self.waiting.drain(..) {
            reply.send(if report.end.is_failure() {
                let why = match &report.end {
                    End::DeviceLost(why) | End::Storage(why) | End::Failed(why) => why.clone(),
                    other => format!("{other:?}"),
                };
                Err(failed(format!("the capture ended with a failure: {why}")))
            } else {
                Ok(replaced(was, "stopped, and files are closed"))
            });
        }
        let failure = report.end.is_failure();
        let all = match run.before {
            None => report,
            Some(before) => before.merge(report),
        };
        match next {
            Some(_) if !failure => Phase::Stopped(all),
            Some(_) => {
                host.ending();
                Phase::Ended(all)
            }
            None => Phase::Ended(all),
        }
    }

    /// Serves a running capture until an event ends it, and returns the event.
    fn watch(&mut self, capture: &mut Capture, plan: &Plan, host: &mut impl Host) -> Event {
        let mut flushing = None;
        let event = self.watch_until_the_end(capture, plan, host, &mut flushing);
        if let Some(flushing) = flushing {
            flushing.report_run_ended();
        }
        event
    }

    fn watch_until_the_end(
        &mut self,
        capture: &mut Capture,
        plan: &Plan,
        host: &mut impl Host,
        flushing: &mut Option<Flushing>,
    ) -> Event {
        let mut timer = SnapshotTimer::new();
        loop {
            if capture.wait(Flushing::due(flushing.as_ref(), timer.due())) {
                return match capture.has_lost_its_device() && self.retries() {
                    true => Event::DeviceLost,
                    false => Event::CaptureEnded,
                };
            }
            if self.is_stop_requested() {
                return Event::Signal;
            }
            self.attend_to_signals(capture, flushing);
            self.reload_on_signal(host);
            while let Ok(order) = self.orders.try_recv() {
                if let Some((event, reply)) =
                    self.carry_out(order, host, Some((&mut *capture, plan)))
                {
                    self.waiting.push(reply);
                    return event;
                }
            }
            if let Some(interval) = timer.take(capture) {
                self.backend.store_nic_counters(&interval.now);
                self.backend.follow_table(capture);
                host.snapshot(&interval);
            }
        }
    }

    fn retries(&self) -> bool {
        self.config.device.on_loss == OnLoss::Retry
    }

    /// Searches for the lost device until it is back, a limit is reached, or the search is
    /// cancelled.
    fn search(&mut self, mut report: Report, mut run: Box<Run>, host: &mut impl Host) -> Phase {
        run.backoff.record_run(run.ready.elapsed());
        let name = run.plan.device.name.clone();
        let mut wait = run.backoff.next();
        tracing::warn!("{name}: the device is lost; wqcap searches for it again in {wait:?}");
        let mut due = Instant::now() + wait;
        let mut tries = 0;
        loop {
            let limits = self.limits.after(&report, run.began.elapsed());
            let gave_up = match &limits {
                _ if self.is_stop_requested() => Some((Event::Signal, End::Stopped)),
                Err(end) => Some((Event::LimitReached, end.clone())),
                Ok(_) => self.serve_idle(host).map(|(event, reply)| {
                    self.waiting.push(reply);
                    (event, End::Stopped)
                }),
            };
            if let Some((event, end)) = gave_up {
                report.end = end;
                let (_, next) = transition(CaptureState::Lost, event);
                if next.is_none() {
                    host.ending();
                }
                return self.conclude(report, run, next, host);
            }
            let left = due.saturating_duration_since(Instant::now());
            host.searching(&name, tries, left);
            let (true, Ok(limits)) = (left.is_zero(), limits) else {
                continue;
            };
            tries += 1;
            let found = host.find_device();
            let wakeup = &self.signals.owner;
            match found.and_then(|it| {
                device_recovery::continue_capture(
                    &run.plan,
                    it,
                    &self.resources,
                    limits,
                    &report,
                    wakeup,
                )
            }) {
                Ok((capture, plan)) => {
                    self.backend.set_running(&capture, &plan);
                    (run.plan, run.ready) = (plan, capture.ready());
                    return Phase::Capturing(Box::new(capture), run);
                }
                Err(why) => {
                    wait = run.backoff.next();
                    tracing::warn!(
                        "{name}: the device is not back yet: {why}; wqcap searches for it again in {wait:?}"
                    );
                    due = Instant::now() + wait;
                }
            }
        }
    }

    /// Handles signals and one order, waiting at most [`TICK`], while no capture exists. Returns
    /// the event and the reply if an order ends the supervisor's phase.
    fn serve_idle(&mut self, host: &mut impl Host) -> Option<(Event, ChangeReply)> {
        self.reload_on_signal(host);
        self.refuse_without_capture();
        // The backend holds the sender, so the only error is the timeout.
        let order = self.orders.recv_timeout(TICK).ok()?;
        self.carry_out(order, host, None)
    }

    /// Waits while the capture is stopped, for a `start` that succeeds or for the end of the
    /// process.
    fn wait_stopped(&mut self, report: Report, host: &mut impl Host) -> Phase {
        loop {
            host.stopped();
            if self.is_stop_requested() {
                return Phase::Ended(report);
            }
            let Some((event, reply)) = self.serve_idle(host) else {
                continue;
            };
            if transition(CaptureState::Stopped, event).1.is_none() {
                reply.send(Ok(replaced(CaptureState::Stopped, "the process ends")));
                return Phase::Ended(report);
            }
            match Capture::start(
                &self.plan,
                &self.resources,
                self.limits,
                &self.signals.owner,
            ) {
                Ok(capture) => {
                    self.backend.set_running(&capture, &self.plan);
                    reply.send(Ok(replaced(CaptureState::Stopped, "running")));
                    let run = Run::new(&capture, &self.plan, Some(report));
                    return Phase::Capturing(Box::new(capture), run);
                }
                Err(e) => reply.send(Err(failed(e.to_string()))),
            }
        }
    }
}

/// Supervisor with its first capture running. Dropping it ends that capture in order.
pub struct Supervised {
    supervisor: Supervisor,
    capture: Capture,
}

impl Supervised {
    /// Supervises captures until the end, and returns the combined report on all captures.
    pub fn run(self, host: &mut impl Host) -> Report {
        let Self {
            mut supervisor,
            capture,
        } = self;
        supervisor.backend.set_running(&capture, &supervisor.plan);
        let run = Run::new(&capture, &supervisor.plan, None);
        let mut phase = Phase::Capturing(Box::new(capture), run);
        loop {
            phase = match phase {
                Phase::Capturing(capture, run) => supervisor.run_capture(*capture, run, host),
                Phase::Lost(report, run) => supervisor.search(report, run, host),
                Phase::Stopped(report) => supervisor.wait_stopped(report, host),
                Phase::Ended(report) => return report,
            };
        }
    }
}

/// Returns the answer to a control command that was executed; `now` describes the new state.
fn changed(now: &str) -> Changed {
    Changed {
        changed: true,
        was: None,
        now: now.into(),
        id: None,
    }
}

/// Returns the answer to a control command that was executed; `was` and `now` describe the old and
/// the new state.
fn replaced(was: impl ToString, now: &str) -> Changed {
    Changed {
        was: Some(was.to_string()),
        ..changed(now)
    }
}

/// Returns the answer to a control command that changes nothing; `now` describes the present state.
fn same(now: &str) -> Changed {
    Changed {
        changed: false,
        was: None,
        now: now.into(),
        id: None,
    }
}

/// Returns the refusal of a control command that was executed and failed.
fn failed(message: String) -> Refusal {
    Refusal::new(RefusalCode::Failed, message)
}
