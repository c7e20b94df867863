//! Errors of the start of the control service.

use std::io;

/// Error of a configuration key of `[control]` whose value cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{key} = {value}: {problem}")]
pub struct ConfigProblem {
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) problem: String,
}

impl ConfigProblem {
    /// Returns the name of the configuration key with the unusable value, for example
    /// `control.group`.
    #[must_use]
    pub fn key(&self) -> &'static str {
        self.key
    }

    /// Returns the unusable value of the configuration key, as written in the configuration.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns the reason why the configuration value cannot be used, and the remedy.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

/// Error at the start of the control service, which names the configuration key, its value, and the
/// remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A configuration key of `[control]` has a value that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigProblem),
    /// The Unix socket of the control service cannot be created.
    #[error("control.unix = \"{path}\": cannot create the socket: {source}")]
    Socket {
        /// Path of the Unix socket.
        path: String,
        /// Error of the system when it created the Unix socket.
        source: io::Error,
    },
    /// An RDMA verb that `control.rdma` needs failed.
    #[error("control.rdma: {source}{}", hint(source))]
    Rdma {
        /// Error of the RDMA verb that failed.
        #[from]
        source: wqcap_verbs::VerbsError,
    },
    /// A thread or a file descriptor of the control service cannot be created.
    #[error("{what}: {source}")]
    System {
        /// Description of the operation that failed at the start of the service.
        what: String,
        /// Error of the system for the failed operation.
        source: io::Error,
    },
}

/// Returns the remedy for an RDMA verb's error, which names the configuration key of the exceeded
/// limit; empty: no remedy is known.
fn hint(error: &wqcap_verbs::VerbsError) -> &'static str {
    match error {
        wqcap_verbs::VerbsError::Verb {
            verb: "ibv_create_srq" | "rdma_create_srq",
            source,
            ..
        } if source.raw_os_error() == Some(libc::EINVAL) => "; lower control.srq_max",
        _ => "",
    }
}
