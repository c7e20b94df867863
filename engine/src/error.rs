//! Errors of capture setup: each names the verb or the key, the value, the limit, and the remedy.

use crate::{config::Problem, verbs};
use std::io;
pub use wqcap_core::error::ResourceError;
use wqcap_rx::RxError;
use wqcap_sockets::packet::PacketError;

/// Error that prevents a capture from being planned or started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Configuration key with a value that is out of range or unsupported. Exit status 2.
    #[error(transparent)]
    Config(#[from] Problem),
    /// Several errors that prevent a capture. Exit status 2.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
    /// No RDMA device matches, or it lacks a required capability. Exit status 2.
    #[error("{0}")]
    Device(String),
    /// A call to a verb (libibverbs) failed.
    #[error("{verb}({object}): {source}{}", hint.as_deref().map(|h| format!("; {h}")).unwrap_or_default())]
    Verb {
        /// Name of the failed verb, such as `ibv_create_wq`.
        verb: &'static str,
        /// Object of the failed verb: the device, queue or rule.
        object: String,
        /// errno of the failed verb.
        source: io::Error,
        /// Meaning of the errno for the failed verb, and the remedy.
        hint: Option<String>,
    },
    /// A packet socket of an ordinary network interface failed.
    #[error("{source}{}", hint.map(|h| format!("; {h}")).unwrap_or_default())]
    Socket {
        /// Failure of the socket.
        source: PacketError,
        /// Remedy for the failure.
        hint: Option<&'static str>,
    },
    /// The operating system refuses a file, a thread or memory to the capture.
    #[error(transparent)]
    Resource(#[from] ResourceError),
}

impl Error {
    /// Returns an error for a configuration key whose value cannot be used.
    pub(crate) fn config(
        key: impl Into<String>,
        value: impl ToString,
        problem: impl ToString,
    ) -> Self {
        Self::Config(Problem::new(key, value, problem))
    }
}

impl From<RxError> for Error {
    fn from(e: RxError) -> Self {
        match e {
            RxError::Verbs(e) => e.into(),
            e => Self::Device(e.to_string()),
        }
    }
}

impl From<PacketError> for Error {
    fn from(source: PacketError) -> Self {
        let hint = match source.errno() {
            Some(libc::EPERM | libc::EACCES) => Some("grant CAP_NET_RAW"),
            Some(libc::ENOMEM) => Some("set fewer capture.queues, or free memory"),
            _ => None,
        };
        Self::Socket { source, hint }
    }
}

impl From<verbs::VerbsError> for Error {
    fn from(e: verbs::VerbsError) -> Self {
        let general = e.hint();
        match e {
            verbs::VerbsError::Verb {
                verb,
                object,
                source,
            } => Self::Verb {
                verb,
                object,
                hint: hint(verb, &source, general),
                source,
            },
            verbs::VerbsError::NoDevice(_) | verbs::VerbsError::NoDeviceAt(_) => {
                Self::Device(e.to_string())
            }
            verbs::VerbsError::Memory(refusal) => Self::Resource(refusal),
        }
    }
}

/// Returns the remedy for a failed verb: the hint of the verbs crate in `general`, and the
/// configuration key that requests the feature.
fn hint(verb: &str, source: &io::Error, general: Option<&str>) -> Option<String> {
    let setting = match (verb, source.raw_os_error()?) {
        ("ibv_create_wq" | "mlx5dv_create_wq", libc::EPERM) => " (wq.delay_drop)",
        ("ibv_create_wq" | "mlx5dv_create_wq", libc::EINVAL) => " (capture.ring, capture.max_sge)",
        ("ibv_reg_mr", libc::ENOMEM) => ", or make the rings smaller (capture.ring)",
        (_, libc::EOPNOTSUPP) => "; `wqcap devices` lists its capabilities",
        _ => "",
    };
    Some(format!("{}{setting}", general?))
}
