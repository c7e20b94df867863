//! Estimated time that the disk holds captured files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Estimated time that the disk holds captured files, at the current rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outlook {
    /// Bytes per second of the capture files that were finished in the last hour.
    pub bytes_per_s: f64,
    /// Age in seconds at which capture files are deleted, if `deletes` is set; otherwise the number
    /// of seconds until the disk is full.
    pub seconds: f64,
    /// Set if the oldest capture files are deleted to make room.
    pub deletes: bool,
}
