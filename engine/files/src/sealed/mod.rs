//! Encryption of capture files at rest. Any part of a file can be read without the parts before it.
//!
//! ```text
//! header, 64 bytes: magic (8) | version (1) | log2 of a chunk's bytes (1) | zeros (6) | salt (32) | key check (16)
//! chunk:            65536 bytes of content, the last one fewer, encrypted | tag (16)
//! ```
//!
//! Each chunk is sealed by AES-256-GCM. The file key is HMAC-SHA-256 of the secret key and the
//! salt. No two files share a file key, so that a nonce is a chunk's number and a bit for the last
//! chunk (the STREAM construction: Hoang, Reyhanitabar, Rogaway, Vizár, CRYPTO 2015). Chunks can
//! therefore neither be moved nor left out, also at the end. The header's first 48 bytes are
//! authenticated with each chunk.
//!
//! Readers that use [`crate::read`] see the content of a sealed file: offsets, also those in an
//! index, are offsets in the content. Whatever opens files takes the key as an argument: without one,
//! only plain files can be read.
//!
//! May import: the names of files, and of folders.
//!
//! Invariants: no content of a chunk is returned before its tag was checked. The plain file is kept
//! until the sealed file is synced under its own name, so that at least one of them is complete
//! after a crash.

mod chunks;
mod content;
mod file;
mod key;

pub use chunks::UnsealError;
pub use content::Content;
pub use file::{Sealed, seal, sealed_name, sweep};
pub use key::{KeySource, SealKeyError, SecretKey};
