//! The control path: questions to a running capture, and orders.
//!
//! One [`service::Service`] answers the same [`message`]s over a Unix socket ([`unix`]) and over RDMA, from one shared
//! receive queue ([`srq`]), whose clients prove that they have a key ([`auth`]). A transport has a thread of
//! its own; each client is a [`session::Session`] to it, which knows what the client may do and how much
//! ([`limits`]). What is controlled stands behind [`backend::Backend`].
//!
//! Architecture invariant: this room sets flags and reads snapshots. It never touches a ring or the pool, never waits
//! for the capture, and nothing that a client does makes it hold more than its limits allow.

pub mod auth;
pub mod backend;
pub mod client;
mod level;
pub mod limits;
pub mod mailbox;
pub mod message;
mod once;
pub mod parts;
mod peer;
pub mod rdma;
pub mod service;
pub mod session;
pub mod srq;
pub mod unix;

use crate::{Error, config::ControlConfig};
use backend::Backend;
use limits::Limits;
use message::ControlStatus;
use service::Service;
use srq::SrqServer;
use std::sync::Arc;
use unix::UnixServer;

/// The service under way. It ends when this is dropped.
pub struct Control {
    service: Arc<Service>,
    _unix: UnixServer,
    _rdma: Option<SrqServer>,
}

impl Control {
    /// Serves `backend` as `config` says, away from the CPUs in `busy`, which are the capture's.
    ///
    /// # Errors
    /// A socket or a thread cannot be had; the error names the key.
    pub fn start(
        config: &ControlConfig,
        backend: Arc<dyn Backend>,
        busy: &[usize],
    ) -> Result<Self, Error> {
        let service = Service::new(backend, Limits::default());
        let settle = || {
            let busy = busy.to_vec();
            move || keep_off(&busy)
        };
        let rdma = config
            .rdma
            .map(|address| SrqServer::start(&service, config, address, settle()))
            .transpose()?;
        Ok(Self {
            _unix: UnixServer::start(&service, config, settle())?,
            _rdma: rdma,
            service,
        })
    }

    /// For those who tell of the service: its state, whenever it is asked for.
    pub fn watcher(&self) -> impl Fn() -> ControlStatus + Send + Sync + use<> {
        let service = Arc::clone(&self.service);
        move || service.status()
    }
}

/// Keeps the calling thread off the CPUs in `busy`, which are the capture's; where no other is left, it steps back behind the loops.
pub fn keep_off(busy: &[usize]) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut free = CpuSet::new();
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu) && !busy.contains(cpu)) {
        free.set(cpu);
    }
    let kept = if free.count() > 0 {
        sched_setaffinity(None, &free)
    } else {
        // On Linux a nice value is a thread's own.
        rustix::process::nice(10).map(drop)
    };
    if let Err(e) = kept {
        tracing::debug!("a thread beside the capture runs where the kernel puts it: {e}");
    }
}
