//! Estimated time that the disk holds captured files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Estimated time that the disk holds captured files, at the current rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outlook {
    /// Bytes per second of the files that were finished in the last hour.
    pub bytes_per_s: f64,
    /// If `deletes` is set, the age in seconds at which files are deleted. Otherwise the number of
    /// seconds until the disk is full.
    pub seconds: f64,
    /// Set if the oldest files are deleted to make room.
    pub deletes: bool,
}
