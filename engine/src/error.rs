//! Errors of setting up: each names the verb or the key, the value, the limit, and what to do.

use std::io;

/// Why a capture could not be planned or started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration key holds what cannot be done. Exit status 2.
    #[error("{key} = {value}: {problem}")]
    Config {
        /// The key, `capture.queues`.
        key: String,
        /// Its value, as written.
        value: String,
        /// The limit and what to do.
        problem: String,
    },
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
    /// A file or folder.
    #[error("{what} {path}: {source}")]
    File {
        /// `output.dir`, say.
        what: &'static str,
        /// Which.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Memory or a thread could not be had.
    #[error("{what}: {source}")]
    System {
        /// What was asked for, with its size.
        what: String,
        /// Why not.
        source: io::Error,
    },
}
