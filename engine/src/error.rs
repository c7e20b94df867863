//! Errors of capture setup: each names the verb or the key, the value, the limit, and the remedy.

use crate::{config::Problem, verbs};
use std::io;

/// Error that prevents a capture from being planned or started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Configuration key with a value that is out of range or unsupported. Exit status 2.
    #[error(transparent)]
    Config(#[from] Problem),
    /// Several errors at once. Exit status 2.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
    /// No device matches, or the device lacks a required capability. Exit status 2.
    #[error("{0}")]
    Device(String),
    /// A call to a verb failed.
    #[error("{verb}({object}): {source}{}", hint.as_deref().map(|h| format!("; {h}")).unwrap_or_default())]
    Verb {
        /// Name of the verb, such as `ibv_create_wq`.
        verb: &'static str,
        /// Object of the call: the device, queue or rule.
        object: String,
        /// errno of the failed verb.
        source: io::Error,
        /// Meaning of the errno for this verb, and the remedy.
        hint: Option<String>,
    },
    /// A file or directory cannot be used.
    #[error("{what} {path}: {source}")]
    File {
        /// Role of the file: a configuration key such as `output.dir`.
        what: &'static str,
        /// Path of the file.
        path: String,
        /// Error of the file operation.
        source: io::Error,
    },
    /// Memory or a thread cannot be allocated.
    #[error("{what}: {source}")]
    System {
        /// Requested resource, with its size.
        what: String,
        /// Error of the operating system for the request.
        source: io::Error,
    },
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
            verbs::VerbsError::NoDevice(_) => Self::Device(format!("device.name = {e}")),
            verbs::VerbsError::NoDeviceAt(_) => Self::Device(e.to_string()),
            verbs::VerbsError::Memory { bytes, source } => Self::System {
                what: format!("{bytes} bytes of memory"),
                source,
            },
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
