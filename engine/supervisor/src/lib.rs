//! Supervisor of a capture: running, drained, stopped, its device lost and back.
//!
//! One table (`transitions`) defines the states and the effect of each event, and one function
//! (`machine`) executes it. Events are control commands, signals, the capture's own end and the loss
//! of its device. A [`Supervisor`] belongs to the thread that owns the capture. The control service and metrics use the [`CaptureBackend`],
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
mod flushing;
mod key_reload;
mod machine;
mod mark;
mod occurrences;
mod order;
mod present;
mod reload;
mod run;
mod signals;
mod snapshot_timer;
mod transitions;

pub use backend::{CaptureBackend, Presenter, StatusSnapshot};
pub use key_reload::{KeyReload, ReloadChanges, ReloadRefusal, ReloadTable, report_reload};
pub use present::{CurrentPlan, ValueChange};
pub use signals::Signals;
pub use snapshot_timer::Interval;
pub use transitions::Event;

use machine::Phase;
use order::Occurrence;
use std::{
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    time::Duration,
};
use wqcap_control::protocol::{CaptureState, Changed, Refusal, RefusalCode};
use wqcap_engine::{
    Error,
    capture::{Capture, Limits, Report, Resources},
    config::{Config, OnLoss},
    plan::Plan,
};

/// Capacity of the queue of orders to the capture's owner. Far above the number that all clients
/// may have outstanding.
const ORDERS: usize = 4096;
/// Error of the program around a supervisor; its text is logged, or is the reason of a refusal.
pub type HostError = Box<dyn std::error::Error + Send + Sync>;

/// Functions that the program around a supervisor provides to it. Only the first two are required.
pub trait Host {
    /// Reads the configuration again, for the command `reload` and SIGHUP.
    ///
    /// # Errors
    /// Reason why the configuration cannot be read.
    fn load_config(&mut self) -> Result<Config, HostError>;

    /// Makes a new plan for the RDMA device in its present state. Called repeatedly while the
    /// device is lost, until it succeeds.
    ///
    /// # Errors
    /// The device is not present, or does not support the configuration.
    fn find_device(&mut self) -> Result<Plan, HostError>;

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

/// Owner of a capture and of its restarts: handles orders, signals and the loss of the device.
pub struct Supervisor {
    backend: Arc<CaptureBackend>,
    orders: Receiver<Occurrence>,
    signals: Signals,
    /// Configuration as loaded from the file; reloads are compared with it.
    config: Config,
    plan: Plan,
    resources: Resources,
    limits: Limits,
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
        let capture = self.start_capture()?;
        Ok(Supervised {
            supervisor: self,
            capture,
        })
    }

    fn retries(&self) -> bool {
        self.config.device.on_loss == OnLoss::Retry
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
        let mut phase = supervisor.begin_run(capture, None);
        supervisor.publish(CaptureState::Stopped, &phase, host);
        loop {
            let event = match phase {
                Phase::Running(ref mut live) | Phase::Drained(ref mut live) => {
                    supervisor.await_with_capture(live, host)
                }
                Phase::Lost(ref search) => supervisor.await_in_search(search, host),
                Phase::Stopped(ref reports) if reports.last.end.is_failure() => {
                    Event::StopFailed.into()
                }
                Phase::Stopped(_) => supervisor.await_while_stopped(host),
                Phase::Ended(reports) => return reports.merge(),
            };
            phase = supervisor.handle(phase, event, host);
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
