//! What the servers of all transports share: the backend, the limits, the idempotency keys, and the counters.

use super::{
    backend::{Backend, ChangeReply},
    idempotency::IdempotencyCache,
    limits::ClientLimits,
};
use crate::protocol::{
    AnswerBody, Changed, Command, ControlStatus, RdmaStatus, Refusal, SrqStatus, Status,
    TransportStatus,
};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// One service over all its transports.
pub struct ControlService {
    backend: Arc<dyn Backend>,
    /// Of each client.
    pub limits: ClientLimits,
    keys: Mutex<IdempotencyCache>,
    /// Counters of the Unix socket, once it is served.
    pub unix: OnceLock<Arc<TransportCounters>>,
    /// Counters of RDMA, once it is served, and the state of its SRQ as last published by its thread.
    pub rdma: OnceLock<(Arc<TransportCounters>, Arc<Mutex<SrqStatus>>)>,
}

impl ControlService {
    /// A service for this backend.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, limits: ClientLimits) -> Arc<Self> {
        Arc::new(Self {
            backend,
            limits,
            keys: Mutex::default(),
            unix: OnceLock::new(),
            rdma: OnceLock::new(),
        })
    }

    /// Answers a command that changes nothing.
    pub(super) fn query(&self, command: &Command) -> Result<AnswerBody, Refusal> {
        match command {
            Command::Devices => self.backend.devices().map(AnswerBody::Devices),
            Command::Plan => self.backend.plan().map(AnswerBody::Plan),
            Command::Stats => Ok(AnswerBody::Stats(Box::new(self.backend.stats()))),
            _ => Ok(AnswerBody::Status(Box::new(Status {
                capture: self.backend.status(),
                control: self.status(),
            }))),
        }
    }

    /// Passes a change on to the backend, unless a change with the same idempotency key came before.
    pub(super) fn change(
        self: &Arc<Self>,
        command: &Command,
        key: Option<&str>,
        reply: ChangeReply,
    ) {
        let Some(key) = key else {
            return self.backend.change(command, reply);
        };
        if !self.keys().begin(key, command, reply) {
            return;
        }
        let (service, key) = (Arc::clone(self), key.to_owned());
        let reply = ChangeReply::new(move |outcome: Result<Changed, Refusal>| {
            // Sent outside the lock: a receiver may ask again at once.
            let waiting = service.keys().finish(&key, &outcome);
            for it in waiting {
                it.send(outcome.clone());
            }
        });
        self.backend.change(command, reply);
    }

    fn keys(&self) -> MutexGuard<'_, IdempotencyCache> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
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
pub struct TransportCounters {
    /// Clients connected now.
    pub clients: AtomicU64,
    /// Connections accepted.
    pub accepted: AtomicU64,
    /// Connections rejected.
    pub refused: AtomicU64,
    /// Clients disconnected by the service.
    pub expelled: AtomicU64,
    /// Requests received.
    pub requests: AtomicU64,
}

impl TransportCounters {
    /// Adds one.
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
