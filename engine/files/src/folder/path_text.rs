//! Paths in JSON, where text is UTF-8 while file names may have other bytes.

use serde::Serializer;
use std::path::{Path, PathBuf};

/// Serializes a path as text, with U+FFFD in place of bytes that are not UTF-8. The implementation
/// of serde refuses such paths.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// Serializes a path as text, like [`serialize`], and a missing path as null.
///
/// # Errors
/// Those of the serializer.
pub fn serialize_optional<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => serializer.collect_str(&path.display()),
        None => serializer.serialize_none(),
    }
}
