//! Errors of setting up: each names the verb or the key, the value, the limit, and what to do.

use crate::{config::Problem, verbs};
use std::io;
pub use wqcap_core::error::ResourceError;
use wqcap_rx::RxError;

/// Why a capture could not be planned or started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration key holds what cannot be done. Exit status 2.
    #[error(transparent)]
    Config(#[from] Problem),
    /// Several of these. Exit status 2.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Error>),
    /// No device fits, or the device cannot do it. Exit status 2.
    #[error("{0}")]
    Device(String),
    /// A verb failed.
    #[error("{verb}({object}): {source}{}", hint.as_deref().map(|h| format!("; {h}")).unwrap_or_default())]
    Verb {
        /// The verb's name, `ibv_create_wq`.
        verb: &'static str,
        /// On what: the device, queue or rule.
        object: String,
        /// The errno.
        source: io::Error,
        /// What the errno means here, and what to do.
        hint: Option<String>,
    },
    /// The operating system refuses a file, a thread or memory.
    #[error(transparent)]
    Resource(#[from] ResourceError),
}

impl Error {
    /// A key that holds what cannot be done.
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
            verbs::VerbsError::Memory(refusal) => Self::Resource(refusal),
        }
    }
}

/// What to do where a verb fails: what the verbs say of it in `general`, and the setting of a capture that asks for it.
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
