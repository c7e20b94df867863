//! State shared by the servers of all transports: the backend, the limits, the idempotency keys,
//! and the counters.

use super::{
    backend::{Backend, ChangeReply},
    idempotency::{IdempotencyCache, Registration},
    limits::ClientLimits,
};
use crate::{
    audit::{self, Peer},
    protocol::{
        AnswerBody, Changed, Command, ControlStatus, Query, RdmaStatus, Refusal, SrqStatus, Status,
        TransportStatus,
    },
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Control service with the state that its transports share.
pub struct ControlService {
    backend: Arc<dyn Backend>,
    /// Limits of each client of the control service.
    pub limits: ClientLimits,
    keys: Mutex<IdempotencyCache>,
    /// Counters of the Unix socket transport; set once the transport is served.
    pub unix: OnceLock<Arc<TransportCounters>>,
    /// Counters of the RDMA transport, and the last published state of its shared receive queue
    /// (SRQ); set once the transport is served.
    pub rdma: OnceLock<(Arc<TransportCounters>, Arc<Mutex<SrqStatus>>)>,
}

impl ControlService {
    /// Creates a control service for the capture that `backend` represents.
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

    /// Answers a command that only reads the state of the capture or of the service.
    pub(super) fn query(&self, query: Query) -> Result<AnswerBody, Refusal> {
        match query {
            Query::Devices => self.backend.devices().map(AnswerBody::Devices),
            Query::Plan => self.backend.plan().map(AnswerBody::Plan),
            Query::Stats => Ok(AnswerBody::Stats(Box::new(self.backend.stats()))),
            Query::Status => Ok(AnswerBody::Status(Box::new(Status {
                capture: self.backend.status(),
                control: self.status(),
            }))),
        }
    }

    /// Passes a requested change to the capture, unless an earlier request had the same idempotency
    /// key. The audit trail records the outcome once, when it is available.
    pub(super) fn change(
        self: &Arc<Self>,
        who: &Peer,
        command: &Command,
        key: Option<&str>,
        reply: ChangeReply,
    ) {
        let what = audit::describe(command);
        let Some(key) = key else {
            let who = who.clone();
            let reply = ChangeReply::new(reply.requester(), move |outcome| {
                audit::log_outcome(&who, &what, &outcome);
                reply.send(outcome);
            });
            return self.backend.change(command, reply);
        };
        let requester = reply.requester();
        let begun = self.keys().begin(key, command, reply);
        match begun {
            Registration::New => {}
            Registration::Repeat => return audit::log_repeat(who, &what),
            Registration::Refused(refusal) => return audit::log_refusal(who, &what, &refusal),
        }
        let (service, key, who) = (Arc::clone(self), key.to_owned(), who.clone());
        let reply = ChangeReply::new(requester, move |outcome: Result<Changed, Refusal>| {
            audit::log_outcome(&who, &what, &outcome);
            // Sent outside the lock: a receiver may send another request at once.
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

    /// Returns the state of every transport of the control service.
    pub(super) fn status(&self) -> ControlStatus {
        ControlStatus {
            unix: self.unix.get().map(|it| *it.lock()),
            rdma: self.rdma.get().map(|(counters, srq)| RdmaStatus {
                transport: *counters.lock(),
                srq: srq.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            }),
        }
    }
}

/// Counters of one transport of the control service, written by the transport's thread.
#[derive(Debug, Default)]
pub struct TransportCounters(Mutex<TransportStatus>);

impl TransportCounters {
    /// Updates the counters of the transport by calling `change`.
    pub fn update(&self, change: impl FnOnce(&mut TransportStatus)) {
        change(&mut self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, TransportStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
