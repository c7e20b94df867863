//! Errors of the start of the control service.

use std::io;

/// Error of a configuration key with a value that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{key} = {value}: {problem}")]
pub struct ConfigProblem {
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) problem: String,
}

impl ConfigProblem {
    /// Returns the name of the configuration key, for example `control.group`.
    #[must_use]
    pub fn key(&self) -> &'static str {
        self.key
    }

    /// Returns the value of the configuration key, as written.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns the reason for which the configuration value cannot be used, and the remedy.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

/// Error of the start of the control service: names the configuration key, the value, and the
/// remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A configuration key has a value that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigProblem),
    /// The Unix socket of the control service cannot be created.
    #[error("control.unix = \"{path}\": cannot create the socket: {source}")]
    Socket {
        /// Path of the Unix socket.
        path: String,
        /// Error of the system for the Unix socket.
        source: io::Error,
    },
    /// A verb for `control.rdma` failed.
    #[error("control.rdma: {source}{}", hint(source))]
    Rdma {
        /// Error of the verb that failed for `control.rdma`.
        #[from]
        source: wqcap_verbs::VerbsError,
    },
    /// A thread or a file descriptor of the control service cannot be created.
    #[error("{what}: {source}")]
    System {
        /// Description of the operation that failed.
        what: String,
        /// Error of the system for the failed operation.
        source: io::Error,
    },
}

/// Returns the remedy for a verb's error that names the configuration key of its limit; empty if
/// there is none.
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
