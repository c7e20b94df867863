//! Refusals of the operating system.

use std::io;

/// A file, a thread or memory that the operating system refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// A file or a directory cannot be created, opened, read or written.
    #[error("{what} {path}: {source}")]
    File {
        /// Configuration key or role of the file, for example `output.dir`.
        what: &'static str,
        /// Path of the file.
        path: String,
        /// Reason that the system returns.
        source: io::Error,
    },
    /// Memory, a thread or another resource of the process cannot be created.
    #[error("{what}: {source}")]
    System {
        /// Name of the resource, with its size if it has one.
        what: String,
        /// Reason that the system returns.
        source: io::Error,
    },
}
