//! Refusals of the operating system.

use std::io;

/// Error of a file, a thread or memory that the operating system refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// Error of a file or a directory that cannot be created, opened, read or written.
    #[error("{what} {path}: {source}")]
    File {
        /// Configuration key or role of the file, for example `output.dir`.
        what: &'static str,
        /// Path of the file that cannot be used.
        path: String,
        /// Error that the system returned for the file.
        source: io::Error,
    },
    /// Error of memory, a thread or another resource that the process cannot create.
    #[error("{what}: {source}")]
    System {
        /// Failed operation or refused resource, with its size if it has one.
        what: String,
        /// Error that the system returned for the resource.
        source: io::Error,
    },
}
