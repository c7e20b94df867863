//! Capture files encrypted at rest, so that any part of one can be read without what is before it.
//!
//! ```text
//! header, 64 bytes: magic (8) | version (1) | log2 of a chunk's bytes (1) | zeros (6) | salt (32) | key check (16)
//! chunk:            65536 bytes of content, the last one fewer, encrypted | tag (16)
//! ```
//!
//! Each chunk is sealed by AES-256-GCM. The file's own key is HMAC-SHA-256 of the key and the salt, so that no two files
//! share one and a nonce is a chunk's number alone; it has a bit for the last chunk (the STREAM construction: Hoang,
//! Reyhanitabar, Rogaway, Vizár, CRYPTO 2015), so chunks can neither be moved nor left out, at the end neither. The header's
//! first 48 bytes are authenticated with each chunk.
//!
//! Who reads a file through [`crate::read`] does not see that it is sealed: offsets, also those of an index, are those of its
//! content. The key is the process's, as its umask is: [`open_with`] sets it.
//!
//! May import: the names of files, and of folders.
//!
//! Invariants: nothing of a chunk is given before its tag was checked. A file keeps its plain name until the sealed one is
//! synced under its own, so that a crash leaves at least one of them whole.

mod chunks;
mod content;
mod file;
mod key;

pub use content::Content;
pub use file::{Sealed, seal, sealed_name, sweep};
pub use key::{KeyError, KeySource, SecretKey};

use std::sync::OnceLock;

/// What the process opens sealed files with.
static KEY: OnceLock<SecretKey> = OnceLock::new();

/// Sealed files are opened with this key from now on. The first one stays.
pub fn open_with(key: SecretKey) {
    let _ = KEY.set(key);
}
