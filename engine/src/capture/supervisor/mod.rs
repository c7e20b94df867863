//! Runs a capture through its whole life: running, drained, stopped, its device lost and back.
//!
//! The states and what each event does in them are one table ([`transition`]). Events are control commands, signals, the
//! capture's own end and the loss of its device. A [`Supervisor`] belongs to the thread that owns the capture; the
//! control service and metrics see the [`CaptureBackend`], which reads snapshots and queues commands for the owner.
//!
//! What differs between programs is behind [`Host`]: where the configuration comes from, and who reports on the capture.
//!
//! Invariant: the threads of the control service and of metrics never wait for the capture.

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
pub use present::{PlanNow, ValueChange};
pub use signals::Signals;
pub use snapshot_timer::Interval;
pub use transitions::{Action, Event, transition};

use crate::{
    Error,
    capture::{Capture, End, Limits, Report},
    config::{Config, OnLoss},
    control::{
        audit,
        protocol::{CaptureState, Changed, Command, Refusal, RefusalCode},
        server::ChangeReply,
    },
    filter::Filter,
    plan::Plan,
};
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

/// Orders that may wait. Far above what all clients may have outstanding.
const ORDERS: usize = 4096;
/// How long a signal may go unnoticed while there is no capture.
const TICK: Duration = Duration::from_millis(100);

/// What a supervisor needs of the program around it. Only the first two are required.
pub trait Host {
    /// Reads the configuration again, for `reload` and SIGHUP.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn load_config(&mut self) -> Result<Config, String>;

    /// Makes the plan anew for the device as it is found now. Called until it succeeds while the device is lost.
    ///
    /// # Errors
    /// The device is not there, or cannot do what the configuration asks for.
    fn find_device(&mut self) -> Result<Plan, String>;

    /// A capture of this plan runs.
    fn running(&mut self, _plan: &Plan) {}

    /// Once a second while a capture runs.
    fn snapshot(&mut self, _interval: &Interval) {}

    /// The capture is about to end because of `why`: queues are drained and files closed next.
    fn finishing(&mut self, _why: Event) {}

    /// The supervisor is about to end.
    fn ending(&mut self) {}

    /// Again and again while nothing is captured.
    fn stopped(&mut self) {}

    /// Again and again while the device is lost: it was looked for `tries` times, and is again after `wait`.
    fn searching(&mut self, _device: &str, _tries: u32, _wait: Duration) {}
}

/// An order for the capture's owner.
enum Order {
    /// A command.
    Command {
        command: Command,
        reply: ChangeReply,
    },
    /// A configuration that was read again, with its compiled filter.
    Apply {
        config: Box<Config>,
        filter: Filter,
        reply: ChangeReply,
    },
}

/// A capture to be, or under way, with everything that may happen to it.
pub struct Supervisor {
    backend: Arc<CaptureBackend>,
    orders: Receiver<Order>,
    signals: Signals,
    /// As loaded; what a reload is compared with.
    config: Config,
    plan: Plan,
    limits: Limits,
    /// Who ordered the end that is under way.
    waiting: Vec<ChangeReply>,
}

/// What there is to work with in a state.
enum Phase {
    /// A capture runs or is drained.
    Capturing(Box<Capture>, Box<Run>),
    /// Its device is lost: the report so far.
    Lost(Report, Box<Run>),
    /// The report of everything so far.
    Stopped(Report),
    /// The report of everything.
    Ended(Report),
}

