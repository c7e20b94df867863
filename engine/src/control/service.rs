//! What the servers of all transports share: the backend, the limits, named changes, and the counters.

use super::{
    backend::{Backend, Done},
    limits::Limits,
    message::{Body, ControlStatus, RdmaStatus, Refusal, SrqStatus, Status, TransportStatus},
    message::{Changed, Command},
    once::Once,
};
use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// One service, over however many transports.
pub struct Service {
    backend: Arc<dyn Backend>,
    /// Of each client.
    pub limits: Limits,
    once: Mutex<Once>,
    /// Counters of the Unix socket, once that is served.
    pub unix: OnceLock<Arc<Counters>>,
    /// The same of RDMA, and the state of its SRQ as its thread last told it.
    pub rdma: OnceLock<(Arc<Counters>, Arc<Mutex<SrqStatus>>)>,
}

impl Service {
    /// Of this backend.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            backend,
            limits,
            once: Mutex::default(),
            unix: OnceLock::new(),
            rdma: OnceLock::new(),
        })
    }

    /// Answers a command that changes nothing.
    pub(super) fn look(&self, command: &Command) -> Result<Body, Refusal> {
        match command {
            Command::Devices => self.backend.devices().map(Body::Devices),
            Command::Plan => self.backend.plan().map(Body::Plan),
            Command::Stats => Ok(Body::Stats(Box::new(self.backend.stats()))),
            _ => Ok(Body::Status(Box::new(Status {
                capture: self.backend.status(),
                control: self.status(),
            }))),
        }
    }

    /// Passes a change on, unless its name says that this has happened.
    pub(super) fn change(self: &Arc<Self>, command: &Command, once: Option<&str>, done: Done) {
        let Some(name) = once else {
            return self.backend.change(command, done);
        };
        if !self.once().begin(name, command, done) {
            return;
        }
        let (service, name) = (Arc::clone(self), name.to_owned());
        let done = Done::new(move |outcome: Result<Changed, Refusal>| {
            // Told outside the lock: whoever hears it may ask again at once.
            let waiting = service.once().finish(&name, &outcome);
            for it in waiting {
                it.tell(outcome.clone());
            }
        });
        self.backend.change(command, done);
    }

    fn once(&self) -> std::sync::MutexGuard<'_, Once> {
        self.once.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// State of every transport.
    pub(super) fn status(&self) -> ControlStatus {
        ControlStatus {
            unix: self.unix.get().map(|it| it.read()),
            rdma: self.rdma.get().map(|(counters, srq)| RdmaStatus {
                transport: counters.read(),
                srq: srq.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            }),
        }
    }
}

/// Counters of one transport, written by its thread.
#[derive(Debug, Default)]
pub struct Counters {
    /// Clients connected now.
    pub clients: AtomicU64,
    /// Connections so far.
    pub accepted: AtomicU64,
    /// Turned away.
    pub refused: AtomicU64,
    /// Put out.
    pub expelled: AtomicU64,
    /// Requests.
    pub requests: AtomicU64,
}

impl Counters {
    /// One more.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> TransportStatus {
        TransportStatus {
            clients: self.clients.load(Ordering::Relaxed),
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            expelled: self.expelled.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
        }
    }
}
