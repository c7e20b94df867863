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

mod answers;
mod backend;
mod commands;
mod device_recovery;
mod host;
mod machine;
mod occurrences;
mod order;
mod present;
mod run;
mod signals;
mod transitions;

pub use backend::{CaptureBackend, Presenter, StatusSnapshot};
pub use commands::{KeyReload, ReloadChanges, ReloadRefusal, ReloadTable, report_reload};
pub use host::{Host, HostError};
pub use present::{CurrentPlan, ValueChange};
pub use run::Interval;
pub use signals::Signals;
pub use transitions::Event;

use machine::Phase;
use order::Occurrence;
use std::sync::{
    Arc,
    mpsc::{Receiver, sync_channel},
};
use wqcap_control::protocol::CaptureState;
use wqcap_engine::{
    Error,
    capture::{Capture, Limits, Report, Resources},
    config::{Config, OnLoss},
    plan::Plan,
};

/// Capacity of the queue of commands to the capture's owner, far above the number that all clients
/// of the control service may have outstanding.
const ORDERS: usize = 4096;

/// Owner of a capture and of its restarts, which handles commands, signals and the loss of the
/// device.
pub struct Supervisor {
    backend: Arc<CaptureBackend>,
    orders: Receiver<Occurrence>,
    signals: Signals,
    /// Configuration as loaded from the file, with which reloaded configurations are compared.
    config: Config,
    plan: Plan,
    resources: Resources,
    limits: Limits,
}

impl Supervisor {
    /// Creates a supervisor for captures with the plan `plan`, which was made from `config`, each
    /// within `limits`. No capture is started yet.
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

    /// Returns the backend through which the control service and metrics access the supervised
    /// capture.
    #[must_use]
    pub fn backend(&self) -> Arc<CaptureBackend> {
        Arc::clone(&self.backend)
    }

    /// Starts the supervisor's first capture. The returned value runs the supervisor.
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