/// What lasts from one start to the next stop, however often the device is lost in between.
struct Run {
    plan: Plan,
    /// When its first WQ was ready.
    began: Instant,
    /// When the present capture's first WQ was ready.
    ready: Instant,
    backoff: Backoff,
    /// The report of the runs before this one.
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
    /// For captures of `plan`, made of `config` as it was loaded, each within `limits`. Nothing is created yet.
    pub fn new(
        config: Config,
        plan: Plan,
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
            limits,
            waiting: Vec::new(),
        }
    }

    /// What the control service and metrics see of the capture.
    #[must_use]
    pub fn backend(&self) -> Arc<CaptureBackend> {
        Arc::clone(&self.backend)
    }

    /// Starts the first capture.
    ///
    /// # Errors
    /// As [`Capture::start`].
    pub fn start(self) -> Result<Supervised, Error> {
        let capture = Capture::start(&self.plan, self.limits, &self.signals.owner)?;
        Ok(Supervised {
            supervisor: self,
            capture,
        })
    }

    /// Reads the configuration again if a signal asked for that; the audit trail has the outcome.
    fn reload_on_signal(&mut self, host: &mut impl Host) {
        let Some(who) = self.signals.reload.take() else {
            return;
        };
        let reply = ChangeReply::new(move |outcome: Result<Changed, Refusal>| {
            audit::outcome(&who, "SIGHUP: reload", &outcome);
            if let Err(e) = outcome {
                tracing::error!("SIGHUP: nothing has changed: {}", e.message);
            }
        });
        self.reload(host, reply);
    }

    fn is_to_stop(&self) -> bool {
        self.signals.stop.load(Ordering::Relaxed)
    }

    /// Carries out an order as far as that does not end the present phase; else the event that does, and who asked.
    fn carry_out(
        &mut self,
        order: Order,
        host: &mut impl Host,
        capture: Option<(&mut Capture, &Plan)>,
    ) -> Option<(Event, ChangeReply)> {
        let (command, reply) = match order {
            Order::Command { command, reply } => (command, reply),
            Order::Apply {
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

    /// Watches a capture, which [`CaptureBackend`] shows already, until something ends it, and ends it.
    fn attend(&mut self, mut capture: Capture, mut run: Box<Run>, host: &mut impl Host) -> Phase {
        capture.give_up_on(&self.signals.at_once);
        host.running(&run.plan);
        let why = self.watch(&mut capture, &run.plan, host);
        let (_, next) = transition(self.backend.state(), why);
        host.finishing(why);
        if next.is_none() {
            host.ending();
        }
        let plan = capture.plan_now(&run.plan);
        self.backend.follow(&capture);
        if !capture.has_lost_its_device() {
            // The end may take long, if it waits for a disk or a reader.
            self.backend.has_seen(&capture.snapshot());
        }
        let mut report = capture.finish();
        if next == Some(CaptureState::Lost) {
            self.backend.has_ended(&report, CaptureState::Lost);
            run.plan = plan;
            return Phase::Lost(report, run);
        }
        if why == Event::DeviceLost {
            tracing::warn!("it was drained: `start` captures again once the device is back");
            report.end = End::Stopped;
        } else if why == Event::Signal && report.end.is_loss() && self.retries() {
            // The device is found to be gone only now: the end was asked for.
            report.end = End::Stopped;
        }
        self.conclude(report, run, next, host)
    }

    /// A run is over: reports it to whoever waits, and adds it to those before.
    fn conclude(
        &mut self,
        report: Report,
        run: Box<Run>,
        next: Option<CaptureState>,
        host: &mut impl Host,
    ) -> Phase {
        let was = self.backend.state();
        self.backend.reset(&self.config, &self.plan);
        self.backend.has_ended(&report, CaptureState::Stopped);
        for reply in self.waiting.drain(..) {
            reply.send(if report.end.is_failure() {
                Err(failed(format!("it ended with a failure: {:?}", report.end)))
            } else {
                Ok(replaced(was, "stopped, and files are closed"))
            });
        }
        let failure = report.end.is_failure();
        let all = match run.before {
            None => report,
            Some(before) => before.followed_by(report),
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

    /// What ends the capture.
    fn watch(&mut self, capture: &mut Capture, plan: &Plan, host: &mut impl Host) -> Event {
        let mut flushing = None;
        let event = self.watch_until_the_end(capture, plan, host, &mut flushing);
        if let Some(flushing) = flushing {
            flushing.ends_with_the_run();
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
            if self.is_to_stop() {
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
                self.backend.has_seen(&interval.now);
                self.backend.follow_table(capture);
                host.snapshot(&interval);
            }
        }
    }

    fn retries(&self) -> bool {
        self.config.device.on_loss == OnLoss::Retry
    }

    /// Looks for the device until it is back, or nobody waits for it any more.
    fn search(&mut self, mut report: Report, mut run: Box<Run>, host: &mut impl Host) -> Phase {
        run.backoff.has_run(run.ready.elapsed());
        let name = run.plan.device.name.clone();
        let mut wait = run.backoff.next();
        tracing::warn!("{name}: lost; looking for it in {wait:?}");
        let mut due = Instant::now() + wait;
        let mut tries = 0;
        loop {
            let limits = self.limits.after(&report, run.began.elapsed());
            let gave_up = match &limits {
                _ if self.is_to_stop() => Some((Event::Signal, End::Stopped)),
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
            match found
                .and_then(|it| device_recovery::go_on(&run.plan, it, limits, &report, wakeup))
            {
                Ok((capture, plan)) => {
                    self.backend.is_running(&capture, &plan);
                    (run.plan, run.ready) = (plan, capture.ready());
                    return Phase::Capturing(Box::new(capture), run);
                }
                Err(why) => {
                    wait = run.backoff.next();
                    tracing::warn!("{name}: not back yet: {why}; looking again in {wait:?}");
                    due = Instant::now() + wait;
                }
            }
        }
    }

    /// Answers for a moment while there is no capture; the event that ends this, and who ordered it.
    fn serve_idle(&mut self, host: &mut impl Host) -> Option<(Event, ChangeReply)> {
        self.reload_on_signal(host);
        self.refuse_what_takes_a_capture();
        // The backend holds the other end of the channel: there is no error but the time-out.
        let order = self.orders.recv_timeout(TICK).ok()?;
        self.carry_out(order, host, None)
    }

    /// Waits for a `start` that succeeds, or for the end.
    fn rest(&mut self, report: Report, host: &mut impl Host) -> Phase {
        loop {
            host.stopped();
            if self.is_to_stop() {
                return Phase::Ended(report);
            }
            let Some((event, reply)) = self.serve_idle(host) else {
                continue;
            };
            if transition(CaptureState::Stopped, event).1.is_none() {
                reply.send(Ok(replaced(CaptureState::Stopped, "the process ends")));
                return Phase::Ended(report);
            }
            match Capture::start(&self.plan, self.limits, &self.signals.owner) {
                Ok(capture) => {
                    self.backend.is_running(&capture, &self.plan);
                    reply.send(Ok(replaced(CaptureState::Stopped, "running")));
                    let run = Run::new(&capture, &self.plan, Some(report));
                    return Phase::Capturing(Box::new(capture), run);
                }
                Err(e) => reply.send(Err(failed(e.to_string()))),
            }
        }
    }
}

/// A supervisor whose first capture runs. Dropped, it ends that capture in order.
pub struct Supervised {
    supervisor: Supervisor,
    capture: Capture,
}

impl Supervised {
    /// Carries on until the end, and reports on all captures as one.
    pub fn run(self, host: &mut impl Host) -> Report {
        let Self {
            mut supervisor,
            capture,
        } = self;
        supervisor.backend.is_running(&capture, &supervisor.plan);
        let run = Run::new(&capture, &supervisor.plan, None);
        let mut phase = Phase::Capturing(Box::new(capture), run);
        loop {
            phase = match phase {
                Phase::Capturing(capture, run) => supervisor.attend(*capture, run, host),
                Phase::Lost(report, run) => supervisor.search(report, run, host),
                Phase::Stopped(report) => supervisor.rest(report, host),
                Phase::Ended(report) => return report,
            };
        }
    }
}

/// It was done, and this holds now.
fn changed(now: &str) -> Changed {
    Changed {
        changed: true,
        was: None,
        now: now.into(),
        id: None,
    }
}

/// It was done, and this holds now in place of what was.
fn replaced(was: impl ToString, now: &str) -> Changed {
    Changed {
        was: Some(was.to_string()),
        ..changed(now)
    }
}

/// This holds already.
fn same(now: &str) -> Changed {
    Changed {
        changed: false,
        was: None,
        now: now.into(),
        id: None,
    }
}

/// It was tried, and failed.
fn failed(message: String) -> Refusal {
    Refusal::new(RefusalCode::Failed, message)
}
