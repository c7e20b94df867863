//! Errors of capture setup: each names the verb or the key, the value, the limit, and the remedy.

use crate::{config::Problem, verbs::VerbsError};
use std::io;
pub use wqcap_core::error::ResourceError;
use wqcap_rx::RxError;
use wqcap_sockets::{packet::PacketError, xdp::XdpError};

/// Remedy for a device that captures in mode `sniffer` only.
const SNIFFS_ROCE: &str = "; set capture.mode = \"sniffer\" to capture its RoCE frames";

/// Error that prevents a capture from being planned or started, or a running one from being
/// changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Configuration key with a value that is out of range or unsupported. Exit status 2.
    #[error(transparent)]
    Config(#[from] Problem),
    /// Several errors that prevent a capture. Exit status 2.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
    /// Change of a configuration key that the running capture does not support.
    #[error(transparent)]
    Unsupported(Problem),
    /// No RDMA device is present. Exit status 2.
    #[error("there is no RDMA device on this machine")]
    NoDevice,
    /// Several RDMA devices are present, and no configuration key selects one. Contains their
    /// names. Exit status 2.
    #[error("there are several RDMA devices ({}): set device.name or device.netdev", .0.join(", "))]
    SeveralDevices(Vec<String>),
    /// The selected RDMA device lacks verbs that a capture needs. Exit status 2.
    #[error("the RDMA device {device} cannot capture: it lacks {}{}", missing.join(", "), if *sniffs_roce { SNIFFS_ROCE } else { "" })]
    Incapable {
        /// Name of the RDMA device that cannot capture.
        device: String,
        /// Names of the verbs that the RDMA device lacks for a capture.
        missing: Vec<String>,
        /// `true` if the device can capture in mode `sniffer`, which needs fewer verbs.
        sniffs_roce: bool,
    },
    /// No RDMA device has the given name or address. Exit status 2.
    #[error(transparent)]
    UnknownDevice(VerbsError),
    /// A receive ring, or the loop that polls it, failed.
    #[error(transparent)]
    Receive(RxError),
    /// A call of a verb (function of libibverbs) failed.
    #[error("{verb}({object}): {source}{}", hint.as_deref().map(|h| format!("; {h}")).unwrap_or_default())]
    Verb {
        /// Name of the failed verb, such as `ibv_create_wq`.
        verb: &'static str,
        /// Device, queue or rule on which the verb failed, as text.
        object: String,
        /// System error (errno) that the failed verb returned.
        source: io::Error,
        /// Meaning of the errno for the failed verb, and the remedy.
        hint: Option<String>,
    },
    /// A packet socket of an ordinary network interface failed.
    #[error("{source}{}", hint.map(|h| format!("; {h}")).unwrap_or_default())]
    Socket {
        /// Failure of the packet socket.
        source: PacketError,
        /// Remedy for the failure of the packet socket.
        hint: Option<&'static str>,
    },
    /// An AF_XDP socket of an ordinary network interface failed.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// The operating system refuses a file, a thread or memory to the capture.
    #[error(transparent)]
    Resource(#[from] ResourceError),
}

impl Error {
    /// Returns an error for the configuration key `key`, whose value cannot be used.
    pub(crate) fn config(
        key: impl Into<String>,
        value: impl ToString,
        problem: impl ToString,
    ) -> Self {
        Self::Config(Problem::new(key, value, problem))
    }

    /// Adds configuration keys whose values the error depends on, if the error is about a
    /// configuration key.
    pub(crate) fn involving(self, keys: &[&'static str]) -> Self {
        match self {
            Self::Config(problem) => Self::Config(problem.involving(keys)),
            other => other,
        }
    }

    /// Returns an error for a configuration key that cannot be changed while the capture runs.
    pub(crate) fn unsupported(
        key: impl Into<String>,
        value: impl ToString,
        problem: impl ToString,
    ) -> Self {
        Self::Unsupported(Problem::new(key, value, problem))
    }
}

impl From<RxError> for Error {
    fn from(e: RxError) -> Self {
        match e {
            RxError::Verbs(e) => e.into(),
            e => Self::Receive(e),
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

impl From<VerbsError> for Error {
    fn from(e: VerbsError) -> Self {
        let general = e.hint();
        match e {
            VerbsError::Verb {
                verb,
                object,
                source,
            } => Self::Verb {
                verb,
                object,
                hint: hint(verb, &source, general),
                source,
            },
            VerbsError::Memory(refusal) => Self::Resource(refusal),
            e => Self::UnknownDevice(e),
        }
    }
}

/// Returns the remedy for the failed verb `verb`: the hint of the verbs crate in `general`, and the
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
