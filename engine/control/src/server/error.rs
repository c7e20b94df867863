//! Errors of the start of the control service.

use std::io;

/// Configuration key with a value that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{key} = {value}: {problem}")]
pub struct ConfigProblem {
    /// Name of the key, for example `control.group`.
    pub key: &'static str,
    /// Value of the key, as written.
    pub value: String,
    /// Problem of the value, and the remedy.
    pub problem: String,
}

/// Error of the start of the service: names the configuration key, the value, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A configuration key has a value that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigProblem),
    /// The Unix socket cannot be created.
    #[error("control.unix = \"{path}\": {source}")]
    Socket {
        /// Path of the socket.
        path: String,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A verb for `control.rdma` failed.
    #[error("control.rdma: {source}{}", hint(source))]
    Rdma {
        /// Error of the verb.
        #[from]
        source: wqcap_verbs::VerbsError,
    },
    /// A thread or a descriptor cannot be created.
    #[error("{what}: {source}")]
    System {
        /// Description of the failed operation.
        what: String,
        /// Cause of the failure.
        source: io::Error,
    },
}

/// Returns the remedy that names the configuration key of a verb's limit.
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
