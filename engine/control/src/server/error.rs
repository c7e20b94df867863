//! Why the service could not be started.

use std::io;

/// A configuration key with a value that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{key} = {value}: {problem}")]
pub struct ConfigProblem {
    /// The key, `control.group`.
    pub key: &'static str,
    /// Its value, as written.
    pub value: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

/// Names the configuration key, the value, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A configuration key has a value that cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigProblem),
    /// The Unix socket.
    #[error("control.unix = \"{path}\": {source}")]
    Socket {
        /// Its path.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A verb, for `control.rdma`.
    #[error("control.rdma: {source}{}", hint(source))]
    Rdma {
        /// Its error.
        #[from]
        source: wqcap_verbs::VerbsError,
    },
    /// A thread or a descriptor.
    #[error("{what}: {source}")]
    System {
        /// What was requested.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

/// The key that a verb's limit concerns.
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
