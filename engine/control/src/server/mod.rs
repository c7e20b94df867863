//! Control service: one thread per transport, one session per client.
//!
//! A `ControlService` answers requests for a [`Backend`]. The modules `unix` and `rc` transport
//! them: each has one thread, which owns its clients and their `ClientSession`s, within their
//! `ClientLimits`.
//!
//! Architecture invariant: the service passes changes on and reads snapshots. It never accesses a
//! ring or the slot pool, never waits for the capture, and holds no more for a client than its
//! limits allow.

mod backend;
mod error;
mod idempotency;
mod limits;
mod mailbox;
mod rc;
mod service;
mod session;
mod thread;
mod unix;

pub use backend::{Backend, ChangeReply, Requester};
pub use error::{ConfigProblem, StartError};
pub use unix::ControlSocket;
pub use wqcap_core::settings::{ControlConfig, FileMode};

use crate::protocol::ControlStatus;
use limits::ClientLimits;
use service::ControlService;
use std::sync::Arc;
use thread::ServerThread;
use unix::SocketFile;

/// Returns every problem of the `[control]` configuration on this machine: paths, groups and keys
/// that cannot be used. Creates nothing.
pub fn check(config: &ControlConfig) -> Vec<ConfigProblem> {
    let mut found = unix::check(config);
    found.extend(rc::keys(config).err());
    found
}

/// Running control service. Dropping it ends the service.
pub struct ControlServer {
    service: Arc<ControlService>,
    _unix: (ServerThread, SocketFile),
    _rc: Option<ServerThread>,
}

impl ControlServer {
    /// Starts to serve `backend` as `config` specifies, on a control socket that is already bound.
    /// The threads avoid the CPUs in `busy`, which the capture uses.
    ///
    /// # Errors
    /// A socket, an RDMA object or a thread cannot be created; the error names the configuration
    /// key.
    pub fn start_on(
        socket: ControlSocket,
        config: &ControlConfig,
        backend: Arc<dyn Backend>,
        busy: &[usize],
    ) -> Result<Self, StartError> {
        let service = ControlService::new(backend, ClientLimits::default());
        let rc = config
            .rdma
            .map(|address| rc::start(&service, config, address, busy.to_vec()))
            .transpose()?;
        Ok(Self {
            _unix: unix::start(&service, socket, busy.to_vec())?,
            _rc: rc,
            service,
        })
    }

    /// Returns a function that reads the state of the control service, for metrics and other
    /// readers.
    pub fn status_reader(&self) -> impl Fn() -> ControlStatus + Send + Sync + use<> {
        let service = Arc::clone(&self.service);
        move || service.status()
    }
}

/// Keeps the calling thread off the CPUs in `busy`, which the capture uses. If no other CPU is
/// allowed, lowers the thread's priority.
pub fn avoid_cpus(busy: &[usize]) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut free = CpuSet::new();
    for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu) && !busy.contains(cpu)) {
        free.set(cpu);
    }
    let set = if free.count() > 0 {
        sched_setaffinity(None, &free)
    } else {
        // On Linux the nice value belongs to the thread.
        rustix::process::nice(10).map(drop)
    };
    if let Err(e) = set {
        tracing::debug!("cannot keep a control or metrics thread off the capture's CPUs: {e}");
    }
}
